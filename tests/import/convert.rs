//! A folder written as an archive, read back, and extracted.

use std::sync::atomic::AtomicBool;

use thintensor::format::writer::WriteOptions;
use thintensor::format::{Archive, Pages};
use thintensor::import::{Purpose, convert, open, open_source};

use crate::folder::{Tensors, golden, read_pages, read_safetensors, unpack};

const GOLDENS: &[&str] = &["llama", "llama-sharded", "llama-bias-linear", "phi3", "smollm3"];

#[test]
fn archives_of_folders_hold_the_same_pages_and_say_they_are_exact() {
    let cancel = AtomicBool::new(false);
    let options = WriteOptions { force: false, resume: false, progress: &|_| {}, cancel: &cancel };
    for name in GOLDENS {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("model.thin");

        convert(&golden(name), &path, &options).expect(name);

        let archive = Archive::open(&path).expect(name);
        let (packed, _) = open_source(&golden(name), Purpose::Run).expect(name);
        assert!(archive.manifest().provenance.exact_storage_preserved);
        assert_eq!(*archive.manifest(), packed.finish().expect(name));
        assert!(read_pages(&archive) == read_pages(&packed), "{name}");
        let again = open(&path).expect("opens as any model");
        assert_eq!(again.pages().len(), packed.pages().len());
    }
}

#[test]
fn archives_of_folders_give_the_source_tensors_back() {
    let cancel = AtomicBool::new(false);
    let options = WriteOptions { force: false, resume: false, progress: &|_| {}, cancel: &cancel };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("model.thin");
    convert(&golden("llama"), &path, &options).expect("converts");

    let archive = Archive::open(&path).expect("opens");

    let mut source = Tensors::new();
    read_safetensors(&golden("llama").join("model.safetensors"), &mut source);
    assert!(unpack(&archive, &read_pages(&archive)) == source);
}

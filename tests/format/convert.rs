//! Reference checkpoints all the way round: packed, written, verified, extracted, packed and written again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use thintensor::format::extract::extract;
use thintensor::format::verify::verify;
use thintensor::format::writer::{WriteOptions, write};
use thintensor::format::{Archive, Pages};
use thintensor::import::{Purpose, open_source};

use crate::double::quiet;

const CHECKPOINTS: &[&str] =
    &["llama", "llama-tied", "llama-sharded", "llama-bias-linear", "qwen2", "qwen3", "phi3"];

type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

fn convert(folder: &Path, path: &Path) -> Archive {
    let (packed, _) = open_source(folder, Purpose::Convert).expect("a checkpoint");
    let options = WriteOptions {
        force: false,
        resume: false,
        progress: &quiet,
        cancel: &AtomicBool::new(false),
    };
    write(&packed, path, &options).expect("written");
    let report = verify(path, &quiet).expect("readable");
    assert!(report.ok, "{report:#?}");
    Archive::open(path).expect("own archive")
}

/// The safetensors files of a model folder, by name.
fn tensors(folder: &Path) -> BTreeMap<String, Tensors> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("there") {
        let path = entry.expect("there").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).expect("there");
        let read = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let of_file = read
            .iter()
            .map(|(name, view)| {
                let dtype = format!("{:?}", view.dtype());
                (name.to_owned(), (dtype, view.shape().to_vec(), view.data().to_vec()))
            })
            .collect();
        files.insert(name, of_file);
    }
    files
}

#[test]
fn reference_checkpoints_convert_verify_and_extract_to_the_same_tensors_and_files() {
    for name in CHECKPOINTS {
        let source =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/goldens").join(name);
        let folder = tempfile::tempdir().expect("scratch folder");
        let archive = convert(&source, &folder.path().join("m.thin"));
        assert!(archive.manifest().provenance.exact_storage_preserved, "{name}");

        let out = folder.path().join("out");
        extract(&archive, &out, false, &quiet).expect("own archive");

        assert!(tensors(&source) == tensors(&out), "{name}");
        for asset in &archive.manifest().assets {
            let file = std::fs::read(source.join(&asset.name)).expect("there");
            assert!(file == std::fs::read(out.join(&asset.name)).expect("there"), "{name}");
        }

        let again = convert(&out, &folder.path().join("again.thin"));
        assert_eq!(archive.pages(), again.pages(), "{name}");
    }
}

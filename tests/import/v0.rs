//! Archives of version 0, as the program that wrote them left them: the same tensors and numbers come out.

use std::path::{Path, PathBuf};

use serde_json::Value;
use thintensor::format::{Pages, manifest::Manifest};
use thintensor::import::{self, OpenOptions, Purpose, v0};

use crate::folder::{Tensors, read_pages, read_safetensors, unpack};

fn compat(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/compat").join(name)
}

/// Each archive with the folder it was made from.
const ALL: [(&str, &str); 8] = [
    ("tiny-gptoss", "tiny-gptoss-hf"),
    ("tiny-llama", "tiny-llama-hf"),
    ("tiny-llama.fused_decode_v1", "tiny-llama-hf"),
    ("tiny-llama.hot_stream_v1", "tiny-llama-hf"),
    ("tiny-mixtral", "tiny-mixtral-hf"),
    ("tiny-mixtral.fused_decode_v1", "tiny-mixtral-hf"),
    ("tiny-qwen2", "tiny-qwen2-hf"),
    ("tiny-qwen3moe", "tiny-qwen3moe-hf"),
];

fn archive(name: &str) -> PathBuf {
    compat(&format!("{name}.thin"))
}

fn source_tensors(folder: &str) -> Tensors {
    let mut tensors = Tensors::new();
    read_safetensors(&compat(folder).join("model.safetensors"), &mut tensors);
    tensors
}

fn with_texts(purpose: Purpose, tokenizer: Option<&Path>) -> OpenOptions<'_> {
    OpenOptions { tokenizer, ..OpenOptions::new(purpose) }
}

fn open(name: &str, texts: Option<&str>) -> (Box<dyn Pages>, Vec<String>) {
    let texts = texts.map(compat);
    let options = with_texts(Purpose::Convert, texts.as_deref());
    let opened = import::open_with(&archive(name), options);
    let opened = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
    (opened.pages, opened.notes)
}

#[test]
fn all_archives_verify() {
    for (name, folder) in ALL {
        let report = v0::verify(&archive(name), &|_| {}).expect("a file");

        assert!(report.ok, "{name}: {:?}", report.checks);
        assert_eq!(report.tensors, source_tensors(folder).len() as u64, "{name}");
    }
}

#[test]
fn statistics_are_those_of_the_program_that_wrote_them() {
    for (name, _) in ALL {
        let golden = std::fs::read(compat(&format!("golden/{name}.stats.json"))).expect("a golden");
        let golden: Value = serde_json::from_slice(&golden).expect("JSON");

        let found = v0::stats::stats(&v0::Archive::open(&archive(name)).expect("an archive"));

        assert_eq!(serde_json::to_value(&found).expect("JSON"), golden, "{name}");
    }
}

#[test]
fn extracted_weight_files_are_the_source_byte_for_byte() {
    for (name, folder) in ALL {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let archive = v0::Archive::open(&archive(name)).expect("an archive");

        let report = v0::extract(&archive, scratch.path(), false, &|_| {}).expect("extracted");

        let found = std::fs::read(scratch.path().join("model.safetensors")).expect("written");
        let source = std::fs::read(compat(folder).join("model.safetensors")).expect("the source");
        assert!(found == source, "{name}");
        assert_eq!(report.assets, ["config.json"], "{name}");
    }
}

/// The settings version 0 records, compared with those of the folder through the eyes of the importer.
#[test]
fn archives_of_families_that_run_give_the_pages_of_their_folder() {
    for (name, folder) in ALL {
        let config = std::fs::read(compat(folder).join("config.json")).expect("a config");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        let family = config["model_type"].as_str().expect("a family");
        let runs = thintensor::model::arch::by_model_type(family).is_some();
        if !runs {
            let refused = import::open_for(&archive(name), Purpose::Run);
            let refusal = refused.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refusal.contains(family), "{name}: {refusal}");
            assert!(refusal.contains("not supported"), "{name}: {refusal}");
            continue;
        }

        let (found, _) = open(name, Some(folder));

        let source = import::open_for(&compat(folder), Purpose::Convert).expect("a folder").pages;
        assert_eq!(found.manifest().spec, source.manifest().spec, "{name}");
        let found_tensors = unpack(&*found, &read_pages(&*found));
        assert!(found_tensors == source_tensors(folder), "{name}");
        let groups = |manifest: &Manifest| manifest.descriptors.clone();
        assert_eq!(groups(found.manifest()), groups(source.manifest()), "{name}");
    }
}

#[test]
fn a_tokenizer_is_given_or_found_beside_the_archive_if_it_is_the_right_one() {
    let has_tokenizer = |pages: &dyn Pages| {
        pages.manifest().assets.iter().any(|asset| asset.name == "tokenizer.json")
    };
    let (alone, notes) = open("tiny-llama", None);
    assert!(!has_tokenizer(&*alone));
    assert!(notes.iter().any(|note| note.contains("no tokenizer.json")), "{notes:?}");
    assert!(has_tokenizer(&*open("tiny-llama", Some("tiny-llama-hf")).0));

    let folder = tempfile::tempdir().expect("a scratch folder");
    let beside = folder.path().join("model.thin");
    std::fs::copy(archive("tiny-llama"), &beside).expect("a copy");
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::copy(compat("tiny-llama-hf/tokenizer.json"), &tokenizer).expect("a copy");
    let found = import::open_for(&beside, Purpose::Run).expect("an archive");
    assert!(has_tokenizer(&*found.pages), "{:?}", found.notes);

    let changed = std::fs::read(&tokenizer).expect("read");
    std::fs::write(&tokenizer, [&changed[..], b"\n"].concat()).expect("written");
    let other = import::open_for(&beside, Purpose::Run).expect("an archive");
    assert!(!has_tokenizer(&*other.pages));
    assert!(other.notes.iter().any(|note| note.contains("is not used")), "{:?}", other.notes);
    let given = import::open_with(&beside, with_texts(Purpose::Run, Some(folder.path())))
        .expect("an archive");
    assert!(has_tokenizer(&*given.pages));
    assert!(given.notes.iter().any(|note| note.contains("is not the tokenizer")));
}

#[test]
fn a_folder_without_a_tokenizer_is_refused_where_one_was_asked_for() {
    let folder = tempfile::tempdir().expect("a scratch folder");

    let refused =
        import::open_with(&archive("tiny-llama"), with_texts(Purpose::Run, Some(folder.path())));

    let refusal = refused.err().expect("refused").to_string();
    assert!(refusal.contains("tokenizer.json' does not exist"), "{refusal}");
}

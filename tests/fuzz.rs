//! The fuzz targets on stable: each is given valid inputs with random changes, and random bytes.
//! `fuzz/` runs the same functions for longer, guided by coverage.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use thintensor::fuzz;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(fixture(path)).expect("a fixture")
}

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Byte(usize, u8),
    Number(usize, u64),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let number = prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 32),
        Just(1 << 40),
        any::<u64>()
    ];
    let word = prop_oneof![
        Just(b"{".to_vec()),
        Just(b"[".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"1e400".to_vec()),
        Just(b"null".to_vec()),
        Just(b"{{ ns.x ~ [ns, ns] }}".to_vec()),
        Just(b"{% set ns.x = [ns.x, ns.x] %}".to_vec()),
        Just(b"{% for i in range(9999) %}".to_vec()),
        prop::collection::vec(any::<u8>(), 1..8),
    ];
    let at = any::<usize>();
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (any::<usize>(), number).prop_map(|(at, number)| Change::Number(at, number)),
        any::<usize>().prop_map(Change::Cut),
        (any::<usize>(), 1usize..64).prop_map(|(at, len)| Change::Remove(at, len)),
        (any::<usize>(), 1usize..64).prop_map(|(at, len)| Change::Repeat(at, len)),
        (any::<usize>(), word).prop_map(|(at, word)| Change::Insert(at, word)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let place = |at: usize, len: usize| at % (len + 1);
    let len = bytes.len();
    match change {
        Change::Byte(at, byte) if len > 0 => bytes[at % len] = *byte,
        Change::Number(at, number) if len >= 8 => {
            let at = place(*at, len - 8);
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        Change::Byte(..) | Change::Number(..) => {}
        Change::Cut(at) => bytes.truncate(place(*at, len)),
        Change::Remove(at, count) => {
            let at = place(*at, len);
            drop(bytes.drain(at..(at + count).min(len)));
        }
        Change::Repeat(at, count) => {
            let at = place(*at, len);
            let part = bytes[at..(at + count).min(len)].to_vec();
            drop(bytes.splice(at..at, part));
        }
        Change::Insert(at, word) => {
            let at = place(*at, len);
            drop(bytes.splice(at..at, word.iter().copied()));
        }
    }
}

/// Runs a target on changed seeds and on noise.
fn run(target: fn(&[u8]), seeds: &[Vec<u8>], cases: u32) {
    seeds.iter().for_each(|seed| target(seed));
    let changed = (any::<prop::sample::Index>(), prop::collection::vec(change(), 1..6));
    let noise = prop::collection::vec(any::<u8>(), 0..256);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&(changed, noise), |((seed, changes), noise)| {
        let mut bytes = seeds[seed.index(seeds.len())].clone();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        target(&bytes);
        target(&noise);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn any_archive_is_read_or_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("llama.thin");
    let options = thintensor::format::writer::WriteOptions {
        force: true,
        resume: false,
        progress: &|_| {},
        cancel: &std::sync::atomic::AtomicBool::new(false),
    };
    thintensor::import::convert(&fixture("compat/tiny-llama-hf"), &path, &options)
        .expect("written");

    run(fuzz::fuzz_archive, &[std::fs::read(&path).expect("read")], 300);
}

#[test]
fn any_archive_of_version_0_is_read_or_refused() {
    let names = ["tiny-llama", "tiny-llama.fused_decode_v1", "tiny-gptoss", "tiny-qwen3moe"];
    let seeds: Vec<_> = names.iter().map(|name| read(&format!("compat/{name}.thin"))).collect();

    run(fuzz::fuzz_archive_v0, &seeds, 1000);
}

#[test]
fn any_safetensors_file_is_read_or_refused() {
    let seeds = [
        read("goldens/llama-tied/model.safetensors"),
        read("compat/tiny-gptoss-hf/model.safetensors"),
    ];

    run(fuzz::fuzz_safetensors, &seeds, 1000);
}

#[test]
fn any_gguf_file_is_read_or_refused() {
    let seeds = ["llama-tied", "qwen3", "smollm3"].map(|name| {
        let mut bytes = read(&format!("goldens-gguf/{name}.gguf"));
        bytes.truncate(200_000); // the header and some of the weights
        bytes
    });

    run(fuzz::fuzz_gguf, &seeds, 300);
}

#[test]
fn any_index_is_read_or_refused() {
    run(fuzz::fuzz_index, &[read("goldens/llama-sharded/model.safetensors.index.json")], 400);
}

#[test]
fn any_config_is_read_or_refused() {
    let names = ["llama", "qwen2-yarn", "smollm3", "phi3", "mistral", "gpt-oss", "gemma3"];
    let seeds: Vec<_> =
        names.iter().map(|name| read(&format!("goldens/{name}/config.json"))).collect();

    run(fuzz::fuzz_config, &seeds, 1000);
}

#[test]
fn any_tokenizer_is_read_or_refused() {
    let seed = |path| [read(path), b"Hello, \xf0\x9f\xa6\x99 <|im_end|>".to_vec()].concat();
    let seeds = [seed("compat/tiny-llama-hf/tokenizer.json"), seed("text/chatml.tokenizer.json")];

    run(fuzz::fuzz_tokenizer, &seeds, 1000);
}

#[test]
fn any_template_ends() {
    let names = ["chatml", "features", "llama3", "qwen3", "smollm3", "harmony", "mistral"];
    let seeds: Vec<_> =
        names.iter().map(|name| read(&format!("text/templates/{name}.jinja"))).collect();

    run(fuzz::fuzz_template, &seeds, 1500);
}

#[test]
fn any_ids_and_stop_strings_are_shown_or_held_back() {
    let seeds =
        [b"\x02stop\nhe\nhello stop \xf0\x9f\xa6\x99 \x07\xff".to_vec(), b"\x01aab\naaab".to_vec()];

    run(fuzz::fuzz_text, &seeds, 2000);
}

#[test]
fn every_target_has_a_program_in_the_fuzz_folder() {
    for (name, _) in fuzz::TARGETS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz/targets/{name}.rs"));
        let text = std::fs::read_to_string(&path).expect("a target");
        assert!(text.contains(&format!("fuzz::fuzz_{name}(")), "{name}");
    }
}

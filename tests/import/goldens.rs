//! Every reference checkpoint of the supported families: complete, in order, and the same bytes back.

use thintensor::format::{Pages, Role};
use thintensor::import::{Purpose, open_source};

use crate::folder::{Tensors, golden, read_pages, read_safetensors, unpack};

const GOLDENS: &[&str] = &[
    "llama",
    "llama-tied",
    "llama-sharded",
    "llama-bias-linear",
    "mistral",
    "qwen2",
    "qwen2-yarn",
    "qwen2-swa",
    "qwen3",
    "smollm3",
    "phi3",
];

fn source(name: &str) -> Tensors {
    let mut tensors = Tensors::new();
    for entry in std::fs::read_dir(golden(name)).expect("the reference checkpoint") {
        let path = entry.expect("an entry").path();
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            read_safetensors(&path, &mut tensors);
        }
    }
    tensors
}

#[test]
fn pages_of_every_golden_unpack_to_the_source_bytes() {
    for name in GOLDENS {
        let (packed, _) = open_source(&golden(name), Purpose::Run).expect(name);

        let unpacked = unpack(&packed, &read_pages(&packed));

        let source = source(name);
        assert!(!source.is_empty());
        assert_eq!(
            source.keys().collect::<Vec<_>>(),
            unpacked.keys().collect::<Vec<_>>(),
            "{name}"
        );
        for (tensor, content) in source {
            assert!(unpacked[&tensor] == content, "{name}: {tensor}");
        }
        assert!(packed.manifest().provenance.ignored.is_empty(), "{name}");
    }
}

#[test]
fn hashes_of_every_golden_are_the_same_however_they_are_taken() {
    for name in GOLDENS {
        let hashes = |purpose, pass: bool| {
            let (packed, _) = open_source(&golden(name), purpose).expect(name);
            if pass {
                read_pages(&packed);
            }
            packed.finish().expect("a manifest").tensors
        };
        let passed = hashes(Purpose::Convert, true);

        assert_eq!(passed, hashes(Purpose::Convert, false), "{name}");
        assert_eq!(passed, hashes(Purpose::Run, true), "{name}");
        for (tensor, (_, _, bytes)) in source(name) {
            let entry = passed.iter().find(|entry| entry.name == tensor).expect("listed");
            assert_eq!(entry.hash, *blake3::hash(&bytes).as_bytes(), "{name}: {tensor}");
        }
    }
}

#[test]
fn groups_come_in_the_order_a_token_uses_them() {
    let (packed, _) = open_source(&golden("llama"), Purpose::Run).expect("opens");

    let order: Vec<_> = packed.pages().iter().map(|page| (page.role, page.layer)).collect();

    let layer = |layer| {
        [Role::Small, Role::AttnQkv, Role::AttnOut, Role::FfnGateUp, Role::FfnDown]
            .map(|role| (role, Some(layer)))
    };
    let mut expected = vec![(Role::Asset, None); 4];
    expected.push((Role::Embed, None));
    expected.extend((0..3).flat_map(layer));
    expected.extend([(Role::Small, None), (Role::Head, None)]);
    assert_eq!(order, expected);
    for (position, page) in packed.pages().iter().enumerate() {
        assert_eq!(page.id as usize, position);
    }
}

#[test]
fn a_tied_model_has_no_head() {
    let (packed, _) = open_source(&golden("llama-tied"), Purpose::Run).expect("opens");

    assert!(packed.pages().iter().all(|page| page.role != Role::Head));
    assert_eq!(packed.manifest().spec["tie_word_embeddings"], true);
}

#[test]
fn assets_are_stored_byte_for_byte() {
    let (packed, _) = open_source(&golden("qwen2"), Purpose::Run).expect("opens");
    let stored = read_pages(&packed);

    let names: Vec<_> = packed.manifest().assets.iter().map(|asset| &*asset.name).collect();

    assert_eq!(
        names,
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    );
    for asset in &packed.manifest().assets {
        let file = std::fs::read(golden("qwen2").join(&asset.name)).expect("read");
        assert_eq!(asset.bytes, file.len() as u64);
        assert!(stored[asset.page as usize] == file, "{}", asset.name);
    }
}

#[test]
fn files_beside_the_model_are_listed_and_not_read() {
    let (_, notes) = open_source(&golden("llama"), Purpose::Run).expect("opens");

    assert_eq!(notes, ["'goldens.safetensors' is not part of the model and was not read"]);
}

#[test]
fn gate_and_up_rows_alternate_and_queries_keys_values_follow_each_other() {
    for name in ["llama", "phi3"] {
        let (packed, _) = open_source(&golden(name), Purpose::Run).expect(name);
        let stored = read_pages(&packed);
        let source = source(name);
        let tensor = |name: &str| &source[&format!("model.layers.1.{name}.weight")].2;
        let page = |role| {
            let mut pages = packed.pages().iter();
            let page = pages.find(|page| page.role == role && page.layer == Some(1));
            &stored[page.expect("there").id as usize]
        };
        let row = 64 * 2; // hidden_size 64 in bf16, already a multiple of 16 bytes

        let (gate, up, qkv) = match name {
            "phi3" => {
                let (gate, up) = tensor("mlp.gate_up_proj").split_at(96 * row);
                (gate.to_vec(), up.to_vec(), tensor("self_attn.qkv_proj").clone())
            }
            _ => {
                let part = |part: &str| tensor(&format!("self_attn.{part}_proj")).clone();
                let qkv = [part("q"), part("k"), part("v")].concat();
                (tensor("mlp.gate_proj").clone(), tensor("mlp.up_proj").clone(), qkv)
            }
        };

        let pairs = gate.chunks(row).zip(up.chunks(row));
        let alternating: Vec<u8> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        assert!(*page(Role::FfnGateUp) == alternating, "{name}");
        assert!(*page(Role::AttnQkv) == qkv, "{name}");
    }
}

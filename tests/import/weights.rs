//! Folders whose weight files, index or tensors lie, one lie at a time.

use std::path::Path;

use serde_json::{Value, json};
use thintensor::format::{Pages, Role};
use thintensor::import::{Error, Kind, Purpose, detect, open, open_source};

use crate::folder::{Folder, golden, read_pages, safetensors, unpack};

const INDEX: &str = "model.safetensors.index.json";
const LAST: &str = "model-00004-of-00004.safetensors";

fn assert_refused(folder: &Folder, parts: &[&str]) {
    let refusal = folder.refusal();
    for part in parts {
        assert!(refusal.contains(part), "'{part}' is not in: {refusal}");
    }
}

/// The reference checkpoint with its tensors changed.
fn changed(name: &str, change: impl FnOnce(&mut crate::folder::Tensors)) -> Folder {
    let folder = Folder::copy_of(name);
    folder.edit_weights("model.safetensors", change);
    folder
}

/// The sharded reference checkpoint with its `weight_map` changed.
fn index(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Folder {
    let folder = Folder::copy_of("llama-sharded");
    folder.edit(INDEX, |index| {
        change(index["weight_map"].as_object_mut().expect("a map"));
    });
    folder
}

fn hint(folder: &Folder) -> String {
    folder.open().err().and_then(|error| error.hint()).unwrap_or_default()
}

#[test]
fn r29_untied_without_a_head_is_refused() {
    let folder = changed("llama", |tensors| {
        tensors.remove("lm_head.weight");
    });

    assert_refused(&folder, &["'lm_head.weight' is missing", "tie_word_embeddings: false"]);
}

#[test]
fn r29_tied_with_another_head_uses_the_head_and_says_so() {
    let folder = changed("llama-tied", |tensors| {
        let mut head = tensors["model.embed_tokens.weight"].clone();
        head.2[0] ^= 1;
        tensors.insert("lm_head.weight".to_owned(), head);
    });

    let (packed, notes) = folder.open().expect("opens");

    assert!(packed.pages().iter().any(|page| page.role == Role::Head));
    assert_eq!(packed.manifest().spec["tie_word_embeddings"], false);
    assert!(notes.iter().any(|note| note.contains("'lm_head.weight' differs")), "{notes:?}");
}

#[test]
fn r29_tied_with_the_same_head_ignores_the_copy() {
    let folder = changed("llama-tied", |tensors| {
        let head = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".to_owned(), head);
    });

    let (packed, _) = folder.open().expect("opens");

    let ignored = &packed.manifest().provenance.ignored;
    assert_eq!(
        (&*ignored[0].name, &*ignored[0].reason),
        ("lm_head.weight", "same as the embedding")
    );
    assert!(packed.pages().iter().all(|page| page.role != Role::Head));
}

#[test]
fn r30_tensors_without_a_place_are_refused_and_named() {
    let folder = changed("llama", |tensors| {
        for name in ["q", "k", "v"] {
            let name = format!("model.layers.0.self_attn.{name}_proj.bias");
            tensors.insert(name, ("BF16".to_owned(), vec![1], vec![0; 2]));
        }
        tensors.insert("vision.weight".to_owned(), ("F32".to_owned(), vec![], vec![0; 4]));
    });

    assert_refused(&folder, &["tensors without a place in this llama model: 4", "k_proj.bias"]);
}

#[test]
fn missing_tensors_are_named() {
    for name in [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.2.self_attn.v_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.input_layernorm.weight",
    ] {
        let folder = changed("llama", |tensors| {
            tensors.remove(name);
        });

        assert_refused(&folder, &[&format!("'{name}' is missing")]);
    }
}

#[test]
fn layers_beyond_the_config_are_refused() {
    let folder = Folder::copy_of("llama");
    folder.set("num_hidden_layers", json!(2));

    assert_refused(&folder, &["layer 2", "num_hidden_layers: 2"]);
}

#[test]
fn shapes_that_contradict_the_config_are_refused_with_both() {
    let folder = Folder::copy_of("llama");
    folder.set("intermediate_size", json!(96));
    assert_refused(&folder, &["gate_proj.weight", "[128, 64]", "[96, 64]", "intermediate_size"]);

    let folder = Folder::copy_of("llama");
    folder.set("vocab_size", json!(265));
    assert_refused(&folder, &["embed_tokens", "[264, 64]", "[265, 64]", "vocab_size"]);

    let folder = Folder::copy_of("phi3");
    folder.set("num_key_value_heads", json!(2));
    assert_refused(&folder, &["qkv_proj", "[96, 64]", "[128, 64]", "num_key_value_heads"]);

    let transposed = changed("llama", |tensors| {
        let down = tensors.get_mut("model.layers.0.mlp.down_proj.weight").expect("there");
        down.1.reverse();
    });
    assert_refused(&transposed, &["down_proj", "[128, 64]", "[64, 128]"]);
}

#[test]
fn r39_known_number_types_without_support_are_refused_by_name() {
    for (dtype, bytes) in [("F64", 8), ("I64", 8), ("I8", 1), ("F8_E4M3", 1), ("U8", 1)] {
        for name in ["model.layers.0.mlp.down_proj.weight", "model.norm.weight"] {
            let folder = changed("llama", |tensors| {
                let tensor = tensors.get_mut(name).expect("there");
                let count: u64 = tensor.1.iter().product();
                *tensor = (dtype.to_owned(), tensor.1.clone(), vec![0; count as usize * bytes]);
            });

            assert_refused(&folder, &[name, dtype, "F32, F16 and BF16"]);
        }
    }
}

#[test]
fn alternating_members_with_different_number_types_are_refused_by_name() {
    let folder = changed("llama", |tensors| {
        let up = tensors.get_mut("model.layers.1.mlp.up_proj.weight").expect("there");
        up.0 = "F16".to_owned();
    });

    assert_refused(
        &folder,
        &["gate_proj.weight' is BF16", "up_proj.weight' is F16", "ffn_gate_up"],
    );
}

#[test]
fn members_with_different_number_types_become_a_group_for_each_run() {
    let folder = changed("llama", |tensors| {
        let v = tensors.get_mut("model.layers.1.self_attn.v_proj.weight").expect("there");
        v.0 = "F16".to_owned();
    });

    let (packed, _) = open_source(folder.path(), Purpose::Convert).expect("opens");

    let formats: Vec<_> = packed
        .pages()
        .iter()
        .filter(|page| page.role == Role::AttnQkv && page.layer == Some(1))
        .map(|page| (page.format.name(), page.rows))
        .collect();
    // 4 query and 2 key heads of 16 rows, then 2 value heads.
    assert_eq!(formats, [("bf16", 96), ("f16", 32)]);
}

#[test]
fn vectors_and_matrices_may_have_number_types_of_their_own() {
    let folder = changed("llama-bias-linear", |tensors| {
        for (name, tensor) in tensors.iter_mut() {
            if name.ends_with("layernorm.weight") {
                let (halves, _) = tensor.2.as_chunks::<2>();
                let wide = halves.iter().flat_map(|half| [0, 0, half[0], half[1]]);
                *tensor = ("F32".to_owned(), tensor.1.clone(), wide.collect());
            } else if name.contains("layers.1.mlp") {
                tensor.0 = "F16".to_owned();
            }
        }
    });

    let (packed, _) = folder.open().expect("opens");

    let mut source = crate::folder::Tensors::new();
    crate::folder::read_safetensors(&folder.file("model.safetensors"), &mut source);
    let unpacked = unpack(&packed, &read_pages(&packed));
    for (name, tensor) in &source {
        assert!(unpacked[name] == *tensor, "{name}");
    }
    let manifest = packed.finish().expect("a manifest");
    assert!(manifest.provenance.exact_storage_preserved);
}

#[test]
fn base_model_checkpoints_are_read_without_their_prefix() {
    let folder = changed("llama-tied", |tensors| {
        *tensors = std::mem::take(tensors)
            .into_iter()
            .map(|(name, tensor)| (name.trim_start_matches("model.").to_owned(), tensor))
            .collect();
    });
    folder.set("architectures", json!(["LlamaModel"]));

    let (packed, _) = folder.open().expect("opens");

    assert!(packed.manifest().tensors.iter().any(|tensor| tensor.name == "norm.weight"));
}

#[test]
fn one_tensor_under_two_names_is_refused() {
    let folder = changed("llama", |tensors| {
        let norm = tensors["model.norm.weight"].clone();
        tensors.insert("norm.weight".to_owned(), norm);
    });

    assert_refused(&folder, &["'model.norm.weight'", "'norm.weight'", "two names"]);
}

#[test]
fn stored_rotary_frequencies_are_ignored_with_a_reason() {
    let folder = changed("llama", |tensors| {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
        tensors.insert(name, ("F64".to_owned(), vec![8], vec![0; 64]));
    });

    let (packed, _) = folder.open().expect("opens");

    assert!(packed.manifest().provenance.ignored[0].name.ends_with("inv_freq"));
}

#[test]
fn r41_weight_files_without_tensors_are_no_weights() {
    let folder = changed("llama", |tensors| tensors.clear());

    assert_refused(&folder, &["no weights found", "0 tensors"]);
}

#[test]
fn r42_a_shard_cut_short_is_named_with_both_numbers_and_a_remedy() {
    let folder = Folder::copy_of("llama-sharded");
    let mut bytes = folder.bytes(LAST);
    bytes.pop();
    folder.write(LAST, &bytes);

    // model.norm and one more tensor: the header says how much should follow.
    assert_refused(&folder, &[LAST, "is damaged", "bytes, but", "follow the header"]);
    assert!(hint(&folder).contains("fetch the file again"));
}

#[test]
fn r42_pages_of_text_in_place_of_a_file_are_named_as_such() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        let folder = Folder::copy_of("llama");
        folder.write(name, pointer);
        assert_refused(&folder, &[name, "Git-LFS pointer"]);
        assert!(hint(&folder).contains("git lfs pull"));
        for page in ["<!DOCTYPE html><html>", "\n <html lang=en>", "\u{feff}<!doctype HTML>"] {
            folder.write(name, page);
            assert_refused(&folder, &[name, "web page"]);
        }
    }
}

#[test]
fn r45_a_shard_that_is_not_there_is_named() {
    let folder = Folder::copy_of("llama-sharded");
    folder.remove("model-00002-of-00004.safetensors");
    assert_refused(&folder, &[INDEX, "'model-00002-of-00004.safetensors', which does not exist"]);
    assert!(!folder.refusal().contains("nevertheless"));

    let spare = index(|map| {
        let shard = json!("model-00009-of-00009.safetensors");
        map.insert("model.norm.weight".to_owned(), shard);
    });
    assert_refused(&spare, &["model-00009-of-00009", "nevertheless in the other files"]);
}

#[test]
fn r46_files_the_index_does_not_name_are_listed_and_never_read() {
    let folder = Folder::copy_of("llama-sharded");
    folder.write("model.safetensors", "garbage");
    folder.write("consolidated.safetensors", "garbage");

    let (_, notes) = folder.open().expect("opens");

    assert_eq!(notes.len(), 2);
    assert!(
        notes[0].contains("'consolidated.safetensors'") && notes[1].contains("'model.safetensors'")
    );
}

#[test]
fn r47_four_disagreements_have_four_messages() {
    let name = "model.norm.weight";
    let nowhere = index(|map| {
        map.remove(name);
    });
    nowhere.edit_weights(LAST, |tensors| {
        tensors.remove(name);
    });
    assert_refused(&nowhere, &["'model.norm.weight' is missing: no weight file has it"]);

    let no_shard = index(|map| {
        map.insert(name.to_owned(), json!("gone.safetensors"));
    });
    assert_refused(&no_shard, &["'gone.safetensors', which does not exist"]);

    let not_in_shard = Folder::copy_of("llama-sharded");
    not_in_shard.edit_weights(LAST, |tensors| {
        tensors.remove(name);
    });
    assert_refused(&not_in_shard, &["places 'model.norm.weight' in", LAST, "has no such tensor"]);

    let forgotten = index(|map| {
        map.remove(name);
    });
    assert_refused(&forgotten, &["does not list 'model.norm.weight'", LAST, "the model needs"]);
}

#[test]
fn r47_a_tensor_the_index_forgot_and_nobody_needs_is_left_out() {
    let folder = Folder::copy_of("llama-sharded");
    folder.edit_weights(LAST, |tensors| {
        tensors.insert("extra".to_owned(), ("F32".to_owned(), vec![1], vec![0; 4]));
    });

    let (packed, _) = folder.open().expect("opens");

    let ignored = &packed.manifest().provenance.ignored;
    assert_eq!(ignored[0].name, "extra");
    assert!(ignored[0].reason.contains("not listed in"));
}

#[test]
fn r48_the_same_name_in_two_shards_must_have_the_same_content() {
    let norm = "model.norm.weight";
    let mut copy = None;
    let folder = Folder::copy_of("llama-sharded");
    folder.edit_weights(LAST, |tensors| copy = Some(tensors[norm].clone()));
    let first = "model-00001-of-00004.safetensors";
    folder.edit_weights(first, |tensors| {
        tensors.insert(norm.to_owned(), copy.expect("there"));
    });
    let (_, notes) = folder.open().expect("opens");
    assert!(notes.iter().any(|note| note.contains(norm) && note.contains(first)), "{notes:?}");

    folder.edit_weights(first, |tensors| {
        tensors.get_mut(norm).expect("there").2[5] ^= 1;
    });
    assert_refused(&folder, &[norm, LAST, first, "other content"]);
}

#[test]
fn r97_shard_names_that_leave_the_folder_are_refused() {
    for shard in ["../model.safetensors", "/etc/passwd", "..\\x.safetensors", "con.safetensors", ""]
    {
        let folder = index(|map| {
            map.insert("model.norm.weight".to_owned(), json!(shard));
        });

        assert_refused(
            &folder,
            &[INDEX, "model.norm.weight", "not a plain .safetensors file name"],
        );
    }
}

#[test]
fn index_that_is_no_index_is_refused() {
    for text in ["", "{}", "[]", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 1}}"] {
        let folder = Folder::copy_of("llama-sharded");
        folder.write(INDEX, text);
        assert_refused(&folder, &[INDEX, "cannot be read as JSON"]);
    }
    let double = Folder::copy_of("llama-sharded");
    double.write(INDEX, r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#);
    assert_refused(&double, &["duplicate key 'a'"]);
    let empty = index(|map| map.clear());
    assert_refused(&empty, &["no weights found"]);
    let bom = Folder::copy_of("llama-sharded");
    let text = String::from_utf8(bom.bytes(INDEX)).expect("text");
    bom.write(INDEX, format!("\u{feff}{}", text.replace('\n', "\r\n")));
    bom.open().expect("opens");
}

#[test]
fn folders_without_readable_weights_say_what_they_have() {
    for found in ["pytorch_model.bin", "model.pt", "consolidated.safetensors", "flax_model.msgpack"]
    {
        let folder = Folder::copy_of("llama");
        folder.remove("model.safetensors");
        folder.write(found, "x");
        assert_refused(&folder, &["neither model.safetensors nor"]);
        assert!(hint(&folder).contains(found), "{}", hint(&folder));
    }
    let shards = Folder::copy_of("llama-sharded");
    shards.remove(INDEX);
    assert_refused(
        &shards,
        &["model-00001-of-00004.safetensors", "no model.safetensors.index.json"],
    );
    let no_config = Folder::copy_of("llama");
    no_config.remove("config.json");
    assert_refused(&no_config, &["has no config.json"]);
    let sentencepiece = Folder::copy_of("llama");
    sentencepiece.remove("tokenizer.json");
    sentencepiece.write("tokenizer.model", "x");
    assert_refused(&sentencepiece, &["tokenizer.model but no tokenizer.json"]);
    let ids_only = Folder::copy_of("llama");
    ids_only.remove("tokenizer.json");
    let (_, notes) = ids_only.open().expect("opens");
    assert!(notes.iter().any(|note| note.contains("token ids only")));
}

#[test]
fn licences_and_templates_are_carried_along_and_a_readme_is_not() {
    let folder = Folder::copy_of("llama");
    for name in [
        "LICENSE",
        "LICENSE-APACHE.txt",
        "NOTICE",
        "README.md",
        "chat_template.jinja",
        "SOURCE.txt",
    ] {
        folder.write(name, name);
    }
    folder.write("special_tokens_map.json", "");

    let (packed, _) = folder.open().expect("opens");

    let names: Vec<_> = packed.manifest().assets.iter().map(|asset| &*asset.name).collect();
    assert_eq!(
        names,
        [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "chat_template.jinja",
            "SOURCE.txt",
            "LICENSE",
            "LICENSE-APACHE.txt",
            "NOTICE",
        ]
    );
    read_pages(&packed);
}

#[test]
fn an_asset_that_shrinks_while_it_is_read_is_an_error() {
    let folder = Folder::copy_of("llama");
    let (packed, _) = folder.open().expect("opens");
    folder.write("tokenizer.json", "{}");
    let asset = packed.manifest().assets.iter().find(|asset| asset.name == "tokenizer.json");
    let page = asset.expect("there").page;
    let mut out = vec![0; packed.pages()[page as usize].stored_len as usize];

    let error = packed.read(thintensor::format::PageId(page), &mut out).expect_err("refused");

    assert!(error.to_string().contains("changed while it was read"), "{error}");
}

#[test]
fn paths_that_are_no_model_are_told_apart() {
    let folder = Folder::copy_of("llama");
    let says = |name: &str, content: &[u8]| {
        folder.write(name, content);
        detect(&folder.file(name)).expect_err("refused").to_string()
    };

    folder.write("a.gguf", b"GGUF\x03\0\0\0");
    assert_eq!(detect(&folder.file("a.gguf")).expect("a file"), Kind::Gguf);
    folder.write("b.thin", b"THINv0\0\0");
    assert_eq!(detect(&folder.file("b.thin")).expect("an archive"), Kind::ArchiveV0);
    assert!(says("c.bin", b"PK\x03\x04").contains("pickled weights"));
    assert!(says("d.thin", b"version https://git-lfs").contains("Git-LFS pointer"));
    assert!(says("e.gguf", b"<!DOCTYPE html>").contains("web page"));
    assert!(says("f.txt", b"hello\n").contains("starts with 'hello\\n'"));
    assert!(says("g", b"").contains("starts with nothing"));
    let gone = detect(Path::new("no/such/model")).expect_err("refused");
    assert!(matches!(gone, Error::NotFound { .. }));
    let crate_error = open(Path::new("no/such/model")).err().expect("refused");
    assert!(crate_error.hint().is_some_and(|hint| hint.contains("hub id")));
}

#[test]
fn a_weight_file_stands_for_its_folder_if_the_model_uses_it() {
    let sharded = golden("llama-sharded");
    open_source(&sharded.join(LAST), Purpose::Run).expect("opens");

    let other = open_source(&golden("llama").join("goldens.safetensors"), Purpose::Run);

    let error = other.expect_err("refused").to_string();
    assert!(error.contains("not one of the weight files"), "{error}");
}

#[cfg(unix)]
#[test]
fn r50_links_are_followed_and_a_dangling_one_is_named() {
    let blobs = Folder::copy_of("llama");
    let snapshot = Folder::copy_of("llama");
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        snapshot.remove(name);
        std::os::unix::fs::symlink(blobs.file(name), snapshot.file(name)).expect("linked");
    }
    snapshot.open().expect("opens");

    blobs.remove("model.safetensors");
    assert_refused(&snapshot, &["model.safetensors' is a link to", "does not exist"]);
}

#[test]
fn safetensors_files_that_lie_are_refused_with_their_name() {
    let folder = Folder::copy_of("llama");
    for bytes in [&[0xff; 8][..], &[0; 7], b"", b"\x02\0\0\0\0\0\0\0{}more"] {
        folder.write("model.safetensors", bytes);
        assert_refused(&folder, &["model.safetensors' is damaged"]);
    }
    folder.write("model.safetensors", safetensors(&crate::folder::Tensors::new()));
    assert_refused(&folder, &["no weights found"]);
}

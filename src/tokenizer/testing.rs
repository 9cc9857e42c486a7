//! Small tokenizers for the tests of the text modules.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{TextAssets, Tokenizer};

/// A file of `tests/fixtures/text`.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/text").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Byte level, 264 tokens, ChatML template, no BOS added: `<pad>` 0, `<|im_start|>` 1, `<|im_end|>` 2.
pub(crate) fn chatml() -> TextAssets {
    TextAssets {
        tokenizer_json: Some(fixture("chatml.tokenizer.json")),
        tokenizer_config: Some(fixture("chatml.tokenizer_config.json")),
        ..TextAssets::default()
    }
}

/// The ChatML tokenizer with more added tokens, as (text, special); their ids begin at 264.
pub(crate) fn chatml_with(added: &[(&str, bool)]) -> TextAssets {
    let mut assets = chatml();
    edit(&mut assets.tokenizer_json, |json| {
        let list = json["added_tokens"].as_array_mut().expect("a list");
        for (index, (text, special)) in added.iter().enumerate() {
            list.push(
                json!({"id": 264 + index, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special}),
            );
        }
    });
    assets
}

/// Byte level, 2,048 tokens, no template; tokenizer.json puts `<|bos|>` (1) first, `<|endoftext|>` is 0.
pub(crate) fn bos() -> TextAssets {
    TextAssets {
        tokenizer_json: Some(fixture("bos.tokenizer.json")),
        tokenizer_config: Some(fixture("bos.tokenizer_config.json")),
        ..TextAssets::default()
    }
}

/// SentencePiece style with byte fallback: `<unk>` 0, `<s>` 1 (put first), `</s>` 2, byte b is 3 + b, then pieces.
pub(crate) fn pieces() -> TextAssets {
    let mut vocab = Map::new();
    let mut add = |token: String| {
        let id = vocab.len();
        vocab.insert(token, json!(id));
    };
    ["<unk>", "<s>", "</s>"].into_iter().for_each(|token| add(token.into()));
    (0..=255).for_each(|byte: u8| add(format!("<0x{byte:02X}>")));
    let letters = "▁abcdefghijklmnopqrstuvwxyz.,<>/|_";
    letters.chars().for_each(|c| add(c.into()));
    ["he", "ll", "hell", "hello", "▁hello", "▁▁"].into_iter().for_each(|token| add(token.into()));
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>", "vocab": vocab,
            "merges": ["h e", "l l", "he ll", "hell o", "▁ hello", "▁ ▁"]}
    });
    TextAssets {
        tokenizer_json: Some(tokenizer.to_string().into_bytes()),
        tokenizer_config: Some(
            br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}"#
                .to_vec(),
        ),
        ..TextAssets::default()
    }
}

/// Changes one JSON file in place.
pub(crate) fn edit(file: &mut Option<Vec<u8>>, change: impl FnOnce(&mut Value)) {
    let mut json =
        file.as_deref().map_or(json!({}), |bytes| serde_json::from_slice(bytes).expect("JSON"));
    change(&mut json);
    *file = Some(json.to_string().into_bytes());
}

/// The tokenizer of `assets`, shared.
pub(crate) fn load(assets: &TextAssets) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_assets(assets).expect("a tokenizer"))
}

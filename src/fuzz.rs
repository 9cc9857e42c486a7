//! Functions that take any bytes and must return: the fuzz targets in `fuzz/` and the random tests in
//! `tests/fuzz.rs` call the same ones. They panic only where a promise is broken.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use crate::chat::{Conversation, RenderOptions, Template};
use crate::detokenize::{Incremental, StopStrings};
use crate::format::verify::verify_bytes;
use crate::format::{Archive, PageId, Pages, header};
use crate::import;
use crate::tokenizer::{TextAssets, Tokenizer};

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("archive", fuzz_archive),
    ("archive_v0", fuzz_archive_v0),
    ("safetensors", fuzz_safetensors),
    ("gguf", fuzz_gguf),
    ("index", fuzz_index),
    ("config", fuzz_config),
    ("tokenizer", fuzz_tokenizer),
    ("template", fuzz_template),
    ("text", fuzz_text),
];

/// An archive of version 1: opened, verified, every page read. Its hash is set right first, since a random one
/// never is, and everything behind it would go untested.
pub fn fuzz_archive(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Ok(mut header) = header::Header::decode("fuzz", &bytes) {
        let (start, table) = (header::HEADER_BYTES as usize, header.table_off() as usize);
        let end = table.saturating_add(header.table_len() as usize);
        if let (Some(manifest), Some(records)) = (bytes.get(start..table), bytes.get(table..end)) {
            header.archive_hash = header.hash(manifest, records);
            let header = header.encode();
            bytes[..header.len()].copy_from_slice(&header);
        }
    }
    let report = verify_bytes(bytes.clone(), "fuzz").expect("nothing has to be opened");
    match Archive::from_bytes(bytes, "fuzz") {
        Err(_) => assert!(!report.ok, "what cannot be opened does not verify"),
        Ok(archive) => {
            let mut page = Vec::new();
            for record in archive.pages() {
                page.resize(record.stored_len as usize, 0);
                let read = archive.read(PageId(record.id), &mut page);
                assert!(read.is_ok() || !report.ok, "what verifies can be read");
            }
        }
    }
}

/// An archive of version 0.
pub fn fuzz_archive_v0(bytes: &[u8]) {
    import::fuzz::v0(bytes);
}

/// The header of a safetensors file.
pub fn fuzz_safetensors(bytes: &[u8]) {
    import::fuzz::safetensors(bytes);
}

/// A GGUF file: its metadata, its tokenizer and its tensors' places.
pub fn fuzz_gguf(bytes: &[u8]) {
    import::gguf::fuzz(bytes);
}

/// The index of a sharded checkpoint.
pub fn fuzz_index(bytes: &[u8]) {
    import::fuzz::index(bytes);
}

/// A config.json or generation_config.json.
pub fn fuzz_config(bytes: &[u8]) {
    import::fuzz::config(bytes);
}

/// A tokenizer.json, and behind its last `}` a text that is encoded and decoded with it.
pub fn fuzz_tokenizer(bytes: &[u8]) {
    let end = bytes.iter().rposition(|&byte| byte == b'}').map_or(0, |at| at + 1);
    let (json, text) = bytes.split_at(end);
    let assets = TextAssets { tokenizer_json: Some(json.to_vec()), ..TextAssets::default() };
    if let Ok(tokenizer) = Tokenizer::from_assets(&assets) {
        let text = String::from_utf8_lossy(text);
        if let Ok(ids) = tokenizer.encode(&text, true) {
            tokenizer.decode(&ids, false);
        }
    }
}

/// A chat template, compiled and rendered. Whatever it does, it ends.
pub fn fuzz_template(bytes: &[u8]) {
    let assets = TextAssets { chat_template: Some(bytes.to_vec()), ..TextAssets::default() };
    let Ok(template) = Template::from_assets(&assets) else {
        return;
    };
    let mut conversation = Conversation::new();
    conversation.push("system", "Be brief. <|end|>");
    conversation.push("user", "hello");
    conversation.push("assistant", "hi");
    conversation.push("user", "{{ 'x' }}");
    let tools = vec![json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let options = RenderOptions { add_generation_prompt: true, tools, ..RenderOptions::default() };
    let _ = template.render_ids(tokenizer(), &conversation, &options);
}

/// Token ids as they arrive: the pieces of text joined are the text of all, and stop strings are never shown.
/// The first byte says how many of the next lines are stop strings; the rest are ids.
pub fn fuzz_text(bytes: &[u8]) {
    let Some((&count, rest)) = bytes.split_first() else {
        return;
    };
    let lines = rest.splitn(usize::from(count % 4) + 1, |&byte| byte == b'\n');
    let mut lines: Vec<&[u8]> = lines.collect();
    let ids = lines.pop().unwrap_or_default();
    let stops: Vec<String> =
        lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    let ids: Vec<u32> =
        ids.iter().map(|&byte| u32::from(byte) + u32::from(byte == 7) * 250).collect();

    let mut stream = Incremental::new(Arc::clone(tokenizer()), true);
    let mut joined: String = ids.iter().map(|&id| stream.push(id)).collect();
    joined.push_str(&stream.finish());
    assert_eq!(joined, tokenizer().decode(&ids, true));

    let Ok(mut watch) = StopStrings::new(stops.clone()) else {
        return;
    };
    let mut shown = String::new();
    for c in joined.chars() {
        shown.push_str(&watch.push(c.encode_utf8(&mut [0; 4])));
    }
    shown.push_str(&watch.finish());
    assert!(joined.starts_with(&shown));
    assert!(stops.iter().all(|stop| !shown.contains(stop.as_str())));
}

/// A tokenizer with one id for each byte and two special ones.
fn tokenizer() -> &'static Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        // The byte-level alphabet: printable bytes are themselves, the others follow from U+0100 on.
        let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let mut vocab = Map::new();
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let c = if printable(byte) {
                char::from(byte)
            } else {
                next += 1;
                char::from_u32(next - 1).expect("below U+0200")
            };
            vocab.insert(c.to_string(), Value::from(byte));
        }
        let special = |id: u32, text: &str| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": [special(256, "<|start|>"), special(257, "<|end|>")],
            "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "vocab": vocab, "merges": []},
        });
        let text = Some(file.to_string().into_bytes());
        let assets = TextAssets { tokenizer_json: text, ..TextAssets::default() };
        Arc::new(Tokenizer::from_assets(&assets).expect("it is put together right"))
    })
}

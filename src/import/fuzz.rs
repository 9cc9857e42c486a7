//! What random bytes are given to: the parsers of sources, whole, in memory. Called by `crate::fuzz`.
//!
//! A parser for another kind of file adds its function here.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::safetensors::Header;
use super::shards::{self, Index};
use super::{config, v0};

/// A version-0 archive: opened, counted, its settings and tensors read.
pub fn v0(bytes: &[u8]) {
    let Ok(archive) = v0::Archive::from_bytes(bytes.to_vec(), "fuzz.thin") else {
        return;
    };
    let (_, tensors) = archive.contents();
    let held: usize = tensors.iter().map(|tensor| tensor.len()).sum();
    assert!(held <= bytes.len(), "tensors lie in the file, each once");
    assert_eq!(tensors.len() as u64, v0::stats::stats(&archive).page_count);
    let _ = archive.check_pages();
}

/// The header of a safetensors file.
pub fn safetensors(bytes: &[u8]) {
    let _ = Header::parse(bytes);
}

/// The index of a sharded checkpoint.
pub fn index(bytes: &[u8]) {
    if let Ok(index) = serde_json::from_slice::<Index>(bytes) {
        let map: BTreeMap<String, String> = index.weight_map.0.into_iter().collect();
        for shard in map.values().filter(|shard| shards::is_plain_name(shard)) {
            assert!(!shard.contains(['/', '\\', ':', '\0']) && !shard.starts_with('.'));
        }
    }
}

/// A config.json, up to a checked description of the model; and a generation_config.json.
pub fn config(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(bytes) else {
        return;
    };
    let _ = config::generation(&object);
    if let Ok(config) = config::read(&object)
        && config.spec.check().is_ok()
    {
        for layer in &config.spec.layers {
            assert!(layer.q_width() > 0 && layer.kv_width() > 0);
        }
    }
}

//! The JSON of a version-0 archive. Unknown fields outside `model` are ignored, as the format's own reader
//! does; those of `model` are kept, since whoever runs the model must know them.

use std::fmt;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Problem;
use crate::import::json::UniqueMap;

/// Everything an archive says about itself.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u64,
    pub(super) model: Model,
    pub(super) execution_tape: Vec<Stage>,
    pub(super) pages: Vec<Page>,
    pub(super) memory_plan: MemoryPlan,
}

/// The model: the fields that every archive has, and all others as they came.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) arch: String,
    pub(super) dtype: String,
    pub(super) hidden_size: u64,
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: Option<u64>,
    /// All fields.
    pub(super) fields: Map<String, Value>,
}

/// A step of the decode.
#[derive(Debug, Deserialize)]
pub(super) struct Stage {
    pub(super) stage: String,
    pub(super) operator: String,
    pub(super) page_refs: Vec<String>,
}

/// A tensor, or several in one page.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) layer: Option<u32>,
    pub(super) op: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) backend_layout: String,
    pub(super) size: u64,
    pub(super) checksum: String,
    #[serde(default)]
    pub(super) experimental: bool,
    pub(super) fused_to: Option<String>,
    pub(super) fused_offset: Option<u64>,
}

/// What the writer thought the model would need; only shown.
#[derive(Debug, Deserialize)]
pub(super) struct MemoryPlan {
    pub(super) scratch_bytes: u64,
    pub(super) min_vram_bytes: u64,
    pub(super) recommended_vram_bytes: u64,
    pub(super) kv_cache: KvCache,
}

/// What the writer suggested for cached keys and values; only shown.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct KvCache {
    pub(super) policy: String,
    pub(super) recent_tokens_high_precision: u64,
    pub(super) old_tokens_codec: String,
}

impl Manifest {
    /// Parses the JSON.
    pub(super) fn parse(text: &[u8]) -> Result<Self, Problem> {
        // A parsed value takes many times the two bytes of `0,`; the writer spends at least 20 on each.
        let values = text.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() as u64;
        let limit = text.len() as u64 / 8 + 65_536;
        if values > limit {
            return Err(Problem::Dense { values, limit });
        }
        serde_json::from_slice(text).map_err(|source| Problem::Json { source })
    }
}

impl Page {
    /// Whether it lies inside another page.
    pub(super) fn is_fused_child(&self) -> bool {
        self.fused_to.is_some()
    }

    /// Whether it holds other pages and is no tensor itself.
    pub(super) fn is_fused_parent(&self) -> bool {
        self.kind == FUSED
    }
}

/// The kind of pages that hold others.
pub(super) const FUSED: &str = "fused_physical";

impl Model {
    /// A field that is a text.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    /// A field that is a whole number.
    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.fields.get(field).and_then(Value::as_u64)
    }

    /// A field that is true or false.
    pub(super) fn flag(&self, field: &str) -> Option<bool> {
        self.fields.get(field).and_then(Value::as_bool)
    }

    /// The width of a head.
    pub(super) fn head_width(&self) -> Option<u64> {
        let heads = u64::from(self.heads);
        match self.head_dim {
            Some(width) => Some(width),
            None if heads > 0 && self.hidden_size.is_multiple_of(heads) => {
                Some(self.hidden_size / heads)
            }
            None => None,
        }
    }
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Typed {
            arch: String,
            dtype: String,
            hidden_size: u64,
            layers: u32,
            heads: u32,
            kv_heads: u32,
            head_dim: Option<u64>,
        }

        let map: UniqueMap<Value> = Deserialize::deserialize(deserializer)?;
        let fields: Map<String, Value> = map.0.into_iter().collect();
        let wrong = |error: &dyn fmt::Display| D::Error::custom(format!("model: {error}"));
        let typed = Typed::deserialize(&fields).map_err(|error| wrong(&error))?;
        let Typed { arch, dtype, hidden_size, layers, heads, kv_heads, head_dim } = typed;
        Ok(Model { arch, dtype, hidden_size, layers, heads, kv_heads, head_dim, fields })
    }
}

//! What a version-0 archive says about itself, counted: the report of the program that wrote the format, with
//! its field names and orders, so that tools which read it go on working.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::manifest::Page;
use super::{Archive, layout};

/// Largest pages listed.
const LARGEST: usize = 128;
/// Stages listed.
const STAGES: usize = 16;

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct Stats {
    pub archive_bytes: u64,
    pub manifest_bytes: u64,
    pub page_table_records: u64,
    pub data_offset: u64,
    /// Tensors; pages that only hold others are not counted.
    pub page_count: u64,
    pub total_raw_bytes: u64,
    pub total_stored_bytes: u64,
    pub model: ModelStats,
    pub largest_pages: Vec<PageStats>,
    pub per_layer: Vec<LayerStats>,
    pub per_op: Vec<Bucket>,
    pub by_kind: Vec<Bucket>,
    pub by_dtype: Vec<Bucket>,
    pub by_backend_layout: Vec<Bucket>,
    pub execution: Execution,
    pub unknown_op_pages: Vec<String>,
    /// What the report does not hold and `inspect` shows.
    #[serde(skip)]
    pub rest: Rest,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct ModelStats {
    pub arch: String,
    pub raw_arch: Option<String>,
    pub layers: u32,
    pub hidden_size: u64,
    pub heads: u32,
    pub kv_heads: u32,
    /// As stated; absent where it follows from the others.
    pub head_dim: Option<u64>,
    pub dtype: String,
    pub source_dtype: Option<String>,
    pub vocab_size: Option<u64>,
    pub tie_word_embeddings: Option<bool>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct PageStats {
    pub id: String,
    pub kind: String,
    pub layer: Option<u32>,
    pub op: String,
    pub dtype: String,
    pub backend_layout: String,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
    pub referenced_stages: u64,
}

/// The tensors of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct LayerStats {
    pub layer: u32,
    pub pages: u64,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
}

/// The tensors that share a word.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct Bucket {
    pub name: String,
    pub pages: u64,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
}

/// The stages of a decode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct Execution {
    pub stage_count: u64,
    pub page_ref_count: u64,
    pub referenced_page_count: u64,
    pub empty_stage_count: u64,
    pub unreferenced_pages: Vec<String>,
    pub duplicate_page_refs: Vec<DuplicateRefs>,
    pub first_stages: Vec<StageStats>,
}

/// A page that several stages use.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct DuplicateRefs {
    pub page_id: String,
    pub refs: u64,
}

/// A stage. Its bytes are those of the page-table records it names: none for tensors inside a fused page.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the report it repeats")]
pub struct StageStats {
    pub stage: String,
    pub page_refs: u64,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
}

/// What `inspect` shows besides.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the manifest")]
pub struct Rest {
    pub head_dim: u64,
    pub manifest_off: u64,
    pub table_off: u64,
    pub scratch_bytes: u64,
    pub kv_recent: u64,
    pub kv_old_codec: String,
}

/// Counts an archive.
#[must_use]
pub fn stats(archive: &Archive) -> Stats {
    let manifest = &archive.manifest;
    let mut refs: HashMap<&str, u64> = HashMap::new();
    for page in manifest.execution_tape.iter().flat_map(|stage| &stage.page_refs) {
        *refs.entry(page).or_default() += 1;
    }
    let refs_of = |id: &str| refs.get(id).copied().unwrap_or(0);
    let tensors: Vec<&Page> =
        manifest.pages.iter().filter(|page| !page.is_fused_parent()).collect();
    let total = tensors.iter().fold(0u64, |total, page| total.saturating_add(page.size));

    let mut largest = tensors.clone();
    largest.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let largest = largest.into_iter().take(LARGEST).map(|page| PageStats {
        id: page.id.clone(),
        kind: page.kind.clone(),
        layer: page.layer,
        op: page.op.clone(),
        dtype: page.dtype.clone(),
        backend_layout: page.backend_layout.clone(),
        raw_bytes: page.size,
        stored_bytes: page.size,
        referenced_stages: refs_of(&page.id),
    });

    let mut layers: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for page in &tensors {
        if let Some(layer) = page.layer {
            let (pages, bytes) = layers.entry(layer).or_default();
            *pages += 1;
            *bytes = bytes.saturating_add(page.size);
        }
    }
    let layers = layers.into_iter().map(|(layer, (pages, bytes))| LayerStats {
        layer,
        pages,
        raw_bytes: bytes,
        stored_bytes: bytes,
    });
    let mut unknown: Vec<String> =
        tensors.iter().filter(|page| page.op == "unknown").map(|page| page.id.clone()).collect();
    unknown.sort();
    let model = &manifest.model;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Stats {
        archive_bytes: archive.map.bytes().len() as u64,
        manifest_bytes: archive.header.manifest_len,
        page_table_records: archive.records.len() as u64,
        data_offset: archive.header.data_off,
        page_count: tensors.len() as u64,
        total_raw_bytes: total,
        total_stored_bytes: total,
        model: ModelStats {
            arch: model.arch.clone(),
            raw_arch: owned(model.text("raw_arch")),
            layers: model.layers,
            hidden_size: model.hidden_size,
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            dtype: model.dtype.clone(),
            source_dtype: owned(model.text("source_dtype")),
            vocab_size: model.number("vocab_size"),
            tie_word_embeddings: model.flag("tie_word_embeddings"),
        },
        largest_pages: largest.collect(),
        per_layer: layers.collect(),
        per_op: buckets(&tensors, |page| &page.op),
        by_kind: buckets(&tensors, |page| &page.kind),
        by_dtype: buckets(&tensors, |page| &page.dtype),
        by_backend_layout: buckets(&tensors, |page| &page.backend_layout),
        execution: execution(archive, &refs),
        unknown_op_pages: unknown,
        rest: Rest {
            head_dim: model.head_width().unwrap_or(0),
            manifest_off: layout::HEADER_BYTES,
            table_off: archive.header.table_off,
            scratch_bytes: manifest.memory_plan.scratch_bytes,
            kv_recent: manifest.memory_plan.kv_cache.recent_tokens_high_precision,
            kv_old_codec: manifest.memory_plan.kv_cache.old_tokens_codec.clone(),
        },
    }
}

/// Totals by a word, largest first, then by name.
fn buckets(pages: &[&Page], word: impl Fn(&Page) -> &str) -> Vec<Bucket> {
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for page in pages {
        let (count, bytes) = totals.entry(word(page)).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(page.size);
    }
    let mut buckets: Vec<Bucket> = totals
        .into_iter()
        .map(|(name, (pages, bytes))| Bucket {
            name: name.to_owned(),
            pages,
            raw_bytes: bytes,
            stored_bytes: bytes,
        })
        .collect();
    buckets.sort_by(|a, b| b.raw_bytes.cmp(&a.raw_bytes).then_with(|| a.name.cmp(&b.name)));
    buckets
}

fn execution(archive: &Archive, refs: &HashMap<&str, u64>) -> Execution {
    let manifest = &archive.manifest;
    let tape = &manifest.execution_tape;
    let mut unreferenced: Vec<String> = manifest
        .pages
        .iter()
        .filter(|page| !refs.contains_key(page.id.as_str()))
        .map(|page| page.id.clone())
        .collect();
    unreferenced.sort();
    let mut duplicates: Vec<DuplicateRefs> = refs
        .iter()
        .filter(|&(_, &refs)| refs > 1)
        .map(|(page, &refs)| DuplicateRefs { page_id: (*page).to_owned(), refs })
        .collect();
    duplicates.sort_by(|a, b| b.refs.cmp(&a.refs).then_with(|| a.page_id.cmp(&b.page_id)));
    let stored: HashMap<&str, u64> =
        archive.records.iter().map(|record| (record.id.as_str(), record.stored)).collect();
    let first = tape.iter().take(STAGES).map(|stage| {
        let sizes = stage.page_refs.iter().filter_map(|page| stored.get(page.as_str()));
        let bytes = sizes.fold(0u64, |total, &bytes| total.saturating_add(bytes));
        StageStats {
            stage: stage.stage.clone(),
            page_refs: stage.page_refs.len() as u64,
            raw_bytes: bytes,
            stored_bytes: bytes,
        }
    });
    Execution {
        stage_count: tape.len() as u64,
        page_ref_count: refs.values().sum(),
        referenced_page_count: refs.len() as u64,
        empty_stage_count: tape.iter().filter(|stage| stage.page_refs.is_empty()).count() as u64,
        unreferenced_pages: unreferenced,
        duplicate_page_refs: duplicates,
        first_stages: first.collect(),
    }
}

//! Whether header, page table and manifest of a version-0 archive agree with each other, with the length of
//! the file and with the shapes of the tensors; and where each tensor lies. Start at [`check`].

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Problem;
use super::layout::{Header, MAX_ID_BYTES, Record};
use super::manifest::{FUSED, Manifest, MemoryPlan, Model, Page};
use crate::import::file::Entry;
use crate::import::safetensors::Dtype;

/// The kinds of pages.
const KINDS: &[&str] = &["weight", "embedding", "lm_head", FUSED];
/// The operators of stages.
const OPERATORS: &[&str] = &[
    "embedding",
    "lm_head",
    "rms_norm",
    "layer_norm",
    "qkv_projection",
    "o_projection",
    "rope",
    "mha_attention",
    "mqa_attention",
    "gqa_attention",
    "attention_sinks",
    "per_layer_attention_window",
    "gated_activation",
    "down_projection",
    "topk_router",
    "sparse_experts",
    "expert_weighted_sum",
    "gated_delta_net",
    "depthwise_causal_conv1d",
    "recurrent_state_cache",
    "gated_full_attention",
    "per_layer_embeddings",
    "variable_head_dim_attention",
    "shared_kv_attention",
    "post_attention_norm",
    "post_feedforward_norm",
];
/// More problems than this are counted but not kept.
const MAX_PROBLEMS: usize = 64;

/// Problems found so far.
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    pub(super) more: u64,
    limit: usize,
}

impl Findings {
    /// Keeps as many as a person reads.
    pub(super) fn all() -> Self {
        Findings { problems: Vec::new(), more: 0, limit: MAX_PROBLEMS }
    }

    /// Keeps the first.
    pub(super) fn first_only() -> Self {
        Findings { limit: 1, ..Self::all() }
    }

    fn push(&mut self, problem: Problem) {
        if self.problems.len() < self.limit {
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn range(&mut self, field: &str, found: u64, min: u64, max: u64) {
        if found < min || found > max {
            self.push(Problem::Range { field: field.to_owned(), found, min, max });
        }
    }

    fn not_empty(&mut self, field: &str, empty: bool) {
        if empty {
            self.push(Problem::Empty { field: field.to_owned() });
        }
    }

    /// The first problem.
    pub(super) fn into_first(self) -> Option<Problem> {
        self.problems.into_iter().next()
    }
}

/// Compares everything with everything. The tensors returned are right where nothing was found.
pub(super) fn check(
    len: u64,
    header: &Header,
    records: &[Record],
    manifest: &Manifest,
    found: &mut Findings,
) -> Vec<Entry> {
    let text = |field, value: &str, expected| {
        (value != expected).then(|| Problem::Text { field, found: clip(value), expected })
    };
    text("format", &manifest.format, "thintensor").into_iter().for_each(|it| found.push(it));
    if manifest.version != 0 {
        found.range("version", manifest.version, 0, 0);
    }
    check_model(&manifest.model, found);
    check_memory_plan(&manifest.memory_plan, found);
    check_records(len, header, records, found);
    let by_id = check_pages(manifest, found);
    check_stages(manifest, &by_id, found);
    let places = check_match(records, &manifest.pages, found);
    tensors(&manifest.pages, &by_id, &places, found)
}

/// A name that fits into a message and does nothing to a terminal.
fn clip(name: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    name.chars().take(80).map(shown).collect()
}

fn check_model(model: &Model, found: &mut Findings) {
    for (what, name) in [("model.arch", &model.arch), ("model.dtype", &model.dtype)] {
        if !is_plain(name) {
            found.push(Problem::Name { what, name: clip(name) });
        }
    }
    found.range("model.hidden_size", model.hidden_size, 1, 1 << 20);
    found.range("model.layers", model.layers.into(), 1, 4096);
    found.range("model.heads", model.heads.into(), 1, 4096);
    found.range("model.kv_heads", model.kv_heads.into(), 1, model.heads.clamp(1, 4096).into());
    match model.head_width() {
        Some(width) => found.range("model.head_dim", width, 1, 4096),
        None => found.push(Problem::HeadDim { hidden_size: model.hidden_size, heads: model.heads }),
    }
    if model.kv_heads > 0 && !model.heads.is_multiple_of(model.kv_heads) {
        found.push(Problem::Heads { heads: model.heads, kv_heads: model.kv_heads });
    }
}

fn check_memory_plan(plan: &MemoryPlan, found: &mut Findings) {
    let (scratch, min) = (plan.scratch_bytes, plan.min_vram_bytes);
    let recommended = plan.recommended_vram_bytes;
    for (field, stated, part, least) in [
        ("min_vram_bytes", min, "scratch_bytes", scratch),
        ("recommended_vram_bytes", recommended, "min_vram_bytes", min),
    ] {
        if stated < least {
            found.push(Problem::MemoryPlan { field, found: stated, part, least });
        }
    }
    found.not_empty("kv_cache.policy", plan.kv_cache.policy.is_empty());
    found.not_empty("kv_cache.old_tokens_codec", plan.kv_cache.old_tokens_codec.is_empty());
}

/// Records follow each other from the end of the table to the end of the file.
fn check_records(len: u64, header: &Header, records: &[Record], found: &mut Findings) {
    let mut end = header.data_off;
    for record in records {
        let page = || clip(&record.id);
        let Record { offset, stored, raw, flags, .. } = *record;
        if flags != 0 {
            found.push(Problem::Flags { page: page(), flags });
        }
        if stored != raw {
            found.push(Problem::Record {
                page: page(),
                field: "raw size",
                found: raw,
                expected: stored,
            });
        }
        if offset != end {
            found.push(Problem::Offset { page: page(), offset, end });
        }
        match offset.checked_add(stored).filter(|&end| end <= len) {
            Some(after) => end = after,
            None => return found.push(Problem::Outside { page: page(), offset, stored, len }),
        }
    }
    if end != len {
        found.push(Problem::Trailing { end, len });
    }
}

/// What each page says about itself.
fn check_pages<'a>(manifest: &'a Manifest, found: &mut Findings) -> HashMap<&'a str, &'a Page> {
    found.not_empty("the list of pages", manifest.pages.is_empty());
    let mut by_id = HashMap::new();
    for page in &manifest.pages {
        let name = || clip(&page.id);
        if !is_plain(&page.id) {
            found.push(Problem::Name { what: "page", name: name() });
        }
        if by_id.insert(page.id.as_str(), page).is_some() {
            found.push(Problem::Twice { what: "page", name: name() });
        }
        if !page.experimental && !KINDS.contains(&page.kind.as_str()) {
            let (what, field) = ("page", "kind");
            found.push(Problem::Unknown { what, name: name(), field, found: clip(&page.kind) });
        }
        if let Some(layer) = page.layer.filter(|&layer| layer >= manifest.model.layers) {
            let layers = manifest.model.layers;
            found.push(Problem::Layer { page: name(), layer, layers });
        }
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if page.checksum.len() != 64 || !page.checksum.bytes().all(hex) {
            found.push(Problem::Checksum { page: name(), found: clip(&page.checksum) });
        }
        for (what, word) in [("operation", &page.op), ("layout", &page.backend_layout)] {
            if !is_plain(word) {
                found.push(Problem::Name { what, name: clip(word) });
            }
        }
        check_size(page, found);
        check_geometry(page, &manifest.model, found);
    }
    by_id
}

/// Whether an id is a name on every system: what `pages/ID.bin` was made of.
fn is_plain(id: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != '\\';
    !id.is_empty() && id.len() <= MAX_ID_BYTES && id.chars().all(plain) && id != "__metadata__"
}

/// The number type by the lower-case name that this format gives it.
fn dtype(page: &Page) -> Option<Dtype> {
    let lower = page.dtype.bytes().all(|byte| !byte.is_ascii_uppercase());
    Dtype::from_name(&page.dtype.to_ascii_uppercase()).filter(|_| lower)
}

fn check_size(page: &Page, found: &mut Findings) {
    let name = || clip(&page.id);
    let Some(dtype) = dtype(page) else {
        let (what, field) = ("page", "dtype");
        let problem = Problem::Unknown { what, name: name(), field, found: clip(&page.dtype) };
        return found.push(problem);
    };
    let shape = || page.shape.iter().take(16).copied().collect();
    let bits = page.shape.iter().try_fold(dtype.bits(), |bits, &dim| bits.checked_mul(dim));
    let bits =
        bits.filter(|bits| bits % 8 == 0 && *bits > 0 && (1..=16).contains(&page.shape.len()));
    match bits {
        None => found.push(Problem::Shape { page: name(), shape: shape() }),
        Some(bits) if bits / 8 != page.size => found.push(Problem::Size {
            page: name(),
            shape: shape(),
            dtype,
            expected: bits / 8,
            found: page.size,
        }),
        Some(_) => {}
    }
}

/// The tensors whose shape the model states; the others are checked when a model is run.
fn check_geometry(page: &Page, model: &Model, found: &mut Findings) {
    let (hidden, vocab) = (model.hidden_size, model.number("vocab_size"));
    let stated: &[(&'static str, Option<u64>)] = match page.op.as_str() {
        "embed_tokens" | "lm_head" if page.shape.len() == 2 => {
            &[("vocab_size", vocab), ("hidden_size", Some(hidden))]
        }
        "final_norm" | "input_layernorm" | "post_attention_layernorm" if page.shape.len() == 1 => {
            &[("hidden_size", Some(hidden))]
        }
        _ => return,
    };
    // A quantised head or embedding has packed columns and rows of its own.
    if !matches!(page.dtype.as_str(), "bf16" | "f16" | "f32") {
        return;
    }
    for (&dim, &(field, stated)) in page.shape.iter().zip(stated) {
        if let Some(stated) = stated.filter(|&stated| stated != dim) {
            let (page, shape) = (clip(&page.id), page.shape.clone());
            found.push(Problem::Geometry { page, shape, field, stated });
        }
    }
}

fn check_stages(manifest: &Manifest, by_id: &HashMap<&str, &Page>, found: &mut Findings) {
    found.not_empty("the execution tape", manifest.execution_tape.is_empty());
    let mut names = HashSet::new();
    for stage in &manifest.execution_tape {
        let name = || clip(&stage.stage);
        if !is_plain(&stage.stage) {
            found.push(Problem::Name { what: "stage", name: name() });
        }
        if !names.insert(stage.stage.as_str()) {
            found.push(Problem::Twice { what: "stage", name: name() });
        }
        if !stage.operator.is_empty() && !OPERATORS.contains(&stage.operator.as_str()) {
            let (what, field) = ("stage", "operator");
            let operator = clip(&stage.operator);
            found.push(Problem::Unknown { what, name: name(), field, found: operator });
        }
        for page in stage.page_refs.iter().filter(|page| !by_id.contains_key(page.as_str())) {
            found.push(Problem::StagePage { stage: name(), page: clip(page) });
        }
    }
}

/// Each page that is not inside another has one record, and they say the same.
fn check_match<'a>(
    records: &'a [Record],
    pages: &[Page],
    found: &mut Findings,
) -> HashMap<&'a str, &'a Record> {
    let mut by_id = HashMap::new();
    for record in records {
        if by_id.insert(record.id.as_str(), record).is_some() {
            found.push(Problem::Twice { what: "page record", name: clip(&record.id) });
        }
    }
    let mut matched = 0;
    for page in pages.iter().filter(|page| !page.is_fused_child()) {
        let name = || clip(&page.id);
        let Some(record) = by_id.get(page.id.as_str()) else {
            let (there, missing) = ("in the manifest", "in the page table");
            found.push(Problem::Unmatched { page: name(), there, missing });
            continue;
        };
        matched += 1;
        if record.stored != page.size {
            let (field, expected) = ("stored size", page.size);
            found.push(Problem::Record { page: name(), field, found: record.stored, expected });
        }
        if blake3::Hash::from_bytes(record.hash).to_hex().as_str() != page.checksum {
            found.push(Problem::TwoHashes { page: name() });
        }
    }
    if matched != by_id.len() {
        let own: HashSet<&str> = pages
            .iter()
            .filter(|page| !page.is_fused_child())
            .map(|page| page.id.as_str())
            .collect();
        for record in records.iter().filter(|record| !own.contains(record.id.as_str())) {
            let (there, missing) = ("in the page table", "a page of its own in the manifest");
            found.push(Problem::Unmatched { page: clip(&record.id), there, missing });
        }
    }
    by_id
}

/// Where each tensor lies. Pages inside another must fill it one after the other, so that no byte of it
/// belongs to nothing.
fn tensors(
    pages: &[Page],
    by_id: &HashMap<&str, &Page>,
    records: &HashMap<&str, &Record>,
    found: &mut Findings,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut filled: BTreeMap<&str, Vec<(u64, u64, &str)>> = BTreeMap::new();
    for page in pages {
        let name = || clip(&page.id);
        if page.is_fused_parent() {
            filled.entry(&page.id).or_default();
        }
        let (holder, offset) = match (&page.fused_to, page.fused_offset) {
            (None, None) if page.is_fused_parent() => continue,
            (None, None) => (page.id.as_str(), 0),
            (Some(parent), Some(offset)) => {
                let fits = by_id.get(parent.as_str()).filter(|it| {
                    it.is_fused_parent() && !it.is_fused_child() && !page.is_fused_parent()
                });
                if fits.is_none() {
                    found.push(Problem::NoParent { page: name(), parent: clip(parent) });
                    continue;
                }
                filled.entry(parent).or_default().push((offset, page.size, &page.id));
                (parent.as_str(), offset)
            }
            _ => {
                found.push(Problem::HalfFused { page: name() });
                continue;
            }
        };
        let place = || {
            let record = records.get(holder)?;
            let start = record.offset.checked_add(offset)?;
            let end = start.checked_add(page.size)?;
            let inside = end <= record.offset.checked_add(record.stored)?;
            let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
            inside.then_some(range)
        };
        // What has no place was found above, or is found below.
        if let (Some(range), Some(dtype)) = (place(), dtype(page)) {
            let (name, shape) = (page.id.clone(), page.shape.clone());
            entries.push(Entry { name, dtype: dtype.name(), shape, range });
        }
    }
    for (parent, mut children) in filled {
        children.sort_unstable();
        let mut next = 0u64;
        let total = by_id.get(parent).map_or(0, |page| page.size);
        for (offset, size, child) in children {
            if offset != next {
                let place = format!("page '{}' starts", clip(child));
                let (parent, found_at) = (clip(parent), offset);
                found.push(Problem::Fused { parent, place, found: found_at, expected: next });
                return entries;
            }
            next = next.saturating_add(size);
        }
        if next != total {
            let (parent, place) = (clip(parent), "the page itself ends".to_owned());
            found.push(Problem::Fused { parent, place, found: total, expected: next });
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

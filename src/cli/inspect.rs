//! `thin inspect`: what a model is, how its numbers are stored, and the steps a token takes through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use thintensor::backend;
use thintensor::engine::Engine;
use thintensor::format::manifest::Transform;
use thintensor::format::manifest::{Asset, Provenance};
use thintensor::format::{Manifest, PageRecord, Pages, groups};
use thintensor::model::ModelSpec;
use thintensor::plan::Plan;
use thintensor::program::{LogitRows, Program, StepShape, decoder, print::print as listing};
use thintensor::quant::{Encoding, Format, QuantizationDescriptor};

use super::args::InspectArgs;
use super::error::{Error, Exit};
use super::model::{self, Source};
use super::report;
use super::stats::{self, Total, totals};
use super::v0;

/// Rows of the prefill program that is shown.
const PREFILL_ROWS: u32 = 32;

/// Runs the command.
pub(crate) fn inspect(args: &InspectArgs) -> Result<Exit, Error> {
    let source = model::source(&args.model)?;
    if let Some(archive) = model::open_v0(&source)?.filter(|_| !args.program) {
        return v0::inspect(&archive, args.json);
    }
    let pages = model::open_pages(&source, None)?;
    let archive = match &source {
        Source::Demo => true,
        Source::Path(path) => model::is_archive(path)?,
    };
    let (spec, plan, _) = Engine::builder(Arc::clone(&pages)).plan()?;
    let view = View { pages: &*pages, archive, spec: &spec, plan: &plan };
    let programs = if args.program { view.programs(&args.device)? } else { Vec::new() };
    if args.json {
        report::print_json(&view.report(&programs))?;
        return Ok(Exit::Success);
    }
    let mut text = view.text();
    for (_, program) in &programs {
        text.push_str(&format!("\n{}", listing(program)));
    }
    report::print(&text)?;
    Ok(Exit::Success)
}

/// What `inspect --json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    archive: bool,
    spec: &'a ModelSpec,
    parameters: u64,
    totals: Vec<Total>,
    precision: Vec<Precision>,
    profile: &'a str,
    exact_storage_preserved: Option<bool>,
    /// Source tensors.
    tensors: usize,
    assets: &'a [Asset],
    provenance: &'a Provenance,
    /// With `--program`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    programs: BTreeMap<&'static str, String>,
}

/// A model as this command sees it.
struct View<'a> {
    pages: &'a dyn Pages,
    archive: bool,
    spec: &'a ModelSpec,
    plan: &'a Plan,
}

impl View<'_> {
    /// The programs of a decode and of a prefill step, which the device must be able to run.
    fn programs(&self, device: &str) -> Result<Vec<(&'static str, Program)>, Error> {
        let device = backend::open(device).map_err(thintensor::Error::from)?;
        let kv_capacity = self.plan.options.context;
        let decode =
            StepShape { rows: 1, kv_capacity, logits: LogitRows::All, sample: true, hidden: false };
        let prefill = StepShape { rows: PREFILL_ROWS, logits: LogitRows::One, ..decode };
        let programs = [("decode", decode), ("prefill", prefill)]
            .map(|(name, shape)| (name, decoder::build(self.spec, self.plan, shape)));
        for (_, program) in &programs {
            if let Some(op) = program.ops.iter().find(|op| !device.supports(op)) {
                let device = device.info().name.clone();
                let error = backend::Error::Unsupported { device, op: op.name() };
                return Err(thintensor::Error::from(error).into());
            }
        }
        Ok(programs.into())
    }

    fn totals(&self) -> Vec<Total> {
        totals(self.pages.manifest(), self.pages.pages())
    }

    /// Whether `extract` gives the source back; known once the model has been converted.
    fn exact(&self) -> Option<bool> {
        self.archive.then_some(self.pages.manifest().provenance.exact_storage_preserved)
    }

    fn report<'a>(&'a self, programs: &'a [(&'static str, Program)]) -> Report<'a> {
        let manifest = self.pages.manifest();
        let totals = self.totals();
        Report {
            model: self.pages.name(),
            archive: self.archive,
            spec: self.spec,
            parameters: totals.iter().map(|total| total.parameters).sum(),
            totals,
            precision: precision(manifest, self.pages.pages()),
            profile: &manifest.provenance.profile,
            exact_storage_preserved: self.exact(),
            tensors: manifest.tensors.len(),
            assets: &manifest.assets,
            provenance: &manifest.provenance,
            programs: programs.iter().map(|(name, program)| (*name, listing(program))).collect(),
        }
    }

    fn text(&self) -> String {
        let manifest = self.pages.manifest();
        let totals = self.totals();
        let parameters: u64 = totals.iter().map(|total| total.parameters).sum();
        let exact = match self.exact() {
            Some(true) => "yes: 'thin extract' gives the source back, byte for byte",
            Some(false) => "no",
            None => "known once it is converted",
        };
        let mut text = report::fields(&[
            ("model", self.pages.name().to_owned()),
            ("kind", (if self.archive { ".thin archive" } else { "checkpoint" }).to_owned()),
            (
                "parameters",
                format!("{} ({})", report::parameters(parameters), report::grouped(parameters)),
            ),
            ("profile", manifest.provenance.profile.clone()),
            ("exact storage", exact.to_owned()),
        ]);
        text.push_str(&format!("\n{}", report::fields(&shape(self.spec))));
        text.push_str(&format!("\n{}", stats::table(&totals)));
        text.push_str(&format!("\n{}", precision_table(manifest, self.pages.pages())));
        text.push_str(&format!("\n{}", origin(manifest)));
        text
    }
}

/// The model's numbers, by the names of config.json.
fn shape(spec: &ModelSpec) -> Vec<(&'static str, String)> {
    let of_layers = |value: &dyn Fn(&thintensor::model::LayerSpec) -> String| {
        let mut seen: Vec<String> = Vec::new();
        for layer in &spec.layers {
            let value = value(layer);
            if !seen.contains(&value) {
                seen.push(value);
            }
        }
        seen.join(", ")
    };
    let window = |layer: &thintensor::model::LayerSpec| {
        layer.sliding_window.map_or_else(|| "none".to_owned(), |window| window.to_string())
    };
    vec![
        ("model_type", spec.model_type.clone()),
        ("layers", spec.layers.len().to_string()),
        ("hidden_size", spec.hidden_size.to_string()),
        ("vocab_size", spec.vocab_size.to_string()),
        ("context", spec.longest_context().to_string()),
        ("heads", of_layers(&|layer| layer.num_attention_heads.to_string())),
        ("kv_heads", of_layers(&|layer| layer.num_key_value_heads.to_string())),
        ("head_dim", of_layers(&|layer| layer.head_dim.to_string())),
        ("intermediate_size", of_layers(&|layer| layer.intermediate_size.to_string())),
        ("sliding_window", of_layers(&window)),
        ("tied embeddings", (if spec.tie_word_embeddings { "yes" } else { "no" }).to_owned()),
        ("end tokens", format!("{:?}", spec.eos_token_ids)),
    ]
}

/// How a role's numbers came, and how they are stored now.
#[derive(Serialize)]
struct Precision {
    role: String,
    source: QuantizationDescriptor,
    runtime: QuantizationDescriptor,
}

/// The distinct precisions of each role.
fn precision(manifest: &Manifest, pages: &[PageRecord]) -> Vec<Precision> {
    let mut sources: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for tensor in &manifest.tensors {
        let int8 = tensor.transform.iter().find_map(|transform| match transform {
            Transform::Int8Groups { source_type } => Some(source_type.as_str()),
            Transform::WidenF32
            | Transform::RowPermutation { .. }
            | Transform::PlaneSplit { .. } => None,
        });
        for piece in &tensor.pieces {
            sources.entry(piece.page).or_default().insert(int8.unwrap_or(&tensor.dtype));
        }
    }
    let mut rows: Vec<Precision> = Vec::new();
    for group in groups(pages) {
        let Some(geometry) = manifest.descriptors.get(group.descriptor) else { continue };
        for dtype in sources.get(&group.first_page.0).into_iter().flatten() {
            let row = Precision {
                role: group.role.name().into(),
                source: descriptor_of(dtype, &geometry.quantization),
                runtime: geometry.quantization.clone(),
            };
            let same = |other: &Precision| {
                (&other.role, &other.source, &other.runtime)
                    == (&row.role, &row.source, &row.runtime)
            };
            if !rows.iter().any(same) {
                rows.push(row);
            }
        }
    }
    rows
}

/// The descriptor of a source's number type; what is not a plain float is stored as it came.
fn descriptor_of(dtype: &str, stored: &QuantizationDescriptor) -> QuantizationDescriptor {
    let lower = dtype.to_ascii_lowercase();
    match Format::ALL.iter().find(|format| format.name() == lower) {
        Some(&format) => Encoding::plain(format).descriptor(),
        None => QuantizationDescriptor { method: lower, ..stored.clone() },
    }
}

fn precision_table(manifest: &Manifest, pages: &[PageRecord]) -> String {
    let shown = |descriptor: &QuantizationDescriptor| {
        let mut text = format!("{} ({}", descriptor.storage_dtype, descriptor.method);
        if let Some(group) = descriptor.group_size {
            text.push_str(&format!(", groups of {group}"));
        }
        text + ")"
    };
    let rows: Vec<Vec<String>> = precision(manifest, pages)
        .iter()
        .map(|row| vec![row.role.clone(), shown(&row.source), shown(&row.runtime)])
        .collect();
    report::table(&["role", "source precision", "runtime precision"], &rows)
}

/// Files, and where the model comes from.
fn origin(manifest: &Manifest) -> String {
    let provenance = &manifest.provenance;
    let mut text = report::fields(&[
        ("written by", provenance.tool.clone()),
        ("source", provenance.source.clone()),
    ]);
    for file in &provenance.files {
        text.push_str(&format!("  {} ({})\n", file.name, report::bytes(file.bytes)));
    }
    text.push_str("files carried\n");
    for asset in &manifest.assets {
        text.push_str(&format!("  {} ({})\n", asset.name, report::bytes(asset.bytes)));
    }
    if !provenance.ignored.is_empty() {
        text.push_str("source tensors left out\n");
        for ignored in &provenance.ignored {
            text.push_str(&format!("  {}: {}\n", ignored.name, ignored.reason));
        }
    }
    text
}

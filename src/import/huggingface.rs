//! A folder in the layout of the Hugging Face hub: config.json, weights, tokenizer, licence.
//!
//! What can be refused from the config alone is refused before a weight file is opened. Start at [`open`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config::{self, Config, Problem};
use super::groups::{self, Convention, Placed, SourceTensor};
use super::pack::{AssetContent, AssetFile, Packed, Purpose};
use super::shards::Weights;
use super::table::Origin;
use super::{Error, detect, json};
use crate::model::ModelSpec;

/// Files beside the weights that an archive carries, when they are there.
const ASSETS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "SOURCE.txt",
];
/// Beginnings of the names of files with the terms of use.
const LICENCES: &[&str] = &["license", "licence", "notice", "copying"];
/// A carried file above this is refused.
pub(super) const MAX_ASSET_BYTES: u64 = 64 << 20;
/// More files than this are not a model.
const MAX_FILES: usize = 100_000;

/// A folder as pages, and what the user should know about it.
pub(super) fn open(folder: &Path, purpose: Purpose) -> Result<(Packed, Vec<String>), Error> {
    let names = file_names(folder)?;
    if !names.contains("config.json") {
        return Err(Error::NoConfig { path: folder.to_owned() });
    }
    let Config { mut spec, row, mut notes } = read_config(folder, &names)?;
    if !names.contains("tokenizer.json") {
        if names.contains("tokenizer.model") {
            return Err(Error::OnlyTokenizerModel { path: folder.to_owned() });
        }
        notes.push("no tokenizer.json: the model runs on token ids only".to_owned());
    }
    let assets = assets(folder, &names)?;
    let mut weights = Weights::open(folder, &names)?;
    let placed = place(row, &mut spec, &weights)?;
    notes.append(&mut weights.notes);
    notes.extend(placed.notes.iter().cloned());
    let origin = Origin { source: "huggingface", profile: "safe" };
    let packed = Packed::new(name_of(folder), &spec, weights, placed, assets, origin, purpose);
    Ok((packed, notes))
}

/// What a person calls a folder.
fn name_of(folder: &Path) -> String {
    let full = folder.canonicalize();
    let full = full.as_deref().unwrap_or(folder);
    let name = full.file_name().unwrap_or(full.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Names of the files in a folder; those that are no text cannot be ours.
fn file_names(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let io = |source| Error::Io { verb: "list", path: folder.to_owned(), source };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)?.take(MAX_FILES) {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            names.insert(name);
        }
    }
    Ok(names)
}

fn read_config(folder: &Path, names: &BTreeSet<String>) -> Result<Config, Error> {
    let path = folder.join("config.json");
    let object: Map<String, Value> = json::read(&path, json::MAX_CONFIG_BYTES)?;
    let mut config = config::read(&object).map_err(|problem| wrong(&path, problem))?;
    if names.contains("generation_config.json") {
        add_generation_ids(&folder.join("generation_config.json"), &mut config.spec)?;
    }
    config.spec.check().map_err(|problem| Error::Spec { path, problem })?;
    Ok(config)
}

fn wrong(path: &Path, problem: Problem) -> Error {
    Error::Config { path: path.to_owned(), problem: Box::new(problem) }
}

/// Adds the token ids that a generation_config.json names.
pub(super) fn add_generation_ids(path: &Path, spec: &mut ModelSpec) -> Result<(), Error> {
    let object: Map<String, Value> = json::read(path, json::MAX_CONFIG_BYTES)?;
    let ids = config::generation(&object).map_err(|problem| wrong(path, problem))?;
    spec.bos_token_id = spec.bos_token_id.or(ids.bos);
    for id in ids.eos {
        if !spec.eos_token_ids.contains(&id) {
            spec.eos_token_ids.push(id);
        }
    }
    Ok(())
}

/// The files an archive carries along.
fn assets(folder: &Path, names: &BTreeSet<String>) -> Result<Vec<AssetFile>, Error> {
    let is_licence = |name: &str| {
        let name = name.to_ascii_lowercase();
        LICENCES.iter().any(|start| name.starts_with(start))
    };
    let fixed = ASSETS.iter().copied().filter(|name| names.contains(*name));
    let licences = names.iter().map(String::as_str).filter(|name| is_licence(name));
    let mut assets = Vec::new();
    for name in fixed.chain(licences) {
        let path = folder.join(name);
        if detect::metadata(&path)?.is_file() {
            assets.push(asset_file(name, path)?);
        } // else: a folder of licences
    }
    Ok(assets)
}

/// A file to carry along.
pub(super) fn asset_file(name: &str, path: PathBuf) -> Result<AssetFile, Error> {
    let bytes = detect::metadata(&path)?.len();
    if bytes > MAX_ASSET_BYTES {
        return Err(Error::TooLarge { path, limit: MAX_ASSET_BYTES });
    }
    detect::refuse_placeholder_file(&path)?;
    Ok(AssetFile { name: name.to_owned(), content: AssetContent::File(path, bytes) })
}

/// Places the tensors; where one is missing that a file has and the index forgot, says so.
pub(super) fn place(
    row: &'static crate::model::arch::Architecture,
    spec: &mut ModelSpec,
    weights: &Weights,
) -> Result<Placed, Error> {
    let entries = weights.tensors.iter().filter_map(|&at| weights.entry(at));
    let tensors: Vec<SourceTensor<'_>> = entries.map(SourceTensor::of).collect();
    let same = |a: usize, b: usize| {
        let pair = weights.tensors.get(a).zip(weights.tensors.get(b));
        pair.is_some_and(|(&a, &b)| weights.same_bytes(a, b))
    };
    let names = &row.names;
    let convention = Convention { row, names, interleaved: false, dequantize: None };
    groups::place(convention, spec, &tensors, &same).map_err(|error| {
        let (Error::MissingTensor { tensor } | Error::MissingHead { tensor }) = &error else {
            return error;
        };
        let forgotten = weights.unlisted.iter().find_map(|&at| {
            let entry = weights.entry(at)?;
            let (shard, file) = weights.files.get(at.0)?;
            let is_it = entry.name == *tensor || tensor.strip_prefix("model.") == Some(&entry.name);
            is_it.then(|| Error::NotInIndex {
                path: file.path().with_file_name("model.safetensors.index.json"),
                tensor: entry.name.clone(),
                shard: shard.clone(),
            })
        });
        forgotten.unwrap_or(error)
    })
}

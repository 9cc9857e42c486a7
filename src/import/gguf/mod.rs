//! GGUF files: one file, or the parts of one, with everything a model needs inside.
//!
//! `parse` reads the front of a file without trusting it, `metadata` makes a `ModelSpec` of it,
//! `tokenizer` the files of a tokenizer; `groups` then places the tensors by the names that the row of
//! `model::arch` has for these files. Weights stay in the precision they have, unless blocks are to be
//! rounded to bf16. Start at `open`.

mod metadata;
mod parse;
mod problem;
#[cfg(test)]
mod tests;
mod tokenizer;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use problem::Problem;

use self::metadata::Model;
use self::parse::Header;
use self::value::Value;
use super::file::{Entry, WeightFile};
use super::groups::{self, Convention, SourceTensor};
use super::map::Map;
use super::pack::{AssetContent, AssetFile, Packed};
use super::shards::Weights;
use super::table::Origin;
use super::{Error, OpenOptions};

/// A text of the metadata above this is not noted in an archive.
const MAX_NOTE: usize = 1024;
/// More parts than this are not a model.
const MAX_PARTS: u64 = 10_000;

/// A file as pages, and what the user should know about it.
pub(super) fn open(path: &Path, options: OpenOptions<'_>) -> Result<(Packed, Vec<String>), Error> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        move |problem| Error::Gguf { path, problem: Box::new(problem) }
    };
    let paths = part_paths(path)?;
    let maps = paths.iter().map(|path| Map::open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut headers = Vec::with_capacity(maps.len());
    for (map, path) in maps.iter().zip(&paths) {
        headers.push(Header::parse(map.bytes()).map_err(wrong(path))?);
    }
    check_parts(&headers, &paths)?;
    let first = headers.first().zip(maps.first());
    let (first, map) = first.ok_or_else(|| Error::NotFound { path: path.to_owned() })?;

    let Model { mut spec, row, gguf } = metadata::read(first, map.bytes()).map_err(wrong(path))?;
    spec.check().map_err(|problem| Error::Spec { path: path.to_owned(), problem })?;
    let mut notes = Vec::new();
    let mut assets = Vec::new();
    if options.tokenizer.is_none() {
        match tokenizer::rebuild(first).map_err(wrong(path))? {
            None => notes.push("no tokenizer: the model runs on token ids only".to_owned()),
            Some(files) => {
                let made = |name: &str, bytes| AssetFile {
                    name: name.to_owned(),
                    content: AssetContent::Made(bytes),
                };
                assets.push(made("tokenizer.json", files.tokenizer));
                assets.push(made("tokenizer_config.json", files.config));
            }
        }
    }
    let descriptions: Vec<_> =
        headers.iter().map(|header| (entries(header), noted(header))).collect();
    drop(headers);
    let files: Vec<(String, WeightFile)> = maps
        .into_iter()
        .zip(descriptions)
        .map(|(map, (tensors, metadata))| {
            (file_name(map.path()), WeightFile::new(map, tensors, metadata))
        })
        .collect();
    let weights = Weights::of_files(files);

    let dequantized = options.dequantize.then_some(&weights);
    let is_bf16 = |tensor: usize| dequantized.is_some_and(|weights| is_bf16(weights, tensor));
    let tensors: Vec<SourceTensor<'_>> =
        weights.tensors.iter().filter_map(|&at| weights.entry(at)).map(SourceTensor::of).collect();
    let convention = Convention {
        row,
        names: &gguf.names,
        interleaved: gguf.interleaved,
        dequantize: dequantized.map(|_| &is_bf16 as &dyn Fn(usize) -> bool),
    };
    let placed = groups::place(convention, &mut spec, &tensors, &|_, _| false)?;
    notes.extend(placed.notes.iter().cloned());
    notes.extend(expanded(&tensors, options.dequantize));
    drop(tensors);
    let profile = if options.dequantize { "dequantized-bf16" } else { "safe" };
    let origin = Origin { source: "gguf", profile };
    let packed =
        Packed::new(file_name(path), &spec, weights, placed, assets, origin, options.purpose);
    Ok((packed, notes))
}

/// For a fuzzer: reads a file given whole as `open` would, up to where tensors are placed. It must neither
/// panic nor take memory out of proportion, whatever the bytes.
pub fn fuzz(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else { return };
    let _ = tokenizer::rebuild(&header);
    let _ = noted(&header);
    let Ok(Model { mut spec, row, gguf }) = metadata::read(&header, bytes) else { return };
    if spec.check().is_err() {
        return;
    }
    let entries = entries(&header);
    let tensors: Vec<SourceTensor<'_>> = entries.iter().map(SourceTensor::of).collect();
    let (names, interleaved) = (&gguf.names, gguf.interleaved);
    let convention = Convention { row, names, interleaved, dequantize: None };
    let _ = groups::place(convention, &mut spec, &tensors, &|_, _| false);
}

/// The name of a file without its folder.
fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The tensors of a header, in the order they lie.
fn entries(header: &Header<'_>) -> Vec<Entry> {
    let entry = |info: &parse::Info<'_>| Entry {
        name: info.name.to_owned(),
        dtype: info.tensor_type.name(),
        shape: info.shape.clone(),
        range: info.range.clone(),
    };
    let mut entries: Vec<Entry> = header.tensors.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.range.start);
    entries
}

/// What an archive keeps of the metadata: everything but long texts and the lists of the tokenizer.
fn noted(header: &Header<'_>) -> BTreeMap<String, String> {
    let note = |value: &Value<'_>| match value {
        Value::Text(text) => (text.len() <= MAX_NOTE).then(|| (*text).to_owned()),
        Value::Array(_) => None,
        number => Some(number.brief()),
    };
    let metadata = header.metadata.iter();
    metadata.filter_map(|(key, value)| Some(((*key).to_owned(), note(value)?))).collect()
}

/// Whether every number of an F32 tensor is one that bf16 has.
fn is_bf16(weights: &Weights, tensor: usize) -> bool {
    let Some(&(file, tensor)) = weights.tensors.get(tensor) else { return false };
    let bytes = weights.files.get(file).map_or(&[][..], |(_, file)| file.bytes(tensor));
    bytes.as_chunks::<4>().0.iter().all(|number| number[..2] == [0, 0])
}

/// What becomes larger by being read, and by how much.
fn expanded(tensors: &[SourceTensor<'_>], dequantize: bool) -> Option<String> {
    let count = |tensor: &SourceTensor<'_>| tensor.shape.iter().product::<u64>();
    let (mut before, mut after, mut names) = (0u64, 0u64, Vec::new());
    for tensor in tensors {
        let Some(source) = tensor.tensor_type.filter(|source| source.block_weights() > 1) else {
            continue;
        };
        let stored = match (dequantize, source.encoding()) {
            (true, _) => count(tensor) * 2,
            (false, Some(encoding)) if !source.splits() => {
                encoding.row_bytes(count(tensor)).map_or(0, |bytes| bytes.iter().sum())
            }
            (false, _) => continue,
        };
        before += source.bytes(count(tensor)).unwrap_or(0);
        after += stored;
        if !names.contains(&source.name()) {
            names.push(source.name());
        }
    }
    let how = if dequantize { "rounded to bf16" } else { "stored as int8 with every value kept" };
    (!names.is_empty()).then(|| {
        let grouped = crate::format::grouped;
        let names = names.join(", ");
        format!("{names} {how}: {} bytes become {}", grouped(before), grouped(after))
    })
}

/// The parts of the model that `path` is, or is one of.
fn part_paths(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let name = file_name(path);
    let Some((prefix, _, count)) = part_name(&name) else {
        return Ok(vec![path.to_owned()]);
    };
    let mut paths = Vec::new();
    for number in 1..=count {
        let part = path.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf"));
        if !part.is_file() {
            let problem = Problem::PartMissing { number, count, missing: file_name(&part) };
            return Err(Error::Gguf { path: path.to_owned(), problem: Box::new(problem) });
        }
        paths.push(part);
    }
    Ok(paths)
}

/// `PREFIX-00001-of-00003.gguf`: prefix, number and count.
fn part_name(name: &str) -> Option<(&str, u64, u64)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let all = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (number, count) = (digits(number)?, digits(count)?);
    (number >= 1 && number <= count && count <= MAX_PARTS).then_some((prefix, number, count))
}

/// Whether each part is the one its name says, and together they have the tensors they should.
fn check_parts(headers: &[Header<'_>], paths: &[PathBuf]) -> Result<(), Error> {
    let count = headers.len() as u64;
    let mut seen = std::collections::HashSet::new();
    for (index, (header, path)) in (0u64..).zip(headers.iter().zip(paths)) {
        let wrong = |problem| Error::Gguf { path: path.clone(), problem: Box::new(problem) };
        let number = |key| header.value(key).and_then(|value| value.as_u64());
        let stated = number("split.count").unwrap_or(1).max(1);
        if part_name(&file_name(path)).is_none() && stated > 1 {
            return Err(wrong(Problem::PartName { count: stated }));
        }
        let file = file_name(path);
        let shown = |value: Option<u64>| value.map_or("nothing".to_owned(), |n| n.to_string());
        if stated != count {
            let (key, found) = ("split.count", shown(number("split.count")));
            return Err(wrong(Problem::Part { file, key, found, expected: count }));
        }
        if count > 1 && number("split.no") != Some(index) {
            let (key, found) = ("split.no", shown(number("split.no")));
            return Err(wrong(Problem::Part { file, key, found, expected: index }));
        }
        for info in &header.tensors {
            if !seen.insert(info.name) {
                let tensor = info.name.to_owned();
                return Err(wrong(Problem::DuplicateTensor { tensor }));
            }
        }
    }
    let first = headers.first().zip(paths.first());
    if let Some((header, path)) = first
        && let Some(stated) = header.value("split.tensors.count").and_then(|value| value.as_u64())
        && stated != seen.len() as u64
    {
        let problem = Problem::PartTensors { stated, parts: count, found: seen.len() as u64 };
        return Err(Error::Gguf { path: path.clone(), problem: Box::new(problem) });
    }
    Ok(())
}

/// Whether a file starts as these do.
pub(super) fn is_gguf(head: &[u8]) -> bool {
    head.starts_with(&parse::MAGIC)
}

//! The weight files of a folder: `model.safetensors`, or the shards that an index names, the two checked
//! against each other. Files the model does not name are never read; they are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Error;
use super::file::{Entry, WeightFile};
use super::json::{self, UniqueMap};
use super::safetensors;

/// The file of a model that is not cut into shards.
const SINGLE: &str = "model.safetensors";
/// The list of which tensor is in which shard.
const INDEX: &str = "model.safetensors.index.json";
/// Endings of weight files that this program does not read.
const FOREIGN: &[&str] = &[".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf"];

/// Bytes compared or hashed before they are released.
pub(super) const CHUNK: usize = 32 << 20;

/// The open weight files of a model.
#[derive(Debug)]
pub(super) struct Weights {
    /// The files, by name.
    pub(super) files: Vec<(String, WeightFile)>,
    /// The model's tensors: file, and position in it. In source order.
    pub(super) tensors: Vec<(usize, usize)>,
    /// Tensors in these files that the index does not list.
    pub(super) unlisted: Vec<(usize, usize)>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

/// The list of which tensor is in which shard.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) weight_map: UniqueMap<String>,
}

impl Weights {
    /// Opens the weight files of a folder whose file names are given.
    pub(super) fn open(folder: &Path, names: &BTreeSet<String>) -> Result<Self, Error> {
        let weights = if names.contains(INDEX) {
            Self::open_shards(folder, names)?
        } else if names.contains(SINGLE) {
            let file = safetensors::open(&folder.join(SINGLE))?;
            Self::of_files(vec![(SINGLE.to_owned(), file)])
        } else {
            return Err(no_weights(folder, names));
        };
        if weights.tensors.is_empty() {
            return Err(Error::NoTensors { path: folder.to_owned() });
        }
        Ok(weights.note_strays(names))
    }

    /// Files that name no others.
    pub(super) fn of_files(files: Vec<(String, WeightFile)>) -> Self {
        let all = |(at, (_, file)): (usize, &(String, WeightFile))| {
            (0..file.tensors.len()).map(move |tensor| (at, tensor)).collect::<Vec<_>>()
        };
        let tensors = files.iter().enumerate().flat_map(all).collect();
        Weights { files, tensors, unlisted: Vec::new(), notes: Vec::new() }
    }

    /// The file's description of a tensor.
    pub(super) fn entry(&self, (file, tensor): (usize, usize)) -> Option<&Entry> {
        self.files.get(file)?.1.tensors.get(tensor)
    }

    /// Whether two tensors have the same bytes.
    pub(super) fn same_bytes(&self, a: (usize, usize), b: (usize, usize)) -> bool {
        let file = |(file, _): (usize, usize)| self.files.get(file).map(|(_, file)| file);
        let (Some(file_a), Some(file_b)) = (file(a), file(b)) else {
            return false;
        };
        let (bytes_a, bytes_b) = (file_a.bytes(a.1), file_b.bytes(b.1));
        let chunks = bytes_a.chunks(CHUNK).zip(bytes_b.chunks(CHUNK));
        let mut start = 0;
        for (chunk_a, chunk_b) in chunks {
            if chunk_a != chunk_b {
                return false;
            }
            let range = start..start + chunk_a.len();
            file_a.release(a.1, range.clone());
            file_b.release(b.1, range);
            start += chunk_a.len();
        }
        bytes_a.len() == bytes_b.len()
    }

    fn open_shards(folder: &Path, names: &BTreeSet<String>) -> Result<Self, Error> {
        let path = folder.join(INDEX);
        let index: Index = json::read(&path, json::MAX_INDEX_BYTES)?;
        let map: BTreeMap<String, String> = index.weight_map.0.into_iter().collect();
        for (tensor, shard) in &map {
            if !is_plain_name(shard) {
                return Err(Error::ShardName {
                    path,
                    tensor: tensor.clone(),
                    shard: shard.chars().take(80).collect(),
                });
            }
        }
        let shards: BTreeSet<&String> = map.values().collect();
        let missing = shards.iter().find(|shard| !names.contains(**shard));
        let present = shards.iter().filter(|shard| names.contains(**shard));
        let files = present
            .map(|shard| Ok(((*shard).clone(), safetensors::open(&folder.join(shard))?)))
            .collect::<Result<Vec<_>, Error>>()?;
        if let Some(shard) = missing {
            let held: BTreeSet<&String> = files
                .iter()
                .flat_map(|(_, file)| file.tensors.iter().map(|entry| &entry.name))
                .collect();
            return Err(Error::ShardMissing {
                path,
                shard: (*shard).clone(),
                complete_without: map.keys().all(|tensor| held.contains(tensor)),
            });
        }
        let mut weights =
            Weights { files, tensors: Vec::new(), unlisted: Vec::new(), notes: Vec::new() };
        weights.cross_check(&path, &map)?;
        Ok(weights)
    }

    /// Checks index and headers against each other, both ways.
    fn cross_check(&mut self, path: &Path, map: &BTreeMap<String, String>) -> Result<(), Error> {
        let mut listed: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let mut elsewhere = Vec::new();
        for (file, (shard, content)) in self.files.iter().enumerate() {
            for (tensor, entry) in content.tensors.iter().enumerate() {
                match map.get(&entry.name) {
                    Some(target) if target == shard => {
                        listed.insert(&entry.name, (file, tensor));
                        self.tensors.push((file, tensor));
                    }
                    Some(_) => elsewhere.push((file, tensor)),
                    None => self.unlisted.push((file, tensor)),
                }
            }
        }
        if let Some((tensor, shard)) =
            map.iter().find(|(tensor, _)| !listed.contains_key(tensor.as_str()))
        {
            return Err(Error::NotInShard {
                path: path.to_owned(),
                tensor: tensor.clone(),
                shard: shard.clone(),
            });
        }
        let mut notes = Vec::new();
        for copy in elsewhere {
            let Some((entry, (shard, _))) = self.entry(copy).zip(self.files.get(copy.0)) else {
                continue;
            };
            let Some((&target, first)) = listed.get(entry.name.as_str()).zip(map.get(&entry.name))
            else {
                continue;
            };
            let same_kind = self
                .entry(target)
                .is_some_and(|target| target.shape == entry.shape && target.dtype == entry.dtype);
            if !same_kind || !self.same_bytes(target, copy) {
                return Err(Error::TwoShards {
                    tensor: entry.name.clone(),
                    first: first.clone(),
                    second: shard.clone(),
                });
            }
            notes.push(format!(
                "'{}' is in '{first}' and once more, with the same content, in '{shard}'",
                entry.name
            ));
        }
        self.notes.extend(notes);
        Ok(())
    }

    /// Lists weight files that were not read.
    fn note_strays(mut self, names: &BTreeSet<String>) -> Self {
        let read: BTreeSet<&String> = self.files.iter().map(|(name, _)| name).collect();
        let strays =
            names.iter().filter(|name| name.ends_with(".safetensors") && !read.contains(name));
        let notes: Vec<String> = strays
            .map(|name| format!("'{name}' is not part of the model and was not read"))
            .collect();
        self.notes.extend(notes);
        self
    }
}

/// Says which weights are there instead of those looked for.
fn no_weights(folder: &Path, names: &BTreeSet<String>) -> Error {
    let path: PathBuf = folder.to_owned();
    let shard =
        names.iter().find(|name| name.starts_with("model-0") && name.ends_with(".safetensors"));
    if let Some(shard) = shard {
        let shard = shard.clone();
        return Error::NoIndex { path, shard };
    }
    let foreign = |name: &&String| {
        name.ends_with(".safetensors") || FOREIGN.iter().any(|ending| name.ends_with(ending))
    };
    Error::NoWeights { path, found: names.iter().find(foreign).cloned() }
}

/// Whether a name from an index is that of a file in the same folder, on every system.
pub(super) fn is_plain_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".safetensors") else {
        return false;
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let first = stem.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let device = ["con", "prn", "aux", "nul"].contains(&first.as_str())
        || (first.len() == 4
            && (first.starts_with("com") || first.starts_with("lpt"))
            && first.ends_with(|last: char| last.is_ascii_digit()));
    !stem.is_empty()
        && name.len() <= 255
        && !stem.starts_with('.')
        && stem.bytes().all(plain)
        && !device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r97_shard_names_that_leave_the_folder_are_not_plain() {
        for name in [
            "model-00001-of-00002.safetensors",
            "model.safetensors",
            "pytorch_model.fp16+ema.safetensors",
        ] {
            assert!(is_plain_name(name), "{name}");
        }
        let long = format!("{}.safetensors", "a".repeat(5000));
        for name in [
            "../model.safetensors",
            "../../../home/u/.ssh/id_rsa",
            "/abs/model.safetensors",
            "..\\..\\x.safetensors",
            "C:x.safetensors",
            "con.safetensors",
            "COM1.safetensors",
            "a/b.safetensors",
            "a\0b.safetensors",
            "%2e%2e%2fx.safetensors",
            "..safetensors",
            ".safetensors",
            ".hidden.safetensors",
            "model.bin",
            "",
            &long,
        ] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}

//! Sources of models: finding out what a path is and seeing it as pages.
//!
//! [`open`] takes a path to an archive, a Hugging Face folder or a safetensors file in one, and gives pages in
//! the order a token uses them ([`v0`] reads the archives of an earlier program); whoever runs a model and whoever writes an archive read the same pages.
//! `config` turns a config.json into a `ModelSpec`, `shards` and `safetensors` read weight files, `groups`
//! decides which row goes where and `pack` moves it. Nothing here computes with weights or lowers them.

pub mod config;
mod detect;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod groups;
mod huggingface;
mod json;
mod map;
mod pack;
mod rows;
pub mod safetensors;
mod shards;
mod table;
mod tokenizer;
pub mod v0;

use std::path::Path;

pub use detect::{Kind, detect};
pub use error::Error;
pub use pack::{Packed, Purpose};
use tokenizer::WithTokenizer;

use crate::format::writer::{self, WriteOptions, WriteReport};
use crate::format::{Archive, Pages};

/// A source seen as pages.
pub struct Opened {
    /// Its pages.
    pub pages: Box<dyn Pages>,
    /// What the user should know: files not read, settings not used.
    pub notes: Vec<String>,
}

/// Opens a model to run it. Notes are logged as warnings.
///
/// **Errors**: the path is nothing this version can run, or damaged.
pub fn open(path: &Path) -> Result<Box<dyn Pages>, crate::Error> {
    let opened = open_for(path, Purpose::Run)?;
    for note in &opened.notes {
        tracing::warn!("{note}");
    }
    Ok(opened.pages)
}

/// Opens a model, to run it or to write it as an archive.
///
/// **Errors**: the path is nothing this version can run, or damaged.
pub fn open_for(path: &Path, purpose: Purpose) -> Result<Opened, crate::Error> {
    open_with(path, purpose, None)
}

/// [`open_for`], with the tokenizer files of a folder for a model without its own. An archive of version 0
/// has none, so that they are looked for beside it where no folder is given.
///
/// **Errors**: those of [`open_for`]; the model has a tokenizer, or the folder has none.
pub fn open_with(
    path: &Path,
    purpose: Purpose,
    tokenizer: Option<&Path>,
) -> Result<Opened, crate::Error> {
    let kind = detect(path)?;
    let mut opened = match kind {
        Kind::Archive => Opened { pages: Box::new(Archive::open(path)?), notes: Vec::new() },
        Kind::ArchiveV0 => {
            let texts = tokenizer.map_or(v0::Texts::Beside, v0::Texts::In);
            let (packed, notes) = v0::open(path, purpose, texts)?;
            Opened { pages: Box::new(packed), notes }
        }
        Kind::Folder | Kind::Safetensors => {
            let (packed, notes) = open_source(path, purpose)?;
            Opened { pages: Box::new(packed), notes }
        }
    };
    if let Some(folder) = tokenizer.filter(|_| kind != Kind::ArchiveV0) {
        opened.pages = Box::new(WithTokenizer::new(opened.pages, folder)?);
    }
    Ok(opened)
}

/// Opens a checkpoint: a folder, or a weight file in one.
///
/// **Errors**: it is not a checkpoint this version can run, or damaged.
pub fn open_source(path: &Path, purpose: Purpose) -> Result<(Packed, Vec<String>), Error> {
    if detect::metadata(path)?.is_dir() {
        return huggingface::open(path, purpose);
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (packed, notes) = huggingface::open(folder, purpose)?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if packed.reads_file(name) {
        return Ok((packed, notes));
    }
    Err(Error::NotOfModel { path: path.to_owned() })
}

/// Writes a model as an archive, and returns what was written and what the user should know.
///
/// **Errors**: those of [`open_for`] and of [`writer::write`].
pub fn convert(
    source: &Path,
    archive: &Path,
    options: &WriteOptions<'_>,
) -> Result<(WriteReport, Vec<String>), crate::Error> {
    let opened = open_for(source, Purpose::Convert)?;
    let report = writer::write(&*opened.pages, archive, options)?;
    Ok((report, opened.notes))
}

//! Sources of models: finding out what a path is and seeing it as pages.
//!
//! [`open`] takes a path to an archive, a GGUF file, a Hugging Face folder or a safetensors file in one, and gives pages in
//! the order a token uses them; whoever runs a model and whoever writes an archive read the same pages.
//! `config` turns a config.json into a `ModelSpec`, `shards` and `safetensors` read weight files, `gguf` files
//! that hold both and `v0` the archives of an earlier program, `groups` decides which row goes where and `pack`
//! moves it. Nothing here lowers a weight, unless blocks are to be dequantised.

mod coding;
pub mod config;
mod detect;
mod error;
mod file;
#[doc(hidden)]
pub mod fuzz;
pub mod gguf;
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

/// How to read a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions<'a> {
    /// What the pages are read for.
    pub purpose: Purpose,
    /// Round the blocks of a GGUF file to bf16, and name its tensors as a Hugging Face folder would.
    pub dequantize: bool,
    /// A folder with the tokenizer files of a model without its own. Where none is given, that of a GGUF file is
    /// rebuilt, and that of a version-0 archive looked for beside it.
    pub tokenizer: Option<&'a Path>,
}

impl OpenOptions<'_> {
    /// Everything as it is.
    #[must_use]
    pub fn new(purpose: Purpose) -> Self {
        OpenOptions { purpose, dequantize: false, tokenizer: None }
    }
}

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
    open_with(path, OpenOptions::new(purpose))
}

/// Opens a model with options.
///
/// **Errors**: those of [`open_for`], and options that the source does not have.
pub fn open_with(path: &Path, options: OpenOptions<'_>) -> Result<Opened, crate::Error> {
    let kind = detect(path)?;
    if options.dequantize && kind != Kind::Gguf {
        return Err(Error::NothingToDequantize { path: path.to_owned() }.into());
    }
    let (pages, notes): (Box<dyn Pages>, Vec<String>) = match kind {
        Kind::Archive => (Box::new(Archive::open(path)?), Vec::new()),
        Kind::ArchiveV0 => {
            let texts = options.tokenizer.map_or(v0::Texts::Beside, v0::Texts::In);
            let (packed, notes) = v0::open(path, options.purpose, texts)?;
            return Ok(Opened { pages: Box::new(packed), notes });
        }
        Kind::Gguf => {
            let (packed, notes) = gguf::open(path, options)?;
            (Box::new(packed), notes)
        }
        Kind::Folder | Kind::Safetensors => {
            let (packed, notes) = open_source(path, options.purpose)?;
            (Box::new(packed), notes)
        }
    };
    match options.tokenizer {
        None => Ok(Opened { pages, notes }),
        Some(folder) => Ok(Opened { pages: Box::new(WithTokenizer::new(pages, folder)?), notes }),
    }
}

/// Opens a checkpoint: a folder, a weight file in one, or a GGUF file.
///
/// **Errors**: it is not a checkpoint this version can run, or damaged.
pub fn open_source(path: &Path, purpose: Purpose) -> Result<(Packed, Vec<String>), Error> {
    if detect::metadata(path)?.is_dir() {
        return huggingface::open(path, purpose);
    }
    if detect(path)? == Kind::Gguf {
        return gguf::open(path, OpenOptions::new(purpose));
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

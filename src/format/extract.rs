//! The way back: source files out of an archive, with the names, types, shapes and bytes they had.
//!
//! Each source file becomes one safetensors file; carried files are copied. A tensor is rebuilt a part at a
//! time and compared with the hash it was converted from, so a folder that was written is right. Files are
//! written under a temporary name and renamed. Names were checked when the archive was opened: none leaves
//! the target folder.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::manifest::{Manifest, Tensor};
use super::names::extracted_name;
use super::unpack::{Recent, block_type, bytes_of};
use super::writer::{free_bytes, sync_folder};
use super::{Error, Event, PageId, Pages, Progress, check};

/// Name of the file being written; no carried file can have it, since names do not start with a dot.
const TEMPORARY: &str = ".thin-extract.partial";
/// Name of the file that says which tensor is in which safetensors file.
const INDEX: &str = "model.safetensors.index.json";

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ExtractReport {
    /// Files with tensors.
    pub files: Vec<ExtractedFile>,
    /// Names of the carried files.
    pub assets: Vec<String>,
    /// Bytes of all files.
    pub bytes: u64,
}

/// One safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ExtractedFile {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: usize,
}

/// Writes the source files of `pages` into `folder`, which is created if need be.
///
/// **Errors**: the folder holds something and `force` is not set; a tensor does not have the bytes it was
/// converted from; a page is damaged; the disk is full or refuses.
pub fn extract(
    pages: &dyn Pages,
    folder: &Path,
    force: bool,
    progress: Progress<'_>,
) -> Result<ExtractReport, crate::Error> {
    let manifest = pages.manifest();
    check::none(pages.name(), check::contents(manifest, pages.pages()))?;
    let headers: Vec<FileHeader> = (0..manifest.provenance.files.len() as u32)
        .map(|file| FileHeader::new(manifest, file))
        .collect();
    let needed = headers.iter().map(|header| header.bytes()).sum::<u64>()
        + manifest.assets.iter().map(|asset| asset.bytes).sum::<u64>();
    prepare(folder, force, needed)?;
    progress(Event::Start { bytes: needed });

    let mut output = Output::new(folder, progress);
    let mut report = ExtractReport::default();
    let mut recent = Recent::new(pages);
    for header in &headers {
        output.file(&header.name, |file| {
            file.write(&(header.text.len() as u64).to_le_bytes())?;
            file.write(&header.text)?;
            for tensor in &header.tensors {
                write_tensor(pages.name(), &mut recent, tensor, file)?;
            }
            Ok(())
        })?;
        report.files.push(ExtractedFile {
            name: header.name.clone(),
            bytes: header.bytes(),
            tensors: header.tensors.len(),
        });
    }
    for asset in &manifest.assets {
        output.file(&asset.name, |file| {
            let mut left = asset.bytes;
            for id in asset.page.. {
                let page = recent.page(PageId(id))?;
                left = left.saturating_sub(page.len() as u64);
                file.write(page)?;
                if left == 0 {
                    break;
                }
            }
            Ok(())
        })?;
        report.assets.push(asset.name.clone());
    }
    if let Some(index) = index(manifest, &headers) {
        output.file(INDEX, |file| file.write(&index))?;
    }
    finish_folder(folder)?;
    report.bytes = output.done;
    Ok(report)
}

/// A safetensors file to be: its name, its header and its tensors.
struct FileHeader<'a> {
    name: String,
    text: Vec<u8>,
    tensors: Vec<&'a Tensor>,
    tensor_bytes: u64,
}

impl<'a> FileHeader<'a> {
    /// Tensors lie in source order without gaps; the header is padded with spaces to eight bytes.
    fn new(manifest: &'a Manifest, file: u32) -> Self {
        let source = manifest.provenance.files.get(file as usize);
        let tensors: Vec<&Tensor> =
            manifest.tensors.iter().filter(|tensor| tensor.file == file).collect();
        let mut entries = Map::new();
        if let Some(source) = source
            && !source.metadata.is_empty()
        {
            entries.insert("__metadata__".into(), json!(source.metadata));
        }
        let mut offset = 0;
        for tensor in &tensors {
            let end = offset + tensor_bytes(tensor);
            // Blocks have no name in this format; they are given back as bytes, row by row.
            let (dtype, shape) = match (block_type(&tensor.dtype), tensor.shape.as_slice()) {
                (Some(source), [rows @ .., cols]) => {
                    let row_bytes = source.bytes(*cols).unwrap_or(0);
                    ("U8", rows.iter().copied().chain([row_bytes]).collect())
                }
                _ => (tensor.dtype.as_str(), tensor.shape.clone()),
            };
            entries.insert(
                tensor.name.clone(),
                json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}),
            );
            offset = end;
        }
        let mut text = Value::Object(entries).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let name = source.map_or("", |source| source.name.as_str());
        FileHeader { name: extracted_name(name), text, tensors, tensor_bytes: offset }
    }

    fn bytes(&self) -> u64 {
        8 + self.text.len() as u64 + self.tensor_bytes
    }
}

/// Bytes of a tensor, which the checks found to be countable.
fn tensor_bytes(tensor: &Tensor) -> u64 {
    bytes_of(&tensor.dtype, &tensor.shape).unwrap_or(0)
}

/// The index that loaders need where there are several files, unless the archive carries the source's own.
fn index(manifest: &Manifest, headers: &[FileHeader<'_>]) -> Option<Vec<u8>> {
    let carried = manifest.assets.iter().any(|asset| asset.name == INDEX);
    if headers.len() < 2 || carried {
        return None;
    }
    let mut weight_map = Map::new();
    for header in headers {
        for tensor in &header.tensors {
            weight_map.insert(tensor.name.clone(), json!(header.name));
        }
    }
    let total: u64 = headers.iter().map(|header| header.tensor_bytes).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    Some(format!("{index:#}\n").into_bytes())
}

/// Writes a tensor's source bytes and compares their hash.
fn write_tensor(
    archive: &str,
    recent: &mut Recent<'_>,
    tensor: &Tensor,
    file: &mut OutputFile<'_>,
) -> Result<(), crate::Error> {
    let mut hasher = blake3::Hasher::new();
    recent.tensor(tensor, |bytes| {
        hasher.update_rayon(bytes);
        file.write(bytes)
    })?;
    let found = *hasher.finalize().as_bytes();
    if found != tensor.hash {
        return Err(Error::TensorHash {
            file: archive.into(),
            tensor: tensor.name.clone(),
            stated: tensor.hash,
            found,
        }
        .into());
    }
    Ok(())
}

/// Creates the folder, or makes sure that it may be written to and that the disk is large enough.
pub(crate) fn prepare(folder: &Path, force: bool, needed: u64) -> Result<(), Error> {
    let io = |verb| move |source| Error::Io { verb, path: folder.into(), source };
    std::fs::create_dir_all(folder).map_err(io("create"))?;
    let occupied = std::fs::read_dir(folder).map_err(io("read"))?.next().is_some();
    if occupied && !force {
        return Err(Error::NotEmpty { path: folder.into() });
    }
    match free_bytes(folder) {
        Some(free) if needed > free => Err(Error::NoSpace { path: folder.into(), needed, free }),
        Some(_) | None => Ok(()),
    }
}

/// Makes sure that the names of the files are on disk.
pub(crate) fn finish_folder(folder: &Path) -> Result<(), Error> {
    sync_folder(&folder.join(TEMPORARY))
}

/// The folder that files are written to.
pub(crate) struct Output<'a> {
    folder: &'a Path,
    progress: Progress<'a>,
    done: u64,
}

/// The file being written.
pub(crate) struct OutputFile<'a> {
    file: BufWriter<File>,
    path: PathBuf,
    progress: Progress<'a>,
    done: u64,
}

impl<'a> Output<'a> {
    /// Files in `folder`; `progress` is told of the bytes of all.
    pub(crate) fn new(folder: &'a Path, progress: Progress<'a>) -> Self {
        Output { folder, progress, done: 0 }
    }

    /// Writes one file: under a temporary name, flushed, then renamed.
    pub(crate) fn file(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut OutputFile<'_>) -> Result<(), crate::Error>,
    ) -> Result<(), crate::Error> {
        let path = self.folder.join(TEMPORARY);
        let io = |source| Error::Io { verb: "write", path: path.clone(), source };
        // A leftover, or a link someone put there, is removed rather than written through.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(error))?,
            _ => {}
        }
        let file = File::options().write(true).create_new(true).open(&path).map_err(io)?;
        let mut output = OutputFile {
            file: BufWriter::with_capacity(1 << 20, file),
            path: path.clone(),
            progress: self.progress,
            done: self.done,
        };
        let filled = fill(&mut output).and_then(|()| {
            output.file.flush().map_err(io)?;
            output.file.get_ref().sync_all().map_err(io)?;
            Ok(output.done)
        });
        match filled {
            Ok(done) => self.done = done,
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        }
        let target = self.folder.join(name);
        std::fs::rename(&path, &target).map_err(|source| Error::Io {
            verb: "write",
            path: target.clone(),
            source,
        })?;
        Ok(())
    }
}

impl OutputFile<'_> {
    /// Adds bytes to the file.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), crate::Error> {
        self.file.write_all(bytes).map_err(|source| Error::Io {
            verb: "write",
            path: self.path.clone(),
            source,
        })?;
        self.done += bytes.len() as u64;
        (self.progress)(Event::Done { bytes: self.done });
        Ok(())
    }
}

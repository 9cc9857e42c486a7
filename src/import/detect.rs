//! What a path is, told by its first bytes; and the things often found where a model should be.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Error, v0};
use crate::format;

/// What a path turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A `.thin` archive of version 1.
    Archive,
    /// A `.thin` archive of version 0.
    ArchiveV0,
    /// A folder in the layout of the Hugging Face hub.
    Folder,
    /// One safetensors file.
    Safetensors,
    /// A GGUF file, or one part of one.
    Gguf,
}

/// Finds out what a path is.
///
/// **Errors**: there is nothing, or nothing this version can run, each named.
pub fn detect(path: &Path) -> Result<Kind, Error> {
    let metadata = metadata(path)?;
    if metadata.is_dir() {
        return Ok(Kind::Folder);
    }
    let head = head(path)?;
    refuse_placeholder(path, &head)?;
    if head.starts_with(&format::MAGIC) {
        return Ok(Kind::Archive);
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        _ if super::gguf::is_gguf(&head) => Ok(Kind::Gguf),
        Some("safetensors") => Ok(Kind::Safetensors),
        _ if head.starts_with(&v0::MAGIC) => Ok(Kind::ArchiveV0),
        Some("gguf") => Ok(Kind::Gguf), // and its reader says what is wrong with it
        Some("thin") => Ok(Kind::Archive), // and its reader says what is wrong with it
        Some("bin" | "pt" | "pth" | "ckpt") => Err(Error::PickledWeights { path: path.to_owned() }),
        _ => Err(Error::UnknownFile { path: path.to_owned(), found: printable(&head) }),
    }
}

/// Metadata of what a path leads to.
pub(super) fn metadata(path: &Path) -> Result<std::fs::Metadata, Error> {
    std::fs::metadata(path).map_err(|source| {
        let path = path.to_owned();
        if source.kind() != std::io::ErrorKind::NotFound {
            return Error::Io { verb: "read", path, source };
        }
        match std::fs::read_link(&path) {
            Ok(target) => Error::DanglingLink { path, target },
            Err(_) => Error::NotFound { path },
        }
    })
}

/// Opens a regular file; a pipe or a device would block or never end.
pub(super) fn open_file(path: &Path) -> Result<File, Error> {
    if !metadata(path)?.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    File::open(path).map_err(|source| Error::Io { verb: "open", path: path.to_owned(), source })
}

/// Reads a regular file whole.
///
/// **Errors**: it is larger than `limit`.
pub(super) fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    open_file(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|source| Error::Io { verb: "read", path: path.to_owned(), source })?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

/// Refuses what is often downloaded in place of a file: a Git-LFS pointer or a web page.
pub(super) fn refuse_placeholder(path: &Path, head: &[u8]) -> Result<(), Error> {
    if head.starts_with(b"version https://git-lfs") {
        return Err(Error::LfsPointer { path: path.to_owned() });
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let starts =
        |tag: &[u8]| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    if starts(b"<!doctype") || starts(b"<html") {
        return Err(Error::Html { path: path.to_owned() });
    }
    Ok(())
}

/// [`refuse_placeholder`] for a file that is not read otherwise.
pub(super) fn refuse_placeholder_file(path: &Path) -> Result<(), Error> {
    refuse_placeholder(path, &head(path)?)
}

/// The first bytes of something, fit to print.
pub(super) fn printable(bytes: &[u8]) -> String {
    match bytes {
        [] => "nothing".to_owned(),
        _ => format!("'{}'", bytes.iter().take(8).copied().collect::<Vec<_>>().escape_ascii()),
    }
}

/// The first bytes of a file, or all of a short one.
fn head(path: &Path) -> Result<Vec<u8>, Error> {
    let mut head = Vec::new();
    let file = open_file(path)?;
    file.take(512).read_to_end(&mut head).map_err(|source| Error::Io {
        verb: "read",
        path: path.to_owned(),
        source,
    })?;
    Ok(head)
}

//! A source file mapped read-only into memory. The only `unsafe` of `import`.
//!
//! Mapping lets a converter read a checkpoint larger than memory; what it has passed is released again.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Error;

/// A file seen as bytes.
#[derive(Debug)]
pub(super) struct Map {
    path: PathBuf,
    content: Content,
}

/// Where the bytes are.
#[derive(Debug)]
enum Content {
    /// A mapped file.
    File(memmap2::Mmap),
    /// Nowhere, or in memory already.
    Memory(Vec<u8>),
}

impl Map {
    /// Maps a file.
    ///
    /// **Errors**: it cannot be opened, or is not a regular file.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = super::detect::open_file(path)?;
        let io = |source| Error::Io { verb: "map", path: path.to_owned(), source };
        let len = file.metadata().map_err(io)?.len();
        let content = if len == 0 {
            Content::Memory(Vec::new())
        } else {
            // SAFETY: the mapping is read-only and private to this value; all reads go through bounds-checked
            // slices of plain bytes. That no other process shortens or rewrites the file while a conversion
            // reads it is the caller's contract, stated in the user's documentation.
            Content::File(unsafe { memmap2::Mmap::map(&file) }.map_err(io)?)
        };
        Ok(Map { path: path.to_owned(), content })
    }

    /// Bytes that were read already, under a name for messages.
    pub(super) fn of_bytes(name: &str, bytes: Vec<u8>) -> Self {
        Map { path: name.into(), content: Content::Memory(bytes) }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its content.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::File(map) => map,
            Content::Memory(bytes) => bytes,
        }
    }

    /// Tells the system that a range will not be needed soon, so that it stops counting as used memory.
    ///
    /// Advice only: the bytes stay readable, and a system that cannot take it is not an error.
    pub(super) fn release(&self, range: Range<usize>) {
        let Content::File(map) = &self.content else { return };
        if range.start >= range.end || range.end > map.len() {
            return;
        }
        #[cfg(unix)]
        {
            // SAFETY: DONTNEED drops pages of a shared, read-only mapping of a file that nothing writes to;
            // the next access reads the same bytes from the file again, so no live slice changes.
            let advised = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    range.start,
                    range.end - range.start,
                )
            };
            if let Err(error) = advised {
                tracing::debug!(%error, path = %self.path.display(), "pages were not released");
            }
        }
    }
}

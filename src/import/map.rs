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
    map: Option<memmap2::Mmap>,
}

impl Map {
    /// Maps a file.
    ///
    /// **Errors**: it cannot be opened, or is not a regular file.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = super::detect::open_file(path)?;
        let io = |source| Error::Io { verb: "map", path: path.to_owned(), source };
        let len = file.metadata().map_err(io)?.len();
        let map = if len == 0 {
            None
        } else {
            // SAFETY: the mapping is read-only and private to this value; all reads go through bounds-checked
            // slices of plain bytes. That no other process shortens or rewrites the file while a conversion
            // reads it is the caller's contract, stated in the user's documentation.
            Some(unsafe { memmap2::Mmap::map(&file) }.map_err(io)?)
        };
        Ok(Map { path: path.to_owned(), map })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its content.
    pub(super) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Tells the system that a range will not be needed soon, so that it stops counting as used memory.
    ///
    /// Advice only: the bytes stay readable, and a system that cannot take it is not an error.
    pub(super) fn release(&self, range: Range<usize>) {
        let Some(map) = &self.map else { return };
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

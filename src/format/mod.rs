//! The `.thin` archive, version 1: what lies where, and what a reader refuses.
//!
//! ```text
//! 0    header, 4,096 bytes: magic "THINv1\0\0" · u32 version = 1 · u32 flags = 0
//!      u64 manifest_off, manifest_len · u64 table_off · u32 record_size = 128 · u32 count
//!      u64 file_len · u64 zero · archive_hash[32] · zero to 4,096
//! ...  manifest: JSON, its reserved region padded with spaces       (multiple of 4,096)
//! ...  page table: `count` records of 128 bytes                     (multiple of 4,096)
//! ...  pages, each at a multiple of 4,096, in table order, zero between them and to `file_len`
//! ```
//! Every byte is covered: `archive_hash` is the BLAKE3 of the header (with that field zero), the manifest
//! region and the page table; each record holds the BLAKE3 of its page; padding is zero and checked.
//! **A reader rejects what it does not understand.** How rows lie inside a page: [`geometry`].

pub mod check;
pub mod error;
pub mod extract;
pub mod finding;
pub mod geometry;
pub mod header;
mod journal;
pub mod manifest;
pub mod names;
pub mod reader;
pub mod record;
pub mod role;
mod sweep;
pub mod table;
pub mod unpack;
pub mod verify;
pub mod writer;

pub use error::Error;
pub use geometry::{Geometry, Plane, PlaneKind};
pub use manifest::Manifest;
pub use reader::{Archive, asset};
pub use record::{Group, PagePlace, PageRecord, groups};
pub use role::{Role, Vector};

/// First eight bytes of a version-1 archive.
pub const MAGIC: [u8; 8] = *b"THINv1\0\0";
/// Format version this module writes and reads.
pub const VERSION: u32 = 1;
/// Pages, the manifest and the table start at multiples of this, so that direct I/O can read them.
pub const PAGE_ALIGN: u64 = 4096;
/// Planes inside a page start at multiples of this: the offset alignment of GPU bindings.
pub const PLANE_ALIGN: u64 = 256;
/// Plane rows are padded to a multiple of this: one 16-byte load of a GPU.
pub const ROW_ALIGN: u64 = 16;
/// Bytes of a page record.
pub const RECORD_SIZE: u64 = 128;
/// The largest part; one part is one read, one hash, one upload, one ring slot.
pub const MAX_PART_BYTES: u64 = 32 << 20;
/// "None" in the `layer` and `expert` fields of a record.
pub const NONE: u32 = u32::MAX;
/// A manifest above this is refused before it is read.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// More pages than this are refused before the table is read.
pub const MAX_PAGES: u32 = 1 << 22;

/// Position of a page in the page table.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct PageId(pub u32);

/// A BLAKE3 digest.
pub type Hash = [u8; 32];

/// A model laid out in pages: an archive on disk, or a source that is packed as it is read.
pub trait Pages: Send + Sync {
    /// What a person would call it: the file name, or `demo`.
    fn name(&self) -> &str;

    /// What the pages mean.
    fn manifest(&self) -> &Manifest;

    /// The page table. Offsets and hashes are zero where the pages come from another kind of file.
    fn pages(&self) -> &[PageRecord];

    /// Reads a whole page into `out`, which has exactly `stored_len` bytes.
    ///
    /// **Errors**: the file cannot be read, or the page does not have the hash its record states.
    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), crate::Error>;

    /// The manifest with everything known: tensor hashes and whether storage is exact.
    ///
    /// The writer calls this once, after it has read every page in order. Until then a packer's
    /// [`Pages::manifest`] may hold zero hashes; the lengths of its lists never change. What knows its manifest
    /// from the start, as an archive does, keeps the default.
    fn finish(&self) -> Result<Manifest, crate::Error> {
        Ok(self.manifest().clone())
    }
}

/// What a long task tells its caller while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// So many bytes lie ahead.
    Start {
        /// Bytes of all pages or files.
        bytes: u64,
    },
    /// So many bytes are done, counted from the start.
    Done {
        /// Bytes finished so far.
        bytes: u64,
    },
    /// Something the user should read.
    Notice(Notice),
}

/// What a writer found beside its target. Displayed as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// An earlier run stopped half-way and `--resume` was not given.
    #[error("replacing '{file}', which an earlier run left unfinished")]
    PartialReplaced {
        /// The unfinished file.
        file: String,
    },
    /// `--resume` was given and there was nothing to go on from.
    #[error("'{file}' does not exist or has no journal, so writing starts from the beginning")]
    NothingToResume {
        /// The unfinished file that was looked for.
        file: String,
    },
    /// `--resume` was given and the unfinished file belongs to other settings or another source.
    #[error(
        "'{file}' was begun from another source or with other settings, so writing starts over"
    )]
    PlanChanged {
        /// The unfinished file.
        file: String,
    },
    /// `--resume` was given and pages of an earlier run are there.
    #[error("'{file}' already holds {pages} of {total} pages")]
    Resuming {
        /// The unfinished file.
        file: String,
        /// Pages its journal lists.
        pages: usize,
        /// Pages in all.
        total: usize,
    },
}

/// Where a long task reports to; it may be called from another thread.
pub type Progress<'a> = &'a (dyn Fn(Event) + Sync);

/// A number as people read it: `9,216`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The first 16 hex digits of a digest, enough to see that two differ.
pub(crate) fn short(hash: &Hash) -> String {
    let mut text = blake3::Hash::from_bytes(*hash).to_hex().to_string();
    text.truncate(16);
    text
}

/// `value` rounded up to a multiple of `align`, or `None` where that overflows.
#[must_use]
pub fn round_up(value: u64, align: u64) -> Option<u64> {
    value.checked_next_multiple_of(align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_in_threes() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(9_216), "9,216");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }
}

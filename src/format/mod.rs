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

pub mod geometry;
pub mod manifest;
pub mod record;
pub mod role;

use std::path::PathBuf;

pub use geometry::{Geometry, Plane, PlaneKind};
pub use manifest::Manifest;
pub use record::PageRecord;
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
}

/// What is wrong with an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {verb} '{}'", path.display())]
    Io {
        /// What was tried: "read", "write".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file does not start with the magic bytes.
    #[error("'{}' is not a .thin archive: it starts with {found}", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// The first bytes, printable.
        found: String,
    },
    /// A page has a role this version does not know.
    #[error("page {page} has role {code}, which this version does not know")]
    UnknownRole {
        /// Position in the page table.
        page: u32,
        /// The number found.
        code: u32,
    },
}

impl Error {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownRole { .. } => Some("the archive was written by a newer version".into()),
            Error::Io { .. } | Error::Magic { .. } => None,
        }
    }
}

/// `value` rounded up to a multiple of `align`, or `None` where that overflows.
#[must_use]
pub fn round_up(value: u64, align: u64) -> Option<u64> {
    value.checked_next_multiple_of(align)
}

//! One 128-byte record of the page table. The table itself is read and written by `format::table`.

use super::{Hash, Role};
use crate::quant::Format;

/// One page: one part of a matrix group, the vectors of a layer, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// Position in the table.
    pub id: u32,
    /// What the page means.
    pub role: Role,
    /// Decoder layer, or none for what belongs to the whole model.
    pub layer: Option<u32>,
    /// Expert, where the group is one expert's.
    pub expert: Option<u32>,
    /// Storage format of the codes.
    pub format: Format,
    /// Row layout; 0 is the only one so far.
    pub layout: u16,
    /// Where the page starts in the file, a multiple of 4,096.
    pub offset: u64,
    /// Bytes stored; the same as the bytes in memory, there being no compression.
    pub stored_len: u64,
    /// BLAKE3 of the stored bytes.
    pub hash: Hash,
    /// Which entry of `Manifest::descriptors` gives the geometry; meaningless for assets (0).
    pub descriptor: u32,
    /// Position of this part in its group.
    pub part: u32,
    /// First row of the group that this part holds.
    pub first_row: u32,
    /// Rows this part holds.
    pub rows: u32,
}

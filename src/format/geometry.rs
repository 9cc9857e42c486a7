//! How the rows of a matrix group lie in its pages, in the file and in memory alike.
//!
//! A group is cut into parts of `part_rows` rows (a power of two). A part holds all planes of its rows; parts
//! follow each other at a constant `part_stride`, so that row `r` of a plane is at
//! `(r >> shift) * part_stride + plane.offset + (r & mask) * plane.row_stride`.
//! A `small` page is one part whose planes are vectors; a row is then one F32 element.

use serde::{Deserialize, Serialize};

use super::{MAX_PART_BYTES, PAGE_ALIGN, PLANE_ALIGN, ROW_ALIGN, Vector, round_up};
use crate::quant::{Encoding, Format, QuantizationDescriptor};

/// What a plane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaneKind {
    /// The numbers themselves, or their low bits.
    Codes,
    /// High bits of formats whose codes are stored split.
    HighCodes,
    /// Scales.
    Scales,
    /// Scales of scales.
    SubScales,
    /// Zero points or minima.
    Zeros,
    /// One vector of a `small` page.
    Vector(Vector),
}

/// The planes of a row, in the order of `quant::encoding`.
const ROW_PLANES: [PlaneKind; 5] = [
    PlaneKind::Codes,
    PlaneKind::HighCodes,
    PlaneKind::Scales,
    PlaneKind::SubScales,
    PlaneKind::Zeros,
];

/// One plane: where its rows start within a part, and how far apart they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plane {
    /// What it holds.
    pub kind: PlaneKind,
    /// Rows in the whole group.
    pub rows: u64,
    /// Bytes from the start of a part; a multiple of 256.
    pub offset: u64,
    /// Bytes that mean something in each row.
    pub row_bytes: u64,
    /// Bytes from row to row.
    pub row_stride: u64,
}

/// The shape of a group and the place of every row. Groups that look alike share one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Storage format of the codes.
    pub format: Format,
    /// Rows of the group; 1 for a `small` page.
    pub rows: u64,
    /// Numbers per row.
    pub cols: u64,
    /// Rows per part: a power of two.
    pub part_rows: u64,
    /// Bytes from part to part: a multiple of 4,096.
    pub part_stride: u64,
    /// Planes in the order they lie.
    pub planes: Vec<Plane>,
    /// The precision stated in the terms model files use.
    pub quantization: QuantizationDescriptor,
}

impl Geometry {
    /// Layout 0 of a `[rows, cols]` matrix in a format that leaves nothing open.
    ///
    /// `None` where a size overflows, a row is not whole blocks, or a single row exceeds a part.
    #[must_use]
    pub fn matrix(format: Format, rows: u64, cols: u64) -> Option<Self> {
        Self::encoded(Encoding::plain(format), rows, cols)
    }

    /// Layout 0 of a `[rows, cols]` matrix.
    ///
    /// `None` where a size overflows, a row is not whole groups, or a single row exceeds a part.
    #[must_use]
    pub fn encoded(encoding: Encoding, rows: u64, cols: u64) -> Option<Self> {
        let row_bytes = encoding.row_bytes(cols)?;
        let planes: Vec<(PlaneKind, u64)> =
            ROW_PLANES.into_iter().zip(row_bytes).filter(|(_, bytes)| *bytes > 0).collect();
        let mut geometry = Self::with_planes(encoding.format, rows, cols, &planes)?;
        geometry.quantization = encoding.descriptor();
        Some(geometry)
    }

    /// Layout 0 of a matrix group whose rows take `row_bytes` in each of the given planes.
    #[must_use]
    pub fn with_planes(
        format: Format,
        rows: u64,
        cols: u64,
        planes: &[(PlaneKind, u64)],
    ) -> Option<Self> {
        if rows == 0 || cols == 0 || rows > u64::from(u32::MAX) || planes.is_empty() {
            return None;
        }
        let mut part_rows = largest_part(planes, rows)?;
        // A last part that is not full keeps the plane offsets of a full one, so planes after the first
        // leave a gap there. Halving the part until the gap is under 1/64 of the group costs nothing else.
        while planes.len() > 1
            && part_rows > 1
            && rows > part_rows
            && wasteful(planes, rows, part_rows)?
        {
            part_rows /= 2;
        }
        Self::in_parts(format, rows, cols, planes, part_rows)
    }

    /// The same matrix cut into parts of at most `part_rows` rows, a power of two. Archives always hold the
    /// largest parts, and a reader refuses others; smaller ones let a test cross the borders between parts,
    /// or put them into several buffers, without a matrix of 32 MiB.
    ///
    /// `None` for a `small` page, or where `part_rows` is no power of two or larger than the parts are.
    #[must_use]
    pub fn with_part_rows(&self, part_rows: u64) -> Option<Self> {
        if self.is_small() || !part_rows.is_power_of_two() || part_rows > self.part_rows {
            return None;
        }
        let planes: Vec<(PlaneKind, u64)> =
            self.planes.iter().map(|plane| (plane.kind, plane.row_bytes)).collect();
        let mut cut = Self::in_parts(self.format, self.rows, self.cols, &planes, part_rows)?;
        cut.quantization.clone_from(&self.quantization);
        Some(cut)
    }

    /// The planes placed in parts of `part_rows` rows.
    fn in_parts(
        format: Format,
        rows: u64,
        cols: u64,
        planes: &[(PlaneKind, u64)],
        part_rows: u64,
    ) -> Option<Self> {
        let planes = place(planes, rows, rows.min(part_rows))?;
        let last = planes.last()?;
        let part_bytes =
            last.offset.checked_add(last.row_stride.checked_mul(rows.min(part_rows))?)?;
        Some(Geometry {
            format,
            rows,
            cols,
            part_rows,
            part_stride: round_up(part_bytes, PAGE_ALIGN)?,
            planes,
            quantization: QuantizationDescriptor::float(format),
        })
    }

    /// A `small` page that holds these vectors, each with its length.
    #[must_use]
    pub fn small(vectors: &[(Vector, u64)]) -> Option<Self> {
        let mut offset = 0u64;
        let mut planes = Vec::with_capacity(vectors.len());
        for &(vector, len) in vectors {
            planes.push(Plane {
                kind: PlaneKind::Vector(vector),
                rows: len,
                offset,
                row_bytes: 4,
                row_stride: 4,
            });
            offset = round_up(offset.checked_add(len.checked_mul(4)?)?, PLANE_ALIGN)?;
        }
        (offset > 0 && offset <= MAX_PART_BYTES).then_some(())?;
        Some(Geometry {
            format: Format::F32,
            rows: 1,
            cols: offset / 4,
            part_rows: 1,
            part_stride: round_up(offset, PAGE_ALIGN)?,
            planes,
            quantization: QuantizationDescriptor::float(Format::F32),
        })
    }

    /// Parts of the group.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.rows.div_ceil(self.part_rows)
    }

    /// Rows of part `part`; fewer than `part_rows` in the last.
    #[must_use]
    pub fn rows_of(&self, part: u64) -> u64 {
        self.rows.saturating_sub(part.saturating_mul(self.part_rows)).min(self.part_rows)
    }

    /// Bytes a part stores: to the end of the last row of its last plane.
    #[must_use]
    pub fn part_bytes(&self, part: u64) -> u64 {
        if self.is_small() {
            return self.cols * 4;
        }
        let rows = self.rows_of(part);
        self.planes.last().map_or(0, |plane| plane.offset + plane.row_stride * rows)
    }

    /// Bytes of the whole group in memory: all parts but the last at full stride.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let parts = self.parts();
        parts.saturating_sub(1) * self.part_stride + self.part_bytes(parts.saturating_sub(1))
    }

    /// Bytes of consecutive parts in memory: all but the last at full stride.
    #[must_use]
    pub fn run_bytes(&self, parts: &std::ops::Range<u32>) -> u64 {
        let (first, end) = (u64::from(parts.start), u64::from(parts.end));
        match end.checked_sub(1) {
            Some(last) if last >= first => {
                (last - first) * self.part_stride + self.part_bytes(last)
            }
            Some(_) | None => 0,
        }
    }

    /// Bytes that mean something: rows without padding, as counted in bytes per token.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.planes.iter().map(|plane| plane.rows * plane.row_bytes).sum()
    }

    /// log2 of `part_rows`.
    #[must_use]
    pub fn shift(&self) -> u32 {
        self.part_rows.trailing_zeros()
    }

    /// Byte offset of a row within the group.
    #[must_use]
    pub fn row_offset(&self, plane: &Plane, row: u64) -> u64 {
        (row >> self.shift()) * self.part_stride
            + plane.offset
            + (row & (self.part_rows - 1)) * plane.row_stride
    }

    /// Whether this is the geometry of a `small` page.
    #[must_use]
    pub fn is_small(&self) -> bool {
        matches!(self.planes.first(), Some(Plane { kind: PlaneKind::Vector(_), .. }))
    }

    /// The planes of a row in the order of `quant::encoding`, each found in the bytes of its part by `bytes`,
    /// which is given a plane; a plane that the format does not have is empty.
    pub(crate) fn row_planes<'a>(
        &self,
        bytes: impl Fn(&Plane) -> Option<&'a [u8]>,
    ) -> Option<[&'a [u8]; 5]> {
        let mut found: [&[u8]; 5] = [&[]; 5];
        for (found, kind) in found.iter_mut().zip(ROW_PLANES) {
            if let Some(plane) = self.plane(kind) {
                *found = bytes(plane)?;
            }
        }
        Some(found)
    }

    /// The plane of a kind.
    #[must_use]
    pub fn plane(&self, kind: PlaneKind) -> Option<&Plane> {
        self.planes.iter().find(|plane| plane.kind == kind)
    }

    /// Whether the numbers agree with each other, so that no later sum can overflow or leave a page.
    ///
    /// A geometry read from a file must be what [`Geometry::with_planes`] or [`Geometry::small`] would have
    /// made; anything else is a layout this version does not know.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let rebuilt = if self.is_small() {
            let vectors: Option<Vec<_>> = self
                .planes
                .iter()
                .map(|plane| match plane.kind {
                    PlaneKind::Vector(vector) => Some((vector, plane.rows)),
                    _ => None,
                })
                .collect();
            vectors.and_then(|vectors| Geometry::small(&vectors))
        } else {
            Encoding::of(&self.quantization)
                .filter(|encoding| encoding.format == self.format)
                .and_then(|encoding| Geometry::encoded(encoding, self.rows, self.cols))
        };
        rebuilt.is_some_and(|mut rebuilt| {
            rebuilt.quantization.clone_from(&self.quantization);
            rebuilt == *self
        })
    }
}

/// The largest power of two of rows that keeps a part at or under 32 MiB.
fn largest_part(planes: &[(PlaneKind, u64)], rows: u64) -> Option<u64> {
    let mut part_rows = rows.checked_next_power_of_two()?;
    while part_rows >= 1 {
        let held = rows.min(part_rows);
        if let Some(placed) = place(planes, rows, held)
            && let Some(last) = placed.last()
            && last.row_stride.checked_mul(held).and_then(|bytes| bytes.checked_add(last.offset))?
                <= MAX_PART_BYTES
        {
            return Some(part_rows);
        }
        part_rows /= 2;
    }
    None
}

/// Whether the gaps in the last part exceed 1/64 of the group.
fn wasteful(planes: &[(PlaneKind, u64)], rows: u64, part_rows: u64) -> Option<bool> {
    let missing = rows.next_multiple_of(part_rows) - rows;
    let mut gap = 0u64;
    let mut total = 0u64;
    for (index, (_, row_bytes)) in planes.iter().enumerate() {
        let stride = round_up(*row_bytes, ROW_ALIGN)?;
        total = total.checked_add(stride.checked_mul(rows)?)?;
        if index + 1 < planes.len() {
            gap = gap.checked_add(stride.checked_mul(missing)?)?;
        }
    }
    Some(gap > total / 64)
}

/// Places each plane behind the one before it, for parts of `held` rows.
fn place(planes: &[(PlaneKind, u64)], rows: u64, held: u64) -> Option<Vec<Plane>> {
    let mut offset = 0u64;
    let mut placed = Vec::with_capacity(planes.len());
    for &(kind, row_bytes) in planes {
        let row_stride = round_up(row_bytes, ROW_ALIGN)?;
        placed.push(Plane { kind, rows, offset, row_bytes, row_stride });
        offset = round_up(offset.checked_add(row_stride.checked_mul(held)?)?, PLANE_ALIGN)?;
    }
    Some(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_matrix_is_one_part_and_pads_rows_to_sixteen_bytes() {
        let geometry = Geometry::matrix(Format::BF16, 7, 9).expect("fits");

        assert_eq!(geometry.parts(), 1);
        assert_eq!(geometry.part_rows, 8);
        assert_eq!(geometry.planes[0].row_bytes, 18);
        assert_eq!(geometry.planes[0].row_stride, 32);
        assert_eq!(geometry.part_bytes(0), 7 * 32);
        assert_eq!(geometry.part_stride, 4096);
    }

    #[test]
    fn a_large_matrix_is_cut_at_the_largest_power_of_two_below_32_mib() {
        // 4,096 bytes a row: 8,192 rows are exactly 32 MiB.
        let geometry = Geometry::matrix(Format::BF16, 22_016, 2_048).expect("fits");

        assert_eq!(geometry.part_rows, 8_192);
        assert_eq!(geometry.parts(), 3);
        assert_eq!(geometry.rows_of(2), 22_016 - 2 * 8_192);
        assert_eq!(geometry.bytes(), 22_016 * 4_096);
        assert_eq!(geometry.row_offset(&geometry.planes[0], 8_193), (32 << 20) + 4_096);
    }

    #[test]
    fn a_group_of_several_planes_wastes_little_in_its_last_part() {
        let planes = [(PlaneKind::Codes, 1_024), (PlaneKind::Scales, 64)];
        let geometry = Geometry::with_planes(Format::Bytes, 22_016, 2_048, &planes).expect("fits");

        let payload = geometry.payload_bytes();
        assert!(geometry.bytes() - payload <= payload / 50, "{geometry:?}");
        assert!(geometry.part_stride <= MAX_PART_BYTES);
    }

    #[test]
    fn a_matrix_cut_smaller_keeps_its_rows_and_is_no_archive_layout() {
        let whole = Geometry::matrix(Format::F16, 300, 40).expect("fits");

        let cut = whole.with_part_rows(64).expect("a power of two");

        // 64 rows of 80 bytes are 5,120, so parts are two alignments apart; 300 = 4 * 64 + 44.
        assert_eq!((cut.parts(), cut.part_stride, cut.rows_of(4)), (5, 8_192, 44));
        assert_eq!(cut.row_offset(&cut.planes[0], 65), 8_192 + 80);
        assert_eq!(cut.payload_bytes(), whole.payload_bytes());
        assert!(!cut.is_consistent());
        assert_eq!(whole.with_part_rows(48), None);
        assert_eq!(whole.with_part_rows(1024), None);
    }

    #[test]
    fn a_row_above_32_mib_or_an_overflowing_size_is_refused() {
        assert!(Geometry::matrix(Format::F32, 2, (32 << 20) / 4 + 1).is_none());
        assert!(Geometry::matrix(Format::F32, 2, u64::MAX / 2).is_none());
        assert!(Geometry::matrix(Format::F32, u64::MAX, 4).is_none());
        assert!(Geometry::matrix(Format::F32, 0, 4).is_none());
    }

    #[test]
    fn a_geometry_with_one_number_changed_is_inconsistent() {
        let good = Geometry::matrix(Format::F16, 300, 40).expect("fits");
        assert!(good.is_consistent());

        let mut bad = good.clone();
        bad.planes[0].row_stride += 16;
        assert!(!bad.is_consistent());

        let mut bad = good.clone();
        bad.part_rows = 0;
        assert!(!bad.is_consistent());

        let mut bad = good;
        bad.planes[0].kind = PlaneKind::Vector(Vector::AttnNorm);
        assert!(!bad.is_consistent());
    }
}

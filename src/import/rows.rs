//! Moving rows from a source tensor into a page.

use std::ops::Range;

use super::groups::Member;
use crate::format::{Geometry, Plane, PlaneKind};
use crate::quant::{Format, float};

/// The rows of a member that lie in one part of its group.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    plane: &'a Plane,
    /// Row of the source tensor that the first is.
    pub(super) source_row: u64,
    /// How many.
    pub(super) count: u64,
    /// Row of the part that the first becomes.
    part_row: u64,
    row_step: u64,
    /// Format of the source.
    format: Format,
}

impl<'a> Rows<'a> {
    /// `None` where a number overflows, or the member has no plane.
    pub(super) fn of(
        member: &Member,
        geometry: &'a Geometry,
        part: u64,
        format: Format,
    ) -> Option<Self> {
        let plane = geometry.planes.get(member.plane as usize)?;
        let (start, rows) = match geometry.is_small() {
            true => (0, plane.rows),
            false => (part.checked_mul(geometry.part_rows)?, geometry.rows_of(part)),
        };
        // Row i of the member is row `first_row + i * row_step` of the group.
        let before = |row: u64| row.saturating_sub(member.first_row).div_ceil(member.row_step);
        let first = before(start).min(member.rows);
        let end = before(start.checked_add(rows)?).min(member.rows);
        let group_row = member.row_step.checked_mul(first)?.checked_add(member.first_row)?;
        Some(Rows {
            plane,
            source_row: member.source_row.checked_add(first)?,
            count: end - first,
            part_row: group_row.saturating_sub(start),
            row_step: member.row_step,
            format,
        })
    }

    /// Where the rows lie in the bytes of the source tensor.
    pub(super) fn source(&self) -> Option<Range<usize>> {
        let width = match self.plane.kind {
            PlaneKind::Vector(_) => u64::from(self.format.bits()) / 8,
            _ => self.plane.row_bytes,
        };
        let start = self.source_row.checked_mul(width)?;
        let end = self.count.checked_mul(width)?.checked_add(start)?;
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// Copies the rows, given as the source's bytes, into a part; 16-bit vectors are widened to F32.
    ///
    /// `None` where they would leave the part.
    pub(super) fn pack(&self, source: &[u8], part: &mut [u8]) -> Option<()> {
        if self.count == 0 {
            return Some(());
        }
        let start =
            self.part_row.checked_mul(self.plane.row_stride)?.checked_add(self.plane.offset)?;
        let out = part.get_mut(usize::try_from(start).ok()?..)?;
        let stride = usize::try_from(self.plane.row_stride.checked_mul(self.row_step)?).ok()?;
        let width = usize::try_from(self.plane.row_bytes).ok()?;
        let needed =
            usize::try_from(self.count - 1).ok()?.checked_mul(stride)?.checked_add(width)?;
        let out = out.get_mut(..needed)?;
        let widen: fn(u16) -> f32 = match (self.plane.kind, self.format) {
            (PlaneKind::Vector(_), Format::BF16) => float::bf16_to_f32,
            (PlaneKind::Vector(_), Format::F16) => float::f16_to_f32,
            _ if stride == width => {
                out.copy_from_slice(source);
                return Some(());
            }
            _ => {
                for (out, row) in out.chunks_mut(stride).zip(source.chunks_exact(width)) {
                    out.get_mut(..width)?.copy_from_slice(row);
                }
                return Some(());
            }
        };
        for (out, half) in out.chunks_mut(stride).zip(source.as_chunks::<2>().0) {
            let value = widen(u16::from_le_bytes(*half)).to_le_bytes();
            out.get_mut(..width)?.copy_from_slice(&value);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rows: u64, first_row: u64, row_step: u64) -> Member {
        Member { tensor: 0, plane: 0, source_row: 0, rows, first_row, row_step }
    }

    #[test]
    fn alternating_members_cut_by_a_part_start_at_the_right_row() {
        // 2 x 9,000 rows of 4,096 bytes: parts of 8,192 rows, so 4,096 rows of each member in a part.
        let geometry = Geometry::matrix(Format::F32, 18_000, 1_024).expect("fits");
        let of = |first_row, part| {
            let member = member(9_000, first_row, 2);
            let rows = Rows::of(&member, &geometry, part, Format::F32).expect("fits");
            (rows.source_row, rows.count, rows.part_row)
        };

        assert_eq!(geometry.part_rows, 8_192);
        assert_eq!(of(0, 0), (0, 4_096, 0));
        assert_eq!(of(1, 0), (0, 4_096, 1));
        assert_eq!(of(0, 2), (8_192, 808, 0));
        assert_eq!(of(1, 2), (8_192, 808, 1));
    }

    #[test]
    fn members_that_follow_each_other_share_the_part_where_one_ends() {
        let geometry = Geometry::matrix(Format::F32, 16_400, 1_024).expect("fits");
        let of = |rows, first_row, part| {
            let member = member(rows, first_row, 1);
            let rows = Rows::of(&member, &geometry, part, Format::F32).expect("fits");
            (rows.source_row, rows.count, rows.part_row)
        };

        assert_eq!(of(10_000, 0, 1), (8_192, 1_808, 0));
        assert_eq!(of(6_400, 10_000, 0), (0, 0, 10_000));
        assert_eq!(of(6_400, 10_000, 1), (0, 6_384, 1_808));
        assert_eq!(of(6_400, 10_000, 2), (6_384, 16, 0));
    }

    #[test]
    fn rows_that_would_leave_the_part_are_not_packed() {
        let geometry = Geometry::matrix(Format::F32, 4, 4).expect("fits");
        let rows = Rows::of(&member(4, 0, 1), &geometry, 0, Format::F32).expect("fits");

        assert_eq!(rows.pack(&[1; 64], &mut [0; 63]), None);
        assert_eq!(rows.pack(&[1; 64], &mut [0; 64]), Some(()));
    }
}

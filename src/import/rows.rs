//! Moving rows from a source tensor into a page.

use std::borrow::Cow;
use std::ops::Range;

use super::groups::Member;
use crate::format::{Geometry, Plane, PlaneKind};

/// The rows of a member that lie in one part of its group.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    member: &'a Member,
    /// The planes that a row fills: one of a vector, all of a matrix.
    planes: &'a [Plane],
    /// Row of the source tensor that the first is, in the order of the group.
    pub(super) source_row: u64,
    /// How many.
    pub(super) count: u64,
    /// Row of the part that the first becomes.
    part_row: u64,
}

impl<'a> Rows<'a> {
    /// `None` where a number overflows, or the member has no plane.
    pub(super) fn of(member: &'a Member, geometry: &'a Geometry, part: u64) -> Option<Self> {
        let at = member.plane as usize;
        let plane = geometry.planes.get(at)?;
        let (start, rows) = match geometry.is_small() {
            true => (0, plane.rows),
            false => (part.checked_mul(geometry.part_rows)?, geometry.rows_of(part)),
        };
        let planes = match geometry.is_small() {
            true => geometry.planes.get(at..=at)?,
            false => geometry.planes.as_slice(),
        };
        // Row i of the member is row `first_row + i * row_step` of the group.
        let before = |row: u64| row.saturating_sub(member.first_row).div_ceil(member.row_step);
        let first = before(start).min(member.rows);
        let end = before(start.checked_add(rows)?).min(member.rows);
        let group_row = member.row_step.checked_mul(first)?.checked_add(member.first_row)?;
        Some(Rows {
            member,
            planes,
            source_row: member.source_row.checked_add(first)?,
            count: end - first,
            part_row: group_row.saturating_sub(start),
        })
    }

    /// Where the rows lie in the bytes of the source tensor, the rest of their heads included.
    pub(super) fn range(&self) -> Option<Range<usize>> {
        let (mut start, mut end) = (self.source_row, self.source_row.checked_add(self.count)?);
        if let Some(head_rows) = self.member.coding.head_rows {
            start = start / head_rows * head_rows;
            end = end.checked_next_multiple_of(head_rows)?;
        }
        let width = self.member.coding.source_bytes()?;
        let place = |row: u64| usize::try_from(row).ok()?.checked_mul(width);
        Some(place(start)?..place(end)?)
    }

    /// The bytes of each row in the source tensor, given whole.
    fn each<'s>(&self, tensor: &'s [u8]) -> impl Iterator<Item = Option<&'s [u8]>> {
        let coding = self.member.coding;
        let width = coding.source_bytes().unwrap_or(usize::MAX);
        (self.source_row..self.source_row + self.count).map(move |row| {
            let start = usize::try_from(coding.source_row(row)).ok()?.checked_mul(width)?;
            tensor.get(start..start.checked_add(width)?)
        })
    }

    /// What `extract` is to give for the rows.
    pub(super) fn listed<'s>(&self, tensor: &'s [u8]) -> Option<Cow<'s, [u8]>> {
        let coding = self.member.coding;
        if coding.is_exact() && coding.in_order() {
            return Some(Cow::Borrowed(tensor.get(self.range()?)?));
        }
        let mut listed = Vec::new();
        self.each(tensor).try_for_each(|row| coding.list(row?, &mut listed))?;
        Some(Cow::Owned(listed))
    }

    /// Writes the rows, given the source tensor whole, into a part.
    ///
    /// `None` where they would leave the part, or are not what their type says.
    pub(super) fn pack(&self, tensor: &[u8], part: &mut [u8]) -> Option<()> {
        if self.count == 0 {
            return Some(());
        }
        let coding = self.member.coding;
        if let [plane] = self.planes
            && plane.row_stride == plane.row_bytes
            && self.member.row_step == 1
            && coding.in_order()
            && coding.source_bytes()? as u64 == plane.row_bytes
            && coding.source.encoding().is_some_and(|encoding| encoding == coding.stored)
        {
            let start = self.part_row.checked_mul(plane.row_stride)?.checked_add(plane.offset)?;
            let source = tensor.get(self.range()?)?;
            let start = usize::try_from(start).ok()?;
            part.get_mut(start..start.checked_add(source.len())?)?.copy_from_slice(source);
            return Some(());
        }
        let widths = self.widths();
        let mut packed = vec![0; widths.iter().sum()];
        for (nth, row) in self.each(tensor).enumerate() {
            coding.pack(row?, &widths, &mut packed)?;
            let part_row = (nth as u64).checked_mul(self.member.row_step)?;
            let part_row = part_row.checked_add(self.part_row)?;
            let mut rest = packed.as_slice();
            for plane in self.planes {
                let (bytes, after) = rest.split_at_checked(plane.row_bytes as usize)?;
                let start = part_row.checked_mul(plane.row_stride)?.checked_add(plane.offset)?;
                let start = usize::try_from(start).ok()?;
                part.get_mut(start..start.checked_add(bytes.len())?)?.copy_from_slice(bytes);
                rest = after;
            }
        }
        Some(())
    }

    /// Bytes of a row in each plane, in the order of `quant::encoding`.
    fn widths(&self) -> [usize; 5] {
        let of = |kind| {
            let plane = self.planes.iter().find(|plane| plane.kind == kind);
            plane.map_or(0, |plane| plane.row_bytes as usize)
        };
        if let [Plane { kind: PlaneKind::Vector(_), row_bytes, .. }] = self.planes {
            return [*row_bytes as usize, 0, 0, 0, 0];
        }
        [
            of(PlaneKind::Codes),
            of(PlaneKind::HighCodes),
            of(PlaneKind::Scales),
            of(PlaneKind::SubScales),
            of(PlaneKind::Zeros),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::coding::Coding;
    use super::*;
    use crate::quant::gguf::TensorType;
    use crate::quant::{Encoding, Format};

    fn member(rows: u64, first_row: u64, row_step: u64, cols: u64) -> Member {
        let coding = Coding {
            source: TensorType::F32,
            stored: Encoding::plain(Format::F32),
            listed: TensorType::F32,
            cols,
            vector: false,
            head_rows: None,
            reordered: false,
        };
        Member { tensor: 0, plane: 0, source_row: 0, rows, first_row, row_step, coding }
    }

    #[test]
    fn alternating_members_cut_by_a_part_start_at_the_right_row() {
        // 2 x 9,000 rows of 4,096 bytes: parts of 8,192 rows, so 4,096 rows of each member in a part.
        let geometry = Geometry::matrix(Format::F32, 18_000, 1_024).expect("fits");
        let of = |first_row, part| {
            let member = member(9_000, first_row, 2, 1_024);
            let rows = Rows::of(&member, &geometry, part).expect("fits");
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
            let member = member(rows, first_row, 1, 1_024);
            let rows = Rows::of(&member, &geometry, part).expect("fits");
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
        let member = member(4, 0, 1, 4);
        let rows = Rows::of(&member, &geometry, 0).expect("fits");

        assert_eq!(rows.pack(&[1; 64], &mut [0; 63]), None);
        assert_eq!(rows.pack(&[1; 64], &mut [0; 64]), Some(()));
    }
}

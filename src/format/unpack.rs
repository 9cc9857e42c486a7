//! The inverse of packing: source rows out of the pages that hold them. `extract`, `verify` and the
//! importer's check of exactness share it. Start at [`unpack_piece`].
//!
//! A *source row* is what a group row holds of one tensor: a whole row of a matrix, one element of a vector.

use std::ops::Range;

use super::manifest::{Piece, Tensor, Transform, permuted_row};
use super::{Error, Geometry, PageId, Pages, Plane, PlaneKind};
use crate::quant::float::{f32_to_bf16_exact, f32_to_f16_exact};
use crate::quant::gguf::{TensorType, join};
use crate::quant::{Encoding, Format};

/// The largest head accepted, so that a head of rows can be held while it is reordered.
const MAX_HEAD_ROWS: u64 = 4096;

/// Bytes of one number of a source's number type, by the name safetensors gives it.
#[must_use]
pub fn dtype_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        "BF16" | "F16" | "U16" | "I16" => Some(2),
        "F32" | "U32" | "I32" => Some(4),
        "F64" | "U64" | "I64" => Some(8),
        _ => None,
    }
}

/// Bytes of a tensor, or of whole trailing dimensions of one: `None` for an unknown type, part of a block, or
/// more than can be counted.
#[must_use]
pub fn bytes_of(dtype: &str, dims: &[u64]) -> Option<u64> {
    let count = dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim))?;
    match dtype_bytes(dtype) {
        Some(size) => count.checked_mul(size),
        None => block_type(dtype)?.bytes(count),
    }
}

/// The block type of this name, if its tensors can be given back.
#[must_use]
pub fn block_type(dtype: &str) -> Option<TensorType> {
    TensorType::from_name(dtype).filter(|found| found.splits())
}

/// How a stored row becomes a source row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowInverse {
    /// Bytes of a source row.
    pub source_bytes: u64,
    inverse: Inverse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inverse {
    /// The bytes are the source's.
    Copy,
    /// The stored F32 numbers are narrowed to this float.
    Narrow(Format),
    /// Planes are put together to blocks.
    Join(TensorType),
    /// The numbers that the planes stand for.
    Decode(Encoding),
}

impl RowInverse {
    /// The inverse for `tensor` in `plane`, or `None` where number type, transforms and plane contradict
    /// each other.
    #[must_use]
    pub fn of(tensor: &Tensor, geometry: &Geometry, plane: &Plane) -> Option<Self> {
        let is_vector = match plane.kind {
            PlaneKind::Codes => false,
            PlaneKind::Vector(_) => true,
            PlaneKind::HighCodes | PlaneKind::Scales | PlaneKind::SubScales | PlaneKind::Zeros => {
                return None;
            }
        };
        let mut transform = tensor.transform.as_slice();
        if let [Transform::RowPermutation { head_rows }, rest @ ..] = transform {
            let rows = tensor.shape.first().copied().unwrap_or(0);
            let fits = *head_rows >= 2 && head_rows % 2 == 0 && rows.is_multiple_of(*head_rows);
            (fits && *head_rows <= MAX_HEAD_ROWS).then_some(())?;
            transform = rest;
        }
        let stored = geometry.format;
        let size = dtype_bytes(&tensor.dtype);
        let (source_bytes, inverse) = match transform {
            [] => {
                let as_it_is = stored == Format::Bytes || float_of(&tensor.dtype) == Some(stored);
                (as_it_is && plane.row_bytes.is_multiple_of(size?))
                    .then_some((plane.row_bytes, Inverse::Copy))?
            }
            [Transform::WidenF32] => {
                let narrow = float_of(&tensor.dtype).filter(|_| stored == Format::F32)?;
                let inverse = match narrow {
                    Format::F32 => Inverse::Copy,
                    _ => Inverse::Narrow(narrow),
                };
                (plane.row_bytes / 4 * size?, inverse)
            }
            [Transform::PlaneSplit { layout }] if !is_vector => {
                let source = block_type(&tensor.dtype)?;
                let fits = *layout == stored && source.encoding()?.format == stored;
                (source.bytes(geometry.cols).filter(|_| fits)?, Inverse::Join(source))
            }
            [Transform::Int8Groups { source_type }] if !is_vector => {
                let encoding = Encoding::of(&geometry.quantization)?;
                let source = TensorType::from_name(source_type)?.encoding()?;
                let fits = source == encoding && stored == Format::Int8 && tensor.dtype == "F32";
                (geometry.cols.checked_mul(4).filter(|_| fits)?, Inverse::Decode(encoding))
            }
            _ => return None,
        };
        Some(RowInverse { source_bytes, inverse })
    }
}

/// Appends to `out` the source bytes of those rows of `piece` that lie in part `part` of its group, in
/// source order, and returns which source rows they are; none where the part holds no row of the piece.
///
/// `page` is the part's stored bytes. Parts taken in order give the rows of a piece in order.
///
/// **Errors**: the piece does not lie inside the page, or a number was never of the source's type.
pub fn unpack_piece(
    geometry: &Geometry,
    tensor: &Tensor,
    piece: &Piece,
    part: u64,
    page: &[u8],
    out: &mut Vec<u8>,
) -> Result<Range<u64>, Error> {
    let unfit = || Error::NotUnpackable { tensor: tensor.name.clone(), page: piece.page };
    let plane = geometry.planes.get(piece.plane as usize).ok_or_else(unfit)?;
    let inverse = RowInverse::of(tensor, geometry, plane).ok_or_else(unfit)?;
    let steps = rows_in_part(geometry, piece, part).ok_or_else(unfit)?;

    let count = steps.end - steps.start;
    let bytes = inverse.source_bytes.checked_mul(count).ok_or_else(unfit)?;
    // An INT8 row stands for at most four times its bytes.
    if bytes > 4 * page.len() as u64 {
        return Err(unfit());
    }
    out.reserve(bytes as usize);
    let mut numbers = Vec::new();
    for step in steps.clone() {
        let row = piece.first_row + step * piece.row_step;
        let planes = || {
            geometry.row_planes(|plane| stored_row(geometry, plane, row, page)).ok_or_else(unfit)
        };
        let stored = stored_row(geometry, plane, row, page).ok_or_else(unfit)?;
        match inverse.inverse {
            Inverse::Copy => out.extend_from_slice(stored),
            Inverse::Join(source) => join_row(source, &planes()?, out).ok_or_else(unfit)?,
            Inverse::Decode(encoding) => {
                numbers.resize(geometry.cols as usize, 0.0);
                encoding.decode(&planes()?, &mut numbers);
                numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }
            Inverse::Narrow(narrow) => {
                for number in stored.as_chunks::<4>().0 {
                    let value = f32::from_le_bytes(*number);
                    let bits = match narrow {
                        Format::BF16 => f32_to_bf16_exact(value),
                        Format::F16 => f32_to_f16_exact(value),
                        _ => None,
                    };
                    let bits = bits.ok_or_else(|| Error::NotNarrowable {
                        tensor: tensor.name.clone(),
                        dtype: tensor.dtype.clone(),
                        row: piece.source_row.saturating_add(step),
                        value,
                    })?;
                    out.extend_from_slice(&bits.to_le_bytes());
                }
            }
        }
    }
    let first = piece.source_row.checked_add(steps.start).ok_or_else(unfit)?;
    Ok(first..first.saturating_add(count))
}

/// Appends the blocks of a row whose planes are given.
fn join_row(source: TensorType, planes: &[&[u8]; 5], out: &mut Vec<u8>) -> Option<()> {
    let format = source.encoding()?.format;
    let widths = format.layout()?.bytes.map(|bytes| bytes as usize);
    let block_bytes = source.block_bytes() as usize;
    let blocks = planes[0].len() / widths[0];
    for block in 0..blocks {
        let mut of_block: [&[u8]; 5] = [&[]; 5];
        for ((of_block, plane), width) in of_block.iter_mut().zip(planes).zip(widths) {
            *of_block = plane.get(block * width..(block + 1) * width)?;
        }
        let start = out.len();
        out.resize(start + block_bytes, 0);
        join(format, &of_block, out.get_mut(start..)?);
    }
    Some(())
}

/// Parts of the group that `piece` reaches into, or `None` where its numbers overflow.
#[must_use]
pub fn parts_of(geometry: &Geometry, piece: &Piece) -> Option<Range<u64>> {
    if piece.rows == 0 {
        return Some(0..0);
    }
    let last = last_row(piece)?;
    if geometry.is_small() {
        return Some(0..1);
    }
    Some(piece.first_row >> geometry.shift()..(last >> geometry.shift()) + 1)
}

/// The last group row of a piece that has rows.
pub(super) fn last_row(piece: &Piece) -> Option<u64> {
    piece.rows.checked_sub(1)?.checked_mul(piece.row_step)?.checked_add(piece.first_row)
}

/// Rows of the piece, counted from its start, that lie in the part.
fn rows_in_part(geometry: &Geometry, piece: &Piece, part: u64) -> Option<Range<u64>> {
    if piece.row_step == 0 {
        return None;
    }
    last_row(piece)?;
    if geometry.is_small() {
        return (part == 0).then_some(0..piece.rows);
    }
    let first = part.checked_mul(geometry.part_rows)?;
    let end = first.checked_add(geometry.rows_of(part))?;
    let step_of =
        |row: u64| row.saturating_sub(piece.first_row).div_ceil(piece.row_step).min(piece.rows);
    Some(step_of(first)..step_of(end))
}

/// The meaningful bytes of a group row, found in the page of its part.
pub(super) fn stored_row<'a>(
    geometry: &Geometry,
    plane: &Plane,
    row: u64,
    page: &'a [u8],
) -> Option<&'a [u8]> {
    let within = if geometry.is_small() { row } else { row & (geometry.part_rows - 1) };
    let start = within.checked_mul(plane.row_stride)?.checked_add(plane.offset)?;
    let end = start.checked_add(plane.row_bytes)?;
    page.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

fn float_of(dtype: &str) -> Option<Format> {
    match dtype {
        "BF16" => Some(Format::BF16),
        "F16" => Some(Format::F16),
        "F32" => Some(Format::F32),
        _ => None,
    }
}

/// The pages read last. Tensors of one group follow each other, so two are enough to read most pages once.
pub(super) struct Recent<'a> {
    pages: &'a dyn Pages,
    held: [Option<(PageId, Vec<u8>)>; 2],
}

impl<'a> Recent<'a> {
    pub(super) fn new(pages: &'a dyn Pages) -> Self {
        Recent { pages, held: [None, None] }
    }

    /// The bytes of a page.
    pub(super) fn page(&mut self, id: PageId) -> Result<&[u8], crate::Error> {
        let [first, second] = &mut self.held;
        if !matches!(first, Some((held, _)) if *held == id) {
            std::mem::swap(first, second);
        }
        if !matches!(first, Some((held, _)) if *held == id) {
            let count = self.pages.pages().len();
            let record = self.pages.pages().get(id.0 as usize).ok_or_else(|| {
                Error::NoSuchPage { file: self.pages.name().into(), page: id.0, count }
            })?;
            let (_, mut bytes) = first.take().unwrap_or((id, Vec::new()));
            bytes.resize(record.stored_len as usize, 0);
            self.pages.read(id, &mut bytes)?;
            *first = Some((id, bytes));
        }
        Ok(first.as_ref().map_or(&[], |(_, bytes)| bytes))
    }

    /// Gives `each` the source bytes of a tensor, in order, a part of a piece or a head at a time.
    pub(super) fn tensor(
        &mut self,
        tensor: &Tensor,
        mut each: impl FnMut(&[u8]) -> Result<(), crate::Error>,
    ) -> Result<(), crate::Error> {
        let Some(head_rows) = tensor.permuted() else {
            return self.rows(tensor, each);
        };
        let unfit = || Error::NotUnpackable { tensor: tensor.name.clone(), page: 0 };
        let rows: u64 = tensor.pieces.iter().map(|piece| piece.rows).sum();
        let bytes = bytes_of(&tensor.dtype, &tensor.shape).ok_or_else(unfit)?;
        let row_bytes = bytes.checked_div(rows).ok_or_else(unfit)? as usize;
        let head_bytes = row_bytes * head_rows as usize;
        let mut held: Vec<u8> = Vec::new();
        let mut head = vec![0; head_bytes];
        self.rows(tensor, |bytes| {
            held.extend_from_slice(bytes);
            let whole = held.len() / head_bytes.max(1) * head_bytes;
            for permuted in held.get(..whole).unwrap_or_default().chunks_exact(head_bytes.max(1)) {
                for (row, bytes) in (0..).zip(permuted.chunks_exact(row_bytes)) {
                    let start = permuted_row(head_rows, row) as usize * row_bytes;
                    let target = head.get_mut(start..start + row_bytes).ok_or_else(unfit)?;
                    target.copy_from_slice(bytes);
                }
                each(&head)?;
            }
            held.drain(..whole);
            Ok(())
        })
    }

    /// Gives `each` the rows of a tensor in the order they have after its permutation.
    fn rows(
        &mut self,
        tensor: &Tensor,
        mut each: impl FnMut(&[u8]) -> Result<(), crate::Error>,
    ) -> Result<(), crate::Error> {
        let mut pieces = tensor.pieces.clone();
        pieces.sort_by_key(|piece| piece.source_row);
        let mut out = Vec::new();
        for piece in &pieces {
            let unfit = || Error::NotUnpackable { tensor: tensor.name.clone(), page: piece.page };
            let pages = self.pages;
            let record = pages.pages().get(piece.page as usize).ok_or_else(unfit)?;
            let geometry =
                pages.manifest().descriptors.get(record.descriptor as usize).ok_or_else(unfit)?;
            for part in parts_of(geometry, piece).ok_or_else(unfit)? {
                let id = u64::from(piece.page)
                    .checked_add(part)
                    .and_then(|id| u32::try_from(id).ok())
                    .ok_or_else(unfit)?;
                out.clear();
                unpack_piece(geometry, tensor, piece, part, self.page(PageId(id))?, &mut out)?;
                each(&out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Manifest, PageRecord, Role, Vector};
    use super::*;

    fn tensor(dtype: &str, transform: &[Transform]) -> Tensor {
        Tensor {
            name: "t".into(),
            file: 0,
            dtype: dtype.into(),
            shape: vec![],
            hash: [0; 32],
            transform: transform.to_vec(),
            pieces: vec![],
        }
    }

    fn piece(source_row: u64, rows: u64, first_row: u64, row_step: u64) -> Piece {
        Piece { page: 0, plane: 0, source_row, rows, first_row, row_step }
    }

    #[test]
    fn every_second_row_is_taken_and_row_padding_dropped() {
        // Rows of 9 bf16 numbers are 18 bytes in 32.
        let geometry = Geometry::matrix(Format::BF16, 6, 9).expect("fits");
        let page: Vec<u8> = (0..6u8).flat_map(|row| [row; 32]).collect();
        let mut out = Vec::new();

        let rows =
            unpack_piece(&geometry, &tensor("BF16", &[]), &piece(10, 3, 1, 2), 0, &page, &mut out)
                .expect("fits");

        let want: Vec<u8> = [1u8, 3, 5].iter().flat_map(|&row| [row; 18]).collect();
        assert_eq!(rows, 10..13);
        assert_eq!(out, want);
    }

    #[test]
    fn parts_share_the_rows_of_a_piece_among_them() {
        // 8,192 rows a part; every second row from 1 to 16,401: 4,096 in each of two parts, 9 in the last.
        let geometry = Geometry::matrix(Format::BF16, 20_000, 2_048).expect("fits");
        let piece = piece(0, 8_201, 1, 2);

        assert_eq!(parts_of(&geometry, &piece), Some(0..3));
        assert_eq!(rows_in_part(&geometry, &piece, 0), Some(0..4_096));
        assert_eq!(rows_in_part(&geometry, &piece, 1), Some(4_096..8_192));
        assert_eq!(rows_in_part(&geometry, &piece, 2), Some(8_192..8_201));
    }

    #[test]
    fn widened_vectors_are_narrowed_and_values_between_are_refused() {
        let geometry = Geometry::small(&[(Vector::AttnNorm, 2)]).expect("fits");
        let mut page = vec![0; geometry.part_bytes(0) as usize];
        page[0..4].copy_from_slice(&1.5f32.to_le_bytes());
        page[4..8].copy_from_slice(&(-2.0f32).to_le_bytes());
        let tensor = tensor("BF16", &[Transform::WidenF32]);
        let mut out = Vec::new();

        unpack_piece(&geometry, &tensor, &piece(0, 2, 0, 1), 0, &page, &mut out).expect("exact");
        assert_eq!(out, [0xc0, 0x3f, 0x00, 0xc0]);

        page[4..8].copy_from_slice(&1.000_000_1f32.to_le_bytes());
        let error = unpack_piece(&geometry, &tensor, &piece(0, 2, 0, 1), 0, &page, &mut out)
            .expect_err("not a bf16");
        assert!(error.to_string().starts_with("row 1 of tensor 't'"), "{error}");
    }

    #[test]
    fn numbers_that_leave_the_page_or_overflow_are_refused() {
        let geometry = Geometry::matrix(Format::F32, 4, 4).expect("fits");
        let page = [0; 64];
        for bad in [
            piece(0, 5, 0, 1),
            piece(0, u64::MAX, 0, u64::MAX),
            piece(0, 2, u64::MAX, 1),
            piece(0, 1, 0, 0),
            Piece { plane: 9, ..piece(0, 1, 0, 1) },
        ] {
            let mut out = Vec::new();
            let result = unpack_piece(&geometry, &tensor("F32", &[]), &bad, 0, &page, &mut out);
            // Rows beyond the part belong to another part; the rest is refused.
            if let Ok(rows) = result {
                assert!(rows.end - rows.start <= 4, "{bad:?}");
            }
        }
    }

    /// Pages in memory.
    struct Held(Manifest, Vec<PageRecord>, Vec<Vec<u8>>);

    impl Pages for Held {
        fn name(&self) -> &str {
            "held"
        }

        fn manifest(&self) -> &Manifest {
            &self.0
        }

        fn pages(&self) -> &[PageRecord] {
            &self.1
        }

        fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), crate::Error> {
            out.copy_from_slice(&self.2[page.0 as usize]);
            Ok(())
        }
    }

    #[test]
    fn heads_that_lie_across_parts_are_put_back_in_the_order_of_the_source() {
        // Two heads of six rows in parts of four; row r of the group holds the number r.
        let geometry = Geometry::matrix(Format::BF16, 12, 1).expect("fits");
        let geometry = geometry.with_part_rows(4).expect("a power of two");
        let page = |part: u64| {
            let rows = 0..geometry.rows_of(part);
            rows.flat_map(|row| [&[(part * 4 + row) as u8, 0][..], &[0; 14]].concat()).collect()
        };
        let stored: Vec<Vec<u8>> = (0..3).map(page).collect();
        let mut pages = PageRecord::of_group(Role::AttnQkv, Some(0), None, 0, &geometry);
        super::super::record::number(&mut pages);
        let mut tensor = tensor("BF16", &[Transform::RowPermutation { head_rows: 6 }]);
        (tensor.shape, tensor.pieces) = (vec![12, 1], vec![piece(0, 12, 0, 1)]);
        let manifest = Manifest { descriptors: vec![geometry], ..Manifest::default() };
        let held = Held(manifest, pages, stored);
        let mut out = Vec::new();

        let mut recent = Recent::new(&held);
        recent
            .tensor(&tensor, |bytes| {
                out.extend_from_slice(bytes);
                Ok(())
            })
            .expect("fits");

        // Even places of a head come from its first half, odd ones from its second.
        let rows: Vec<u8> = out.chunks(2).map(|row| row[0]).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }
}

//! How a row of a source tensor becomes a row of its group, and what `extract` is to give back for it.
//!
//! Most rows are copied. Blocks are taken apart into planes, vectors widened, rows of queries and keys put
//! into the order of their heads; `--dequantize` rounds blocks to bf16. Rows are counted here as the group
//! counts them; [`Coding::source_row`] says where each stands in the source.

use crate::format::manifest::{Transform, permuted_row};
use crate::quant::gguf::{TensorType, decode_row, split_row};
use crate::quant::{Encoding, Format, float};

/// What happens to the rows of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coding {
    /// Type of the source.
    pub(super) source: TensorType,
    /// How a matrix is stored; vectors are F32.
    pub(super) stored: Encoding,
    /// Type of the numbers that `extract` gives back.
    pub(super) listed: TensorType,
    /// Numbers in a row; 1 for a vector.
    pub(super) cols: u64,
    /// Whether it is a vector.
    pub(super) vector: bool,
    /// Rows of a head that the source keeps in the order of neighbouring pairs.
    pub(super) head_rows: Option<u64>,
    /// Whether `extract` gives rows in the order of the group, not of the source.
    pub(super) reordered: bool,
}

impl Coding {
    /// Bytes of a source row.
    pub(super) fn source_bytes(&self) -> Option<usize> {
        usize::try_from(self.source.bytes(self.cols)?).ok()
    }

    /// Place in the source of a row of the group.
    pub(super) fn source_row(&self, row: u64) -> u64 {
        self.head_rows.map_or(row, |head_rows| permuted_row(head_rows, row))
    }

    /// Whether `extract` gives the source's bytes.
    pub(super) fn is_exact(&self) -> bool {
        self.listed == self.source && !(self.reordered && self.head_rows.is_some())
    }

    /// Whether rows follow each other in `extract` as they do in the group.
    pub(super) fn in_order(&self) -> bool {
        self.reordered || self.head_rows.is_none()
    }

    /// What the manifest says was done to the tensor as `extract` gives it back.
    pub(super) fn transform(&self) -> Vec<Transform> {
        let permuted = self.head_rows.filter(|_| !self.reordered);
        let mut transform: Vec<Transform> =
            permuted.map(|head_rows| Transform::RowPermutation { head_rows }).into_iter().collect();
        if self.vector && self.listed != TensorType::F32 {
            transform.push(Transform::WidenF32);
        } else if !self.vector && self.stored.format == Format::Int8 {
            transform.push(Transform::Int8Groups { source_type: self.source.name().to_owned() });
        } else if !self.vector && self.stored.format.layout().is_some() {
            transform.push(Transform::PlaneSplit { layout: self.stored.format });
        }
        transform
    }

    /// Appends what `extract` gives for one source row. `None` where it cannot be given.
    pub(super) fn list(&self, row: &[u8], out: &mut Vec<u8>) -> Option<()> {
        if self.listed == self.source {
            out.extend_from_slice(row);
            return Some(());
        }
        let mut numbers = vec![0.0; usize::try_from(self.cols).ok()?];
        decode_row(self.source, row, &mut numbers)?;
        for number in numbers {
            match self.listed {
                TensorType::F32 => out.extend_from_slice(&number.to_le_bytes()),
                TensorType::BF16 => {
                    out.extend_from_slice(&float::f32_to_bf16(number).to_le_bytes());
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Writes the planes of one source row, one after the other, into `out`; `widths` are their bytes.
    pub(super) fn pack(&self, row: &[u8], widths: &[usize; 5], out: &mut [u8]) -> Option<()> {
        if self.vector {
            let mut number = [0.0];
            decode_row(self.source, row, &mut number)?;
            out.copy_from_slice(&number[0].to_le_bytes());
            return Some(());
        }
        if self.source.encoding() == Some(self.stored) {
            if self.source.block_weights() == 1 {
                out.copy_from_slice(row);
                return Some(());
            }
            let [a, b, c, d, _] = *widths;
            let (codes, out) = out.split_at_mut_checked(a)?;
            let (high, out) = out.split_at_mut_checked(b)?;
            let (scales, out) = out.split_at_mut_checked(c)?;
            let (sub, zeros) = out.split_at_mut_checked(d)?;
            return split_row(self.source, row, &mut [codes, high, scales, sub, zeros]);
        }
        (self.stored.format == Format::BF16).then_some(())?;
        let mut numbers = vec![0.0; usize::try_from(self.cols).ok()?];
        decode_row(self.source, row, &mut numbers)?;
        for (out, number) in out.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
            *out = float::f32_to_bf16(number).to_le_bytes();
        }
        Some(())
    }
}

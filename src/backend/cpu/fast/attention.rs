//! Faster `attention`: one query head over its positions with f32 sums; heads and rows run in parallel.

use super::dot::Dot;
use crate::backend::cpu::storage::kv_row;
use crate::plan::KvFormat;

/// The cached rows of one KV head; `element` says where a position's key (false) or value (true) starts.
pub(crate) struct Cached<'a, E: Fn(u32, bool) -> usize> {
    /// The layer's buffer.
    pub(crate) bytes: &'a [u8],
    /// Its number format.
    pub(crate) format: KvFormat,
    /// First number of a row.
    pub(crate) element: E,
}

impl<E: Fn(u32, bool) -> usize> Cached<'_, E> {
    /// A row: borrowed where it is stored as f32, else widened into scratch.
    fn row<'s>(&'s self, position: u32, values: bool, scratch: &'s mut [f32]) -> &'s [f32] {
        let at = (self.element)(position, values);
        if self.format == KvFormat::F32 {
            return bytemuck::cast_slice(&self.bytes[at * 4..(at + scratch.len()) * 4]);
        }
        kv_row(self.bytes, self.format, at, scratch);
        scratch
    }
}

/// As the twin.
pub(crate) fn attention<E: Fn(u32, bool) -> usize>(
    q: &[f32],
    positions: std::ops::Range<u32>,
    scale: f32,
    cached: &Cached<'_, E>,
    out: &mut [f32],
) {
    let dot = Dot::detect();
    let mut scratch = vec![0.0; q.len()];
    let mut scores: Vec<f32> = positions
        .clone()
        .map(|position| dot.one(cached.row(position, false, &mut scratch), q) * scale)
        .collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0f64;
    for score in &mut scores {
        *score = (*score - max).exp();
        total += f64::from(*score);
    }
    let normalise = (1.0 / total) as f32;
    out.fill(0.0);
    for (position, weight) in positions.zip(&scores) {
        dot.axpy(weight * normalise, cached.row(position, true, &mut scratch), out);
    }
}

//! Faster `matmul`: blocks of matrix rows on several cores, each decoded once for all rows of the step.

use rayon::prelude::*;

use super::dot::Dot;
use crate::backend::cpu::matrix::{Matrix, Row};

/// Matrix rows one task takes: a decoded block of a 576-wide matrix is 74 kB and stays in the second cache.
const BLOCK: usize = 32;

/// out[r][n] = x[r] · w[n], as `[x.len()][n]` in one vector.
pub(crate) fn matmul(x: &[&[f32]], weight: &Matrix<'_>) -> Vec<f32> {
    let (rows, n) = (x.len(), weight.rows() as usize);
    if rows == 1 {
        let mut out = vec![0.0; n];
        // One row is bound by reading the matrix: larger blocks, nothing decoded twice.
        out.par_chunks_mut(BLOCK * 2).enumerate().for_each(|(block, out)| {
            let dot = Dot::detect();
            let mut scratch = Vec::new();
            for (index, out) in out.iter_mut().enumerate() {
                let row = (block * BLOCK * 2 + index) as u32;
                *out = one(dot, weight.codes(row), x[0], &mut scratch);
            }
        });
        return out;
    }
    // Tasks own whole matrix rows, so their results are columns: computed transposed, then turned.
    let mut transposed = vec![0.0; n * rows];
    transposed.par_chunks_mut(BLOCK * rows).enumerate().for_each(|(block, out)| {
        let dot = Dot::detect();
        let cols = weight.cols();
        let mut decoded = vec![0.0; cols * BLOCK];
        let first = block * BLOCK;
        for (index, decoded) in decoded.chunks_exact_mut(cols).take(out.len() / rows).enumerate() {
            weight.row((first + index) as u32, decoded);
        }
        for (group, x) in x.chunks(4).enumerate() {
            for (decoded, out) in decoded.chunks_exact(cols).zip(out.chunks_exact_mut(rows)) {
                let out = &mut out[group * 4..group * 4 + x.len()];
                if let [a, b, c, d] = *x {
                    out.copy_from_slice(&dot.four(decoded, [a, b, c, d]));
                } else {
                    for (out, x) in out.iter_mut().zip(x) {
                        *out = dot.one(decoded, x);
                    }
                }
            }
        }
    });
    let mut out = vec![0.0; n * rows];
    out.par_chunks_mut(n).enumerate().for_each(|(row, out)| {
        for (column, out) in out.iter_mut().enumerate() {
            *out = transposed[column * rows + row];
        }
    });
    out
}

fn one(dot: Dot, codes: Row<'_>, x: &[f32], scratch: &mut Vec<f32>) -> f32 {
    match codes {
        Row::F32(codes) => dot.one(codes, x),
        Row::BF16(codes) => dot.one_bf16(codes, x),
        Row::Scaled(encoding, planes) => {
            scratch.resize(x.len(), 0.0);
            dot.decode(encoding, &planes, scratch);
            dot.one(scratch, x)
        }
        Row::F16(_) => {
            scratch.resize(x.len(), 0.0);
            codes.widen(scratch);
            dot.one(scratch, x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::kernels;
    use crate::format::Geometry;
    use crate::quant::gguf::TensorType;

    #[test]
    fn every_format_with_scales_agrees_with_the_twin_and_with_itself_at_any_rows() {
        let (n, k) = (70, 512);
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for encoding in TensorType::all().filter_map(TensorType::encoding) {
            let geometry = Geometry::encoded(encoding, n, k).expect("whole blocks");
            // Bytes below 64 make small finite numbers in every plane.
            let bytes: Vec<u64> = (0..geometry.bytes().div_ceil(8))
                .map(|_| u64::from_le_bytes(std::array::from_fn(|_| next() & 0x3f)))
                .collect();
            let runs = vec![(0..geometry.parts() as u32, bytemuck::cast_slice(&bytes))];
            let matrix = Matrix::new(&geometry, runs).expect("a matrix");
            let x: Vec<Vec<f32>> =
                (0..5).map(|_| (0..k).map(|_| f32::from(next()) / 256.0 - 0.5).collect()).collect();
            let rows: Vec<&[f32]> = x.iter().map(Vec::as_slice).collect();

            let together = matmul(&rows, &matrix);

            for (x, together) in rows.iter().zip(together.chunks_exact(n as usize)) {
                assert_eq!(matmul(&[x], &matrix), together, "{encoding:?}");
                let mut twin = vec![0.0; n as usize];
                kernels::matmul::matmul(x, &matrix, &mut twin);
                let largest = twin.iter().fold(0.0f32, |largest, y| largest.max(y.abs()));
                for (fast, twin) in together.iter().zip(&twin) {
                    // Sums of 512 products in f32 lanes.
                    assert!((fast - twin).abs() <= 1e-5 * largest.max(1e-3), "{encoding:?}");
                }
            }
        }
    }
}

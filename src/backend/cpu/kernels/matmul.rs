//! Twin of `matmul`: out = x · wᵀ for one row.

use crate::backend::cpu::matrix::Matrix;

/// `x` is `[k]`, `out` `[n]`, the matrix `[n, k]`.
pub(crate) fn matmul(x: &[f32], weight: &Matrix<'_>, out: &mut [f32]) {
    let mut row = vec![0.0; x.len()];
    for (n, out) in (0..weight.rows()).zip(out) {
        weight.row(n, &mut row);
        let sum: f64 = x.iter().zip(&row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        *out = sum as f32;
    }
}

//! Twin of `keep`: a copy for a reader.

/// out = x, both `[n]`.
pub(crate) fn keep(x: &[f32], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = *x;
    }
}

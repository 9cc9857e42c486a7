//! Twin of `rms_norm`: y = x / sqrt(mean(x²) + eps) · w.

/// `x`, `weight` and `out` are `[n]`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let squares: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (f64::from(*x) * scale) as f32 * weight;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn rms_norm_divides_by_the_root_of_the_mean_square() {
        let mut out = [0.0; 2];

        // mean(9, 16) = 12.5 and eps 12.5 give a root of 5.
        super::rms_norm(&[3.0, 4.0], &[1.0, 10.0], 12.5, &mut out);

        assert_eq!(out, [0.6, 8.0]);
    }
}

//! Twin of `check_finite`: whether a row has a NaN or an infinity.

/// Whether every number of the row is finite; tested on bits, as shaders must.
pub(crate) fn check_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.to_bits() & 0x7f80_0000 != 0x7f80_0000)
}

#[cfg(test)]
mod tests {
    use super::check_finite;

    #[test]
    fn check_finite_sees_nan_and_both_infinities() {
        assert!(check_finite(&[0.0, -1.0, f32::MAX, f32::MIN_POSITIVE]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!check_finite(&[0.0, bad]));
        }
    }
}

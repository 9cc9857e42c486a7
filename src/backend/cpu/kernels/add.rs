//! Twin of `add`: x += y.

/// Adds `y` to `x`, both `[n]`.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn add_sums_number_by_number() {
        let mut x = [1.0, 2.0, 3.0];

        super::add(&mut x, &[10.0, -2.0, 0.5]);

        assert_eq!(x, [11.0, 0.0, 3.5]);
    }
}

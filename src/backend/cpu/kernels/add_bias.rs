//! Twin of `add_bias`: x += bias.

/// Adds `bias` to a row, both `[n]`.
pub(crate) fn add_bias(x: &mut [f32], bias: &[f32]) {
    for (x, bias) in x.iter_mut().zip(bias) {
        *x += bias;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn add_bias_adds_the_vector_to_the_row() {
        let mut x = [0.0, 1.0];

        super::add_bias(&mut x, &[0.25, -1.0]);

        assert_eq!(x, [0.25, 0.0]);
    }
}

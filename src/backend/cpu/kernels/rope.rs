//! Twin of `rope`: rotates one head to its position.

/// Rotates the pairs (i, i + n) of `head` by position · inv_freq[i], n being `inv_freq.len()`; the rest of
/// the head passes through. Angles are f32 products, as the reference library forms them.
pub(crate) fn rope(head: &mut [f32], position: u32, inv_freq: &[f32], attention_factor: f32) {
    let half = inv_freq.len();
    let (first, second) = head.split_at_mut(half.min(head.len()));
    for ((a, b), inv_freq) in first.iter_mut().zip(second).zip(inv_freq) {
        let angle = position as f32 * inv_freq;
        let (cos, sin) = (angle.cos() * attention_factor, angle.sin() * attention_factor);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r23_pairs_are_half_split() {
        let mut head = [1.0, 0.0, 0.0, 0.0];

        rope(&mut head, 1, &[1.0, 0.01], 1.0);

        let expected = [0.540_302, 0.0, 0.841_471, 0.0];
        for (found, expected) in head.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{head:?}");
        }
    }

    #[test]
    fn columns_beyond_the_rotary_part_pass_through() {
        let mut head = [1.0, 2.0, 7.0, 8.0];

        rope(&mut head, 3, &[1.0], 1.0);

        assert_eq!(head[2..], [7.0, 8.0]);
    }
}

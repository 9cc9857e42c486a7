//! Twin of `attention`: one query head over the cached positions it may see.

/// out = Σ softmax(scale · q·k_j) v_j over the positions given; `key` and `value` fill a `[head_dim]` row.
pub(crate) fn attention(
    q: &[f32],
    positions: std::ops::Range<u32>,
    scale: f32,
    key: impl Fn(u32, &mut [f32]),
    value: impl Fn(u32, &mut [f32]),
    out: &mut [f32],
) {
    let mut row = vec![0.0; q.len()];
    let mut scores = Vec::with_capacity(positions.len());
    for position in positions.clone() {
        key(position, &mut row);
        let dot: f64 = q.iter().zip(&row).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        scores.push(dot * f64::from(scale));
    }
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut sums = vec![0.0f64; q.len()];
    for (position, weight) in positions.zip(&weights) {
        value(position, &mut row);
        for (sum, v) in sums.iter_mut().zip(&row) {
            *sum += weight / total * f64::from(*v);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum as f32;
    }
}

/// Positions a row may see: its `kv_len` first ones, of which only the last `window`.
pub(crate) fn visible(kv_len: u32, window: Option<u32>) -> std::ops::Range<u32> {
    window.map_or(0, |window| kv_len.saturating_sub(window))..kv_len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_weighs_values_by_softmax_of_scaled_scores() {
        // Scores 0 and ln 3 give weights 1/4 and 3/4.
        let keys = [[0.0, 0.0], [3.0f32.ln(), 0.0]];
        let values = [[4.0, 0.0], [0.0, 8.0]];
        let mut out = [0.0; 2];

        attention(
            &[2.0, 5.0],
            0..2,
            0.5,
            |position, row| row.copy_from_slice(&keys[position as usize]),
            |position, row| row.copy_from_slice(&values[position as usize]),
            &mut out,
        );

        assert!((out[0] - 1.0).abs() < 1e-6 && (out[1] - 6.0).abs() < 1e-6, "{out:?}");
    }

    #[test]
    fn r27_a_window_counts_the_row_itself() {
        let seen: Vec<_> = (1..=8).map(|kv_len| visible(kv_len, Some(4)).len()).collect();

        assert_eq!(seen, [1, 2, 3, 4, 4, 4, 4, 4]);
        assert_eq!(visible(8, Some(4)), 4..8);
        assert_eq!(visible(8, None), 0..8);
    }
}

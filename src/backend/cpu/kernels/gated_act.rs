//! Twin of `gated_act`: out[i] = act(gate) · up, gate and up alternating.

use crate::model::Activation;

/// `x` is `[2 * ffn]`, `out` `[ffn]`.
pub(crate) fn gated_act(x: &[f32], act: Activation, out: &mut [f32]) {
    for (out, pair) in out.iter_mut().zip(x.chunks_exact(2)) {
        if let [gate, up] = pair {
            *out = (activate(act, f64::from(*gate)) * f64::from(*up)) as f32;
        }
    }
}

fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        // GELU, Hendrycks and Gimpel 2016, tanh form: sqrt(2 / pi) = 0.797884...
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gated_act_pairs_even_gates_with_odd_ups() {
        let mut out = [0.0; 2];

        gated_act(&[0.0, 5.0, 2.0, 3.0], Activation::Silu, &mut out);

        // silu(0) = 0; silu(2) = 2 / (1 + e^-2) = 1.761594; times 3.
        assert_eq!(out[0], 0.0);
        assert!((out[1] - 5.284_782).abs() < 1e-5, "{out:?}");
    }

    #[test]
    fn gelu_is_the_tanh_form() {
        let mut out = [0.0];

        gated_act(&[1.0, 1.0], Activation::GeluTanh, &mut out);

        // The tanh form at 1 is 0.841192; the exact form would be 0.841345.
        assert!((out[0] - 0.841_192).abs() < 1e-6, "{out:?}");
    }

    #[test]
    fn large_negative_gates_give_zero_and_not_nan() {
        let mut out = [1.0];

        gated_act(&[-1e4, 3.0], Activation::Silu, &mut out);

        assert_eq!(out[0], 0.0);
    }
}

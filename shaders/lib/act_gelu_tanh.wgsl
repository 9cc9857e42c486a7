// GELU, tanh form (Hendrycks and Gimpel 2016). 0.5 (1 + tanh u) is 1 / (1 + exp(-2 u)), which keeps the
// precision that a GPU's own tanh loses near zero.

fn activate(x: f32) -> f32 {
    let inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return x / (1.0 + exp(clamp(-2.0 * inner, -80.0, 80.0)));
}

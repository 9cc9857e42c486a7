// GELU, tanh form (Hendrycks and Gimpel 2016); tanh is 1 in f32 long before its argument is clamped.

fn activate(x: f32) -> f32 {
    let inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + tanh(clamp(inner, -20.0, 20.0)));
}

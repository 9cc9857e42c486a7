// silu(x) = x / (1 + exp(-x)); the exponent is clamped, since WGSL may assume there is no infinity.

fn activate(x: f32) -> f32 {
    return x / (1.0 + exp(min(-x, 80.0)));
}

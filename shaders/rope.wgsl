// maths:  rotates pairs (i, i + rotary / 2) of each head by position * inv_freq[i] (Su et al. 2021)
// shapes: inv_freq [rotary / 2], x [rows, heads * head_dim], in place
// grid:   x = ceil(heads * rotary / 2 / WORKGROUP), y = step row
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/rope.rs

#import step

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    heads: u32,
    head_dim: u32,
    half_dim: u32,
    x_offset: u32,
    x_stride: u32,
    attention_factor: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> inv_freq: array<f32>; // [rotary / 2]
@group(0) @binding(3) var<storage, read_write> x: array<f32>; // [rows, heads * head_dim]

#import angle

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let head = id.x / params.half_dim;
    let pair = id.x % params.half_dim;
    if head >= params.heads || !is_active(step[id.y]) {
        return;
    }
    let first = id.y * params.x_stride + params.x_offset + head * params.head_dim + pair;
    let second = first + params.half_dim;
    let turn = cos_sin(f32(step[id.y].position) * inv_freq[pair]) * params.attention_factor;
    let a = x[first];
    let b = x[second];
    x[first] = a * turn.x - b * turn.y;
    x[second] = b * turn.x + a * turn.y;
}

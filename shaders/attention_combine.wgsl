// maths:  merges the splits of attention: out = sum exp(m_i - m) v_i / sum exp(m_i - m) s_i
// shapes: partial [rows, heads, splits, 2 + head_dim], out [rows, heads * head_dim]
// grid:   x = query head, y = step row
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/attention.rs

#import step

override WORKGROUP: u32 = 64u; // lanes: 64, 128

struct Params {
    heads: u32,
    head_dim: u32,
    splits: u32,
    out_offset: u32,
    out_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> partial: array<f32>; // [rows, heads, splits, 2 + head_dim]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim]

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    if !is_active(step[group.y]) {
        return;
    }
    let size = params.head_dim + 2u;
    let first = (group.y * params.heads + group.x) * params.splits * size;
    var largest = -1e30;
    for (var i = 0u; i < params.splits; i++) {
        largest = max(largest, partial[first + i * size]);
    }
    var total = 0.0;
    for (var i = 0u; i < params.splits; i++) {
        total += exp(partial[first + i * size] - largest) * partial[first + i * size + 1u];
    }
    let to_column = group.y * params.out_stride + params.out_offset + group.x * params.head_dim;
    for (var column = lane; column < params.head_dim; column += WORKGROUP) {
        var value = 0.0;
        for (var i = 0u; i < params.splits; i++) {
            value += exp(partial[first + i * size] - largest) * partial[first + i * size + 2u + column];
        }
        out[to_column + column] = value / total;
    }
}

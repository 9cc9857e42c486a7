// maths:  x += bias, row by row
// shapes: small [numbers], x [rows, n]
// grid:   x = up to ceil(n / WORKGROUP), strided, y = step row
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/add_bias.rs

#import step

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    width: u32,
    small_offset: u32,
    x_offset: u32,
    x_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> small: array<f32>; // vectors of the layer
@group(0) @binding(3) var<storage, read_write> x: array<f32>; // [rows, n]

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if !is_active(step[id.y]) {
        return;
    }
    for (var i = id.x; i < params.width; i += groups.x * WORKGROUP) {
        x[id.y * params.x_stride + params.x_offset + i] += small[params.small_offset + i];
    }
}

// maths:  x += y
// shapes: x [rows, n], y [rows, n]
// grid:   x = up to ceil(n / WORKGROUP), strided, y = step row
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/add.rs

#import step

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    width: u32,
    x_offset: u32,
    x_stride: u32,
    y_offset: u32,
    y_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> y: array<f32>; // [rows, n]
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
        x[id.y * params.x_stride + params.x_offset + i] += y[id.y * params.y_stride + params.y_offset + i];
    }
}

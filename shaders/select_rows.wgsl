// maths:  out[j] = x[row of the j-th emitting row]
// shapes: x [rows, n], out [emitted, n]
// grid:   x = ceil(n / WORKGROUP), y = j
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/select_rows.rs

#import step

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    width: u32,
    x_offset: u32,
    x_stride: u32,
    out_offset: u32,
    out_stride: u32,
    rows: u32, // rows of the step
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> x: array<f32>; // [rows, n]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [emitted, n]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.width {
        return;
    }
    var left = id.y;
    for (var row = 0u; row < params.rows; row++) {
        if emits(step[row]) {
            if left == 0u {
                out[id.y * params.out_stride + params.out_offset + id.x] = x[row * params.x_stride + params.x_offset + id.x];
                return;
            }
            left -= 1u;
        }
    }
}

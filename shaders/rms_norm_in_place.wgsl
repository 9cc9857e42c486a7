// maths:  x = x / sqrt(mean(x^2) + eps) * w in place, over runs of `width` columns
// shapes: small [numbers], x [rows, runs * width]
// grid:   x = run, y = row
// knobs:  REDUCE = lib/reduce_subgroup, lib/reduce_workgroup; WORKGROUP
// twin:   src/backend/cpu/kernels/rms_norm.rs

#import step
#import rows
#import REDUCE

override WORKGROUP: u32 = 256u; // lanes: 64, 128, 256

struct Params {
    width: u32,
    small_offset: u32,
    x_offset: u32,
    x_stride: u32,
    eps: f32,
    packed_rows: u32, // rows of the step where rows of x are its emitting ones, else 0
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> small: array<f32>; // vectors of the layer
@group(0) @binding(3) var<storage, read_write> x: array<f32>; // [rows, runs * width]

@compute @workgroup_size(WORKGROUP)
fn main(in: Entry) {
    let row = in.group.y;
    if step_row(row, params.packed_rows) == NO_ROW {
        return;
    }
    let run = in.group.x * params.width;
    let from_column = row * params.x_stride + params.x_offset + run;
    var squares = 0.0;
    for (var i = in.lane; i < params.width; i += WORKGROUP) {
        let value = x[from_column + i];
        squares += value * value;
    }
    let total = reduce_add(vec4(squares, 0.0, 0.0, 0.0), in).x;
    let scale = 1.0 / sqrt(total / f32(params.width) + params.eps);
    for (var i = in.lane; i < params.width; i += WORKGROUP) {
        x[from_column + i] = x[from_column + i] * scale * small[params.small_offset + i];
    }
}

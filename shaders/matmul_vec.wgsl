// maths:  out[n] = x . w[n], accumulated in f32
// shapes: codes [n rows of words], x [rows, k] as vec4, out [rows, n]
// grid:   x, y folded = pairs of matrix rows, z = step row; all lanes share a pair and split k
// knobs:  FORMAT = format/f32, f16, bf16; REDUCE = lib/reduce_subgroup, lib/reduce_workgroup; WORKGROUP
// twin:   src/backend/cpu/kernels/matmul.rs

#import step
#import rows
#import weight
#import FORMAT
#import REDUCE

override WORKGROUP: u32 = 128u; // lanes: 32, 64, 128, 256

struct Params {
    weight: Weight,
    x_offset: u32, // in vec4
    x_stride: u32, // in vec4
    out_offset: u32,
    out_stride: u32,
    packed_rows: u32, // rows of the step where rows of x are its emitting ones, else 0
    columns: u32, // workgroups in x
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>; // parts of [n, k]
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, k]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, n]

@compute @workgroup_size(WORKGROUP)
fn main(in: Entry) {
    let row = in.group.z;
    let n = (in.group.y * params.columns + in.group.x) * 2u;
    if n >= params.weight.rows || step_row(row, params.packed_rows) == NO_ROW {
        return;
    }
    let first = row_start(params.weight, n);
    let second = row_start(params.weight, min(n + 1u, params.weight.rows - 1u));
    let from_vec = row * params.x_stride + params.x_offset;
    var sums = vec2<f32>(0.0);
    for (var word = in.lane; word < params.weight.words; word += WORKGROUP) {
        let a = codes[first + word];
        let b = codes[second + word];
        let at = from_vec + word * (PER_WORD / 4u);
        let low = x[at];
        sums += vec2(dot(decode_low(a), low), dot(decode_low(b), low));
        if PER_WORD == 8u {
            let high = x[at + 1u];
            sums += vec2(dot(decode_high(a), high), dot(decode_high(b), high));
        }
    }
    let total = reduce_add(vec4(sums, 0.0, 0.0), in);
    if in.lane < 2u && n + in.lane < params.weight.rows {
        let column = params.weight.first_row + n + in.lane;
        out[row * params.out_stride + params.out_offset + column] = total[in.lane];
    }
}

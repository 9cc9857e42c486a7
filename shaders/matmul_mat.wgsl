// maths:  out = x . w^T for many rows, accumulated in f32
// shapes: codes [n rows of words], x [rows, k] as vec4, out [rows, n]
// grid:   x, y folded = tiles of 64 matrix rows, z = tiles of 64 step rows; a lane owns 4 x 4 results
// knobs:  FORMAT = format/f32, f16, bf16
// twin:   src/backend/cpu/kernels/matmul.rs

#import step
#import rows
#import weight
#import FORMAT

const TILE: u32 = 64u;
const DEPTH: u32 = 16u; // numbers of k staged at a time

struct Params {
    weight: Weight,
    x_offset: u32, // in vec4
    x_stride: u32, // in vec4
    out_offset: u32,
    out_stride: u32,
    packed_rows: u32, // rows of the step where rows of x are its emitting ones, else 0
    rows: u32, // rows of x
    columns: u32, // workgroups in x
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>; // parts of [n, k]
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>; // [rows, k]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, n]

var<workgroup> x_tile: array<f32, 1088>; // [DEPTH, TILE + 4], transposed; the pad spreads the banks
var<workgroup> w_tile: array<f32, 1088>; // [DEPTH, TILE + 4], transposed

const PITCH: u32 = TILE + 4u;

fn put_x(k: u32, row: u32, value: vec4<f32>) {
    x_tile[k * PITCH + row] = value.x;
    x_tile[(k + 1u) * PITCH + row] = value.y;
    x_tile[(k + 2u) * PITCH + row] = value.z;
    x_tile[(k + 3u) * PITCH + row] = value.w;
}

fn put_w(k: u32, row: u32, value: vec4<f32>) {
    w_tile[k * PITCH + row] = value.x;
    w_tile[(k + 1u) * PITCH + row] = value.y;
    w_tile[(k + 2u) * PITCH + row] = value.z;
    w_tile[(k + 3u) * PITCH + row] = value.w;
}

fn quad(at: u32) -> vec4<f32> {
    return vec4(w_tile[at], w_tile[at + 1u], w_tile[at + 2u], w_tile[at + 3u]);
}

fn store(row: u32, column: u32, values: vec4<f32>) {
    if row >= params.rows || step_row(row, params.packed_rows) == NO_ROW {
        return;
    }
    let at = row * params.out_stride + params.out_offset + params.weight.first_row + column;
    for (var i = 0u; i < 4u; i++) {
        if column + i < params.weight.rows {
            out[at + i] = values[i];
        }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_n = (group.y * params.columns + group.x) * TILE;
    let first_row = group.z * TILE;
    if first_n >= params.weight.rows {
        return;
    }
    let per_row = DEPTH / PER_WORD; // words of a matrix row in a tile
    let words = params.weight.words;
    var sums_a = vec4<f32>(0.0);
    var sums_b = vec4<f32>(0.0);
    var sums_c = vec4<f32>(0.0);
    var sums_d = vec4<f32>(0.0);
    let m = (lane / 16u) * 4u;
    let n = (lane % 16u) * 4u;
    for (var word = 0u; word < words; word += per_row) {
        workgroupBarrier();
        if lane < TILE * per_row {
            let row = lane / per_row;
            let within = lane % per_row;
            let at = min(word + within, words - 1u);
            let start = row_start(params.weight, min(first_n + row, params.weight.rows - 1u));
            var code = codes[start + at];
            if word + within >= words {
                code = vec4(0u);
            }
            put_w(within * PER_WORD, row, decode_low(code));
            if PER_WORD == 8u {
                put_w(within * PER_WORD + 4u, row, decode_high(code));
            }
        }
        {
            let row = lane / 4u;
            let within = lane % 4u;
            let last = words * (PER_WORD / 4u) - 1u;
            let at = word * (PER_WORD / 4u) + within;
            var value = x[min(first_row + row, params.rows - 1u) * params.x_stride + params.x_offset + min(at, last)];
            if at > last {
                value = vec4(0.0);
            }
            put_x(within * 4u, row, value);
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let weights = quad(k * PITCH + n);
            let at = k * PITCH + m;
            sums_a += x_tile[at] * weights;
            sums_b += x_tile[at + 1u] * weights;
            sums_c += x_tile[at + 2u] * weights;
            sums_d += x_tile[at + 3u] * weights;
        }
    }
    let column = first_n + n;
    store(first_row + m, column, sums_a);
    store(first_row + m + 1u, column, sums_b);
    store(first_row + m + 2u, column, sums_c);
    store(first_row + m + 3u, column, sums_d);
}

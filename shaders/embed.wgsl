// maths:  out = table[token], tokens beyond the table clamped to its last row
// shapes: codes [vocab rows of words], out [rows, hidden], drawn [slots]
// grid:   x = ceil(words / WORKGROUP), y = step row; several runs are several dispatches
// knobs:  FORMAT = format/f32, f16, bf16; WORKGROUP
// twin:   src/backend/cpu/kernels/embed.rs

#import step
#import weight
#import FORMAT

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    weight: Weight,
    vocab: u32,
    width: u32,
    out_offset: u32,
    out_stride: u32,
    slots: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>; // parts of [vocab, hidden]
@group(0) @binding(3) var<storage, read> drawn: array<u32>; // [slots]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, hidden]

fn put(row: u32, column: u32, value: f32) {
    if column < params.width {
        out[row * params.out_stride + params.out_offset + column] = value;
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let word = id.x;
    if word >= params.weight.words || !is_active(step[row]) {
        return;
    }
    var token = step[row].token;
    if (token & FROM_SLOT) != 0u {
        token = drawn[min(token & ~FROM_SLOT, params.slots - 1u)];
    }
    token = min(token, params.vocab - 1u);
    let local = token - params.weight.first_row;
    if token < params.weight.first_row || local >= params.weight.rows {
        return; // another run holds it
    }
    let code = codes[row_start(params.weight, local) + word];
    let column = word * PER_WORD;
    let low = decode_low(code);
    put(row, column, low.x);
    put(row, column + 1u, low.y);
    put(row, column + 2u, low.z);
    put(row, column + 3u, low.w);
    if PER_WORD == 8u {
        let high = decode_high(code);
        put(row, column + 4u, high.x);
        put(row, column + 5u, high.y);
        put(row, column + 6u, high.z);
        put(row, column + 7u, high.w);
    }
}

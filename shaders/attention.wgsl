// maths:  out = softmax(scale * q k^T) v over the positions a row may see, in one pass (Milakov and
//         Gimelshein 2018, online softmax); each lane walks its own positions, then the lanes are merged
// shapes: q, out [rows, heads * head_dim]; pool [kv_heads, blocks, 2, KV_BLOCK, head_dim]
// grid:   x = query head, y = step row
// knobs:  KV = format/kv_f32, kv_f16, kv_bf16; REDUCE; HEAD_DIM; WORKGROUP
// twin:   src/backend/cpu/kernels/attention.rs

#import step
#import kv
#import KV
#import REDUCE

override WORKGROUP: u32 = 64u; // lanes: 32, 64, 128
override HEAD_DIM: u32 = 64u; // width of a head
override TILE: u32 = 256u; // positions scored at a time

struct Params {
    kv: Kv,
    shared_heads: u32, // query heads per KV head
    q_offset: u32,
    q_stride: u32,
    out_offset: u32,
    out_stride: u32,
    window: u32, // 0: all
    table: u32, // entries of the block table
    capacity: u32, // positions the program was built for
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> q: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(4) var<storage, read> pool: array<u32>; // [kv_heads, blocks, 2, KV_BLOCK, head_dim]
@group(0) @binding(5) var<storage, read> block_table: array<u32>; // [entries]

var<workgroup> scores: array<f32, TILE>;
var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> result: array<f32, HEAD_DIM>;

fn start_of(row: StepRow, head: u32, position: u32, values: u32) -> u32 {
    let entry = min(row.block_table_base + position / KV_BLOCK, params.table - 1u);
    let block = min(block_table[entry], params.kv.blocks - 1u);
    return kv_start(params.kv, head, block, values, position);
}

@compute @workgroup_size(WORKGROUP)
fn main(in: Entry) {
    let row = step[in.group.y];
    if !is_active(row) {
        return;
    }
    let head = in.group.x;
    let kv_head = head / params.shared_heads;
    let from_column = in.group.y * params.q_stride + params.q_offset + head * HEAD_DIM;
    for (var i = in.lane; i < HEAD_DIM; i += WORKGROUP) {
        query[i] = q[from_column + i] * params.scale;
        result[i] = 0.0;
    }
    let end = min(row.kv_len, params.capacity);
    var begin = 0u;
    if params.window != 0u && end > params.window {
        begin = end - params.window;
    }
    var largest = -1e30;
    var total = 0.0;
    for (var tile = begin; tile < end; tile += TILE) {
        workgroupBarrier();
        let count = min(TILE, end - tile);
        var tile_largest = -1e30;
        for (var i = in.lane; i < count; i += WORKGROUP) {
            let start = start_of(row, kv_head, tile + i, 0u);
            var score = 0.0;
            for (var d = 0u; d < HEAD_DIM; d++) {
                score += query[d] * kv_decode(pool[(start + d) / KV_PER_WORD], start + d);
            }
            scores[i] = score;
            tile_largest = max(tile_largest, score);
        }
        let new_largest = max(largest, reduce_max(tile_largest, in));
        let shrink = exp(largest - new_largest);
        workgroupBarrier();
        var sum = 0.0;
        for (var i = in.lane; i < count; i += WORKGROUP) {
            let weight = exp(scores[i] - new_largest);
            scores[i] = weight;
            sum += weight;
        }
        total = total * shrink + reduce_add(vec4(sum, 0.0, 0.0, 0.0), in).x;
        workgroupBarrier();
        for (var d = in.lane; d < HEAD_DIM; d += WORKGROUP) {
            var value = result[d] * shrink;
            for (var i = 0u; i < count; i++) {
                let at = start_of(row, kv_head, tile + i, 1u) + d;
                value += scores[i] * kv_decode(pool[at / KV_PER_WORD], at);
            }
            result[d] = value;
        }
        largest = new_largest;
    }
    let to_column = in.group.y * params.out_stride + params.out_offset + head * HEAD_DIM;
    for (var d = in.lane; d < HEAD_DIM; d += WORKGROUP) {
        out[to_column + d] = result[d] / total;
    }
}

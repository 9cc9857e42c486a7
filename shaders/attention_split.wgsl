// maths:  softmax(scale * q k^T) v over one split of the positions a row may see (online softmax, Milakov and
//         Gimelshein 2018; splits, Dao et al. 2023); PARTIAL leaves maximum, sum and values for attention_combine
// shapes: q, out [rows, heads * head_dim]; partial [rows, heads, splits, 2 + head_dim]; pool as 16-byte words
// grid:   x = query head, y = step row, z = split; a lane scores one position, then owns a word of the values
// knobs:  KV = format/kv_f32, kv_f16, kv_bf16; REDUCE; HEAD_DIM, a multiple of a word; PARTIAL 0, 1; WORKGROUP
// twin:   src/backend/cpu/kernels/attention.rs

#import step
#import kv
#import KV
#import REDUCE

override WORKGROUP: u32 = 256u; // lanes: 256
override HEAD_DIM: u32 = 64u; // width of a head
override PARTIAL: u32 = 0u; // 1: one split of several

const WORDS: u32 = HEAD_DIM / KV_PER_VEC; // 16-byte words of a cached row
const GROUPS: u32 = WORKGROUP / WORDS; // positions whose values are added at a time

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
    split: u32, // positions of a split
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> q: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(3) var<storage, read_write> out: array<f32>; // [rows, heads * head_dim], or partial
@group(0) @binding(4) var<storage, read> pool: array<vec4<u32>>; // [kv_heads, blocks, 2, KV_BLOCK, words]
@group(0) @binding(5) var<storage, read> block_table: array<u32>; // [entries]

var<workgroup> query: array<vec4<f32>, 64>; // head_dim up to 256
var<workgroup> scores: array<f32, WORKGROUP>;
var<workgroup> sums: array<vec4<f32>, 512>; // [GROUPS, WORDS, 2]

fn word_of(row: StepRow, head: u32, position: u32, values: u32) -> u32 {
    let entry = min(row.block_table_base + position / KV_BLOCK, params.table - 1u);
    let block = min(block_table[entry], params.kv.blocks - 1u);
    return kv_start(params.kv, head, block, values, position) / KV_PER_VEC;
}

fn value_of(group: u32, column: u32) -> f32 {
    let within = column % KV_PER_VEC;
    let word = group * WORDS + column / KV_PER_VEC;
    return sums[word * 2u + within / 4u][within % 4u];
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
    if in.lane < HEAD_DIM / 4u {
        let at = from_column + in.lane * 4u;
        query[in.lane] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
    var end = min(row.kv_len, params.capacity);
    var begin = 0u;
    if params.window != 0u && end > params.window {
        begin = end - params.window;
    }
    if PARTIAL == 1u {
        begin = max(begin, in.group.z * params.split);
        end = min(end, (in.group.z + 1u) * params.split);
    }
    let word = in.lane % WORDS;
    let group = in.lane / WORDS;
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    var largest = -1e30;
    var total = 0.0;
    for (var tile = begin; tile < end; tile += WORKGROUP) {
        workgroupBarrier();
        let count = min(WORKGROUP, end - tile);
        var score = -1e30;
        if in.lane < count {
            let start = word_of(row, kv_head, tile + in.lane, 0u);
            score = 0.0;
            for (var i = 0u; i < WORDS; i++) {
                let key = pool[start + i];
                score += dot(query[i * KV_PER_VEC / 4u], kv_low(key));
                if KV_PER_VEC == 8u {
                    score += dot(query[i * 2u + 1u], kv_high(key));
                }
            }
        }
        let new_largest = max(largest, reduce_max(score, in));
        let shrink = exp(largest - new_largest);
        workgroupBarrier();
        let weight = select(0.0, exp(score - new_largest), in.lane < count);
        scores[in.lane] = weight;
        total = total * shrink + reduce_add(vec4(weight, 0.0, 0.0, 0.0), in).x;
        workgroupBarrier();
        low *= shrink;
        high *= shrink;
        if group < GROUPS {
            for (var i = group; i < count; i += GROUPS) {
                let value = pool[word_of(row, kv_head, tile + i, 1u) + word];
                low += scores[i] * kv_low(value);
                if KV_PER_VEC == 8u {
                    high += scores[i] * kv_high(value);
                }
            }
        }
        largest = new_largest;
    }
    if group < GROUPS {
        sums[(group * WORDS + word) * 2u] = low;
        sums[(group * WORDS + word) * 2u + 1u] = high;
    }
    workgroupBarrier();
    let heads = in.groups.x;
    let partial = ((in.group.y * heads + head) * in.groups.z + in.group.z) * (HEAD_DIM + 2u);
    for (var column = in.lane; column < HEAD_DIM; column += WORKGROUP) {
        var value = 0.0;
        for (var i = 0u; i < GROUPS; i++) {
            value += value_of(i, column);
        }
        if PARTIAL == 1u {
            out[partial + 2u + column] = value;
        } else {
            let at = in.group.y * params.out_stride + params.out_offset + head * HEAD_DIM + column;
            out[at] = value / total;
        }
    }
    if PARTIAL == 1u && in.lane == 0u {
        out[partial] = largest;
        out[partial + 1u] = total;
    }
}

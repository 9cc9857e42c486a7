// maths:  stores each row's keys, or its values, at its position, rounded to the pool's format
// shapes: source [rows, kv_heads * head_dim]; pool [kv_heads, blocks, 2, KV_BLOCK, head_dim]
// grid:   x = ceil(kv_heads * words of a head / WORKGROUP), y = step row; keys and values are two dispatches
// knobs:  KV = format/kv_f32, kv_f16, kv_bf16; WORKGROUP
// twin:   src/backend/cpu/kernels/kv_append.rs

#import step
#import kv
#import KV

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    kv: Kv,
    offset: u32,
    stride: u32,
    values: u32, // 0 keys, 1 values
    table: u32, // entries of the block table
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> source: array<f32>; // [rows, kv_heads * head_dim]
@group(0) @binding(3) var<storage, read> block_table: array<u32>; // [entries]
@group(0) @binding(4) var<storage, read_write> pool: array<u32>; // [kv_heads, blocks, 2, KV_BLOCK, head_dim]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let words = (params.kv.head_dim + KV_PER_WORD - 1u) / KV_PER_WORD;
    let head = id.x / words;
    let column = (id.x % words) * KV_PER_WORD;
    let row = step[id.y];
    if head >= params.kv.heads || !is_active(row) {
        return;
    }
    let entry = min(row.block_table_base + row.position / KV_BLOCK, params.table - 1u);
    let block = min(block_table[entry], params.kv.blocks - 1u);
    let start = kv_start(params.kv, head, block, params.values, row.position);
    let at = id.y * params.stride + params.offset + head * params.kv.head_dim + column;
    pool[(start + column) / KV_PER_WORD] = kv_encode(source[at], source[at + KV_PER_WORD - 1u]);
}

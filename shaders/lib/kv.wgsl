// Where a cached row starts, counted in numbers: `plan::KvLayout` in WGSL.

const KV_BLOCK: u32 = 32u;

struct Kv {
    blocks: u32,
    heads: u32,
    head_dim: u32,
    pad: u32, // uniform structs are multiples of 16 bytes
}

fn kv_start(kv: Kv, head: u32, block: u32, values: u32, position: u32) -> u32 {
    let row = (head * kv.blocks + block) * 2u + values;
    return (row * KV_BLOCK + position % KV_BLOCK) * kv.head_dim;
}

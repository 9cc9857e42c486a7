// Cached numbers as binary16, two to a word, low half first.

const KV_PER_WORD: u32 = 2u;

fn kv_decode(word: u32, index: u32) -> f32 {
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, (index & 1u) == 1u);
}

fn kv_encode(low: f32, high: f32) -> u32 {
    return pack2x16float(vec2(low, high));
}

const KV_PER_VEC: u32 = 8u;

fn kv_low(word: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(word.x), unpack2x16float(word.y));
}

fn kv_high(word: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(word.z), unpack2x16float(word.w));
}

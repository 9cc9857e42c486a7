// Cached numbers as bfloat16, two to a word, low half first; rounded to nearest even.

const KV_PER_WORD: u32 = 2u;

fn kv_decode(word: u32, index: u32) -> f32 {
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (index & 1u) == 1u));
}

fn bf16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn kv_encode(low: f32, high: f32) -> u32 {
    return bf16_bits(low) | (bf16_bits(high) << 16u);
}

const KV_PER_VEC: u32 = 8u;

fn kv_low(word: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(word.x << 16u, word.x & 0xffff0000u, word.y << 16u, word.y & 0xffff0000u));
}

fn kv_high(word: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(word.z << 16u, word.z & 0xffff0000u, word.w << 16u, word.w & 0xffff0000u));
}

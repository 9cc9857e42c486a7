// bfloat16 weights: eight to a 16-byte word, low half first. Needs no f16 feature.

const PER_WORD: u32 = 8u;

fn decode_low(word: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(word.x << 16u, word.x & 0xffff0000u, word.y << 16u, word.y & 0xffff0000u));
}

fn decode_high(word: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(word.z << 16u, word.z & 0xffff0000u, word.w << 16u, word.w & 0xffff0000u));
}

// binary16 weights: eight to a 16-byte word, low half first. Needs no f16 feature.

const PER_WORD: u32 = 8u;

fn decode_low(word: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(word.x), unpack2x16float(word.y));
}

fn decode_high(word: vec4<u32>) -> vec4<f32> {
    return vec4(unpack2x16float(word.z), unpack2x16float(word.w));
}

// binary32 weights: four to a 16-byte word.

const PER_WORD: u32 = 4u;

fn decode_low(word: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(word);
}

fn decode_high(word: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(0.0);
}

// Cached numbers as binary32, one to a word.

const KV_PER_WORD: u32 = 1u;

fn kv_decode(word: u32, index: u32) -> f32 {
    return bitcast<f32>(word);
}

fn kv_encode(low: f32, high: f32) -> u32 {
    return bitcast<u32>(low);
}

const KV_PER_VEC: u32 = 4u;

fn kv_low(word: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(word);
}

fn kv_high(word: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(0.0);
}

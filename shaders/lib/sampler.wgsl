// Sampler settings and drawn ids, as `program::SamplerRecord` and `program::IdRecord`.

struct Sampler {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repeat_last_n: u32,
    seed_low: u32,
    seed_high: u32,
    flags: u32,
    bias_count: u32,
    reserved: vec4<u32>,
}

const MASKED: u32 = 1u;
const IGNORE_END: u32 = 2u;

struct IdRecord {
    id: u32,
    logprob: f32,
    flags: u32,
    position: u32,
    sequence: u32,
    bad_layer: u32,
    reserved_a: u32,
    reserved_b: u32,
}

const DREW_END: u32 = 1u;
const NOT_FINITE: u32 = 2u;
const ID_RING: u32 = 16u;
const MAX_BIAS: u32 = 256u;
const MAX_END_IDS: u32 = 32u;

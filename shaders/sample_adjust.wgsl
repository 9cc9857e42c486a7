// maths:  logits after bias, mask and penalties, as `adjust` of the twin; what cannot be drawn is -1e30
// shapes: logits [rows, vocab], adjusted [rows, vocab]
// grid:   x = ceil(vocab / WORKGROUP), y = row of the logits
// knobs:  WORKGROUP
// twin:   src/backend/cpu/kernels/sample.rs

#import step
#import rows
#import sampler

override WORKGROUP: u32 = 64u; // lanes: 64, 128, 256

struct Params {
    vocab: u32,
    stride: u32, // of the logits; adjusted ones are dense
    slots: u32,
    context: u32,
    packed_rows: u32, // rows of the step where rows of the logits are its emitting ones, else 0
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> step: StepTable;
@group(0) @binding(2) var<storage, read> samplers: array<Sampler>; // [slots]
@group(0) @binding(3) var<storage, read> logits: array<f32>; // [rows, vocab]
@group(0) @binding(4) var<storage, read> mask: array<u32>; // [slots, vocab / 32]
@group(0) @binding(5) var<storage, read> bias: array<vec2<u32>>; // [slots, MAX_BIAS]
@group(0) @binding(6) var<storage, read> history: array<u32>; // [slots, context + 1]
@group(0) @binding(7) var<storage, read_write> adjusted: array<f32>; // [rows, vocab]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let behind = step_row(id.y, params.packed_rows);
    if id.x >= params.vocab || behind == NO_ROW {
        return;
    }
    let row = step[behind];
    let slot = row.sampler_slot;
    if !emits(row) || slot >= params.slots {
        return;
    }
    let settings = samplers[slot];
    var logit = logits[id.y * params.stride + id.x];
    for (var i = 0u; i < min(settings.bias_count, MAX_BIAS); i++) {
        let entry = bias[slot * MAX_BIAS + i];
        if entry.x == id.x {
            logit += bitcast<f32>(entry.y);
        }
    }
    let past = min(row.position + 1u, params.context);
    let first = past - min(past, settings.repeat_last_n);
    var count = 0u;
    for (var i = first; i < past; i++) {
        if history[slot * (params.context + 1u) + i] == id.x {
            count += 1u;
        }
    }
    if count > 0u {
        logit = select(logit * settings.repetition_penalty, logit / settings.repetition_penalty, logit > 0.0);
        logit -= settings.presence_penalty + settings.frequency_penalty * f32(count);
    }
    let words = (params.vocab + 31u) / 32u;
    let allowed = (settings.flags & MASKED) == 0u || ((mask[slot * words + id.x / 32u] >> (id.x % 32u)) & 1u) == 1u;
    let bits = bitcast<u32>(logit);
    let nan = (bits & 0x7f800000u) == 0x7f800000u && (bits & 0x007fffffu) != 0u;
    adjusted[id.y * params.vocab + id.x] = select(max(logit, -1e30), -1e30, nan || !allowed);
}

// maths:  temperature, top-k, top-p, min-p, then one Philox number through the inverse CDF in id order;
//         thresholds are found by bisecting the ordered bits of the logits, so nothing is sorted
// shapes: logits, adjusted [rows, vocab]; ids [slots, ID_RING]
// grid:   y = row of the logits; one workgroup walks the vocabulary
// knobs:  REDUCE = lib/reduce_subgroup, lib/reduce_workgroup; WORKGROUP
// twin:   src/backend/cpu/kernels/sample.rs

#import step
#import rows
#import sampler
#import philox
#import REDUCE

override WORKGROUP: u32 = 256u; // lanes: 64, 128, 256

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
@group(0) @binding(4) var<storage, read> adjusted: array<f32>; // [rows, vocab]
@group(0) @binding(5) var<storage, read> end_ids: array<u32>; // [MAX_END_IDS]
@group(0) @binding(6) var<storage, read_write> drawn: array<u32>; // [slots]
@group(0) @binding(7) var<storage, read_write> history: array<u32>; // [slots, context + 1]
@group(0) @binding(8) var<storage, read_write> ids: array<IdRecord>; // [slots, ID_RING]
@group(0) @binding(9) var<storage, read> status: array<u32>; // [1]

var<workgroup> lane_value: array<f32, WORKGROUP>;
var<workgroup> lane_id: array<u32, WORKGROUP>;
var<workgroup> chosen: u32;

// Which logits are kept: those with a key above `key`, and of those equal to it the `ties` lowest ids.
struct Kept {
    key: u32,
    ties: f32,
}

// Bits that order as the numbers do.
fn ordered(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn weight_of(logit: f32, best: f32, temperature: f32) -> f32 {
    return exp(max((logit - best) / temperature, -200.0));
}

// Count (x) and weight (y) of the logits with a key of at least `key`, and weight of those above it (z).
fn above(base: u32, key: u32, best: f32, temperature: f32, in: Entry) -> vec4<f32> {
    var sums = vec4<f32>(0.0);
    for (var i = in.lane; i < params.vocab; i += WORKGROUP) {
        let logit = adjusted[base + i];
        let own = ordered(logit);
        let weight = weight_of(logit, best, temperature);
        if own >= key && weight > 1e-37 {
            sums.x += 1.0;
            sums.y += weight;
            if own > key {
                sums.z += weight;
                sums.w += 1.0;
            }
        }
    }
    workgroupBarrier();
    let total = reduce_add(sums, in);
    workgroupBarrier();
    return total;
}

fn top_k(base: u32, k: u32, best: f32, temperature: f32, in: Entry) -> Kept {
    let all = above(base, 0u, best, temperature, in);
    if k == 0u || all.x <= f32(k) {
        return Kept(0u, f32(params.vocab));
    }
    var key = 0u;
    for (var bit = 32u; bit > 0u; bit--) {
        let candidate = key | (1u << (bit - 1u));
        if above(base, candidate, best, temperature, in).x >= f32(k) {
            key = candidate;
        }
    }
    return Kept(key, f32(k) - above(base, key, best, temperature, in).w);
}

fn top_p(base: u32, kept: Kept, p: f32, best: f32, temperature: f32, in: Entry) -> Kept {
    if p >= 1.0 {
        return kept;
    }
    let edge = above(base, kept.key, best, temperature, in);
    let tied = max(edge.x - edge.w, 1.0);
    let tie_weight = (edge.y - edge.z) / tied;
    let total = edge.z + min(kept.ties, tied) * tie_weight;
    let wanted = p * total;
    var key = 0u; // all of `total` lies at or above any key up to that of `kept`
    for (var bit = 32u; bit > 0u; bit--) {
        let candidate = key | (1u << (bit - 1u));
        if candidate <= kept.key || above(base, candidate, best, temperature, in).y >= wanted {
            key = candidate;
        }
    }
    if key <= kept.key {
        let needed = ceil((wanted - edge.z) / max(tie_weight, 1e-37));
        return Kept(kept.key, clamp(needed, 1.0, kept.ties));
    }
    let found = above(base, key, best, temperature, in);
    let each = (found.y - found.z) / max(found.x - found.w, 1.0);
    return Kept(key, max(ceil((wanted - found.z) / max(each, 1e-37)), 1.0));
}

@compute @workgroup_size(WORKGROUP)
fn main(in: Entry) {
    let behind = step_row(in.group.y, params.packed_rows);
    if behind == NO_ROW {
        return;
    }
    let row = step[behind];
    let slot = row.sampler_slot;
    if !emits(row) || slot >= params.slots {
        return;
    }
    let base = in.group.y * params.vocab;
    let raw = in.group.y * params.stride;
    let settings = samplers[slot];

    // 1. Whether all is finite, and the normaliser of the model's own logits.
    var largest = -1e30;
    var bad = 0.0;
    for (var i = in.lane; i < params.vocab; i += WORKGROUP) {
        let logit = logits[raw + i];
        let finite = (bitcast<u32>(logit) & 0x7f800000u) != 0x7f800000u;
        bad += select(1.0, 0.0, finite);
        largest = max(largest, select(-1e30, logit, finite));
    }
    largest = reduce_max(largest, in);
    workgroupBarrier();
    var sum = 0.0;
    for (var i = in.lane; i < params.vocab; i += WORKGROUP) {
        sum += exp(max(logits[raw + i] - largest, -200.0));
    }
    let sums = reduce_add(vec4(sum, bad, 0.0, 0.0), in);
    workgroupBarrier();

    // 2. The largest adjusted logit; the lowest id of equals.
    var own_best = -2e30;
    var own_id = 0u;
    for (var i = in.lane; i < params.vocab; i += WORKGROUP) {
        let logit = adjusted[base + i];
        if logit > own_best {
            own_best = logit;
            own_id = i;
        }
    }
    lane_value[in.lane] = own_best;
    lane_id[in.lane] = own_id;
    workgroupBarrier();
    var best = lane_value[0];
    var id = lane_id[0];
    for (var lane = 1u; lane < WORKGROUP; lane++) {
        if lane_value[lane] > best || (lane_value[lane] == best && lane_id[lane] < id) {
            best = lane_value[lane];
            id = lane_id[lane];
        }
    }
    workgroupBarrier();

    // 3. One draw among what is kept.
    if settings.temperature > 0.0 && best > -1e30 {
        let temperature = settings.temperature;
        var kept = top_k(base, settings.top_k, best, temperature, in);
        kept = top_p(base, kept, settings.top_p, best, temperature, in);
        let chunk = (params.vocab + WORKGROUP - 1u) / WORKGROUP;
        let first = min(in.lane * chunk, params.vocab);
        let last = min(first + chunk, params.vocab);
        var ties = 0u;
        for (var i = first; i < last; i++) {
            ties += select(0u, 1u, ordered(adjusted[base + i]) == kept.key);
        }
        lane_id[in.lane] = ties;
        workgroupBarrier();
        var before = 0u;
        for (var lane = 0u; lane < in.lane; lane++) {
            before += lane_id[lane];
        }
        var mass = 0.0;
        var rank = before;
        for (var i = first; i < last; i++) {
            mass += kept_weight(adjusted[base + i], kept, rank, best, settings);
            rank += select(0u, 1u, ordered(adjusted[base + i]) == kept.key);
        }
        lane_value[in.lane] = mass;
        chosen = id;
        workgroupBarrier();
        var total = 0.0;
        var below = 0.0;
        for (var lane = 0u; lane < WORKGROUP; lane++) {
            below = select(below, total, lane == in.lane);
            total += lane_value[lane];
        }
        let word = philox(vec4(row.position, 0u, 0u, 0u), vec2(settings.seed_low, settings.seed_high)).x;
        let wanted = f32(word >> 8u) / 16777216.0 * total;
        if mass > 0.0 && wanted >= below && wanted < below + mass {
            var seen = below;
            rank = before;
            for (var i = first; i < last; i++) {
                let weight = kept_weight(adjusted[base + i], kept, rank, best, settings);
                rank += select(0u, 1u, ordered(adjusted[base + i]) == kept.key);
                seen += weight;
                if weight > 0.0 {
                    chosen = i; // the last one with weight, should rounding pass the end
                    if seen > wanted {
                        break;
                    }
                }
            }
        }
        workgroupBarrier();
        id = chosen;
    }

    // 4. The record.
    if in.lane == 0u {
        var flags = 0u;
        for (var i = 0u; i < MAX_END_IDS; i++) {
            flags |= select(0u, DREW_END, end_ids[i] == id);
        }
        flags |= select(0u, NOT_FINITE, sums.y > 0.0 || status[0] != 0xffffffffu);
        let past = min(row.position + 1u, params.context);
        history[slot * (params.context + 1u) + past] = id;
        drawn[slot] = id;
        ids[slot * ID_RING + row.position % ID_RING] = IdRecord(
            id,
            logits[raw + id] - largest - log(sums.x),
            flags,
            row.position,
            row.sequence,
            status[0],
            0u,
            0u,
        );
    }
}

// The weight of a logit that is kept, else 0; `rank` counts equal keys of lower ids.
fn kept_weight(logit: f32, kept: Kept, rank: u32, best: f32, settings: Sampler) -> f32 {
    let own = ordered(logit);
    if own < kept.key || (own == kept.key && f32(rank) >= kept.ties) {
        return 0.0;
    }
    let weight = weight_of(logit, best, settings.temperature);
    return select(weight, 0.0, weight < settings.min_p && logit < best);
}

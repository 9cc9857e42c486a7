// maths:  the next step of every row that has just drawn an id; a row that drew an end token stops
// shapes: samplers [slots], ids [slots, ID_RING], step [rows]
// grid:   x = ceil(rows / 64)
// knobs:  none
// twin:   src/backend/cpu/kernels/advance.rs

#import step
#import sampler

struct Params {
    rows: u32,
    slots: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> samplers: array<Sampler>; // [slots]
@group(0) @binding(3) var<storage, read> ids: array<IdRecord>; // [slots, ID_RING]
@group(0) @binding(4) var<storage, read_write> step: array<StepRow>; // [rows]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.rows {
        return;
    }
    let row = step[id.x];
    if !emits(row) {
        return;
    }
    let slot = row.sampler_slot;
    if slot >= params.slots {
        return;
    }
    let drawn = ids[slot * ID_RING + row.position % ID_RING];
    if (drawn.flags & DREW_END) != 0u && (samplers[slot].flags & IGNORE_END) == 0u {
        step[id.x].flags = row.flags & ~ACTIVE;
        return;
    }
    step[id.x].token = FROM_SLOT | slot;
    step[id.x].position = row.position + 1u;
    step[id.x].kv_len = row.kv_len + 1u;
}

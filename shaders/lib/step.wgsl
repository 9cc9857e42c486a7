// One row of the step table, as `program::StepRow`, and the tests every kernel makes of it.

struct StepRow {
    token: u32,
    sequence: u32,
    position: u32,
    kv_len: u32,
    block_table_base: u32,
    state_slot: u32,
    sampler_slot: u32,
    flags: u32,
}

const FROM_SLOT: u32 = 0x80000000u;
const ACTIVE: u32 = 1u;
const EMIT: u32 = 2u;
const MAX_STEP_ROWS: u32 = 512u;

alias StepTable = array<StepRow, MAX_STEP_ROWS>;

fn is_active(row: StepRow) -> bool {
    return (row.flags & ACTIVE) != 0u;
}

fn emits(row: StepRow) -> bool {
    return (row.flags & (ACTIVE | EMIT)) == (ACTIVE | EMIT);
}

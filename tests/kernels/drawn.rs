//! Builders of one-op programs that draw ids and advance the step.

use thintensor::program::{
    BufferName, ID_RING, IdRecord, MAX_BIAS, MAX_END_IDS, Op, RowSet, SamplerRecord, StepRow,
};

use crate::case::Case;
use crate::compare::Kind;
use crate::setup::{OneOp, Setup};

/// Puts the rows on slots in reverse order, at positions from `position` on; "beyond" is a slot there is
/// not. Returns how many slots there are.
fn slots(setup: &mut Setup, case: &Case) -> u32 {
    let slots = case.int_or("slots", setup.step.len() as u32);
    let position = case.int_or("position", 5);
    let beyond = case.flag("beyond");
    for (row, step) in (0u32..).zip(&mut setup.step) {
        step.sampler_slot = slots - 1 - row % slots;
        if beyond {
            step.sampler_slot = [slots, u32::MAX, slots + 1][row as usize % 3];
        }
        step.position = position + row;
        step.kv_len = step.position + 1;
    }
    slots
}

/// Where a row's record lies in the ring of drawn ids, in bytes.
fn ring(row: &StepRow) -> usize {
    (row.sampler_slot * ID_RING + row.position % ID_RING) as usize * size_of::<IdRecord>()
}

/// The settings are those of [`SamplerRecord`]; `masked` allows every third id, `bias` is how many there
/// are, `ends` makes some likely ids end a text, `spread` is how far logits lie apart.
pub(crate) fn sample(mut setup: Setup, case: &Case) -> OneOp {
    let (vocab, context) = (case.int("vocab"), case.int_or("context", 64));
    let slots = slots(&mut setup, case);
    let rows = if case.flag("packed") { RowSet::Emitted } else { RowSet::Step };
    let masked = case.flag("masked");
    let bias_count = case.int_or("bias", 0);
    let flag = |set: bool, flag| if set { flag } else { 0 };
    let settings: Vec<SamplerRecord> = (0..slots)
        .map(|slot| SamplerRecord {
            temperature: case.float_or("temperature", 0.0),
            top_k: case.int_or("top_k", 0),
            top_p: case.float_or("top_p", 1.0),
            min_p: case.float_or("min_p", 0.0),
            repetition_penalty: case.float_or("repetition_penalty", 1.0),
            presence_penalty: case.float_or("presence_penalty", 0.0),
            frequency_penalty: case.float_or("frequency_penalty", 0.0),
            repeat_last_n: case.int_or("repeat_last_n", 64),
            seed_low: case.int_or("seed", 1) + slot,
            seed_high: 7,
            flags: flag(masked, SamplerRecord::MASKED),
            bias_count,
            reserved: [0; 4],
        })
        .collect();
    setup.table(BufferName::Samplers, &settings);
    let words = vocab.div_ceil(32);
    let mask: Vec<u32> = (0..slots * words).map(|_| 0x4924_9249).collect();
    setup.table(BufferName::Mask, &mask);
    // Ids of biases may lie beyond the vocabulary; those have no effect.
    let bias: Vec<[u32; 2]> = (0..slots * MAX_BIAS)
        .map(|_| [setup.random.below(vocab + 9), (setup.random.number() * 8.0).to_bits()])
        .collect();
    setup.table(BufferName::Bias, &bias);
    let mut ends = vec![u32::MAX; MAX_END_IDS as usize];
    if case.flag("ends") {
        ends.iter_mut().for_each(|end| *end = setup.random.below(vocab));
    }
    setup.table(BufferName::EndIds, &ends);
    let (history, drawn): (Vec<u32>, Vec<u32>) = (
        (0..slots * (context + 1)).map(|_| setup.random.below(vocab + 1)).collect(),
        (0..slots).map(|_| setup.random.below(vocab)).collect(),
    );
    setup.table(BufferName::History, &history);
    setup.table(BufferName::Drawn, &drawn);
    let ids = vec![0xffu8; (slots * ID_RING) as usize * size_of::<IdRecord>()];
    setup.table(BufferName::Ids, &ids);
    setup.table(BufferName::Status, &[case.int_or("status", u32::MAX)]);

    let logits = setup.view(BufferName::Logits, vocab, 0);
    let spread = case.float_or("spread", 8.0);
    for row in 0..setup.packed_rows() {
        let mut numbers: Vec<f32> =
            setup.random.numbers(vocab as usize).iter().map(|x| x * spread).collect();
        for &end in ends.iter().filter(|&&end| end < vocab) {
            numbers[end as usize] += spread;
        }
        if case.flag("ties") {
            numbers.iter_mut().for_each(|number| *number = number.round());
        }
        if case.flag("nan") {
            numbers[vocab as usize / 2] = f32::NAN;
        }
        setup.set_row(&logits, row, &numbers);
    }
    let emitting = setup.rows(rows).into_iter().filter(|(_, row)| row.emits());
    for (_, row) in emitting.filter(|(_, row)| row.sampler_slot < slots).collect::<Vec<_>>() {
        let slot = row.sampler_slot as usize;
        let past = (row.position + 1).min(context) as usize;
        let entry = (slot * (context as usize + 1) + past) * 4;
        setup.writes(BufferName::Drawn, slot * 4..slot * 4 + 4, Kind::Bits);
        setup.writes(BufferName::History, entry..entry + 4, Kind::Bits);
        // The second word is the log-probability.
        let record = ring(&row);
        setup.writes(BufferName::Ids, record..record + 4, Kind::Bits);
        setup.writes(BufferName::Ids, record + 4..record + 8, Kind::LogProbs);
        setup.writes(BufferName::Ids, record + 8..record + size_of::<IdRecord>(), Kind::Bits);
    }
    setup.finish(vec![Op::Sample { logits, rows, context }])
}

/// Every second drawn id ends a text; `ignore_end` goes on all the same.
pub(crate) fn advance(mut setup: Setup, case: &Case) -> OneOp {
    let slots = slots(&mut setup, case);
    let flags = if case.flag("ignore_end") { SamplerRecord::IGNORE_END } else { 0 };
    let settings = vec![SamplerRecord { flags, ..SamplerRecord::default() }; slots as usize];
    setup.table(BufferName::Samplers, &settings);
    let ids: Vec<IdRecord> = (0..slots * ID_RING)
        .map(|_| IdRecord {
            id: setup.random.word(),
            flags: setup.random.below(2) * IdRecord::END,
            ..IdRecord::default()
        })
        .collect();
    setup.table(BufferName::Ids, &ids);
    let record = size_of::<StepRow>();
    for row in 0..setup.step.len() {
        let step = setup.step[row];
        if step.emits() && step.sampler_slot < slots {
            setup.writes(BufferName::Step, row * record..(row + 1) * record, Kind::Bits);
        }
    }
    setup.finish(vec![Op::Advance])
}

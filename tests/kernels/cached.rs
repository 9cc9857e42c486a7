//! Builders of one-op programs over the KV pool.
//!
//! Row r is at position `kv_len[r] - 1`, the list repeated as often as needed. Each row is a sequence of its
//! own, or all are one sequence (`shared`); the blocks of a sequence are spread over the pool.

use thintensor::plan::{KV_BLOCK, KvFormat, KvLayout};
use thintensor::program::{BufferName, Op, RowSet};
use thintensor::quant::float::{f32_to_bf16, f32_to_f16};

use crate::case::Case;
use crate::compare::Kind;
use crate::setup::{OneOp, Setup};

/// The pool of a case and which block each sequence finds where.
struct Pool {
    layout: KvLayout,
    table: Vec<u32>,
}

impl Pool {
    /// First byte of a head's key or value of a row's position.
    fn byte(&self, base: u32, kv_head: u32, values: bool, position: u32) -> usize {
        let entry = (base + position / KV_BLOCK) as usize;
        let block = self.table[entry.min(self.table.len() - 1)].min(self.layout.blocks - 1);
        let element = self.layout.element(kv_head, block, values, position % KV_BLOCK);
        element * self.layout.format.bytes() as usize
    }
}

/// `hostile`: "none", "blocks" (table entries beyond the pool) or "base" (a row's table beyond the table).
fn pool(setup: &mut Setup, case: &Case) -> Pool {
    let format = match case.text_or("kv", "f32") {
        "f32" => KvFormat::F32,
        "f16" => KvFormat::F16,
        "bf16" => KvFormat::BF16,
        other => panic!("kv = '{other}'"),
    };
    let lengths = case.list("kv_len");
    let shared = case.flag("shared");
    let longest = lengths.iter().max().copied().expect("a length") + setup.step.len() as u32;
    let per_sequence = longest.div_ceil(KV_BLOCK);
    let sequences = if shared { 1 } else { setup.step.len() as u32 };
    let layout = KvLayout {
        format,
        kv_heads: case.int("kv_heads"),
        head_dim: case.int("head_dim"),
        // One more than needed, so that an index one too far shows.
        blocks: sequences * per_sequence + 1,
    };
    let mut table = setup.random.permutation(layout.blocks);
    table.truncate((sequences * per_sequence) as usize);
    let hostile = case.text_or("hostile", "none");
    match hostile {
        "none" | "base" => {}
        "blocks" => table.iter_mut().step_by(2).for_each(|block| *block = u32::MAX - *block),
        other => panic!("hostile = '{other}'"),
    }
    for (row, step) in (0u32..).zip(&mut setup.step) {
        step.kv_len = if shared { lengths[0] + row } else { lengths[row as usize % lengths.len()] };
        step.position = step.kv_len - 1;
        step.sequence = if shared { 0 } else { row };
        step.block_table_base = match hostile {
            "base" => table.len() as u32 + 1000 * row,
            _ => step.sequence * per_sequence,
        };
    }
    setup.shape.kv_capacity = case.int_or("capacity", longest);
    setup.table(BufferName::BlockTable, &table);
    Pool { layout, table }
}

/// Stored numbers in a pool's format.
fn encoded(numbers: &[f32], format: KvFormat) -> Vec<u8> {
    let narrow = |narrow: fn(f32) -> u16| {
        numbers.iter().flat_map(|&number| narrow(number).to_le_bytes()).collect()
    };
    match format {
        KvFormat::F32 => bytemuck::cast_slice(numbers).to_vec(),
        KvFormat::F16 => narrow(f32_to_f16),
        KvFormat::BF16 => narrow(f32_to_bf16),
    }
}

/// `values = "ties"`: numbers half-way between two of the stored format, and tiny ones.
pub(crate) fn kv_append(mut setup: Setup, case: &Case) -> OneOp {
    let pool = pool(&mut setup, case);
    let layout = pool.layout;
    let before = setup.random.numbers(layout.bytes() as usize / layout.format.bytes() as usize);
    setup.table(BufferName::Kv { layer: 0 }, &encoded(&before, layout.format));
    let width = layout.kv_heads * layout.head_dim;
    let pad = case.int_or("pad", 0);
    let k = setup.view(BufferName::Qkv, width, pad);
    let v = setup.view(BufferName::Projected, width, 2 * pad);
    if case.text_or("values", "random") == "ties" {
        for row in 0..setup.step.len() {
            let numbers: Vec<f32> = (0..width).map(|at| tie(at + row as u32)).collect();
            setup.set_row(&k, row, &numbers);
            setup.set_row(&v, row, &numbers);
        }
    }
    let head_bytes = layout.head_dim as usize * layout.format.bytes() as usize;
    for (_, row) in setup.rows(RowSet::Step) {
        for kv_head in 0..layout.kv_heads {
            for values in [false, true] {
                let at = pool.byte(row.block_table_base, kv_head, values, row.position);
                setup.writes(BufferName::Kv { layer: 0 }, at..at + head_bytes, Kind::Bits);
            }
        }
    }
    setup.finish(vec![Op::KvAppend { k, v, layer: 0, kv: layout }])
}

/// Half-way between neighbours of bf16 (8 bits) and of f16 (11 bits), below and above, and subnormals.
fn tie(index: u32) -> f32 {
    let step = (index / 6) as f32;
    match index % 6 {
        0 => 1.0 + (2.0 * step + 1.0) / 256.0,
        1 => 1.0 + (2.0 * step + 1.0) / 2048.0,
        2 => -1.0 - (2.0 * step + 1.0) / 2048.0 - 1e-6,
        3 => 65_504.0 - 32.0 * step,
        4 => (step + 0.5) * 5.960_464_5e-8, // the smallest f16 subnormal
        _ => -0.0,
    }
}

/// `ratio` query heads share a KV head; `window`, 0 for none. Numbers no row may see are large.
pub(crate) fn attention(mut setup: Setup, case: &Case) -> OneOp {
    let pool = pool(&mut setup, case);
    let layout = pool.layout;
    let window = Some(case.int_or("window", 0)).filter(|&window| window > 0);
    let count = layout.bytes() as usize / layout.format.bytes() as usize;
    let unseen: Vec<f32> = setup.random.numbers(count).iter().map(|x| x * 1e4).collect();
    let mut bytes = encoded(&unseen, layout.format);
    let head_dim = layout.head_dim as usize;
    let head_bytes = head_dim * layout.format.bytes() as usize;
    let equal_keys = case.flag("equal_keys");
    let value = case.float("value").map(|value| value as f32);
    for (_, row) in setup.rows(RowSet::Step) {
        let first = row.kv_len.saturating_sub(window.unwrap_or(row.kv_len));
        for position in first..row.kv_len.min(setup.shape.kv_capacity) {
            for kv_head in 0..layout.kv_heads {
                for values in [false, true] {
                    let numbers = match (values, equal_keys, value) {
                        (false, true, _) => vec![0.5; head_dim],
                        (true, _, Some(value)) => vec![value; head_dim],
                        (true, true, None) => vec![position as f32; head_dim],
                        _ => setup.random.numbers(head_dim),
                    };
                    let at = pool.byte(row.block_table_base, kv_head, values, position);
                    bytes[at..at + head_bytes].copy_from_slice(&encoded(&numbers, layout.format));
                }
            }
        }
    }
    setup.table(BufferName::Kv { layer: 0 }, &bytes);
    let heads = layout.kv_heads * case.int("ratio");
    let q = setup.view(BufferName::Qkv, heads * layout.head_dim, case.int_or("pad", 0));
    let out = setup.view(BufferName::Attended, heads * layout.head_dim, 0);
    setup.writes_view(&out, RowSet::Step);
    let scale = case.float("scale").unwrap_or_else(|| 1.0 / f64::from(layout.head_dim).sqrt());
    let scale = scale as f32;
    setup.finish(vec![Op::Attention { q, out, layer: 0, kv: layout, heads, scale, window }])
}

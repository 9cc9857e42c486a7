//! Builders of one-op programs from cases: the ops that work on activations and weights. Those that work
//! on the KV pool and on ids are in `cached` and `drawn`.

use thintensor::format::{Role, Vector};
use thintensor::model::{Activation, RopeScaling, RopeSpec, rope::RopeTable};
use thintensor::program::{BufferName, Op, RowSet, StepRow, View};

use crate::case::Case;
use crate::setup::{OneOp, Random, Setup};
use crate::{cached, drawn};

/// The program of a case of a kernel.
pub(crate) fn build(kernel: &str, case: &Case) -> OneOp {
    let setup = Setup::new(case);
    match kernel {
        "embed" => embed(setup, case),
        "rms_norm" => rms_norm(setup, case),
        "matmul" => matmul(setup, case),
        "add_bias" => add_bias(setup, case),
        "rope" => rope(setup, case),
        "kv_append" => cached::kv_append(setup, case),
        "attention" => cached::attention(setup, case),
        "gated_act" => gated_act(setup, case),
        "add" => add(setup, case),
        "check_finite" => check_finite(setup, case),
        "keep" => keep(setup, case),
        "select_rows" => select_rows(setup, case),
        "sample" => drawn::sample(setup, case),
        "advance" => drawn::advance(setup, case),
        other => panic!("tests/kernels/ops.rs has no builder for '{other}'"),
    }
}

/// Numbers between -1 and 1.
pub(crate) fn any(random: &mut Random, _row: u32, _col: u32) -> f32 {
    random.number()
}

/// The numbers of the rows an op must not read: a NaN shows in whatever is made from it.
fn poison_inactive(setup: &mut Setup, view: &View) {
    let inactive: Vec<usize> =
        (0..setup.step.len()).filter(|&row| !setup.step[row].is_active()).collect();
    for row in inactive {
        setup.set_row(view, row, &vec![f32::NAN; view.width as usize]);
    }
}

fn row_set(case: &Case) -> RowSet {
    if case.flag("packed") { RowSet::Emitted } else { RowSet::Step }
}

/// `tokens`: "random", "borders" (of the table and of its parts), "beyond" the vocabulary, "slots" (drawn
/// before), "beyond_slots" and "beyond_drawn" (a slot, or the id in it, that does not exist).
fn embed(mut setup: Setup, case: &Case) -> OneOp {
    let (vocab, hidden) = (case.int("vocab"), case.int("hidden"));
    let slots = case.int_or("slots", 3);
    let tokens = case.text_or("tokens", "random").to_owned();
    let part_rows = case.int_or("part_rows", vocab);
    for row in 0..setup.step.len() {
        let (slot, random) = (row as u32 % slots, &mut setup.random);
        setup.step[row].token = match tokens.as_str() {
            "random" => random.below(vocab),
            "borders" => {
                let border = (row as u32 / 2 + 1) * part_rows;
                [vocab - 1, 0, border - 1, border][row % 4].min(vocab - 1)
            }
            "beyond" => [vocab, (1 << 31) - 1, vocab + random.below(1000)][row % 3],
            "slots" | "beyond_drawn" => StepRow::FROM_SLOT | slot,
            "beyond_slots" => StepRow::FROM_SLOT | [slots, (1 << 31) - 1][row % 2],
            other => panic!("tokens = '{other}'"),
        };
    }
    let drawn: Vec<u32> = (0..slots)
        .map(|_| match tokens.as_str() {
            "beyond_drawn" => vocab + setup.random.below(u32::MAX - vocab),
            _ => setup.random.below(vocab),
        })
        .collect();
    setup.table(BufferName::Drawn, &drawn);
    let table = setup.matrix(case, Role::Embed, [vocab, hidden], any);
    let out = setup.view(BufferName::Residual, hidden, case.int_or("pad", 0));
    setup.writes_view(&out, RowSet::Step);
    setup.finish(vec![Op::Embed { table, out }])
}

/// `heads` runs of `hidden` columns, `in_place` or not; `zeros` makes one row all zero.
fn rms_norm(mut setup: Setup, case: &Case) -> OneOp {
    let (hidden, heads) = (case.int("hidden"), case.int_or("heads", 1));
    let (pad, rows) = (case.int_or("pad", 0), row_set(case));
    let weight = setup.vector(Vector::AttnNorm, hidden);
    let (from, to) = match (rows, case.flag("in_place")) {
        (RowSet::Emitted, true) => (BufferName::Emitted, BufferName::Emitted),
        (RowSet::Emitted, false) => panic!("packed rows are normalised in place"),
        (RowSet::Step, true) => (BufferName::Qkv, BufferName::Qkv),
        (RowSet::Step, false) => (BufferName::Residual, BufferName::Normed),
    };
    let x = setup.view(from, heads * hidden, pad);
    let out = if from == to { x } else { setup.view(to, heads * hidden, 2 * pad) };
    if rows == RowSet::Step {
        poison_inactive(&mut setup, &x);
    }
    if case.flag("zeros") {
        let last = setup.step.len() - 1;
        setup.set_row(&x, last, &vec![0.0; x.width as usize]);
    }
    setup.writes_view(&out, rows);
    setup.finish(vec![Op::RmsNorm { x, weight, out, eps: case.float_or("eps", 1e-5), rows }])
}

/// `[n, k]`; `values`: "random", or "32" and "cancelling" of field report R21.
fn matmul(mut setup: Setup, case: &Case) -> OneOp {
    let (n, k, pad, rows) = (case.int("n"), case.int("k"), case.int_or("pad", 0), row_set(case));
    let values = case.text_or("values", "random").to_owned();
    let weight = setup.matrix(case, Role::AttnOut, [n, k], |random, _, _| match values.as_str() {
        "random" => random.number(),
        _ => 32.0,
    });
    let (from, to) = match rows {
        RowSet::Step => (BufferName::Attended, BufferName::Projected),
        RowSet::Emitted => (BufferName::Emitted, BufferName::Logits),
    };
    let x = setup.view(from, k, pad);
    let out = setup.view(to, n, pad);
    for row in 0..setup.step.len() {
        match values.as_str() {
            "random" => {}
            "32" => setup.set_row(&x, row, &vec![32.0; k as usize]),
            "cancelling" => {
                let x_row: Vec<f32> =
                    (0..k).map(|c| if c < k / 2 { 32.0 } else { -32.0 }).collect();
                setup.set_row(&x, row, &x_row);
            }
            other => panic!("values = '{other}'"),
        }
    }
    if rows == RowSet::Step {
        poison_inactive(&mut setup, &x);
    }
    setup.writes_view(&out, rows);
    setup.finish(vec![Op::MatMul { weight, x, out, rows }])
}

fn add_bias(mut setup: Setup, case: &Case) -> OneOp {
    let width = case.int("width");
    let bias = setup.vector(Vector::AttnQkvBias, width);
    let x = setup.view(BufferName::Qkv, width, case.int_or("pad", 0));
    setup.writes_view(&x, RowSet::Step);
    setup.finish(vec![Op::AddBias { x, bias }])
}

/// Row r is at position `position + 3 r`; `rotary_dim` is `head_dim` unless given.
fn rope(mut setup: Setup, case: &Case) -> OneOp {
    let (heads, head_dim) = (case.int("heads"), case.int("head_dim"));
    let rotary_dim = case.int_or("rotary_dim", head_dim);
    let position = case.int_or("position", 0);
    for (row, step) in (0u32..).zip(&mut setup.step) {
        step.position = position + 3 * row;
        step.kv_len = step.position + 1;
    }
    let spec = RopeSpec {
        rotary_dim,
        rope_theta: case.float("theta").unwrap_or(10_000.0),
        scaling: RopeScaling::Default,
    };
    setup.table(BufferName::Rope { table: 0 }, &RopeTable::new(&spec).inv_freq);
    let x = setup.view(BufferName::Qkv, heads * head_dim, case.int_or("pad", 0));
    setup.writes_view(&x, RowSet::Step);
    let attention_factor = case.float_or("factor", 1.0);
    setup.finish(vec![Op::Rope { x, table: 0, head_dim, rotary_dim, attention_factor }])
}

/// `scale` multiplies the inputs, to reach the flat ends of the activation.
fn gated_act(mut setup: Setup, case: &Case) -> OneOp {
    let (ffn, scale) = (case.int("ffn"), case.float_or("scale", 4.0));
    let act = match case.text_or("act", "silu") {
        "silu" => Activation::Silu,
        "gelu_tanh" => Activation::GeluTanh,
        other => panic!("act = '{other}'"),
    };
    let x = setup.view(BufferName::GateUp, 2 * ffn, case.int_or("pad", 0));
    let out = setup.view(BufferName::Ffn, ffn, 0);
    for row in 0..setup.step.len() {
        let numbers: Vec<f32> =
            setup.random.numbers(2 * ffn as usize).iter().map(|x| x * scale).collect();
        setup.set_row(&x, row, &numbers);
    }
    poison_inactive(&mut setup, &x);
    setup.writes_view(&out, RowSet::Step);
    setup.finish(vec![Op::GatedAct { x, out, act }])
}

fn add(mut setup: Setup, case: &Case) -> OneOp {
    let (width, pad) = (case.int("width"), case.int_or("pad", 0));
    let x = setup.view(BufferName::Residual, width, pad);
    let y = setup.view(BufferName::Projected, width, 2 * pad);
    poison_inactive(&mut setup, &y);
    setup.writes_view(&x, RowSet::Step);
    setup.finish(vec![Op::Add { x, y }])
}

/// `bad`: "none", or what stands at `column` of the last row that `active` chooses; `status` before.
fn check_finite(mut setup: Setup, case: &Case) -> OneOp {
    let (width, layer) = (case.int("width"), case.int_or("layer", 3));
    let x = setup.view(BufferName::Residual, width, case.int_or("pad", 0));
    let bad = match case.text_or("bad", "none") {
        "none" => None,
        "nan" => Some(f32::NAN),
        "inf" => Some(f32::INFINITY),
        "-inf" => Some(f32::NEG_INFINITY),
        "largest" => Some(f32::MAX),
        other => panic!("bad = '{other}'"),
    };
    let column = case.int_or("column", 0).min(width - 1) as usize;
    let active = !case.flag("inactive");
    let row = (0..setup.step.len()).rev().find(|&row| setup.step[row].is_active() == active);
    if let (Some(bad), Some(row)) = (bad, row) {
        let mut numbers = setup.random.numbers(width as usize);
        numbers[column] = bad;
        setup.set_row(&x, row, &numbers);
    }
    setup.table(BufferName::Status, &[case.int_or("status", u32::MAX)]);
    setup.writes(BufferName::Status, 0..4, crate::compare::Kind::Bits);
    setup.finish(vec![Op::CheckFinite { x, layer }])
}

fn keep(mut setup: Setup, case: &Case) -> OneOp {
    let (width, pad) = (case.int("width"), case.int_or("pad", 0));
    let x = setup.view(BufferName::Residual, width, pad);
    let out = setup.view(BufferName::Hidden { tap: 1 }, width, 2 * pad);
    poison_inactive(&mut setup, &x);
    setup.writes_view(&out, RowSet::Step);
    setup.finish(vec![Op::Keep { x, out }])
}

fn select_rows(mut setup: Setup, case: &Case) -> OneOp {
    let (width, pad) = (case.int("width"), case.int_or("pad", 0));
    let x = setup.view(BufferName::Residual, width, pad);
    let out = setup.view(BufferName::Emitted, width, 2 * pad);
    poison_inactive(&mut setup, &x);
    setup.writes_view(&out, RowSet::Emitted);
    setup.finish(vec![Op::SelectRows { x, out }])
}

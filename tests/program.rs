//! Programs as text: what the decoder builds for each idea an architecture may have, and what the check
//! refuses.
//!
//!     BLESS=1 cargo test --test program     writes the texts of tests/golden anew; review them as code

use std::path::Path;
use std::{env, fs};

use thintensor::backend::{self, Backend as _, cpu::Cpu};
use thintensor::model::ModelSpec;
use thintensor::plan::{GroupId, KvFormat, Plan, PlanOptions};
use thintensor::program::check::{Fault, check};
use thintensor::program::print::print;
use thintensor::program::{BufferName, LogitRows, Op, Program, RowSet, StepShape, View, decoder};
use thintensor::quant::Format;

mod tiny;

use tiny::Tiny;

const DECODE: StepShape =
    StepShape { rows: 1, kv_capacity: 256, logits: LogitRows::All, sample: true, hidden: false };
const PREFILL: StepShape = StepShape { rows: 32, logits: LogitRows::One, ..DECODE };
const CHUNK: StepShape = StepShape { logits: LogitRows::None, sample: false, ..PREFILL };
const LOGITS: StepShape =
    StepShape { rows: 32, logits: LogitRows::All, sample: false, hidden: true, ..DECODE };

fn program(spec: &ModelSpec, format: Format, shape: StepShape) -> Program {
    let tiny = Tiny::new(spec, format, 1);
    let options = PlanOptions { context: 512, sequences: 1, kv_format: KvFormat::BF16 };
    let plan = Plan::new(&tiny.manifest, &tiny.records, spec, options).expect("a whole model");
    decoder::build(spec, &plan, shape)
}

/// Compares the programs of some shapes with `tests/golden/program-NAME.txt`, once each passed the check.
fn assert_programs(name: &str, spec: &ModelSpec, format: Format, shapes: &[StepShape]) {
    let texts: Vec<String> = shapes
        .iter()
        .map(|&shape| {
            let program = program(spec, format, shape);
            check(&program).expect("the decoder builds what the check accepts");
            print(&program)
        })
        .collect();
    let found = texts.join("\n");
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/program-{name}.txt"));
    if env::var_os("BLESS").is_some() {
        fs::write(&path, &found).expect("tests/golden can be written");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let differing = found
        .lines()
        .zip(expected.lines().chain(std::iter::repeat("")))
        .position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "program-{name}.txt differs from line {} on; BLESS=1 writes it anew. Found:\n{found}",
        differing.unwrap_or(0) + 1
    );
}

#[test]
fn llama_has_one_segment_and_fourteen_ops_a_layer() {
    assert_programs("llama", &tiny::llama(), Format::BF16, &[DECODE, PREFILL, CHUNK, LOGITS]);
}

#[test]
fn r29_a_tied_head_multiplies_by_the_embedding() {
    assert_programs("tied", &tiny::tied(), Format::F16, &[DECODE, PREFILL]);
}

#[test]
fn r30_every_bias_is_added_behind_its_matrix() {
    let spec = tiny::with_layers("biased", |_, layer| {
        (layer.qkv_bias, layer.attn_out_bias, layer.mlp_bias) = (true, true, true);
    });

    assert_programs("biases", &spec, Format::F32, &[DECODE, PREFILL]);
}

#[test]
fn qk_norm_comes_after_the_projection_and_before_rope() {
    let spec = tiny::with_layers("qwen3", |_, layer| layer.qk_norm = true);

    assert_programs("qk-norm", &spec, Format::BF16, &[DECODE, PREFILL]);
}

#[test]
fn r28_a_window_belongs_to_its_layer() {
    assert_programs("sliding-window", &tiny::windowed(8), Format::BF16, &[DECODE, PREFILL]);
}

#[test]
fn a_layer_without_positions_has_no_rope() {
    let spec = tiny::with_layers("smollm3", |index, layer| {
        layer.rope = Some(0).filter(|_| index != 1);
    });

    assert_programs("nope", &spec, Format::BF16, &[DECODE, PREFILL]);
}

#[test]
fn weight_bytes_count_every_matrix_once_and_one_row_of_a_gathered_table() {
    let untied = program(&tiny::llama(), Format::BF16, DECODE);
    let tied = program(&tiny::tied(), Format::BF16, DECODE);

    // A layer: (240 + 200) rows of 96, 96 rows of 144 + 100, all of 2 bytes; two norms of 96 f32.
    let layer = (440 * 96 + 96 * 244) * 2 + 2 * 96 * 4;
    let head = 257 * 96 * 2;
    assert_eq!(untied.weight_bytes(), 3 * layer + 96 * 4 + head + 96 * 2);
    assert_eq!(tied.weight_bytes(), 3 * layer + 96 * 4 + head);
}

// --- what the check refuses ------------------------------------------------------------------

/// The decode program with one change, and the fault found in it.
fn fault(change: impl FnOnce(&mut Program)) -> Fault {
    let mut program = program(&tiny::biases_and_qk_norm(), Format::BF16, DECODE);
    change(&mut program);
    let error = check(&program).expect_err("the change makes it wrong");
    let compiled = Cpu::new().compile(&program, &Default::default());
    assert!(matches!(compiled, Err(backend::Error::Check(_))), "compile checks as well");
    error.fault
}

fn first(program: &mut Program, name: &str) -> usize {
    program.ops.iter().position(|op| op.name() == name).expect("the program has one")
}

fn change(name: &'static str, change: impl FnOnce(&mut Op)) -> impl FnOnce(&mut Program) {
    move |program| {
        let index = first(program, name);
        change(&mut program.ops[index]);
    }
}

fn is_width(fault: &Fault, operand: &str) -> bool {
    matches!(fault, Fault::Width { what, .. } if *what == operand)
}

#[test]
fn check_refuses_widths_that_disagree() {
    let narrow = |view: &mut View| view.width -= 1;

    let matmul = fault(change("matmul", |op| {
        let Op::MatMul { out, .. } = op else { unreachable!() };
        narrow(out);
    }));
    let add = fault(change("add", |op| {
        let Op::Add { y, .. } = op else { unreachable!() };
        narrow(y);
    }));
    let gated = fault(change("gated_act", |op| {
        let Op::GatedAct { out, .. } = op else { unreachable!() };
        narrow(out);
    }));
    let bias = fault(change("add_bias", |op| {
        let Op::AddBias { bias, .. } = op else { unreachable!() };
        bias.len -= 1;
    }));
    let rope = fault(change("rope", |op| {
        let Op::Rope { rotary_dim, .. } = op else { unreachable!() };
        *rotary_dim += 2;
    }));

    // The matrix has 240 rows; 99 pairs need 198 columns of the 200.
    assert_eq!(matmul, Fault::Width { what: "out", found: 239, expected: 240 });
    assert_eq!(add, Fault::Width { what: "y", found: 95, expected: 96 });
    assert_eq!(gated, Fault::Width { what: "x", found: 200, expected: 198 });
    assert!(is_width(&bias, "x") && is_width(&rope, "rotary part"), "{bias:?} {rope:?}");
}

#[test]
fn check_refuses_a_head_width_of_nothing_and_heads_shared_unevenly() {
    let rope = fault(change("rope", |op| {
        let Op::Rope { head_dim, rotary_dim, .. } = op else { unreachable!() };
        (*head_dim, *rotary_dim) = (0, 0);
    }));
    let uneven = fault(change("attention", |op| {
        let Op::Attention { heads, .. } = op else { unreachable!() };
        *heads = 5;
    }));

    assert!(is_width(&rope, "x"), "{rope:?}");
    assert!(is_width(&uneven, "heads"), "{uneven:?}");
}

#[test]
fn check_refuses_a_view_that_leaves_its_row() {
    let found = fault(change("add", |op| {
        let Op::Add { x, .. } = op else { unreachable!() };
        x.offset = 1;
    }));

    assert_eq!(found, Fault::Outside { buffer: BufferName::Residual, end: 97, stride: 96 });
}

#[test]
fn check_refuses_a_buffer_too_small_or_not_listed() {
    let small = fault(|program| {
        let buffer = program.buffers.iter_mut().find(|buffer| buffer.name == BufferName::Qkv);
        buffer.expect("listed").bytes -= 4;
    });
    let table = fault(|program| {
        program.buffers.retain(|buffer| buffer.name != BufferName::BlockTable);
    });
    let pool = fault(|program| {
        let kv = BufferName::Kv { layer: 0 };
        let buffer = program.buffers.iter_mut().find(|buffer| buffer.name == kv);
        buffer.expect("listed").bytes -= 4;
    });
    let frequencies = fault(|program| {
        let rope = BufferName::Rope { table: 0 };
        program.buffers.iter_mut().find(|buffer| buffer.name == rope).expect("listed").bytes = 44;
    });

    let buffer = BufferName::Qkv;
    assert_eq!(small, Fault::Buffer { buffer, found: 956, expected: 960 });
    let buffer = BufferName::BlockTable;
    assert_eq!(table, Fault::Buffer { buffer, found: 0, expected: 1 });
    assert!(matches!(pool, Fault::Buffer { buffer: BufferName::Kv { layer: 0 }, .. }), "{pool:?}");
    let buffer = BufferName::Rope { table: 0 };
    assert_eq!(frequencies, Fault::Buffer { buffer, found: 44, expected: 48 });
}

#[test]
fn check_refuses_to_read_what_the_same_op_writes() {
    // Columns that overlap those that are read: 24 further on in the same rows.
    let columns = fault(|program| {
        let shifted = program.ops.iter_mut().find_map(|op| match op {
            Op::RmsNorm { out, .. } if out.buffer == BufferName::Qkv => Some(out),
            _ => None,
        });
        shifted.expect("queries are normalised").offset += 24;
    });
    let same = View::all(BufferName::Attended, 144);
    let attention = fault(change("attention", |op| {
        let Op::Attention { q, out, .. } = op else { unreachable!() };
        (*q, *out) = (same, same);
    }));
    let twice = fault(change("add", |op| {
        let Op::Add { x, y } = op else { unreachable!() };
        *y = *x;
    }));

    assert_eq!(columns, Fault::Aliased { buffer: BufferName::Qkv });
    assert_eq!(attention, Fault::Aliased { buffer: BufferName::Attended });
    assert_eq!(twice, Fault::Aliased { buffer: BufferName::Residual });
}

#[test]
fn check_refuses_groups_and_vectors_that_are_not_there() {
    let group = fault(change("matmul", |op| {
        let Op::MatMul { weight, .. } = op else { unreachable!() };
        *weight = GroupId(1000);
    }));
    let vector = fault(change("add_bias", |op| {
        let Op::AddBias { bias, .. } = op else { unreachable!() };
        bias.offset += 100_000;
    }));

    assert_eq!(group, Fault::Missing { what: "group" });
    assert_eq!(vector, Fault::Missing { what: "vector" });
}

#[test]
fn check_refuses_runs_that_leave_out_or_repeat_a_part() {
    let runs = |runs: &[(u32, u32)]| {
        fault(|program| {
            let index = first(program, "matmul");
            let Op::MatMul { weight, .. } = program.ops[index] else { unreachable!() };
            let weight = program.weights.get_mut(&weight).expect("listed");
            weight.geometry = weight.geometry.with_part_rows(64).expect("a power of two");
            weight.runs = runs.iter().map(|&(start, end)| start..end).collect();
        })
    };

    // 240 rows in parts of 64 are 4 parts.
    assert_eq!(runs(&[(0, 3)]), Fault::Runs { parts: 4 });
    assert_eq!(runs(&[(1, 4)]), Fault::Runs { parts: 4 });
    assert_eq!(runs(&[(0, 5)]), Fault::Runs { parts: 4 });
    assert_eq!(runs(&[]), Fault::Runs { parts: 4 });
    // The second run has no buffer.
    let unlisted = runs(&[(0, 2), (2, 4)]);
    let second = |buffer: BufferName| matches!(buffer, BufferName::Weight { run: 1, .. });
    assert!(matches!(unlisted, Fault::Buffer { buffer, .. } if second(buffer)), "{unlisted:?}");
}

#[test]
fn check_refuses_segments_that_leave_out_or_repeat_an_op() {
    let short = fault(|program| program.segments[0].ops.end -= 1);
    let twice = fault(|program| program.segments.push(program.segments[0].clone()));

    assert_eq!(short, Fault::Uncovered);
    assert_eq!(twice, Fault::Uncovered);
}

#[test]
fn the_error_names_program_op_and_both_numbers() {
    let mut program = program(&tiny::llama(), Format::BF16, DECODE);
    let index = first(&mut program, "matmul");
    let x = View::all(BufferName::Normed, 96);
    let Op::MatMul { weight, .. } = program.ops[index] else { unreachable!() };
    let out = View::all(BufferName::Qkv, 240).columns(0, 144);
    program.ops[index] = Op::MatMul { weight, x, out, rows: RowSet::Step };

    let error = check(&program).expect_err("a narrow view").to_string();

    assert_eq!(
        error,
        "op 2 (matmul) of 'llama decode rows=1 kv=256': out is 144 wide, but 240 is needed"
    );
}

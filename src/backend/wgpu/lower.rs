//! From ops to kernels: which shader with which knobs, what it binds, its parameters and its grid. Pure, so
//! that it can be tested and printed without a device. Here every op becomes its own kernel or two.

use std::ops::Range;

use super::compose::Variant;
use crate::format::{Geometry, Plane, PlaneKind};
use crate::model::Activation;
use crate::plan::{GroupId, KvFormat, KvLayout};
use crate::program::{
    BufferName, LogitRows, Op, Program, RowSet, SamplerRecord, VectorRef, View, Weight,
};
use crate::quant::Format;

/// What the adapter can do that changes the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Subgroup operations and builtins.
    pub subgroups: bool,
    /// The largest workgroup grid in one dimension.
    pub max_grid: u32,
}

/// What a kernel binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// The step table, as a uniform.
    Step,
    /// A buffer of the program, read only.
    Read(BufferName),
    /// A buffer of the program, to change.
    Write(BufferName),
    /// Scratch of the compiled program, read only.
    ReadScratch,
    /// Scratch of the compiled program, to change.
    WriteScratch,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its shader.
    pub variant: Variant,
    /// Binding numbers and what is bound; parameters are binding 0.
    pub bindings: Vec<(u32, Binding)>,
    /// Parameters, in the order of the shader's struct.
    pub params: Vec<u32>,
    /// Workgroups.
    pub grid: [u32; 3],
    /// Ops of the program it stands for.
    pub ops: Range<usize>,
    /// Bytes of weights it reads.
    pub weight_bytes: u64,
}

/// Why an op cannot be lowered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LowerError {
    /// A view that vector loads cannot start at.
    #[error("{op} needs rows that start at a multiple of eight numbers")]
    Unaligned {
        /// The op.
        op: &'static str,
    },
    /// A format that no kernel reads.
    #[error("{op} cannot read {format} weights on a GPU yet")]
    Format {
        /// The op.
        op: &'static str,
        /// The format.
        format: Format,
    },
    /// An odd head width with two numbers to a word.
    #[error("a KV cache in {format} needs an even head width, and this one is {head_dim}")]
    OddHead {
        /// Cache format.
        format: &'static str,
        /// Head width.
        head_dim: u32,
    },
}

/// Rows up to which a product reads the matrix once per row.
const MATRIX_ROWS: u32 = 8;

/// Positions of one split of attention: a workgroup scores them in one go.
const SPLIT: u32 = 256;
/// Step rows up to which attention is split; with more, heads and rows fill the device.
const SPLIT_ROWS: u32 = 8;

/// Bytes of scratch a program needs: adjusted logits, or partial results of attention.
#[must_use]
pub fn scratch_bytes(program: &Program) -> u64 {
    let bytes = |op: &Op| match op {
        Op::Sample { logits, .. } => logit_rows(program) * u64::from(logits.width) * 4,
        Op::Attention { kv, heads, .. } => match splits(program, kv) {
            0 | 1 => 0,
            splits => {
                let numbers = u64::from(splits) * u64::from(kv.head_dim + 2);
                u64::from(program.shape.rows) * u64::from(*heads) * numbers * 4
            }
        },
        _ => 0,
    };
    program.ops.iter().map(bytes).max().unwrap_or(0)
}

/// Whether a cached row is whole 16-byte words, few enough for a workgroup.
fn is_vector_head(kv: &KvLayout) -> bool {
    let per_word = 16 / kv.format.bytes() as u32;
    kv.head_dim.is_multiple_of(per_word) && kv.head_dim <= 256
}

/// Splits of attention over the positions a program was built for.
fn splits(program: &Program, kv: &KvLayout) -> u32 {
    if program.shape.rows > SPLIT_ROWS || !is_vector_head(kv) {
        return 1;
    }
    program.shape.kv_capacity.div_ceil(SPLIT)
}

/// The numbers of an attention op.
#[derive(Clone, Copy)]
struct Attention<'a> {
    layer: u32,
    kv: &'a KvLayout,
    heads: u32,
    scale: f32,
    window: Option<u32>,
}

fn logit_rows(program: &Program) -> u64 {
    match program.shape.logits {
        LogitRows::None => 0,
        LogitRows::One => 1,
        LogitRows::All => u64::from(program.shape.rows),
    }
}

/// Lowers a range of ops.
///
/// **Errors**: [`LowerError`] naming the op.
pub fn lower(
    program: &Program,
    ops: Range<usize>,
    target: Target,
) -> Result<Vec<Kernel>, LowerError> {
    let mut lowering = Lowering { program, target, kernels: Vec::new(), at: ops.start };
    for (at, op) in program.ops.iter().enumerate().take(ops.end).skip(ops.start) {
        lowering.at = at;
        lowering.op(op)?;
    }
    Ok(lowering.kernels)
}

struct Lowering<'p> {
    program: &'p Program,
    target: Target,
    kernels: Vec<Kernel>,
    at: usize,
}

/// A dispatch being described.
struct Draft {
    file: &'static str,
    slots: Vec<(&'static str, &'static str)>,
    knobs: Vec<(&'static str, u32)>,
    bindings: Vec<Binding>,
    params: Vec<u32>,
    grid: [u32; 3],
}

impl Draft {
    fn new(file: &'static str, bindings: Vec<Binding>, params: Vec<u32>, grid: [u32; 3]) -> Self {
        Draft { file, slots: Vec::new(), knobs: Vec::new(), bindings, params, grid }
    }

    fn slot(mut self, slot: &'static str, file: &'static str) -> Self {
        self.slots.push((slot, file));
        self
    }

    fn knob(mut self, knob: &'static str, value: u32) -> Self {
        self.knobs.push((knob, value));
        self
    }
}

impl<'p> Lowering<'p> {
    fn op(&mut self, op: &Op) -> Result<(), LowerError> {
        use Binding::{Read, Write};
        match op {
            Op::Embed { table, out } => self.embed(op, *table, out)?,
            Op::RmsNorm { x, weight, out, eps, rows } => self.rms_norm(x, weight, out, *eps, *rows),
            Op::MatMul { weight, x, out, rows } => self.matmul(op, *weight, x, out, *rows)?,
            Op::AddBias { x, bias } => {
                let params = vec![x.width, bias.offset, x.offset, x.stride];
                let bindings = vec![Binding::Step, Read(small(bias)), Write(x.buffer)];
                self.rowwise("add_bias", bindings, params, x.width);
            }
            Op::Rope { x, table, head_dim, rotary_dim, attention_factor } => {
                let heads = x.width / head_dim;
                let half = rotary_dim / 2;
                let factor = attention_factor.to_bits();
                let params = vec![heads, *head_dim, half, x.offset, x.stride, factor];
                let table = BufferName::Rope { table: *table };
                let bindings = vec![Binding::Step, Read(table), Write(x.buffer)];
                self.rowwise("rope", bindings, params, heads * half);
            }
            Op::KvAppend { k, v, layer, kv } => self.kv_append(k, v, *layer, kv)?,
            Op::Attention { q, out, layer, kv, heads, scale, window } => {
                let call =
                    Attention { layer: *layer, kv, heads: *heads, scale: *scale, window: *window };
                self.attention(q, out, &call)?;
            }
            Op::GatedAct { x, out, act } => {
                let params = vec![out.width, x.offset, x.stride, out.offset, out.stride];
                let bindings = vec![Binding::Step, Read(x.buffer), Write(out.buffer)];
                let file = match act {
                    Activation::Silu => "lib/act_silu",
                    Activation::GeluTanh => "lib/act_gelu_tanh",
                };
                let groups = out.width.div_ceil(64).min(self.target.max_grid);
                let grid = [groups, self.program.shape.rows, 1];
                self.push(Draft::new("gated_act", bindings, params, grid).slot("ACT", file), 0);
            }
            Op::Add { x, y } => {
                let params = vec![x.width, x.offset, x.stride, y.offset, y.stride];
                let bindings = vec![Binding::Step, Read(y.buffer), Write(x.buffer)];
                self.rowwise("add", bindings, params, x.width);
            }
            Op::CheckFinite { x, layer } => {
                let params = vec![x.width, x.offset, x.stride, *layer];
                let bindings = vec![Binding::Step, Read(x.buffer), Write(BufferName::Status)];
                self.rowwise("check_finite", bindings, params, x.width);
            }
            Op::Keep { x, out } => {
                let params = vec![x.width, x.offset, x.stride, out.offset, out.stride];
                let bindings = vec![Binding::Step, Read(x.buffer), Write(out.buffer)];
                self.rowwise("keep", bindings, params, x.width);
            }
            Op::SelectRows { x, out } => {
                let rows = self.program.shape.rows;
                let params = vec![x.width, x.offset, x.stride, out.offset, out.stride, rows];
                let bindings = vec![Binding::Step, Read(x.buffer), Write(out.buffer)];
                let grid = [x.width.div_ceil(64), logit_rows(self.program) as u32, 1];
                self.push(Draft::new("select_rows", bindings, params, grid), 0);
            }
            Op::Sample { logits, rows, context } => self.sample(logits, *rows, *context),
            Op::Advance => {
                let rows = self.program.shape.rows;
                let bindings = [(2, BufferName::Samplers), (3, BufferName::Ids)];
                let mut bindings: Vec<_> =
                    bindings.into_iter().map(|(at, name)| (at, Read(name))).collect();
                bindings.push((4, Write(BufferName::Step)));
                let draft = Draft::new(
                    "advance",
                    Vec::new(),
                    vec![rows, self.slots()],
                    [rows.div_ceil(64), 1, 1],
                );
                self.push(draft, 0);
                if let Some(kernel) = self.kernels.last_mut() {
                    kernel.bindings = bindings;
                }
            }
        }
        Ok(())
    }

    fn embed(&mut self, op: &Op, table: GroupId, out: &View) -> Result<(), LowerError> {
        let weight = self.weight(table);
        let format = weight_format(op, weight)?;
        let slots = self.slots();
        for (run, parts) in weight.runs.iter().enumerate() {
            let mut params = weight_params(weight, parts);
            let words = params[2];
            params.extend([weight.geometry.rows as u32, out.width, out.offset, out.stride, slots]);
            let bindings = vec![
                Binding::Step,
                Binding::Read(BufferName::Weight { group: table, run: run as u32 }),
                Binding::Read(BufferName::Drawn),
                Binding::Write(out.buffer),
            ];
            let grid = [words.div_ceil(64), self.program.shape.rows, 1];
            let bytes = weight.geometry.payload_bytes() / weight.geometry.rows;
            let draft = Draft::new("embed", bindings, params, grid).slot("FORMAT", format);
            self.push(draft, bytes);
        }
        Ok(())
    }

    fn rms_norm(&mut self, x: &View, weight: &VectorRef, out: &View, eps: f32, rows: RowSet) {
        let runs = x.width / weight.len;
        let packed = self.packed_rows(rows);
        let grid = [runs, self.rows(rows), 1];
        let eps = eps.to_bits();
        let draft = if x == out {
            let params = vec![weight.len, weight.offset, x.offset, x.stride, eps, packed];
            let bindings =
                vec![Binding::Step, Binding::Read(small(weight)), Binding::Write(x.buffer)];
            Draft::new("rms_norm_in_place", bindings, params, grid)
        } else {
            let mut params = vec![weight.len, weight.offset, x.offset, x.stride];
            params.extend([out.offset, out.stride, eps, packed]);
            let bindings = vec![
                Binding::Step,
                Binding::Read(small(weight)),
                Binding::Read(x.buffer),
                Binding::Write(out.buffer),
            ];
            Draft::new("rms_norm", bindings, params, grid)
        };
        let lanes = if weight.len > 128 { 256 } else { 64 };
        self.push(self.reducing(draft.knob("WORKGROUP", lanes)), 0);
    }

    fn matmul(
        &mut self,
        op: &Op,
        group: GroupId,
        x: &View,
        out: &View,
        rows: RowSet,
    ) -> Result<(), LowerError> {
        if !x.stride.is_multiple_of(8) || !x.offset.is_multiple_of(8) {
            return Err(LowerError::Unaligned { op: op.name() });
        }
        let weight = self.weight(group);
        let format = weight_format(op, weight)?;
        let packed = self.packed_rows(rows);
        for (run, parts) in weight.runs.iter().enumerate() {
            let mut params = weight_params(weight, parts);
            let (held, words) = (params[0], params[2]);
            let bindings = vec![
                Binding::Step,
                Binding::Read(BufferName::Weight { group, run: run as u32 }),
                Binding::Read(x.buffer),
                Binding::Write(out.buffer),
            ];
            let bytes = weight.geometry.payload_bytes() * u64::from(held) / weight.geometry.rows;
            let step_rows = self.rows(rows);
            // A tile of 64 rows pays from about nine rows on; below, each row reads the matrix again.
            let (file, per_group, z) = if step_rows > MATRIX_ROWS {
                ("matmul_mat", 64, step_rows.div_ceil(64))
            } else {
                ("matmul_vec", 2, step_rows)
            };
            let groups = held.div_ceil(per_group);
            let columns = groups.min(self.target.max_grid);
            let grid = [columns, groups.div_ceil(columns), z];
            params.extend([x.offset / 4, x.stride / 4, out.offset, out.stride, packed]);
            if step_rows > MATRIX_ROWS {
                params.push(step_rows);
            }
            params.push(columns);
            let draft = Draft::new(file, bindings, params, grid).slot("FORMAT", format);
            if step_rows > MATRIX_ROWS {
                self.push(draft, bytes);
            } else {
                let lanes = if words > 64 { 128 } else { 32 };
                self.push(self.reducing(draft.knob("WORKGROUP", lanes)), bytes);
            }
        }
        Ok(())
    }

    fn kv_append(
        &mut self,
        k: &View,
        v: &View,
        layer: u32,
        kv: &KvLayout,
    ) -> Result<(), LowerError> {
        let file = kv_format(kv)?;
        for (view, values) in [(k, 0), (v, 1)] {
            let mut params = kv_params(kv);
            params.extend([view.offset, view.stride, values, self.table_entries()]);
            let bindings = vec![
                Binding::Step,
                Binding::Read(view.buffer),
                Binding::Read(BufferName::BlockTable),
                Binding::Write(BufferName::Kv { layer }),
            ];
            let words = kv.head_dim.div_ceil(4 / kv.format.bytes() as u32);
            let grid = [(kv.kv_heads * words).div_ceil(64), self.program.shape.rows, 1];
            self.push(Draft::new("kv_append", bindings, params, grid).slot("KV", file), 0);
        }
        Ok(())
    }

    fn attention(&mut self, q: &View, out: &View, call: &Attention<'_>) -> Result<(), LowerError> {
        let Attention { layer, kv, heads, scale, window } = *call;
        let file = kv_format(kv)?;
        let capacity = self.program.shape.kv_capacity;
        let mut params = kv_params(kv);
        params.extend([heads / kv.kv_heads, q.offset, q.stride, out.offset, out.stride]);
        params.extend([window.unwrap_or(0), self.table_entries(), capacity, scale.to_bits()]);
        let splits = splits(self.program, kv);
        let target = if splits > 1 { Binding::WriteScratch } else { Binding::Write(out.buffer) };
        let pool = Binding::Read(BufferName::Kv { layer });
        let table = Binding::Read(BufferName::BlockTable);
        let bindings = vec![Binding::Step, Binding::Read(q.buffer), target, pool, table];
        let rows = self.program.shape.rows;
        if !is_vector_head(kv) {
            let draft = Draft::new("attention", bindings, params, [heads, rows, 1]);
            let draft = draft.slot("KV", file).knob("HEAD_DIM", kv.head_dim);
            self.push(self.reducing(draft), 0);
            return Ok(());
        }
        params.push(SPLIT);
        let draft = Draft::new("attention_split", bindings, params, [heads, rows, splits]);
        let draft = draft.slot("KV", file).knob("HEAD_DIM", kv.head_dim);
        self.push(self.reducing(draft.knob("PARTIAL", u32::from(splits > 1))), 0);
        if splits > 1 {
            let params = vec![heads, kv.head_dim, splits, out.offset, out.stride];
            let bindings = vec![Binding::Step, Binding::ReadScratch, Binding::Write(out.buffer)];
            self.push(Draft::new("attention_combine", bindings, params, [heads, rows, 1]), 0);
        }
        Ok(())
    }

    fn sample(&mut self, logits: &View, rows: RowSet, context: u32) {
        let packed = self.packed_rows(rows);
        let params = vec![logits.width, logits.stride, self.slots(), context, packed];
        let adjust = vec![
            Binding::Step,
            Binding::Read(BufferName::Samplers),
            Binding::Read(logits.buffer),
            Binding::Read(BufferName::Mask),
            Binding::Read(BufferName::Bias),
            Binding::Read(BufferName::History),
            Binding::WriteScratch,
        ];
        let grid = [logits.width.div_ceil(64), self.rows(rows), 1];
        self.push(Draft::new("sample_adjust", adjust, params.clone(), grid), 0);
        let draw = vec![
            Binding::Step,
            Binding::Read(BufferName::Samplers),
            Binding::Read(logits.buffer),
            Binding::ReadScratch,
            Binding::Read(BufferName::EndIds),
            Binding::Write(BufferName::Drawn),
            Binding::Write(BufferName::History),
            Binding::Write(BufferName::Ids),
            Binding::Read(BufferName::Status),
        ];
        let draft = Draft::new("sample_draw", draw, params, [1, self.rows(rows), 1]);
        self.push(self.reducing(draft), 0);
    }

    /// A kernel with one lane per column and one grid row per step row.
    fn rowwise(
        &mut self,
        file: &'static str,
        bindings: Vec<Binding>,
        params: Vec<u32>,
        width: u32,
    ) {
        let groups = width.div_ceil(64).min(self.target.max_grid);
        let grid = [groups, self.program.shape.rows, 1];
        self.push(Draft::new(file, bindings, params, grid), 0);
    }

    fn reducing(&self, draft: Draft) -> Draft {
        let file =
            if self.target.subgroups { "lib/reduce_subgroup" } else { "lib/reduce_workgroup" };
        draft.slot("REDUCE", file)
    }

    fn push(&mut self, draft: Draft, weight_bytes: u64) {
        let bindings = (1u32..).zip(draft.bindings).collect();
        let variant = Variant { file: draft.file, slots: draft.slots, knobs: draft.knobs };
        self.kernels.push(Kernel {
            variant,
            bindings,
            params: draft.params,
            grid: draft.grid,
            ops: self.at..self.at + 1,
            weight_bytes,
        });
    }

    fn weight(&self, group: GroupId) -> &'p Weight {
        self.program.weight(group).expect("checked in program::check")
    }

    fn rows(&self, rows: RowSet) -> u32 {
        match rows {
            RowSet::Step => self.program.shape.rows,
            RowSet::Emitted => logit_rows(self.program) as u32,
        }
    }

    /// Rows of the step to count emitting ones in, where rows are packed; else 0.
    fn packed_rows(&self, rows: RowSet) -> u32 {
        match rows {
            RowSet::Step => 0,
            RowSet::Emitted => self.program.shape.rows,
        }
    }

    /// Sampler slots, from the size of whichever of their tables the program has.
    fn slots(&self) -> u32 {
        let count = |name, size: usize| {
            self.program.buffer(name).map(|buffer| (buffer.bytes / size as u64) as u32)
        };
        count(BufferName::Drawn, 4)
            .or_else(|| count(BufferName::Samplers, size_of::<SamplerRecord>()))
            .unwrap_or(1)
    }

    /// Entries of the block table.
    fn table_entries(&self) -> u32 {
        let bytes = self.program.buffer(BufferName::BlockTable).map_or(4, |buffer| buffer.bytes);
        (bytes / 4) as u32
    }
}

fn small(vector: &VectorRef) -> BufferName {
    BufferName::Weight { group: vector.group, run: 0 }
}

fn weight_format(op: &Op, weight: &Weight) -> Result<&'static str, LowerError> {
    match weight.geometry.format {
        Format::F32 => Ok("format/f32"),
        Format::F16 => Ok("format/f16"),
        Format::BF16 => Ok("format/bf16"),
        format @ (Format::Bytes
        | Format::Int8
        | Format::Mxfp4
        | Format::Q8_0
        | Format::Q4_0
        | Format::Q4_1
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K) => Err(LowerError::Format { op: op.name(), format }),
    }
}

fn kv_format(kv: &KvLayout) -> Result<&'static str, LowerError> {
    let halves = kv.format != KvFormat::F32;
    if halves && !kv.head_dim.is_multiple_of(2) {
        return Err(LowerError::OddHead { format: kv.format.name(), head_dim: kv.head_dim });
    }
    Ok(match kv.format {
        KvFormat::F32 => "format/kv_f32",
        KvFormat::F16 => "format/kv_f16",
        KvFormat::BF16 => "format/kv_bf16",
    })
}

/// `struct Kv` of lib/kv.wgsl.
fn kv_params(kv: &KvLayout) -> Vec<u32> {
    vec![kv.blocks, kv.kv_heads, kv.head_dim, 0]
}

/// `struct Weight` of lib/weight.wgsl, for the parts of one run.
fn weight_params(weight: &Weight, parts: &Range<u32>) -> Vec<u32> {
    let geometry: &Geometry = &weight.geometry;
    let codes: &Plane = geometry.plane(PlaneKind::Codes).expect("checked in lower");
    let first = u64::from(parts.start) * geometry.part_rows;
    let end = (u64::from(parts.end) * geometry.part_rows).min(geometry.rows);
    let words = codes.row_bytes.div_ceil(16);
    let numbers = [end - first, first, words, codes.row_stride / 16, geometry.part_stride / 16];
    let mut params: Vec<u32> = numbers.into_iter().map(|number| number as u32).collect();
    params.extend([geometry.shift(), 0, 0]);
    params
}

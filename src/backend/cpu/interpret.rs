//! Runs the ops of a compiled program one after the other, each over the rows it applies to. The reference
//! mode calls the twins; the other calls `fast` where there is something faster.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::fast;
use super::fast::attention::Cached;
use super::kernels;
use super::kernels::sample::Context;
use super::matrix::Matrix;
use super::storage::{Bound, Numbers, ReadGuard, kv_row};
use crate::format::NONE;
use crate::plan::{GroupId, KV_BLOCK, KvLayout};
use crate::program::{
    BufferName, ID_RING, IdRecord, LogitRows, MAX_BIAS, Op, Program, RowSet, SamplerRecord,
    StepRow, VectorRef, View,
};

/// A program and the memory it was bound to.
pub(crate) struct Compiled {
    pub(crate) program: Program,
    pub(crate) bound: BTreeMap<BufferName, Bound>,
    pub(crate) reference: bool,
}

/// Rows of a view: index in the buffer, and the step row behind it.
type Rows = Vec<(usize, StepRow)>;

impl Compiled {
    /// Runs a range of ops; adds each op's time to `times`.
    pub(crate) fn run(&self, segment: usize, times: &mut BTreeMap<&'static str, (u64, Duration)>) {
        let Some(segment) = self.program.segments.get(segment) else { return };
        for op in self.program.ops.get(segment.ops.clone()).unwrap_or_default() {
            let start = Instant::now();
            self.op(op);
            let time = times.entry(op.name()).or_default();
            time.0 += 1;
            time.1 += start.elapsed();
        }
    }

    /// Sets the step table; rows beyond `step` become inactive.
    pub(crate) fn set_step(&self, step: &[StepRow]) {
        let mut table = self.bound(BufferName::Step).write();
        for (index, row) in table.cast::<StepRow>().iter_mut().enumerate() {
            *row = step.get(index).copied().unwrap_or_default();
        }
    }

    fn op(&self, op: &Op) {
        let step: Vec<StepRow> = self.bound(BufferName::Step).read().cast::<StepRow>().to_vec();
        match op {
            Op::Embed { table, out } => self.embed(&step, *table, out),
            Op::RmsNorm { x, weight, out, eps, rows } => {
                let weight = self.vector(weight);
                self.map_rows(&self.rows_of(&step, *rows), x, out, |x, out| {
                    for (x, out) in
                        x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len()))
                    {
                        kernels::rms_norm::rms_norm(x, &weight, *eps, out);
                    }
                });
            }
            Op::MatMul { weight, x, out, rows } => {
                self.matmul(&self.rows_of(&step, *rows), *weight, x, out);
            }
            Op::AddBias { x, bias } => {
                let bias = self.vector(bias);
                self.change_rows(&step, x, |x, _| kernels::add_bias::add_bias(x, &bias));
            }
            Op::Rope { x, table, head_dim, rotary_dim, attention_factor } => {
                let table = self.bound(BufferName::Rope { table: *table }).read();
                let inv_freq = &table.cast::<f32>()[..*rotary_dim as usize / 2];
                self.change_rows(&step, x, |x, row| {
                    for head in x.chunks_exact_mut(*head_dim as usize) {
                        kernels::rope::rope(head, row.position, inv_freq, *attention_factor);
                    }
                });
            }
            Op::KvAppend { k, v, layer, kv } => self.kv_append(&step, [k, v], *layer, kv),
            Op::Attention { q, out, layer, kv, heads, scale, window } => {
                let call =
                    Attention { layer: *layer, kv, heads: *heads, scale: *scale, window: *window };
                self.attention(&step, q, out, &call);
            }
            Op::GatedAct { x, out, act } => {
                self.map_rows(&self.rows_of(&step, RowSet::Step), x, out, |x, out| {
                    kernels::gated_act::gated_act(x, *act, out);
                });
            }
            Op::Add { x, y } => {
                let other = self.bound(y.buffer).read();
                let other = other.cast::<f32>();
                let rows = self.rows_of(&step, RowSet::Step);
                let mut buffer = self.bound(x.buffer).write();
                let numbers = buffer.cast::<f32>();
                for (index, _) in rows {
                    kernels::add::add(columns_mut(numbers, x, index), columns(other, y, index));
                }
            }
            Op::CheckFinite { x, layer } => self.check_finite(&step, x, *layer),
            Op::Keep { x, out } => {
                self.map_rows(&self.rows_of(&step, RowSet::Step), x, out, kernels::keep::keep);
            }
            Op::SelectRows { x, out } => self.select_rows(&step, x, out),
            Op::Sample { logits, rows, context } => self.sample(&step, logits, *rows, *context),
            Op::Advance => self.advance(&step),
        }
    }

    fn embed(&self, step: &[StepRow], table: GroupId, out: &View) {
        let drawn = self.bound(BufferName::Drawn).read();
        let drawn = drawn.cast::<u32>();
        self.with_matrix(table, |table| {
            self.change_rows(step, out, |out, row| {
                let slot = (row.token & !StepRow::FROM_SLOT) as usize;
                let token = if row.token & StepRow::FROM_SLOT == 0 {
                    row.token
                } else {
                    clamped(drawn, slot)
                };
                kernels::embed::embed(table, token, out);
            });
        });
    }

    fn matmul(&self, rows: &Rows, weight: GroupId, x: &View, out: &View) {
        let input = self.bound(x.buffer).read();
        let input = input.cast::<f32>();
        self.with_matrix(weight, |matrix| {
            let inputs: Vec<&[f32]> = rows.iter().map(|(row, _)| columns(input, x, *row)).collect();
            if inputs.is_empty() {
                return;
            }
            let fast = (!self.reference).then(|| fast::matmul::matmul(&inputs, matrix));
            let mut output = self.bound(out.buffer).write();
            let output = output.cast::<f32>();
            for (index, (row, _)) in rows.iter().enumerate() {
                let out = columns_mut(output, out, *row);
                match &fast {
                    Some(products) => {
                        out.copy_from_slice(&products[index * out.len()..][..out.len()])
                    }
                    None => kernels::matmul::matmul(inputs[index], matrix, out),
                }
            }
        });
    }

    fn kv_append(&self, step: &[StepRow], [k, v]: [&View; 2], layer: u32, kv: &KvLayout) {
        let table = self.bound(BufferName::BlockTable).read();
        let mut pool = self.bound(BufferName::Kv { layer }).write();
        let mut pool = Numbers(pool.bytes());
        for (view, values) in [(k, false), (v, true)] {
            let source = self.bound(view.buffer).read();
            let source = source.cast::<f32>();
            for (index, row) in self.rows_of(step, RowSet::Step) {
                let block = block_of(table.cast(), &row, row.position, kv);
                let heads = columns(source, view, index).chunks_exact(kv.head_dim as usize);
                for (head, numbers) in (0..kv.kv_heads).zip(heads) {
                    let at = kv.element(head, block, values, row.position % KV_BLOCK);
                    kernels::kv_append::kv_append(numbers, kv.format, &mut pool, at);
                }
            }
        }
    }

    fn attention(&self, step: &[StepRow], q: &View, out: &View, call: &Attention<'_>) {
        let kv = call.kv;
        let head_dim = kv.head_dim as usize;
        let table = self.bound(BufferName::BlockTable).read();
        let pool = self.bound(BufferName::Kv { layer: call.layer }).read();
        let queries = self.bound(q.buffer).read();
        let queries = queries.cast::<f32>();
        let rows = self.rows_of(step, RowSet::Step);
        let shared = call.heads / kv.kv_heads;
        let capacity = self.program.shape.kv_capacity;

        let width = out.width as usize;
        let mut results = vec![0.0; rows.len() * width];
        results.par_chunks_mut(head_dim).enumerate().for_each(|(index, result)| {
            let (row, head) = (index / call.heads as usize, index % call.heads as usize);
            let (index, row) = rows[row];
            let kv_head = head as u32 / shared;
            let at = |position: u32, values| {
                let block = block_of(table.cast(), &row, position, kv);
                kv.element(kv_head, block, values, position % KV_BLOCK)
            };
            let q = &columns(queries, q, index)[head * head_dim..][..head_dim];
            let seen = kernels::attention::visible(row.kv_len.min(capacity), call.window);
            if self.reference {
                let stored = |position, values, out: &mut [f32]| {
                    kv_row(pool.bytes(), kv.format, at(position, values), out);
                };
                let key = |position, out: &mut [f32]| stored(position, false, out);
                let value = |position, out: &mut [f32]| stored(position, true, out);
                kernels::attention::attention(q, seen, call.scale, key, value, result);
            } else {
                let cached = Cached { bytes: pool.bytes(), format: kv.format, element: at };
                fast::attention::attention(q, seen, call.scale, &cached, result);
            }
        });

        let mut output = self.bound(out.buffer).write();
        let output = output.cast::<f32>();
        for ((index, _), result) in rows.iter().zip(results.chunks_exact(width)) {
            columns_mut(output, out, *index).copy_from_slice(result);
        }
    }

    fn check_finite(&self, step: &[StepRow], x: &View, layer: u32) {
        let numbers = self.bound(x.buffer).read();
        let numbers = numbers.cast::<f32>();
        let finite = self
            .rows_of(step, RowSet::Step)
            .iter()
            .all(|(index, _)| kernels::check_finite::check_finite(columns(numbers, x, *index)));
        if !finite {
            let mut status = self.bound(BufferName::Status).write();
            if let Some(status) = status.cast::<u32>().first_mut() {
                *status = layer.min(*status);
            }
        }
    }

    fn select_rows(&self, step: &[StepRow], x: &View, out: &View) {
        let numbers = self.bound(x.buffer).read();
        let numbers = numbers.cast::<f32>();
        let mut output = self.bound(out.buffer).write();
        let output = output.cast::<f32>();
        for (packed, row) in
            kernels::select_rows::select_rows(step).into_iter().take(self.emitted()).enumerate()
        {
            columns_mut(output, out, packed).copy_from_slice(columns(numbers, x, row));
        }
    }

    fn sample(&self, step: &[StepRow], logits: &View, rows: RowSet, context: u32) {
        let numbers = self.bound(logits.buffer).read();
        let numbers = numbers.cast::<f32>();
        let (samplers, mask) =
            (self.bound(BufferName::Samplers).read(), self.bound(BufferName::Mask).read());
        let (bias, ends) =
            (self.bound(BufferName::Bias).read(), self.bound(BufferName::EndIds).read());
        let status = self.bound(BufferName::Status).read();
        let bad_layer = status.cast::<u32>().first().copied().unwrap_or(NONE);
        let (mut drawn, mut history) =
            (self.bound(BufferName::Drawn).write(), self.bound(BufferName::History).write());
        let mut ids = self.bound(BufferName::Ids).write();
        let words = logits.width.div_ceil(32) as usize;
        let stride = context as usize + 1;

        for (index, row) in self.rows_of(step, rows).into_iter().filter(|(_, row)| row.emits()) {
            let slot = row.sampler_slot as usize;
            let Some(settings) = samplers.cast::<SamplerRecord>().get(slot) else { continue };
            let past = (row.position as usize + 1).min(context as usize);
            let tokens = &mut history.cast::<u32>()[slot * stride..][..stride];
            let recent = past.saturating_sub(settings.repeat_last_n as usize)..past;
            let bias: &[[u32; 2]] = &bias.cast()[slot * MAX_BIAS as usize..][..MAX_BIAS as usize];
            let bias: Vec<(u32, f32)> = bias
                .iter()
                .take(settings.bias_count as usize)
                .map(|[id, bias]| (*id, f32::from_bits(*bias)))
                .collect();
            let masked = settings.flags & SamplerRecord::MASKED != 0;
            let draw = kernels::sample::sample(
                columns(numbers, logits, index),
                &Context {
                    settings,
                    mask: masked.then(|| &mask.cast::<u32>()[slot * words..][..words]),
                    bias: &bias,
                    recent: &tokens[recent],
                    position: row.position,
                },
            );
            let mut flags = 0;
            if ends.cast::<u32>().contains(&draw.id) {
                flags |= IdRecord::END;
            }
            if !draw.finite || bad_layer != NONE {
                flags |= IdRecord::NOT_FINITE;
            }
            tokens[past] = draw.id;
            if let Some(last) = drawn.cast::<u32>().get_mut(slot) {
                *last = draw.id;
            }
            ids.cast::<IdRecord>()[ring(&row)] = IdRecord {
                id: draw.id,
                logprob: draw.logprob,
                flags,
                position: row.position,
                sequence: row.sequence,
                bad_layer,
                reserved: [0; 2],
            };
        }
    }

    fn advance(&self, step: &[StepRow]) {
        let samplers = self.bound(BufferName::Samplers).read();
        let ids = self.bound(BufferName::Ids).read();
        let mut own = self.bound(BufferName::Step).write();
        let own = own.cast::<StepRow>();
        for index in kernels::select_rows::select_rows(step) {
            let row = step[index];
            let settings = samplers.cast::<SamplerRecord>().get(row.sampler_slot as usize);
            let drawn = ids.cast::<IdRecord>().get(ring(&row));
            if let (Some(settings), Some(drawn)) = (settings, drawn) {
                kernels::advance::advance(&mut own[index], drawn, settings);
            }
        }
    }

    /// The rows an op works on: index in its buffers, and the step row behind it.
    fn rows_of(&self, step: &[StepRow], rows: RowSet) -> Rows {
        let step = step.iter().copied();
        match rows {
            RowSet::Step => step.enumerate().filter(|(_, row)| row.is_active()).collect(),
            RowSet::Emitted => {
                step.filter(StepRow::emits).enumerate().take(self.emitted()).collect()
            }
        }
    }

    /// Rows that packed buffers have room for.
    fn emitted(&self) -> usize {
        match self.program.shape.logits {
            LogitRows::None => 0,
            LogitRows::One => 1,
            LogitRows::All => self.program.shape.rows as usize,
        }
    }

    /// out = f(x) row by row; x and out may be the same view.
    fn map_rows(&self, rows: &Rows, x: &View, out: &View, f: impl Fn(&[f32], &mut [f32])) {
        if x.buffer == out.buffer {
            let mut buffer = self.bound(x.buffer).write();
            let numbers = buffer.cast::<f32>();
            for (index, _) in rows {
                let input = columns(numbers, x, *index).to_vec();
                f(&input, columns_mut(numbers, out, *index));
            }
            return;
        }
        let input = self.bound(x.buffer).read();
        let input = input.cast::<f32>();
        let mut output = self.bound(out.buffer).write();
        let output = output.cast::<f32>();
        for (index, _) in rows {
            f(columns(input, x, *index), columns_mut(output, out, *index));
        }
    }

    /// Changes each active row in place.
    fn change_rows(&self, step: &[StepRow], x: &View, f: impl Fn(&mut [f32], &StepRow)) {
        let mut buffer = self.bound(x.buffer).write();
        let numbers = buffer.cast::<f32>();
        for (index, row) in self.rows_of(step, RowSet::Step) {
            f(columns_mut(numbers, x, index), &row);
        }
    }

    fn with_matrix<R>(&self, id: GroupId, f: impl FnOnce(&Matrix<'_>) -> R) -> R {
        let weight = self.program.weight(id).expect("checked in program::check");
        let guards: Vec<ReadGuard<'_>> = (0..weight.runs.len() as u32)
            .map(|run| self.bound(BufferName::Weight { group: id, run }).read())
            .collect();
        let runs = weight.runs.iter().cloned().zip(guards.iter().map(ReadGuard::bytes)).collect();
        f(&Matrix::new(&weight.geometry, runs).expect("checked in compile"))
    }

    fn vector(&self, vector: &VectorRef) -> Vec<f32> {
        let guard = self.bound(BufferName::Weight { group: vector.group, run: 0 }).read();
        guard.cast::<f32>()[vector.offset as usize..][..vector.len as usize].to_vec()
    }

    fn bound(&self, name: BufferName) -> &Bound {
        self.bound.get(&name).expect("checked in compile")
    }
}

/// The numbers of an attention op.
struct Attention<'a> {
    layer: u32,
    kv: &'a KvLayout,
    heads: u32,
    scale: f32,
    window: Option<u32>,
}

/// The physical block of a position: the index into the table and what is found there are clamped.
fn block_of(table: &[u32], row: &StepRow, position: u32, kv: &KvLayout) -> u32 {
    let entry = row.block_table_base as usize + (position / KV_BLOCK) as usize;
    clamped(table, entry).min(kv.blocks.saturating_sub(1))
}

/// An entry of a table that is indexed by a number from memory; its last one where there are fewer.
fn clamped(table: &[u32], index: usize) -> u32 {
    table.get(index.min(table.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Where a row's record goes in the ring of its slot.
fn ring(row: &StepRow) -> usize {
    row.sampler_slot as usize * ID_RING as usize + (row.position % ID_RING) as usize
}

fn columns<'a>(numbers: &'a [f32], view: &View, row: usize) -> &'a [f32] {
    &numbers[row * view.stride as usize + view.offset as usize..][..view.width as usize]
}

fn columns_mut<'a>(numbers: &'a mut [f32], view: &View, row: usize) -> &'a mut [f32] {
    &mut numbers[row * view.stride as usize + view.offset as usize..][..view.width as usize]
}

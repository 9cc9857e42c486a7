//! THE model file: every architecture's step, read top to bottom as its paper would be.
//!
//! Differences between architectures are fields of [`ModelSpec`] and [`LayerSpec`]; import has settled the
//! rest (one RoPE pairing, fused projections). Start at [`build`].

use std::collections::BTreeMap;

use super::op::{Op, RowSet, VectorRef, View};
use super::step::{IdRecord, MAX_STEP_ROWS, SamplerRecord, StepRow};
use super::{
    BufferName, BufferSpec, ID_RING, LogitRows, MAX_BIAS, MAX_END_IDS, Place, Program, Segment,
    StepShape, Weight,
};
use crate::format::{PageId, PlaneKind, Role, Vector};
use crate::model::rope::RopeTable;
use crate::model::{LayerSpec, ModelSpec};
use crate::plan::{GroupId, KV_BLOCK, Plan};

/// Builds the program of one step.
///
/// `plan` must have been made for `spec`: [`Plan::new`] checked that every group is there and has its shape.
#[must_use]
pub fn build(spec: &ModelSpec, plan: &Plan, shape: StepShape) -> Program {
    let mut step = Step { spec, plan, shape, ops: Vec::new() };
    step.embed();
    for (index, layer) in (0u32..).zip(&spec.layers) {
        step.attention_block(index, layer);
        step.feed_forward_block(index, layer);
        step.push(Op::CheckFinite { x: step.residual(), layer: index });
        step.keep(index + 1);
    }
    step.head();
    step.finish()
}

/// A step under construction.
struct Step<'a> {
    spec: &'a ModelSpec,
    plan: &'a Plan,
    shape: StepShape,
    ops: Vec<Op>,
}

impl Step<'_> {
    fn embed(&mut self) {
        let table = self.group(Role::Embed, None);
        self.push(Op::Embed { table, out: self.residual() });
        self.keep(0);
    }

    fn attention_block(&mut self, index: u32, layer: &LayerSpec) {
        let (q_width, kv_width) = (layer.q_width(), layer.kv_width());
        let qkv = View::all(BufferName::Qkv, q_width + 2 * kv_width);
        let q = qkv.columns(0, q_width);
        let k = qkv.columns(q_width, kv_width);
        let v = qkv.columns(q_width + kv_width, kv_width);
        let attended = View::all(BufferName::Attended, q_width);
        let kv = self.plan.kv[index as usize];

        // 1. Norm, then queries, keys and values in one product.
        self.norm(Vector::AttnNorm, Some(index), self.residual(), self.normed(), RowSet::Step);
        self.matmul_runs(Role::AttnQkv, index, self.normed(), qkv);
        if layer.qkv_bias {
            self.bias(Vector::AttnQkvBias, index, qkv);
        }
        // 2. Per-head norms come before positions.
        if layer.qk_norm {
            self.norm(Vector::QNorm, Some(index), q, q, RowSet::Step);
            self.norm(Vector::KNorm, Some(index), k, k, RowSet::Step);
        }
        if let Some(table) = layer.rope {
            self.rope(table, q, layer);
            self.rope(table, k, layer);
        }
        // 3. Every row of the step is cached before any row looks.
        self.push(Op::KvAppend { k, v, layer: index, kv });
        self.push(Op::Attention {
            q,
            out: attended,
            layer: index,
            kv,
            heads: layer.num_attention_heads,
            scale: layer.attention_scale,
            window: layer.sliding_window,
        });
        // 4. Projection and residual.
        self.matmul(Role::AttnOut, index, attended, self.projected());
        if layer.attn_out_bias {
            self.bias(Vector::AttnOutBias, index, self.projected());
        }
        self.push(Op::Add { x: self.residual(), y: self.projected() });
    }

    fn feed_forward_block(&mut self, index: u32, layer: &LayerSpec) {
        let gate_up = View::all(BufferName::GateUp, 2 * layer.intermediate_size);
        let ffn = View::all(BufferName::Ffn, layer.intermediate_size);

        self.norm(Vector::FfnNorm, Some(index), self.residual(), self.normed(), RowSet::Step);
        self.matmul(Role::FfnGateUp, index, self.normed(), gate_up);
        if layer.mlp_bias {
            self.bias(Vector::FfnGateUpBias, index, gate_up);
        }
        self.push(Op::GatedAct { x: gate_up, out: ffn, act: self.spec.hidden_act });
        self.matmul(Role::FfnDown, index, ffn, self.projected());
        if layer.mlp_bias {
            self.bias(Vector::FfnDownBias, index, self.projected());
        }
        self.push(Op::Add { x: self.residual(), y: self.projected() });
    }

    fn head(&mut self) {
        let emitted = View::all(BufferName::Emitted, self.spec.hidden_size);
        let (x, normed, rows) = match self.shape.logits {
            LogitRows::None => return,
            LogitRows::One => {
                self.push(Op::SelectRows { x: self.residual(), out: emitted });
                (emitted, emitted, RowSet::Emitted)
            }
            LogitRows::All => (self.residual(), self.normed(), RowSet::Step),
        };
        self.norm(Vector::FinalNorm, None, x, normed, rows);
        if self.shape.logits == LogitRows::All {
            let last = u32::try_from(self.spec.layers.len()).unwrap_or(u32::MAX).saturating_add(1);
            self.keep_view(last, normed);
        }
        let weight =
            self.group(if self.spec.tie_word_embeddings { Role::Embed } else { Role::Head }, None);
        let logits = View::dense(BufferName::Logits, self.spec.vocab_size);
        self.push(Op::MatMul { weight, x: normed, out: logits, rows });
        if self.shape.sample {
            let context = self.plan.options.context;
            self.push(Op::Sample { logits, rows, context });
            self.push(Op::Advance);
        }
    }

    fn norm(&mut self, vector: Vector, layer: Option<u32>, x: View, out: View, rows: RowSet) {
        let weight = self.vector(vector, layer);
        self.push(Op::RmsNorm { x, weight, out, eps: self.spec.norm.eps, rows });
    }

    fn matmul(&mut self, role: Role, layer: u32, x: View, out: View) {
        let weight = self.group(role, Some(layer));
        self.push(Op::MatMul { weight, x, out, rows: RowSet::Step });
    }

    /// One product for each run of rows that are stored alike.
    fn matmul_runs(&mut self, role: Role, layer: u32, x: View, out: View) {
        let plan = self.plan;
        let mut start = 0;
        for weight in plan.runs(role, Some(layer)) {
            let rows = u32::try_from(plan.group(weight).geometry.rows)
                .expect("widths are bounded in ModelSpec::check");
            let out = out.columns(start, rows);
            self.push(Op::MatMul { weight, x, out, rows: RowSet::Step });
            start += rows;
        }
    }

    fn bias(&mut self, vector: Vector, layer: u32, x: View) {
        let bias = self.vector(vector, Some(layer));
        self.push(Op::AddBias { x, bias });
    }

    fn rope(&mut self, table: u32, x: View, layer: &LayerSpec) {
        let rope = &self.spec.ropes[table as usize];
        let attention_factor = RopeTable::new(rope).attention_factor;
        let (head_dim, rotary_dim) = (layer.head_dim, rope.rotary_dim);
        self.push(Op::Rope { x, table, head_dim, rotary_dim, attention_factor });
    }

    fn keep(&mut self, tap: u32) {
        self.keep_view(tap, self.residual());
    }

    fn keep_view(&mut self, tap: u32, x: View) {
        if self.shape.hidden {
            let out = View::dense(BufferName::Hidden { tap }, self.spec.hidden_size);
            self.push(Op::Keep { x, out });
        }
    }

    fn residual(&self) -> View {
        View::all(BufferName::Residual, self.spec.hidden_size)
    }

    fn normed(&self) -> View {
        View::all(BufferName::Normed, self.spec.hidden_size)
    }

    fn projected(&self) -> View {
        View::all(BufferName::Projected, self.spec.hidden_size)
    }

    fn group(&self, role: Role, layer: Option<u32>) -> GroupId {
        self.plan.find(role, layer).expect("checked in Plan::new")
    }

    fn vector(&self, vector: Vector, layer: Option<u32>) -> VectorRef {
        let group = self.group(Role::Small, layer);
        let geometry = &self.plan.group(group).geometry;
        let plane = geometry.plane(PlaneKind::Vector(vector)).expect("checked in Plan::new");
        let small = |bytes: u64| u32::try_from(bytes).expect("a small page is at most 32 MiB");
        VectorRef { group, offset: small(plane.offset / 4), len: small(plane.rows) }
    }

    fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Sizes the buffers that the ops name and wraps all ops into one segment.
    fn finish(self) -> Program {
        let mut buffers: Vec<BufferSpec> = Vec::new();
        let mut need = |name: BufferName, bytes: u64| match buffers
            .iter_mut()
            .find(|buffer| buffer.name == name)
        {
            Some(buffer) => buffer.bytes = buffer.bytes.max(bytes),
            None => buffers.push(BufferSpec { name, bytes }),
        };
        let mut weights = BTreeMap::new();
        for op in &self.ops {
            for id in op.groups() {
                let group = self.plan.group(id);
                for (run, parts) in (0u32..).zip(&group.runs) {
                    need(BufferName::Weight { group: id, run }, group.geometry.run_bytes(parts));
                }
                weights.entry(id).or_insert_with(|| Weight {
                    role: group.role,
                    layer: group.layer,
                    geometry: group.geometry.clone(),
                    runs: group.runs.clone(),
                });
            }
            let (read, written) = op.views();
            for view in read.iter().chain(&written) {
                need(view.buffer, self.rows_of(view.buffer) * u64::from(view.stride) * 4);
            }
            let (read, written) = op.tables();
            for &table in read.iter().chain(&written) {
                need(table, self.table_bytes(table));
            }
        }
        let pages = self.pages();
        let ops = self.ops.len();
        Program {
            name: self.name(),
            shape: self.shape,
            weights,
            buffers,
            ops: self.ops,
            segments: vec![Segment {
                ops: 0..ops,
                pages,
                place: Place::Device,
                imports: Vec::new(),
                exports: Vec::new(),
            }],
        }
    }

    fn rows_of(&self, buffer: BufferName) -> u64 {
        let packed = matches!(buffer, BufferName::Emitted | BufferName::Logits);
        match self.shape.logits {
            LogitRows::One if packed => 1,
            LogitRows::None | LogitRows::One | LogitRows::All => u64::from(self.shape.rows),
        }
    }

    fn table_bytes(&self, table: BufferName) -> u64 {
        let slots = u64::from(self.plan.options.sequences);
        let context = u64::from(self.plan.options.context);
        let record = |bytes: usize| bytes as u64;
        match table {
            BufferName::Step => u64::from(MAX_STEP_ROWS) * record(size_of::<StepRow>()),
            BufferName::BlockTable => slots * context.div_ceil(u64::from(KV_BLOCK)) * 4,
            BufferName::Drawn => slots * 4,
            BufferName::Samplers => slots * record(size_of::<SamplerRecord>()),
            BufferName::History => slots * (context + 1) * 4,
            BufferName::Mask => slots * u64::from(self.spec.vocab_size.div_ceil(32)) * 4,
            BufferName::Bias => slots * u64::from(MAX_BIAS) * 8,
            BufferName::EndIds => u64::from(MAX_END_IDS) * 4,
            BufferName::Ids => slots * u64::from(ID_RING) * record(size_of::<IdRecord>()),
            BufferName::Status => 4,
            BufferName::Rope { table } => {
                u64::from(self.spec.ropes[table as usize].rotary_dim / 2) * 4
            }
            BufferName::Kv { layer } => self.plan.kv[layer as usize].bytes(),
            BufferName::Weight { .. }
            | BufferName::Residual
            | BufferName::Normed
            | BufferName::Qkv
            | BufferName::Attended
            | BufferName::Projected
            | BufferName::GateUp
            | BufferName::Ffn
            | BufferName::Emitted
            | BufferName::Logits
            | BufferName::Hidden { .. } => unreachable!("activations are sized by their views"),
        }
    }

    /// Pages in the order the ops first read them.
    fn pages(&self) -> Vec<PageId> {
        let mut seen = std::collections::BTreeSet::new();
        let groups = self.ops.iter().flat_map(Op::groups).filter(|&group| seen.insert(group));
        let pages = |group| {
            let group = self.plan.group(group);
            (0..group.parts).map(move |part| PageId(group.first_page.0 + part))
        };
        groups.flat_map(pages).collect()
    }

    fn name(&self) -> String {
        let StepShape { rows, kv_capacity, .. } = self.shape;
        let kind = if rows == 1 { "decode" } else { "prefill" };
        format!("{} {kind} rows={rows} kv={kv_capacity}", self.spec.model_type)
    }
}

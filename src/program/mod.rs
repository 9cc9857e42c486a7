//! A decode or prefill step as data: ops over named buffers, cut into segments. No GPU types, no weights.
//!
//! [`decoder`] is the one model file: it turns a description, a plan and a step shape into a [`Program`].
//! [`op`] says what each op computes, [`check`] what every backend may rely on, [`mod@print`] how a program reads.

pub mod check;
pub mod decoder;
pub mod op;
pub mod print;
pub mod step;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::{Geometry, PageId, Role};
use crate::plan::GroupId;

pub use check::CheckError;
pub use op::{Op, RowSet, VectorRef, View};
pub use step::{IdRecord, SamplerRecord, StepRow};

/// A step, ready to be compiled by a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Such as `llama decode rows=1 kv=2048`.
    pub name: String,
    /// What it was built for.
    pub shape: StepShape,
    /// Weight groups it reads.
    pub weights: BTreeMap<GroupId, Weight>,
    /// Buffers it binds, with the bytes each needs.
    pub buffers: Vec<BufferSpec>,
    /// The ops, in order.
    pub ops: Vec<Op>,
    /// Consecutive runs of ops that are started one by one; together they are all ops.
    pub segments: Vec<Segment>,
}

/// A weight group as a program sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// What it is.
    pub role: Role,
    /// Decoder layer, or none.
    pub layer: Option<u32>,
    /// Shape and place of every row.
    pub geometry: Geometry,
    /// Which parts each of its buffers holds; run `i` is bound as `BufferName::Weight { run: i, .. }`.
    pub runs: Vec<Range<u32>>,
}

impl Weight {
    /// Bytes that the buffer of a run must have: its parts at full stride, the last one to its last row.
    /// `None` where the run is not there, or names parts that are not.
    #[must_use]
    pub fn run_bytes(&self, run: usize) -> Option<u64> {
        let parts = self.runs.get(run)?;
        let last = u64::from(parts.end).checked_sub(1)?;
        let before = last.checked_sub(u64::from(parts.start))?;
        (last < self.geometry.parts())
            .then(|| before * self.geometry.part_stride + self.geometry.part_bytes(last))
    }
}

/// The buckets a program is built for. Another bucket is another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepShape {
    /// Rows of the step table; rows not in use are inactive.
    pub rows: u32,
    /// No row's `kv_len` exceeds this; grids are sized by it.
    pub kv_capacity: u32,
    /// Which rows get logits.
    pub logits: LogitRows,
    /// Whether ids are drawn from the logits, and the step advanced.
    pub sample: bool,
    /// Whether the residual after each layer is kept.
    pub hidden: bool,
}

/// Which rows of a step get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogitRows {
    /// None: a prefill chunk that is not the last.
    None,
    /// One row, the one with the `EMIT` flag.
    One,
    /// Every row.
    All,
}

/// A run of ops.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Which ops.
    pub ops: Range<usize>,
    /// Pages that must be present before it starts.
    pub pages: Vec<PageId>,
    /// Where it runs.
    pub place: Place,
    /// Buffers it reads that an earlier segment elsewhere wrote.
    pub imports: Vec<BufferName>,
    /// Buffers it writes that a later segment elsewhere reads.
    pub exports: Vec<BufferName>,
}

/// Which backend runs a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The engine's device.
    Device,
    /// The CPU backend, beside a GPU.
    Cpu,
}

/// A buffer a program binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BufferName {
    /// A run of whole parts of a group.
    Weight {
        /// Which group.
        group: GroupId,
        /// Which of its runs; one buffer holds one run.
        run: u32,
    },
    /// Keys and values of a layer.
    Kv {
        /// Decoder layer.
        layer: u32,
    },
    /// Rotary frequencies, `[rotary_dim / 2]` f32.
    Rope {
        /// Index into `ModelSpec::ropes`.
        table: u32,
    },
    /// The residual stream, `[rows, hidden]` f32.
    Residual,
    /// The normalised residual, `[rows, hidden]` f32.
    Normed,
    /// Queries, keys and values, `[rows, q + k + v]` f32.
    Qkv,
    /// Attention output before its projection, `[rows, heads * head_dim]` f32.
    Attended,
    /// Output of a block before it is added to the residual, `[rows, hidden]` f32.
    Projected,
    /// Gate and up, alternating, `[rows, 2 * ffn]` f32.
    GateUp,
    /// Activated feed-forward, `[rows, ffn]` f32.
    Ffn,
    /// Residual rows that get logits, `[emitted, hidden]` f32.
    Emitted,
    /// Logits, `[emitted, vocab]` f32.
    Logits,
    /// The residual kept for a reader: 0 the embedding, `i + 1` after layer i, last the final norm.
    Hidden {
        /// Which.
        tap: u32,
    },
    /// The step table, `[rows]` of [`StepRow`].
    Step,
    /// Physical KV block of each logical one, per sequence, u32.
    BlockTable,
    /// The id each sampler slot drew last, u32.
    Drawn,
    /// [`SamplerRecord`] per slot.
    Samplers,
    /// Every token of a slot's sequence by position, `[slots, context + 1]` u32.
    History,
    /// Allowed tokens per slot, `[slots, vocab / 32 rounded up]` u32.
    Mask,
    /// Sparse logit biases per slot, `[slots, MAX_BIAS]` of (id, f32).
    Bias,
    /// Tokens that end a text, `[MAX_END_IDS]` u32, unused ones `u32::MAX`.
    EndIds,
    /// Drawn ids, `[slots, ID_RING]` of [`IdRecord`], at position modulo `ID_RING`.
    Ids,
    /// First layer that produced a number that is not finite, u32; `u32::MAX` when none did.
    Status,
}

/// A buffer and how large it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// Which.
    pub name: BufferName,
    /// Bytes a program touches at most.
    pub bytes: u64,
}

/// Biases one sampler slot can hold.
pub const MAX_BIAS: u32 = 256;
/// End tokens an engine can hold.
pub const MAX_END_IDS: u32 = 32;
/// Records each slot's ring of drawn ids holds; more than any lookahead.
pub const ID_RING: u32 = 16;

impl Program {
    /// Bytes of weights one row reads: every matrix once, of a gathered table one row.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        let multiplied = |group: GroupId| {
            self.ops
                .iter()
                .any(|op| !matches!(op, Op::Embed { .. }) && op.groups().contains(&group))
        };
        let bytes = |(&group, weight): (&GroupId, &Weight)| {
            let geometry = &weight.geometry;
            let rows = if multiplied(group) { 1 } else { geometry.rows };
            geometry.payload_bytes() / rows
        };
        self.weights.iter().map(bytes).sum()
    }

    /// The group an op names.
    #[must_use]
    pub fn weight(&self, group: GroupId) -> Option<&Weight> {
        self.weights.get(&group)
    }

    /// The spec of a buffer.
    #[must_use]
    pub fn buffer(&self, name: BufferName) -> Option<&BufferSpec> {
        self.buffers.iter().find(|buffer| buffer.name == name)
    }
}

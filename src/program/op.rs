//! The primitive verbs of a step and what each computes. One op, one twin in `backend/cpu/kernels`, one row
//! or more in `shaders/kernels.toml`. Fusing runs of them is a backend's business.
//!
//! A view is a column range of a row-major f32 activation. Ops skip rows of the step that are not active.

use super::BufferName;
use crate::model::Activation;
use crate::plan::{GroupId, KvLayout};

/// Columns `offset .. offset + width` of a buffer whose rows are `stride` numbers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Which buffer.
    pub buffer: BufferName,
    /// First column.
    pub offset: u32,
    /// Columns.
    pub width: u32,
    /// Numbers from row to row.
    pub stride: u32,
}

impl View {
    /// All columns of a buffer whose rows follow one another, as a host reads them.
    #[must_use]
    pub fn dense(buffer: BufferName, width: u32) -> Self {
        View { buffer, offset: 0, width, stride: width }
    }

    /// All columns of a buffer whose rows are padded to eight numbers, so that every row can be read in
    /// vectors; the padding is zero and stays so.
    #[must_use]
    pub fn all(buffer: BufferName, width: u32) -> Self {
        View { buffer, offset: 0, width, stride: width.next_multiple_of(8) }
    }

    /// The columns `offset .. offset + width` of this view.
    #[must_use]
    pub fn columns(self, offset: u32, width: u32) -> Self {
        View { offset: self.offset + offset, width, ..self }
    }
}

/// A vector inside a `small` group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorRef {
    /// The `small` group.
    pub group: GroupId,
    /// First number, counted in f32 from the start of the group.
    pub offset: u32,
    /// Numbers.
    pub len: u32,
}

/// Which rows an op works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSet {
    /// The active rows of the step.
    Step,
    /// The rows that emit logits, packed: row j is the j-th emitting row of the step.
    Emitted,
}

/// A primitive op.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out = table[token]`, row by row; token ids beyond the table are clamped.
    Embed {
        /// `[vocab, hidden]`.
        table: GroupId,
        /// `[rows, hidden]`.
        out: View,
    },
    /// y = x / sqrt(mean(x²) + eps) · w over each run of `weight.len` columns; sums in f32 or wider.
    ///
    /// **Paper**: Zhang and Sennrich 2019, arXiv 1910.07467.
    RmsNorm {
        /// `[rows, n * weight.len]`.
        x: View,
        /// One run's weights.
        weight: VectorRef,
        /// As x; may be x itself.
        out: View,
        /// Added to the mean square.
        eps: f32,
        /// Rows it works on.
        rows: RowSet,
    },
    /// out = x · wᵀ, accumulated in f32 or wider.
    MatMul {
        /// `[n, k]`.
        weight: GroupId,
        /// `[rows, k]`.
        x: View,
        /// `[rows, n]`.
        out: View,
        /// Rows it works on.
        rows: RowSet,
    },
    /// x += bias, row by row.
    AddBias {
        /// `[rows, n]`.
        x: View,
        /// `[n]`.
        bias: VectorRef,
    },
    /// Rotates the first `rotary_dim` columns of each head by position · frequency, pairing column i with
    /// i + rotary_dim / 2.
    Rope {
        /// `[rows, heads * head_dim]`, in place.
        x: View,
        /// Index into `ModelSpec::ropes`.
        table: u32,
        /// Width of a head.
        head_dim: u32,
        /// Columns that rotate.
        rotary_dim: u32,
        /// Factor on cosine and sine.
        attention_factor: f32,
    },
    /// Writes each row's keys and values at its position of its sequence.
    KvAppend {
        /// `[rows, kv_heads * head_dim]`.
        k: View,
        /// As k.
        v: View,
        /// Decoder layer.
        layer: u32,
        /// Layout of the layer's buffer.
        kv: KvLayout,
    },
    /// out = softmax(scale · q kᵀ) v over the positions a row may see, each KV head shared by a run of
    /// query heads.
    ///
    /// **Paper**: grouped queries, Ainslie et al. 2023, arXiv 2305.13245.
    Attention {
        /// `[rows, heads * head_dim]`.
        q: View,
        /// `[rows, heads * head_dim]`.
        out: View,
        /// Decoder layer.
        layer: u32,
        /// Layout of the layer's buffer.
        kv: KvLayout,
        /// Query heads.
        heads: u32,
        /// Factor on the scores.
        scale: f32,
        /// Positions visible, the row's own included; none for all.
        window: Option<u32>,
    },
    /// `out[i] = act(x[2 i]) · x[2 i + 1]`: gate and up alternate.
    GatedAct {
        /// `[rows, 2 * ffn]`.
        x: View,
        /// `[rows, ffn]`.
        out: View,
        /// The activation.
        act: Activation,
    },
    /// x += y.
    Add {
        /// `[rows, n]`, in place.
        x: View,
        /// `[rows, n]`.
        y: View,
    },
    /// Records `layer` in the status when a number of x is not finite; the lowest layer wins.
    CheckFinite {
        /// `[rows, hidden]`.
        x: View,
        /// Decoder layer.
        layer: u32,
    },
    /// out = x, to keep a copy for a reader.
    Keep {
        /// `[rows, n]`.
        x: View,
        /// `[rows, n]`.
        out: View,
    },
    /// `out[j] = x[row of the j-th emitting row]`.
    SelectRows {
        /// `[rows, n]`.
        x: View,
        /// `[emitted, n]`.
        out: View,
    },
    /// Draws one id for each emitting row: biases and mask, penalties, temperature, top-k, top-p, min-p,
    /// then one Philox4x32 number keyed by (seed, position) through the inverse CDF in id order.
    ///
    /// **Paper**: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    Sample {
        /// `[rows, vocab]`, or `[emitted, vocab]`.
        logits: View,
        /// How the rows of the logits are numbered; only emitting rows draw either way.
        rows: RowSet,
        /// Positions a slot's history holds, less one.
        context: u32,
    },
    /// Moves every emitting row to the next position, fed by the id just drawn; a row that drew an end
    /// token becomes inactive.
    Advance,
}

impl Op {
    /// The name of its twin, its shader and its cases.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::MatMul { .. } => "matmul",
            Op::AddBias { .. } => "add_bias",
            Op::Rope { .. } => "rope",
            Op::KvAppend { .. } => "kv_append",
            Op::Attention { .. } => "attention",
            Op::GatedAct { .. } => "gated_act",
            Op::Add { .. } => "add",
            Op::CheckFinite { .. } => "check_finite",
            Op::Keep { .. } => "keep",
            Op::SelectRows { .. } => "select_rows",
            Op::Sample { .. } => "sample",
            Op::Advance => "advance",
        }
    }

    /// Weight groups it reads.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::MatMul { weight, .. } => vec![*weight],
            Op::RmsNorm { weight: vector, .. } | Op::AddBias { bias: vector, .. } => {
                vec![vector.group]
            }
            Op::Rope { .. }
            | Op::KvAppend { .. }
            | Op::Attention { .. }
            | Op::GatedAct { .. }
            | Op::Add { .. }
            | Op::CheckFinite { .. }
            | Op::Keep { .. }
            | Op::SelectRows { .. }
            | Op::Sample { .. }
            | Op::Advance => Vec::new(),
        }
    }

    /// Activation views it reads, and those it writes. A view in both is changed in place.
    #[must_use]
    pub fn views(&self) -> (Vec<View>, Vec<View>) {
        match *self {
            Op::Embed { out, .. } => (vec![], vec![out]),
            Op::RmsNorm { x, out, .. }
            | Op::MatMul { x, out, .. }
            | Op::GatedAct { x, out, .. }
            | Op::Keep { x, out }
            | Op::SelectRows { x, out } => (vec![x], vec![out]),
            Op::AddBias { x, .. } | Op::Rope { x, .. } => (vec![x], vec![x]),
            Op::KvAppend { k, v, .. } => (vec![k, v], vec![]),
            Op::Attention { q, out, .. } => (vec![q], vec![out]),
            Op::Add { x, y } => (vec![x, y], vec![x]),
            Op::CheckFinite { x, .. } => (vec![x], vec![]),
            Op::Sample { logits, .. } => (vec![logits], vec![]),
            Op::Advance => (vec![], vec![]),
        }
    }

    /// Buffers other than weights and activations that it reads, and those it writes.
    #[must_use]
    pub fn tables(&self) -> (Vec<BufferName>, Vec<BufferName>) {
        use BufferName as B;
        match *self {
            Op::Embed { .. } => (vec![B::Step, B::Drawn], vec![]),
            Op::RmsNorm { .. }
            | Op::MatMul { .. }
            | Op::AddBias { .. }
            | Op::GatedAct { .. }
            | Op::Add { .. }
            | Op::Keep { .. }
            | Op::SelectRows { .. } => (vec![B::Step], vec![]),
            Op::Rope { table, .. } => (vec![B::Step, B::Rope { table }], vec![]),
            Op::KvAppend { layer, .. } => (vec![B::Step, B::BlockTable], vec![B::Kv { layer }]),
            Op::Attention { layer, .. } => (vec![B::Step, B::BlockTable, B::Kv { layer }], vec![]),
            Op::CheckFinite { .. } => (vec![B::Step], vec![B::Status]),
            Op::Sample { .. } => (
                vec![B::Step, B::Samplers, B::Mask, B::Bias, B::EndIds, B::Status],
                vec![B::Drawn, B::History, B::Ids],
            ),
            Op::Advance => (vec![B::Ids, B::Samplers], vec![B::Step]),
        }
    }
}

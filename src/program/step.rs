//! The records that host and device exchange: one row of the step table, a sampler's settings, a drawn id.
//! Each is plain u32 and f32, laid out as the shaders see it.

use bytemuck::{Pod, Zeroable};

/// Rows the step table has room for: 16 KiB, the uniform limit every adapter has.
pub const MAX_STEP_ROWS: u32 = 512;

/// One row of the step table: which token is fed where.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct StepRow {
    /// A token id, or [`StepRow::FROM_SLOT`] plus a sampler slot: the id that slot drew last.
    pub token: u32,
    /// Which sequence the row belongs to.
    pub sequence: u32,
    /// Position of the token in its sequence, from 0.
    pub position: u32,
    /// Positions visible to the row: `position + 1`.
    pub kv_len: u32,
    /// Where the sequence's block table starts, in entries.
    pub block_table_base: u32,
    /// Slot of recurrent and convolution state.
    pub state_slot: u32,
    /// Slot of sampler settings, history and drawn ids.
    pub sampler_slot: u32,
    /// [`StepRow::ACTIVE`] and [`StepRow::EMIT`].
    pub flags: u32,
}

impl StepRow {
    /// In `token`: take the id that the slot in the low bits drew last.
    pub const FROM_SLOT: u32 = 1 << 31;
    /// The row computes; kernels skip rows without it.
    pub const ACTIVE: u32 = 1;
    /// The row gets logits.
    pub const EMIT: u32 = 2;

    /// Whether the row computes.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.flags & Self::ACTIVE != 0
    }

    /// Whether the row computes and gets logits.
    #[must_use]
    pub fn emits(&self) -> bool {
        self.flags & (Self::ACTIVE | Self::EMIT) == Self::ACTIVE | Self::EMIT
    }
}

/// Settings of one sampler slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SamplerRecord {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Logits kept; 0 keeps all.
    pub top_k: u32,
    /// Probability mass kept; 1 keeps all.
    pub top_p: f32,
    /// Smallest probability kept, as a fraction of the largest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 leaves them.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from logits of recent tokens per occurrence.
    pub frequency_penalty: f32,
    /// How many tokens are recent.
    pub repeat_last_n: u32,
    /// Low half of the seed.
    pub seed_low: u32,
    /// High half of the seed.
    pub seed_high: u32,
    /// [`SamplerRecord::MASKED`], [`SamplerRecord::IGNORE_END`].
    pub flags: u32,
    /// Entries in use in the slot's bias table.
    pub bias_count: u32,
    /// Zero.
    pub reserved: [u32; 4],
}

impl SamplerRecord {
    /// The slot's mask applies.
    pub const MASKED: u32 = 1;
    /// End tokens do not end the row.
    pub const IGNORE_END: u32 = 2;
}

impl Default for SamplerRecord {
    fn default() -> Self {
        SamplerRecord {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            seed_low: 0,
            seed_high: 0,
            flags: 0,
            bias_count: 0,
            reserved: [0; 4],
        }
    }
}

/// A drawn id, as it returns to the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct IdRecord {
    /// The token.
    pub id: u32,
    /// Its natural-log probability under the model's own logits.
    pub logprob: f32,
    /// [`IdRecord::END`], [`IdRecord::NOT_FINITE`].
    pub flags: u32,
    /// Position of the row that drew it; the id itself belongs to the next position.
    pub position: u32,
    /// Which sequence.
    pub sequence: u32,
    /// First layer that produced a number that is not finite; `u32::MAX` when none did.
    pub bad_layer: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

impl IdRecord {
    /// The token ends the text.
    pub const END: u32 = 1;
    /// A logit or an activation was not finite.
    pub const NOT_FINITE: u32 = 2;

    /// Whether the token ends the text.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.flags & Self::END != 0
    }

    /// Whether something was not finite.
    #[must_use]
    pub fn is_not_finite(&self) -> bool {
        self.flags & Self::NOT_FINITE != 0
    }
}

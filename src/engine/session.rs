//! One sequence: its tokens, its KV blocks and its steps.
//!
//! [`Session::feed`] runs tokens and draws the next id; [`Session::next`] feeds the id drawn last and draws
//! again, keeping as many steps in flight as the device likes; [`Session::truncate`] goes back.

use std::collections::VecDeque;
use std::time::Duration;

use super::{EMPTY, Engine, Error, ROW_BUCKETS, decode_shape, largest_bucket};
use crate::backend::{Fence, ReadId, Slice};
use crate::kv::Blocks;
use crate::plan::KV_BLOCK;
use crate::program::{
    BufferName, ID_RING, IdRecord, LogitRows, MAX_BIAS, SamplerRecord, StepRow, StepShape,
};

/// Longest a single step may take before the device is taken for dead.
const DEADLINE: Duration = Duration::from_secs(120);
/// Smallest KV capacity a program is built for.
const SMALLEST_CAPACITY: u32 = 256;

/// A sequence of an engine. Dropping it gives its blocks back.
pub struct Session {
    engine: Engine,
    slot: u32,
    blocks: Blocks,
    tokens: Vec<u32>,
    /// The id drawn last, not yet fed.
    drawn: Option<u32>,
    in_flight: VecDeque<ReadId>,
}

/// Logits of consecutive positions.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsChunk {
    /// Position of the first row.
    pub first: u32,
    /// Rows.
    pub rows: u32,
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Where asked for: the embedding, the output of each layer, the final norm, each `[rows, hidden]`.
    pub hidden: Vec<Vec<f32>>,
}

impl Session {
    pub(super) fn new(engine: Engine) -> crate::Result<Self> {
        let sequences = engine.0.plan.options.sequences;
        let slot = engine.state().free_slots.pop().ok_or(Error::NoSequence { sequences })?;
        let mut session = Session {
            engine,
            slot,
            blocks: Blocks::default(),
            tokens: Vec::new(),
            drawn: None,
            in_flight: VecDeque::new(),
        };
        session.configure(&SamplerRecord::default(), &[], None)?;
        Ok(session)
    }

    /// The tokens whose keys and values are held.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The engine it belongs to.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Sets how ids are drawn. `bias` is added to single logits; `mask` has a bit for every token that may
    /// be drawn, and tokens beyond its end may not.
    ///
    /// **Errors**: [`Error::EmptyMask`], [`Error::TooManyBiases`].
    pub fn configure(
        &mut self,
        settings: &SamplerRecord,
        bias: &[(u32, f32)],
        mask: Option<&[u32]>,
    ) -> crate::Result<()> {
        self.discard()?;
        let max = MAX_BIAS;
        if bias.len() > max as usize {
            return Err(Error::TooManyBiases { found: bias.len(), max }.into());
        }
        let mut settings = *settings;
        settings.bias_count = bias.len() as u32;
        settings.flags &= !SamplerRecord::MASKED;
        if let Some(mask) = mask {
            let mask = whole_mask(mask, self.engine.0.spec.vocab_size);
            if mask.iter().all(|&word| word == 0) {
                return Err(Error::EmptyMask.into());
            }
            settings.flags |= SamplerRecord::MASKED;
            self.write(BufferName::Mask, mask.len() * 4, 0, bytemuck::cast_slice(&mask))?;
        }
        let bias: Vec<[u32; 2]> = bias.iter().map(|(id, bias)| [*id, bias.to_bits()]).collect();
        self.write(BufferName::Bias, max as usize * 8, 0, bytemuck::cast_slice(&bias))?;
        let record = size_of::<SamplerRecord>();
        self.write(BufferName::Samplers, record, 0, bytemuck::bytes_of(&settings))
    }

    /// Feeds tokens and draws the id that follows them. `interrupted` is asked between chunks; when it says
    /// so, the tokens of finished chunks stay.
    ///
    /// **Errors**: [`Error::NoTokens`], [`Error::Token`], [`Error::ContextFull`], [`Error::NotFinite`],
    /// [`Error::Interrupted`].
    pub fn feed(
        &mut self,
        tokens: &[u32],
        interrupted: &dyn Fn() -> bool,
    ) -> crate::Result<IdRecord> {
        self.discard()?;
        self.check_tokens(tokens)?;
        self.grow(tokens.len())?;
        self.drawn = None;
        let largest =
            largest_bucket(&self.engine.0.spec, self.engine.context(), self.engine.0.outputs);
        let mut rest = tokens;
        loop {
            if interrupted() {
                // Finished chunks are kept, and with them what they found; nobody else is to be blamed.
                self.check_status(self.tokens.len() as u32)?;
                return Err(Error::Interrupted.into());
            }
            let (chunk, tail) = rest.split_at(rest.len().min(largest as usize));
            rest = tail;
            let logits = match (rest.is_empty(), chunk.len()) {
                (true, 1) => LogitRows::All,
                (true, _) => LogitRows::One,
                (false, _) => LogitRows::None,
            };
            let fence = self.step(chunk, logits, rest.is_empty(), false)?;
            if rest.is_empty() {
                let read = self.read_drawn(fence)?;
                return self.take_drawn(read);
            }
        }
    }

    /// Feeds the id drawn last and draws the next.
    ///
    /// **Errors**: [`Error::NoTokens`] where nothing was drawn, [`Error::ContextFull`], [`Error::NotFinite`].
    #[expect(
        clippy::should_implement_trait,
        reason = "a step of a sequence; it fails, and never ends"
    )]
    pub fn next(&mut self) -> crate::Result<IdRecord> {
        let Some(drawn) = self.drawn else { return Err(Error::NoTokens.into()) };
        let lookahead = self.engine.device().lookahead.clamp(1, ID_RING / 2) as usize;
        let context = self.engine.context();
        while self.in_flight.len() < lookahead {
            let position = self.tokens.len() + self.in_flight.len();
            if position as u64 >= u64::from(context) {
                break;
            }
            self.grow(self.in_flight.len() + 1)?;
            let shape = decode_shape(self.capacity(position as u32 + 1));
            let program = self.engine.compiled(shape)?;
            let row = self.row(StepRow::FROM_SLOT | self.slot, position as u32, true);
            let backend = &self.engine.0.backend;
            let fence = backend.run(program, 0, Some(&[row]), &[])?;
            let read = self.read_record(fence, position as u32)?;
            self.in_flight.push_back(read);
        }
        let Some(read) = self.in_flight.pop_front() else {
            let needed = self.tokens.len() as u64 + 1;
            return Err(Error::ContextFull { needed, context }.into());
        };
        self.tokens.push(drawn);
        self.drawn = None;
        self.take_drawn(read)
    }

    /// Goes back to the first `len` tokens; what was drawn after them is forgotten.
    ///
    /// **Errors**: the device fails while steps in flight are awaited.
    pub fn truncate(&mut self, len: usize) -> crate::Result<()> {
        self.discard()?;
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.engine.state().pool.cut(&mut self.blocks, len as u32);
        }
        self.drawn = None;
        Ok(())
    }

    /// Goes back by `n` tokens.
    ///
    /// **Errors**: as [`Session::truncate`].
    pub fn rewind(&mut self, n: usize) -> crate::Result<()> {
        self.truncate(self.tokens.len().saturating_sub(n))
    }

    /// Feeds tokens and hands out the logits of every position, chunk by chunk. The engine must have been
    /// opened for logits.
    ///
    /// **Errors**: as [`Session::feed`]; whatever `sink` returns.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(LogitsChunk) -> crate::Result<()>,
    ) -> crate::Result<()> {
        self.discard()?;
        self.check_tokens(tokens)?;
        self.grow(tokens.len())?;
        self.drawn = None;
        let hidden = self.engine.0.outputs == super::Outputs::Logits { hidden: true };
        let spec = &self.engine.0.spec;
        let (vocab, width) = (spec.vocab_size, spec.hidden_size);
        let taps = if hidden { spec.layers.len() as u32 + 2 } else { 0 };
        let largest = largest_bucket(spec, self.engine.context(), self.engine.0.outputs);
        for chunk in tokens.chunks(largest as usize) {
            let first = self.tokens.len() as u32;
            let rows = chunk.len() as u32;
            let fence = self.step(chunk, LogitRows::All, false, hidden)?;
            let logits = self.numbers(BufferName::Logits, rows * vocab, fence)?;
            let hidden = (0..taps)
                .map(|tap| self.numbers(BufferName::Hidden { tap }, rows * width, fence))
                .collect::<crate::Result<Vec<_>>>()?;
            self.check_status(first)?;
            if logits.iter().any(|logit| !logit.is_finite()) {
                return Err(Error::NotFinite { layer: None, position: first }.into());
            }
            sink(LogitsChunk { first, rows, logits, hidden })?;
        }
        Ok(())
    }

    /// Runs one chunk; its tokens are held afterwards.
    fn step(
        &mut self,
        chunk: &[u32],
        logits: LogitRows,
        sample: bool,
        hidden: bool,
    ) -> crate::Result<Fence> {
        let first = self.tokens.len();
        let end = first + chunk.len();
        let bucket = ROW_BUCKETS.iter().copied().find(|&rows| rows as usize >= chunk.len());
        let rows = bucket.unwrap_or(chunk.len() as u32);
        let shape =
            StepShape { rows, kv_capacity: self.capacity(end as u32), logits, sample, hidden };
        let emit = |index: usize| match logits {
            LogitRows::None => false,
            LogitRows::One => index + 1 == chunk.len(),
            LogitRows::All => true,
        };
        let step: Vec<StepRow> = chunk
            .iter()
            .enumerate()
            .map(|(index, &token)| self.row(token, (first + index) as u32, emit(index)))
            .collect();
        let stride = (self.engine.context() as usize + 1) * 4;
        self.write(BufferName::History, stride, first * 4, bytemuck::cast_slice(chunk))?;
        let program = self.engine.compiled(shape)?;
        let fence = self.engine.0.backend.run(program, 0, Some(&step), &[])?;
        self.tokens.extend_from_slice(chunk);
        Ok(fence)
    }

    fn row(&self, token: u32, position: u32, emit: bool) -> StepRow {
        StepRow {
            token,
            sequence: self.slot,
            position,
            kv_len: position + 1,
            block_table_base: self.slot * self.engine.context().div_ceil(KV_BLOCK),
            state_slot: self.slot,
            sampler_slot: self.slot,
            flags: StepRow::ACTIVE | if emit { StepRow::EMIT } else { 0 },
        }
    }

    /// The capacity bucket for this many positions.
    fn capacity(&self, positions: u32) -> u32 {
        positions.next_power_of_two().max(SMALLEST_CAPACITY).min(self.engine.context())
    }

    fn check_tokens(&self, tokens: &[u32]) -> crate::Result<()> {
        if tokens.is_empty() {
            return Err(Error::NoTokens.into());
        }
        let vocab = self.engine.0.spec.vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token >= vocab) {
            return Err(Error::Token { token, vocab }.into());
        }
        let needed = self.tokens.len() as u64 + tokens.len() as u64;
        let context = self.engine.context();
        if needed > u64::from(context) {
            return Err(Error::ContextFull { needed, context }.into());
        }
        Ok(())
    }

    /// Takes blocks for `more` positions and enters them in the block table.
    fn grow(&mut self, more: usize) -> crate::Result<()> {
        let positions = (self.tokens.len() + more) as u32;
        let new = self.engine.state().pool.grow(&mut self.blocks, positions);
        let context = self.engine.context();
        let new = new.ok_or(Error::ContextFull { needed: u64::from(positions), context })?;
        if new.is_empty() {
            return Ok(());
        }
        let entries = self.blocks.as_slice()[new.clone()].to_vec();
        let stride = context.div_ceil(KV_BLOCK) as usize * 4;
        self.write(BufferName::BlockTable, stride, new.start * 4, bytemuck::cast_slice(&entries))
    }

    /// Writes into the slot's part of a table.
    fn write(
        &self,
        name: BufferName,
        stride: usize,
        offset: usize,
        bytes: &[u8],
    ) -> crate::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let table = self.engine.slice(name);
        let offset = (self.slot as usize * stride + offset) as u64;
        let dst = Slice { offset: table.offset + offset, len: bytes.len() as u64, ..table };
        let _ = self.engine.0.backend.write(dst, bytes, &[])?;
        Ok(())
    }

    fn read_drawn(&self, fence: Fence) -> crate::Result<ReadId> {
        self.read_record(fence, self.tokens.len() as u32 - 1)
    }

    fn read_record(&self, fence: Fence, position: u32) -> crate::Result<ReadId> {
        let ring = self.engine.slice(BufferName::Ids);
        let record = size_of::<IdRecord>() as u64;
        let index = u64::from(self.slot * ID_RING + position % ID_RING);
        let src = Slice { offset: ring.offset + index * record, len: record, ..ring };
        Ok(self.engine.0.backend.read(src, fence)?)
    }

    fn take_drawn(&mut self, read: ReadId) -> crate::Result<IdRecord> {
        let bytes = self.take(read)?;
        let record: IdRecord = bytemuck::pod_read_unaligned(&bytes);
        if record.is_not_finite() {
            self.reset_status()?;
            let layer = (record.bad_layer != EMPTY).then_some(record.bad_layer);
            return Err(Error::NotFinite { layer, position: record.position }.into());
        }
        self.drawn = Some(record.id);
        Ok(record)
    }

    fn take(&self, read: ReadId) -> crate::Result<Vec<u8>> {
        let bytes = self.engine.0.backend.take(read, DEADLINE)?;
        Ok(bytes.ok_or(Error::Timeout { seconds: DEADLINE.as_secs() })?)
    }

    fn numbers(&self, name: BufferName, count: u32, fence: Fence) -> crate::Result<Vec<f32>> {
        let buffer = self.engine.slice(name);
        let src = Slice { len: u64::from(count) * 4, ..buffer };
        let bytes = self.take(self.engine.0.backend.read(src, fence)?)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn check_status(&self, position: u32) -> crate::Result<()> {
        let status = self.engine.slice(BufferName::Status);
        let read = self.engine.0.backend.read(status, Fence(0))?;
        let layer: u32 = bytemuck::pod_read_unaligned(&self.take(read)?);
        if layer != EMPTY {
            self.reset_status()?;
            return Err(Error::NotFinite { layer: Some(layer), position }.into());
        }
        Ok(())
    }

    fn reset_status(&self) -> crate::Result<()> {
        let status = self.engine.slice(BufferName::Status);
        let _ = self.engine.0.backend.write(status, bytemuck::bytes_of(&EMPTY), &[])?;
        Ok(())
    }

    /// Awaits and forgets steps in flight.
    fn discard(&mut self) -> crate::Result<()> {
        while let Some(read) = self.in_flight.pop_front() {
            let _ = self.take(read)?;
        }
        Ok(())
    }
}

/// A mask of exactly the words the vocabulary has, without bits beyond it.
fn whole_mask(mask: &[u32], vocab: u32) -> Vec<u32> {
    let mut words: Vec<u32> = mask.iter().copied().take(vocab.div_ceil(32) as usize).collect();
    words.resize(vocab.div_ceil(32) as usize, 0);
    if let Some(last) = words.last_mut().filter(|_| !vocab.is_multiple_of(32)) {
        *last &= (1 << (vocab % 32)) - 1;
    }
    words
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nothing can be done about a device that fails here; its blocks are free all the same.
        let _ = self.discard();
        let mut state = self.engine.state();
        state.pool.cut(&mut self.blocks, 0);
        state.free_slots.push(self.slot);
    }
}

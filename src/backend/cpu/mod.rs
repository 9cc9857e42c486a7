//! The CPU backend: buffers in ordinary memory, programs interpreted op by op. It is the reference that
//! other backends are compared with ([`Cpu::reference`] runs the twins alone), and a fallback fast enough to
//! chat with ([`Cpu::new`]). Work is done by the time a call returns; fences are only counted.

mod fast;
mod interpret;
mod kernels;
mod matrix;
mod storage;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rayon::prelude::*;

use self::interpret::Compiled;
use self::storage::{Bound, Storage};
use super::{
    Backend, Buffer, DeviceInfo, Error, Fence, Fill, Footprint, MemoryUse, OpTime, ProgramId,
    ReadId, Sink, Slice, StagingId, Tier,
};
use crate::program::{BufferName, Op, Program, StepRow, check};
use crate::quant::Format;

/// Ordinary memory and the processor's cores.
pub struct Cpu {
    info: DeviceInfo,
    reference: bool,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buffers: BTreeMap<u64, (Arc<RwLock<Storage>>, Tier)>,
    staging: BTreeMap<u64, Storage>,
    programs: BTreeMap<u64, Arc<Compiled>>,
    reads: BTreeMap<u64, Vec<u8>>,
    memory: MemoryUse,
    times: BTreeMap<&'static str, (u64, Duration)>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Cpu {
    /// The backend with its faster kernels.
    #[must_use]
    pub fn new() -> Self {
        Self::with_mode(false)
    }

    /// The plain twins on one thread: slow, and what everything else is compared with.
    #[must_use]
    pub fn reference() -> Self {
        Self::with_mode(true)
    }

    fn with_mode(reference: bool) -> Self {
        let threads = rayon::current_num_threads();
        Cpu {
            info: DeviceInfo {
                name: if reference { "cpu:reference".into() } else { "cpu".into() },
                api: "cpu".into(),
                kind: "cpu".into(),
                driver: format!("{threads} threads"),
                lookahead: 1,
                unified_memory: true,
                max_binding_bytes: u64::MAX,
            },
            reference,
            next: AtomicU64::new(1),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves whole entries, not broken ones.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn bound(&self, slice: Slice) -> Result<Bound, Error> {
        let state = self.state();
        let (storage, _) = state
            .buffers
            .get(&slice.buffer.0)
            .ok_or(Error::Stale { what: "buffer", id: slice.buffer.0 })?;
        let size = storage.read().unwrap_or_else(PoisonError::into_inner).len();
        let end = slice.offset.checked_add(slice.len).filter(|&end| end <= size);
        let end = end.ok_or(Error::OutOfRange { offset: slice.offset, len: slice.len, size })?;
        Ok(Bound { storage: Arc::clone(storage), range: slice.offset as usize..end as usize })
    }

    /// Counts an allocation, or refuses it.
    fn reserve(&self, bytes: u64, tier: Tier, label: &str) -> Result<Storage, Error> {
        let in_use = self.memory().device_bytes;
        let storage = Storage::zeroed(bytes).ok_or_else(|| Error::OutOfMemory {
            label: label.to_owned(),
            requested: bytes,
            in_use,
        })?;
        self.state().memory.add(bytes, tier);
        Ok(storage)
    }

    fn insert(&self, storage: Storage, tier: Tier) -> Buffer {
        let id = self.id();
        self.state().buffers.insert(id, (Arc::new(RwLock::new(storage)), tier));
        Buffer(id)
    }

    fn fence(&self) -> Fence {
        Fence(self.id())
    }
}

/// A chunk of a new buffer.
struct Chunk<'a>(&'a mut [u8]);

impl Sink for Chunk<'_> {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        self.0[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn direct(&mut self) -> Option<&mut [u8]> {
        Some(self.0)
    }
}

impl Backend for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        self.state().memory
    }

    fn supports(&self, _op: &Op) -> bool {
        true
    }

    fn footprint(&self, _program: &Program) -> Footprint {
        Footprint::default()
    }

    fn alloc(&self, bytes: u64, tier: Tier, label: &str) -> Result<Buffer, Error> {
        let storage = self.reserve(bytes, tier, label)?;
        Ok(self.insert(storage, tier))
    }

    fn alloc_filled(
        &self,
        bytes: u64,
        tier: Tier,
        label: &str,
        chunks: &[Range<u64>],
        fill: Fill<'_>,
    ) -> crate::Result<Buffer> {
        let mut storage = self.reserve(bytes, tier, label)?;
        let filled = split(storage.bytes_mut(), chunks).and_then(|chunks| {
            chunks
                .into_par_iter()
                .enumerate()
                .try_for_each(|(index, chunk)| fill(index, &mut Chunk(chunk)))
        });
        if let Err(error) = filled {
            self.state().memory.subtract(bytes, tier);
            return Err(error);
        }
        Ok(self.insert(storage, tier))
    }

    fn free(&self, buffer: Buffer) {
        let mut state = self.state();
        if let Some((storage, tier)) = state.buffers.remove(&buffer.0) {
            let bytes = storage.read().unwrap_or_else(PoisonError::into_inner).len();
            state.memory.subtract(bytes, tier);
        }
    }

    fn staging(&self, bytes: u64) -> Result<StagingId, Error> {
        let storage = self.reserve(bytes, Tier::Host, "staging")?;
        let id = self.id();
        self.state().staging.insert(id, storage);
        Ok(StagingId(id))
    }

    fn fill(&self, staging: StagingId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.state();
        let block = state
            .staging
            .get_mut(&staging.0)
            .ok_or(Error::Stale { what: "staging block", id: staging.0 })?;
        let (size, len) = (block.len(), bytes.len() as u64);
        let target = usize::try_from(offset)
            .ok()
            .and_then(|start| block.bytes_mut().get_mut(start..start.checked_add(bytes.len())?))
            .ok_or(Error::OutOfRange { offset, len, size })?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn upload(&self, dst: Slice, src: StagingId, after: &[Fence]) -> Result<Fence, Error> {
        let block = {
            let mut state = self.state();
            let block = state.staging.remove(&src.0);
            if let Some(block) = &block {
                state.memory.subtract(block.len(), Tier::Host);
            }
            block.ok_or(Error::Stale { what: "staging block", id: src.0 })?
        };
        let len = (dst.len as usize).min(block.bytes().len());
        self.write(dst, &block.bytes()[..len], after)
    }

    fn copy(&self, dst: Slice, src: Slice, after: &[Fence]) -> Result<Fence, Error> {
        let bytes = self.bound(src)?.read().bytes().to_vec();
        self.write(dst, &bytes, after)
    }

    fn write(&self, dst: Slice, bytes: &[u8], _after: &[Fence]) -> Result<Fence, Error> {
        let size = dst.len;
        let bound = self.bound(dst)?;
        let mut guard = bound.write();
        let target = guard.bytes().get_mut(..bytes.len()).ok_or(Error::OutOfRange {
            offset: 0,
            len: bytes.len() as u64,
            size,
        })?;
        target.copy_from_slice(bytes);
        Ok(self.fence())
    }

    fn read(&self, src: Slice, _after: Fence) -> Result<ReadId, Error> {
        let bytes = self.bound(src)?.read().bytes().to_vec();
        let id = self.id();
        self.state().reads.insert(id, bytes);
        Ok(ReadId(id))
    }

    fn take(&self, read: ReadId, _deadline: Duration) -> Result<Option<Vec<u8>>, Error> {
        let bytes = self.state().reads.remove(&read.0);
        bytes.map(Some).ok_or(Error::Stale { what: "read", id: read.0 })
    }

    fn compile(
        &self,
        program: &Program,
        bind: &BTreeMap<BufferName, Slice>,
    ) -> Result<ProgramId, Error> {
        check::check(program).map_err(Box::new)?;
        for op in &program.ops {
            let matrix = match op {
                Op::Embed { table, .. } => Some(table),
                Op::MatMul { weight, .. } => Some(weight),
                _ => None,
            };
            let weight = matrix.and_then(|&group| program.weight(group));
            if weight.is_some_and(|weight| weight.geometry.format == Format::Bytes) {
                return Err(Error::Unsupported { device: self.info.name.clone(), op: op.name() });
            }
        }
        let mut bound = BTreeMap::new();
        for spec in &program.buffers {
            let unbound = |found| Error::Unbound {
                program: program.name.clone(),
                name: spec.name,
                found,
                expected: spec.bytes,
            };
            let slice = bind.get(&spec.name).ok_or_else(|| unbound(0))?;
            if slice.len < spec.bytes || slice.offset % 8 != 0 {
                return Err(unbound(slice.len));
            }
            bound.insert(spec.name, self.bound(*slice)?);
        }
        let compiled = Compiled { program: program.clone(), bound, reference: self.reference };
        let id = self.id();
        self.state().programs.insert(id, Arc::new(compiled));
        Ok(ProgramId(id))
    }

    fn release(&self, program: ProgramId) {
        self.state().programs.remove(&program.0);
    }

    fn run(
        &self,
        program: ProgramId,
        segment: usize,
        step: Option<&[StepRow]>,
        _after: &[Fence],
    ) -> Result<Fence, Error> {
        let compiled = self.state().programs.get(&program.0).map(Arc::clone);
        let compiled = compiled.ok_or(Error::Stale { what: "program", id: program.0 })?;
        if let Some(step) = step {
            let expected = compiled.program.shape.rows;
            if step.len() > expected as usize {
                return Err(Error::TooManyRows { found: step.len(), expected });
            }
            compiled.set_step(step);
        }
        let mut times = BTreeMap::new();
        compiled.run(segment, &mut times);
        let mut state = self.state();
        for (name, (count, time)) in times {
            let sum = state.times.entry(name).or_default();
            sum.0 += count;
            sum.1 += time;
        }
        drop(state);
        Ok(self.fence())
    }

    fn wait(&self, _fence: Fence, _timeout: Duration) -> Result<bool, Error> {
        Ok(true)
    }

    fn timings(&self) -> Vec<OpTime> {
        let times = std::mem::take(&mut self.state().times);
        let time = |(name, (count, time)): (&str, (u64, Duration))| OpTime {
            name: name.to_owned(),
            count,
            seconds: time.as_secs_f64(),
        };
        times.into_iter().map(time).collect()
    }
}

/// Cuts a buffer into the chunks asked for.
fn split<'a>(mut rest: &'a mut [u8], chunks: &[Range<u64>]) -> crate::Result<Vec<&'a mut [u8]>> {
    let size = rest.len() as u64;
    let mut done = 0u64;
    let mut pieces = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let len = chunk.end.saturating_sub(chunk.start);
        let outside = || Error::OutOfRange { offset: chunk.start, len, size };
        let gap = chunk.start.checked_sub(done).ok_or_else(outside)?;
        let (_, tail) = rest.split_at_mut_checked(gap as usize).ok_or_else(outside)?;
        let (piece, tail) = tail.split_at_mut_checked(len as usize).ok_or_else(outside)?;
        pieces.push(piece);
        rest = tail;
        done = chunk.end;
    }
    Ok(pieces)
}

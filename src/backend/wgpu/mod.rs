//! The GPU backend: the same programs on any adapter that wgpu reaches.
//!
//! [`device`] finds and opens an adapter, [`lower`] turns ops into kernels, [`compose`] puts their WGSL
//! together, `program` binds them. Commands of a queue run in the order they are submitted, so fences that
//! callers wait for are implied; `run` and `read` share a submission where nothing comes between.

pub mod compose;
pub mod device;
pub mod lower;
mod program;
mod shader;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use self::device::Opened;
use self::lower::{Binding, Kernel};
use self::program::{Compiled, Dispatch, Pipelines};
use super::{
    Backend, Buffer, DeviceInfo, Error, Fence, Fill, Footprint, MemoryUse, OpTime, OpenOptions,
    ProgramId, ReadId, Sink, Slice, StagingId, Tier,
};
use crate::program::step::MAX_STEP_ROWS;
use crate::program::{BufferName, Op, Program, StepRow, check};

/// An adapter, opened.
pub struct Wgpu {
    opened: Opened,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buffers: BTreeMap<u64, (wgpu::Buffer, u64)>,
    staging: BTreeMap<u64, Vec<u8>>,
    programs: BTreeMap<u64, Arc<Compiled>>,
    reads: BTreeMap<u64, Pending>,
    pipelines: Pipelines,
    memory: MemoryUse,
    encoder: Option<wgpu::CommandEncoder>,
    submitted: VecDeque<(u64, wgpu::SubmissionIndex)>,
}

/// A read on its way.
struct Pending {
    buffer: wgpu::Buffer,
    len: usize,
    state: Arc<AtomicU8>,
}

/// States of a read.
const WAITING: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;
/// Buffers up to this may also be bound as uniforms.
const UNIFORM_BYTES: u64 = 64 << 10;
/// Submissions remembered for `wait`.
const REMEMBERED: usize = 64;

impl Wgpu {
    /// Opens the adapter that the options name.
    ///
    /// **Errors**: no adapter of that name, or its driver refuses.
    pub fn open(options: &OpenOptions) -> Result<Self, Error> {
        let opened = device::open(options)?;
        Ok(Wgpu { opened, next: AtomicU64::new(1), state: Mutex::default() })
    }

    /// The kernels a program becomes here, for printing.
    ///
    /// **Errors**: an op has no kernel.
    pub fn kernels(&self, program: &Program) -> Result<Vec<Kernel>, Error> {
        Ok(lower::lower(program, 0..program.ops.len(), self.opened.target)?)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves whole entries, not broken ones.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn create(&self, bytes: u64, label: &str, mapped: bool) -> Result<wgpu::Buffer, Error> {
        let in_use = self.memory().device_bytes;
        let requested = bytes;
        let out_of_memory = || Error::OutOfMemory { label: label.to_owned(), requested, in_use };
        let size = bytes.max(16).next_multiple_of(16);
        if size > self.opened.device.limits().max_buffer_size {
            return Err(out_of_memory());
        }
        let mut usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::COPY_SRC;
        if size <= UNIFORM_BYTES {
            usage |= wgpu::BufferUsages::UNIFORM;
        }
        let scope = self.opened.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.opened.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: mapped,
        });
        match pollster::block_on(scope.pop()) {
            Some(_) => Err(out_of_memory()),
            None => Ok(buffer),
        }
    }

    fn insert(&self, buffer: wgpu::Buffer, bytes: u64) -> Buffer {
        let id = self.id();
        let mut state = self.state();
        state.memory.add(bytes, Tier::Device);
        state.buffers.insert(id, (buffer, bytes));
        Buffer(id)
    }

    fn buffer(&self, state: &State, slice: Slice) -> Result<wgpu::Buffer, Error> {
        let id = slice.buffer.0;
        let (buffer, size) = state.buffers.get(&id).ok_or(Error::Stale { what: "buffer", id })?;
        let end = slice.offset.checked_add(slice.len);
        if end.is_none_or(|end| end > *size) {
            return Err(Error::OutOfRange { offset: slice.offset, len: slice.len, size: *size });
        }
        Ok(buffer.clone())
    }

    fn encoder<'s>(&self, state: &'s mut State) -> &'s mut wgpu::CommandEncoder {
        state
            .encoder
            .get_or_insert_with(|| self.opened.device.create_command_encoder(&Default::default()))
    }

    /// Submits what was encoded.
    fn flush(&self, state: &mut State) {
        if let Some(encoder) = state.encoder.take() {
            let index = self.opened.queue.submit([encoder.finish()]);
            let id = self.id();
            state.submitted.push_back((id, index));
            if state.submitted.len() > REMEMBERED {
                state.submitted.pop_front();
            }
        }
    }

    fn fence(&self) -> Fence {
        Fence(self.id())
    }

    fn bind(
        &self,
        program: &Program,
        kernel: &Kernel,
        bind: &BTreeMap<BufferName, Slice>,
        scratch: Option<&wgpu::Buffer>,
        params: (&wgpu::Buffer, u64),
    ) -> Result<Dispatch, Error> {
        let mut state = self.state();
        let pipeline = state.pipelines.get(&self.opened.device, kernel, self.opened.checked);
        let mut bound: Vec<(u32, wgpu::Buffer, u64, u64)> = Vec::new();
        let size = program::uniform_bytes(kernel.params.len());
        bound.push((0, params.0.clone(), params.1, size));
        for (at, binding) in &kernel.bindings {
            let name = match binding {
                Binding::Step => BufferName::Step,
                Binding::Read(name) | Binding::Write(name) => *name,
                Binding::ReadScratch | Binding::WriteScratch => {
                    let scratch = scratch.expect("footprint counted it");
                    bound.push((*at, scratch.clone(), 0, scratch.size()));
                    continue;
                }
            };
            let missing =
                Error::Unbound { program: program.name.clone(), name, found: 0, expected: 1 };
            let slice = *bind.get(&name).ok_or(missing)?;
            let buffer = self.buffer(&state, slice)?;
            let len = match binding {
                Binding::Step => u64::from(MAX_STEP_ROWS) * size_of::<StepRow>() as u64,
                _ => slice.len.next_multiple_of(16).min(buffer.size() - slice.offset),
            };
            bound.push((*at, buffer, slice.offset, len));
        }
        let entries: Vec<wgpu::BindGroupEntry<'_>> = bound
            .iter()
            .map(|(at, buffer, offset, len)| wgpu::BindGroupEntry {
                binding: *at,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: *offset,
                    size: std::num::NonZeroU64::new(*len),
                }),
            })
            .collect();
        Ok(Dispatch::new(&self.opened.device, pipeline, &entries, kernel.grid))
    }
}

/// A chunk of a buffer mapped at creation.
struct Chunk(wgpu::BufferViewMut);

impl Sink for Chunk {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        self.0.slice(start..start + bytes.len()).copy_from_slice(bytes);
    }
}

impl Backend for Wgpu {
    fn info(&self) -> &DeviceInfo {
        &self.opened.info
    }

    fn memory(&self) -> MemoryUse {
        self.state().memory
    }

    fn supports(&self, _op: &Op) -> bool {
        true
    }

    fn footprint(&self, program: &Program) -> Footprint {
        Footprint { scratch_bytes: lower::scratch_bytes(program) }
    }

    fn alloc(&self, bytes: u64, _tier: Tier, label: &str) -> Result<Buffer, Error> {
        let buffer = self.create(bytes, label, false)?;
        Ok(self.insert(buffer, bytes))
    }

    fn alloc_filled(
        &self,
        bytes: u64,
        _tier: Tier,
        label: &str,
        chunks: &[Range<u64>],
        fill: Fill<'_>,
    ) -> crate::Result<Buffer> {
        let buffer = self.create(bytes, label, true)?;
        let outside = |chunk: &Range<u64>| Error::OutOfRange {
            offset: chunk.start,
            len: chunk.end.saturating_sub(chunk.start),
            size: bytes,
        };
        let mut views = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let view = buffer.get_mapped_range_mut(chunk.clone()).map_err(|_| outside(chunk))?;
            views.push(Chunk(view));
        }
        views
            .into_par_iter()
            .enumerate()
            .try_for_each(|(index, mut chunk)| fill(index, &mut chunk))?;
        buffer.unmap();
        Ok(self.insert(buffer, bytes))
    }

    fn free(&self, buffer: Buffer) {
        let mut state = self.state();
        if let Some((buffer, bytes)) = state.buffers.remove(&buffer.0) {
            state.memory.subtract(bytes, Tier::Device);
            buffer.destroy();
        }
    }

    fn staging(&self, bytes: u64) -> Result<StagingId, Error> {
        let id = self.id();
        let mut state = self.state();
        state.memory.add(bytes, Tier::Host);
        state.staging.insert(id, vec![0; bytes as usize]);
        Ok(StagingId(id))
    }

    fn fill(&self, staging: StagingId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.state();
        let id = staging.0;
        let block = state.staging.get_mut(&id).ok_or(Error::Stale { what: "staging block", id })?;
        let (size, len) = (block.len() as u64, bytes.len() as u64);
        let start = offset as usize;
        let target = block
            .get_mut(start..start.saturating_add(bytes.len()))
            .ok_or(Error::OutOfRange { offset, len, size })?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn upload(&self, dst: Slice, src: StagingId, after: &[Fence]) -> Result<Fence, Error> {
        let block = {
            let mut state = self.state();
            let id = src.0;
            let block =
                state.staging.remove(&id).ok_or(Error::Stale { what: "staging block", id })?;
            state.memory.subtract(block.len() as u64, Tier::Host);
            block
        };
        self.write(dst, &block[..block.len().min(dst.len as usize)], after)
    }

    fn copy(&self, dst: Slice, src: Slice, _after: &[Fence]) -> Result<Fence, Error> {
        let mut state = self.state();
        let (from, to) = (self.buffer(&state, src)?, self.buffer(&state, dst)?);
        self.encoder(&mut state).copy_buffer_to_buffer(&from, src.offset, &to, dst.offset, src.len);
        Ok(self.fence())
    }

    fn write(&self, dst: Slice, bytes: &[u8], _after: &[Fence]) -> Result<Fence, Error> {
        let mut state = self.state();
        let len = bytes.len() as u64;
        if len > dst.len {
            return Err(Error::OutOfRange { offset: dst.offset, len, size: dst.len });
        }
        let buffer = self.buffer(&state, dst)?;
        // A write lands before the next submission, so what was encoded earlier must go first.
        self.flush(&mut state);
        if bytes.len().is_multiple_of(4) {
            self.opened.queue.write_buffer(&buffer, dst.offset, bytes);
        } else {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(4), 0);
            self.opened.queue.write_buffer(&buffer, dst.offset, &padded);
        }
        Ok(self.fence())
    }

    fn read(&self, src: Slice, _after: Fence) -> Result<ReadId, Error> {
        let mut state = self.state();
        let from = self.buffer(&state, src)?;
        let size = src.len.next_multiple_of(4);
        let buffer = self.opened.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read"),
            size,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.encoder(&mut state).copy_buffer_to_buffer(&from, src.offset, &buffer, 0, size);
        self.flush(&mut state);
        let flag = Arc::new(AtomicU8::new(WAITING));
        let done = Arc::clone(&flag);
        buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            done.store(if result.is_ok() { MAPPED } else { FAILED }, Ordering::Release);
        });
        let id = self.id();
        state.reads.insert(id, Pending { buffer, len: src.len as usize, state: flag });
        Ok(ReadId(id))
    }

    fn take(&self, read: ReadId, deadline: Duration) -> Result<Option<Vec<u8>>, Error> {
        let id = read.0;
        let stale = Error::Stale { what: "read", id };
        let pending = self.state().reads.remove(&id).ok_or(stale)?;
        let start = Instant::now();
        loop {
            match pending.state.load(Ordering::Acquire) {
                WAITING => {}
                MAPPED => break,
                _ => return Err(Error::Lost { device: self.opened.info.name.clone() }),
            }
            let left = deadline.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.state().reads.insert(id, pending);
                return Ok(None);
            }
            let timeout = Some(left);
            let _ =
                self.opened.device.poll(wgpu::PollType::Wait { submission_index: None, timeout });
        }
        let lost = || Error::Lost { device: self.opened.info.name.clone() };
        let view = pending.buffer.get_mapped_range(..).map_err(|_| lost())?;
        Ok(Some(view[..pending.len].to_vec()))
    }

    fn compile(
        &self,
        program: &Program,
        bind: &BTreeMap<BufferName, Slice>,
    ) -> Result<ProgramId, Error> {
        check::check(program).map_err(Box::new)?;
        for spec in &program.buffers {
            let found = bind.get(&spec.name).map_or(0, |slice| slice.len);
            if found < spec.bytes {
                let program = program.name.clone();
                return Err(Error::Unbound {
                    program,
                    name: spec.name,
                    found,
                    expected: spec.bytes,
                });
            }
        }
        let segments = program
            .segments
            .iter()
            .map(|segment| lower::lower(program, segment.ops.clone(), self.opened.target))
            .collect::<Result<Vec<_>, _>>()?;
        let scratch = match lower::scratch_bytes(program) {
            0 => None,
            bytes => Some(self.create(bytes, "scratch", false)?),
        };
        let scope = self.opened.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let flat: Vec<&Kernel> = segments.iter().flatten().collect();
        let (params, offsets) = program::parameters(&self.opened.device, &flat);
        let mut offsets = offsets.into_iter();
        let mut compiled = Vec::with_capacity(segments.len());
        for kernels in &segments {
            let mut dispatches = Vec::with_capacity(kernels.len());
            for kernel in kernels {
                let offset = offsets.next().unwrap_or(0);
                let params = (&params, offset);
                dispatches.push(self.bind(program, kernel, bind, scratch.as_ref(), params)?);
            }
            compiled.push(dispatches);
        }
        if let Some(error) = pollster::block_on(scope.pop()) {
            let device = self.opened.info.name.clone();
            return Err(Error::Device { device, reason: reason(&error) });
        }
        let step = *bind.get(&BufferName::Step).ok_or(Error::Unbound {
            program: program.name.clone(),
            name: BufferName::Step,
            found: 0,
            expected: 1,
        })?;
        let mut state = self.state();
        let buffer = self.buffer(&state, step)?;
        tracing::debug!(pipelines = state.pipelines.len(), program = %program.name, "compiled");
        let id = self.id();
        let compiled =
            Compiled { segments: compiled, rows: program.shape.rows, step: (buffer, step.offset) };
        state.programs.insert(id, Arc::new(compiled));
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
        let mut state = self.state();
        let id = program.0;
        let compiled =
            state.programs.get(&id).map(Arc::clone).ok_or(Error::Stale { what: "program", id })?;
        if let Some(rows) = step {
            if rows.len() > compiled.rows as usize {
                return Err(Error::TooManyRows { found: rows.len(), expected: compiled.rows });
            }
            let mut table = rows.to_vec();
            table.resize(compiled.rows as usize, StepRow::default());
            self.flush(&mut state);
            let (buffer, offset) = &compiled.step;
            self.opened.queue.write_buffer(buffer, *offset, bytemuck::cast_slice(&table));
        }
        let dispatches = compiled.segments.get(segment).map_or(&[][..], Vec::as_slice);
        program::encode(self.encoder(&mut state), dispatches);
        Ok(self.fence())
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<bool, Error> {
        let mut state = self.state();
        self.flush(&mut state);
        let index =
            state.submitted.iter().find(|(id, _)| *id >= fence.0).map(|(_, index)| index.clone());
        drop(state);
        let Some(index) = index else { return Ok(true) };
        let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(timeout) };
        match self.opened.device.poll(wait) {
            Ok(_) => Ok(true),
            Err(wgpu::PollError::Timeout) => Ok(false),
            Err(_) => Err(Error::Lost { device: self.opened.info.name.clone() }),
        }
    }

    fn timings(&self) -> Vec<OpTime> {
        Vec::new()
    }
}

/// A driver's error with what caused it, on one line.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

//! A device that holds buffers and runs compiled programs. Mechanism only: what is resident, fetched or
//! lowered is decided above, in `plan`, `stream` and `engine`.
//!
//! Everything takes `&self`; handles are small `Copy` ids, used through `Arc<dyn Backend>`. A backend is
//! given programs that `program::check` passed, and reports only what a caller cannot foresee.

pub mod cpu;
#[cfg(feature = "wgpu")]
pub mod wgpu;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::program::{BufferName, CheckError, Op, Program, StepRow};

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The device's own memory.
    Device,
    /// Host memory that kernels read in place.
    Host,
}

/// A buffer of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buffer(pub u64);

/// A byte range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A staging block of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StagingId(pub u64);

/// A read that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(pub u64);

/// A compiled program of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId(pub u64);

/// A point in a backend's work, reached when everything before it is done.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// Where the filler of a new buffer puts bytes: memory of the device, perhaps write-only.
pub trait Sink {
    /// Copies `bytes` to `offset` within the chunk.
    fn write(&mut self, offset: u64, bytes: &[u8]);

    /// The chunk itself, where it is ordinary memory that can be read into directly.
    fn direct(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// Fills chunk `index` of a new buffer; called from several threads.
pub type Fill<'a> = &'a (dyn Fn(usize, &mut dyn Sink) -> crate::Result<()> + Sync);

/// What a device is.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DeviceInfo {
    /// What a person calls it.
    pub name: String,
    /// "cpu", "vulkan", "metal", "dx12", "cuda".
    pub api: String,
    /// "cpu", "discrete", "integrated", "virtual".
    pub kind: String,
    /// Driver, or the number of threads of a CPU.
    pub driver: String,
    /// Steps worth submitting ahead of reading their ids.
    pub lookahead: u32,
    /// Whether device and host memory are the same.
    pub unified_memory: bool,
    /// The largest single binding, in bytes.
    pub max_binding_bytes: u64,
}

/// Bytes held by a backend, and the most it ever held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of buffers in device memory.
    pub device_bytes: u64,
    /// The most `device_bytes` has been.
    pub peak_device_bytes: u64,
    /// Bytes of buffers and staging in host memory.
    pub host_bytes: u64,
    /// The most `host_bytes` has been.
    pub peak_host_bytes: u64,
}

/// What a program needs beyond the buffers it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of scratch: partial results of splits, packed inputs.
    pub scratch_bytes: u64,
}

/// Time an op took on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// The op's or the fused kernel's name.
    pub name: String,
    /// How often it ran.
    pub count: u64,
    /// Seconds in all.
    pub seconds: f64,
}

/// A device that stores pages and runs step programs.
pub trait Backend: Send + Sync {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// What it holds now.
    fn memory(&self) -> MemoryUse;

    /// Whether it can run an op. No side effects.
    fn supports(&self, op: &Op) -> bool;

    /// What a program needs beyond its buffers. Pure.
    fn footprint(&self, program: &Program) -> Footprint;

    /// A zeroed buffer.
    ///
    /// **Errors**: [`Error::OutOfMemory`].
    fn alloc(&self, bytes: u64, tier: Tier, label: &str) -> Result<Buffer, Error>;

    /// A buffer filled at creation, chunk by chunk, on several threads; bytes outside the chunks are zero.
    ///
    /// **Errors**: [`Error::OutOfMemory`], or what `fill` returned first.
    fn alloc_filled(
        &self,
        bytes: u64,
        tier: Tier,
        label: &str,
        chunks: &[Range<u64>],
        fill: Fill<'_>,
    ) -> crate::Result<Buffer>;

    /// Gives a buffer back. Programs that bind it must have been released.
    fn free(&self, buffer: Buffer);

    /// A block of host memory that uploads are fed from.
    fn staging(&self, bytes: u64) -> Result<StagingId, Error>;

    /// Writes into a staging block; any thread, disjoint ranges.
    fn fill(&self, staging: StagingId, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Copies a staging block, which returns to its pool, once `after` is reached.
    fn upload(&self, dst: Slice, src: StagingId, after: &[Fence]) -> Result<Fence, Error>;

    /// Copies within the device.
    fn copy(&self, dst: Slice, src: Slice, after: &[Fence]) -> Result<Fence, Error>;

    /// Writes a few bytes: tables, masks, settings.
    fn write(&self, dst: Slice, bytes: &[u8], after: &[Fence]) -> Result<Fence, Error>;

    /// Starts reading a range, once `after` is reached.
    fn read(&self, src: Slice, after: Fence) -> Result<ReadId, Error>;

    /// The bytes of a read, or `None` where they are not there yet at the deadline.
    fn take(&self, read: ReadId, deadline: Duration) -> Result<Option<Vec<u8>>, Error>;

    /// Resolves a program against the buffers it names.
    ///
    /// **Errors**: [`Error::Unbound`] where a buffer is missing or too small, [`Error::Unsupported`].
    fn compile(
        &self,
        program: &Program,
        bind: &BTreeMap<BufferName, Slice>,
    ) -> Result<ProgramId, Error>;

    /// Gives a compiled program back.
    fn release(&self, program: ProgramId);

    /// Runs a segment on these rows; `None` goes on from the device's own step.
    fn run(
        &self,
        program: ProgramId,
        segment: usize,
        step: Option<&[StepRow]>,
        after: &[Fence],
    ) -> Result<Fence, Error>;

    /// Whether the fence was reached within `timeout`.
    fn wait(&self, fence: Fence, timeout: Duration) -> Result<bool, Error>;

    /// Times of ops since the last call; empty unless the backend was opened for profiling.
    fn timings(&self) -> Vec<OpTime>;
}

/// What a device can do wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An allocation was refused.
    #[error("out of memory: '{label}' needs {requested} bytes, {in_use} are in use")]
    OutOfMemory {
        /// What it was for.
        label: String,
        /// Bytes asked for.
        requested: u64,
        /// Bytes held already.
        in_use: u64,
    },
    /// A handle does not belong to the backend, or was given back.
    #[error("{what} {id} is not there")]
    Stale {
        /// "buffer", "program", "read" or "staging block".
        what: &'static str,
        /// Its number.
        id: u64,
    },
    /// A range lies outside a buffer.
    #[error("bytes {offset}..{} lie outside a buffer of {size}", offset + len)]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// A buffer the program names is not bound, or the binding is too small.
    #[error("{name:?} of '{program}' is bound to {found} bytes, but {expected} are needed")]
    Unbound {
        /// The program.
        program: String,
        /// The buffer's name.
        name: BufferName,
        /// Bytes bound; 0 when missing.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// The program does not hold together.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// An op cannot be run here.
    #[error("{device} cannot run {op}")]
    Unsupported {
        /// The device.
        device: String,
        /// The op.
        op: &'static str,
    },
    /// More rows than the program was built for.
    #[error("{found} rows given to a program of {expected}")]
    TooManyRows {
        /// Rows given.
        found: usize,
        /// Rows it has.
        expected: u32,
    },
    /// An op has no kernel here.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Lower(#[from] wgpu::lower::LowerError),
    /// The driver refused.
    #[error("{device}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// The driver's words.
        reason: String,
    },
    /// The device is gone: reset, removed or asleep.
    #[error("{device} was lost")]
    Lost {
        /// The device.
        device: String,
    },
    /// Several devices go by that name.
    #[error("several devices are called '{name}'")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Those that match.
        matching: Vec<String>,
    },
    /// No device goes by that name.
    #[error("no device is called '{name}'")]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        available: Vec<String>,
    },
}

impl MemoryUse {
    /// Counts an allocation.
    pub(crate) fn add(&mut self, bytes: u64, tier: Tier) {
        match tier {
            Tier::Device => {
                self.device_bytes += bytes;
                self.peak_device_bytes = self.peak_device_bytes.max(self.device_bytes);
            }
            Tier::Host => {
                self.host_bytes += bytes;
                self.peak_host_bytes = self.peak_host_bytes.max(self.host_bytes);
            }
        }
    }

    /// Counts a release.
    pub(crate) fn subtract(&mut self, bytes: u64, tier: Tier) {
        match tier {
            Tier::Device => self.device_bytes = self.device_bytes.saturating_sub(bytes),
            Tier::Host => self.host_bytes = self.host_bytes.saturating_sub(bytes),
        }
    }
}

impl Error {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::OutOfMemory { .. } => Some("try a smaller --context".into()),
            Error::NoSuchDevice { available, .. } => {
                Some(format!("this machine and version offer: {}", available.join(", ")))
            }
            Error::Ambiguous { matching, .. } => {
                Some(format!("choose one by number: {}", matching.join(", ")))
            }
            Error::Lost { .. } => Some("open the model again".into()),
            #[cfg(feature = "wgpu")]
            Error::Lower(wgpu::lower::LowerError::Format { .. }) => Some(
                "run it with --device cpu; a GGUF file can also be converted with --dequantize bf16"
                    .into(),
            ),
            #[cfg(feature = "wgpu")]
            Error::Lower(_) => None,
            Error::Device { .. }
            | Error::Stale { .. }
            | Error::OutOfRange { .. }
            | Error::Unbound { .. }
            | Error::Check(_)
            | Error::Unsupported { .. }
            | Error::TooManyRows { .. } => None,
        }
    }
}

/// How to open a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// `auto`, `cpu`, `cpu:reference`, `wgpu`, `wgpu:N`, or part of an adapter's name.
    pub device: String,
    /// Limits to ask for; smaller ones than the adapter's are for tests.
    pub limits: LimitChoice,
    /// Whether optional features may be used.
    pub features: bool,
    /// Whether shaders keep their run-time checks.
    pub checked: bool,
}

/// Limits to ask an adapter for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitChoice {
    /// All it has.
    Adapter,
    /// Those every WebGPU implementation has: 128 MiB bindings, 256 MiB buffers.
    WebGpu,
    /// The adapter's, with bindings of at most this many bytes.
    Binding(u64),
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            device: "auto".into(),
            limits: LimitChoice::Adapter,
            features: true,
            checked: false,
        }
    }
}

/// What a device may be called here, for messages.
#[must_use]
pub fn available() -> Vec<String> {
    let mut names: Vec<String> = ["auto", "cpu", "cpu:reference"].map(String::from).into();
    #[cfg(feature = "wgpu")]
    names.extend(wgpu::device::listing(&wgpu::device::adapters()));
    names
}

/// Opens a device by name, with all its limits and features.
///
/// **Errors**: as [`open_with`].
pub fn open(name: &str) -> Result<std::sync::Arc<dyn Backend>, Error> {
    open_with(&OpenOptions { device: name.to_owned(), ..OpenOptions::default() })
}

/// Opens a device. `auto` takes the best GPU, and the CPU where there is none.
///
/// **Errors**: [`Error::NoSuchDevice`] or [`Error::Ambiguous`], listing what there is; the driver refuses.
pub fn open_with(options: &OpenOptions) -> Result<std::sync::Arc<dyn Backend>, Error> {
    match options.device.to_ascii_lowercase().as_str() {
        "cpu" => Ok(std::sync::Arc::new(cpu::Cpu::new())),
        "cpu:reference" => Ok(std::sync::Arc::new(cpu::Cpu::reference())),
        #[cfg(feature = "wgpu")]
        "auto" => {
            let best = OpenOptions { device: "wgpu".into(), ..options.clone() };
            match wgpu::Wgpu::open(&best) {
                Err(Error::NoSuchDevice { .. }) => Ok(std::sync::Arc::new(cpu::Cpu::new())),
                opened => Ok(std::sync::Arc::new(opened?)),
            }
        }
        #[cfg(not(feature = "wgpu"))]
        "auto" => Ok(std::sync::Arc::new(cpu::Cpu::new())),
        #[cfg(feature = "wgpu")]
        _ => Ok(std::sync::Arc::new(wgpu::Wgpu::open(options).map_err(|error| match error {
            Error::NoSuchDevice { name, .. } => {
                Error::NoSuchDevice { name, available: available() }
            }
            other => other,
        })?)),
        #[cfg(not(feature = "wgpu"))]
        _ => Err(Error::NoSuchDevice { name: options.device.clone(), available: available() }),
    }
}

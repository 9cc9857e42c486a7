//! What the test binaries share: fixtures, reference tensors, comparison, and the `thin` binary
//! run as a user runs it. Nothing here knows the engine's types.

#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use safetensors::{Dtype, SafeTensors};

/// A path below `tests/fixtures`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// A scratch folder on the disk of the build, gone when dropped.
pub(crate) fn scratch() -> Result<tempfile::TempDir, String> {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| format!("no scratch folder: {e}"))
}

/// The devices named in `THIN_REQUIRE` (`cpu,wgpu`): a test may not skip because one is absent.
pub(crate) fn required_devices() -> Vec<String> {
    let names = env::var("THIN_REQUIRE").unwrap_or_default();
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The adapter that tests of the GPU backend run on, as `--device` takes it, and its name: the best GPU, or
/// the first rasteriser where there is none. `None` without any adapter, or without the backend.
#[cfg(feature = "wgpu")]
pub(crate) fn adapter() -> Option<(String, String)> {
    use thintensor::backend::wgpu::device::{adapters, rank};
    let adapters = adapters();
    let index = rank(&adapters).first().copied().unwrap_or(0);
    adapters.get(index).map(|facts| (format!("wgpu:{index}"), facts.name.to_lowercase()))
}

/// Whether `device`, as [`adapter`] named it, is a rasteriser on the processor.
#[cfg(feature = "wgpu")]
pub(crate) fn adapter_is_rasteriser(device: &str) -> bool {
    use thintensor::backend::wgpu::device::{adapters, rank};
    device.starts_with("wgpu") && rank(&adapters()).is_empty()
}

/// As above: this build has no GPU backend.
#[cfg(not(feature = "wgpu"))]
pub(crate) fn adapter_is_rasteriser(_device: &str) -> bool {
    false
}

/// As above: this build has no GPU backend.
#[cfg(not(feature = "wgpu"))]
pub(crate) fn adapter() -> Option<(String, String)> {
    None
}

/// The folder of a real model below `THIN_MODELS`, or why there is none.
pub(crate) fn real_model(name: &str) -> Result<PathBuf, String> {
    let models = env::var_os("THIN_MODELS").ok_or("THIN_MODELS is not set")?;
    let folder = Path::new(&models).join(name);
    let present = folder.join("config.json").is_file();
    if present { Ok(folder) } else { Err(format!("THIN_MODELS has no {name}")) }
}

/// Runs `thin` without a terminal and returns its stdout; an exit code other than 0 is an error
/// that carries stderr.
pub(crate) fn thin<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Result<Vec<u8>, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_thin"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("thin does not start: {e}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let line: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("thin {}\n{}: {}", line.join(" "), output.status, stderr.trim_end()))
}

/// A safetensors file in memory.
pub(crate) struct Tensors {
    name: String,
    bytes: Vec<u8>,
}

/// Float values with their shape, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Array {
    /// A row of a matrix.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        let width = self.shape.last().copied().expect("a matrix has a width");
        &self.values[row * width..(row + 1) * width]
    }
}

impl Tensors {
    pub(crate) fn open(path: &Path) -> Result<Tensors, String> {
        let name = path.display().to_string();
        let bytes = fs::read(path).map_err(|e| format!("{name}: {e}"))?;
        SafeTensors::deserialize(&bytes).map_err(|e| format!("{name}: {e}"))?;
        Ok(Tensors { name, bytes })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.view().names().into_iter().map(String::from).collect()
    }

    pub(crate) fn f32(&self, tensor: &str) -> Result<Array, String> {
        let view = self.view();
        let found = view.tensor(tensor).map_err(|e| format!("{}: {tensor}: {e}", self.name))?;
        if found.dtype() != Dtype::F32 {
            return Err(format!("{}: {tensor} is {:?}, expected F32", self.name, found.dtype()));
        }
        let values =
            found.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(Array { shape: found.shape().to_vec(), values: values.collect() })
    }

    /// Token ids, stored as i64 or i32, flat.
    pub(crate) fn ids(&self, tensor: &str) -> Result<Vec<i64>, String> {
        let view = self.view();
        let found = view.tensor(tensor).map_err(|e| format!("{}: {tensor}: {e}", self.name))?;
        let data = found.data();
        match found.dtype() {
            Dtype::I64 => Ok(data
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")))
                .collect()),
            Dtype::I32 => Ok(data
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().expect("4 bytes")).into())
                .collect()),
            other => Err(format!("{}: {tensor} is {other:?}, expected I64 or I32", self.name)),
        }
    }

    /// Whether both files have the same tensors, byte for byte.
    pub(crate) fn same_as(&self, other: &Tensors) -> Result<(), String> {
        let (ours, theirs) = (self.view(), other.view());
        if ours.len() != theirs.len() {
            return Err(format!("{} tensors, expected {}", ours.len(), theirs.len()));
        }
        for (name, expected) in theirs.tensors() {
            let got = ours.tensor(&name).map_err(|e| format!("{}: {name}: {e}", self.name))?;
            if (got.dtype(), got.shape()) != (expected.dtype(), expected.shape()) {
                return Err(format!("{name} is {:?} {:?}", got.dtype(), got.shape()));
            }
            if got.data() != expected.data() {
                return Err(format!("{name} has other bytes"));
            }
        }
        Ok(())
    }

    /// A value of the file's own metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<String> {
        let (_, header) = SafeTensors::read_metadata(&self.bytes).expect("checked in `open`");
        header.metadata().as_ref()?.get(key).cloned()
    }

    fn view(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("checked in `open`")
    }
}

/// The largest absolute difference of two arrays and where it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Worst {
    pub(crate) error: f32,
    pub(crate) index: usize,
    pub(crate) got: f32,
    pub(crate) expected: f32,
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Worst { error, index, got, expected } = self;
        write!(f, "|error| {error:.2e} at element {index}: got {got}, expected {expected}")
    }
}

/// Compares element by element; a NaN or infinity on either side counts as an infinite error.
pub(crate) fn worst(got: &[f32], expected: &[f32]) -> Result<Worst, String> {
    if got.len() != expected.len() {
        return Err(format!("{} values, expected {}", got.len(), expected.len()));
    }
    let mut worst = Worst { error: 0.0, index: 0, got: 0.0, expected: 0.0 };
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let finite = got.is_finite() && expected.is_finite();
        let error = if finite { (got - expected).abs() } else { f32::INFINITY };
        if error > worst.error {
            worst = Worst { error, index, got, expected };
        }
    }
    Ok(worst)
}

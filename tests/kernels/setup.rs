//! A program of one op with the buffers it needs, built step by step, and running it on a backend.
//!
//! [`Setup`] is filled by the builders of `ops`; [`OneOp::load`] puts it on a device, where it can be run
//! and read, or timed. Each buffer lies between margins of a known pattern, and every byte the op has no
//! business with must be what it was.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use thintensor::backend::{Backend, Buffer, Fence, ProgramId, Slice, Tier};
use thintensor::format::{Geometry, PlaneKind, Role, Vector};
use thintensor::plan::GroupId;
use thintensor::program::step::MAX_STEP_ROWS;
use thintensor::program::{
    BufferName, BufferSpec, LogitRows, Op, Place, Program, RowSet, Segment, StepRow, StepShape,
    VectorRef, View, Weight,
};
use thintensor::quant::Format;
use thintensor::quant::float::{f32_to_bf16, f32_to_f16};

use crate::case::Case;
use crate::compare::{self, Kind, Tolerance};

/// Bytes before and behind each buffer; the largest offset alignment a device may ask for.
const MARGIN: usize = 256;
const PATTERN: u8 = 0xa5;
/// What f32 sums in another order differ by, with two orders of magnitude to spare.
const DEFAULT_NMSE: f64 = 1e-10;

/// Numbers that repeat for a seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u32) -> Self {
        Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    /// 0 to `end`, without it.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(end)) >> 32) as u32
    }

    /// -1 to 1.
    pub(crate) fn number(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    /// 0 to `count`, in some order.
    pub(crate) fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last as usize, self.below(last + 1) as usize);
        }
        order
    }
}

/// A one-op program under construction.
pub(crate) struct Setup {
    pub(crate) random: Random,
    pub(crate) step: Vec<StepRow>,
    pub(crate) shape: StepShape,
    tolerance: Tolerance,
    weights: BTreeMap<GroupId, Weight>,
    contents: BTreeMap<BufferName, Vec<u8>>,
    writes: BTreeMap<BufferName, Vec<(Range<usize>, Kind)>>,
}

impl Setup {
    /// Reads the keys every case may have: `rows` (of the step), `bucket` (of the program, `rows` unless
    /// given), `holes` (every third row, the first included, is inactive), `emit`, `logits`, `capacity`,
    /// `seed`, and `exact` or `nmse`.
    pub(crate) fn new(case: &Case) -> Self {
        let rows = case.int("rows");
        let holes = case.flag("holes") && rows > 1;
        let logits = match case.text_or("logits", "all") {
            "one" => LogitRows::One,
            "all" => LogitRows::All,
            other => panic!("logits = '{other}'"),
        };
        let emit = case.text_or("emit", "all");
        let step = (0..rows)
            .map(|row| {
                let emits = match emit {
                    "all" => true,
                    "last" => row + 1 == rows,
                    "some" => row % 5 != 1,
                    other => panic!("emit = '{other}'"),
                };
                let active = !(holes && row % 3 == 0);
                StepRow {
                    sequence: row,
                    position: row,
                    kv_len: row + 1,
                    state_slot: row,
                    sampler_slot: row,
                    flags: if active { StepRow::ACTIVE } else { 0 }
                        | if emits { StepRow::EMIT } else { 0 },
                    ..StepRow::default()
                }
            })
            .collect();
        let nmse = case.float("nmse").unwrap_or(DEFAULT_NMSE);
        let tolerance = if case.flag("exact") {
            Tolerance::Exact
        } else {
            Tolerance::nmse(nmse).unwrap_or_else(|text| panic!("{text}"))
        };
        Setup {
            random: Random::new(case.int_or("seed", 1)),
            step,
            shape: StepShape {
                rows: case.int_or("bucket", rows),
                kv_capacity: case.int_or("capacity", 256),
                logits,
                sample: false,
                hidden: false,
            },
            tolerance,
            weights: BTreeMap::new(),
            contents: BTreeMap::new(),
            writes: BTreeMap::new(),
        }
    }

    /// Indices in an op's buffers of the rows it works on, and the step rows behind them.
    pub(crate) fn rows(&self, rows: RowSet) -> Vec<(usize, StepRow)> {
        let step = self.step.iter().copied();
        match rows {
            RowSet::Step => step.enumerate().filter(|(_, row)| row.is_active()).collect(),
            RowSet::Emitted => {
                step.filter(StepRow::emits).enumerate().take(self.packed_rows()).collect()
            }
        }
    }

    /// Rows a buffer of packed rows has.
    pub(crate) fn packed_rows(&self) -> usize {
        if self.shape.logits == LogitRows::One { 1 } else { self.shape.rows as usize }
    }

    /// A table of plain numbers or records.
    pub(crate) fn table<T: bytemuck::NoUninit>(&mut self, name: BufferName, entries: &[T]) {
        self.contents.insert(name, bytemuck::cast_slice(entries).to_vec());
    }

    /// A view of `width` columns with `pad` more on either side, in a buffer of random numbers.
    pub(crate) fn view(&mut self, buffer: BufferName, width: u32, pad: u32) -> View {
        let rows = match buffer {
            BufferName::Emitted | BufferName::Logits => self.packed_rows(),
            _ => self.shape.rows as usize,
        };
        // Inputs of a product lie in rows that can be read in vectors.
        let stride = match buffer {
            BufferName::Attended | BufferName::Emitted => (width + 2 * pad).next_multiple_of(8),
            _ => width + 2 * pad,
        };
        let view = View { buffer, offset: pad, width, stride };
        let numbers = self.random.numbers(rows * view.stride as usize);
        self.table(buffer, &numbers);
        view
    }

    /// Changes columns of one row of a view, the first ones.
    pub(crate) fn set_row(&mut self, view: &View, row: usize, numbers: &[f32]) {
        let start = (row * view.stride as usize + view.offset as usize) * 4;
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        let buffer = self.contents.get_mut(&view.buffer).expect("made by `view`");
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// A matrix from the keys `format`, `part_rows` and `runs`; `number` gives each of its values.
    pub(crate) fn matrix(
        &mut self,
        case: &Case,
        role: Role,
        [rows, cols]: [u32; 2],
        number: impl Fn(&mut Random, u32, u32) -> f32,
    ) -> GroupId {
        let format = match case.text_or("format", "f32") {
            "f32" => Format::F32,
            "f16" => Format::F16,
            "bf16" => Format::BF16,
            other => panic!("format = '{other}'"),
        };
        let whole = Geometry::matrix(format, rows.into(), cols.into()).expect("a small matrix");
        let part_rows = u64::from(case.int_or("part_rows", 0));
        let geometry = match part_rows {
            0 => whole,
            wanted => whole.with_part_rows(wanted.min(whole.part_rows)).expect("a power of two"),
        };
        let plane = geometry.plane(PlaneKind::Codes).expect("a matrix has codes").clone();
        let mut bytes = vec![0u8; geometry.bytes() as usize];
        for row in 0..rows {
            let mut at = geometry.row_offset(&plane, row.into()) as usize;
            for col in 0..cols {
                let value = number(&mut self.random, row, col);
                let code: &[u8] = match format {
                    Format::F32 => &value.to_le_bytes(),
                    Format::F16 => &f32_to_f16(value).to_le_bytes(),
                    Format::BF16 => &f32_to_bf16(value).to_le_bytes(),
                    _ => unreachable!("not among the formats above"),
                };
                bytes[at..at + code.len()].copy_from_slice(code);
                at += code.len();
            }
        }
        let parts = geometry.parts() as u32;
        let runs = case.int_or("runs", 1).min(parts);
        let cuts: Vec<u32> = (0..=runs).map(|run| parts * run / runs).collect();
        let runs: Vec<Range<u32>> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        let group = GroupId(self.weights.len() as u32);
        let weight = Weight { role, layer: Some(0), geometry, runs };
        for (run, parts) in (0u32..).zip(&weight.runs) {
            let start = (u64::from(parts.start) * weight.geometry.part_stride) as usize;
            let len = weight.run_bytes(run as usize).expect("runs hold whole parts") as usize;
            let name = BufferName::Weight { group, run };
            self.contents.insert(name, bytes[start..start + len].to_vec());
        }
        self.weights.insert(group, weight);
        group
    }

    /// A vector of random numbers behind another one in a `small` group.
    pub(crate) fn vector(&mut self, vector: Vector, len: u32) -> VectorRef {
        let geometry = Geometry::small(&[(Vector::AttnSinks, 3), (vector, len.into())]);
        let geometry = geometry.expect("a short vector");
        let plane = geometry.plane(PlaneKind::Vector(vector)).expect("just asked for").clone();
        let offset = plane.offset as u32 / 4;
        let group = GroupId(self.weights.len() as u32);
        let numbers = self.random.numbers(geometry.bytes() as usize / 4);
        self.table(BufferName::Weight { group, run: 0 }, &numbers);
        let weight = Weight {
            role: Role::Small,
            layer: Some(0),
            geometry,
            runs: std::iter::once(0..1).collect(),
        };
        self.weights.insert(group, weight);
        VectorRef { group, offset, len }
    }

    /// The op may write these bytes of a buffer.
    pub(crate) fn writes(&mut self, buffer: BufferName, bytes: Range<usize>, kind: Kind) {
        self.writes.entry(buffer).or_default().push((bytes, kind));
    }

    /// The op may write a view, in the rows it works on.
    pub(crate) fn writes_view(&mut self, view: &View, rows: RowSet) {
        for (row, _) in self.rows(rows) {
            let start = (row * view.stride as usize + view.offset as usize) * 4;
            self.writes(view.buffer, start..start + view.width as usize * 4, Kind::Floats);
        }
    }

    /// The program of these ops over everything made so far.
    pub(crate) fn finish(mut self, ops: Vec<Op>) -> OneOp {
        let mut step = self.step.clone();
        step.resize(MAX_STEP_ROWS as usize, StepRow::default());
        self.table(BufferName::Step, &step);
        let buffers = self
            .contents
            .iter()
            .map(|(&name, bytes)| BufferSpec { name, bytes: bytes.len() as u64 })
            .collect();
        let segment = Segment {
            ops: 0..ops.len(),
            pages: Vec::new(),
            place: Place::Device,
            imports: Vec::new(),
            exports: Vec::new(),
        };
        let program = Program {
            name: format!("one {}", ops.first().map_or("nothing", Op::name)),
            shape: self.shape,
            weights: self.weights,
            buffers,
            ops,
            segments: vec![segment],
        };
        OneOp {
            program,
            step: self.step,
            contents: self.contents,
            writes: self.writes,
            tolerance: self.tolerance,
        }
    }
}

/// A program of one op, what its buffers hold, and what it may write.
pub(crate) struct OneOp {
    pub(crate) program: Program,
    pub(crate) step: Vec<StepRow>,
    pub(crate) contents: BTreeMap<BufferName, Vec<u8>>,
    writes: BTreeMap<BufferName, Vec<(Range<usize>, Kind)>>,
    tolerance: Tolerance,
}

/// What every buffer holds after a run.
pub(crate) type Contents = BTreeMap<BufferName, Vec<u8>>;

impl OneOp {
    /// Allocates, fills and compiles.
    pub(crate) fn load<'a>(&'a self, backend: &'a dyn Backend) -> Result<Loaded<'a>, String> {
        if let Some(op) = self.program.ops.iter().find(|op| !backend.supports(op)) {
            return Err(format!("{} does not support {}", backend.info().name, op.name()));
        }
        let mut loaded = Loaded { one_op: self, backend, program: None, bindings: BTreeMap::new() };
        for (&name, bytes) in &self.contents {
            let mut whole = vec![PATTERN; bytes.len() + 2 * MARGIN];
            whole[MARGIN..MARGIN + bytes.len()].copy_from_slice(bytes);
            let len = whole.len() as u64;
            let buffer = backend.alloc(len, Tier::Device, "kernel test").map_err(text)?;
            loaded
                .bindings
                .insert(name, Slice { buffer, offset: MARGIN as u64, len: bytes.len() as u64 });
            let _ = backend.write(Slice { buffer, offset: 0, len }, &whole, &[]).map_err(text)?;
        }
        loaded.program = Some(backend.compile(&self.program, &loaded.bindings).map_err(text)?);
        Ok(loaded)
    }

    /// Loads, runs once and reads everything back.
    pub(crate) fn run(&self, backend: &dyn Backend) -> Result<Contents, String> {
        let loaded = self.load(backend)?;
        let fence = loaded.run()?;
        loaded.read(fence)
    }

    /// Compares two results, and both with what they may have changed.
    pub(crate) fn compare(&self, expected: &Contents, found: &Contents) -> Result<(), String> {
        for (name, before) in &self.contents {
            let writes = self.writes.get(name).map_or(&[][..], Vec::as_slice);
            if *name == BufferName::Step && writes.is_empty() {
                continue; // how a device is told its step is its own business
            }
            for (who, after) in [("the twin", &expected[name]), ("the device", &found[name])] {
                let may_change = |at: &usize| writes.iter().any(|(bytes, _)| bytes.contains(at));
                let outside =
                    (0..before.len()).find(|at| before[*at] != after[*at] && !may_change(at));
                if let Some(at) = outside {
                    return Err(format!(
                        "{who} changed byte {at} of {name:?}, which is not its to write"
                    ));
                }
            }
            compare::regions(&expected[name], &found[name], writes, self.tolerance)
                .map_err(|error| format!("{name:?}: {error}"))?;
        }
        Ok(())
    }
}

/// A one-op program on a device.
pub(crate) struct Loaded<'a> {
    one_op: &'a OneOp,
    backend: &'a dyn Backend,
    program: Option<ProgramId>,
    bindings: BTreeMap<BufferName, Slice>,
}

impl Loaded<'_> {
    pub(crate) fn run(&self) -> Result<Fence, String> {
        let program = self.program.expect("compiled in `load`");
        self.backend.run(program, 0, Some(&self.one_op.step), &[]).map_err(text)
    }

    /// Every buffer, once the fence is reached; an error where a margin changed.
    pub(crate) fn read(&self, fence: Fence) -> Result<Contents, String> {
        let mut contents = Contents::new();
        for (&name, slice) in &self.bindings {
            let len = slice.len + 2 * MARGIN as u64;
            let whole = Slice { buffer: slice.buffer, offset: 0, len };
            let read = self.backend.read(whole, fence).map_err(text)?;
            let bytes = self.backend.take(read, Duration::from_secs(60)).map_err(text)?;
            let bytes = bytes.ok_or("the device did not answer within 60 s")?;
            let (before, rest) = bytes.split_at(MARGIN);
            let (inside, behind) = rest.split_at(slice.len as usize);
            if before.iter().chain(behind).any(|&byte| byte != PATTERN) {
                return Err(format!("something was written outside of {name:?}"));
            }
            contents.insert(name, inside.to_vec());
        }
        Ok(contents)
    }
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        if let Some(program) = self.program {
            self.backend.release(program);
        }
        let buffers: BTreeSet<Buffer> = self.bindings.values().map(|slice| slice.buffer).collect();
        buffers.into_iter().for_each(|buffer| self.backend.free(buffer));
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

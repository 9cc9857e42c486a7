//! What every backend may rely on: shapes agree, views lie inside their buffers, nothing is both read and
//! written except in place, segments cover all ops. Run once per program, before it is compiled.

use super::op::{Op, VectorRef, View};
use super::{BufferName, Program, Weight};
use crate::plan::GroupId;

/// Why a program is not well formed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("op {index} ({name}) of '{program}': {fault}")]
pub struct CheckError {
    /// The program's name.
    pub program: String,
    /// Position of the op.
    pub index: usize,
    /// The op's name.
    pub name: &'static str,
    /// What is wrong.
    pub fault: Fault,
}

/// What can be wrong with an op.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A width disagrees with what the op needs.
    #[error("{what} is {found} wide, but {expected} is needed")]
    Width {
        /// Which operand.
        what: &'static str,
        /// Its width.
        found: u64,
        /// The width needed.
        expected: u64,
    },
    /// A view leaves its row.
    #[error("columns {end} of {buffer:?} lie outside rows of {stride}")]
    Outside {
        /// The buffer.
        buffer: BufferName,
        /// End of the view.
        end: u64,
        /// Row length.
        stride: u32,
    },
    /// A buffer is not listed, or is listed as too small.
    #[error("{buffer:?} has {found} bytes, but {expected} are needed")]
    Buffer {
        /// The buffer.
        buffer: BufferName,
        /// Bytes listed.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// A buffer is read and written in one op, and not in place.
    #[error("{buffer:?} is both read and written")]
    Aliased {
        /// The buffer.
        buffer: BufferName,
    },
    /// A group, a vector or a layer is not in the plan.
    #[error("it names a {what} that the program does not have")]
    Missing {
        /// "group" or "vector".
        what: &'static str,
    },
    /// A group's runs do not hold every part once, in order.
    #[error("the runs of its group do not hold its {parts} parts one after the other")]
    Runs {
        /// Parts of the group.
        parts: u64,
    },
    /// Segments do not cover the ops one after the other.
    #[error("segments leave it out")]
    Uncovered,
}

/// Checks that a program holds together.
///
/// **Errors**: [`CheckError`] naming the first op that is wrong.
pub fn check(program: &Program) -> Result<(), CheckError> {
    for (index, op) in program.ops.iter().enumerate() {
        check_op(program, index, op).map_err(|fault| CheckError {
            program: program.name.clone(),
            index,
            name: op.name(),
            fault,
        })?;
    }
    Ok(())
}

fn check_op(program: &Program, index: usize, op: &Op) -> Result<(), Fault> {
    let covering = program.segments.iter().filter(|segment| segment.ops.contains(&index)).count();
    if covering != 1 {
        return Err(Fault::Uncovered);
    }
    let (read, written) = op.views();
    for view in read.iter().chain(&written) {
        inside(program, view)?;
    }
    for view in &read {
        if written.iter().any(|out| view.buffer == out.buffer && !in_place(op, view, out)) {
            return Err(Fault::Aliased { buffer: view.buffer });
        }
    }
    let (read, written) = op.tables();
    for &table in read.iter().chain(&written) {
        listed(program, table, 1)?;
    }
    for id in op.groups() {
        check_runs(program, id)?;
    }
    check_shapes(program, op)
}

/// Whether an op may read `view` although it writes `out` of the same buffer.
fn in_place(op: &Op, view: &View, out: &View) -> bool {
    match op {
        Op::RmsNorm { .. } | Op::AddBias { .. } | Op::Rope { .. } => view == out,
        Op::Add { x, y } => view == out && x.buffer != y.buffer,
        Op::Embed { .. }
        | Op::MatMul { .. }
        | Op::KvAppend { .. }
        | Op::Attention { .. }
        | Op::GatedAct { .. }
        | Op::CheckFinite { .. }
        | Op::Keep { .. }
        | Op::SelectRows { .. }
        | Op::Sample { .. }
        | Op::Advance => false,
    }
}

/// The runs of a group hold its parts one after the other, each in a buffer that is large enough.
fn check_runs(program: &Program, id: GroupId) -> Result<(), Fault> {
    let weight = group(program, id)?;
    let parts = weight.geometry.parts();
    let mut next = 0;
    for (run, range) in (0u32..).zip(&weight.runs) {
        let bytes = weight.run_bytes(run as usize).filter(|_| range.start == next);
        listed(
            program,
            BufferName::Weight { group: id, run },
            bytes.ok_or(Fault::Runs { parts })?,
        )?;
        next = range.end;
    }
    if u64::from(next) == parts { Ok(()) } else { Err(Fault::Runs { parts }) }
}

/// A buffer is listed with at least so many bytes.
fn listed(program: &Program, buffer: BufferName, expected: u64) -> Result<(), Fault> {
    let found = program.buffer(buffer).map_or(0, |buffer| buffer.bytes);
    if found < expected {
        return Err(Fault::Buffer { buffer, found, expected });
    }
    Ok(())
}

fn inside(program: &Program, view: &View) -> Result<(), Fault> {
    let end = u64::from(view.offset) + u64::from(view.width);
    if view.width == 0 || end > u64::from(view.stride) {
        return Err(Fault::Outside { buffer: view.buffer, end, stride: view.stride });
    }
    let found = program.buffer(view.buffer).map_or(0, |buffer| buffer.bytes);
    let expected = u64::from(view.stride) * 4;
    if found < expected || !found.is_multiple_of(expected) {
        return Err(Fault::Buffer { buffer: view.buffer, found, expected });
    }
    Ok(())
}

fn check_shapes(program: &Program, op: &Op) -> Result<(), Fault> {
    match op {
        Op::Embed { table, out } => same("out", out.width, group(program, *table)?.geometry.cols),
        Op::RmsNorm { x, weight, out, .. } => {
            vector(program, weight)?;
            same("out", out.width, u64::from(x.width))?;
            let runs = u64::from(x.width / weight.len.max(1));
            same("x", x.width, runs * u64::from(weight.len))
        }
        Op::MatMul { weight, x, out, .. } => {
            let geometry = &group(program, *weight)?.geometry;
            same("x", x.width, geometry.cols)?;
            same("out", out.width, geometry.rows)
        }
        Op::AddBias { x, bias } => {
            vector(program, bias)?;
            same("x", x.width, u64::from(bias.len))
        }
        Op::Rope { x, table, head_dim, rotary_dim, .. } => {
            same("rotary part", (*rotary_dim).min(*head_dim) / 2 * 2, u64::from(*rotary_dim))?;
            listed(program, BufferName::Rope { table: *table }, u64::from(*rotary_dim) / 2 * 4)?;
            let heads = x.width / (*head_dim).max(1);
            same("x", x.width, u64::from(heads) * u64::from(*head_dim))
        }
        Op::KvAppend { k, v, layer, kv } => {
            listed(program, BufferName::Kv { layer: *layer }, kv.bytes())?;
            let width = u64::from(kv.kv_heads) * u64::from(kv.head_dim);
            same("k", k.width, width)?;
            same("v", v.width, width)
        }
        Op::Attention { q, out, layer, kv, heads, .. } => {
            listed(program, BufferName::Kv { layer: *layer }, kv.bytes())?;
            let shared = u64::from(*heads / kv.kv_heads.max(1));
            same("heads", *heads, shared * u64::from(kv.kv_heads))?;
            let width = u64::from(*heads) * u64::from(kv.head_dim);
            same("q", q.width, width)?;
            same("out", out.width, width)
        }
        Op::GatedAct { x, out, .. } => same("x", x.width, 2 * u64::from(out.width)),
        Op::Add { x, y } => same("y", y.width, u64::from(x.width)),
        Op::Keep { x, out } | Op::SelectRows { x, out } => {
            same("out", out.width, u64::from(x.width))
        }
        Op::CheckFinite { .. } | Op::Sample { .. } | Op::Advance => Ok(()),
    }
}

fn same(what: &'static str, found: u32, expected: u64) -> Result<(), Fault> {
    if u64::from(found) == expected {
        return Ok(());
    }
    Err(Fault::Width { what, found: u64::from(found), expected })
}

fn group(program: &Program, id: GroupId) -> Result<&Weight, Fault> {
    program.weight(id).ok_or(Fault::Missing { what: "group" })
}

fn vector(program: &Program, vector: &VectorRef) -> Result<(), Fault> {
    let geometry = &group(program, vector.group)?.geometry;
    let end = u64::from(vector.offset) + u64::from(vector.len);
    if vector.len == 0 || end * 4 > geometry.bytes() {
        return Err(Fault::Missing { what: "vector" });
    }
    Ok(())
}

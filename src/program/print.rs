//! How a program reads: a stable text form, one op a line, with the weight bytes each reads. It is what
//! `thin inspect --program` prints and what tests compare.

use std::fmt::Write;

use super::op::{Op, RowSet, View};
use super::{BufferName, Program, Weight};
use crate::plan::GroupId;

/// The text of a program.
#[must_use]
pub fn print(program: &Program) -> String {
    let mut text = format!(
        "program {}: {} ops, {} weight bytes\n",
        program.name,
        program.ops.len(),
        program.weight_bytes()
    );
    for (index, segment) in program.segments.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "segment {index} on {:?}: {} pages", segment.place, segment.pages.len());
        for op in program.ops.get(segment.ops.clone()).unwrap_or_default() {
            let _ = writeln!(text, "  {}", line(op, program));
        }
    }
    text
}

fn line(op: &Op, program: &Program) -> String {
    let name = op.name();
    match op {
        Op::Embed { table, out } => {
            let row = program
                .weight(*table)
                .map_or(0, |weight| weight.geometry.payload_bytes() / weight.geometry.rows.max(1));
            format!("{name} {} -> {}  [{row} B/row]", group(program, *table), view(out))
        }
        Op::RmsNorm { x, weight, out, eps, rows } => {
            let runs = x.width / weight.len.max(1);
            let part = if runs > 1 { format!(" {runs}x{}", weight.len) } else { String::new() };
            format!("{name}{part} {} -> {} eps={eps:e}{}", view(x), view(out), emitted(*rows))
        }
        Op::MatMul { weight, x, out, rows } => format!(
            "{name} {} · {} -> {}{}  [{} B]",
            view(x),
            group(program, *weight),
            view(out),
            emitted(*rows),
            program.weight(*weight).map_or(0, |weight| weight.geometry.payload_bytes())
        ),
        Op::AddBias { x, bias } => format!("{name} {} += bias[{}]", view(x), bias.len),
        Op::Rope { x, table, head_dim, rotary_dim, attention_factor } => format!(
            "{name} {} table={table} head_dim={head_dim} rotary_dim={rotary_dim} factor={attention_factor}",
            view(x)
        ),
        Op::KvAppend { k, v, layer, kv } => {
            format!("{name} {}, {} -> kv.{layer} {}", view(k), view(v), kv.format.name())
        }
        Op::Attention { q, out, layer, kv, heads, scale, window } => {
            let window = window.map_or_else(String::new, |window| format!(" window={window}"));
            format!(
                "{name} {} over kv.{layer} -> {} heads={heads}/{} scale={scale}{window}",
                view(q),
                view(out),
                kv.kv_heads
            )
        }
        Op::GatedAct { x, out, act } => format!("{name} {} -> {} {act:?}", view(x), view(out)),
        Op::Add { x, y } => format!("{name} {} += {}", view(x), view(y)),
        Op::CheckFinite { x, layer } => format!("{name} {} layer={layer}", view(x)),
        Op::Keep { x, out } | Op::SelectRows { x, out } => {
            format!("{name} {} -> {}", view(x), view(out))
        }
        Op::Sample { logits, rows, .. } => {
            format!("{name} {}{} -> ids", view(logits), emitted(*rows))
        }
        Op::Advance => name.to_owned(),
    }
}

fn group(program: &Program, id: GroupId) -> String {
    let Some(Weight { role, layer, geometry, .. }) = program.weight(id) else {
        return format!("{id:?}?");
    };
    let layer = layer.map_or_else(String::new, |layer| format!(".{layer}"));
    format!("{role}{layer}<{} {}x{}>", geometry.format, geometry.rows, geometry.cols)
}

fn view(view: &View) -> String {
    let name = match view.buffer {
        BufferName::Hidden { tap } => format!("hidden.{tap}"),
        other => format!("{other:?}").to_lowercase(),
    };
    if view.offset == 0 && view.stride - view.width < 8 {
        return format!("{name}[{}]", view.width);
    }
    format!("{name}[{}..{}]", view.offset, view.offset + view.width)
}

fn emitted(rows: RowSet) -> &'static str {
    match rows {
        RowSet::Step => "",
        RowSet::Emitted => " (emitted rows)",
    }
}

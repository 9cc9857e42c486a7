//! Rotary positions of a config.json: the older `rope_theta` + `rope_scaling`, and `rope_parameters`.

use serde_json::{Map, Value};

use super::Problem;
use super::fields::{Fields, brief};
use crate::model::arch::Architecture;
use crate::model::rope::yarn_attention_factor;
use crate::model::{RopeScaling, RopeSpec};

type Object = Map<String, Value>;

/// Keys of a scaling object without influence on the frequencies.
const NEUTRAL: &[&str] = &["finetuned"];

/// The one rotary description of a model.
pub(super) fn rope(
    row: &Architecture,
    fields: &Fields<'_>,
    head_dim: u32,
    max_position_embeddings: u32,
    notes: &mut Vec<String>,
) -> Result<RopeSpec, Problem> {
    let none = Map::new();
    let (prefix, map) = scaling_object(fields)?;
    let inner = Fields::new(prefix, map.unwrap_or(&none));
    if let Some((key, value)) = map.and_then(|map| map.iter().find(|(_, value)| value.is_object()))
    {
        return Err(Problem::Changes {
            key: inner.name(key),
            value: brief(value),
            model_type: row.model_type.to_owned(),
        });
    }
    let kind = kind(&inner)?;
    let rope_theta = agreed(fields, &inner, "rope_theta")?.unwrap_or(row.defaults.rope_theta);
    let partial = match agreed(fields, &inner, "partial_rotary_factor")? {
        Some(factor) if row.partial_rotary => factor,
        // Where positions are stretched the reference library is of two minds about it; better refused.
        Some(factor) if factor != 1.0 && kind != "default" => {
            return Err(Problem::Changes {
                key: "partial_rotary_factor".to_owned(),
                value: factor.to_string(),
                model_type: row.model_type.to_owned(),
            });
        }
        Some(factor) if factor != 1.0 => {
            let model_type = row.model_type;
            notes.push(format!(
                "'partial_rotary_factor: {factor}' means nothing for {model_type} and is not used"
            ));
            1.0
        }
        Some(_) | None => 1.0,
    };
    let original = inner.u32("original_max_position_embeddings")?;
    let original_outside = fields.u32("original_max_position_embeddings")?;
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: inner.required_f64("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: inner.required_f64("factor")?,
            low_freq_factor: inner.required_f64("low_freq_factor")?,
            high_freq_factor: inner.required_f64("high_freq_factor")?,
            original_max_position_embeddings: original
                .or(original_outside)
                .ok_or_else(|| inner.missing("original_max_position_embeddings"))?,
        },
        "yarn" => yarn(&inner, original.or(original_outside), max_position_embeddings)?,
        "dynamic" | "longrope" | "su" => {
            return Err(Problem::RopeType { found: kind.to_owned(), comes_later: true });
        }
        _ => {
            return Err(Problem::RopeType { found: kind.to_owned(), comes_later: false });
        }
    };
    check_unread(&inner, kind, row, notes)?;
    Ok(RopeSpec { rotary_dim: rotary_dim(head_dim, partial)?, rope_theta, scaling })
}

/// The object that describes scaling, and what its fields are called in messages.
fn scaling_object<'a>(fields: &Fields<'a>) -> Result<(&'static str, Option<&'a Object>), Problem> {
    let older = fields.object("rope_scaling")?;
    let newer = fields.object("rope_parameters")?;
    match (older, newer) {
        (Some(older), Some(newer)) if older != newer => Err(Problem::Contradiction {
            first: "rope_scaling".to_owned(),
            first_value: brief(&Value::Object(older.clone())),
            second: "rope_parameters".to_owned(),
            second_value: brief(&Value::Object(newer.clone())),
        }),
        (_, Some(newer)) => Ok(("rope_parameters.", Some(newer))),
        (older, None) => Ok(("rope_scaling.", older)),
    }
}

/// The kind of scaling; "default" where the object says nothing about scaling.
fn kind<'a>(inner: &Fields<'a>) -> Result<&'a str, Problem> {
    let (newer, older) = (inner.str("rope_type")?, inner.str("type")?);
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => Err(Problem::Contradiction {
            first: inner.name("rope_type"),
            first_value: newer.to_owned(),
            second: inner.name("type"),
            second_value: older.to_owned(),
        }),
        (Some(kind), _) | (None, Some(kind)) => Ok(kind),
        (None, None) if inner.has("factor") => Err(inner.missing("rope_type")),
        (None, None) => Ok("default"),
    }
}

/// A number that may stand inside the object, outside it, or both if they agree.
fn agreed(outer: &Fields<'_>, inner: &Fields<'_>, key: &str) -> Result<Option<f64>, Problem> {
    match (outer.f64(key)?, inner.f64(key)?) {
        (Some(outside), Some(inside)) if outside != inside => Err(Problem::Contradiction {
            first: outer.name(key),
            first_value: outside.to_string(),
            second: inner.name(key),
            second_value: inside.to_string(),
        }),
        (outside, inside) => Ok(inside.or(outside)),
    }
}

fn yarn(
    inner: &Fields<'_>,
    original: Option<u32>,
    max_position_embeddings: u32,
) -> Result<RopeScaling, Problem> {
    let factor = match (inner.f64("factor")?, original) {
        (Some(factor), _) => factor,
        (None, Some(original)) if original > 0 => {
            f64::from(max_position_embeddings) / f64::from(original)
        }
        (None, _) => return Err(inner.missing("factor")),
    };
    let (mscale, mscale_all_dim) = (inner.f64("mscale")?, inner.f64("mscale_all_dim")?);
    let attention_factor = inner.f64("attention_factor")?;
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original.unwrap_or(max_position_embeddings),
        beta_fast: inner.f64("beta_fast")?.unwrap_or(32.0),
        beta_slow: inner.f64("beta_slow")?.unwrap_or(1.0),
        truncate: inner.bool("truncate")?.unwrap_or(true),
        attention_factor: attention_factor
            .unwrap_or_else(|| yarn_attention_factor(factor, mscale, mscale_all_dim)),
    })
}

/// Dimensions that rotate: the reference truncates `head_dim * factor`.
fn rotary_dim(head_dim: u32, factor: f64) -> Result<u32, Problem> {
    let dim = f64::from(head_dim) * factor;
    if factor > 0.0 && factor <= 1.0 && dim >= 2.0 && (dim.trunc() as u32).is_multiple_of(2) {
        return Ok(dim.trunc() as u32);
    }
    Err(Problem::RotaryDim { head_dim, factor })
}

/// Keys of the object that the kind does not use: an unknown key of a scaling is refused, since it may
/// change the frequencies; beside "default" it cannot.
fn check_unread(
    inner: &Fields<'_>,
    kind: &str,
    row: &Architecture,
    notes: &mut Vec<String>,
) -> Result<(), Problem> {
    for (key, value) in inner.unread() {
        if value.is_null() || NEUTRAL.contains(&key) {
            continue;
        }
        if kind != "default" || key == "mrope_section" {
            return Err(Problem::Changes {
                key: inner.name(key),
                value: brief(value),
                model_type: row.model_type.to_owned(),
            });
        }
        notes.push(format!(
            "config.json: '{}: {}' means nothing without scaling and is not used",
            inner.name(key),
            brief(value)
        ));
    }
    Ok(())
}

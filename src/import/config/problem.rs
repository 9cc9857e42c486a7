//! What can be wrong with a config.json.

use crate::model::arch::ARCHITECTURES;

/// Why a config cannot be used. Every message names the field.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the messages name them")]
pub enum Problem {
    /// A family this version does not run.
    #[error("{} is not supported by this version (supported: {})", named(class.as_deref(), model_type.as_deref()), supported())]
    Unsupported { class: Option<String>, model_type: Option<String> },
    /// Weights in a compressed form.
    #[error("{key}: weights quantised with {method} are not supported by this version")]
    Quantized { key: &'static str, method: String },
    /// A field without which the model is not described.
    #[error("{field} is missing")]
    Missing { field: String },
    /// A field of the wrong type.
    #[error("{field} must be {expected}, not {found}")]
    Wrong { field: String, expected: &'static str, found: String },
    /// Two fields that cannot both be right.
    #[error("{first} is {first_value}, but {second} is {second_value}")]
    Contradiction { first: String, first_value: String, second: String, second_value: String },
    /// A setting that changes the result and is not implemented.
    #[error(
        "{key}: {value} changes the arithmetic of {model_type} in a way this version does not know"
    )]
    Changes { key: String, value: String, model_type: String },
    /// Too few or too many layers.
    #[error("num_hidden_layers is {found}, but must lie between 1 and {}", super::MAX_LAYERS)]
    Layers { found: u32 },
    /// A list that should have one entry for each layer.
    #[error("{field} has {found} entries, but num_hidden_layers is {layers}")]
    ListLength { field: &'static str, found: usize, layers: u32 },
    /// No width of a head.
    #[error(
        "head_dim is absent and hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}"
    )]
    HeadDim { hidden_size: u32, heads: u32 },
    /// Rotation of no, of an odd number of, or of more dimensions than a head has.
    #[error(
        "partial_rotary_factor {factor} of head_dim {head_dim} is not an even number of dimensions within a head"
    )]
    RotaryDim { head_dim: u32, factor: f64 },
    /// A scaling of positions this version does not have.
    #[error("rope_type '{found}' {}", if *comes_later {
        "is not supported by this version; it comes later"
    } else {
        "is not known (supported: default, linear, llama3, yarn)"
    })]
    RopeType { found: String, comes_later: bool },
    /// An activation this version does not have.
    #[error("hidden_act '{found}' is not supported (supported: silu, gelu_pytorch_tanh)")]
    Activation { found: String },
    /// Sliding layers and no window for them.
    #[error(
        "layer_types has sliding_attention, but {model_type} has no sliding window by its other settings"
    )]
    SlidingWithoutWindow { model_type: &'static str },
}

impl Problem {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Problem::Quantized { .. } => {
                Some("use the repository with the unquantised weights".to_owned())
            }
            Problem::Unsupported { .. } => {
                Some("'thin architectures' lists what this version runs".to_owned())
            }
            _ => None,
        }
    }
}

/// Class and `model_type`, whichever are there.
fn named(class: Option<&str>, model_type: Option<&str>) -> String {
    match (class, model_type) {
        (Some(class), Some(model_type)) => format!("{class} (model_type '{model_type}')"),
        (Some(name), None) => name.to_owned(),
        (None, Some(model_type)) => format!("model_type '{model_type}'"),
        (None, None) => "a model without model_type".to_owned(),
    }
}

fn supported() -> String {
    let names: Vec<_> = ARCHITECTURES.iter().map(|row| row.model_type).collect();
    names.join(", ")
}

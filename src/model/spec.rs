//! The description of a model that the planner and the decoder work from. Field names are those of
//! Hugging Face `config.json`; import resolves defaults and per-family rules, so nothing here is optional
//! that inference needs. [`ModelSpec::check`] bounds every number, since a spec may come from a file.

use serde::{Deserialize, Serialize};

/// A causal language model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The `model_type` of its config.json; a row of `model::arch`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Rows of the embedding.
    pub vocab_size: u32,
    /// The context length it was trained for.
    pub max_position_embeddings: u32,
    /// The norm before attention, before the feed-forward block and before the head.
    pub norm: NormSpec,
    /// The gate's activation.
    pub hidden_act: Activation,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// The distinct rotary descriptions; layers refer to them by index.
    pub ropes: Vec<RopeSpec>,
    /// Decoder layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// First token of a text, where the config names one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text, from config.json and generation_config.json.
    pub eos_token_ids: Vec<u32>,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// Query heads.
    pub num_attention_heads: u32,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: u32,
    /// Width of a head; need not be `hidden_size / num_attention_heads`.
    pub head_dim: u32,
    /// Width of the feed-forward block.
    pub intermediate_size: u32,
    /// Keys visible to a query, itself included; none for all.
    pub sliding_window: Option<u32>,
    /// Index into `ModelSpec::ropes`; none for a layer without positions.
    pub rope: Option<u32>,
    /// Factor on the attention scores, usually `head_dim^-0.5`.
    pub attention_scale: f32,
    /// Per-head norm of queries and keys, before RoPE.
    pub qk_norm: bool,
    /// Whether query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub attn_out_bias: bool,
    /// Whether gate, up and down projections have biases.
    pub mlp_bias: bool,
}

/// A normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormSpec {
    /// Which one.
    pub kind: NormKind,
    /// Added to the variance, inside the root.
    pub eps: f32,
}

/// The normalisations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// x / sqrt(mean(x²) + eps) · w.
    RmsNorm,
}

/// The activations of a gated feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
}

/// Rotary position embedding, rotate-half pairing (i, i + rotary_dim / 2).
///
/// **Paper**: RoFormer, Su et al. 2021, arXiv 2104.09864.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Dimensions of a head that rotate; even, at most `head_dim`.
    pub rotary_dim: u32,
    /// Base of the frequencies.
    pub rope_theta: f64,
    /// How the frequencies are stretched.
    pub scaling: RopeScaling,
}

/// Ways to stretch rotary frequencies beyond the trained length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// None.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Llama 3: long wavelengths divided by `factor`, short ones kept, smooth in between.
    Llama3 {
        /// Stretch.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched whole.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context length before stretching.
        original_max_position_embeddings: u32,
    },
    /// Each frequency divided by a factor of its own: how GGUF files write Llama 3's stretch.
    Factors {
        /// One for each rotated pair.
        factors: Vec<f32>,
    },
    /// YaRN, Peng et al. 2023, arXiv 2309.00071.
    Yarn {
        /// Stretch.
        factor: f64,
        /// The context length before stretching.
        original_max_position_embeddings: u32,
        /// Rotations over the original length above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is stretched whole.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded to whole dimensions.
        truncate: bool,
        /// Factor on both cosine and sine.
        attention_factor: f64,
    },
}

/// A number in a model description that cannot be right.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SpecError {
    /// A number lies outside what any model has.
    #[error("{place}{field} is {value}, but must lie between {min} and {max}")]
    OutOfRange {
        /// "layer 3: " or nothing.
        place: String,
        /// The config's name for it.
        field: &'static str,
        /// What was found.
        value: f64,
        /// Smallest accepted.
        min: f64,
        /// Largest accepted.
        max: f64,
    },
    /// Query heads do not share key-value heads evenly.
    #[error(
        "layer {layer}: {heads} attention heads cannot share {kv_heads} key-value heads evenly"
    )]
    UnevenHeads {
        /// Decoder layer.
        layer: usize,
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
    },
    /// A layer refers to a rotary description that is not there.
    #[error("layer {layer} uses rotary description {rope}, but there are {count}")]
    MissingRope {
        /// Decoder layer.
        layer: usize,
        /// Index used.
        rope: u32,
        /// Descriptions present.
        count: usize,
    },
    /// The description is not of the expected form.
    #[error("the model description cannot be read: {0}")]
    Json(#[from] JsonError),
}

/// `serde_json::Error` that compares by its text, so that errors can be compared in tests.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct JsonError(#[from] serde_json::Error);

impl PartialEq for JsonError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// Largest width of any dimension accepted from a file: eight times the largest published model's.
const MAX_WIDTH: f64 = 1_048_576.0;

impl ModelSpec {
    /// Parses and checks the description stored in a manifest.
    ///
    /// **Errors**: [`SpecError`] naming the field.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, SpecError> {
        let spec: ModelSpec = serde::Deserialize::deserialize(value).map_err(JsonError)?;
        spec.check()?;
        Ok(spec)
    }

    /// Bounds every number, so that products of a few of them cannot overflow and loops over them end.
    ///
    /// **Errors**: [`SpecError`] naming the field and its bounds.
    pub fn check(&self) -> Result<(), SpecError> {
        let model = |field, value: f64, min, max| in_range("", field, value, min, max);
        model("hidden_size", f64::from(self.hidden_size), 1.0, MAX_WIDTH)?;
        model("vocab_size", f64::from(self.vocab_size), 1.0, 16.0 * MAX_WIDTH)?;
        model("max_position_embeddings", f64::from(self.max_position_embeddings), 1.0, 2e9)?;
        model("num_hidden_layers", self.layers.len() as f64, 1.0, 4096.0)?;
        model("norm eps", f64::from(self.norm.eps), 0.0, 1.0)?;
        for rope in &self.ropes {
            rope.check()?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.check(index, self)?;
        }
        Ok(())
    }

    /// The longest context the model was made for: as trained, or as YaRN stretches it. Published configs
    /// with YaRN differ in whether `max_position_embeddings` counts the stretch.
    #[must_use]
    pub fn longest_context(&self) -> u32 {
        let stretched = self.ropes.iter().map(|rope| match rope.scaling {
            RopeScaling::Yarn { factor, original_max_position_embeddings, .. } => {
                (f64::from(original_max_position_embeddings) * factor) as u32
            }
            RopeScaling::Default
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Factors { .. } => 0,
        });
        stretched.fold(self.max_position_embeddings, u32::max)
    }

    /// Rows of `attn_qkv` in a layer: queries, keys, values.
    #[must_use]
    pub fn qkv_rows(layer: &LayerSpec) -> u32 {
        (layer.num_attention_heads + 2 * layer.num_key_value_heads) * layer.head_dim
    }
}

impl LayerSpec {
    /// Width of the queries, and of the input of `attn_out`.
    #[must_use]
    pub fn q_width(&self) -> u32 {
        self.num_attention_heads * self.head_dim
    }

    /// Width of the keys, and of the values.
    #[must_use]
    pub fn kv_width(&self) -> u32 {
        self.num_key_value_heads * self.head_dim
    }

    fn check(&self, index: usize, model: &ModelSpec) -> Result<(), SpecError> {
        let place = format!("layer {index}: ");
        let layer = |field, value: f64, min, max| in_range(&place, field, value, min, max);
        layer("num_attention_heads", f64::from(self.num_attention_heads), 1.0, 4096.0)?;
        layer("num_key_value_heads", f64::from(self.num_key_value_heads), 1.0, 4096.0)?;
        layer("head_dim", f64::from(self.head_dim), 1.0, 4096.0)?;
        let width = f64::from(self.num_attention_heads) * f64::from(self.head_dim);
        layer("num_attention_heads * head_dim", width, 1.0, MAX_WIDTH)?;
        layer("intermediate_size", f64::from(self.intermediate_size), 1.0, MAX_WIDTH)?;
        layer("attention scale", f64::from(self.attention_scale), 0.0, 1e3)?;
        if let Some(window) = self.sliding_window {
            layer("sliding_window", f64::from(window), 1.0, 2e9)?;
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return Err(SpecError::UnevenHeads {
                layer: index,
                heads: self.num_attention_heads,
                kv_heads: self.num_key_value_heads,
            });
        }
        if let Some(rope) = self.rope {
            let count = model.ropes.len();
            let spec = model.ropes.get(rope as usize).ok_or(SpecError::MissingRope {
                layer: index,
                rope,
                count,
            })?;
            let dim = f64::from(self.head_dim);
            in_range(&place, "rotary dimensions", f64::from(spec.rotary_dim), 2.0, dim)?;
        }
        Ok(())
    }
}

impl RopeSpec {
    fn check(&self) -> Result<(), SpecError> {
        let rope = |field, value: f64, min, max| in_range("rope: ", field, value, min, max);
        rope("rotary dimensions", f64::from(self.rotary_dim), 2.0, 4096.0)?;
        rope("rotary dimensions modulo 2", f64::from(self.rotary_dim % 2), 0.0, 0.0)?;
        rope("rope_theta", self.rope_theta, 1.0, 1e15)?;
        let original =
            |length: u32| rope("original_max_position_embeddings", f64::from(length), 1.0, 2e9);
        match self.scaling {
            RopeScaling::Default => Ok(()),
            RopeScaling::Linear { factor } => rope("factor", factor, 1e-3, 1e6),
            RopeScaling::Factors { ref factors } => {
                let pairs = f64::from(self.rotary_dim / 2);
                rope("number of factors", factors.len() as f64, pairs, pairs)?;
                let mut factors = factors.iter();
                factors.try_for_each(|factor| rope("factor", f64::from(*factor), 1e-3, 1e6))
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                rope("factor", factor, 1e-3, 1e6)?;
                rope("low_freq_factor", low_freq_factor, 1e-3, 1e6)?;
                rope("high_freq_factor", high_freq_factor, low_freq_factor, 1e6)?;
                original(original_max_position_embeddings)
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                truncate: _,
                attention_factor,
            } => {
                rope("factor", factor, 1e-3, 1e6)?;
                rope("beta_fast", beta_fast, 1e-6, 1e6)?;
                rope("beta_slow", beta_slow, 1e-6, 1e6)?;
                rope("attention_factor", attention_factor, 1e-6, 1e6)?;
                original(original_max_position_embeddings)
            }
        }
    }
}

/// Whether `min <= value <= max`; a NaN is not.
fn in_range(
    place: &str,
    field: &'static str,
    value: f64,
    min: f64,
    max: f64,
) -> Result<(), SpecError> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(SpecError::OutOfRange { place: place.to_owned(), field, value, min, max })
}

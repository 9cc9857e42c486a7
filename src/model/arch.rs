//! The architectures we run, one row each: what a config.json leaves unsaid, and what tensors are called.
//!
//! A row is data. `import` reads configs and places tensors by it; the decoder never sees it, only the
//! [`ModelSpec`](super::ModelSpec) that came of it. A new family is a new row; a new idea is a new toggle
//! here and in `program::decoder`. Start at [`ARCHITECTURES`].
//!
//! Patterns of tensor names hold `{model}`, which stands for any of the row's prefixes, and `{layer}`, which
//! stands for a number.

use crate::format::{Role, Vector};

/// One family of models.
#[derive(Debug)]
pub struct Architecture {
    /// `model_type` of its config.json.
    pub model_type: &'static str,
    /// Names it goes by in `architectures`: the causal model first, then the model without a head.
    pub classes: &'static [&'static str],
    /// What sets it apart, for people.
    pub special: &'static str,
    /// The reference checkpoints that prove it, folders of `tests/fixtures/goldens`.
    pub goldens: &'static [&'static str],
    /// What a key means that is absent from config.json.
    pub defaults: Defaults,
    /// Biases of the query, key and value projections.
    pub qkv_bias: Bias,
    /// Bias of the attention output projection.
    pub attn_out_bias: Bias,
    /// Biases of the feed-forward projections.
    pub mlp_bias: Bias,
    /// Per-head norm of queries and keys.
    pub qk_norm: bool,
    /// Whether `partial_rotary_factor` means something to it; the reference library ignores it elsewhere.
    pub partial_rotary: bool,
    /// Which layers see only a window.
    pub window: Window,
    /// Which layers have positions.
    pub positions: Positions,
    /// Its tensors, as safetensors files name them.
    pub names: Names,
    /// Its tensors and conventions in GGUF files; none where it is not read from those.
    pub gguf: Option<Gguf>,
}

/// What tensors are called in one kind of file.
#[derive(Debug)]
pub struct Names {
    /// What `{model}` stands for in a pattern; the first is what files usually have.
    pub prefixes: &'static [&'static str],
    /// The tensors.
    pub tensors: &'static [&'static [TensorName]],
    /// Tensors a file may have that inference has no use for: pattern and reason.
    pub ignored: &'static [(&'static str, &'static str)],
}

/// How a family is written in GGUF files.
#[derive(Debug)]
pub struct Gguf {
    /// `general.architecture`, and the prefix of its metadata keys.
    pub architecture: &'static str,
    /// Its tensors.
    pub names: Names,
    /// Whether rows of queries and keys are ordered for rotation of neighbouring pairs.
    pub interleaved: bool,
}

/// Values of absent keys: those of the reference library's configuration class.
#[derive(Debug)]
pub struct Defaults {
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Added to the variance.
    pub rms_norm_eps: f32,
    /// The context length.
    pub max_position_embeddings: u32,
    /// Base of the rotary frequencies; none where versions of the library disagree, so that the key is required.
    pub rope_theta: f64,
    /// Width of a head; none for `hidden_size / num_attention_heads`.
    pub head_dim: Option<u32>,
    /// Keys visible to a query.
    pub sliding_window: Option<u32>,
}

/// When a projection has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// Whatever the config says.
    Never,
    /// Whatever the config says.
    Always,
    /// When this key of the config is true.
    If(&'static str),
}

/// Which layers see only the last `sliding_window` keys. An explicit `layer_types` wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// None.
    Never,
    /// Every layer, where `sliding_window` is not null.
    Every,
    /// Layers from `max_window_layers` on, if `use_sliding_window` is true.
    FromMaxWindowLayers,
    /// Layers without positions, if `use_sliding_window` is true.
    WithoutPositions,
}

/// Which layers rotate their queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// All.
    Every,
    /// Those where `no_rope_layers` is 1; if absent, all but every `no_rope_layer_interval`-th.
    NoRopeLayers,
}

/// What a tensor is called and where its rows go.
#[derive(Debug)]
pub struct TensorName {
    /// The name, with `{model}` and `{layer}`.
    pub pattern: &'static str,
    /// The group its rows belong to.
    pub home: Home,
    /// Which rows of the group, in the order the tensor holds them: several for a fused tensor.
    pub parts: &'static [Part],
}

/// The group a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// Rows of a matrix group.
    Matrix(Role),
    /// A vector of the layer's `small` page.
    Vector(Vector),
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// All of it.
    Whole,
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Gate of the feed-forward block.
    Gate,
    /// What the gate multiplies.
    Up,
}

/// What [`Architecture::place`] found a name to mean.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// A tensor of the model, with its layer where it has one.
    Tensor(&'static TensorName, Option<u32>),
    /// A tensor without use, and why.
    Ignored(&'static str),
}

/// Every architecture this version runs.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        model_type: "llama",
        classes: &["LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"],
        special: "grouped-query attention; llama3, linear and YaRN position scaling; optional biases",
        goldens: &["llama", "llama-tied", "llama-sharded", "llama-bias-linear"],
        defaults: Defaults { max_position_embeddings: 2_048, ..DEFAULTS },
        qkv_bias: Bias::If("attention_bias"),
        attn_out_bias: Bias::If("attention_bias"),
        mlp_bias: Bias::If("mlp_bias"),
        gguf: Some(Gguf { architecture: "llama", names: GGUF_NAMES, interleaved: true }),
        ..PLAIN
    },
    Architecture {
        model_type: "mistral",
        classes: &["MistralForCausalLM", "MistralModel"],
        special: "sliding window in every layer where the config has one; free head width",
        goldens: &["mistral"],
        defaults: Defaults {
            max_position_embeddings: 131_072,
            sliding_window: Some(4_096),
            ..DEFAULTS
        },
        window: Window::Every,
        ..PLAIN
    },
    Architecture {
        model_type: "qwen2",
        classes: &["Qwen2ForCausalLM", "Qwen2Model"],
        special: "biases on queries, keys and values; sliding window in the upper layers when switched on",
        goldens: &["qwen2", "qwen2-yarn", "qwen2-swa"],
        defaults: Defaults { sliding_window: Some(4_096), ..DEFAULTS },
        qkv_bias: Bias::Always,
        window: Window::FromMaxWindowLayers,
        gguf: gguf("qwen2", GGUF_NAMES.tensors),
        ..PLAIN
    },
    Architecture {
        model_type: "qwen3",
        classes: &["Qwen3ForCausalLM", "Qwen3Model"],
        special: "norm of each query and key head before rotation; free head width",
        goldens: &["qwen3"],
        defaults: Defaults { head_dim: Some(128), sliding_window: Some(4_096), ..DEFAULTS },
        qkv_bias: Bias::If("attention_bias"),
        attn_out_bias: Bias::If("attention_bias"),
        qk_norm: true,
        window: Window::FromMaxWindowLayers,
        names: Names { tensors: &[MODEL, ATTENTION, QK_NORMS, FEED_FORWARD], ..NAMES },
        gguf: gguf("qwen3", &[GGUF_MODEL, GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_FEED_FORWARD]),
        ..PLAIN
    },
    Architecture {
        model_type: "smollm3",
        classes: &["SmolLM3ForCausalLM", "SmolLM3Model"],
        special: "every fourth layer without positions; tied unless the config says otherwise",
        goldens: &["smollm3"],
        defaults: Defaults { tie_word_embeddings: true, rope_theta: 2_000_000.0, ..DEFAULTS },
        qkv_bias: Bias::If("attention_bias"),
        attn_out_bias: Bias::If("attention_bias"),
        mlp_bias: Bias::If("mlp_bias"),
        window: Window::WithoutPositions,
        gguf: Some(Gguf { architecture: "smollm3", names: GGUF_NAMES, interleaved: true }),
        positions: Positions::NoRopeLayers,
        ..PLAIN
    },
    Architecture {
        model_type: "phi3",
        classes: &["Phi3ForCausalLM", "Phi3Model"],
        special: "fused query-key-value and gate-up projections; rotation of part of a head",
        goldens: &["phi3"],
        defaults: Defaults { rms_norm_eps: 1e-5, max_position_embeddings: 4_096, ..DEFAULTS },
        window: Window::Every,
        partial_rotary: true,
        names: Names { tensors: &[MODEL, FUSED_ATTENTION, FUSED_FEED_FORWARD], ..NAMES },
        gguf: gguf("phi3", &[GGUF_MODEL, GGUF_FUSED_ATTENTION, GGUF_FUSED_FEED_FORWARD]),
        ..PLAIN
    },
];

/// What most configuration classes agree on.
const DEFAULTS: Defaults = Defaults {
    tie_word_embeddings: false,
    rms_norm_eps: 1e-6,
    max_position_embeddings: 32_768,
    rope_theta: 10_000.0,
    head_dim: None,
    sliding_window: None,
};

/// The row all others are written as a difference to: pre-norm, gated, no biases.
const PLAIN: Architecture = Architecture {
    model_type: "",
    classes: &[],
    special: "",
    goldens: &[],
    defaults: DEFAULTS,
    qkv_bias: Bias::Never,
    attn_out_bias: Bias::Never,
    mlp_bias: Bias::Never,
    qk_norm: false,
    partial_rotary: false,
    window: Window::Never,
    positions: Positions::Every,
    names: NAMES,
    gguf: None,
};

/// What most safetensors files have.
const NAMES: Names = Names {
    prefixes: &["model.", ""],
    tensors: &[MODEL, ATTENTION, FEED_FORWARD],
    ignored: &[(
        "{model}layers.{layer}.self_attn.rotary_emb.inv_freq",
        "rotary frequencies are computed from the config",
    )],
};

/// What most GGUF files have.
const GGUF_NAMES: Names = Names {
    prefixes: &[""],
    tensors: &[GGUF_MODEL, GGUF_ATTENTION, GGUF_FEED_FORWARD],
    ignored: &[
        (ROPE_FREQS, "its factors are part of the model's description"),
        ("blk.{layer}.attn_rot_embd.weight", "rotary frequencies are computed from the metadata"),
    ],
};

/// The tensor of a GGUF file that divides rotary frequencies.
pub const ROPE_FREQS: &str = "rope_freqs.weight";

/// A family whose GGUF files keep the row order of its checkpoints.
const fn gguf(
    architecture: &'static str,
    tensors: &'static [&'static [TensorName]],
) -> Option<Gguf> {
    let names = Names { tensors, ..GGUF_NAMES };
    Some(Gguf { architecture, names, interleaved: false })
}

const fn matrix(pattern: &'static str, role: Role, parts: &'static [Part]) -> TensorName {
    TensorName { pattern, home: Home::Matrix(role), parts }
}

const fn vector(pattern: &'static str, vector: Vector, parts: &'static [Part]) -> TensorName {
    TensorName { pattern, home: Home::Vector(vector), parts }
}

const WHOLE: &[Part] = &[Part::Whole];
const Q: &[Part] = &[Part::Q];
const K: &[Part] = &[Part::K];
const V: &[Part] = &[Part::V];
const GATE: &[Part] = &[Part::Gate];
const UP: &[Part] = &[Part::Up];

/// Embedding, norms, head.
const MODEL: &[TensorName] = &[
    matrix("{model}embed_tokens.weight", Role::Embed, WHOLE),
    vector("{model}layers.{layer}.input_layernorm.weight", Vector::AttnNorm, WHOLE),
    vector("{model}layers.{layer}.post_attention_layernorm.weight", Vector::FfnNorm, WHOLE),
    vector("{model}norm.weight", Vector::FinalNorm, WHOLE),
    matrix("lm_head.weight", Role::Head, WHOLE),
];

/// Query, key, value and output projections, each its own tensor.
const ATTENTION: &[TensorName] = &[
    matrix("{model}layers.{layer}.self_attn.q_proj.weight", Role::AttnQkv, Q),
    matrix("{model}layers.{layer}.self_attn.k_proj.weight", Role::AttnQkv, K),
    matrix("{model}layers.{layer}.self_attn.v_proj.weight", Role::AttnQkv, V),
    matrix("{model}layers.{layer}.self_attn.o_proj.weight", Role::AttnOut, WHOLE),
    vector("{model}layers.{layer}.self_attn.q_proj.bias", Vector::AttnQkvBias, Q),
    vector("{model}layers.{layer}.self_attn.k_proj.bias", Vector::AttnQkvBias, K),
    vector("{model}layers.{layer}.self_attn.v_proj.bias", Vector::AttnQkvBias, V),
    vector("{model}layers.{layer}.self_attn.o_proj.bias", Vector::AttnOutBias, WHOLE),
];

/// Norms of each query and key head.
const QK_NORMS: &[TensorName] = &[
    vector("{model}layers.{layer}.self_attn.q_norm.weight", Vector::QNorm, WHOLE),
    vector("{model}layers.{layer}.self_attn.k_norm.weight", Vector::KNorm, WHOLE),
];

/// Gate, up and down projections, each its own tensor.
const FEED_FORWARD: &[TensorName] = &[
    matrix("{model}layers.{layer}.mlp.gate_proj.weight", Role::FfnGateUp, GATE),
    matrix("{model}layers.{layer}.mlp.up_proj.weight", Role::FfnGateUp, UP),
    matrix("{model}layers.{layer}.mlp.down_proj.weight", Role::FfnDown, WHOLE),
    vector("{model}layers.{layer}.mlp.gate_proj.bias", Vector::FfnGateUpBias, GATE),
    vector("{model}layers.{layer}.mlp.up_proj.bias", Vector::FfnGateUpBias, UP),
    vector("{model}layers.{layer}.mlp.down_proj.bias", Vector::FfnDownBias, WHOLE),
];

/// Query, key and value rows in one tensor.
const FUSED_ATTENTION: &[TensorName] = &[
    matrix(
        "{model}layers.{layer}.self_attn.qkv_proj.weight",
        Role::AttnQkv,
        &[Part::Q, Part::K, Part::V],
    ),
    matrix("{model}layers.{layer}.self_attn.o_proj.weight", Role::AttnOut, WHOLE),
];

/// Gate rows, then up rows, in one tensor.
const FUSED_FEED_FORWARD: &[TensorName] = &[
    matrix(
        "{model}layers.{layer}.mlp.gate_up_proj.weight",
        Role::FfnGateUp,
        &[Part::Gate, Part::Up],
    ),
    matrix("{model}layers.{layer}.mlp.down_proj.weight", Role::FfnDown, WHOLE),
];

/// Embedding, norms, head of a GGUF file.
const GGUF_MODEL: &[TensorName] = &[
    matrix("token_embd.weight", Role::Embed, WHOLE),
    vector("blk.{layer}.attn_norm.weight", Vector::AttnNorm, WHOLE),
    vector("blk.{layer}.ffn_norm.weight", Vector::FfnNorm, WHOLE),
    vector("output_norm.weight", Vector::FinalNorm, WHOLE),
    matrix("output.weight", Role::Head, WHOLE),
];

/// Query, key, value and output projections of a GGUF file.
const GGUF_ATTENTION: &[TensorName] = &[
    matrix("blk.{layer}.attn_q.weight", Role::AttnQkv, Q),
    matrix("blk.{layer}.attn_k.weight", Role::AttnQkv, K),
    matrix("blk.{layer}.attn_v.weight", Role::AttnQkv, V),
    matrix("blk.{layer}.attn_output.weight", Role::AttnOut, WHOLE),
    vector("blk.{layer}.attn_q.bias", Vector::AttnQkvBias, Q),
    vector("blk.{layer}.attn_k.bias", Vector::AttnQkvBias, K),
    vector("blk.{layer}.attn_v.bias", Vector::AttnQkvBias, V),
    vector("blk.{layer}.attn_output.bias", Vector::AttnOutBias, WHOLE),
];

/// Norms of each query and key head of a GGUF file.
const GGUF_QK_NORMS: &[TensorName] = &[
    vector("blk.{layer}.attn_q_norm.weight", Vector::QNorm, WHOLE),
    vector("blk.{layer}.attn_k_norm.weight", Vector::KNorm, WHOLE),
];

/// Gate, up and down projections of a GGUF file.
const GGUF_FEED_FORWARD: &[TensorName] = &[
    matrix("blk.{layer}.ffn_gate.weight", Role::FfnGateUp, GATE),
    matrix("blk.{layer}.ffn_up.weight", Role::FfnGateUp, UP),
    matrix("blk.{layer}.ffn_down.weight", Role::FfnDown, WHOLE),
    vector("blk.{layer}.ffn_gate.bias", Vector::FfnGateUpBias, GATE),
    vector("blk.{layer}.ffn_up.bias", Vector::FfnGateUpBias, UP),
    vector("blk.{layer}.ffn_down.bias", Vector::FfnDownBias, WHOLE),
];

/// Query, key and value rows in one tensor of a GGUF file.
const GGUF_FUSED_ATTENTION: &[TensorName] = &[
    matrix("blk.{layer}.attn_qkv.weight", Role::AttnQkv, &[Part::Q, Part::K, Part::V]),
    matrix("blk.{layer}.attn_output.weight", Role::AttnOut, WHOLE),
];

/// Gate rows, then up rows, in one tensor of a GGUF file.
const GGUF_FUSED_FEED_FORWARD: &[TensorName] = &[
    matrix("blk.{layer}.ffn_up.weight", Role::FfnGateUp, &[Part::Gate, Part::Up]),
    matrix("blk.{layer}.ffn_down.weight", Role::FfnDown, WHOLE),
];

/// The row with this `model_type`.
#[must_use]
pub fn by_model_type(model_type: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|row| row.model_type == model_type)
}

/// The row that goes by this class name.
#[must_use]
pub fn by_class(class: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|row| row.classes.contains(&class))
}

/// The row whose GGUF files have this `general.architecture`.
#[must_use]
pub fn by_gguf(architecture: &str) -> Option<(&'static Architecture, &'static Gguf)> {
    ARCHITECTURES.iter().find_map(|row| {
        let gguf = row.gguf.as_ref().filter(|gguf| gguf.architecture == architecture)?;
        Some((row, gguf))
    })
}

impl Names {
    /// What a tensor's name means in these files, if anything.
    #[must_use]
    pub fn place(&'static self, name: &str) -> Option<Place> {
        let of_model =
            self.rows().find_map(|row| Some(Place::Tensor(row, self.captured(row.pattern, name)?)));
        of_model.or_else(|| {
            self.ignored.iter().find_map(|(pattern, reason)| {
                self.captured(pattern, name).map(|_| Place::Ignored(reason))
            })
        })
    }

    /// The usual name of the tensor that holds a part, for messages about its absence.
    #[must_use]
    pub fn usual_name(&self, home: Home, part: Part, layer: Option<u32>) -> String {
        let row = self.rows().find(|row| row.home == home && row.parts.contains(&part));
        let Some(row) = row else {
            return match home {
                Home::Matrix(role) => role.name().to_owned(),
                Home::Vector(vector) => vector.name().to_owned(),
            };
        };
        let prefix = self.prefixes.first().copied().unwrap_or_default();
        let layer = layer.map(|layer| layer.to_string()).unwrap_or_default();
        row.pattern.replace("{model}", prefix).replace("{layer}", &layer)
    }

    fn rows(&self) -> impl Iterator<Item = &'static TensorName> + use<> {
        let tables: &'static [&'static [TensorName]] = self.tensors;
        tables.iter().flat_map(|table| table.iter())
    }

    /// `Some(layer)` where the name fits the pattern under one of the prefixes.
    fn captured(&self, pattern: &str, name: &str) -> Option<Option<u32>> {
        match pattern.strip_prefix("{model}") {
            None => capture(pattern, name),
            Some(rest) => self
                .prefixes
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix).and_then(|name| capture(rest, name))),
        }
    }
}

/// `Some(number)` where the name fits a pattern that may have one `{layer}`.
fn capture(pattern: &str, name: &str) -> Option<Option<u32>> {
    let Some((before, after)) = pattern.split_once("{layer}") else {
        return (pattern == name).then_some(None);
    };
    let digits = name.strip_prefix(before)?.strip_suffix(after)?;
    let canonical = digits == "0" || !digits.starts_with('0');
    if !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> &'static Architecture {
        by_model_type("llama").expect("a row")
    }

    fn found(names: &'static Names, name: &str) -> Option<(Home, &'static [Part], Option<u32>)> {
        match names.place(name)? {
            Place::Tensor(tensor, layer) => Some((tensor.home, tensor.parts, layer)),
            Place::Ignored(_) => None,
        }
    }

    #[test]
    fn names_are_found_with_and_without_the_model_prefix() {
        for name in ["model.layers.17.self_attn.k_proj.weight", "layers.17.self_attn.k_proj.weight"]
        {
            let place = found(&llama().names, name);

            assert_eq!(place, Some((Home::Matrix(Role::AttnQkv), K, Some(17))));
        }
    }

    #[test]
    fn names_that_only_resemble_a_pattern_are_not_found() {
        for name in [
            "model.model.layers.1.self_attn.k_proj.weight",
            "model.layers.01.self_attn.k_proj.weight",
            "model.layers.+1.self_attn.k_proj.weight",
            "model.layers..self_attn.k_proj.weight",
            "model.layers.4294967296.self_attn.k_proj.weight",
            "model.layers.1.self_attn.k_proj.weight.weight",
            "model.lm_head.weight",
            "",
        ] {
            assert!(llama().names.place(name).is_none(), "{name}");
        }
    }

    #[test]
    fn frequencies_stored_by_old_files_are_ignored_with_a_reason() {
        let place = llama().names.place("model.layers.3.self_attn.rotary_emb.inv_freq");

        assert!(matches!(place, Some(Place::Ignored(reason)) if reason.contains("computed")));
    }

    #[test]
    fn every_row_is_named_proven_and_finds_its_own_tensors() {
        for row in ARCHITECTURES {
            assert!(!row.classes.is_empty() && !row.goldens.is_empty() && !row.special.is_empty());
            assert!(std::ptr::eq(by_model_type(row.model_type).expect("a row"), row));
            assert!(
                row.classes
                    .iter()
                    .all(|class| by_class(class).is_some_and(|found| { std::ptr::eq(found, row) }))
            );
            let gguf = row.gguf.iter().map(|gguf| &gguf.names);
            for names in std::iter::once(&row.names).chain(gguf) {
                for tensor in names.rows() {
                    let layer = tensor.pattern.contains("{layer}").then_some(5);
                    for &part in tensor.parts {
                        let name = names.usual_name(tensor.home, part, layer);
                        assert_eq!(found(names, &name), Some((tensor.home, tensor.parts, layer)));
                    }
                }
            }
        }
    }
}

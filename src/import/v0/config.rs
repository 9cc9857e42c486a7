//! The model of a version-0 archive as the config.json it came from, as far as version 0 recorded that.
//!
//! Version 0 kept a fixed set of settings. For the families in [`WHOLE`] those are all that matter; of any
//! other family a factor may be missing without a trace, so that it is refused by name rather than run wrong.

use serde_json::{Map, Value, json};

use super::Problem;
use super::manifest::Model;
use crate::import::file::Entry;
use crate::model::arch;

/// Families of which version 0 records every setting: `model_type`.
const WHOLE: &[&str] =
    &["llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "mixtral", "gpt_oss", "qwen3_moe"];

/// Settings by the name that config.json gives them too.
const SAME: &[&str] = &[
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "partial_rotary_factor",
    "rope_scaling",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "no_rope_layer_interval",
    "use_sliding_window",
    "layer_types",
    "attention_bias",
    "norm_topk_prob",
    "swiglu_alpha",
    "swiglu_limit",
    "quantization_config",
];
/// Settings under another name: here, in config.json.
const RENAMED: &[(&str, &str)] = &[
    ("layers", "num_hidden_layers"),
    ("heads", "num_attention_heads"),
    ("kv_heads", "num_key_value_heads"),
    ("activation", "hidden_act"),
    ("source_dtype", "torch_dtype"),
    ("num_experts_per_token", "num_experts_per_tok"),
];
/// What follows from other settings or from the tensors, or is for people.
const DERIVED: &[&str] = &[
    "arch",
    "model_type",
    "raw_arch",
    "dtype",
    "norm_eps",
    "norm_kind",
    "rope_parameters",
    "rope_variant",
    "no_rope_layers",
    "tie_word_embeddings",
    "qkv_bias",
    "tensor_naming_scheme",
    "attention_variants",
    "supported_precision_modes",
    "sliding_window",
    "architecture_family",
    "attention_kind",
    "mlp_kind",
    "attention_sinks",
    "num_local_experts",
    "required_operators",
    "tokenizer_json_hash",
    "tokenizer_config_json_hash",
];

/// The config.json of an archive's model.
///
/// **Errors**: a family that version 0 does not describe in full, or a setting it never had.
pub(super) fn config(model: &Model, tensors: &[Entry]) -> Result<Map<String, Value>, Problem> {
    let family = model.text("model_type").map(str::to_owned);
    let family =
        family.or_else(|| Some(arch::by_class(model.text("raw_arch")?)?.model_type.into()));
    let family = family.unwrap_or_else(|| model.arch.clone());
    if !WHOLE.contains(&family.as_str()) {
        return Err(Problem::Family { family });
    }
    refuse_unknown(model, &family)?;

    let mut config = Map::new();
    let mut set = |key: &str, value: Value| {
        config.insert(key.to_owned(), value);
    };
    if let Some(class) = model.text("raw_arch") {
        set("architectures", json!([class]));
    }
    set("model_type", family.clone().into());
    for &key in SAME {
        if let Some(value) = model.fields.get(key) {
            set(key, value.clone());
        }
    }
    for &(here, there) in RENAMED {
        if let Some(value) = model.fields.get(here) {
            set(there, value.clone());
        }
    }
    // The converter copied rope_scaling to rope_parameters where a config had only that.
    if let Some(value) = model.fields.get("rope_parameters")
        && model.fields.get("rope_scaling") != Some(value)
    {
        set("rope_parameters", value.clone());
    }
    // Here true means that a layer has positions, as 1 does in config.json.
    if let Some(list) = model.fields.get("no_rope_layers").and_then(Value::as_array) {
        let number =
            |value: &Value| value.as_bool().map_or(value.clone(), |it| json!(u8::from(it)));
        set("no_rope_layers", list.iter().map(number).collect());
    }
    // Absent means null in config.json: the program that wrote this format knew no default window.
    let window = model.fields.get("sliding_window").cloned().unwrap_or(Value::Null);
    set("sliding_window", window);
    let slides = model.flag("use_sliding_window") == Some(true);
    if slides && !model.fields.contains_key("layer_types") && family != "smollm3" {
        return Err(Problem::WindowLayers);
    }
    set("tie_word_embeddings", is_tied(model, &family, tensors).into());
    let has = |ending: &str| tensors.iter().any(|tensor| tensor.name.ends_with(ending));
    if ["gate_proj.bias", "up_proj.bias", "down_proj.bias"].iter().any(|name| has(name))
        && family != "gpt_oss"
    {
        set("mlp_bias", true.into());
    }
    if let Some(experts) = model.fields.get("num_local_experts") {
        let key = if family == "qwen3_moe" { "num_experts" } else { "num_local_experts" };
        set(key, experts.clone());
    }
    // The manifest has the width of a dense block, which no layer of such a model need have.
    let expert = tensors.iter().find(|it| it.name.ends_with("mlp.experts.0.gate_proj.weight"));
    if let Some(&width) = expert.and_then(|tensor| tensor.shape.first()) {
        set("moe_intermediate_size", width.into());
    }
    Ok(config)
}

/// Whether the head is the embedding. The converter wrote false where config.json was silent, which for some
/// families means true; a head that is not there decides.
fn is_tied(model: &Model, family: &str, tensors: &[Entry]) -> bool {
    let stated = model.flag("tie_word_embeddings").unwrap_or(false);
    let has_head = tensors.iter().any(|tensor| tensor.name == "lm_head.weight");
    let by_default =
        arch::by_model_type(family).is_some_and(|row| row.defaults.tie_word_embeddings);
    stated || (!has_head && by_default)
}

fn refuse_unknown(model: &Model, family: &str) -> Result<(), Problem> {
    let setting = |field: &str, value: &Value| Problem::Setting {
        field: field.chars().take(80).collect(),
        value: value.to_string().chars().take(80).collect(),
        family: family.to_owned(),
    };
    for (key, value) in &model.fields {
        let renamed = RENAMED.iter().any(|(here, _)| here == key);
        let key = key.as_str();
        if !renamed && !SAME.contains(&key) && !DERIVED.contains(&key) && !value.is_null() {
            return Err(setting(key, value));
        }
    }
    match model.fields.get("norm_kind") {
        Some(kind) if kind != "rms_norm" => Err(setting("norm_kind", kind)),
        _ => Ok(()),
    }
}

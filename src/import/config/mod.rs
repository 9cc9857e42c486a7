//! A Hugging Face `config.json` as a `ModelSpec`.
//!
//! Both forms in the wild are read: that of transformers 4 and that of 5. What a key's absence means is in
//! the row of `model::arch`; what cannot be understood is refused by name, since a model that runs with a
//! guessed setting answers nonsense. Fields are read in `fields`, rotary positions in `rope`, and
//! `keys` judges what nobody read. Start at `read`.

mod fields;
mod keys;
mod problem;
mod rope;

use serde_json::{Map, Value};

use self::fields::{Fields, as_u32, brief};
pub use self::problem::Problem;
use crate::model::arch::{self, Architecture, Bias, Positions, Window};
use crate::model::{Activation, LayerSpec, ModelSpec, NormKind, NormSpec};

/// More layers than this are refused before any list of them is made.
const MAX_LAYERS: u32 = 4096;
/// More end tokens than this are refused.
const MAX_END_TOKENS: usize = 1024;

/// What a config.json says.
#[derive(Debug)]
pub(super) struct Config {
    /// The model.
    pub(super) spec: ModelSpec,
    /// Its family.
    pub(super) row: &'static Architecture,
    /// Keys that were not used.
    pub(super) notes: Vec<String>,
}

/// The token ids that config.json and generation_config.json both may name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TokenIds {
    /// First token of a text.
    pub(super) bos: Option<u32>,
    /// Tokens that end a text.
    pub(super) eos: Vec<u32>,
}

/// Reads a config. The numbers are typed but not yet bounded: that is `ModelSpec::check`.
///
/// **Errors**: [`Problem`], naming the field.
pub(super) fn read(config: &Map<String, Value>) -> Result<Config, Problem> {
    let fields = Fields::new("", config);
    let mut notes = Vec::new();
    let row = architecture(&fields)?;
    refuse_quantized(&fields)?;

    let hidden_size = fields.required_u32("hidden_size")?;
    let num_attention_heads = fields.required_u32("num_attention_heads")?;
    let layers = fields.required_u32("num_hidden_layers")?;
    if layers == 0 || layers > MAX_LAYERS {
        return Err(Problem::Layers { found: layers });
    }
    let head_dim = head_dim(row, &fields, hidden_size, num_attention_heads)?;
    let max_position_embeddings =
        fields.u32("max_position_embeddings")?.unwrap_or(row.defaults.max_position_embeddings);
    let rope = rope::rope(row, &fields, head_dim, max_position_embeddings, &mut notes)?;
    let positions = positions(row, &fields, layers)?;
    let windows = windows(row, &fields, &positions)?;
    let layer = LayerSpec {
        num_attention_heads,
        num_key_value_heads: fields.u32("num_key_value_heads")?.unwrap_or(num_attention_heads),
        head_dim,
        intermediate_size: fields.required_u32("intermediate_size")?,
        sliding_window: None,
        rope: None,
        attention_scale: f64::from(head_dim).powf(-0.5) as f32,
        qk_norm: row.qk_norm,
        qkv_bias: bias(row.qkv_bias, &fields)?,
        attn_out_bias: bias(row.attn_out_bias, &fields)?,
        mlp_bias: bias(row.mlp_bias, &fields)?,
    };
    let layers = positions.iter().zip(windows).map(|(&positions, window)| LayerSpec {
        sliding_window: window,
        rope: positions.then_some(0),
        ..layer.clone()
    });
    let ids = token_ids(&fields)?;
    let spec = ModelSpec {
        model_type: row.model_type.to_owned(),
        hidden_size,
        vocab_size: fields.required_u32("vocab_size")?,
        max_position_embeddings,
        norm: NormSpec { kind: NormKind::RmsNorm, eps: eps(row, &fields)? },
        hidden_act: activation(&fields)?,
        tie_word_embeddings: fields
            .bool("tie_word_embeddings")?
            .unwrap_or(row.defaults.tie_word_embeddings),
        ropes: vec![rope],
        layers: layers.collect(),
        bos_token_id: ids.bos,
        eos_token_ids: ids.eos,
    };
    keys::check_unread(&fields, row.model_type, &mut notes)?;
    Ok(Config { spec, row, notes })
}

/// The token ids a generation_config.json names.
///
/// **Errors**: [`Problem`], naming the field.
pub(super) fn generation(config: &Map<String, Value>) -> Result<TokenIds, Problem> {
    token_ids(&Fields::new("", config))
}

/// The row of `model::arch` that `model_type` and `architectures` agree on.
fn architecture(fields: &Fields<'_>) -> Result<&'static Architecture, Problem> {
    let model_type = fields.str("model_type")?;
    let class = match fields.array("architectures")?.and_then(|list| list.first()) {
        None => None,
        Some(class) => Some(class.as_str().ok_or_else(|| Problem::Wrong {
            field: "architectures".to_owned(),
            expected: "a list of texts",
            found: brief(class),
        })?),
    };
    let row = match (model_type, class) {
        (Some(model_type), _) => arch::by_model_type(model_type),
        (None, Some(class)) => arch::by_class(class),
        (None, None) => return Err(fields.missing("model_type")),
    };
    match row {
        Some(row) if class.is_none_or(|class| row.classes.contains(&class)) => Ok(row),
        _ => Err(Problem::Unsupported {
            class: class.map(str::to_owned),
            model_type: model_type.map(str::to_owned),
        }),
    }
}

fn refuse_quantized(fields: &Fields<'_>) -> Result<(), Problem> {
    for key in ["quantization_config", "compression_config"] {
        if let Some(value) = fields.value(key) {
            let method = value.get("quant_method").and_then(Value::as_str);
            return Err(Problem::Quantized {
                key,
                method: method.unwrap_or("an unnamed method").to_owned(),
            });
        }
    }
    Ok(())
}

fn head_dim(
    row: &Architecture,
    fields: &Fields<'_>,
    hidden_size: u32,
    heads: u32,
) -> Result<u32, Problem> {
    if let Some(head_dim) = fields.u32("head_dim")? {
        return Ok(head_dim);
    }
    if let (Some(head_dim), false) = (row.defaults.head_dim, fields.has("head_dim")) {
        return Ok(head_dim);
    }
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        return Err(Problem::HeadDim { hidden_size, heads });
    }
    Ok(hidden_size / heads)
}

/// Which layers rotate queries and keys.
fn positions(row: &Architecture, fields: &Fields<'_>, layers: u32) -> Result<Vec<bool>, Problem> {
    if row.positions == Positions::Every {
        return Ok(vec![true; layers as usize]);
    }
    let interval = fields.u32("no_rope_layer_interval")?.unwrap_or(4);
    let Some(list) = fields.array("no_rope_layers")? else {
        if interval == 0 {
            return Err(Problem::Wrong {
                field: "no_rope_layer_interval".to_owned(),
                expected: "a whole number above 0",
                found: "0".to_owned(),
            });
        }
        return Ok((1..=layers).map(|nth| !nth.is_multiple_of(interval)).collect());
    };
    check_length("no_rope_layers", list.len(), layers)?;
    let has_positions = |value: &Value| match as_u32(value) {
        Some(1) => Ok(true),
        Some(0) => Ok(false),
        _ => Err(Problem::Wrong {
            field: "no_rope_layers".to_owned(),
            expected: "a list of 0 and 1",
            found: brief(value),
        }),
    };
    list.iter().map(has_positions).collect()
}

/// How many keys each layer sees.
fn windows(
    row: &Architecture,
    fields: &Fields<'_>,
    positions: &[bool],
) -> Result<Vec<Option<u32>>, Problem> {
    let explicit = layer_types(fields, positions.len())?;
    let enabled = match row.window {
        Window::Never => false,
        Window::Every => true,
        Window::FromMaxWindowLayers | Window::WithoutPositions => {
            fields.bool("use_sliding_window")?.unwrap_or(false)
        }
    };
    let first = match row.window {
        Window::Never => return refuse_sliding(row, explicit, positions.len()),
        Window::FromMaxWindowLayers => fields.u32("max_window_layers")?.unwrap_or(28),
        Window::Every => 0,
        Window::WithoutPositions => {
            fields.value("max_window_layers"); // in published files, without a meaning
            0
        }
    };
    let window = match fields.has("sliding_window") {
        true => fields.u32("sliding_window")?,
        false => row.defaults.sliding_window,
    };
    let Some(window) = window.filter(|_| enabled) else {
        return refuse_sliding(row, explicit, positions.len());
    };
    let slides = |layer: usize, positions: bool| match (&explicit, row.window) {
        (Some(explicit), _) => explicit.get(layer).copied().unwrap_or(false),
        (None, Window::WithoutPositions) => !positions,
        (None, _) => layer >= first as usize,
    };
    let windows = positions.iter().enumerate();
    Ok(windows.map(|(layer, &positions)| slides(layer, positions).then_some(window)).collect())
}

/// `layer_types`: true where a layer slides.
fn layer_types(fields: &Fields<'_>, layers: usize) -> Result<Option<Vec<bool>>, Problem> {
    let Some(list) = fields.array("layer_types")? else {
        return Ok(None);
    };
    check_length("layer_types", list.len(), layers as u32)?;
    let slides = |value: &Value| match value.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(Problem::Wrong {
            field: "layer_types".to_owned(),
            expected: "\"full_attention\" or \"sliding_attention\" for each layer",
            found: brief(value),
        }),
    };
    list.iter().map(slides).collect::<Result<_, _>>().map(Some)
}

/// No windows; a config that nevertheless names sliding layers contradicts itself.
fn refuse_sliding(
    row: &Architecture,
    explicit: Option<Vec<bool>>,
    layers: usize,
) -> Result<Vec<Option<u32>>, Problem> {
    if explicit.is_some_and(|explicit| explicit.contains(&true)) {
        return Err(Problem::SlidingWithoutWindow { model_type: row.model_type });
    }
    Ok(vec![None; layers])
}

fn check_length(field: &'static str, found: usize, layers: u32) -> Result<(), Problem> {
    if found == layers as usize {
        return Ok(());
    }
    Err(Problem::ListLength { field, found, layers })
}

fn bias(rule: Bias, fields: &Fields<'_>) -> Result<bool, Problem> {
    match rule {
        Bias::Never => Ok(false),
        Bias::Always => Ok(true),
        Bias::If(key) => Ok(fields.bool(key)?.unwrap_or(false)),
    }
}

fn eps(row: &Architecture, fields: &Fields<'_>) -> Result<f32, Problem> {
    let eps = fields.f64("rms_norm_eps")?;
    Ok(eps.map_or(row.defaults.rms_norm_eps, |eps| eps as f32))
}

fn activation(fields: &Fields<'_>) -> Result<Activation, Problem> {
    match fields.str("hidden_act")? {
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(found) => Err(Problem::Activation { found: found.to_owned() }),
    }
}

fn token_ids(fields: &Fields<'_>) -> Result<TokenIds, Problem> {
    let eos = match fields.value("eos_token_id") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.len() <= MAX_END_TOKENS => list.iter().collect(),
        Some(one) => vec![one],
    };
    let id = |value: &Value| {
        as_u32(value).ok_or_else(|| Problem::Wrong {
            field: "eos_token_id".to_owned(),
            expected: "a token id or a short list of them",
            found: brief(value),
        })
    };
    let mut ids = TokenIds { bos: fields.u32("bos_token_id")?, eos: Vec::new() };
    for value in eos {
        let id = id(value)?;
        if !ids.eos.contains(&id) {
            ids.eos.push(id);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values of every kind, near and far from what a config has.
    fn value() -> impl Strategy<Value = Value> {
        let number =
            prop_oneof![Just(0.0), Just(-1.0), Just(1e300), Just(0.5), Just(4.0), Just(4.3e9)];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (0u32..9).prop_map(Value::from),
            number.prop_map(Value::from),
            "(default|linear|yarn|llama3|silu|full_attention|x)".prop_map(Value::from),
        ];
        leaf.prop_recursive(2, 16, 4, |inner| {
            let key = "(rope_type|type|factor|rope_theta|quant_method|truncate|x)";
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    const KEYS: &[&str] = &[
        "model_type",
        "architectures",
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "hidden_act",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "no_rope_layers",
        "no_rope_layer_interval",
        "eos_token_id",
        "tie_word_embeddings",
        "clip_qkv",
    ];

    proptest! {
        #[test]
        fn any_config_is_read_or_refused(
            model_type in 0..arch::ARCHITECTURES.len(),
            changes in prop::collection::vec((prop::sample::select(KEYS), value()), 0..4),
        ) {
            let mut config: Map<String, Value> = serde_json::from_str(
                r#"{"hidden_size": 64, "vocab_size": 9, "num_hidden_layers": 3, "rope_theta": 1e4,
                    "num_attention_heads": 4, "intermediate_size": 8}"#,
            )
            .expect("JSON");
            config.insert("model_type".into(), arch::ARCHITECTURES[model_type].model_type.into());
            for (key, value) in changes {
                config.insert(key.to_owned(), value);
            }
            if let Ok(config) = read(&config) {
                let _ = config.spec.check();
            }
        }
    }
}

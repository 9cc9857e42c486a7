//! The metadata of a GGUF file as a `ModelSpec`.
//!
//! Keys start with the architecture's name. What a key's absence means is what the programs that write these
//! files mean by it; a key that nobody here reads is refused, unless it is known to change nothing, because a
//! model that runs with a guessed setting answers nonsense. Start at [`read`].

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::parse::Header;
use super::problem::Problem;
use super::value::{Kind, Value};
use crate::model::arch::{Architecture, Bias, Gguf, Positions, ROPE_FREQS, Window, by_gguf};
use crate::model::rope::yarn_attention_factor;
use crate::model::{Activation, LayerSpec, ModelSpec, NormKind, NormSpec, RopeScaling, RopeSpec};
use crate::quant::gguf::TensorType;

/// More layers than this are refused before any list of them is made.
const MAX_LAYERS: u32 = 4096;
/// Layers between those without positions, in files that do not say.
const NO_ROPE_INTERVAL: u32 = 4;
/// Keys that change nothing here, behind the architecture's name.
const NEUTRAL: &[&str] = &["tensor_data_layout", "attention.causal", "use_parallel_residual"];
/// Tensors that choose frequencies by the length of the text, which no family here does yet.
const LONG_FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// What the metadata says.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) spec: ModelSpec,
    pub(super) row: &'static Architecture,
    pub(super) gguf: &'static Gguf,
}

/// Reads the metadata. Numbers are typed but not yet bounded: that is `ModelSpec::check`. `file` holds the
/// bytes of the tensors that say something about the model.
///
/// **Errors**: [`Problem`], naming the key.
pub(super) fn read(header: &Header<'_>, file: &[u8]) -> Result<Model, Problem> {
    let keys = Keys::new(header)?;
    let (row, gguf) = keys.architecture()?;
    let layers = keys.required_u32("block_count")?;
    if layers == 0 || layers > MAX_LAYERS {
        let key = keys.name("block_count");
        return Err(Problem::Layers { key, found: layers, limit: MAX_LAYERS });
    }
    let hidden_size = keys.required_u32("embedding_length")?;
    let heads = keys.per_layer("attention.head_count", layers)?;
    let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
    let kv_heads = keys.per_layer("attention.head_count_kv", layers)?;
    let kv_heads = kv_heads.unwrap_or_else(|| heads.clone());
    let ffn = keys.per_layer("feed_forward_length", layers)?;
    let ffn = ffn.ok_or_else(|| keys.missing("feed_forward_length"))?;
    let head_dim = head_dim(&keys, hidden_size, heads.first().copied().unwrap_or(0))?;
    let max_position_embeddings = keys.required_u32("context_length")?;
    let rope = rope(&keys, head_dim, max_position_embeddings, file)?;
    let window = window(&keys, row)?;
    let scale = keys.f64("attention.scale")?.filter(|&scale| scale != 0.0);
    let eps = keys.f64("attention.layer_norm_rms_epsilon")?;
    let eps = eps.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?;
    let vocab_size = vocab_size(&keys)?;
    let has = |name: &str| header.tensors.iter().any(|info| info.name == name);

    // No key says whether there are biases; their tensors do.
    let bias = |rule: Bias, name: &str| match rule {
        Bias::Never => false,
        Bias::Always => true,
        Bias::If(_) => has(name),
    };

    let layer = |index: usize, heads: u32, kv_heads: u32, ffn: u32| LayerSpec {
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        intermediate_size: ffn,
        sliding_window: window,
        rope: has_positions(row, index).then_some(0),
        attention_scale: scale.unwrap_or(f64::from(head_dim).powf(-0.5)) as f32,
        qk_norm: row.qk_norm,
        qkv_bias: bias(row.qkv_bias, &format!("blk.{index}.attn_q.bias")),
        attn_out_bias: bias(row.attn_out_bias, &format!("blk.{index}.attn_output.bias")),
        mlp_bias: bias(row.mlp_bias, &format!("blk.{index}.ffn_down.bias")),
    };
    let counts = heads.into_iter().zip(kv_heads).zip(ffn).enumerate();
    let spec = ModelSpec {
        model_type: row.model_type.to_owned(),
        hidden_size,
        vocab_size,
        max_position_embeddings,
        norm: NormSpec { kind: NormKind::RmsNorm, eps: eps as f32 },
        hidden_act: Activation::Silu,
        tie_word_embeddings: !has("output.weight"),
        ropes: vec![rope],
        layers: counts.map(|(index, ((heads, kv), ffn))| layer(index, heads, kv, ffn)).collect(),
        bos_token_id: keys.token("bos_token_id", vocab_size)?,
        eos_token_ids: end_tokens(&keys, vocab_size)?,
    };
    keys.check_unread()?;
    Ok(Model { spec, row, gguf })
}

/// Width of a head; keys and values must have the same.
fn head_dim(keys: &Keys<'_>, hidden: u32, heads: u32) -> Result<u32, Problem> {
    let (key, value) = (keys.u32("attention.key_length")?, keys.u32("attention.value_length")?);
    if let (Some(key), Some(value)) = (key, value)
        && key != value
    {
        return Err(Problem::Contradiction {
            first: keys.name("attention.key_length"),
            first_value: key.to_string(),
            second: keys.name("attention.value_length"),
            second_value: value.to_string(),
        });
    }
    match key.or(value) {
        Some(head_dim) => Ok(head_dim),
        None if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => {
            let key = keys.name("attention.key_length");
            Err(Problem::HeadDim { key, hidden, heads })
        }
    }
}

fn vocab_size(keys: &Keys<'_>) -> Result<u32, Problem> {
    let stated = keys.u32("vocab_size")?;
    // The embedding is what is computed with; tokenizers may have fewer tokens than it has rows.
    let embedding = keys.header.tensors.iter().find(|info| info.name == "token_embd.weight");
    let rows = embedding.and_then(|info| info.shape.first().copied());
    let rows = rows.and_then(|rows| u32::try_from(rows).ok());
    match (stated, rows) {
        (Some(stated), Some(rows)) if stated != rows => Err(Problem::Contradiction {
            first: keys.name("vocab_size"),
            first_value: stated.to_string(),
            second: "the number of rows of token_embd.weight".to_owned(),
            second_value: rows.to_string(),
        }),
        (stated, rows) => stated.or(rows).ok_or_else(|| keys.missing("vocab_size")),
    }
}

fn has_positions(row: &Architecture, layer: usize) -> bool {
    match row.positions {
        Positions::Every => true,
        Positions::NoRopeLayers => !(layer as u32 + 1).is_multiple_of(NO_ROPE_INTERVAL),
    }
}

/// Keys visible to a query, in every layer. Families with windows in some layers only do not write this key.
fn window(keys: &Keys<'_>, row: &Architecture) -> Result<Option<u32>, Problem> {
    let window = keys.u32("attention.sliding_window")?.filter(|&window| window > 0);
    match (window, row.window) {
        (Some(window), Window::FromMaxWindowLayers | Window::WithoutPositions) => {
            let key = keys.name("attention.sliding_window");
            Err(Problem::Changes { key, value: window.to_string() })
        }
        (Some(window), Window::Never | Window::Every) => Ok(Some(window)),
        (None, _) => Ok(None),
    }
}

fn rope(
    keys: &Keys<'_>,
    head_dim: u32,
    max_position_embeddings: u32,
    file: &[u8],
) -> Result<RopeSpec, Problem> {
    let rotary_dim = keys.u32("rope.dimension_count")?.unwrap_or(head_dim);
    let rope_theta = keys.f64("rope.freq_base")?.unwrap_or(10_000.0);
    let factor = keys.f64("rope.scaling.factor")?.filter(|&factor| factor != 0.0);
    let older = keys.f64("rope.scale_linear")?.filter(|&factor| factor != 0.0);
    let original = keys.u32("rope.scaling.original_context_length")?.filter(|&len| len > 0);
    let attention_factor = keys.f64("rope.scaling.attn_factor")?;
    keys.value("rope.scaling.finetuned");
    let factors = factors(keys, rotary_dim, file)?;
    let kind = keys.text("rope.scaling.type")?;
    let beta = |key: &str| keys.f64(key);
    let (fast, slow) = (beta("rope.scaling.yarn_beta_fast")?, beta("rope.scaling.yarn_beta_slow")?);
    let unused = |key: &'static str, value: Option<f64>| match value {
        Some(value) if value != 1.0 => {
            Err(Problem::Changes { key: keys.name(key), value: value.to_string() })
        }
        _ => Ok(()),
    };
    let scaling = match (kind, factors) {
        (None | Some("none" | "linear"), Some(factors)) => {
            unused("rope.scaling.factor", factor.or(older))?;
            RopeScaling::Factors { factors }
        }
        (Some("linear"), None) | (None, None) => match factor.or(older) {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::Default,
        },
        (Some("none"), None) => RopeScaling::Default,
        (Some("yarn"), None) => {
            let factor = factor.ok_or_else(|| keys.missing("rope.scaling.factor"))?;
            // The key holds what the usual factor is multiplied by.
            let usual = yarn_attention_factor(factor, None, None);
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original.unwrap_or(max_position_embeddings),
                beta_fast: fast.unwrap_or(32.0),
                beta_slow: slow.unwrap_or(1.0),
                truncate: true,
                attention_factor: attention_factor.unwrap_or(1.0) * usual,
            }
        }
        (Some(other), _) => {
            let key = keys.name("rope.scaling.type");
            return Err(Problem::Changes { key, value: format!("'{other}'") });
        }
    };
    if kind != Some("yarn") {
        unused("rope.scaling.attn_factor", attention_factor)?;
    }
    Ok(RopeSpec { rotary_dim, rope_theta, scaling })
}

/// The factors that a file keeps in a tensor: numbers about the model, not weights.
fn factors(keys: &Keys<'_>, rotary_dim: u32, file: &[u8]) -> Result<Option<Vec<f32>>, Problem> {
    let tensors = &keys.header.tensors;
    if let Some(info) = tensors.iter().find(|info| LONG_FACTORS.contains(&info.name)) {
        let key = info.name.to_owned();
        return Err(Problem::Changes { key, value: "there".to_owned() });
    }
    let Some(info) = tensors.iter().find(|info| info.name == ROPE_FREQS) else {
        return Ok(None);
    };
    let expected = rotary_dim / 2;
    if info.tensor_type != TensorType::F32 || info.shape != [u64::from(expected)] {
        return Err(Problem::Factors {
            tensor: ROPE_FREQS,
            found: info.shape.clone(),
            tensor_type: info.tensor_type.name(),
            expected,
        });
    }
    let bytes = file.get(info.range.clone()).unwrap_or_default();
    let factors: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(factors.iter().any(|&factor| factor != 1.0).then_some(factors))
}

fn end_tokens(keys: &Keys<'_>, vocab_size: u32) -> Result<Vec<u32>, Problem> {
    let mut ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(id) = keys.token(key, vocab_size)?
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// The keys of one architecture, and the memory of which were read.
struct Keys<'a> {
    header: &'a Header<'a>,
    architecture: &'a str,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    fn new(header: &'a Header<'a>) -> Result<Self, Problem> {
        let architecture = text(header, "general.architecture")?
            .ok_or_else(|| Problem::Missing { key: "general.architecture".to_owned() })?;
        if let Some(found) = text(header, "general.type")?.filter(|&found| found != "model") {
            return Err(Problem::NotModel { found: found.to_owned() });
        }
        Ok(Keys { header, architecture, read: RefCell::default() })
    }

    fn architecture(&self) -> Result<(&'static Architecture, &'static Gguf), Problem> {
        let found = self.architecture;
        by_gguf(found).ok_or_else(|| Problem::Architecture { found: found.to_owned() })
    }

    /// The full name of a key.
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn missing(&self, key: &str) -> Problem {
        Problem::Missing { key: self.name(key) }
    }

    fn value(&self, key: &str) -> Option<Value<'a>> {
        let name = self.name(key);
        let value = self.header.value(&name);
        self.read.borrow_mut().insert(name);
        value
    }

    fn wrong(&self, key: &str, expected: &'static str, found: &Value<'_>) -> Problem {
        Problem::WrongType { key: self.name(key), expected, found: found.type_name() }
    }

    fn u32(&self, key: &str) -> Result<Option<u32>, Problem> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong(key, "a whole number up to 4294967295", &value))
    }

    fn required_u32(&self, key: &str) -> Result<u32, Problem> {
        self.u32(key)?.ok_or_else(|| self.missing(key))
    }

    fn f64(&self, key: &str) -> Result<Option<f64>, Problem> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(key, "a finite number", &value))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(value) => Err(self.wrong(key, "a text", &value)),
        }
    }

    /// One number for all layers, or a list with one for each.
    fn per_layer(&self, key: &str, layers: u32) -> Result<Option<Vec<u32>>, Problem> {
        let Some(Value::Array(array)) = self.value(key) else {
            return Ok(self.u32(key)?.map(|number| vec![number; layers as usize]));
        };
        if array.len != layers as usize {
            let key = self.name(key);
            return Err(Problem::ListLength { key, found: array.len, layers });
        }
        let number = |value: Value<'_>| {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| self.wrong(key, "a list of whole numbers", &value))
        };
        array.values().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// A token id of the tokenizer's metadata.
    fn token(&self, key: &str, vocab_size: u32) -> Result<Option<u32>, Problem> {
        let key = format!("tokenizer.ggml.{key}");
        let Some(value) = self.header.value(&key) else { return Ok(None) };
        let Some(id) = value.as_u64() else {
            let found = value.type_name();
            return Err(Problem::WrongType { key, expected: "a token id", found });
        };
        match u32::try_from(id) {
            Ok(id) if id < vocab_size => Ok(Some(id)),
            // What some writers put for "none".
            Ok(u32::MAX) => Ok(None),
            _ => Err(Problem::TokenId { key, id, tokens: vocab_size as usize }),
        }
    }

    /// Refuses keys of the architecture that nobody read and that may change the arithmetic.
    fn check_unread(&self) -> Result<(), Problem> {
        let prefix = format!("{}.", self.architecture);
        let read = self.read.borrow();
        for (key, value) in &self.header.metadata {
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            let off = match value {
                Value::Bool(value) => !value,
                Value::Array(array) => array.len == 0 || array.kind == Kind::Text,
                Value::Text(_) => false,
                number => number.as_f64() == Some(0.0),
            };
            if !off && !read.contains(*key) && !NEUTRAL.contains(&rest) {
                return Err(Problem::Changes { key: (*key).to_owned(), value: value.brief() });
            }
        }
        Ok(())
    }
}

fn text<'a>(header: &Header<'a>, key: &str) -> Result<Option<&'a str>, Problem> {
    match header.value(key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(value) => {
            let (key, found) = (key.to_owned(), value.type_name());
            Err(Problem::WrongType { key, expected: "a text", found })
        }
    }
}

//! Text to token ids and back, as the model's tokenizer.json says.
//!
//! The maths is the `tokenizers` crate's. This module adds what an engine needs around it: which ids end a
//! reply, who adds the begin-of-text token (exactly one owner, never two), the exact bytes of a token, and
//! encoding in which chosen parts of a text cannot become control tokens ([`Tokenizer::encode_guarded`]).
//! Start reading at [`Tokenizer::from_assets`]. Templates are in `chat`, streaming output in `detokenize`.

mod assets;
mod matching;
mod pieces;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

pub use assets::{GenerationDefaults, TextAssets};
pub(crate) use assets::{Object, without_bom};
use matching::AddedTokens;
pub(crate) use pieces::{ByteStream, Spelling};

/// Why a tokenizer could not be read or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model has no tokenizer.json.
    #[error("the model has no tokenizer.json")]
    Missing,
    /// A text file is not JSON.
    #[error("{file} is not valid JSON: {source}")]
    Json {
        /// Its name.
        file: &'static str,
        /// What the JSON reader found, with line and column.
        source: serde_json::Error,
    },
    /// A value has the wrong type.
    #[error("{file}: '{key}' must be {expected}, found {found}")]
    WrongType {
        /// The file.
        file: &'static str,
        /// The key in it.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// tokenizer.json is JSON, but not a tokenizer the `tokenizers` crate can build.
    #[error("tokenizer.json does not describe a tokenizer: {reason}")]
    Unreadable {
        /// The crate's own words.
        reason: String,
    },
    /// Encoding failed, for example because the model has no token for unknown text.
    #[error("a text of {bytes} bytes could not be tokenised: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The crate's own words.
        reason: String,
    },
}

impl Error {
    /// One sentence on what to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing => Some(
                "give token ids with --tokens, or a folder with tokenizer.json with --tokenizer"
                    .into(),
            ),
            Self::Json { file, .. } => {
                Some(format!("the file may be cut short; fetch {file} again"))
            }
            Self::WrongType { .. } | Self::Encode { .. } => None,
            Self::Unreadable { .. } => {
                Some("fetch tokenizer.json again, or re-save it with a current transformers".into())
            }
        }
    }
}

/// Where a raw completion prompt disagreed with the rule "one begin-of-text token".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraBos {
    /// The begin-of-text token as text.
    pub token: String,
}

impl std::fmt::Display for ExtraBos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the prompt brings {} although one is there already; one was kept", self.token)
    }
}

/// The ids of a raw completion prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, with at most one begin-of-text token in front.
    pub ids: Vec<u32>,
    /// Set when the prompt brought more than the one begin-of-text token that may stand there.
    pub warning: Option<ExtraBos>,
}

/// A model's tokenizer with its special tokens by purpose.
#[derive(Debug)]
pub struct Tokenizer {
    hf: tokenizers::Tokenizer,
    added: AddedTokens,
    spelling: Spelling,
    vocab_size: usize,
    bos: Option<u32>,
    adds_bos: bool,
    /// What tokenizer.json alone does; `adds_bos` may overrule it.
    hf_adds_bos: bool,
    end_ids: Vec<u32>,
    /// `bos_token`, `eos_token`, ... by the names templates use.
    named: Vec<(&'static str, String)>,
}

/// The parts of tokenizer.json that are read here; parsing them first also proves the file to be JSON.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    added_tokens: Value,
    model: Option<IgnoredAny>,
}

/// Names under which tokenizer_config.json lists special tokens and templates use them.
const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Tokens that end a turn in the chat formats in use; each counts only when the model's template names it.
const TURN_ENDS: [&str; 12] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endofturn|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endoftext|>",
];

impl Tokenizer {
    /// Builds the tokenizer from a model's files; only tokenizer.json is required.
    ///
    /// **Errors** when a file is missing, not JSON, has a value of the wrong type, or names an impossible tokenizer.
    pub fn from_assets(assets: &TextAssets) -> Result<Self, Error> {
        let bytes = without_bom(assets.tokenizer_json.as_deref().ok_or(Error::Missing)?);
        let parts: Parts = serde_json::from_slice(bytes)
            .map_err(|source| Error::Json { file: "tokenizer.json", source })?;
        let hf = build(bytes, &parts)?;
        let config = Object::parse("tokenizer_config.json", assets.tokenizer_config.as_deref())?;
        let old_map =
            Object::parse("special_tokens_map.json", assets.special_tokens_map.as_deref())?;
        let model = Object::parse("config.json", assets.config.as_deref())?;
        let generation =
            Object::parse("generation_config.json", assets.generation_config.as_deref())?;

        let mut named = Vec::new();
        for name in NAMED_TOKENS {
            let mut token = config.token(name)?;
            if token.is_none() {
                token = old_map.token(name)?;
            }
            named.extend(token.map(|token| (name, token)));
        }
        let named_id = |name: &str| {
            named.iter().find(|(n, _)| *n == name).and_then(|(_, token)| hf.token_to_id(token))
        };
        let mut bos = named_id("bos_token");
        if bos.is_none() {
            bos = model
                .ids("bos_token_id")?
                .first()
                .copied()
                .filter(|&id| hf.id_to_token(id).is_some());
        }
        let mut end_ids = BTreeSet::new();
        end_ids.extend(named_id("eos_token"));
        for file in [&model, &model.object("text_config")?, &generation] {
            end_ids.extend(file.ids("eos_token_id")?);
        }
        end_ids.extend(turn_ends(assets, &config).filter_map(|token| hf.token_to_id(token)));
        end_ids.retain(|&id| hf.id_to_token(id).is_some());

        let vocab_size = hf.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        if named.iter().all(|(name, _)| *name != "bos_token") {
            named.extend(bos.and_then(|id| hf.id_to_token(id)).map(|token| ("bos_token", token)));
        }
        let mut tokenizer = Self {
            added: AddedTokens::new(&hf),
            spelling: Spelling::from_decoder(&parts.decoder),
            hf,
            vocab_size,
            bos,
            adds_bos: false,
            hf_adds_bos: false,
            end_ids: end_ids.into_iter().collect(),
            named,
        };
        tokenizer.hf_adds_bos =
            bos.is_some() && tokenizer.hf_encode("", true)?.first().copied() == bos;
        tokenizer.adds_bos = match config.boolean("add_bos_token")? {
            Some(adds) => adds && bos.is_some(),
            None => tokenizer.hf_adds_bos,
        };
        Ok(tokenizer)
    }

    /// Token ids as Hugging Face's `encode(text, add_special_tokens)`: special tokens in the text are parsed.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        let mut ids = self.hf_encode(text, add_special)?;
        let Some(bos) = self.bos.filter(|_| add_special) else {
            return Ok(ids);
        };
        if self.adds_bos && !self.hf_adds_bos {
            ids.insert(0, bos);
        } else if !self.adds_bos && self.hf_adds_bos {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The ids of a raw completion prompt: special tokens are parsed, and there is one begin-of-text token
    /// where the tokenizer adds one, and never a second one.
    pub fn encode_prompt(&self, text: &str) -> Result<Prompt, Error> {
        let mut ids = self.encode(text, true)?;
        let Some(bos) = self.bos else {
            return Ok(Prompt { ids, warning: None });
        };
        let present = ids.iter().take_while(|&&id| id == bos).count();
        self.settle_bos(&mut ids);
        let warning =
            self.hf.id_to_token(bos).filter(|_| present > 1).map(|token| ExtraBos { token });
        Ok(Prompt { ids, warning })
    }

    /// Token ids of `text` in which no added token is parsed: `<|im_end|>` becomes the ids of its characters.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.encode_guarded(text, std::slice::from_ref(&(0..text.len())))
    }

    /// Like `encode(text, false)`, but no added token that touches a guarded byte range is parsed.
    ///
    /// The rest of the text, and the guarded parts as ordinary text, are tokenised together, so that words across
    /// the borders come out as they would in one string. `guarded` is sorted and does not overlap.
    pub fn encode_guarded(&self, text: &str, guarded: &[Range<usize>]) -> Result<Vec<u32>, Error> {
        if guarded.is_empty() {
            return self.hf_encode(text, false);
        }
        shielded(text.len(), || matching::encode_guarded(&self.hf, &self.added, text, guarded))
    }

    /// Text of `ids`; with `skip_special`, special tokens leave no trace. Unknown ids are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        if self.spelling == Spelling::Opaque {
            let whole = shielded(ids.len(), || self.hf.decode(ids, skip_special));
            return whole.unwrap_or_else(|error| {
                tracing::warn!(%error, "the tokenizer's decoder failed; tokens are shown as stored");
                ids.iter().filter_map(|&id| self.hf.id_to_token(id)).collect()
            });
        }
        let mut stream = ByteStream::default();
        let mut bytes = Vec::new();
        for &id in ids {
            if let Some(token) = self.shown_token(id, skip_special) {
                bytes.extend(stream.next(&self.spelling, &token));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The exact bytes of one token inside a text (`<0xE5>` is one byte, `▁the` is ` the`); unknown ids have none.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.hf.id_to_token(id).map(|token| self.spelling.bytes_of(&token)).unwrap_or_default()
    }

    /// The token as stored, before decoding; `None` for an unknown id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.hf.id_to_token(id)
    }

    /// The id of a token spelled as stored.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.hf.token_to_id(token)
    }

    /// True for tokens marked special: control tokens that decoding may skip.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.hf.get_added_vocabulary();
        added.simple_id_to_token(id).is_some_and(|token| added.is_special_token(&token))
    }

    /// One more than the highest id. A model's logits may have more columns, as padding.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The begin-of-text id, if the model has one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// True when a prompt must begin with the begin-of-text token: `add_bos_token` in tokenizer_config.json if it
    /// is there, else what tokenizer.json adds.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Ids that end a reply, ascending: the union of config.json, generation_config.json, the tokenizer's
    /// `eos_token`, and the end-of-turn token that the chat template names.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// `bos_token`, `eos_token` and so on, under the names that templates use.
    pub(crate) fn named_tokens(&self) -> &[(&'static str, String)] {
        &self.named
    }

    pub(crate) fn spelling(&self) -> &Spelling {
        &self.spelling
    }

    /// Added tokens as (text, special).
    pub(crate) fn added_tokens(&self) -> Vec<(String, bool)> {
        let tokens = self.hf.get_added_tokens_decoder();
        let mut list: Vec<(String, bool)> =
            tokens.into_values().map(|token| (token.content, token.special)).collect();
        list.sort_unstable();
        list
    }

    /// Byte offsets in `text` where one of `markers` begins, also where it appears only after normalisation.
    pub(crate) fn marker_starts(&self, text: &str, markers: &[String]) -> Vec<usize> {
        matching::marker_starts(&self.hf, text, markers)
    }

    /// The token as stored, unless it is unknown or a special one to be skipped.
    pub(crate) fn shown_token(&self, id: u32, skip_special: bool) -> Option<String> {
        if skip_special && self.is_special(id) { None } else { self.hf.id_to_token(id) }
    }

    /// Makes `ids` begin with exactly one begin-of-text token where the tokenizer adds it, at most one elsewhere.
    pub(crate) fn settle_bos(&self, ids: &mut Vec<u32>) {
        let Some(bos) = self.bos else { return };
        let present = ids.iter().take_while(|&&id| id == bos).count();
        if present == 0 && self.adds_bos {
            ids.insert(0, bos);
        } else if present > 1 {
            ids.drain(1..present);
        }
    }

    fn hf_encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        shielded(text.len(), || Ok(self.hf.encode_fast(text, add_special)?.get_ids().to_vec()))
    }
}

/// Builds the tokenizer without truncation and padding: nothing may be cut silently.
fn build(bytes: &[u8], parts: &Parts) -> Result<tokenizers::Tokenizer, Error> {
    if parts.model.is_none() {
        return Err(Error::Unreadable { reason: "it has no 'model'".into() });
    }
    let _checked_as_json =
        (&parts.normalizer, &parts.pre_tokenizer, &parts.post_processor, &parts.added_tokens);
    let built = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(bytes)));
    let mut hf = match built {
        Ok(Ok(hf)) => hf,
        Ok(Err(error)) => {
            return Err(Error::Unreadable { reason: error.to_string() });
        }
        Err(_) => {
            return Err(Error::Unreadable {
                reason: "it makes the tokenizers library panic".into(),
            });
        }
    };
    hf.with_padding(None);
    hf.with_truncation(None).map_err(|error| Error::Unreadable { reason: error.to_string() })?;
    Ok(hf)
}

/// Runs a piece of the `tokenizers` crate on a text of `bytes` bytes.
///
/// **Why** the panic is caught: a fixed-length pre-tokenizer of length 0 in tokenizer.json makes the crate panic when
/// it splits a text, and a file must not be able to end the program.
fn shielded<T>(bytes: usize, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::Encode { bytes, reason: error.to_string() }),
        Err(_) => Err(Error::Encode { bytes, reason: "the tokenizers library panicked".into() }),
    }
}

/// End-of-turn tokens that the chat template names.
///
/// `<|end|>` ends a turn for Phi, but only one channel of a turn where `<|channel|>` exists (gpt-oss).
fn turn_ends(assets: &TextAssets, config: &Object) -> impl Iterator<Item = &'static str> {
    let mut source = String::new();
    if let Some(bytes) = &assets.chat_template {
        source.push_str(&String::from_utf8_lossy(bytes));
    }
    if let Some(template) = config.value("chat_template") {
        match template {
            Value::String(text) => source.push_str(text),
            other => source.push_str(&other.to_string()),
        }
    }
    let channels = source.contains("<|channel|>");
    TURN_ENDS
        .into_iter()
        .filter(move |&end| source.contains(end) && !(channels && end == "<|end|>"))
}

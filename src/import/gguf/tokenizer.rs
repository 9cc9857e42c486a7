//! A tokenizer.json and a tokenizer_config.json from the metadata of a GGUF file.
//!
//! Two kinds are rebuilt: byte-level BPE (`gpt2`), whose merges the file lists and whose way of cutting text
//! it names by a word ([`PRE_TOKENIZERS`]); and SentencePiece (`llama`), whose merges follow from its scores.
//! Whatever the file names and this table does not have is refused: another way of cutting text gives other
//! ids, and a model that reads them answers worse without anyone noticing.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::parse::Header;
use super::problem::Problem;
use super::value::{Array, Kind, Value};

/// The files of a tokenizer.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) tokenizer: Vec<u8>,
    pub(super) config: Vec<u8>,
}

/// How text is cut before it is tokenised.
struct PreTokenizer {
    /// What `tokenizer.ggml.pre` says.
    names: &'static [&'static str],
    cut: Cut,
    /// Whether text is composed (NFC) first.
    composes: bool,
    /// Whether a piece that is a token is taken whole, without merging.
    ignore_merges: bool,
    /// Whether a text starts with the begin-of-text token, where the file does not say.
    adds_bos: bool,
}

enum Cut {
    /// GPT-2's expression, which the byte-level step brings along.
    Gpt2,
    /// Single digits, then GPT-2's expression.
    DigitsGpt2,
    /// An expression of its own.
    Regex(&'static str),
}

/// Letters with one other character before them, numbers of up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words end where small letters turn into capitals.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer { names: &["gpt-2"], cut: Cut::Gpt2, ..PLAIN },
    PreTokenizer { names: &["smollm"], cut: Cut::DigitsGpt2, ..PLAIN },
    PreTokenizer { names: &["qwen2"], cut: Cut::Regex(QWEN2), composes: true, ..PLAIN },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cut: Cut::Regex(LLAMA3),
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        cut: Cut::Regex(TEKKEN),
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
];

const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    cut: Cut::Gpt2,
    composes: false,
    ignore_merges: false,
    adds_bos: false,
};

/// Kinds of token, as `tokenizer.ggml.token_type` numbers them.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// The tokenizer, or none where the file has none.
///
/// **Errors**: [`Problem`], naming the key.
pub(super) fn rebuild(header: &Header<'_>) -> Result<Option<Files>, Problem> {
    let Some(model) = text(header, "tokenizer.ggml.model")? else {
        return Ok(None);
    };
    let (tokenizer, adds_bos, vocab) = match model {
        "none" | "no_vocab" => return Ok(None),
        "gpt2" => byte_level(header)?,
        "llama" => sentence_piece(header)?,
        _ => return Err(Problem::TokenizerModel { found: model.to_owned() }),
    };
    let config = config(header, &vocab, adds_bos)?;
    // Neither holds anything but texts and numbers.
    let bytes = |json: Json| json.to_string().into_bytes();
    Ok(Some(Files { tokenizer: bytes(tokenizer), config: bytes(config) }))
}

/// Byte-level BPE.
fn byte_level<'a>(header: &Header<'a>) -> Result<(Json, bool, Vocab<'a>), Problem> {
    let pre = text(header, "tokenizer.ggml.pre")?.ok_or(Problem::NoPreTokenizer)?;
    let pre = PRE_TOKENIZERS.iter().find(|row| row.names.contains(&pre)).ok_or_else(|| {
        let known: Vec<&str> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect();
        Problem::PreTokenizer { found: pre.to_owned(), known: known.join(", ") }
    })?;
    let vocab = Vocab::read(header)?;
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let pre_tokenizer = match &pre.cut {
        Cut::Gpt2 => byte_level(true),
        Cut::DigitsGpt2 => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            byte_level(true),
        ]}),
        Cut::Regex(regex) => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            byte_level(false),
        ]}),
    };
    let merges = listed_merges(header, &vocab)?;
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocab.added(),
        "normalizer": if pre.composes { json!({"type": "NFC"}) } else { Json::Null },
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab.map(),
            "merges": merges,
        },
    });
    Ok((tokenizer, pre.adds_bos, vocab))
}

/// SentencePiece, as byte-fallback BPE over `▁`.
fn sentence_piece<'a>(header: &Header<'a>) -> Result<(Json, bool, Vocab<'a>), Problem> {
    let vocab = Vocab::read(header)?;
    let scores = scores(header, &vocab)?;
    let unknown = match id(header, "tokenizer.ggml.unknown_token_id", &vocab)? {
        Some(id) => vocab.tokens.get(id as usize).copied(),
        None => vocab.of_type(UNKNOWN).next().map(|(_, token)| token),
    };
    let prefix = boolean(header, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocab.added(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab.map(),
            "merges": scored_merges(&vocab, &scores),
        },
    });
    Ok((tokenizer, true, vocab))
}

/// The special tokens by name, the chat template, and whether a text starts with the begin-of-text token.
fn config(header: &Header<'_>, vocab: &Vocab<'_>, adds_bos: bool) -> Result<Json, Problem> {
    let mut config = Map::new();
    let adds = boolean(header, "tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos);
    config.insert("add_bos_token".into(), json!(adds));
    for (name, key) in [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ] {
        let id = id(header, key, vocab)?;
        if let Some(token) = id.and_then(|id| vocab.tokens.get(id as usize)) {
            config.insert(name.into(), json!(token));
        }
    }
    config.insert("clean_up_tokenization_spaces".into(), json!(false));
    if let Some(template) = text(header, "tokenizer.chat_template")? {
        config.insert("chat_template".into(), json!(template));
    }
    Ok(Json::Object(config))
}

/// The tokens in the order of their ids.
struct Vocab<'a> {
    tokens: Vec<&'a str>,
    /// Kind of each; empty where the file does not say.
    types: Vec<u64>,
    ids: HashMap<&'a str, usize>,
}

impl<'a> Vocab<'a> {
    fn read(header: &Header<'a>) -> Result<Self, Problem> {
        let key = "tokenizer.ggml.tokens";
        let array = array(header, key, Kind::Text)?;
        let array = array.ok_or_else(|| Problem::Missing { key: key.to_owned() })?;
        let tokens: Vec<&str> = texts(array).collect();
        let types = match header.value("tokenizer.ggml.token_type") {
            None => Vec::new(),
            Some(Value::Array(array)) => {
                array.values().map(|value| value.as_u64().unwrap_or(0)).collect()
            }
            Some(value) => {
                let key = "tokenizer.ggml.token_type".to_owned();
                return Err(Problem::WrongType {
                    key,
                    expected: "a list",
                    found: value.type_name(),
                });
            }
        };
        if !types.is_empty() && types.len() != tokens.len() {
            return Err(Problem::TokenList {
                key: "tokenizer.ggml.token_type",
                found: types.len(),
                tokens: tokens.len(),
            });
        }
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(*token, id) {
                let token = (*token).to_owned();
                return Err(Problem::TwoTokens { first, second: id, token });
            }
        }
        Ok(Vocab { tokens, types, ids })
    }

    fn of_type(&self, wanted: u64) -> impl Iterator<Item = (usize, &'a str)> {
        let typed = self.types.iter().zip(&self.tokens).enumerate();
        typed.filter(move |(_, (found, _))| **found == wanted).map(|(id, (_, token))| (id, *token))
    }

    /// Token to id; places that no token has are left out.
    fn map(&self) -> Json {
        let unused = |id: usize| self.types.get(id) == Some(&UNUSED);
        let used = self.tokens.iter().enumerate().filter(|(id, _)| !unused(*id));
        Json::Object(used.map(|(id, token)| ((*token).to_owned(), json!(id))).collect())
    }

    /// Tokens that are found in a text before it is cut.
    fn added(&self) -> Vec<Json> {
        let mut added: Vec<(usize, &str, bool)> = Vec::new();
        for (kind, special) in [(CONTROL, true), (UNKNOWN, true), (USER_DEFINED, false)] {
            added.extend(self.of_type(kind).map(|(id, token)| (id, token, special)));
        }
        added.retain(|(_, token, _)| !token.is_empty());
        added.sort_unstable();
        let entry = |(id, content, special): &(usize, &str, bool)| {
            json!({
                "id": id,
                "content": content,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            })
        };
        added.iter().map(entry).collect()
    }
}

/// The merges a file lists, each checked to join two tokens to a third.
fn listed_merges(header: &Header<'_>, vocab: &Vocab<'_>) -> Result<Vec<Json>, Problem> {
    let key = "tokenizer.ggml.merges";
    let listed = array(header, key, Kind::Text)?;
    let listed = listed.ok_or_else(|| Problem::Missing { key: key.to_owned() })?;
    let mut merges = Vec::with_capacity(listed.len);
    for (index, merge) in texts(listed).enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            let joined = format!("{left}{right}");
            [*left, *right, &joined].iter().all(|part| vocab.ids.contains_key(*part))
        });
        let Some((left, right)) = pair else {
            return Err(Problem::Merge { index, found: Value::Text(merge).brief() });
        };
        merges.push(json!([left, right]));
    }
    Ok(merges)
}

/// The merges that follow from scores: every way to make a token of two, best token first.
fn scored_merges(vocab: &Vocab<'_>, scores: &[f32]) -> Vec<Json> {
    let mut merges: Vec<(f32, usize, usize)> = Vec::new();
    for (token, &score) in vocab.tokens.iter().zip(scores) {
        let splits = token.char_indices().skip(1).filter_map(|(at, _)| {
            let (left, right) = token.split_at_checked(at)?;
            Some((*vocab.ids.get(left)?, *vocab.ids.get(right)?))
        });
        let mut pairs: Vec<(usize, usize)> = splits.collect();
        pairs.sort_unstable();
        merges.extend(pairs.into_iter().map(|(left, right)| (score, left, right)));
    }
    let token = |id: usize| vocab.tokens.get(id).copied().unwrap_or_default();
    let len = |id: usize| token(id).chars().count();
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then_with(|| len(b.1).cmp(&len(a.1)))
            .then_with(|| len(b.2).cmp(&len(a.2)))
    });
    merges.into_iter().map(|(_, left, right)| json!([token(left), token(right)])).collect()
}

fn scores(header: &Header<'_>, vocab: &Vocab<'_>) -> Result<Vec<f32>, Problem> {
    let key = "tokenizer.ggml.scores";
    let scores = array(header, key, Kind::F32)?;
    let scores = scores.ok_or_else(|| Problem::Missing { key: key.to_owned() })?;
    if scores.len != vocab.tokens.len() {
        return Err(Problem::TokenList { key, found: scores.len, tokens: vocab.tokens.len() });
    }
    Ok(scores.values().map(|value| value.as_f64().unwrap_or(0.0) as f32).collect())
}

fn texts<'a>(array: Array<'a>) -> impl Iterator<Item = &'a str> {
    array.values().filter_map(|value| match value {
        Value::Text(text) => Some(text),
        _ => None,
    })
}

fn wrong(key: &str, expected: &'static str, value: &Value<'_>) -> Problem {
    Problem::WrongType { key: key.to_owned(), expected, found: value.type_name() }
}

fn text<'a>(header: &Header<'a>, key: &str) -> Result<Option<&'a str>, Problem> {
    match header.value(key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(value) => Err(wrong(key, "a text", &value)),
    }
}

fn boolean(header: &Header<'_>, key: &str) -> Result<Option<bool>, Problem> {
    match header.value(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(value)),
        Some(value) => Err(wrong(key, "a BOOL", &value)),
    }
}

fn array<'a>(header: &Header<'a>, key: &str, kind: Kind) -> Result<Option<Array<'a>>, Problem> {
    match header.value(key) {
        None => Ok(None),
        Some(Value::Array(array)) if array.kind == kind || array.len == 0 => Ok(Some(array)),
        Some(Value::Array(array)) => Err(Problem::WrongType {
            key: key.to_owned(),
            expected: if kind == Kind::Text { "a list of texts" } else { "a list of FLOAT32" },
            found: array.kind.name(),
        }),
        Some(value) => Err(wrong(key, "a list", &value)),
    }
}

/// A token id; what some writers put for "none" is none.
fn id(header: &Header<'_>, key: &str, vocab: &Vocab<'_>) -> Result<Option<u32>, Problem> {
    let Some(value) = header.value(key) else { return Ok(None) };
    let Some(id) = value.as_u64() else {
        return Err(wrong(key, "a token id", &value));
    };
    if id == u64::from(u32::MAX) {
        return Ok(None);
    }
    match u32::try_from(id) {
        Ok(id) if (id as usize) < vocab.tokens.len() => Ok(Some(id)),
        _ => Err(Problem::TokenId { key: key.to_owned(), id, tokens: vocab.tokens.len() }),
    }
}

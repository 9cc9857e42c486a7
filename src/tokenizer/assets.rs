//! The text files that come with a model, and reading the JSON ones.
//!
//! Files arrive as bytes, since an archive stores them. A byte order mark is accepted, because Windows
//! editors add one; anything else that is not JSON is an error, never "defaults used".

use serde_json::{Map, Value};

use super::Error;

/// The text files a model ships, as bytes; a file the model does not have is `None`.
#[derive(Debug, Default, Clone)]
pub struct TextAssets {
    /// `tokenizer.json`: vocabulary, merges, pre-tokenizer, decoder.
    pub tokenizer_json: Option<Vec<u8>>,
    /// `tokenizer_config.json`: special tokens by purpose, `add_bos_token`, often the chat template.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `chat_template.jinja`; it wins over the template in `tokenizer_config.json`.
    pub chat_template: Option<Vec<u8>>,
    /// `generation_config.json`: end tokens and sampling defaults.
    pub generation_config: Option<Vec<u8>>,
    /// `config.json`: read here only for token ids.
    pub config: Option<Vec<u8>>,
    /// `special_tokens_map.json`: the older home of the special tokens.
    pub special_tokens_map: Option<Vec<u8>>,
}

/// Sampling defaults of `generation_config.json`; what the file does not set is `None`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// `false` asks for greedy decoding, whatever the other values say.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Keep this many tokens; 0 is off.
    pub top_k: Option<u64>,
    /// Keep the smallest set of tokens with this much probability.
    pub top_p: Option<f64>,
    /// Drop tokens below this share of the best probability.
    pub min_p: Option<f64>,
    /// Divides (or multiplies, below zero) the logits of tokens seen before.
    pub repetition_penalty: Option<f64>,
    /// New tokens at most.
    pub max_new_tokens: Option<u64>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`; without the file every value is `None`.
    ///
    /// **Errors** when the file is not JSON or a value has the wrong type.
    pub fn from_assets(assets: &TextAssets) -> Result<Self, Error> {
        let file = Object::parse("generation_config.json", assets.generation_config.as_deref())?;
        Ok(Self {
            do_sample: file.boolean("do_sample")?,
            temperature: file.number("temperature")?,
            top_k: file.count("top_k")?,
            top_p: file.number("top_p")?,
            min_p: file.number("min_p")?,
            repetition_penalty: file.number("repetition_penalty")?,
            max_new_tokens: file.count("max_new_tokens")?,
        })
    }

    /// True when the file asks for the most likely token every time.
    pub fn greedy(&self) -> bool {
        self.do_sample == Some(false) || self.temperature == Some(0.0)
    }
}

/// Bytes without the UTF-8 byte order mark some editors put first.
pub(crate) fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// A JSON object with the name of its file, so that every complaint names both.
pub(crate) struct Object {
    file: &'static str,
    map: Map<String, Value>,
}

impl Object {
    /// Parses `bytes`; a missing file is an empty object.
    pub(crate) fn parse(file: &'static str, bytes: Option<&[u8]>) -> Result<Self, Error> {
        let Some(bytes) = bytes else {
            return Ok(Self { file, map: Map::new() });
        };
        let value: Value = serde_json::from_slice(without_bom(bytes))
            .map_err(|source| Error::Json { file, source })?;
        match value {
            Value::Object(map) => Ok(Self { file, map }),
            other => Err(Error::WrongType {
                file,
                key: "(whole file)",
                expected: "an object",
                found: kind(&other),
            }),
        }
    }

    /// The value under `key`; `null` counts as absent.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The nested object under `key`, which carries the same file name; absent is an empty one.
    pub(crate) fn object(&self, key: &'static str) -> Result<Self, Error> {
        match self.value(key) {
            None => Ok(Self { file: self.file, map: Map::new() }),
            Some(Value::Object(map)) => Ok(Self { file: self.file, map: map.clone() }),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    pub(crate) fn boolean(&self, key: &'static str) -> Result<Option<bool>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, "true or false", other)),
        }
    }

    pub(crate) fn number(&self, key: &'static str) -> Result<Option<f64>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(key, "a number", value)),
            },
        }
    }

    pub(crate) fn count(&self, key: &'static str) -> Result<Option<u64>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(key, "a whole number of at least 0", value)),
            },
        }
    }

    /// A special token: its text, or an object with the text under `content`.
    pub(crate) fn token(&self, key: &'static str) -> Result<Option<String>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => match other.get("content").and_then(Value::as_str) {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(self.wrong(key, "a token's text or an object with 'content'", other)),
            },
        }
    }

    /// One id or a list of ids. Whole numbers that cannot be an id (-1 and such) are left out.
    pub(crate) fn ids(&self, key: &'static str) -> Result<Vec<u32>, Error> {
        let expected = "a token id or a list of token ids";
        let id = |value: &Value| match (value.as_u64(), value.as_i64()) {
            (Some(id), _) => Ok(u32::try_from(id).ok()),
            (None, Some(_)) => Ok(None),
            (None, None) => Err(self.wrong(key, expected, value)),
        };
        match self.value(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                let ids: Result<Vec<Option<u32>>, Error> = list.iter().map(id).collect();
                Ok(ids?.into_iter().flatten().collect())
            }
            Some(value) => Ok(id(value)?.into_iter().collect()),
        }
    }

    /// The error for a value of the wrong type under `key`.
    pub(crate) fn wrong(&self, key: &'static str, expected: &'static str, found: &Value) -> Error {
        Error::WrongType { file: self.file, key, expected, found: kind(found) }
    }
}

/// What a JSON value is, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_generation(text: &str) -> TextAssets {
        TextAssets { generation_config: Some(text.as_bytes().to_vec()), ..TextAssets::default() }
    }

    #[test]
    fn r49_generation_config_with_bom_and_crlf_is_read() {
        let assets =
            with_generation("\u{feff}{\r\n  \"temperature\": 0.5,\r\n  \"top_k\": 40\r\n}\r\n");

        let defaults = GenerationDefaults::from_assets(&assets).expect("valid");

        assert_eq!(defaults.temperature, Some(0.5));
        assert_eq!(defaults.top_k, Some(40));
        assert_eq!(defaults.do_sample, None);
        assert!(!defaults.greedy());
    }

    #[test]
    fn r49_generation_config_that_is_not_json_is_an_error() {
        let error = GenerationDefaults::from_assets(&with_generation("temperature: 1"))
            .expect_err("not JSON");

        assert!(
            error.to_string().starts_with("generation_config.json is not valid JSON"),
            "{error}"
        );
    }

    #[test]
    fn generation_config_value_of_wrong_type_names_file_and_key() {
        let error = GenerationDefaults::from_assets(&with_generation(r#"{"top_k": "many"}"#))
            .expect_err("wrong type");

        assert_eq!(
            error.to_string(),
            "generation_config.json: 'top_k' must be a whole number of at least 0, found a string"
        );
    }

    #[test]
    fn generation_config_without_sampling_is_greedy() {
        let defaults = GenerationDefaults::from_assets(&with_generation(
            r#"{"do_sample": false, "temperature": 0.7}"#,
        ));

        assert!(defaults.expect("valid").greedy());
    }

    #[test]
    fn object_ids_accepts_one_or_many_and_drops_impossible_ones() {
        let one = Object::parse("config.json", Some(br#"{"eos_token_id": 7}"#)).expect("valid");
        let many =
            Object::parse("config.json", Some(br#"{"eos_token_id": [1, -1, 99999999999, 3]}"#))
                .expect("valid");
        let wrong =
            Object::parse("config.json", Some(br#"{"eos_token_id": [1.5]}"#)).expect("valid");

        assert_eq!(one.ids("eos_token_id").expect("an id"), [7]);
        assert_eq!(many.ids("eos_token_id").expect("ids"), [1, 3]);
        assert!(wrong.ids("eos_token_id").is_err());
    }
}

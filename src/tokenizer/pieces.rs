//! The bytes a token stands for, read off the `decoder` of tokenizer.json.
//!
//! Nearly all causal models use one of two spellings. *Byte level* (GPT-2 and after): each character of a token names
//! one byte through a fixed table. *Pieces* (SentencePiece): `▁` is a space, `<0xE5>` is one byte, and the decoder drops
//! a space in front of the whole text. For both, text is the UTF-8 reading of the tokens' bytes in order,
//! so it can be streamed exactly. Anything else is *opaque*: only the `tokenizers` decoder knows.
//!
//! One difference to the `tokenizers` crate: for bytes that are not UTF-8 it writes one U+FFFD per byte and discards
//! good characters next to them (byte fallback); here each bad sequence is one U+FFFD and its neighbours stay.

use serde_json::Value;

/// How the tokens of a model spell bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Spelling {
    /// One byte per character, by the GPT-2 table.
    ByteLevel,
    /// SentencePiece: `space.0` is written for `space.1`, bytes may be spelled `<0xE5>`.
    Pieces { space: (String, String), byte_fallback: bool, lead: Lead },
    /// Known only to the decoder itself.
    Opaque,
}

/// What a decoder removes in front of the whole text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Nothing.
    Keep,
    /// Up to this many spaces.
    Spaces(usize),
    /// Every space mark of the first token (the Metaspace decoder).
    MarksOfFirstToken,
}

impl Spelling {
    /// Reads the `decoder` entry of tokenizer.json.
    pub(crate) fn from_decoder(decoder: &Value) -> Self {
        match text(decoder, "type") {
            Some("ByteLevel") => Self::ByteLevel,
            Some("Metaspace") => Self::metaspace(decoder),
            Some("Sequence") => match decoder.get("decoders").and_then(Value::as_array) {
                Some(steps) => Self::sequence(steps),
                None => Self::Opaque,
            },
            _ => Self::Opaque,
        }
    }

    fn metaspace(decoder: &Value) -> Self {
        let mark = text(decoder, "replacement").unwrap_or("▁").to_owned();
        let never = match text(decoder, "prepend_scheme") {
            Some(scheme) => scheme == "never",
            None => decoder.get("add_prefix_space").and_then(Value::as_bool) == Some(false),
        };
        let lead = if never { Lead::Keep } else { Lead::MarksOfFirstToken };
        Self::Pieces { space: (mark, " ".into()), byte_fallback: false, lead }
    }

    /// `Replace, ByteFallback, Fuse, Strip` in this order, any of them absent; or a single other decoder.
    fn sequence(steps: &[Value]) -> Self {
        if let [only] = steps {
            let alone = Self::from_decoder(only);
            if alone != Self::Opaque {
                return alone;
            }
        }
        let mut space = (String::new(), String::new());
        let (mut byte_fallback, mut fused, mut lead) = (false, false, Lead::Keep);
        let mut stage = 0; // the order above; a step out of order makes the decoder opaque
        for step in steps {
            let rank = match text(step, "type") {
                Some("Replace") => {
                    let from = step.pointer("/pattern/String").and_then(Value::as_str);
                    let (Some(from), Some(to)) = (from, text(step, "content")) else {
                        return Self::Opaque;
                    };
                    space = (from.to_owned(), to.to_owned());
                    1
                }
                Some("ByteFallback") => {
                    byte_fallback = true;
                    2
                }
                Some("Fuse") => {
                    fused = true;
                    3
                }
                Some("Strip") => {
                    let count = |key| {
                        step.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
                    };
                    match (text(step, "content"), count("start"), count("stop")) {
                        (Some(" "), Some(start), Some(0)) if fused => lead = Lead::Spaces(start),
                        _ => return Self::Opaque,
                    }
                    4
                }
                _ => return Self::Opaque,
            };
            if rank <= stage {
                return Self::Opaque;
            }
            stage = rank;
        }
        if stage == 0 { Self::Opaque } else { Self::Pieces { space, byte_fallback, lead } }
    }

    /// The bytes of one token, as they stand in the middle of a text.
    pub(crate) fn bytes_of(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of_char).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Pieces { space, byte_fallback, lead: _ } => {
                if let (true, Some(byte)) = (*byte_fallback, spelled_byte(token)) {
                    return vec![byte];
                }
                if space.0.is_empty() {
                    return token.as_bytes().to_vec();
                }
                token.replace(&space.0, &space.1).into_bytes()
            }
            Self::Opaque => token.as_bytes().to_vec(),
        }
    }
}

/// Turns tokens into bytes one by one, removing what the decoder removes in front of the text.
#[derive(Debug, Clone, Default)]
pub(crate) struct ByteStream {
    tokens: usize,
    spaces_removed: usize,
    text_began: bool,
}

impl ByteStream {
    /// The bytes the next token adds. Opaque spellings give the token's own characters.
    pub(crate) fn next(&mut self, spelling: &Spelling, token: &str) -> Vec<u8> {
        let first = self.tokens == 0;
        self.tokens += 1;
        let Spelling::Pieces { space, lead, .. } = spelling else {
            return spelling.bytes_of(token);
        };
        match *lead {
            Lead::Keep => spelling.bytes_of(token),
            Lead::MarksOfFirstToken if first => spelling.bytes_of(&token.replace(&space.0, "")),
            Lead::MarksOfFirstToken => spelling.bytes_of(token),
            Lead::Spaces(most) => {
                let bytes = spelling.bytes_of(token);
                if self.text_began {
                    return bytes;
                }
                let spaces = bytes
                    .iter()
                    .take(most - self.spaces_removed)
                    .take_while(|&&b| b == b' ')
                    .count();
                self.spaces_removed += spaces;
                self.text_began = spaces < bytes.len() || self.spaces_removed == most;
                bytes[spaces..].to_vec()
            }
        }
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The byte that a character of a byte-level token names: printable Latin-1 characters name
/// themselves, the other 68 bytes are U+0100 and up in order.
fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(), // bytes 00..=20
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(), // bytes 7f..=a0
        0x143 => Some(0xad),
        _ => None,
    }
}

/// `<0xE5>` is byte e5.
fn spelled_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn byte_level_table_names_every_byte_once() {
        let mut seen = [0; 256];
        for code in 0..0x400 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of_char) {
                seen[usize::from(byte)] += 1;
            }
        }

        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn byte_level_token_with_foreign_character_is_its_own_text() {
        assert_eq!(Spelling::ByteLevel.bytes_of("Ġthe"), b" the");
        assert_eq!(Spelling::ByteLevel.bytes_of("[PA D]"), b"[PA D]");
        assert_eq!(Spelling::ByteLevel.bytes_of("<｜end｜>"), "<｜end｜>".as_bytes());
    }

    #[test]
    fn llama_style_sequence_is_pieces_with_one_space_removed() {
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});

        let spelling = Spelling::from_decoder(&decoder);

        let expected = Spelling::Pieces {
            space: ("▁".into(), " ".into()),
            byte_fallback: true,
            lead: Lead::Spaces(1),
        };
        assert_eq!(spelling, expected);
        assert_eq!(spelling.bytes_of("<0xE5>"), [0xe5]);
        assert_eq!(spelling.bytes_of("<0xE55>"), b"<0xE55>");
        assert_eq!(spelling.bytes_of("▁a▁b"), b" a b");
    }

    #[test]
    fn decoder_with_steps_out_of_order_is_opaque() {
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let before_fuse = json!({"type": "Sequence", "decoders": [strip, {"type": "Fuse"}]});

        assert_eq!(Spelling::from_decoder(&before_fuse), Spelling::Opaque);
        assert_eq!(Spelling::from_decoder(&json!({"type": "WordPiece"})), Spelling::Opaque);
        assert_eq!(Spelling::from_decoder(&Value::Null), Spelling::Opaque);
    }
}

//! Token ids to text while they arrive.
//!
//! [`Incremental`] never shows half a character: bytes that may still become one are held back, and the
//! pieces it returns, joined, are the text that [`Tokenizer::decode`] gives for all ids at once.
//! [`StopStrings`] cuts a text at the first stop string, also one that is spread over many pieces, and
//! holds back only what may still be the beginning of one. Reasoning and channel markers are `chat::channels`' work.

use std::sync::Arc;

use crate::tokenizer::{ByteStream, Spelling, Tokenizer};

/// Why a stop string was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// An empty stop string would stop before the first token.
    #[error("stop string {index} of {count} is empty")]
    EmptyStop {
        /// Its place, from 1.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

impl Error {
    /// One sentence on what to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::EmptyStop { .. } => {
                Some("leave the stop string out to generate until the model ends".into())
            }
        }
    }
}

/// Streaming decoder of one reply.
#[derive(Debug, Clone)]
pub struct Incremental {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    stream: ByteStream,
    /// Bytes that may still become a character: at most 3.
    pending: Vec<u8>,
    /// Only for decoders without a byte spelling: everything so far, and how much of its text was given out.
    opaque_ids: Vec<u32>,
    opaque_shown: String,
}

impl Incremental {
    /// Starts a text. With `skip_special`, special tokens leave no trace, as in [`Tokenizer::decode`].
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self {
            tokenizer,
            skip_special,
            stream: ByteStream::default(),
            pending: Vec::new(),
            opaque_ids: Vec::new(),
            opaque_shown: String::new(),
        }
    }

    /// Adds a token and returns the text that is certain now; it may be empty.
    pub fn push(&mut self, id: u32) -> String {
        if *self.tokenizer.spelling() == Spelling::Opaque {
            self.opaque_ids.push(id);
            let whole = self.tokenizer.decode(&self.opaque_ids, self.skip_special);
            return if whole.ends_with(char::REPLACEMENT_CHARACTER) {
                String::new()
            } else {
                self.opaque_rest(whole)
            };
        }
        if let Some(token) = self.tokenizer.shown_token(id, self.skip_special) {
            let bytes = self.stream.next(self.tokenizer.spelling(), &token);
            self.pending.extend(bytes);
        }
        take_certain_text(&mut self.pending)
    }

    /// Ends the text: what was held back comes out, an unfinished character as one U+FFFD.
    pub fn finish(&mut self) -> String {
        if *self.tokenizer.spelling() == Spelling::Opaque {
            let whole = self.tokenizer.decode(&self.opaque_ids, self.skip_special);
            return self.opaque_rest(whole);
        }
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// What `whole` adds to the text shown so far; nothing while the decoder has changed its mind about that.
    fn opaque_rest(&mut self, whole: String) -> String {
        let rest = whole.strip_prefix(&self.opaque_shown).unwrap_or_default().to_owned();
        self.opaque_shown.push_str(&rest);
        rest
    }
}

/// Removes from `bytes` all that later bytes cannot change: whole characters, and U+FFFD for bytes that are none.
fn take_certain_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(rest) => {
                text.push_str(rest);
                done = bytes.len();
                break;
            }
            Err(error) => {
                let good = done + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[done..good]));
                done = good;
                match error.error_len() {
                    Some(bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        done += bad;
                    }
                    None => break, // an unfinished character at the end
                }
            }
        }
    }
    bytes.drain(..done);
    text
}

/// Ends a text at the first stop string.
///
/// The match that *ends* first wins, and of those the longest: a rule that does not depend on how the text
/// was cut into pieces.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopStrings {
    /// **Errors** when a stop string is empty.
    pub fn new(stops: Vec<String>) -> Result<Self, Error> {
        if let Some(place) = stops.iter().position(String::is_empty) {
            return Err(Error::EmptyStop { index: place + 1, count: stops.len() });
        }
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Adds text and returns what is certainly in front of any stop string. After a stop, nothing comes out.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (place, c) in self.held[before..].char_indices() {
            let end = before + place + c.len_utf8();
            let read = &self.held[..end];
            let matches =
                self.stops.iter().enumerate().filter(|(_, stop)| read.ends_with(stop.as_str()));
            if let Some((index, stop)) = matches.max_by_key(|(_, stop)| stop.len()) {
                self.stopped = Some(index);
                self.held.truncate(end - stop.len());
                return std::mem::take(&mut self.held);
            }
        }
        let keep = self.held_length();
        let certain = self.held.len() - keep;
        self.held.drain(..certain).collect()
    }

    /// Ends the text: what was held back is no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that ended the text.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.and_then(|index| self.stops.get(index)).map(String::as_str)
    }

    /// Bytes of the longest suffix that begins a stop string without completing it.
    fn held_length(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let suffixes = self.held.char_indices().map(|(start, _)| &self.held[start..]);
        suffixes
            .filter(|suffix| suffix.len() <= longest)
            .find(|suffix| self.stops.iter().any(|stop| stop.starts_with(suffix)))
            .map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::tokenizer::testing::{bos, chatml, edit, load, pieces};

    /// Ids of single bytes in the byte-level test tokenizer: its vocabulary holds the byte characters in order of
    /// their code points, from `!` at 3.
    fn byte_ids(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
        let id = |byte: &u8| {
            (0..264)
                .find(|&id| tokenizer.token_bytes(id) == [*byte])
                .expect("every byte has a token")
        };
        bytes.iter().map(id).collect()
    }

    /// Every delta, the last one from `finish`.
    fn deltas(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
        let mut text = Incremental::new(Arc::clone(tokenizer), true);
        let mut deltas: Vec<String> = ids.iter().map(|&id| text.push(id)).collect();
        deltas.push(text.finish());
        deltas
    }

    #[test]
    fn r53_emoji_over_byte_tokens_comes_out_whole() {
        let tokenizer = load(&chatml());

        let llama = deltas(&tokenizer, &byte_ids(&tokenizer, "🦙".as_bytes()));

        assert_eq!(llama, ["", "", "", "🦙", ""]);
    }

    #[test]
    fn r53_family_emoji_one_byte_per_token_comes_out_by_characters() {
        let tokenizer = load(&chatml());
        let family = "👨\u{200d}👩\u{200d}👧";

        let deltas = deltas(&tokenizer, &byte_ids(&tokenizer, family.as_bytes()));

        assert_eq!(deltas.iter().filter(|delta| !delta.is_empty()).count(), 5);
        assert_eq!(deltas.concat(), family);
    }

    #[test]
    fn r53_byte_fallback_gives_one_character() {
        let tokenizer = load(&pieces());

        assert_eq!(deltas(&tokenizer, &[3 + 0xe5, 3 + 0xa5, 3 + 0xbd]), ["", "", "好", ""]);
    }

    #[test]
    fn r53_unfinished_character_is_flushed_at_the_end() {
        let tokenizer = load(&chatml());

        assert_eq!(deltas(&tokenizer, &byte_ids(&tokenizer, &[0xc3])), ["", "\u{fffd}"]);
    }

    #[test]
    fn r53_impossible_byte_comes_out_at_once() {
        let level = load(&chatml());
        let pieces = load(&pieces());

        assert_eq!(deltas(&level, &byte_ids(&level, b"\xffa")), ["\u{fffd}", "a", ""]);
        assert_eq!(deltas(&pieces, &[3 + 0xff, 3 + b'a' as u32]), ["\u{fffd}", "a", ""]);
    }

    #[test]
    fn leading_space_of_pieces_is_dropped_once() {
        let tokenizer = load(&pieces());
        let hello = tokenizer.id_of("▁hello").expect("known");
        let space = tokenizer.id_of("▁").expect("known");

        assert_eq!(deltas(&tokenizer, &[1, hello, hello]), ["", "hello", " hello", ""]); // <s> is skipped
        assert_eq!(deltas(&tokenizer, &[space, space, hello]), ["", " ", " hello", ""]);
    }

    #[test]
    fn metaspace_decoder_drops_the_marks_of_the_first_token() {
        let mut assets = pieces();
        edit(&mut assets.tokenizer_json, |json| {
            json["decoder"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        });
        let tokenizer = load(&assets);
        let hello = tokenizer.id_of("▁hello").expect("known");
        let spaces = tokenizer.id_of("▁▁").expect("known");

        assert_eq!(deltas(&tokenizer, &[spaces, hello]), ["", " hello", ""]);
        assert_eq!(tokenizer.decode(&[spaces, hello], true), " hello");
    }

    #[test]
    fn decoder_without_a_byte_spelling_streams_what_it_decodes() {
        let mut assets = chatml();
        edit(&mut assets.tokenizer_json, |json| {
            json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": false})
        });
        let tokenizer = load(&assets);

        assert_eq!(deltas(&tokenizer, &[260, 262, 1]), ["the", " in", "", ""]);
    }

    proptest! {
        #[test]
        fn deltas_joined_equal_the_decoded_whole(ids in proptest::collection::vec(0_u32..320, 0..24), skip: bool) {
            for assets in [chatml(), bos(), pieces()] {
                let tokenizer = load(&assets);
                let mut text = Incremental::new(Arc::clone(&tokenizer), skip);

                let mut joined: String = ids.iter().map(|&id| text.push(id)).collect();
                joined.push_str(&text.finish());

                prop_assert_eq!(joined, tokenizer.decode(&ids, skip));
            }
        }

        #[test]
        fn stopped_text_does_not_depend_on_the_pieces(
            text in "[ab<é ]{0,16}",
            stops in proptest::collection::vec("[ab<é]{1,4}", 1..4),
            cut in 0_usize..16,
        ) {
            let run = |pieces: &[&str]| {
                let mut stop = StopStrings::new(stops.clone()).expect("none is empty");
                let mut out: String = pieces.iter().map(|piece| stop.push(piece)).collect();
                out.push_str(&stop.finish());
                (out, stop.stopped().map(str::to_owned))
            };
            let cut = (0..=cut.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();

            let whole = run(&[&text]);

            prop_assert_eq!(&run(&[&text[..cut], &text[cut..]]), &whole);
            prop_assert_eq!(&run(&single), &whole);
            prop_assert!(stops.iter().all(|stop| !whole.0.contains(stop.as_str())));
        }
    }

    fn stopped(stop: &str, pieces: &[&str]) -> (String, bool) {
        let mut stops = StopStrings::new(vec![stop.to_owned()]).expect("not empty");
        let mut out: String = pieces.iter().map(|piece| stops.push(piece)).collect();
        out.push_str(&stops.finish());
        (out, stops.stopped().is_some())
    }

    #[test]
    fn r62_stop_string_across_tokens_is_withheld() {
        assert_eq!(
            stopped("own fox", &["The quick br", "own", " fox"]),
            ("The quick br".into(), true)
        );
        assert_eq!(stopped("DEFGHIJ", &["DEF", "G", "HI", "J"]), (String::new(), true));
        assert_eq!(stopped("aab", &["a", "a", "a", "b"]), ("a".into(), true));
        assert_eq!(stopped("beta", &["x beta gamma y"]), ("x ".into(), true));
    }

    #[test]
    fn r62_only_what_may_become_a_stop_is_held() {
        let mut stops = StopStrings::new(vec!["own fox".into()]).expect("not empty");

        assert_eq!(stops.push("The quick br"), "The quick br");
        assert_eq!(stops.push("own"), "");
        assert_eq!(stops.push(" cat"), "own cat");
        assert_eq!(stops.push("o"), "");
        assert_eq!(stops.finish(), "o");
        assert_eq!(stops.stopped(), None);
    }

    #[test]
    fn nothing_comes_out_after_a_stop() {
        let mut stops = StopStrings::new(vec!["x".into(), "\nUser:".into()]).expect("not empty");

        assert_eq!(stops.push("a\nUser:b"), "a");
        assert_eq!((stops.push("more"), stops.finish()), (String::new(), String::new()));
        assert_eq!(stops.stopped(), Some("\nUser:"));
    }

    #[test]
    fn empty_stop_string_is_refused() {
        let error =
            StopStrings::new(vec!["a".into(), String::new()]).expect_err("the second is empty");

        assert_eq!(error.to_string(), "stop string 2 of 2 is empty");
    }
}

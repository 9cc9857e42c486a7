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

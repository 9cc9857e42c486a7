//! Control tokens that stand inside messages, disarmed before the template sees them.
//!
//! A user may write `<|im_end|>`. In the rendered text that must stay text, while the same characters written by
//! the template are a control token; and the template must still see a text it can trim, split and compare. So, in each
//! message, the *first character* of every control string is replaced by a private-use stand-in that occurs in no
//! input. Lengths, white space and everything else stay as they are. In the rendered text the stand-ins turn back into
//! what they stood for, and their places become guarded ranges for `Tokenizer::encode_guarded`.
//!
//! What is disarmed: special tokens everywhere; in everything not said by the assistant also the other added tokens
//! that the template itself uses as markers (`<think>`, `<tool_call>`). An assistant's own markers keep their
//! meaning, since templates take earlier replies apart by them. The beginning of a control string at the end of a text
//! is disarmed too, since a template may put two texts side by side.

use std::ops::Range;

use serde_json::Value;

use super::{Error, template};
use crate::tokenizer::Tokenizer;

/// Private-use characters, the candidates for stand-ins.
pub(super) const PRIVATE_USE: [std::ops::RangeInclusive<char>; 3] =
    ['\u{e000}'..='\u{f8ff}', '\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

/// Control strings of one model, and the stand-ins chosen for one conversation.
pub(super) struct Shield<'t> {
    tokenizer: &'t Tokenizer,
    /// Text of every special token.
    special: Vec<String>,
    /// The special tokens and the markers of the template.
    all: Vec<String>,
    /// First characters of control strings with their stand-ins.
    stand_ins: Vec<(char, char)>,
}

impl<'t> Shield<'t> {
    /// Collects the control strings and picks stand-ins that occur neither in `inputs` nor in `source`.
    pub(super) fn new(
        tokenizer: &'t Tokenizer,
        source: &str,
        inputs: &[&Value],
    ) -> Result<Self, Error> {
        let mut special = Vec::new();
        let mut all = Vec::new();
        for (token, is_special) in tokenizer.added_tokens() {
            if token.trim().is_empty() {
                continue;
            }
            if is_special {
                special.push(token.clone());
                all.push(token);
            } else if source.contains(&token) && !token.chars().all(char::is_alphanumeric) {
                all.push(token);
            }
        }
        let mut shield = Self { tokenizer, special, all, stand_ins: Vec::new() };
        let mut taken: Vec<char> = source.chars().filter(|&c| is_private_use(c)).collect();
        for token in &shield.all {
            taken.extend(token.chars().filter(|&c| is_private_use(c)));
        }
        for input in inputs {
            each_text(input, &mut |text| taken.extend(text.chars().filter(|&c| is_private_use(c))));
        }
        taken.sort_unstable();
        taken.dedup();
        let mut firsts: Vec<char> = Vec::new();
        for input in inputs {
            each_text(input, &mut |text| {
                let starts = shield.starts(text, &shield.all);
                firsts.extend(starts.into_iter().filter_map(|start| text[start..].chars().next()));
            });
        }
        firsts.sort_unstable();
        firsts.dedup();
        let mut free =
            PRIVATE_USE.into_iter().flatten().filter(|c| taken.binary_search(c).is_err());
        for first in firsts {
            let stand_in = free
                .next()
                .ok_or(Error::NoStandIn { count: PRIVATE_USE.into_iter().flatten().count() })?;
            shield.stand_ins.push((first, stand_in));
        }
        Ok(shield)
    }

    /// Puts stand-ins into every text of `message`.
    pub(super) fn cover_message(&self, message: &mut Value) {
        let assistant =
            message.get("role").and_then(Value::as_str).is_some_and(template::is_assistant);
        let Value::Object(fields) = message else {
            return self.cover(message);
        };
        for (key, value) in fields.iter_mut() {
            let own_words = assistant
                && matches!(
                    key.as_str(),
                    "content" | "reasoning_content" | "reasoning" | "thinking"
                );
            self.cover_with(value, if own_words { &self.special } else { &self.all });
        }
    }

    /// Puts stand-ins into every text of `value`, keys of objects included.
    pub(super) fn cover(&self, value: &mut Value) {
        self.cover_with(value, &self.all);
    }

    fn cover_with(&self, value: &mut Value, markers: &[String]) {
        if self.stand_ins.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Some(covered) = self.covered(text, markers) {
                    *text = covered;
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|item| self.cover_with(item, markers)),
            Value::Object(fields) => {
                if fields.keys().any(|key| self.covered(key, markers).is_some()) {
                    let old = std::mem::take(fields);
                    fields.extend(
                        old.into_iter()
                            .map(|(key, item)| (self.covered(&key, markers).unwrap_or(key), item)),
                    );
                }
                fields.values_mut().for_each(|item| self.cover_with(item, markers));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// `text` with stand-ins; `None` when it needs none.
    fn covered(&self, text: &str, markers: &[String]) -> Option<String> {
        let starts = self.starts(text, markers);
        if starts.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(text.len() + 2 * starts.len());
        let mut done = 0;
        for start in starts {
            let first = text[start..].chars().next()?;
            let (_, stand_in) = self.stand_ins.iter().find(|(original, _)| *original == first)?;
            out.push_str(&text[done..start]);
            out.push(*stand_in);
            done = start + first.len_utf8();
        }
        out.push_str(&text[done..]);
        Some(out)
    }

    /// Where control strings begin in `text`: whole ones anywhere, and begun ones at the end.
    fn starts(&self, text: &str, markers: &[String]) -> Vec<usize> {
        let mut starts = self.tokenizer.marker_starts(text, markers);
        let longest = markers.iter().map(String::len).max().unwrap_or(0);
        for end in [text.len(), text.trim_end().len()] {
            let text = &text[..end];
            let suffixes = text.char_indices().rev().map(|(start, _)| start);
            for start in suffixes.take_while(|start| end - start < longest) {
                if markers
                    .iter()
                    .any(|marker| marker.len() > end - start && marker.starts_with(&text[start..]))
                {
                    starts.push(start);
                }
            }
        }
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// The text with the original characters back, and the byte ranges of those.
    pub(super) fn uncover(&self, text: &str) -> (String, Vec<Range<usize>>) {
        let mut out = String::with_capacity(text.len());
        let mut guarded = Vec::new();
        for c in text.chars() {
            match self.stand_ins.iter().find(|(_, stand_in)| *stand_in == c) {
                Some((original, _)) => {
                    guarded.push(out.len()..out.len() + original.len_utf8());
                    out.push(*original);
                }
                None => out.push(c),
            }
        }
        (out, guarded)
    }
}

fn is_private_use(c: char) -> bool {
    PRIVATE_USE.iter().any(|range| range.contains(&c))
}

/// Calls `see` with every text in `value`, keys included.
fn each_text(value: &Value, see: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(list) => list.iter().for_each(|item| each_text(item, see)),
        Value::Object(fields) => {
            for (key, item) in fields {
                see(key);
                each_text(item, see);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

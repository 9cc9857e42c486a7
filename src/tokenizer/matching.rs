//! Finding added tokens in a text, with places where none may be found.
//!
//! A tokenizer.json lists added tokens (`<|im_end|>`, runs of spaces) that are cut out of the text before the
//! model's own vocabulary sees the rest. The `tokenizers` crate cuts out all of them or all but the special ones; chat
//! needs a finer knife, since the same string is a control token where the template wrote it and plain text where
//! a user wrote it. [`encode_guarded`] repeats the crate's steps (same order, same leftmost-longest rule, one
//! pre-tokenised string, so neighbours see each other) and leaves out every match that touches a guarded byte.

use std::ops::Range as Bytes;

use tokenizers::normalizer::Range;
use tokenizers::{
    AddedToken, Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer,
    Token,
};

/// Added tokens indexed by first byte, longest first, so that the first hit at a place is the longest.
#[derive(Debug, Default)]
pub(super) struct AddedTokens {
    verbatim: Vec<Vec<Entry>>,
    normalized: Vec<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    id: u32,
    pattern: String,
    token: AddedToken,
}

impl AddedTokens {
    /// Indexes the added tokens of a tokenizer; normalised ones are matched in normalised text.
    pub(super) fn new(hf: &tokenizers::Tokenizer) -> Self {
        let mut added = Self { verbatim: empty_index(), normalized: empty_index() };
        for (id, token) in hf.get_added_tokens_decoder() {
            let pattern = if token.normalized {
                normalize(hf, &token.content)
            } else {
                token.content.clone()
            };
            let index = if token.normalized { &mut added.normalized } else { &mut added.verbatim };
            if let Some(&first) = pattern.as_bytes().first() {
                index[usize::from(first)].push(Entry { id, pattern, token });
            }
        }
        for list in added.verbatim.iter_mut().chain(&mut added.normalized) {
            list.sort_by(|a, b| b.pattern.len().cmp(&a.pattern.len()).then(a.id.cmp(&b.id)));
        }
        added
    }
}

fn empty_index() -> Vec<Vec<Entry>> {
    (0..256).map(|_| Vec::new()).collect()
}

/// The text after the tokenizer's normaliser; unchanged where that fails.
fn normalize(hf: &tokenizers::Tokenizer, text: &str) -> String {
    let mut string = NormalizedString::from(text);
    match hf.get_normalizer().map(|normalizer| normalizer.normalize(&mut string)) {
        Some(Err(_)) => text.to_owned(),
        Some(Ok(())) | None => string.get().to_owned(),
    }
}

/// Tokenises `text`, finding no added token that touches a range of `guarded` (sorted byte ranges).
pub(super) fn encode_guarded(
    hf: &tokenizers::Tokenizer,
    added: &AddedTokens,
    text: &str,
    guarded: &[Bytes<usize>],
) -> tokenizers::Result<Vec<u32>> {
    let free = |range: Bytes<usize>| {
        let next = guarded.partition_point(|guard| guard.end <= range.start);
        guarded.get(next).is_none_or(|guard| guard.start >= range.end)
    };
    let mut string = PreTokenizedString::from(text);
    string.split(|_, part| Ok(cut(part, &added.verbatim, &free)))?;
    string.split(|_, mut part| {
        if let Some(normalizer) = hf.get_normalizer() {
            normalizer.normalize(&mut part)?;
        }
        Ok(cut(part, &added.normalized, &free))
    })?;
    if let Some(pre_tokenizer) = hf.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut string)?;
    }
    string.tokenize(|part| hf.get_model().tokenize(part.get()))?;
    Ok(string.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
}

/// Splits one part at the added tokens found in it.
fn cut(
    part: NormalizedString,
    index: &[Vec<Entry>],
    free: &dyn Fn(Bytes<usize>) -> bool,
) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let text = part.get();
    let base = part.offsets_original().0;
    let mut pieces = Vec::new();
    let mut done = 0; // bytes of `text` already in a piece
    let mut at = 0;
    while at < text.len() {
        if !text.is_char_boundary(at) {
            at += 1;
            continue;
        }
        let Some(entry) = index[usize::from(text.as_bytes()[at])]
            .iter()
            .find(|entry| text[at..].starts_with(&entry.pattern))
        else {
            at += 1;
            continue;
        };
        let (mut start, mut end) = (at, at + entry.pattern.len());
        let original = part.convert_offsets(Range::Normalized(start..end)).unwrap_or(start..end);
        if !free(base + original.start..base + original.end) {
            at += 1;
            continue;
        }
        at = end;
        if entry.token.single_word
            && (text[..start].ends_with(is_word) || text[end..].starts_with(is_word))
        {
            continue;
        }
        if entry.token.lstrip {
            start = text[..start].trim_end().len().max(done);
        }
        if entry.token.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        pieces.extend(slice(&part, done..start).map(|plain| (plain, None)));
        pieces.extend(slice(&part, start..end).map(|token| {
            let value = token.get().to_owned();
            let length = value.len();
            (token, Some(vec![Token::new(entry.id, value, (0, length))]))
        }));
        done = end;
    }
    let rest = done..text.len();
    if done == 0 {
        return vec![(part, None)];
    }
    pieces.extend(slice(&part, rest).map(|plain| (plain, None)));
    pieces
}

fn slice(part: &NormalizedString, range: Bytes<usize>) -> Option<NormalizedString> {
    if range.start >= range.end { None } else { part.slice(Range::Normalized(range)) }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Byte offsets in `text` at which one of `markers` begins, as written or after normalisation, in order.
pub(super) fn marker_starts(
    hf: &tokenizers::Tokenizer,
    text: &str,
    markers: &[String],
) -> Vec<usize> {
    let mut starts: Vec<usize> =
        markers.iter().flat_map(|marker| overlapping(text, marker)).collect();
    if hf.get_normalizer().is_some() {
        let mut string = NormalizedString::from(text);
        if let Some(Ok(())) =
            hf.get_normalizer().map(|normalizer| normalizer.normalize(&mut string))
        {
            for marker in markers {
                for place in overlapping(string.get(), marker) {
                    let range = Range::Normalized(place..place + marker.len());
                    starts.extend(string.convert_offsets(range).map(|original| original.start));
                }
            }
        }
    }
    starts.retain(|&start| start < text.len() && text.is_char_boundary(start));
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Every place where `marker` begins in `text`, overlapping ones included.
fn overlapping<'a>(text: &'a str, marker: &'a str) -> impl Iterator<Item = usize> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        let first = marker.chars().next()?;
        let place = from + text.get(from..)?.find(marker)?;
        from = place + first.len_utf8();
        Some(place)
    })
}

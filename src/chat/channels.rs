//! Separates reasoning and tool calls from the answer while a reply arrives.
//!
//! Three kinds of models: *plain* ones (text passes through at once), *thinking* ones (`<think>…</think>` in front of
//! the answer; the template may have opened the block already), and *channel* ones (gpt-oss: `<|channel|>analysis
//! <|message|>…<|end|>`). [`Reader`] does it from token ids; [`Parser`] is the part without a tokenizer. How the text is
//! cut into pieces never changes the result, and no marker is shown.

use std::sync::Arc;

use super::{Rendered, Template};
use crate::detokenize::Incremental;
use crate::tokenizer::Tokenizer;

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Text of the answer.
    Content(String),
    /// Text the model thinks and the user may hide.
    Reasoning(String),
    /// A complete tool call of a channel model.
    ToolCall {
        /// Who is called, such as `functions.get_weather`.
        name: String,
        /// The arguments as the model wrote them, normally JSON.
        arguments: String,
    },
}

/// How a model marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// It does not.
    Plain,
    /// `<think>…</think>` in front of the answer.
    Think {
        /// The prompt ends inside the block.
        open: bool,
    },
    /// Channels with headers, as gpt-oss writes them.
    Harmony,
}

impl Style {
    /// The style of a model for one prompt, from its template, its vocabulary and the rendered text.
    pub fn of(template: &Template, tokenizer: &Tokenizer, prompt: &Rendered) -> Self {
        let source = template.source();
        if source.contains("<|channel|>") && source.contains("<|message|>") {
            return Self::Harmony;
        }
        if source.contains(THINK)
            || source.contains(END_THINK)
            || tokenizer.id_of(END_THINK).is_some()
        {
            return Self::Think { open: prompt.text.trim_end().ends_with(THINK) };
        }
        Self::Plain
    }
}

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const HARMONY: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
];

/// Separates one reply, given as text.
#[derive(Debug, Clone)]
pub struct Parser {
    state: State,
    /// Text that may still become a marker.
    held: String,
}

#[derive(Debug, Clone)]
enum State {
    Plain,
    /// In front of the reply, with the white space so far.
    BeforeThink {
        open: bool,
        space: String,
    },
    Thinking {
        started: bool,
    },
    /// After `</think>`, dropping the line ends that separate the answer.
    AfterThink,
    /// Between the markers of a header; what was read of it.
    Header {
        role: String,
        channel: Option<String>,
    },
    Body {
        channel: Channel,
    },
    /// After a channel's end, until the next `<|start|>`.
    Between,
}

#[derive(Debug, Clone)]
enum Channel {
    Answer,
    Reasoning,
    Call { name: String, arguments: String },
}

impl Parser {
    /// Starts a reply.
    pub fn new(style: Style) -> Self {
        let state = match style {
            Style::Plain => State::Plain,
            Style::Think { open } => State::BeforeThink { open, space: String::new() },
            Style::Harmony => State::Header { role: String::new(), channel: None },
        };
        Self { state, held: String::new() }
    }

    /// Adds text in which markers count.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        let mut events = Vec::new();
        self.held.push_str(text);
        while let Some((place, marker)) = first_of(&self.held, self.markers()) {
            let rest = self.held.split_off(place);
            let before = std::mem::replace(&mut self.held, rest);
            self.text(&before, &mut events);
            // text in front may have decided that this is no marker any more
            if self.markers().contains(&marker) {
                self.held.drain(..marker.len());
                self.marker(marker, &mut events);
            }
        }
        let keep = partial_marker(&self.held, self.markers());
        let held = self.held.split_off(self.held.len() - keep);
        let certain = std::mem::replace(&mut self.held, held);
        self.text(&certain, &mut events);
        merged(events)
    }

    /// Adds text in which no marker counts: ordinary tokens of a model whose markers are tokens of their own.
    pub fn push_literal(&mut self, text: &str) -> Vec<Event> {
        let mut events = Vec::new();
        self.text(text, &mut events);
        merged(events)
    }

    /// Adds one whole control token. An unknown one shows nothing.
    pub fn push_control(&mut self, token: &str) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(marker) = self.markers().iter().find(|marker| **marker == token) {
            self.marker(marker, &mut events);
        }
        merged(events)
    }

    /// Ends the reply: what was held back comes out, and an unfinished header as answer, so that nothing is lost.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let held = std::mem::take(&mut self.held);
        self.text(&held, &mut events);
        match std::mem::replace(&mut self.state, State::Between) {
            State::Body { channel: Channel::Call { name, arguments } } => {
                events.push(Event::ToolCall { name, arguments });
            }
            State::Header { role: unclaimed, channel: None }
            | State::BeforeThink { open: false, space: unclaimed }
                if !unclaimed.is_empty() =>
            {
                events.push(Event::Content(unclaimed))
            }
            _ => {}
        }
        merged(events)
    }

    /// The markers that mean something now.
    fn markers(&self) -> &'static [&'static str] {
        match self.state {
            State::Plain | State::AfterThink => &[],
            State::BeforeThink { .. } => &[THINK, END_THINK],
            State::Thinking { .. } => &[END_THINK],
            State::Header { .. } | State::Body { .. } | State::Between => &HARMONY,
        }
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        match &mut self.state {
            State::Plain => events.push(Event::Content(text.to_owned())),
            State::BeforeThink { open, space } => {
                space.push_str(text);
                let begins = space.trim_start();
                if begins.is_empty() {
                    return;
                }
                let (next, event) = if *open {
                    (State::Thinking { started: true }, Event::Reasoning(begins.to_owned()))
                } else {
                    (State::Plain, Event::Content(std::mem::take(space)))
                };
                self.state = next;
                events.push(event);
            }
            State::Thinking { started } => {
                let shown = if *started { text } else { text.trim_start() };
                if !shown.is_empty() {
                    *started = true;
                    events.push(Event::Reasoning(shown.to_owned()));
                }
            }
            State::AfterThink => {
                let shown = text.trim_start_matches(['\n', '\r']);
                if !shown.is_empty() {
                    self.state = State::Plain;
                    events.push(Event::Content(shown.to_owned()));
                }
            }
            State::Header { role, channel } => channel.as_mut().unwrap_or(role).push_str(text),
            State::Body { channel: Channel::Answer } => {
                events.push(Event::Content(text.to_owned()))
            }
            State::Body { channel: Channel::Reasoning } => {
                events.push(Event::Reasoning(text.to_owned()))
            }
            State::Body { channel: Channel::Call { arguments, .. } } => arguments.push_str(text),
            State::Between => {}
        }
    }

    fn marker(&mut self, marker: &str, events: &mut Vec<Event>) {
        let state = std::mem::replace(&mut self.state, State::Between);
        self.state = match (marker, state) {
            (THINK, State::BeforeThink { .. }) => State::Thinking { started: false },
            (END_THINK, _) => State::AfterThink,
            ("<|start|>", state) => {
                end_call(state, events);
                State::Header { role: String::new(), channel: None }
            }
            ("<|channel|>", State::Header { role, .. }) => {
                State::Header { role, channel: Some(String::new()) }
            }
            ("<|channel|>", _) => {
                State::Header { role: String::new(), channel: Some(String::new()) }
            }
            ("<|message|>", State::Header { role, channel }) => {
                State::Body { channel: Channel::of(&role, channel.as_deref()) }
            }
            ("<|constrain|>", State::Header { role, channel }) => {
                // the format of the message, such as `json`, is one more word of the header
                let channel = channel.map(|channel| channel + " ");
                State::Header { role, channel }
            }
            ("<|end|>" | "<|return|>" | "<|call|>", state) => {
                end_call(state, events);
                State::Between
            }
            (_, state) => state,
        };
    }
}

impl Channel {
    /// What a header announces. A recipient (`to=functions.name`) may stand behind the role or the channel.
    fn of(role: &str, channel: Option<&str>) -> Self {
        let words =
            || role.split_whitespace().chain(channel.unwrap_or_default().split_whitespace());
        if let Some(name) = words().find_map(|word| word.strip_prefix("to=")) {
            return Self::Call { name: name.to_owned(), arguments: String::new() };
        }
        match channel.and_then(|channel| channel.split_whitespace().next()) {
            Some("analysis") => Self::Reasoning,
            // `commentary` without a recipient is a preamble meant for the user
            Some(_) | None => Self::Answer,
        }
    }
}

fn end_call(state: State, events: &mut Vec<Event>) {
    if let State::Body { channel: Channel::Call { name, arguments } } = state {
        events.push(Event::ToolCall { name, arguments });
    }
}

/// The first marker in `text`, and where.
fn first_of(text: &str, markers: &'static [&'static str]) -> Option<(usize, &'static str)> {
    markers.iter().filter_map(|marker| Some((text.find(marker)?, *marker))).min()
}

/// Bytes at the end of `text` that may still become a marker.
fn partial_marker(text: &str, markers: &[&str]) -> usize {
    let suffixes = text.char_indices().map(|(start, _)| &text[start..]);
    let begun = |suffix: &&str| {
        markers.iter().any(|marker| marker.len() > suffix.len() && marker.starts_with(suffix))
    };
    suffixes.filter(|suffix| suffix.len() < 16).find(begun).map_or(0, str::len)
}

/// Joins neighbours of the same kind.
fn merged(events: Vec<Event>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::with_capacity(events.len());
    for event in events {
        match (out.last_mut(), event) {
            (Some(Event::Content(text)), Event::Content(more)) => text.push_str(&more),
            (Some(Event::Reasoning(text)), Event::Reasoning(more)) => text.push_str(&more),
            (_, event) => out.push(event),
        }
    }
    out
}

/// Separates one reply, given as token ids.
#[derive(Debug, Clone)]
pub struct Reader {
    tokenizer: Arc<Tokenizer>,
    text: Incremental,
    parser: Parser,
    /// Markers are tokens of this model, so that text that merely looks like one is text.
    markers_are_tokens: bool,
}

impl Reader {
    /// Starts a reply. End tokens need not be kept away: like all special tokens, they show nothing.
    pub fn new(tokenizer: Arc<Tokenizer>, style: Style) -> Self {
        let markers: &[&str] = match style {
            Style::Plain => &[],
            Style::Think { .. } => &[THINK, END_THINK],
            Style::Harmony => &HARMONY,
        };
        let markers_are_tokens = markers.iter().all(|marker| tokenizer.id_of(marker).is_some());
        Self {
            text: Incremental::new(Arc::clone(&tokenizer), true),
            tokenizer,
            parser: Parser::new(style),
            markers_are_tokens,
        }
    }

    /// Adds a token.
    pub fn push(&mut self, id: u32) -> Vec<Event> {
        if self.markers_are_tokens
            && let Some(token) = self.tokenizer.token(id)
            && self.parser.markers().contains(&token.as_str())
        {
            let mut events = self.flush_text();
            events.extend(self.parser.push_control(&token));
            return merged(events);
        }
        let text = self.text.push(id);
        self.feed(&text)
    }

    /// Ends the reply.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut events = self.flush_text();
        events.extend(self.parser.finish());
        merged(events)
    }

    fn flush_text(&mut self) -> Vec<Event> {
        let text = self.text.finish();
        self.feed(&text)
    }

    fn feed(&mut self, text: &str) -> Vec<Event> {
        if self.markers_are_tokens {
            self.parser.push_literal(text)
        } else {
            self.parser.push(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::testing::{chatml, chatml_with, load};

    const CHANNELS: &str = "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>four<|return|>";

    /// What a parser makes of these pieces: answer, reasoning, tool calls.
    fn parse(style: Style, pieces: &[&str]) -> (String, String, Vec<(String, String)>) {
        let mut parser = Parser::new(style);
        let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        sorted(events)
    }

    fn sorted(events: Vec<Event>) -> (String, String, Vec<(String, String)>) {
        let mut out = (String::new(), String::new(), Vec::new());
        for event in events {
            match event {
                Event::Content(text) => out.0.push_str(&text),
                Event::Reasoning(text) => out.1.push_str(&text),
                Event::ToolCall { name, arguments } => out.2.push((name, arguments)),
            }
        }
        out
    }

    fn letters(text: &str) -> Vec<&str> {
        text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
    }

    fn said(answer: &str, reasoning: &str) -> (String, String, Vec<(String, String)>) {
        (answer.into(), reasoning.into(), Vec::new())
    }

    #[test]
    fn plain_model_passes_text_through_at_once() {
        let mut parser = Parser::new(Style::Plain);

        assert_eq!(parser.push("a <th"), [Event::Content("a <th".into())]);
        assert_eq!(parser.push("ink>"), [Event::Content("ink>".into())]);
        assert_eq!(parser.finish(), []);
    }

    #[test]
    fn r61_channels_give_answer_and_reasoning_without_markers() {
        assert_eq!(parse(Style::Harmony, &[CHANNELS]), said("four", "think"));
        assert_eq!(parse(Style::Harmony, &letters(CHANNELS)), said("four", "think"));
    }

    #[test]
    fn r61_channels_from_ids_give_the_same_as_from_text() {
        let markers: Vec<(&str, bool)> = HARMONY.iter().map(|marker| (*marker, true)).collect();
        let tokenizer = load(&chatml_with(&markers));
        let ids = tokenizer.encode(CHANNELS, false).expect("ids");
        let mut reader = Reader::new(Arc::clone(&tokenizer), Style::Harmony);

        let mut events: Vec<Event> = ids.iter().flat_map(|&id| reader.push(id)).collect();
        events.extend(reader.finish());

        assert_eq!(sorted(events), said("four", "think"));
    }

    #[test]
    fn r61_marker_spelled_in_ordinary_tokens_is_text() {
        let markers: Vec<(&str, bool)> = HARMONY.iter().map(|marker| (*marker, true)).collect();
        let tokenizer = load(&chatml_with(&markers));
        let mut ids = tokenizer.encode("<|channel|>final<|message|>", false).expect("ids");
        ids.extend(tokenizer.encode_ordinary("<|end|> is a marker").expect("ids"));
        let mut reader = Reader::new(tokenizer, Style::Harmony);

        let mut events: Vec<Event> = ids.iter().flat_map(|&id| reader.push(id)).collect();
        events.extend(reader.finish());

        assert_eq!(sorted(events), said("<|end|> is a marker", ""));
    }

    #[test]
    fn r61_commentary_with_a_recipient_is_a_tool_call() {
        let call = ("functions.get_weather".to_owned(), r#"{"city":"Rome"}"#.to_owned());
        let behind_channel = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Rome\"}<|call|>";
        let behind_role = "<|start|>assistant to=functions.get_weather<|channel|>commentary<|constrain|>json<|message|>{\"city\":\"Rome\"}<|call|>";
        let unfinished =
            "<|channel|>commentary to=functions.get_weather<|message|>{\"city\":\"Rome\"}";

        for text in [behind_channel, behind_role, unfinished] {
            assert_eq!(
                parse(Style::Harmony, &letters(text)).2,
                std::slice::from_ref(&call),
                "{text}"
            );
        }
    }

    #[test]
    fn r61_commentary_without_a_recipient_is_answer() {
        assert_eq!(
            parse(Style::Harmony, &["<|channel|>commentary<|message|>I will look.<|end|>"]),
            said("I will look.", "")
        );
    }

    #[test]
    fn channel_model_that_writes_no_marker_loses_nothing() {
        assert_eq!(parse(Style::Harmony, &["just", " text"]), said("just text", ""));
    }

    #[test]
    fn think_block_in_front_is_reasoning() {
        let text = "\n<think>\nhm < 3\n</think>\n\nfour </think> <think>";

        assert_eq!(
            parse(Style::Think { open: false }, &[text]),
            said("four </think> <think>", "hm < 3\n")
        );
        assert_eq!(
            parse(Style::Think { open: false }, &letters(text)),
            said("four </think> <think>", "hm < 3\n")
        );
    }

    #[test]
    fn think_block_opened_by_the_prompt_is_reasoning_from_the_first_token() {
        assert_eq!(
            parse(Style::Think { open: true }, &["hm", "</th", "ink>", "\n\n", "four"]),
            said("four", "hm")
        );
        assert_eq!(
            parse(Style::Think { open: true }, &["<think>", "hm</think>four"]),
            said("four", "hm")
        );
        assert_eq!(parse(Style::Think { open: true }, &["never closed"]), said("", "never closed"));
    }

    #[test]
    fn answer_without_think_block_is_answer() {
        assert_eq!(
            parse(Style::Think { open: false }, &[" <b>four</b> <think>"]),
            said(" <b>four</b> <think>", "")
        );
        assert_eq!(parse(Style::Think { open: false }, &["<thi"]), said("<thi", ""));
        assert_eq!(parse(Style::Think { open: false }, &["  "]), said("  ", ""));
    }

    #[test]
    fn think_tags_as_tokens_are_read_from_ids() {
        let tokenizer = load(&chatml_with(&[("<think>", false), ("</think>", false)]));
        let ids = tokenizer.encode("<think>\nhm</think>\n\nfour<|im_end|>", false).expect("ids");
        let mut reader = Reader::new(tokenizer, Style::Think { open: false });

        let mut events: Vec<Event> = ids.iter().flat_map(|&id| reader.push(id)).collect();
        events.extend(reader.finish());

        assert_eq!(sorted(events), said("four", "hm"));
    }

    #[test]
    fn style_is_read_from_template_and_prompt() {
        let style = |source: &str, prompt: &str| {
            let assets =
                crate::tokenizer::TextAssets { chat_template: Some(source.into()), ..chatml() };
            let template = Template::from_assets(&assets).expect("a template");
            let rendered = Rendered { ids: Vec::new(), text: prompt.to_owned() };
            Style::of(&template, &load(&assets), &rendered)
        };

        assert_eq!(style("x", "<think>"), Style::Plain);
        assert_eq!(style("<think>", "assistant\n<think>\n"), Style::Think { open: true });
        assert_eq!(
            style("<think>", "assistant\n<think>\n\n</think>\n\n"),
            Style::Think { open: false }
        );
        assert_eq!(style("<|channel|><|message|>", ""), Style::Harmony);
    }

    proptest! {
        #[test]
        fn pieces_never_change_the_result(
            text in "(<think>|</think>|<\\|channel\\|>|<\\|message\\|>|<\\|end\\|>|<\\|start\\|>|<\\|call\\|>|final|analysis| to=f|<|/|a|\n|é){0,14}",
            cut in 0_usize..40,
        ) {
            let cut = (0..=cut.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            for style in [Style::Plain, Style::Think { open: false }, Style::Think { open: true }, Style::Harmony] {
                let whole = parse(style, &[&text]);

                prop_assert_eq!(&parse(style, &letters(&text)), &whole);
                prop_assert_eq!(&parse(style, &[&text[..cut], &text[cut..]]), &whole);
            }
        }
    }
}

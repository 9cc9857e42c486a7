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
    /// In front of the reply; white space so far is in `held`.
    BeforeThink {
        open: bool,
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
            Style::Think { open } => State::BeforeThink { open },
            Style::Harmony => State::Header { role: String::new(), channel: None },
        };
        Self { state, held: String::new() }
    }

    /// Adds text in which markers count.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        let mut events = Vec::new();
        self.held.push_str(text);
        while let Some((place, marker)) = first_of(&self.held, self.markers()) {
            let after = self.held.split_off(place + marker.len());
            self.held.truncate(place);
            let before = std::mem::replace(&mut self.held, after);
            self.text(&before, &mut events);
            self.marker(marker, &mut events);
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
            State::Header { role, channel: None } if !role.is_empty() => {
                events.push(Event::Content(role))
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
            State::BeforeThink { open } => {
                let open = *open;
                let begins = text.trim_start();
                if !begins.is_empty() {
                    self.state =
                        if open { State::Thinking { started: true } } else { State::Plain };
                    events.push(if open {
                        Event::Reasoning(begins.to_owned())
                    } else {
                        Event::Content(text.to_owned())
                    });
                }
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

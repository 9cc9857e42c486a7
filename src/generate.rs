//! Text in, text out: a model with its tokenizer, and the loop that feeds, draws, detokenises and stops.
//!
//! [`Model::open`] puts an engine and the text files of its pages together; [`Model::generate`] continues a
//! session from prompt ids and hands out events as they arrive. Chat on a terminal is the CLI's business.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::chat::channels::{Event, Reader, Style};
use crate::chat::{Conversation, RenderOptions, Rendered, Template};
use crate::detokenize::StopStrings;
use crate::engine::{self, Builder, Engine, Session};
use crate::format::{Pages, asset};
use crate::program::IdRecord;
use crate::sample::Sampling;
use crate::tokenizer::{GenerationDefaults, TextAssets, Tokenizer};

/// A model that reads and writes text. Without a tokenizer it still works by ids.
pub struct Model {
    /// The engine.
    pub engine: Engine,
    /// The tokenizer, where the model has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The chat template, where the model has one.
    pub template: Option<Template>,
    /// Sampling defaults of its generation_config.json.
    pub defaults: GenerationDefaults,
}

/// How to continue.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How ids are drawn.
    pub sampling: Sampling,
    /// Tokens at most; none for as many as fit.
    pub max_tokens: Option<u32>,
    /// Texts that end the reply; they are not shown.
    pub stop: Vec<String>,
    /// Go on after end tokens.
    pub ignore_eos: bool,
    /// How the model marks its reasoning.
    pub style: Option<Style>,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens` reached.
    Length,
    /// The context is full.
    Context,
    /// The user stopped it.
    Interrupted,
}

/// A finished reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Ids drawn, an end token included.
    pub token_ids: Vec<u32>,
    /// Log-probability of each.
    pub logprobs: Vec<f32>,
    /// The answer, without reasoning and stop strings.
    pub text: String,
    /// What the model thought before it, where it marks that.
    pub reasoning: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Times.
    pub timings: Timings,
}

/// Times of one reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Prompt tokens fed; those held from earlier turns not counted.
    pub prefill_tokens: usize,
    /// Seconds until the first token was drawn.
    pub prefill_s: f64,
    /// Tokens drawn after the first.
    pub decode_tokens: usize,
    /// Seconds they took.
    pub decode_s: f64,
}

impl Timings {
    /// Prompt tokens per second.
    #[must_use]
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_s)
    }

    /// Drawn tokens per second; 0 where fewer than two were drawn.
    #[must_use]
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.decode_tokens, self.decode_s)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if count == 0 || seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}

/// The text files among a model's pages.
///
/// **Errors**: a page cannot be read.
pub fn text_assets(pages: &dyn Pages) -> crate::Result<TextAssets> {
    let file = |name| asset(pages, name);
    Ok(TextAssets {
        tokenizer_json: file("tokenizer.json")?,
        tokenizer_config: file("tokenizer_config.json")?,
        chat_template: file("chat_template.jinja")?,
        generation_config: file("generation_config.json")?,
        config: file("config.json")?,
        special_tokens_map: file("special_tokens_map.json")?,
    })
}

impl Model {
    /// Reads the text files among `pages`, then loads the model with `configure` applied to its builder.
    ///
    /// **Errors**: a text file is damaged; whatever [`Builder::open`] returns.
    pub fn open(
        pages: Arc<dyn Pages>,
        configure: impl FnOnce(Builder) -> Builder,
    ) -> crate::Result<Self> {
        let assets = text_assets(&*pages)?;
        let tokenizer = match &assets.tokenizer_json {
            Some(_) => Some(Arc::new(Tokenizer::from_assets(&assets)?)),
            None => None,
        };
        let template = match Template::from_assets(&assets) {
            Ok(template) => Some(template),
            Err(crate::chat::Error::NoTemplate) => None,
            Err(error) => return Err(error.into()),
        };
        let defaults = GenerationDefaults::from_assets(&assets)?;
        let ends = tokenizer.as_ref().map_or(&[][..], |tokenizer| tokenizer.end_ids());
        let engine = configure(Engine::builder(pages).end_ids(ends)).open()?;
        Ok(Model { engine, tokenizer, template, defaults })
    }

    /// The tokenizer, or the error that says there is none.
    ///
    /// **Errors**: [`Error::NoTokenizer`].
    pub fn tokenizer(&self) -> crate::Result<&Arc<Tokenizer>> {
        Ok(self.tokenizer.as_ref().ok_or(Error::NoTokenizer)?)
    }

    /// A conversation as prompt ids, and how the reply will mark its reasoning.
    ///
    /// **Errors**: there is no tokenizer or no template, or the template refuses the conversation.
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> crate::Result<(Rendered, Style)> {
        let tokenizer = self.tokenizer()?;
        let template = self.template.as_ref().ok_or(crate::chat::Error::NoTemplate)?;
        let rendered = template.render_ids(tokenizer, conversation, options)?;
        let style = Style::of(template, tokenizer, &rendered);
        Ok((rendered, style))
    }

    /// Makes `session` hold `prompt`, keeping the longest common prefix of what it holds, then draws ids
    /// until something ends the reply. `interrupted` is asked before every step.
    ///
    /// **Errors**: the prompt does not fit; a setting is out of range; the device fails.
    pub fn generate(
        &self,
        session: &mut Session,
        prompt: &[u32],
        options: &Options,
        on_event: &mut dyn FnMut(&Event),
        interrupted: &dyn Fn() -> bool,
    ) -> crate::Result<Reply> {
        let start = Instant::now();
        session.configure(&options.sampling.record(options.ignore_eos)?, &[], None)?;
        let kept = common_prefix(session.tokens(), prompt);
        session.truncate(kept)?;
        let mut writer = Writer::new(self, options)?;
        let mut reply = Reply {
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            reasoning: String::new(),
            finish_reason: FinishReason::Length,
            timings: Timings { prefill_tokens: prompt.len() - kept, ..Timings::default() },
        };
        if options.max_tokens == Some(0) {
            return Ok(reply);
        }
        let mut drawn = match session.feed(&prompt[kept..], interrupted) {
            Err(crate::Error::Engine(engine::Error::Interrupted)) => {
                reply.finish_reason = FinishReason::Interrupted;
                return Ok(reply);
            }
            drawn => drawn?,
        };
        reply.timings.prefill_s = start.elapsed().as_secs_f64();
        let decoding = Instant::now();
        reply.finish_reason = loop {
            if let Some(reason) = writer.take(&drawn, options, &mut reply, on_event) {
                break reason;
            }
            if session.tokens().len() + 1 > self.engine.context() as usize {
                break FinishReason::Context;
            }
            if interrupted() {
                break FinishReason::Interrupted;
            }
            drawn = session.next()?;
        };
        reply.timings.decode_tokens = reply.token_ids.len().saturating_sub(1);
        reply.timings.decode_s = decoding.elapsed().as_secs_f64();
        writer.finish(&mut reply, on_event);
        Ok(reply)
    }
}

/// Ids of `held` that may stay when `prompt` is wanted; at least one id is always left to feed.
fn common_prefix(held: &[u32], prompt: &[u32]) -> usize {
    let same = held.iter().zip(prompt).take_while(|(held, prompt)| held == prompt).count();
    same.min(prompt.len().saturating_sub(1))
}

/// Turns drawn ids into text events and notices stop strings.
struct Writer {
    reader: Option<Reader>,
    stops: StopStrings,
}

impl Writer {
    fn new(model: &Model, options: &Options) -> crate::Result<Self> {
        let style = options.style.unwrap_or(Style::Plain);
        let reader =
            model.tokenizer.as_ref().map(|tokenizer| Reader::new(Arc::clone(tokenizer), style));
        Ok(Writer { reader, stops: StopStrings::new(options.stop.clone())? })
    }

    /// Adds a drawn id; says why the reply ends with it, if it does.
    fn take(
        &mut self,
        drawn: &IdRecord,
        options: &Options,
        reply: &mut Reply,
        on_event: &mut dyn FnMut(&Event),
    ) -> Option<FinishReason> {
        reply.token_ids.push(drawn.id);
        reply.logprobs.push(drawn.logprob);
        if drawn.is_end() && !options.ignore_eos {
            return Some(FinishReason::Stop);
        }
        let events = self.reader.as_mut().map_or_else(Vec::new, |reader| reader.push(drawn.id));
        for event in events {
            self.emit(event, reply, on_event);
        }
        if self.stops.stopped().is_some() {
            return Some(FinishReason::Stop);
        }
        let most = options.max_tokens.map_or(usize::MAX, |most| most as usize);
        (reply.token_ids.len() >= most).then_some(FinishReason::Length)
    }

    fn emit(&mut self, event: Event, reply: &mut Reply, on_event: &mut dyn FnMut(&Event)) {
        match event {
            Event::Content(text) => {
                let text = self.stops.push(&text);
                show(text, reply, on_event);
            }
            Event::Reasoning(text) => {
                reply.reasoning.push_str(&text);
                on_event(&Event::Reasoning(text));
            }
            Event::ToolCall { .. } => on_event(&event),
        }
    }

    /// Releases text held back for stop strings and half characters.
    fn finish(mut self, reply: &mut Reply, on_event: &mut dyn FnMut(&Event)) {
        let stopped = self.stops.stopped().is_some();
        let rest = self.reader.take().map_or_else(Vec::new, |mut reader| reader.finish());
        for event in rest {
            if !stopped {
                self.emit(event, reply, on_event);
            }
        }
        if self.stops.stopped().is_none() {
            let text = self.stops.finish();
            show(text, reply, on_event);
        }
    }
}

fn show(text: String, reply: &mut Reply, on_event: &mut dyn FnMut(&Event)) {
    if !text.is_empty() {
        reply.text.push_str(&text);
        on_event(&Event::Content(text));
    }
}

/// What text generation lacks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model has no tokenizer.json.
    #[error("the model has no tokenizer")]
    NoTokenizer,
}

impl Error {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NoTokenizer => {
                Some("give ids with --tokens, or convert with --tokenizer DIR".into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_common_prefix_is_kept_but_one_id_is_always_fed() {
        assert_eq!(common_prefix(&[1, 2, 3, 4], &[1, 2, 9]), 2);
        assert_eq!(common_prefix(&[1, 2, 3, 4], &[1, 2, 3]), 2);
        assert_eq!(common_prefix(&[], &[1]), 0);
    }
}

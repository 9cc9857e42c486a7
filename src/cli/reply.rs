//! One reply: drawn, shown while it arrives, and its numbers afterwards.

use std::cell::{Cell, RefCell};

use serde::Serialize;
use thintensor::backend::DeviceInfo;
use thintensor::chat::channels::Event;
use thintensor::engine::Session;
use thintensor::generate::{FinishReason, Options, Reply};
use thintensor::sample::Sampling;

use super::error::Error;
use super::interrupt::Watch;
use super::model::Loaded;
use super::report;

/// What of a reply is shown while it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Nothing: a report follows.
    Nothing,
    /// The answer.
    Answer,
    /// The answer, and on a terminal what the model thinks before it.
    Thinking,
}

/// Draws a reply. Ctrl-C ends it, and it is then whole as far as it goes.
///
/// **Errors**: the prompt does not fit; the device fails; nobody reads stdout.
pub(crate) fn draw(
    loaded: &Loaded,
    session: &mut Session,
    prompt: &[u32],
    options: &Options,
    show: Show,
) -> Result<Reply, Error> {
    let watch = Watch::new();
    let printer = RefCell::new(Printer::new(show));
    let failed = Cell::new(false);
    let reply = loaded.model.generate(
        session,
        prompt,
        options,
        &mut |event| failed.set(failed.get() || !printer.borrow_mut().event(event)),
        &|| failed.get() || watch.requested(),
    );
    printer.into_inner().finish()?;
    Ok(reply?)
}

/// Puts events on stdout.
struct Printer {
    show: Show,
    terminal: bool,
    thinking: bool,
    /// Whether the cursor is behind text, so that a line end is needed.
    open_line: bool,
    error: Option<Error>,
}

impl Printer {
    fn new(show: Show) -> Self {
        let terminal = report::stdout_is_terminal();
        Printer { show, terminal, thinking: false, open_line: false, error: None }
    }

    /// Shows an event; false where stdout takes no more.
    fn event(&mut self, event: &Event) -> bool {
        match (event, self.show) {
            (_, Show::Nothing) | (Event::Reasoning(_), Show::Answer) => true,
            (Event::Reasoning(text), Show::Thinking) => {
                // Only a person can tell thoughts from the answer by their colour.
                if !self.terminal {
                    return true;
                }
                self.thinking = true;
                let text = report::dimmed(&self.safe(text));
                self.print(&text)
            }
            (Event::Content(text), Show::Answer | Show::Thinking) => {
                let text = self.safe(text);
                if std::mem::take(&mut self.thinking) {
                    let gap = if self.open_line { "\n\n" } else { "\n" };
                    return self.print(&format!("{gap}{text}"));
                }
                self.print(&text)
            }
            (Event::ToolCall { name, arguments }, Show::Answer | Show::Thinking) => {
                let call = self.safe(&format!("[call {name} {arguments}]\n"));
                self.print(&call)
            }
        }
    }

    /// Text without the characters that steer a terminal.
    fn safe(&self, text: &str) -> String {
        if !self.terminal {
            return text.to_owned();
        }
        let shown = |c: char| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        };
        text.chars().map(shown).collect()
    }

    fn print(&mut self, text: &str) -> bool {
        self.open_line = !text.is_empty() && !text.trim_end_matches("\x1b[0m").ends_with('\n');
        match report::print(text) {
            Ok(()) => true,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    /// Ends the last line.
    fn finish(mut self) -> Result<(), Error> {
        if self.error.is_none() && self.open_line {
            self.print("\n");
        }
        self.error.map_or(Ok(()), Err)
    }
}

/// Why a reply ended, as JSON has it.
fn ending(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Context => "context",
        FinishReason::Interrupted => "interrupted",
    }
}

/// The numbers of a reply, for people: one line each.
pub(crate) fn stats(loaded: &Loaded, session: &Session, prompt: usize, reply: &Reply) -> String {
    let times = &reply.timings;
    let engine = &loaded.model.engine;
    let memory = engine.memory();
    let kept = prompt.saturating_sub(times.prefill_tokens);
    let rss = report::peak_rss_bytes()
        .map_or_else(String::new, |bytes| format!(", process {}", report::bytes(bytes)));
    report::fields(&[
        (
            "prompt",
            format!(
                "{prompt} tokens, {kept} kept from before, {:.1} tok/s, first token after {}",
                times.prefill_tok_s(),
                report::seconds(times.prefill_s)
            ),
        ),
        (
            "reply",
            format!(
                "{} tokens, {:.1} tok/s, ended by {}",
                reply.token_ids.len(),
                times.decode_tok_s(),
                ending(reply.finish_reason)
            ),
        ),
        ("context", format!("{} of {} tokens", session.tokens().len(), engine.context())),
        (
            "memory",
            format!(
                "{} on {}, peak {}{rss}",
                report::bytes(memory.device_bytes),
                engine.device().name,
                report::bytes(memory.peak_device_bytes)
            ),
        ),
        (
            "weights",
            format!(
                "{} read for each token, {:.2} GB/s",
                report::bytes(engine.bytes_per_token()),
                engine.bytes_per_token() as f64 * times.decode_tok_s() / 1e9
            ),
        ),
    ])
}

/// The report of `run --json`.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    model: &'a str,
    prompt_tokens: usize,
    max_tokens: Option<u32>,
    generated_tokens: usize,
    /// Drawn ids only.
    token_ids: &'a [u32],
    text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    finish_reason: FinishReason,
    /// Where ids were sampled.
    seed: Option<u64>,
    sampling: &'a Sampling,
    ignore_eos: bool,
    stop: &'a [String],
    device: &'a DeviceInfo,
    profile: &'a str,
    kv: &'a str,
    context: u32,
    timings: Times,
    memory: Memory,
    bytes_per_token: u64,
}

#[derive(Serialize)]
struct Times {
    load_s: f64,
    ttft_ms: f64,
    prefill_tokens: usize,
    prefill_s: f64,
    prefill_tok_s: f64,
    decode_tokens: usize,
    decode_s: f64,
    decode_tok_s: f64,
}

#[derive(Serialize)]
struct Memory {
    budget_bytes: Option<u64>,
    peak_device_bytes: u64,
    peak_host_bytes: u64,
    /// Beside the ledger: on the CPU what the process held at most; not measured on a GPU yet.
    overhead_bytes: Option<u64>,
    peak_rss_bytes: Option<u64>,
}

impl<'a> Report<'a> {
    /// Puts the numbers of a reply together.
    pub(crate) fn new(
        loaded: &'a Loaded,
        prompt: usize,
        options: &'a Options,
        budget: Option<u64>,
        reply: &'a Reply,
    ) -> Self {
        let engine = &loaded.model.engine;
        let memory = engine.memory();
        let times = &reply.timings;
        let sampling = &options.sampling;
        Report {
            model: &loaded.name,
            prompt_tokens: prompt,
            max_tokens: options.max_tokens,
            generated_tokens: reply.token_ids.len(),
            token_ids: &reply.token_ids,
            text: &reply.text,
            reasoning: &reply.reasoning,
            finish_reason: reply.finish_reason,
            seed: (sampling.temperature > 0.0).then_some(sampling.seed),
            sampling,
            ignore_eos: options.ignore_eos,
            stop: &options.stop,
            device: engine.device(),
            profile: engine.profile(),
            kv: engine.plan().options.kv_format.name(),
            context: engine.context(),
            timings: Times {
                load_s: loaded.load_s,
                ttft_ms: times.prefill_s * 1e3,
                prefill_tokens: times.prefill_tokens,
                prefill_s: times.prefill_s,
                prefill_tok_s: times.prefill_tok_s(),
                decode_tokens: times.decode_tokens,
                decode_s: times.decode_s,
                decode_tok_s: times.decode_tok_s(),
            },
            memory: Memory {
                budget_bytes: budget,
                peak_device_bytes: memory.peak_device_bytes,
                peak_host_bytes: memory.peak_host_bytes,
                overhead_bytes: report::peak_rss_bytes()
                    .filter(|_| engine.device().api == "cpu")
                    .map(|peak| peak.saturating_sub(memory.peak_device_bytes)),
                peak_rss_bytes: report::peak_rss_bytes(),
            },
            bytes_per_token: engine.bytes_per_token(),
        }
    }
}

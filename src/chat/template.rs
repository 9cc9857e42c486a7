//! A model's chat template, run as Hugging Face runs it.
//!
//! Templates are programs in Jinja, written for Python and shipped with models, so they are run with a limit on
//! steps, output and nesting. The environment is that of `apply_chat_template`: blocks are trimmed, `break` and
//! `continue` work, `raise_exception`, `strftime_now`, `tojson` and Python's string methods exist.
//! [`Template::render_ids`] is the one way from a conversation to ids: control tokens written inside messages
//! come out as ordinary text (`shield`), everything else exactly as the tokenizer would encode the rendered text.
//!
//! A template runs on a thread of its own, whose stack is large enough for what `guard` lets through.
//!
//! Not supported: `"%s" % x` (use the `format` filter), repeated lists (`[x] * 3`), and `*` in argument lists.

use std::collections::BTreeMap;

use chrono::{DateTime, FixedOffset, Local};
use minijinja::machinery::{eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value as Jinja};
use serde_json::{Map, Value, json};

use super::shield::Shield;
use super::{Conversation, Error, Message, guard, python};
use crate::tokenizer::{Object, TextAssets, Tokenizer, without_bom};

/// Steps a template may take, beside those for each message and each byte of input; one step also pays for 64
/// bytes of text. Real templates take a few thousand per turn.
const STEPS: u64 = 500_000;
const STEPS_PER_MESSAGE: u64 = 4_000;

/// Stack of the thread that runs a template. Only what is used of it takes memory.
const STACK_BYTES: usize = 64 << 20;

/// Depth of nested macro calls. Real templates use up to a dozen (types of tool parameters).
const RECURSION: usize = 120;

/// What a rendering may add to the messages, and the factor by which it may grow them.
const OUTPUT_BYTES: usize = 4 << 20;
const OUTPUT_FACTOR: usize = 8;

/// A compiled chat template, or several under names (`default`, `tool_use`).
#[derive(Debug)]
pub struct Template {
    sources: BTreeMap<String, String>,
}

/// What goes into a rendering besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Tool descriptions (JSON schemas); with any, a template named `tool_use` is preferred.
    pub tools: Vec<Value>,
    /// Documents for templates with retrieval.
    pub documents: Vec<Value>,
    /// Extra variables, such as `enable_thinking`. They come from the operator and are trusted.
    pub variables: Map<String, Value>,
    /// Choose a template by name.
    pub template: Option<String>,
    /// The time that `strftime_now` tells; `None` is now.
    pub now: Option<DateTime<FixedOffset>>,
}

/// A conversation as a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Token ids, beginning with at most one begin-of-text token (exactly one if the tokenizer adds it).
    pub ids: Vec<u32>,
    /// The rendered text, for people.
    pub text: String,
}

/// The words a template gave to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Template {
    /// Compiles the model's template: chat_template.jinja, else `chat_template` of tokenizer_config.json, a text or a
    /// list of `{name, template}`.
    ///
    /// **Errors** when there is none, or it is not valid Jinja.
    pub fn from_assets(assets: &TextAssets) -> Result<Self, Error> {
        let sources = sources(assets)?;
        if sources.is_empty() {
            return Err(Error::NoTemplate);
        }
        for (name, source) in &sources {
            let runnable = without_generation_tags(source);
            on_own_stack(|| guard::compile(name, &runnable, &syntax()).map(|_| ()))?.map_err(
                |error| Error::Syntax {
                    name: name.clone(),
                    line: error.line().unwrap_or(0),
                    reason: reason(&error),
                },
            )?;
        }
        Ok(Self { sources })
    }

    /// The template's source; the default one when there are several.
    pub fn source(&self) -> &str {
        self.sources
            .get("default")
            .or_else(|| self.sources.values().next())
            .map_or("", String::as_str)
    }

    /// Renders a conversation and tokenises it.
    ///
    /// Control tokens inside messages, tool descriptions and documents are encoded as ordinary text. Without any, the
    /// ids are those of the whole rendered text.
    ///
    /// **Errors** with the template's own words when it refuses the conversation.
    pub fn render_ids(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<Rendered, Error> {
        let name = self.name_for(options)?;
        let source = &self.sources[name];
        let mut messages = Vec::with_capacity(conversation.messages.len());
        for (index, message) in conversation.messages.iter().enumerate() {
            messages.push(prepared(message, index, takes_parts(source))?);
        }
        let mut messages = Value::Array(messages);
        let mut tools = Value::Array(options.tools.clone());
        let mut documents = Value::Array(options.documents.clone());

        let variables = Value::Object(options.variables.clone());
        let shield = Shield::new(tokenizer, source, &[&messages, &tools, &documents, &variables])?;
        if let Value::Array(list) = &mut messages {
            list.iter_mut().for_each(|message| shield.cover_message(message));
        }
        shield.cover(&mut tools);
        shield.cover(&mut documents);

        let mut context = Map::new();
        for (key, token) in tokenizer.named_tokens() {
            context.insert((*key).to_owned(), Value::String(token.clone()));
        }
        context.insert("add_generation_prompt".into(), Value::Bool(options.add_generation_prompt));
        context.insert("messages".into(), messages);
        context.insert("tools".into(), null_if_empty(tools));
        context.insert("documents".into(), null_if_empty(documents));
        context.extend(options.variables.clone());
        let rendered = self.render(name, &context, options.now);
        let rendered = rendered.map_err(|error| match error {
            Error::Refused { message } => Error::Refused { message: shield.uncover(&message).0 },
            other => other,
        })?;

        let (text, guarded) = shield.uncover(&rendered);
        let mut ids = tokenizer.encode_guarded(&text, &guarded)?;
        tokenizer.settle_bos(&mut ids);
        Ok(Rendered { ids, text })
    }

    fn name_for(&self, options: &RenderOptions) -> Result<&str, Error> {
        let asked = options.template.as_deref();
        let wanted = match asked {
            Some(name) => name,
            None if !options.tools.is_empty() && self.sources.contains_key("tool_use") => {
                "tool_use"
            }
            None => "default",
        };
        let found = match self.sources.get_key_value(wanted) {
            Some((name, _)) => Some(name),
            None if asked.is_none() && self.sources.len() == 1 => self.sources.keys().next(),
            None => None,
        };
        found.map(String::as_str).ok_or_else(|| Error::NoSuchTemplate {
            name: wanted.to_owned(),
            available: self.sources.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }

    fn render(
        &self,
        name: &str,
        context: &Map<String, Value>,
        now: Option<DateTime<FixedOffset>>,
    ) -> Result<String, Error> {
        let source = without_generation_tags(&self.sources[name]);
        let messages = context.get("messages").and_then(Value::as_array).map_or(0, Vec::len);
        let input: usize = context.values().map(size).sum();
        let limit = OUTPUT_BYTES + OUTPUT_FACTOR * input;
        let steps = STEPS + STEPS_PER_MESSAGE * messages as u64 + input as u64;
        on_own_stack(|| {
            let mut variables: BTreeMap<&str, Jinja> =
                context.iter().map(|(key, value)| (key.as_str(), python::value(value))).collect();
            let clock = Jinja::from_function(move |format: &str| strftime(now, format));
            variables.insert("strftime_now", clock);
            let environment = environment(steps, limit as u64);
            let mut text = String::new();
            let outcome = guard::compile(name, &source, &syntax()).and_then(|compiled| {
                let root = Jinja::from_pairs(variables);
                let mut output = make_string_output(&mut text);
                let guard::Compiled { main, blocks } = &compiled;
                eval(&environment, main, root, blocks, &mut output, AutoEscape::None).map(|_| ())
            });
            match outcome {
                _ if text.len() > limit => Err(Error::TooLong { limit, input }),
                Ok(()) => Ok(text),
                Err(error) => Err(match raised(&error) {
                    Some(message) => Error::Refused { message },
                    None if out_of_fuel(&error) => Error::TooMuchWork { steps },
                    None => {
                        Error::Failed { line: error.line().unwrap_or(0), reason: reason(&error) }
                    }
                }),
            }
        })?
    }
}

/// Runs something on a thread with a stack that nested templates and values fit on, whatever that of the
/// caller is.
fn on_own_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
        let thread = thread.map_err(|source| Error::NoThread { source })?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// True for the roles under which a model's own words are stored.
pub(super) fn is_assistant(role: &str) -> bool {
    matches!(role, "assistant" | "model")
}

/// The white space rules of `apply_chat_template`.
fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.expect("the delimiters are the default ones")
}

/// The Jinja environment of `apply_chat_template`.
fn environment(steps: u64, limit: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.remove_global("debug"); // it prints all variables, whatever their size
    guard::add_checks(&mut environment, limit);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(steps));
    environment.set_recursion_limit(RECURSION);
    environment.set_debug(false);
    environment.set_formatter(python::print);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", python::string);
    environment.add_test("iterable", python::is_iterable);
    environment.add_function(
        "raise_exception",
        |state: &State, message: &Jinja| -> Result<Jinja, minijinja::Error> {
            let words = python::str_of(state, message)?;
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised")
                .with_source(Raised(words)))
        },
    );
    environment
}

/// Template sources by name; an only template is `default`.
fn sources(assets: &TextAssets) -> Result<BTreeMap<String, String>, Error> {
    let mut sources = BTreeMap::new();
    let config = Object::parse("tokenizer_config.json", assets.tokenizer_config.as_deref())?;
    match config.value("chat_template") {
        None => {}
        Some(Value::String(text)) => {
            sources.insert("default".to_owned(), text.clone());
        }
        Some(Value::Array(list)) => {
            for entry in list {
                let field = |key: &str| entry.get(key).and_then(Value::as_str);
                let (Some(name), Some(text)) = (field("name"), field("template")) else {
                    return Err(config
                        .wrong("chat_template", "a text or a list of {name, template}", entry)
                        .into());
                };
                sources.insert(name.to_owned(), text.to_owned());
            }
        }
        Some(other) => {
            return Err(config
                .wrong("chat_template", "a text or a list of {name, template}", other)
                .into());
        }
    }
    if let Some(bytes) = &assets.chat_template {
        let bytes = without_bom(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            valid_up_to: error.valid_up_to(),
            bytes: bytes.len(),
        })?;
        // Jinja reads any line end as \n, so a file saved on Windows must not put \r into prompts
        sources.insert("default".to_owned(), text.replace("\r\n", "\n"));
    }
    Ok(sources)
}

/// `{% generation %}` marks training targets and prints nothing: an always true condition keeps its white space rules.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else {
            break;
        };
        let tag = &rest[start..start + length + 4];
        let word = tag[2..length + 2].trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 4..];
    }
    out.push_str(rest);
    out
}

/// True when the template reads messages made of parts; others get the texts joined by line ends.
fn takes_parts(source: &str) -> bool {
    [
        "['type']",
        "[\"type\"]",
        ".type ",
        ".type=",
        "content is string",
        "content'] is string",
        "content is iterable",
    ]
    .iter()
    .any(|sign| source.contains(sign))
}

/// The message as the template gets it: tool arguments as objects, text parts joined where parts are not understood.
fn prepared(message: &Message, index: usize, parts_wanted: bool) -> Result<Value, Error> {
    let mut content = message.content.clone();
    if let Value::Array(parts) = &content {
        let mut texts = Vec::new();
        for part in parts {
            match (
                part,
                part.get("type").and_then(Value::as_str),
                part.get("text").and_then(Value::as_str),
            ) {
                (Value::String(text), _, _) => texts.push(text.as_str()),
                (_, Some("text") | None, Some(text)) => texts.push(text),
                (_, kind, _) => {
                    return Err(Error::UnsupportedPart {
                        index,
                        kind: kind.unwrap_or("unknown").to_owned(),
                    });
                }
            }
        }
        if !parts_wanted {
            content = Value::String(texts.join("\n"));
        }
    }
    let mut fields = Map::new();
    fields.insert("role".into(), Value::String(message.role.clone()));
    fields.insert("content".into(), content);
    fields.extend(message.extra.clone());
    if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
        for call in calls {
            if let Some(arguments) = call.pointer_mut("/function/arguments")
                && let Some(Ok(object)) =
                    arguments.as_str().map(serde_json::from_str::<Map<String, Value>>)
            {
                *arguments = Value::Object(object);
            }
        }
    }
    Ok(Value::Object(fields))
}

fn null_if_empty(list: Value) -> Value {
    if list == json!([]) { Value::Null } else { list }
}

/// `strftime_now`: the time in a format of C's strftime.
fn strftime(now: Option<DateTime<FixedOffset>>, format: &str) -> Result<String, minijinja::Error> {
    use std::fmt::Write as _;
    let now = now.unwrap_or_else(|| Local::now().fixed_offset());
    let mut out = String::new();
    match write!(out, "{}", now.format(format)) {
        Ok(()) => Ok(out),
        Err(_) => {
            let detail = format!("strftime_now cannot read the format '{format}'");
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, detail))
        }
    }
}

/// Bytes of text in a value, roughly.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + size(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// The error and those under it, outermost first.
fn chain<'e>(
    error: &'e minijinja::Error,
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
}

fn raised(error: &minijinja::Error) -> Option<String> {
    chain(error).find_map(|error| error.downcast_ref::<Raised>()).map(|raised| raised.0.clone())
}

fn out_of_fuel(error: &minijinja::Error) -> bool {
    chain(error)
        .filter_map(|error| error.downcast_ref::<minijinja::Error>())
        .any(|e| e.kind() == ErrorKind::OutOfFuel)
}

//! `thin run`: a prompt answered or completed, or a person to chat with.

use thintensor::chat::{Conversation, RenderOptions};
use thintensor::engine::{self, Outputs};
use thintensor::generate::{FinishReason, Options};

use super::args::RunArgs;
use super::error::{Error, Exit};
use super::model::{self, Loaded, Source, Wanted};
use super::prompt::{self, Input};
use super::reply::{self, Show};
use super::{chat, report, values};

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<Exit, Error> {
    let settings = args.engine.meaning()?;
    let variables = values::chat_variables(&args.chat_arg)?;
    args.sampling.check()?;
    let elsewhere = args.file.is_some() || args.ids.given();
    let (source, argument) = match (&args.model, &args.prompt) {
        (None, _) => (Source::Demo, None),
        (Some(model), Some(prompt)) => (model::source(model)?, Some(prompt.clone())),
        (Some(model), None) if elsewhere => (model::source(model)?, None),
        (Some(only), None) => model::model_or_prompt(only)?,
    };
    let input = prompt::input(args, argument.as_deref())?;
    if input == Input::Person && args.json {
        return Err(Error::usage("--json needs a prompt", "give one as an argument or on stdin"));
    }

    let wanted = Wanted { context: args.context, tokens: None, outputs: Outputs::Ids };
    let loaded = model::load(&source, &settings, wanted)?;
    let render = RenderOptions { add_generation_prompt: true, variables, ..Default::default() };
    let chats = loaded.model.template.is_some() && loaded.model.tokenizer.is_some() && !args.raw;
    if !(chats && matches!(input, Input::Text(_) | Input::Person)) {
        needs_template(args)?;
    }
    let (ids, style) = match &input {
        Input::Person => {
            let options = args.sampling.options(&loaded.model.defaults);
            return chat::chat(args, &loaded, render, options, chats);
        }
        Input::Ids(ids) => (ids.clone(), None),
        Input::Text(text) if chats => {
            let mut conversation = conversation(args);
            conversation.push("user", text);
            check_length(&loaded, text)?;
            let (rendered, style) = loaded.model.render(&conversation, &render)?;
            (rendered.ids, Some(style))
        }
        Input::Text(text) => (completion_ids(&loaded, text)?, None),
    };
    check_ids(&loaded, &ids)?;
    let options = Options { style, ..args.sampling.options(&loaded.model.defaults) };
    if let Input::Text(text) = &input
        && !chats
        && !args.json
        && report::stdout_is_terminal()
    {
        report::print(&report::dimmed(text))?;
    }
    once(args, &loaded, &ids, &options, settings.budget)
}

/// Flags that only a chat template can follow.
fn needs_template(args: &RunArgs) -> Result<(), Error> {
    let flag = match (&args.system, args.chat_arg.first()) {
        (Some(_), _) => "--system",
        (None, Some(_)) => "--chat-arg",
        (None, None) => return Ok(()),
    };
    Err(Error::usage(
        format!("{flag} needs a chat template, and here none is used"),
        "leave it out, or run a model that has a chat template, without --raw and token ids",
    ))
}

/// A conversation that so far has at most a system message.
pub(crate) fn conversation(args: &RunArgs) -> Conversation {
    let mut conversation = Conversation::new();
    if let Some(system) = &args.system {
        conversation.push("system", system);
    }
    conversation
}

/// The ids of a text to complete.
///
/// **Errors**: there is no tokenizer, or the text is too long.
pub(crate) fn completion_ids(loaded: &Loaded, text: &str) -> Result<Vec<u32>, Error> {
    check_length(loaded, text)?;
    let tokenizer = loaded.model.tokenizer()?;
    let prompt = tokenizer.encode_prompt(text).map_err(thintensor::Error::from)?;
    if let Some(warning) = prompt.warning {
        report::warn(&warning.to_string());
    }
    Ok(prompt.ids)
}

/// Refuses a text that is certainly too long.
fn check_length(loaded: &Loaded, text: &str) -> Result<(), Error> {
    let engine = &loaded.model.engine;
    let tokenizer = loaded.model.tokenizer()?;
    let trained = engine.spec().longest_context();
    prompt::check_length(tokenizer, text, engine.context(), trained)
}

/// Refuses ids that do not fit or do not exist.
pub(crate) fn check_ids(loaded: &Loaded, ids: &[u32]) -> Result<(), Error> {
    let engine = &loaded.model.engine;
    if ids.len() > engine.context() as usize {
        let trained = engine.spec().longest_context();
        return Err(prompt::too_long(ids.len(), engine.context(), trained));
    }
    let vocab = engine.spec().vocab_size;
    match ids.iter().find(|&&id| id >= vocab) {
        Some(&token) => Err(thintensor::Error::from(engine::Error::Token { token, vocab }).into()),
        None => Ok(()),
    }
}

/// What of a reply is shown.
pub(crate) fn shown(args: &RunArgs) -> Show {
    match (args.json, args.hide_thinking) {
        (true, _) => Show::Nothing,
        (false, true) => Show::Answer,
        (false, false) => Show::Thinking,
    }
}

/// One reply, then the end.
fn once(
    args: &RunArgs,
    loaded: &Loaded,
    ids: &[u32],
    options: &Options,
    budget: Option<u64>,
) -> Result<Exit, Error> {
    let mut session = loaded.model.engine.session()?;
    let mut reply = reply::draw(loaded, &mut session, ids, options, shown(args))?;
    if args.hide_thinking {
        reply.reasoning.clear();
    }
    let interrupted = reply.finish_reason == FinishReason::Interrupted;
    if args.json {
        report::print_json(&reply::Report::new(loaded, ids.len(), options, budget, &reply))?;
    }
    if reply.finish_reason == FinishReason::Context && !args.json {
        report::warn(&format!("the reply ends here: {}", context_full(loaded)));
    }
    if args.stats || (interrupted && !args.json) {
        report::say(reply::stats(loaded, &session, ids.len(), &reply).trim_end());
    }
    Ok(if interrupted { Exit::Interrupted } else { Exit::Success })
}

/// Why a reply ended that the model would have gone on with.
pub(crate) fn context_full(loaded: &Loaded) -> String {
    let context = loaded.model.engine.context();
    let trained = loaded.model.engine.spec().longest_context();
    if context < trained {
        format!("the context of {context} tokens is full (--context can be up to {trained})")
    } else {
        format!("the context of {context} tokens is full, and the model was trained for no more")
    }
}

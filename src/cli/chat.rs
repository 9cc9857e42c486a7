//! A chat on a terminal: lines edited, turns kept, replies shown as they arrive.
//!
//! All turns are rendered again each time, and `generate` keeps what the session holds of the result. A turn
//! that fails is withdrawn, so that the conversation stays as it was. Without a chat template each input is
//! a text to complete.

use std::io::Write;
use std::path::{Path, PathBuf};

use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use serde_json::json;
use thintensor::chat::{Conversation, Message, RenderOptions};
use thintensor::engine::Session;
use thintensor::generate::{FinishReason, Options, Reply};

use super::args::RunArgs;
use super::error::{Error, Exit};
use super::model::Loaded;
use super::{reply, report, run};

const HELP: &str = "\
/reset      forget the conversation
/save FILE  write the conversation as JSON
/stats      numbers of the last reply
/exit       leave (also Ctrl-D, and Ctrl-C at the prompt)
/help       this list
A backslash at the end of a line goes on in the next one; so does all that stands between lines with \"\"\".
Ctrl-C stops a reply. A line that starts with a space is never a command.";

/// What a person typed.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Text(String),
    Command(String, String),
    /// End of input.
    End,
    /// Ctrl-C.
    Interrupted,
}

/// Talks with a person until they leave. `chats` is false for texts to complete.
///
/// **Errors**: the terminal or the device fails.
pub(crate) fn chat(
    args: &RunArgs,
    loaded: &Loaded,
    render: RenderOptions,
    options: Options,
    chats: bool,
) -> Result<Exit, Error> {
    loaded.model.tokenizer()?;
    let engine = &loaded.model.engine;
    report::say(&format!(
        "{} on {}, context {} tokens; {}. /help lists commands.",
        loaded.name,
        engine.device().name,
        engine.context(),
        if chats { "chat" } else { "no chat template: each text is completed" },
    ));
    let mut chat = Chat {
        args,
        loaded,
        render,
        options,
        chats,
        conversation: run::conversation(args),
        session: engine.session()?,
        stats: None,
        saved: None,
    };
    let mut editor = editor()?;
    loop {
        match read(&mut editor)? {
            Typed::Text(text) => chat.turn(&text)?,
            Typed::End => return Ok(Exit::Success),
            Typed::Interrupted => return Ok(Exit::Interrupted),
            Typed::Command(name, rest) => {
                if chat.command(&name, &rest)? {
                    return Ok(Exit::Success);
                }
            }
        }
    }
}

/// A line editor whose prompt does not go into a stdout that is not a terminal.
fn editor() -> Result<DefaultEditor, Error> {
    let behavior =
        if report::stdout_is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
    let config = Config::builder().behavior(behavior).bracketed_paste(true).build();
    DefaultEditor::with_config(config).map_err(terminal_error)
}

fn terminal_error(error: ReadlineError) -> Error {
    let source = match error {
        ReadlineError::Io(source) => source,
        other => std::io::Error::other(other),
    };
    Error::Io { verb: "read", what: "the terminal".into(), source }
}

/// Reads one input, which may have several lines.
fn read(editor: &mut DefaultEditor) -> Result<Typed, Error> {
    let mut lines = Lines::default();
    loop {
        let prompt = if lines.text.is_none() { "> " } else { ". " };
        match editor.readline(prompt) {
            Ok(line) => {
                if let Some(text) = lines.add(&line) {
                    // The history is for this session only, and a missing entry harms nobody.
                    let _ = editor.add_history_entry(text.as_str());
                    return Ok(meaning(text));
                }
            }
            Err(ReadlineError::Interrupted) => return Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => return Ok(Typed::End),
            Err(error) => return Err(terminal_error(error)),
        }
    }
}

/// Lines of an input so far.
#[derive(Default)]
struct Lines {
    text: Option<String>,
    quoted: bool,
}

impl Lines {
    /// Adds a line; gives the whole input where that was the last one.
    fn add(&mut self, line: &str) -> Option<String> {
        let first = self.text.is_none();
        let text = self.text.get_or_insert_default();
        if !first {
            text.push('\n');
        }
        let mut line = line;
        if first && let Some(rest) = line.strip_prefix("\"\"\"") {
            self.quoted = true;
            line = rest;
        }
        if self.quoted {
            let Some(last) = line.trim_end().strip_suffix("\"\"\"") else {
                text.push_str(line);
                return None;
            };
            text.push_str(last);
            return self.text.take().map(|text| text.trim_matches('\n').to_owned());
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                text.push_str(part);
                None
            }
            None => {
                text.push_str(line);
                self.text.take()
            }
        }
    }
}

/// A command is a slash and a word; a path has more slashes.
fn meaning(text: String) -> Typed {
    let line = text.trim_end();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match name.strip_prefix('/') {
        Some(name) if name.chars().all(|c| c.is_ascii_alphabetic()) && !text.contains('\n') => {
            Typed::Command(name.to_owned(), rest.trim().to_owned())
        }
        _ => Typed::Text(text),
    }
}

struct Chat<'a> {
    args: &'a RunArgs,
    loaded: &'a Loaded,
    render: RenderOptions,
    options: Options,
    chats: bool,
    conversation: Conversation,
    session: Session,
    stats: Option<String>,
    /// The file this conversation was written to, which may be written again.
    saved: Option<PathBuf>,
}

impl Chat<'_> {
    /// One input and its reply.
    fn turn(&mut self, text: &str) -> Result<(), Error> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let turns = self.conversation.messages.len();
        if self.chats {
            self.conversation.push("user", text);
        }
        match self.reply(text) {
            Ok(reply) if reply.token_ids.is_empty() => self.withdraw(turns),
            Ok(reply) => {
                if self.chats {
                    self.conversation.messages.push(message(&reply));
                }
            }
            Err(Error::ClosedPipe) => return Err(Error::ClosedPipe),
            Err(error @ Error::Library(thintensor::Error::Backend(_))) => return Err(error),
            Err(error) => {
                error.tell(false);
                self.withdraw(turns);
                report::say("the turn was withdrawn; /reset starts the conversation over");
            }
        }
        Ok(())
    }

    fn withdraw(&mut self, turns: usize) {
        self.conversation.messages.truncate(turns);
    }

    fn reply(&mut self, text: &str) -> Result<Reply, Error> {
        let model = &self.loaded.model;
        let (ids, style) = if self.chats {
            let (rendered, style) = model.render(&self.conversation, &self.render)?;
            (rendered.ids, Some(style))
        } else {
            (run::completion_ids(self.loaded, text)?, None)
        };
        run::check_ids(self.loaded, &ids)?;
        let options = Options { style, ..self.options.clone() };
        let show = run::shown(self.args);
        let reply = reply::draw(self.loaded, &mut self.session, &ids, &options, show)?;
        let stats = reply::stats(self.loaded, &self.session, ids.len(), &reply);
        if reply.finish_reason == FinishReason::Context {
            report::warn(&format!("the reply ends here: {}", run::context_full(self.loaded)));
        }
        if self.args.stats || reply.finish_reason == FinishReason::Interrupted {
            report::say(stats.trim_end());
        }
        self.stats = Some(stats);
        Ok(reply)
    }

    /// Carries a command out; true where it was the last one.
    fn command(&mut self, name: &str, rest: &str) -> Result<bool, Error> {
        match name {
            "exit" | "quit" | "bye" => return Ok(true),
            "help" => report::say(HELP),
            "stats" => report::say(self.stats.as_deref().unwrap_or("no reply yet").trim_end()),
            "reset" => {
                self.conversation = run::conversation(self.args);
                self.session.truncate(0)?;
                self.saved = None;
                report::say("the conversation is forgotten");
            }
            "save" => match self.save(Path::new(rest)) {
                Ok(()) => report::say(&format!("wrote '{rest}'")),
                Err(error) => error.tell(false),
            },
            other => {
                report::say(&format!("there is no command /{other}; /help lists those there are"));
            }
        }
        Ok(false)
    }

    /// Writes the turns, whole or not at all.
    fn save(&mut self, path: &Path) -> Result<(), Error> {
        if !self.chats {
            return Err(Error::usage(
                "there is no conversation: each text is completed by itself",
                "run a model that has a chat template",
            ));
        }
        if path.as_os_str().is_empty() {
            return Err(Error::usage("/save needs the name of a file", "/save chat.json"));
        }
        if path.exists() && self.saved.as_deref() != Some(path) {
            let message = format!("'{}' exists already", path.display());
            return Err(Error::usage(message, "choose another name"));
        }
        let text = format!(
            "{:#}\n",
            json!({
                "model": self.loaded.name,
                "messages": self.conversation.messages,
            })
        );
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        std::fs::File::create(&partial)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&partial, path))
            .map_err(|source| {
                // Best effort: the error is what matters.
                let _ = std::fs::remove_file(&partial);
                Error::Io { verb: "write", what: path.display().to_string(), source }
            })?;
        self.saved = Some(path.to_owned());
        Ok(())
    }
}

/// A reply as a turn; templates that show earlier thoughts find them under `reasoning_content`.
fn message(reply: &Reply) -> Message {
    let message = Message::new("assistant", reply.text.as_str());
    if reply.reasoning.is_empty() {
        return message;
    }
    message.with("reasoning_content", reply.reasoning.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(lines: &[&str]) -> Option<String> {
        let mut so_far = Lines::default();
        let (last, before) = lines.split_last().expect("a line");
        for line in before {
            assert_eq!(so_far.add(line), None, "{line}");
        }
        so_far.add(last)
    }

    #[test]
    fn a_backslash_and_three_quotes_go_on_in_the_next_line() {
        assert_eq!(whole(&["one"]).as_deref(), Some("one"));
        assert_eq!(whole(&["one\\", "two"]).as_deref(), Some("one\ntwo"));
        assert_eq!(whole(&["\"\"\"one", "", "two\"\"\""]).as_deref(), Some("one\n\ntwo"));
        assert_eq!(whole(&["\"\"\"one\"\"\""]).as_deref(), Some("one"));
        assert_eq!(whole(&["\"\"\"", "one", "\"\"\""]).as_deref(), Some("one"));
    }

    #[test]
    fn commands_are_a_slash_and_a_word() {
        let command = |name: &str, rest: &str| Typed::Command(name.into(), rest.into());

        assert_eq!(meaning("/save a b.json".into()), command("save", "a b.json"));
        assert_eq!(meaning("/exit ".into()), command("exit", ""));
        assert_eq!(meaning("/etc/passwd?".into()), Typed::Text("/etc/passwd?".into()));
        assert_eq!(meaning(" /exit".into()), Typed::Text(" /exit".into()));
    }
}

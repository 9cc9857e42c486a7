//! Conversations to token ids, and replies back to text.
//!
//! A [`Conversation`] goes through the model's own chat template (`template`), with the control tokens that stand
//! inside messages disarmed (`shield`), and comes out as ids. On the way back, `channels` separates reasoning and
//! tool calls from the answer. Depends on `tokenizer` and `detokenize`. Start reading at [`Template::render_ids`].

pub mod channels;
mod guard;
mod python;
mod shield;
mod template;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use template::{RenderOptions, Rendered, Template};

/// Why a conversation could not be turned into a prompt.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template asked for by name is not there.
    #[error("the model has no chat template named '{name}', only {available}")]
    NoSuchTemplate {
        /// The name asked for.
        name: String,
        /// The names there are.
        available: String,
    },
    /// The template is not text in UTF-8.
    #[error("chat_template.jinja is not UTF-8 after byte {valid_up_to} of {bytes}")]
    NotUtf8 {
        /// Bytes that are.
        valid_up_to: usize,
        /// Length of the file.
        bytes: usize,
    },
    /// The template has a syntax error.
    #[error("chat template '{name}' is not valid at line {line}: {reason}")]
    Syntax {
        /// Name of the template.
        name: String,
        /// Where.
        line: usize,
        /// What the template engine found.
        reason: String,
    },
    /// The template refused the conversation with its own words.
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// The text the template gave to `raise_exception`.
        message: String,
    },
    /// The template failed while it ran.
    #[error("the chat template failed at line {line}: {reason}")]
    Failed {
        /// Where.
        line: usize,
        /// What the template engine found.
        reason: String,
    },
    /// The template worked longer than any real one does.
    #[error("the chat template did not finish within {steps} steps")]
    TooMuchWork {
        /// The limit.
        steps: u64,
    },
    /// The system gave no thread to run the template on.
    #[error("the chat template cannot be run: no thread")]
    NoThread {
        /// What the system said.
        source: std::io::Error,
    },
    /// The template wrote more than any real one does.
    #[error("the chat template wrote more than {limit} bytes for {input} bytes of messages")]
    TooLong {
        /// The limit.
        limit: usize,
        /// Size of the conversation.
        input: usize,
    },
    /// A message holds something other than text.
    #[error("message {index} has a part of type '{kind}', but only text is supported")]
    UnsupportedPart {
        /// Place of the message, from 0.
        index: usize,
        /// The type of the part.
        kind: String,
    },
    /// Every private-use character occurs in the messages, so that none is left as a stand-in.
    #[error("the messages use all {count} private-use characters")]
    NoStandIn {
        /// How many there are.
        count: usize,
    },
    /// Reading the text files or tokenising failed.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::Error),
}

impl Error {
    /// One sentence on what to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoTemplate => Some("use --raw to complete the text as it is".into()),
            Self::Refused { .. } => {
                Some("change the messages as the template asks: often no system message, or strictly alternating turns".into())
            }
            Self::UnsupportedPart { .. } => Some("send the message as plain text".into()),
            Self::Syntax { .. } | Self::Failed { .. } | Self::TooMuchWork { .. } | Self::TooLong { .. } => {
                Some("use --raw to go without the template".into())
            }
            Self::NoSuchTemplate { .. }
            | Self::NotUtf8 { .. }
            | Self::NoStandIn { .. }
            | Self::NoThread { .. } => None,
            Self::Tokenizer(error) => error.hint(),
        }
    }
}

/// One turn, in the shape of the OpenAI and Hugging Face APIs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// Text, a list of parts (`{"type": "text", "text": ...}`), or null beside tool calls.
    #[serde(default)]
    pub content: Value,
    /// Everything else: `tool_calls`, `reasoning_content`, `name`, ...
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Value::String(text.into()), extra: Map::new() }
    }

    /// The same message with one more field, such as `reasoning_content`.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(key.into(), value.into());
        self
    }
}

/// The turns so far, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conversation {
    /// The turns.
    pub messages: Vec<Message>,
}

impl Conversation {
    /// An empty conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a turn of plain text.
    pub fn push(&mut self, role: &str, text: &str) {
        self.messages.push(Message::new(role, text));
    }
}

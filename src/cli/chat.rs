//! A chat on a terminal.

use thintensor::chat::RenderOptions;
use thintensor::generate::Options;

use super::args::RunArgs;
use super::error::{Error, Exit};
use super::model::Loaded;

/// Talks with a person until they leave.
pub(crate) fn chat(
    _args: &RunArgs,
    _loaded: &Loaded,
    _render: RenderOptions,
    _options: Options,
    _chats: bool,
) -> Result<Exit, Error> {
    Err(Error::usage("no chat yet", "give a prompt"))
}

//! The command line: one file per command, and what they share.
//!
//! Commands: [`run`] with [`chat`], [`convert`], [`verify`], [`extract`], [`inspect`], [`stats`], [`logits`],
//! [`completions`]. From what is typed to what it means: [`args`], [`values`], [`model`], [`prompt`],
//! [`sampling`]. On the way out: [`reply`], [`report`], [`error`]. Around all: [`interrupt`], [`environment`].

mod args;
mod chat;
pub(crate) mod environment;
pub(crate) mod error;
mod interrupt;
mod logits;
mod model;
mod prompt;
mod reply;
mod report;
mod run;
mod sampling;
mod values;

pub(crate) use args::Cli;
use args::Command;
use error::{Error, Exit};

/// Carries a command out.
///
/// **Errors**: whatever ends it early.
pub(crate) fn execute(command: &Command) -> Result<Exit, Error> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Logits(args) => logits::logits(args),
        _ => Err(Error::usage("not yet", "wait")),
    }
}

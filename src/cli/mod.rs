//! The command line: one file per command, and what they share.
//!
//! Commands: [`run`] with [`chat`], [`convert`], [`verify`], [`extract`], [`inspect`], [`stats`], [`logits`],
//! [`completions`]; [`v0`] shows archives of the older version. From what is typed to what it means: [`args`], [`values`], [`model`], [`prompt`],
//! [`sampling`]. On the way out: [`reply`], [`report`], [`error`]. Around all: [`interrupt`], [`environment`].

mod args;
mod chat;
mod completions;
mod convert;
pub(crate) mod environment;
pub(crate) mod error;
mod extract;
mod inspect;
mod interrupt;
mod logits;
mod model;
mod prompt;
mod reply;
mod report;
mod run;
mod sampling;
mod stats;
mod v0;
mod values;
mod verify;

pub(crate) use args::Cli;
use args::Command;
use error::{Error, Exit};

/// Carries a command out.
///
/// **Errors**: whatever ends it early.
pub(crate) fn execute(command: &Command) -> Result<Exit, Error> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Convert(args) => convert::convert(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Stats(args) => stats::stats(args),
        Command::Verify(args) => verify::verify(args),
        Command::Extract(args) => extract::extract(args),
        Command::Logits(args) => logits::logits(args),
        Command::Completions(args) => completions::completions(args),
    }
}

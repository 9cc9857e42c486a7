//! `thin completions`: what a shell needs to complete the command line.

use clap::CommandFactory;

use super::args::{Cli, CompletionsArgs};
use super::error::{Error, Exit};
use super::report;

/// Runs the command.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "thin", &mut script);
    report::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

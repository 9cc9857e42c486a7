//! The `thin` binary: parse, dispatch, print the error chain and its hint, set the exit code.

mod cli;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::Cli;
use cli::error::{Exit, write_json};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error).into(),
    };
    let json = cli.command.json();
    cli::environment::warn_of_unknown();
    let outcome =
        cli::environment::start_logging(cli.verbose).and_then(|()| cli::execute(&cli.command));
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => {
            error.tell(json);
            error.exit().into()
        }
    }
}

/// Help and version are answers; everything else is a mistake on the command line.
fn not_parsed(error: &clap::Error) -> Exit {
    let answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    match error.print() {
        Ok(()) => {}
        Err(broken) if broken.kind() == std::io::ErrorKind::BrokenPipe => return Exit::ClosedPipe,
        Err(_) if answer => return Exit::Failed,
        Err(_) => {}
    }
    if answer {
        return Exit::Success;
    }
    let options = std::env::args_os().take_while(|argument| argument != "--");
    if options.into_iter().any(|argument| argument == "--json") {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let _ = write_json(message, Some("see --help".into()));
    }
    Exit::Usage
}

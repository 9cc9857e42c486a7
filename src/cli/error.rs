//! What ends a command early, how it is told, and the exit code it becomes.
//!
//! Errors of the library keep their own words and hints; [`Error::exit`] decides which of them are the
//! fault of the command line. Nothing here panics when stderr is closed.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};
use thintensor::{backend, engine, import};

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Success,
    /// It failed, or found something wrong.
    Failed,
    /// The command line cannot be followed, or the prompt does not fit.
    Usage,
    /// Stopped with Ctrl-C.
    Interrupted,
    /// Nobody reads what it writes.
    ClosedPipe,
}

impl Exit {
    /// The code that the shell sees; 128 + signal where one would have ended the program.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Interrupted => 130,
            Exit::ClosedPipe => 141,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line cannot be followed.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// Something outside is not as it should be.
    #[error("{message}")]
    Failed { message: String, hint: Option<String> },
    /// The operating system refused.
    #[error("cannot {verb} '{what}'")]
    Io { verb: &'static str, what: String, source: std::io::Error },
    /// The library refused.
    #[error(transparent)]
    Library(#[from] thintensor::Error),
    /// The user stopped it.
    #[error("stopped by Ctrl-C")]
    Interrupted { hint: Option<String> },
    /// Nobody reads stdout any more.
    #[error("nobody reads the output")]
    ClosedPipe,
}

impl Error {
    /// A command line that cannot be followed, and what to write instead.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// What the user could do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Error::Usage { hint, .. }
            | Error::Failed { hint, .. }
            | Error::Interrupted { hint } => hint.clone(),
            Error::Library(error) => error.hint(),
            Error::Io { .. } | Error::ClosedPipe => None,
        }
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Error::Usage { .. } => Exit::Usage,
            Error::Failed { .. } | Error::Io { .. } => Exit::Failed,
            Error::Interrupted { .. } => Exit::Interrupted,
            Error::ClosedPipe => Exit::ClosedPipe,
            Error::Library(error) => library_exit(error),
        }
    }

    /// The causes, outermost first. Those that the message quotes already are left out.
    fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut told = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            let text = cause.to_string();
            if !told.contains(&text) {
                told.push_str(&text);
                causes.push(text);
            }
            next = cause.source();
        }
        causes
    }

    /// Tells the user on stderr, and in JSON on stdout where a program reads that.
    pub(crate) fn tell(&self, as_json: bool) {
        if matches!(self, Error::ClosedPipe) {
            return;
        }
        let causes = self.causes();
        let mut text = format!("error: {self}\n");
        for cause in &causes {
            text.push_str(&format!("  caused by: {cause}\n"));
        }
        if let Some(hint) = self.hint() {
            text.push_str(&format!("hint: {hint}\n"));
        }
        // Where nobody listens there is nothing left to do.
        let _ = std::io::stderr().write_all(text.as_bytes());
        if as_json {
            let message = [vec![self.to_string()], causes].concat().join(": ");
            let _ = write_json(&message, self.hint());
        }
    }
}

/// Writes `{"error": {"message", "hint"}}` to stdout.
pub(crate) fn write_json(message: &str, hint: Option<String>) -> std::io::Result<()> {
    let object: Value = json!({"error": {"message": message, "hint": hint}});
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{object}")?;
    stdout.flush()
}

/// Errors of the library that say no more than that the command line asks for the impossible.
fn library_exit(error: &thintensor::Error) -> Exit {
    use thintensor::Error as E;
    match error {
        E::Engine(
            engine::Error::ContextBeyondTraining { .. }
            | engine::Error::ContextFull { .. }
            | engine::Error::Token { .. }
            | engine::Error::NoTokens,
        )
        | E::Backend(backend::Error::NoSuchDevice { .. } | backend::Error::Ambiguous { .. })
        | E::Import(
            import::Error::NotFound { .. }
            | import::Error::TwoTokenizers { .. }
            | import::Error::NothingToDequantize { .. },
        )
        | E::Sample(_)
        | E::Detokenize(_) => Exit::Usage,
        E::Engine(engine::Error::Interrupted) => Exit::Interrupted,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_does_not_fit_is_a_usage_error_and_a_nan_is_not() {
        let full = engine::Error::ContextFull { needed: 600, context: 512 };
        let nan = engine::Error::NotFinite { layer: Some(3), position: 0 };

        assert_eq!(Error::Library(full.into()).exit().code(), 2);
        assert_eq!(Error::Library(nan.into()).exit().code(), 1);
    }

    #[test]
    fn causes_are_listed_once() {
        let io = std::io::Error::other("the disk is on fire");
        let error = Error::Io { verb: "read", what: "a".into(), source: io };

        assert_eq!(error.causes(), ["the disk is on fire"]);
    }
}

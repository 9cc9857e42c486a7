//! What the environment says: logging, and misspelt variables that would otherwise do nothing silently.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use super::error::Error;
use super::{report, values};

/// The variables that mean something; the last two are read by the tests.
const VARIABLES: [&str; 3] = ["THIN_LOG", "THIN_MODELS", "THIN_REQUIRE"];

/// Warns of variables that look like ours and are not.
pub(crate) fn warn_of_unknown() {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if !name.starts_with("THIN_") || VARIABLES.contains(&name.as_ref()) {
            continue;
        }
        let meant = match values::similar(&name, VARIABLES).first() {
            Some(nearest) => format!("; did you mean {nearest}?"),
            None => format!("; the variables are {}", VARIABLES.join(", ")),
        };
        report::warn(&format!("the environment variable {name} has no effect{meant}"));
    }
}

/// Sends events to stderr: warnings, or what `--verbose` and THIN_LOG ask for.
///
/// **Errors**: THIN_LOG is not a filter.
pub(crate) fn start_logging(verbose: bool) -> Result<(), Error> {
    let asked = std::env::var("THIN_LOG").ok().filter(|text| !text.is_empty());
    let plain = asked.is_none() && !verbose;
    let text = match &asked {
        Some(text) => text.as_str(),
        None if verbose => "thintensor=debug,thin=debug",
        None => "warn",
    };
    let filter = EnvFilter::builder().parse(text).map_err(|error| {
        Error::usage(
            format!("THIN_LOG={text} is not a filter: {error}"),
            "use error, warn, info, debug or trace, or pairs such as thintensor::engine=trace",
        )
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false) // a closed stderr is no reason to panic
        .with_ansi(std::io::stderr().is_terminal() && report::colours());
    let started = if plain {
        subscriber.without_time().with_target(false).try_init()
    } else {
        subscriber.try_init()
    };
    // Only a second start in one process could fail, and `main` is the one caller.
    debug_assert!(started.is_ok(), "logging starts once");
    Ok(())
}

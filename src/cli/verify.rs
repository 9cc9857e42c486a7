//! `thin verify`: every byte of an archive looked at.

use std::path::Path;
use std::sync::Arc;

use thintensor::engine::Engine;
use thintensor::format::Archive;
use thintensor::format::verify::{Check, Report, Status, verify as check};
use thintensor::import::v0;

use super::args::VerifyArgs;
use super::error::{Error, Exit};
use super::model::{self, Source};
use super::report::{self, Progress};

/// Runs the command.
pub(crate) fn verify(args: &VerifyArgs) -> Result<Exit, Error> {
    let path = match model::source(&args.archive)? {
        Source::Demo => {
            return Err(Error::usage(
                "the demo model is built into the program",
                "give the path of a .thin archive",
            ));
        }
        Source::Path(path) if path.is_dir() => return Err(model::folder(&path)),
        Source::Path(path) => path,
    };
    let bar = Progress::new("checking");
    let v0 = path.is_file() && model::is_v0(&path).unwrap_or(false);
    let progress = |event| bar.event(event);
    let found = match v0 {
        true => v0::verify(&path, &progress).map_err(thintensor::Error::from),
        false => check(&path, &progress).map_err(thintensor::Error::from),
    };
    bar.finish();
    let mut found = found?;
    if !v0 {
        let described = described(&path, found.ok);
        found.ok &= described.status == Status::Passed;
        found.checks.push(described);
    } else {
        report::note(
            "version 0 has no hash over its settings: a change that contradicts nothing is not noticed",
        );
    }
    if args.json {
        report::print_json(&found)?;
    } else {
        report::print(&text(&found))?;
    }
    if found.ok {
        return Ok(Exit::Success);
    }
    let first = found.checks.iter().find_map(|check| check.problems.first());
    report::say(&format!(
        "error: '{}' is damaged{}\nhint: copy or convert it again",
        found.archive,
        first.map_or_else(String::new, |problem| format!(": {problem}"))
    ));
    Ok(Exit::Failed)
}

/// Whether the model description fits the pages: that a file is as it was written does not say that it runs.
fn described(path: &Path, sound: bool) -> Check {
    let mut check =
        Check { name: "model_description", status: Status::NotRun, problems: Vec::new(), more: 0 };
    if sound {
        let plan = Archive::open(path)
            .map_err(thintensor::Error::from)
            .and_then(|archive| Engine::builder(Arc::new(archive)).plan());
        match plan {
            Ok(_) => check.status = Status::Passed,
            Err(error) => {
                check.status = Status::Failed;
                check.problems.push(error.to_string());
            }
        }
    }
    check
}

fn text(found: &Report) -> String {
    let rows: Vec<Vec<String>> = found
        .checks
        .iter()
        .map(|check| vec![check.name.replace('_', " "), status(check).into()])
        .collect();
    let mut text = format!(
        "{}: {}, {} pages, {} tensors\n",
        found.archive,
        report::bytes(found.bytes),
        report::grouped(found.pages),
        report::grouped(found.tensors)
    );
    text.push_str(&report::table(&["check", "result"], &rows));
    for check in &found.checks {
        for problem in &check.problems {
            text.push_str(&format!("{}: {problem}\n", check.name));
        }
        if check.more > 0 {
            text.push_str(&format!("{}: and {} more\n", check.name, report::grouped(check.more)));
        }
    }
    text
}

fn status(check: &Check) -> &'static str {
    match check.status {
        Status::Passed => "ok",
        Status::Failed => "FAILED",
        Status::NotRun => "not run",
    }
}

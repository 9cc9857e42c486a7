//! Looks at every byte of a version-0 archive and lists what is wrong, as far as the format allows: nothing
//! covers the header and the manifest, so that a change there is noticed only where it contradicts something.

use std::path::Path;

use super::layout::{self, Header};
use super::manifest::Manifest;
use super::{Archive, Problem, check};
use crate::format::verify::{Check, Report, Status};
use crate::format::{Event, Progress};
use crate::import::Error;
use crate::import::map::Map;

/// The checks, in the order they run.
const NAMES: [&str; 5] = ["header", "page_table", "manifest", "agreement", "pages"];
/// More problems than this are counted but not listed.
const MAX_PROBLEMS: usize = 64;

/// Checks the archive at `path`.
///
/// **Errors**: only that the file cannot be opened. What is wrong with it is in the report.
pub fn verify(path: &Path, progress: Progress<'_>) -> Result<Report, Error> {
    let map = Map::open(path)?;
    let check = |name| Check { name, status: Status::NotRun, problems: Vec::new(), more: 0 };
    let mut report = Report {
        archive: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        bytes: map.bytes().len() as u64,
        ok: false,
        pages: 0,
        tensors: 0,
        checks: NAMES.into_iter().map(check).collect(),
    };
    run(map, &mut report, progress);
    report.ok = report.checks.iter().all(|check| check.status == Status::Passed);
    Ok(report)
}

fn run(map: Map, report: &mut Report, progress: Progress<'_>) {
    let Some(header) = note(report, "header", Header::parse(map.bytes())) else {
        return;
    };
    let records = note(report, "page_table", layout::table(map.bytes(), &header));
    let manifest = note(report, "manifest", Manifest::parse(header.manifest(map.bytes())));
    report.pages = records.as_ref().map_or(0, |records| records.len() as u64);
    let (Some(records), Some(manifest)) = (records, manifest) else {
        return;
    };
    let mut found = check::Findings::all();
    let len = map.bytes().len() as u64;
    let tensors = check::check(len, &header, &records, &manifest, &mut found);
    report.tensors = tensors.len() as u64;
    note(report, "agreement", Ok(()));
    for problem in found.problems {
        note::<()>(report, "agreement", Err(problem));
    }
    if let Some(check) = report.checks.iter_mut().find(|check| check.name == "agreement") {
        check.more += found.more;
    }

    let archive = Archive { map, header, records, manifest, tensors };
    let total = archive.records.iter().map(|record| record.stored);
    progress(Event::Start { bytes: total.fold(0, u64::saturating_add).min(len) });
    note(report, "pages", Ok(()));
    let mut done = 0u64;
    for record in &archive.records {
        note(report, "pages", archive.check_page(record));
        done = done.saturating_add(record.stored).min(len);
        progress(Event::Done { bytes: done });
    }
}

/// Marks a check as run, and notes the problem where there is one.
fn note<T>(report: &mut Report, name: &str, result: Result<T, Problem>) -> Option<T> {
    let check = report.checks.iter_mut().find(|check| check.name == name)?;
    match result {
        Ok(value) => {
            if check.status == Status::NotRun {
                check.status = Status::Passed;
            }
            Some(value)
        }
        Err(problem) => {
            check.status = Status::Failed;
            if check.problems.len() < MAX_PROBLEMS {
                check.problems.push(problem.to_string());
            } else {
                check.more += 1;
            }
            None
        }
    }
}

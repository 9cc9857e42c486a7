//! Looks at every byte of an archive and says what is wrong where.
//!
//! Unlike opening, this goes on after a failure as far as the file allows. Pages are read once, in file
//! order: each is hashed, the zeros behind it are checked, and the source rows it holds are unpacked into
//! the hashes of their tensors (`sweep`). Tensors whose rows do not lie in source order are
//! read again at the end.

use std::path::Path;

use super::reader::{Front, Source, check_length, gap_after, read_header, zeros};
use super::sweep::Sweep;
use super::unpack::Recent;
use super::{Archive, Error, Event, MAX_PART_BYTES, Manifest, PageRecord, Progress, check, table};

/// More problems than this are counted but not listed.
const MAX_PROBLEMS: usize = 64;

/// The checks, in the order they run.
const NAMES: [&str; 9] = [
    "header",
    "archive_hash",
    "length",
    "page_table",
    "manifest",
    "agreement",
    "padding",
    "pages",
    "tensors",
];

/// What [`verify`] found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The file's name.
    pub archive: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether every check passed.
    pub ok: bool,
    /// Pages, if the table could be read.
    pub pages: u64,
    /// Tensors, if the manifest could be read.
    pub tensors: u64,
    /// The checks, in the order they run.
    pub checks: Vec<Check>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// "header", "archive_hash", "length", "page_table", "manifest", "agreement" (of manifest and table with
    /// each other and the file), "padding", "pages", "tensors".
    pub name: &'static str,
    /// How it went.
    pub status: Status,
    /// What is wrong and where, a sentence each.
    pub problems: Vec<String>,
    /// Problems beyond those listed.
    pub more: u64,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing is wrong.
    Passed,
    /// Something is.
    Failed,
    /// An earlier failure made it impossible.
    NotRun,
}

impl Report {
    fn check(&mut self, name: &str) -> &mut Check {
        self.checks
            .iter_mut()
            .find(|check| check.name == name)
            .expect("every check is listed from the start")
    }

    /// Marks a check as run; it passes until a problem is noted.
    fn ran(&mut self, name: &str) {
        let check = self.check(name);
        if check.status == Status::NotRun {
            check.status = Status::Passed;
        }
    }

    fn problem(&mut self, name: &str, problem: String) {
        let check = self.check(name);
        check.status = Status::Failed;
        if check.problems.len() < MAX_PROBLEMS {
            check.problems.push(problem);
        } else {
            check.more += 1;
        }
    }

    fn note<T>(&mut self, name: &str, result: Result<T, Error>) -> Option<T> {
        self.ran(name);
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.problem(name, sentence(&error));
                None
            }
        }
    }
}

/// An error with its causes, in one line.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Checks the archive at `path`.
///
/// **Errors**: only that the file cannot be opened. What is wrong with it is in the report.
pub fn verify(path: &Path, progress: Progress<'_>) -> Result<Report, Error> {
    let (source, name) = Source::open(path)?;
    verify_source(source, name, progress)
}

/// [`verify`] for an archive that was read into memory.
///
/// **Errors**: as [`verify`].
pub fn verify_bytes(bytes: Vec<u8>, name: &str) -> Result<Report, Error> {
    verify_source(Source::Memory(bytes.into()), name.to_owned(), &|_| {})
}

fn verify_source(source: Source, name: String, progress: Progress<'_>) -> Result<Report, Error> {
    let mut report = Report {
        bytes: source.len(&name)?,
        archive: name.clone(),
        ok: false,
        pages: 0,
        tensors: 0,
        checks: NAMES
            .into_iter()
            .map(|name| Check { name, status: Status::NotRun, problems: Vec::new(), more: 0 })
            .collect(),
    };
    run(source, &name, &mut report, progress);
    report.ok = report.checks.iter().all(|check| check.status == Status::Passed);
    Ok(report)
}

/// Runs the checks as far as each makes the next possible.
fn run(source: Source, name: &str, report: &mut Report, progress: Progress<'_>) {
    let len = report.bytes;
    let header = read_header(&source, name, len);
    let Some(header) = report.note("header", header) else {
        return;
    };
    let front = match Front::read(&source, name, len, &header) {
        Ok(front) => front,
        Err(error) => {
            report.note::<()>("length", Err(error));
            return;
        }
    };
    report.note("archive_hash", front.check_hash(name, &header));
    report.note("padding", front.check_padding(name, &header));
    let manifest = report.note("manifest", Manifest::decode(name, &front.manifest));
    report.tensors = manifest.as_ref().map_or(0, |m| m.tensors.len() as u64);
    let pages = report.note("page_table", table::decode(&front.table));
    let known = pages.as_deref().unwrap_or(&[]);
    report.pages = known.len() as u64;
    report.note("length", check_length(name, len, &header, known));
    drop(front);
    let Some(pages) = pages else {
        return;
    };

    report.ran("agreement");
    let placement = check::placement(&pages, &header);
    let contents =
        manifest.as_ref().map_or(Vec::new(), |manifest| check::contents(manifest, &pages));
    let agrees = placement.is_empty() && contents.is_empty();
    for finding in placement.iter().chain(&contents) {
        report.problem("agreement", finding.to_string());
    }
    if !placement.is_empty() {
        return;
    }

    let manifest = manifest.filter(|_| agrees);
    let late = {
        let mut sweep = manifest.as_ref().map(|manifest| Sweep::new(name, manifest, &pages));
        read_pages(&source, name, &pages, sweep.as_mut(), report, progress);
        let Some(sweep) = sweep else {
            return;
        };
        report.ran("tensors");
        let (problems, late) = sweep.finish();
        for problem in problems {
            report.problem("tensors", sentence(&problem));
        }
        late
    };
    if let Some(manifest) = manifest {
        let archive = Archive::from_parts(source, name.into(), header, manifest, pages);
        check_late(&archive, &late, report);
    }
}

/// Hashes each page, looks at the zeros behind it, and gives it to the sweep.
fn read_pages(
    source: &Source,
    name: &str,
    pages: &[PageRecord],
    mut sweep: Option<&mut Sweep<'_>>,
    report: &mut Report,
    progress: Progress<'_>,
) {
    report.ran("pages");
    let total = pages.iter().map(|page| page.stored_len).sum();
    progress(Event::Start { bytes: total });
    let mut done = 0;
    let mut bytes = Vec::new();
    let mut gap = Vec::new();
    for page in pages {
        let read = read_whole(source, name, page, &mut bytes);
        match (read, sweep.as_deref_mut()) {
            (Ok(()), Some(sweep)) => sweep.page(page, &bytes),
            (Ok(()), None) => {}
            (Err(error), sweep) => {
                let holds = sweep.map_or(String::new(), |sweep| sweep.damaged(page));
                report.problem("pages", sentence(&error) + &holds);
            }
        }
        let end = page.offset + page.stored_len;
        gap.clear();
        gap.resize(gap_after(page) as usize, 0);
        // A gap that cannot be read is behind the end of the file, which the length check reports.
        if source.read_at(name, end, &mut gap).is_ok() {
            report.note("padding", zeros(name, "the space behind a page", end, &gap));
        }
        done += page.stored_len;
        progress(Event::Done { bytes: done });
    }
}

/// Reads a page and compares its hash. A page longer than a page can be, in an archive that contradicts
/// itself, is hashed in runs, and `bytes` is then only its last.
fn read_whole(
    source: &Source,
    name: &str,
    page: &PageRecord,
    bytes: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    loop {
        let run = (page.stored_len - at).min(MAX_PART_BYTES);
        bytes.resize(run as usize, 0);
        if let Err(error) = source.read_at(name, page.offset + at, bytes) {
            let (end, len) = (page.offset + page.stored_len, source.len(name)?);
            if end <= len {
                return Err(error);
            }
            return Err(Error::PageCut { file: name.into(), page: page.place(), end, len });
        }
        hasher.update_rayon(bytes);
        at += run;
        if at >= page.stored_len {
            break;
        }
    }
    let found = *hasher.finalize().as_bytes();
    if found == page.hash {
        return Ok(());
    }
    Err(Error::PageHash { file: name.into(), page: page.place(), stated: page.hash, found })
}

/// Unpacks the tensors whose rows did not come in source order.
fn check_late(archive: &Archive, late: &[usize], report: &mut Report) {
    use super::Pages;

    let mut recent = Recent::new(archive);
    let tensors = &archive.manifest().tensors;
    for tensor in late.iter().filter_map(|&index| tensors.get(index)) {
        let mut hasher = blake3::Hasher::new();
        let unpacked = recent.tensor(tensor, |bytes| {
            hasher.update_rayon(bytes);
            Ok(())
        });
        let found = *hasher.finalize().as_bytes();
        match unpacked {
            Err(error) => report.problem("tensors", sentence(&error)),
            Ok(()) if found != tensor.hash => {
                let error = Error::TensorHash {
                    file: archive.name().into(),
                    tensor: tensor.name.clone(),
                    stated: tensor.hash,
                    found,
                };
                report.problem("tensors", sentence(&error));
            }
            Ok(()) => {}
        }
    }
}

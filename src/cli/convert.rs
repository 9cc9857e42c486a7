//! `thin convert`: a model written as an archive, exactly.

use std::path::{Path, PathBuf};

use serde_json::json;
use thintensor::format::writer::{WriteOptions, WriteReport, write};
use thintensor::format::{self, Pages};
use thintensor::import::{self, OpenOptions, Purpose};

use super::args::{ConvertArgs, not_yet};
use super::error::{Error, Exit};
use super::interrupt::Watch;
use super::model::{self, Source};
use super::report::Progress;
use super::{report, values};

/// Runs the command.
pub(crate) fn convert(args: &ConvertArgs) -> Result<Exit, Error> {
    values::profile(&args.profile)?;
    not_yet("--set", args.set.first())?;
    let source = model::source(&args.source)?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_name(&source)?,
    };
    check_target(&output)?;
    // An archive may replace itself: it is read whole before it is renamed over.
    if !matches!(&source, Source::Path(path) if path.is_file() && model::is_archive(path)?) {
        model::not_over(&source, &output)?;
    }
    let (pages, notes) = open(&source, args)?;
    for note in &notes {
        report::note(note);
    }

    let bar = Progress::new("converting");
    let watch = Watch::new();
    let written = write(
        &*pages,
        &output,
        &WriteOptions {
            force: args.force,
            resume: args.resume,
            progress: &|event| bar.event(event),
            cancel: watch.flag(),
        },
    );
    bar.finish();
    let written = match written {
        Err(thintensor::Error::Format(format::Error::Interrupted { path, pages, total })) => {
            report::say(&format!("'{}' holds {pages} of {total} pages", path.display()));
            return Err(Error::Interrupted { hint: Some("go on with --resume".into()) });
        }
        written => written?,
    };
    tell(args, &output, &notes, &written)?;
    Ok(Exit::Success)
}

fn tell(
    args: &ConvertArgs,
    output: &Path,
    notes: &[String],
    written: &WriteReport,
) -> Result<(), Error> {
    let gb_per_s = report::gb_per_s(written.bytes, written.seconds);
    let rss = report::peak_rss_bytes();
    if args.json {
        return report::print_json(&json!({
            "archive": output.display().to_string(),
            "bytes": written.bytes,
            "pages": written.pages,
            "pages_kept": written.pages_kept,
            "seconds": written.seconds,
            "gb_per_s": gb_per_s,
            "peak_rss_bytes": rss,
            "profile": args.profile,
            "notes": notes,
        }));
    }
    let rss = rss.map_or_else(String::new, |rss| format!(", peak memory {}", report::bytes(rss)));
    report::print(&format!(
        "wrote '{}': {} in {} pages, {:.2} s, {gb_per_s:.2} GB/s{rss}\n",
        output.display(),
        report::bytes(written.bytes),
        report::grouped(written.pages),
        written.seconds,
    ))
}

/// `NAME.thin` in the current folder; `NAME.v1.thin` where NAME.thin is an archive of version 0.
fn default_name(source: &Source) -> Result<PathBuf, Error> {
    let name = match source {
        Source::Demo => Some(PathBuf::from(model::DEMO)),
        Source::Path(path) if model::is_v0(path)? => {
            path.file_stem().map(|stem| Path::new(stem).with_added_extension("v1"))
        }
        Source::Path(path) => {
            // `.` and `..` have no name of their own.
            let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
            // A GGUF file is a model by itself.
            if let (Some("gguf"), Some(stem)) =
                (whole.extension().and_then(|extension| extension.to_str()), whole.file_stem())
            {
                let mut name = stem.to_owned();
                name.push(".thin");
                return Ok(name.into());
            }
            let folder =
                if whole.is_dir() { Some(whole) } else { whole.parent().map(Path::to_owned) };
            folder.as_deref().and_then(Path::file_name).map(PathBuf::from)
        }
    };
    let mut name = name
        .ok_or_else(|| Error::usage("the source has no name to use", "name the archive with -o"))?
        .into_os_string();
    name.push(".thin");
    Ok(name.into())
}

fn check_target(output: &Path) -> Result<(), Error> {
    if output.is_dir() {
        return Err(Error::usage(
            format!("'{}' is a folder", output.display()),
            "give the name of the archive with -o, such as -o model.thin",
        ));
    }
    match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => Err(Error::usage(
            format!("the folder '{}' does not exist", parent.display()),
            "create it first",
        )),
        _ => Ok(()),
    }
}

/// The pages to write, and what the user should know about them.
fn open(source: &Source, args: &ConvertArgs) -> Result<(Box<dyn Pages>, Vec<String>), Error> {
    let tokenizer = args.tokenizer.as_deref();
    let dequantize = args.dequantize.is_some();
    match source {
        Source::Demo if dequantize => Err(Error::usage(
            "the built-in model has no blocks to dequantise",
            "leave --dequantize out",
        )),
        Source::Demo if tokenizer.is_some() => {
            Err(Error::usage("'demo' has a tokenizer of its own", "leave --tokenizer out"))
        }
        Source::Demo => Ok((Box::new(model::open_archive(source)?), Vec::new())),
        Source::Path(path) => {
            let options =
                OpenOptions { dequantize, tokenizer, ..OpenOptions::new(Purpose::Convert) };
            let opened = import::open_with(path, options)?;
            Ok((opened.pages, opened.notes))
        }
    }
}

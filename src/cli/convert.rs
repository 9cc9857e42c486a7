//! `thin convert`: a model written as an archive, exactly.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use thintensor::format::manifest::Asset;
use thintensor::format::writer::{WriteOptions, WriteReport, write};
use thintensor::format::{self, Manifest, PageId, PageRecord, Pages, record};
use thintensor::import::{self, OpenOptions, Purpose};

use super::args::{ConvertArgs, not_yet};
use super::error::{Error, Exit};
use super::interrupt::Watch;
use super::model::{self, Source};
use super::report::Progress;
use super::{report, values};

/// The files that make a tokenizer.
const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];
/// No tokenizer file is larger.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

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

/// `NAME.thin` in the current folder.
fn default_name(source: &Source) -> Result<PathBuf, Error> {
    let name = match source {
        Source::Demo => Some(PathBuf::from(model::DEMO)),
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
    let (pages, notes): (Box<dyn Pages>, Vec<String>) = match source {
        Source::Path(path) if dequantize || !model::is_archive(path)? => {
            let options = OpenOptions {
                dequantize,
                tokenizer: tokenizer.is_none(),
                ..OpenOptions::new(Purpose::Convert)
            };
            let opened = import::open_with(path, options)?;
            (opened.pages, opened.notes)
        }
        Source::Demo if dequantize => {
            return Err(Error::usage(
                "the built-in model has no blocks to dequantise",
                "leave --dequantize out",
            ));
        }
        Source::Demo | Source::Path(_) => (Box::new(model::open_archive(source)?), Vec::new()),
    };
    match tokenizer {
        None => Ok((pages, notes)),
        Some(folder) => Ok((Box::new(WithTokenizer::new(pages, folder)?), notes)),
    }
}

/// Pages with the tokenizer files of another folder behind them.
struct WithTokenizer {
    pages: Box<dyn Pages>,
    manifest: Manifest,
    records: Vec<PageRecord>,
    /// First page and contents of each added file.
    added: Vec<(u32, Vec<u8>)>,
    assets: Vec<Asset>,
}

impl WithTokenizer {
    fn new(pages: Box<dyn Pages>, folder: &Path) -> Result<Self, Error> {
        let mut manifest = pages.manifest().clone();
        let present: BTreeSet<&str> =
            pages.manifest().assets.iter().map(|asset| asset.name.as_str()).collect();
        if present.contains("tokenizer.json") {
            return Err(Error::usage(
                "the source has a tokenizer.json of its own",
                "leave --tokenizer out, or remove the source's tokenizer files",
            ));
        }
        let mut records = pages.pages().to_vec();
        let (mut added, mut assets) = (Vec::new(), Vec::new());
        for name in TOKENIZER_FILES {
            let path = folder.join(name);
            if present.contains(name) || (name != "tokenizer.json" && !path.is_file()) {
                continue;
            }
            let bytes = values::read_capped(&path, MAX_TOKENIZER_BYTES)?;
            let page = records.len() as u32;
            assets.push(Asset { name: name.into(), page, bytes: bytes.len() as u64 });
            records.extend(PageRecord::of_asset(bytes.len() as u64));
            added.push((page, bytes));
        }
        record::number(&mut records);
        manifest.assets.extend(assets.iter().cloned());
        Ok(WithTokenizer { pages, manifest, records, added, assets })
    }
}

impl Pages for WithTokenizer {
    fn name(&self) -> &str {
        self.pages.name()
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn pages(&self) -> &[PageRecord] {
        &self.records
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), thintensor::Error> {
        let Some((first, bytes)) = self.added.iter().rev().find(|(first, _)| *first <= page.0)
        else {
            return self.pages.read(page, out);
        };
        let start = (page.0 - first) as usize * format::MAX_PART_BYTES as usize;
        let part = bytes.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(part.expect("the records of a file were made from its length"));
        Ok(())
    }

    fn finish(&self) -> Result<Manifest, thintensor::Error> {
        let mut manifest = self.pages.finish()?;
        manifest.assets.extend(self.assets.iter().cloned());
        Ok(manifest)
    }
}

//! Which model an argument means, and opening it: pages first, then the engine within its budget.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use thintensor::engine::{Builder, DEFAULT_CONTEXT, Engine, Outputs};
use thintensor::format::{Archive, Pages};
use thintensor::generate::Model;
use thintensor::import::{self, Kind, OpenOptions, Purpose, v0};
use thintensor::model::ModelSpec;

use super::args::Settings;
use super::error::Error;
use super::report::Progress;
use super::{prompt, report, values};

/// The name of the built-in model.
pub(crate) const DEMO: &str = "demo";
/// The smallest context that is tried where the default one does not fit the budget.
const SMALLEST_CONTEXT: u32 = 256;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The built-in one.
    Demo,
    /// A file or folder that exists.
    Path(PathBuf),
}

/// The model that an argument must mean.
///
/// **Errors**: there is no such model.
pub(crate) fn source(argument: &OsStr) -> Result<Source, Error> {
    if argument == DEMO {
        return Ok(Source::Demo);
    }
    let path = Path::new(argument);
    // A link that leads nowhere is there too, and opening it says so.
    if path.symlink_metadata().is_ok() {
        return Ok(Source::Path(path.to_owned()));
    }
    Err(missing(path))
}

/// What the only argument of `run` is: a model, or a prompt for the built-in one.
///
/// **Errors**: neither, or a model that is not there.
pub(crate) fn model_or_prompt(argument: &OsStr) -> Result<(Source, Option<OsString>), Error> {
    let exists = argument == DEMO || Path::new(argument).symlink_metadata().is_ok();
    let text = argument.to_string_lossy();
    if exists || has_model_suffix(&text) || is_hub_id(&text) {
        return Ok((source(argument)?, None));
    }
    if text.contains(char::is_whitespace) {
        return Ok((Source::Demo, Some(argument.to_owned())));
    }
    Err(Error::usage(
        format!("'{}' is neither a model nor a prompt", values::shown(argument)),
        match near_names(Path::new(argument)).as_slice() {
            [] => format!(
                "give the path of a model; for a prompt of one word write: thin run demo {}",
                values::shown(argument)
            ),
            names => format!("did you mean {}?", names.join(" or ")),
        },
    ))
}

fn has_model_suffix(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    [".thin", ".gguf", ".safetensors"].iter().any(|suffix| lower.ends_with(suffix))
}

/// `ORG/NAME` in the characters that hub ids have.
fn is_hub_id(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    text.split_once('/').is_some_and(|(org, name)| part(org) && part(name))
}

/// The error for a model that is not there, with names that are.
fn missing(path: &Path) -> Error {
    let shown = values::shown(path.as_os_str());
    let near = near_names(path);
    if !near.is_empty() {
        let hint = format!("did you mean {}?", near.join(" or "));
        return Error::usage(format!("'{shown}' does not exist"), hint);
    }
    if is_hub_id(&shown) && !has_model_suffix(&shown) {
        return Error::usage(
            format!("'{shown}' does not exist, and fetching from the hub comes in a later version"),
            "download the model's folder and give its path",
        );
    }
    Error::usage(
        format!("'{shown}' does not exist"),
        "give a .thin archive, a folder with config.json and model.safetensors, or 'demo'",
    )
}

/// Names in the folder of `path` that may have been meant.
fn near_names(path: &Path) -> Vec<String> {
    let Some(typed) = path.file_name().and_then(OsStr::to_str) else {
        return Vec::new();
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(parent.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let names: Vec<String> = entries
        .flatten()
        .take(10_000)
        .filter(|entry| {
            let name = entry.file_name();
            has_model_suffix(&name.to_string_lossy()) || entry.path().join("config.json").is_file()
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    values::similar(typed, names.iter().map(String::as_str))
        .into_iter()
        .take(3)
        .map(|name| match parent {
            Some(parent) => format!("'{}'", parent.join(name).display()),
            None => format!("'{name}'"),
        })
        .collect()
}

/// The pages of a model, to run it or look at it. What the user should know is said on stderr.
///
/// **Errors**: it is not a model this version can read.
pub(crate) fn open_pages(
    source: &Source,
    tokenizer: Option<&Path>,
) -> Result<Arc<dyn Pages>, Error> {
    match source {
        Source::Demo if tokenizer.is_some() => {
            Err(Error::usage("'demo' has a tokenizer of its own", "leave --tokenizer out"))
        }
        Source::Demo => Ok(Arc::new(demo()?)),
        Source::Path(path) => {
            let opened = import::open_with(
                path,
                OpenOptions { tokenizer, ..OpenOptions::new(Purpose::Run) },
            )?;
            for note in &opened.notes {
                report::note(note);
            }
            Ok(Arc::from(opened.pages))
        }
    }
}

/// A model that must be an archive.
///
/// **Errors**: it is something else, or damaged.
pub(crate) fn open_archive(source: &Source) -> Result<Archive, Error> {
    match source {
        Source::Demo => demo(),
        Source::Path(path) if path.is_dir() => Err(folder(path)),
        Source::Path(path) => Ok(Archive::open(path).map_err(thintensor::Error::from)?),
    }
}

/// The error for a folder where an archive is needed.
pub(crate) fn folder(path: &Path) -> Error {
    Error::usage(
        format!("'{}' is a folder, not an archive", path.display()),
        "give a .thin archive; 'thin convert' makes one of a model's folder",
    )
}

/// Whether a path is a `.thin` archive.
///
/// **Errors**: it is nothing that can be a model.
pub(crate) fn is_archive(path: &Path) -> Result<bool, Error> {
    Ok(import::detect(path).map_err(thintensor::Error::from)? == Kind::Archive)
}

/// Whether a path is a `.thin` archive of version 0.
///
/// **Errors**: it is nothing that can be a model.
pub(crate) fn is_v0(path: &Path) -> Result<bool, Error> {
    Ok(import::detect(path).map_err(thintensor::Error::from)? == Kind::ArchiveV0)
}

/// An archive of version 0, where the source is one.
///
/// **Errors**: it is damaged, or nothing that can be a model.
pub(crate) fn open_v0(source: &Source) -> Result<Option<v0::Archive>, Error> {
    match source {
        Source::Path(path) if is_v0(path)? => {
            Ok(Some(v0::Archive::open(path).map_err(thintensor::Error::from)?))
        }
        Source::Demo | Source::Path(_) => Ok(None),
    }
}

/// The built-in model.
fn demo() -> Result<Archive, Error> {
    static BYTES: &[u8] = include_bytes!("../../assets/demo.thin");
    Ok(Archive::from_static(BYTES, DEMO).map_err(thintensor::Error::from)?)
}

/// What a model is opened for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The context asked for.
    pub(crate) context: Option<u32>,
    /// Tokens that a context just large enough is wanted for.
    pub(crate) tokens: Option<usize>,
    /// Ids, or logits.
    pub(crate) outputs: Outputs,
}

/// A model on its device.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    /// What a person would call it.
    pub(crate) name: String,
    /// Seconds from opening the file until it could run.
    pub(crate) load_s: f64,
}

/// Opens a model and loads it.
///
/// **Errors**: it cannot be read, or does not fit.
pub(crate) fn load(source: &Source, settings: &Settings, wanted: Wanted) -> Result<Loaded, Error> {
    let start = Instant::now();
    let pages = open_pages(source, settings.tokenizer.as_deref())?;
    let name = pages.name().to_owned();
    let context = fitting_context(&pages, settings, wanted)?;
    let bar = Progress::new("loading");
    let model = {
        let bar = bar.clone();
        Model::open(pages, |builder| {
            configured(builder, settings, context, wanted.outputs).progress(move |done, total| {
                bar.total(total);
                bar.done(done);
            })
        })
    };
    bar.finish();
    let model = model?;
    tell_device(&model.engine, &settings.device);
    check_host_budget(&model.engine, settings)?;
    Ok(Loaded { model, name, load_s: start.elapsed().as_secs_f64() })
}

fn configured(
    builder: Builder,
    settings: &Settings,
    context: Option<u32>,
    outputs: Outputs,
) -> Builder {
    builder
        .device(&settings.device)
        .limits(settings.limits)
        .features(settings.features)
        .checked(settings.checked)
        .kv_format(settings.kv)
        .budget(settings.budget)
        .context(context)
        .outputs(outputs)
}

/// The context to open with: the one asked for, one just large enough for the tokens given, or the largest
/// that fits the budget, with a warning where that is less than the default. Where nothing fits, the engine
/// says so.
fn fitting_context(
    pages: &Arc<dyn Pages>,
    settings: &Settings,
    wanted: Wanted,
) -> Result<Option<u32>, Error> {
    let spec = ModelSpec::from_json(&pages.manifest().spec).map_err(thintensor::Error::from)?;
    let trained = spec.longest_context();
    if let Some(tokens) = wanted.tokens {
        let fits = u32::try_from(tokens).ok().filter(|&tokens| tokens <= trained);
        let tokens = fits.ok_or_else(|| prompt::too_long(tokens, trained, trained))?;
        return Ok(Some(tokens.max(1)));
    }
    let (None, Some(budget)) = (wanted.context, settings.budget) else {
        return Ok(wanted.context);
    };
    let usual = trained.min(DEFAULT_CONTEXT);
    let mut context = usual;
    loop {
        let builder = Engine::builder(Arc::clone(pages));
        let builder = configured(builder, settings, Some(context), wanted.outputs);
        let (_, _, purposes) = builder.plan()?;
        if purposes.total() <= budget {
            break;
        }
        if context <= SMALLEST_CONTEXT {
            return Ok(None);
        }
        context = (context / 2).max(SMALLEST_CONTEXT.min(usual));
    }
    if context < usual {
        report::warn(&format!(
            "a context of {usual} tokens does not fit the budget of {}; using --context {context}",
            report::bytes(budget)
        ));
    }
    Ok(Some(context))
}

/// Refuses to write over the model that is being read, or into its folder.
pub(crate) fn not_over(source: &Source, output: &Path) -> Result<(), Error> {
    let Source::Path(model) = source else { return Ok(()) };
    let (Ok(model), Ok(output_path)) = (model.canonicalize(), output.canonicalize()) else {
        return Ok(()); // an output that is not there yet replaces nothing
    };
    if output_path == model || (model.is_dir() && output_path.starts_with(&model)) {
        return Err(Error::usage(
            format!("'{}' belongs to the model that is being read", output.display()),
            "give another name with -o",
        ));
    }
    Ok(())
}

/// Says once, and clearly, that `auto` found no GPU.
fn tell_device(engine: &Engine, asked: &str) {
    if asked.eq_ignore_ascii_case("auto") && engine.device().api == "cpu" {
        report::warn(
            "no GPU was found: running on the CPU (--device cpu asks for it without this line)",
        );
    }
}

/// Nothing is placed on the host yet, so that a cap holds by itself; if that changes, it must be planned.
fn check_host_budget(engine: &Engine, settings: &Settings) -> Result<(), Error> {
    let used = engine.memory().peak_host_bytes;
    match settings.host_budget.filter(|&budget| used > budget) {
        None => Ok(()),
        Some(budget) => Err(Error::Failed {
            message: format!(
                "loading needed {} of host memory, but --host-budget is {}",
                report::bytes(used),
                report::bytes(budget)
            ),
            hint: Some("give a larger --host-budget".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_are_two_plain_names() {
        assert!(is_hub_id("HuggingFaceTB/SmolLM2-135M"));
        for other in ["a", "a/b/c", "/a", "a/", "./a", "../a", "a b/c", "~/a"] {
            assert!(!is_hub_id(other), "{other}");
        }
    }

    #[test]
    fn a_single_argument_with_white_space_is_a_prompt_for_the_demo_model() {
        let (source, prompt) = model_or_prompt(OsStr::new("Once upon a time")).expect("a prompt");

        assert_eq!(source, Source::Demo);
        assert_eq!(prompt, Some("Once upon a time".into()));
    }

    #[test]
    fn a_single_argument_that_looks_like_a_model_must_be_one() {
        for argument in ["no-such.thin", "no such.GGUF", "ORG/NAME", "word"] {
            let error = model_or_prompt(OsStr::new(argument)).expect_err("refused");

            assert_eq!(error.exit().code(), 2, "{argument}");
            assert!(error.hint().is_some(), "{argument}");
        }
    }
}

//! `thin logits`: the logits of given tokens, written to a safetensors file as they are computed.
//!
//! Sizes are known from the start, so the header goes first and each chunk to its place; memory holds one
//! chunk. The file has a temporary name until it is whole.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Map, Value, json};
use thintensor::engine::{LogitsChunk, Outputs};
use thintensor::format::writer;

use super::args::{LogitsArgs, Positions};
use super::error::{Error, Exit};
use super::interrupt::Watch;
use super::model::{self, Loaded, Wanted};
use super::{report, run};

/// Runs the command.
pub(crate) fn logits(args: &LogitsArgs) -> Result<Exit, Error> {
    let settings = args.engine.meaning()?;
    let source = model::source(&args.model)?;
    let given = args.ids.ids()?;
    if given.is_none() && args.prompt.is_none() {
        return Err(Error::usage(
            "there are no tokens to compute logits for",
            "give --tokens 1,2,3, --tokens-file ids.json or --prompt TEXT",
        ));
    }
    let outputs = Outputs::Logits { hidden: args.hidden };
    // No memory goes to positions nobody fills.
    let tokens = given.as_ref().map(Vec::len);
    let loaded = model::load(&source, &settings, Wanted { context: None, tokens, outputs })?;
    let ids = match (given, &args.prompt) {
        (Some(ids), _) => ids,
        (None, text) => run::completion_ids(&loaded, text.as_deref().unwrap_or_default())?,
    };
    run::check_ids(&loaded, &ids)?;

    let start = Instant::now();
    let layout = Layout::new(&loaded, ids.len() as u64, args);
    let bytes = layout.file_bytes();
    let mut output = Output::create(&args.output)?;
    output.write_at(0, &layout.header)?;
    output.write_at(layout.start_of("input_ids"), &id_bytes(&ids))?;
    let watch = Watch::new();
    let mut failed = None;
    let computed = loaded.model.engine.session()?.logits(&ids, &mut |chunk| {
        let written = write_chunk(&mut output, &layout, &chunk, ids.len() as u64, args.positions);
        let stopped = watch.requested().then_some(Error::Interrupted { hint: None });
        failed = written.err().or(stopped);
        match failed {
            // The caller's own error is what is told; this one only ends the loop.
            Some(_) => Err(thintensor::engine::Error::Interrupted.into()),
            None => Ok(()),
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    computed?;
    output.finish()?;
    drop(watch);
    let report = json!({
        "file": args.output.display().to_string(),
        "bytes": bytes,
        "tokens": ids.len(),
        "device": loaded.model.engine.device(),
        "profile": loaded.model.engine.profile(),
        "model": loaded.name,
        "seconds": start.elapsed().as_secs_f64(),
        "peak_rss_bytes": report::peak_rss_bytes(),
    });
    if args.json {
        report::print_json(&report)?;
    } else {
        report::say(&format!(
            "wrote '{}': {} tokens, {}",
            args.output.display(),
            ids.len(),
            report::bytes(bytes)
        ));
    }
    Ok(Exit::Success)
}

/// Where each tensor lies in the file.
struct Layout {
    header: Vec<u8>,
    /// Name, first byte, bytes of a row.
    tensors: Vec<(String, u64, u64)>,
    data_bytes: u64,
}

impl Layout {
    fn new(loaded: &Loaded, tokens: u64, args: &LogitsArgs) -> Self {
        let engine = &loaded.model.engine;
        let spec = engine.spec();
        let (vocab, hidden) = (u64::from(spec.vocab_size), u64::from(spec.hidden_size));
        let rows = if args.positions == Positions::Last { 1 } else { tokens };
        let mut tensors = vec![
            ("input_ids".to_owned(), "I64", vec![tokens], 8),
            ("logits".to_owned(), "F32", vec![rows, vocab], 4 * vocab),
        ];
        if args.hidden {
            let layers = (0..spec.layers.len()).map(|layer| layer.to_string());
            let names = std::iter::once("embed".to_owned())
                .chain(layers)
                .chain(std::iter::once("final_norm".to_owned()));
            tensors.extend(
                names.map(|name| {
                    (format!("hidden.{name}"), "F32", vec![tokens, hidden], 4 * hidden)
                }),
            );
        }
        let mut header = Map::new();
        let metadata = json!({
            "device": engine.device().name,
            "profile": engine.profile(),
            "model": loaded.name,
            "kv": engine.plan().options.kv_format.name(),
            "tool": concat!("thin ", env!("CARGO_PKG_VERSION")),
        });
        header.insert("__metadata__".into(), metadata);
        let mut end = 0;
        let mut placed = Vec::new();
        for (name, dtype, shape, row) in tensors {
            let start = end;
            end += shape.first().copied().unwrap_or(0) * row;
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert(name.clone(), entry);
            placed.push((name, start, row));
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.append(&mut text);
        Layout { header, tensors: placed, data_bytes: end }
    }

    fn file_bytes(&self) -> u64 {
        self.header.len() as u64 + self.data_bytes
    }

    /// Where row `row` of the tensor at `index` lies.
    fn row(&self, index: usize, row: u64) -> u64 {
        self.tensors
            .get(index)
            .map_or(0, |(_, start, bytes)| self.header.len() as u64 + start + row * bytes)
    }

    fn start_of(&self, name: &str) -> u64 {
        self.tensors.iter().position(|(tensor, ..)| tensor == name).map_or(0, |at| self.row(at, 0))
    }
}

fn write_chunk(
    output: &mut Output,
    layout: &Layout,
    chunk: &LogitsChunk,
    tokens: u64,
    positions: Positions,
) -> Result<(), Error> {
    let first = u64::from(chunk.first);
    match positions {
        Positions::All => output.write_at(layout.row(1, first), &float_bytes(&chunk.logits))?,
        Positions::Last if first + u64::from(chunk.rows) == tokens => {
            let vocab = chunk.logits.len() / (chunk.rows.max(1) as usize);
            let last = chunk.logits.get(chunk.logits.len() - vocab..).unwrap_or_default();
            output.write_at(layout.row(1, 0), &float_bytes(last))?;
        }
        Positions::Last => {}
    }
    for (tap, rows) in chunk.hidden.iter().enumerate() {
        output.write_at(layout.row(2 + tap, first), &float_bytes(rows))?;
    }
    Ok(())
}

fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn id_bytes(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect()
}

/// A file under a temporary name, which is gone unless it is finished.
struct Output {
    file: File,
    path: PathBuf,
    target: PathBuf,
    done: bool,
}

impl Output {
    fn create(target: &Path) -> Result<Self, Error> {
        if target.is_dir() || target.file_name().is_none() {
            let message = format!("'{}' is a folder", target.display());
            return Err(Error::usage(message, "give the name of a file to write with -o"));
        }
        let target = writer::target(target).map_err(thintensor::Error::from)?;
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let path = PathBuf::from(name);
        let file = File::create_new(&path).map_err(|source| io(&target, source))?;
        Ok(Output { file, path, target, done: false })
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(|source| io(&self.path, source))
    }

    /// Gives the file its name.
    fn finish(mut self) -> Result<(), Error> {
        self.file.sync_all().map_err(|source| io(&self.target, source))?;
        std::fs::rename(&self.path, &self.target).map_err(|source| io(&self.target, source))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.done {
            // Best effort: the name says that it is unfinished.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { verb: "write", what: path.display().to_string(), source }
}

//! `thin extract`: the source files out of an archive, as they were.

use thintensor::format::extract::extract as write;

use super::args::ExtractArgs;
use super::error::{Error, Exit};
use super::report::Progress;
use super::{model, report};

/// Runs the command.
pub(crate) fn extract(args: &ExtractArgs) -> Result<Exit, Error> {
    let archive = model::open_archive(&model::source(&args.archive)?)?;
    if args.output.is_file() {
        return Err(Error::usage(
            format!("'{}' is a file", args.output.display()),
            "give a folder with -o; it is created if need be",
        ));
    }
    let bar = Progress::new("extracting");
    let written = write(&archive, &args.output, args.force, &|event| bar.event(event));
    bar.finish();
    let written = written?;
    if args.json {
        report::print_json(&written)?;
        return Ok(Exit::Success);
    }
    let mut rows: Vec<Vec<String>> = written
        .files
        .iter()
        .map(|file| {
            let tensors = format!("{} tensors", report::grouped(file.tensors as u64));
            vec![file.name.clone(), report::bytes(file.bytes), tensors]
        })
        .collect();
    rows.extend(written.assets.iter().map(|name| vec![name.clone(), String::new(), String::new()]));
    report::print(&report::table(&["file", "bytes", "holds"], &rows))?;
    report::say(&format!("wrote {} to '{}'", report::bytes(written.bytes), args.output.display()));
    Ok(Exit::Success)
}

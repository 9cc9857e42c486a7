//! Tensors out of a version-0 archive: one safetensors file with the names, types, shapes and bytes they had,
//! and the settings as a config.json, so that the folder is a checkpoint again.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Archive, WEIGHTS, config, metadata};
use crate::format::extract::{ExtractReport, ExtractedFile, Output, finish_folder, prepare};
use crate::format::{Event, Progress};
use crate::import::Error;
use crate::import::shards::CHUNK;

/// Writes the tensors and the settings of an archive into `folder`, which is created if need be. Works for
/// families that this version does not run; where version 0 does not record all settings, what it does
/// record is written as manifest.json.
///
/// **Errors**: a page is damaged, the folder holds something and `force` is not set, the disk refuses.
pub fn extract(
    archive: &Archive,
    folder: &Path,
    force: bool,
    progress: Progress<'_>,
) -> Result<ExtractReport, crate::Error> {
    let header = header(archive);
    let payload: u64 = archive.tensors.iter().map(|tensor| tensor.range.len() as u64).sum();
    let settings = match config::config(&archive.manifest.model, &archive.tensors) {
        Ok(config) => ("config.json", pretty(&config)),
        Err(_) => ("manifest.json", pretty(&archive.manifest.model.fields)),
    };
    let bytes = 8 + header.len() as u64 + payload;
    let needed = bytes + settings.1.len() as u64;
    prepare(folder, force, needed)?;
    archive.check_pages().map_err(crate::Error::from)?;
    progress(Event::Start { bytes: needed });

    let mut output = Output::new(folder, progress);
    output.file(WEIGHTS, |file| {
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(&header)?;
        for tensor in &archive.tensors {
            let found = archive.map.bytes().get(tensor.range.clone());
            let changed = || Error::Changed { path: archive.map.path().to_owned() };
            let mut start = tensor.range.start;
            for chunk in found.ok_or_else(changed)?.chunks(CHUNK) {
                file.write(chunk)?;
                archive.map.release(start..start + chunk.len());
                start += chunk.len();
            }
        }
        Ok(())
    })?;
    output.file(settings.0, |file| file.write(&settings.1))?;
    finish_folder(folder)?;
    let tensors = archive.tensors.len();
    Ok(ExtractReport {
        files: vec![ExtractedFile { name: WEIGHTS.to_owned(), bytes, tensors }],
        assets: vec![settings.0.to_owned()],
        bytes: needed,
    })
}

/// The header of the safetensors file, padded with spaces to eight bytes.
fn header(archive: &Archive) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!(metadata()));
    let mut offset = 0;
    for tensor in &archive.tensors {
        let end = offset + tensor.range.len();
        entries.insert(
            tensor.name.clone(),
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}

fn pretty(object: &Map<String, Value>) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(object).unwrap_or_default();
    text.push(b'\n');
    text
}

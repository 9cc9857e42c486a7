//! Archives of format version 0: written by an earlier program, read here as a source like a folder.
//!
//! ```text
//! 0   magic "THINv0\0\0" · u32 header length = 88 · u32 version = 0
//! 16  u64 manifest_off = 88, manifest_len · u64 table_off · u64 page count · u64 data_off · zero[32]
//! 88  manifest: JSON                    then, without alignment or padding:
//! ..  page table: u16 length, id · u64 offset, stored, raw · u32 flags = 0 · BLAKE3, for each page
//! ..  pages, back to back, in table order, to the end of the file
//! ```
//! `layout` reads that, `manifest` its JSON, `check` compares the two; what they say becomes tensors of
//! the mapped file, which `pack` treats like those of a safetensors file. Only pages have hashes: nothing
//! protects the manifest, so that every number in it is checked against another one where there is one.
//! Nothing is written in this format. Start at [`Archive::open`].

mod check;
mod config;
mod extract;
mod layout;
mod manifest;
mod problem;
pub mod stats;
mod verify;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

pub use self::extract::extract;
use self::layout::{Header, Record};
use self::manifest::Manifest;
pub use self::problem::Problem;

pub use self::verify::verify;

use super::file::{Entry, WeightFile};
use super::map::Map as FileMap;
use super::pack::{AssetContent, AssetFile, Packed, Purpose};
use super::shards::{CHUNK, Weights};
use super::table::Origin;
use super::{Error, detect, huggingface};
use crate::model::SpecError;

/// First eight bytes of a version-0 archive.
pub const MAGIC: [u8; 8] = *b"THINv0\0\0";
/// The file that `extract` writes the tensors to: version 0 does not record the names of its sources.
const WEIGHTS: &str = "model.safetensors";
/// Text files looked for beside an archive, which carries none.
const TEXT_FILES: &[&str] = &[
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// The settings of a version-0 archive as a config.json.
type Settings = Result<Map<String, Value>, Problem>;

/// A version-0 archive whose parts agree with each other.
#[derive(Debug)]
pub struct Archive {
    map: FileMap,
    header: Header,
    records: Vec<Record>,
    manifest: Manifest,
    /// Its tensors, those inside fused pages included, in name order.
    tensors: Vec<Entry>,
}

impl Archive {
    /// Maps a file, reads header, page table and manifest, and compares them. Pages are not hashed yet.
    ///
    /// **Errors**: [`Error::V0`] with the first thing that is wrong.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::of_map(FileMap::open(path)?)
    }

    /// An archive that was read into memory.
    ///
    /// **Errors**: as [`Archive::open`].
    pub fn from_bytes(bytes: Vec<u8>, name: &str) -> Result<Self, Error> {
        Self::of_map(FileMap::of_bytes(name, bytes))
    }

    fn of_map(map: FileMap) -> Result<Self, Error> {
        let wrong = |problem| {
            let (path, problem) = (map.path().to_owned(), Box::new(problem));
            Error::V0 { path, problem }
        };
        let parsed = parse(map.bytes()).map_err(wrong)?;
        let Parsed { header, records, manifest, tensors } = parsed;
        Ok(Archive { map, header, records, manifest, tensors })
    }

    /// The file's name.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.map.path().file_name().unwrap_or(self.map.path().as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// How many tensors it holds.
    #[must_use]
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Hashes every page.
    ///
    /// **Errors**: [`Error::V0`] naming the first page whose bytes are not those that were written.
    pub fn check_pages(&self) -> Result<(), Error> {
        for record in &self.records {
            self.check_page(record).map_err(|problem| Error::V0 {
                path: self.map.path().to_owned(),
                problem: Box::new(problem),
            })?;
        }
        Ok(())
    }

    /// Its settings as a config.json, and the bytes of each tensor.
    ///
    /// **Errors**: a family that version 0 does not describe in full.
    pub(super) fn contents(&self) -> (Settings, Vec<&[u8]>) {
        let bytes = self.map.bytes();
        let tensors = self.tensors.iter().map(|it| bytes.get(it.range.clone()).unwrap_or_default());
        (config::config(&self.manifest.model, &self.tensors), tensors.collect())
    }

    fn check_page(&self, record: &Record) -> Result<(), Problem> {
        let mut hasher = blake3::Hasher::new();
        let range = record.range().unwrap_or_default();
        let mut start = range.start;
        for chunk in self.map.bytes().get(range).unwrap_or_default().chunks(CHUNK) {
            hasher.update_rayon(chunk);
            self.map.release(start..start + chunk.len());
            start += chunk.len();
        }
        let found = *hasher.finalize().as_bytes();
        if found == record.hash {
            return Ok(());
        }
        Err(Problem::PageHash { page: record.id.clone(), stated: record.hash, found })
    }
}

/// What a file says, checked.
struct Parsed {
    header: Header,
    records: Vec<Record>,
    manifest: Manifest,
    tensors: Vec<Entry>,
}

/// Reads a file given whole, up to the first thing that is wrong.
fn parse(file: &[u8]) -> Result<Parsed, Problem> {
    let header = Header::parse(file)?;
    let records = layout::table(file, &header)?;
    let manifest = Manifest::parse(header.manifest(file))?;
    let mut found = check::Findings::first_only();
    let tensors = check::check(file.len() as u64, &header, &records, &manifest, &mut found);
    match found.into_first() {
        Some(problem) => Err(problem),
        None => Ok(Parsed { header, records, manifest, tensors }),
    }
}

/// Where the text files are that an archive of this version does not carry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Texts<'a> {
    /// In the archive's folder, if they are those of its model.
    Beside,
    /// In a folder that the user named.
    In(&'a Path),
}

/// An archive as pages, and what the user should know about it.
///
/// **Errors**: it is damaged, or of a family whose settings version 0 does not record or this version does
/// not run.
pub(super) fn open(
    path: &Path,
    purpose: Purpose,
    texts: Texts<'_>,
) -> Result<(Packed, Vec<String>), Error> {
    let archive = Archive::open(path)?;
    let wrong = |problem| Error::Config { path: path.to_owned(), problem: Box::new(problem) };
    let object = config::config(&archive.manifest.model, &archive.tensors)
        .map_err(|problem| Error::V0 { path: path.to_owned(), problem: Box::new(problem) })?;
    let super::config::Config { mut spec, row, mut notes } =
        super::config::read(&object).map_err(wrong)?;
    let in_spec = |problem: SpecError| Error::Spec { path: path.to_owned(), problem };
    spec.check().map_err(in_spec)?;
    archive.check_pages()?;
    notes
        .insert(0, "an archive of version 0: nothing protects its settings against changes".into());

    let config = serde_json::to_vec_pretty(&object).unwrap_or_default();
    let mut assets =
        vec![AssetFile { name: "config.json".to_owned(), content: AssetContent::Made(config) }];
    let folder = match texts {
        Texts::In(folder) => folder,
        Texts::Beside => match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        },
    };
    let found = text_files(folder, texts, &archive.manifest, &mut notes)?;
    if found.iter().any(|file| file.name == "generation_config.json") {
        huggingface::add_generation_ids(&folder.join("generation_config.json"), &mut spec)?;
    }
    assets.extend(found);
    if !assets.iter().any(|asset| asset.name == "tokenizer.json") {
        notes.push("no tokenizer.json: the model runs on token ids only".to_owned());
    }
    let name = archive.name();
    let weights = archive.into_weights();
    let placed = huggingface::place(row, &mut spec, &weights)?;
    notes.extend(placed.notes.iter().cloned());
    let origin = Origin { source: "thin version 0", profile: "safe" };
    Ok((Packed::new(name, &spec, weights, placed, assets, origin, purpose), notes))
}

/// The text files of a folder. Those beside an archive are not used where its manifest says that it was made
/// with another tokenizer; those the user named are, with a note.
fn text_files(
    folder: &Path,
    texts: Texts<'_>,
    manifest: &Manifest,
    notes: &mut Vec<String>,
) -> Result<Vec<AssetFile>, Error> {
    let path = folder.join("tokenizer.json");
    if matches!(texts, Texts::Beside) && !path.is_file() {
        return Ok(Vec::new());
    }
    let bytes = detect::read_capped(&path, huggingface::MAX_ASSET_BYTES)?;
    let stated = manifest.model.text("tokenizer_json_hash");
    if stated.is_some_and(|stated| blake3::hash(&bytes).to_hex().as_str() != stated) {
        let other = format!("'{}' is not the tokenizer the archive was made with", path.display());
        match texts {
            Texts::In(_) => notes.push(other),
            Texts::Beside => {
                notes.push(format!("{other}, and is not used; --tokenizer DIR would use it"));
                return Ok(Vec::new());
            }
        }
    }
    let mut files = Vec::new();
    for name in TEXT_FILES {
        let path = folder.join(name);
        if path.is_file() {
            files.push(huggingface::asset_file(name, path)?);
        }
    }
    Ok(files)
}

impl Archive {
    /// The tensors as those of a weight file.
    fn into_weights(self) -> Weights {
        let file = WeightFile::new(self.map, self.tensors, metadata());
        Weights::of_files(vec![(WEIGHTS.to_owned(), file)])
    }
}

/// What files of this kind say about themselves; version 0 did not record it.
fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "pt".to_owned())])
}

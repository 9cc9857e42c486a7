//! A checkpoint as pages, packed as they are read: what an archive of it would hold, without the archive.
//!
//! `groups` has decided which rows go where; here they are copied from the mapped files, by `rows`. When the
//! pages are read to be written, each is unpacked again and compared with the source, and the source tensors
//! are hashed as they pass; a run pays for neither.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::coding::Coding;
use super::file::WeightFile;
use super::groups::{Group, Member, Placed};
use super::rows::Rows;
use super::shards::{CHUNK, Weights};
use super::table::{Content, Origin, Table, provenance};
use super::{Error, detect};
use crate::format::unpack::unpack_piece;
use crate::format::{Hash, Manifest, PageId, PageRecord, Pages};
use crate::model::ModelSpec;

/// What the pages are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be run: pages are only packed.
    Run,
    /// To be written: pages are also checked, and source tensors hashed as they pass.
    Convert,
}

/// A file carried along.
#[derive(Debug)]
pub(super) struct AssetFile {
    pub(super) name: String,
    pub(super) content: AssetContent,
}

/// Where the bytes of a carried file are.
#[derive(Debug)]
pub(super) enum AssetContent {
    /// In a file of so many bytes.
    File(PathBuf, u64),
    /// Here: it was made from something else.
    Made(Vec<u8>),
}

impl AssetFile {
    pub(super) fn bytes(&self) -> u64 {
        match &self.content {
            AssetContent::File(_, bytes) => *bytes,
            AssetContent::Made(bytes) => bytes.len() as u64,
        }
    }
}

/// A checkpoint seen as pages.
#[derive(Debug)]
pub struct Packed {
    name: String,
    files: Vec<(String, WeightFile)>,
    /// File and position of each tensor that members refer to.
    tensors: Vec<(usize, usize)>,
    /// Position in `Manifest::tensors` of each; none for ignored ones.
    listed: Vec<Option<usize>>,
    assets: Vec<AssetFile>,
    groups: Vec<Group>,
    content: Vec<Content>,
    /// What happens to each tensor; none for ignored ones.
    codings: Vec<Option<Coding>>,
    pages: Vec<PageRecord>,
    manifest: Manifest,
    purpose: Purpose,
    passed: Mutex<Passed>,
}

/// What is known from the pages read so far.
#[derive(Debug, Default)]
struct Passed {
    /// Pages that were unpacked again and agreed with the source.
    exact: Vec<bool>,
    /// By position in `Manifest::tensors`.
    hashes: Vec<Hashing>,
}

/// How far the hash of a source tensor is.
#[derive(Debug)]
enum Hashing {
    /// Rows up to here have passed, in order.
    Running(Box<blake3::Hasher>, u64),
    /// All have.
    Done(Hash),
    /// A row was skipped; the source must be read again.
    OutOfOrder,
}

impl Packed {
    pub(super) fn new(
        name: String,
        spec: &ModelSpec,
        weights: Weights,
        placed: Placed,
        assets: Vec<AssetFile>,
        origin: Origin,
        purpose: Purpose,
    ) -> Self {
        let table = Table::new(&assets, &placed.groups);
        let (tensors, listed) = table.tensors(&weights, &placed);
        let mut codings = vec![None; weights.tensors.len()];
        for member in placed.groups.iter().flat_map(|group| &group.members) {
            if let Some(coding) = codings.get_mut(member.tensor) {
                *coding = Some(member.coding);
            }
        }
        let passed = Passed {
            exact: vec![false; table.pages.len()],
            hashes: match purpose {
                Purpose::Run => Vec::new(),
                Purpose::Convert => {
                    tensors.iter().map(|_| Hashing::Running(Box::default(), 0)).collect()
                }
            },
        };
        let manifest = Manifest {
            // A spec holds only numbers that were checked to be finite, so it always has a JSON form.
            spec: serde_json::to_value(spec).unwrap_or_default(),
            descriptors: table.descriptors,
            tensors,
            padding: Vec::new(),
            assets: table.assets,
            provenance: provenance(&weights, &placed, origin),
        };
        Packed {
            name,
            files: weights.files,
            tensors: weights.tensors,
            listed,
            assets,
            groups: placed.groups,
            content: table.content,
            codings,
            pages: table.pages,
            manifest,
            purpose,
            passed: Mutex::new(passed),
        }
    }

    /// Whether one of the source files has this name.
    pub(super) fn reads_file(&self, name: &str) -> bool {
        self.files.iter().any(|(file, _)| file == name)
    }

    fn source(&self, tensor: usize) -> Option<(&WeightFile, usize)> {
        let &(file, tensor) = self.tensors.get(tensor)?;
        Some((&self.files.get(file)?.1, tensor))
    }

    fn tensor_name(&self, tensor: usize) -> String {
        self.source(tensor)
            .and_then(|(file, tensor)| file.tensors.get(tensor))
            .map(|entry| entry.name.clone())
            .unwrap_or_default()
    }

    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_page(&self, page: PageId, purpose: Purpose, out: &mut [u8]) -> Result<(), Error> {
        let count = self.pages.len();
        let content = self.content.get(page.0 as usize);
        match content.copied() {
            None => Err(Error::NoSuchPage { page: page.0, count }),
            Some(Content::Asset { asset, offset }) => self.read_asset(asset, offset, out),
            Some(Content::Part { group, part }) => {
                let Some(group) = self.groups.get(group) else {
                    return Ok(());
                };
                self.read_part(group, part, out)?;
                if purpose == Purpose::Convert {
                    self.check_exact(group, part, page, out)?;
                }
                self.release(group, part);
                Ok(())
            }
        }
    }

    fn read_asset(&self, asset: usize, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let Some(asset) = self.assets.get(asset) else {
            return Ok(());
        };
        let path = match &asset.content {
            AssetContent::File(path, _) => path,
            AssetContent::Made(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = bytes.get(start..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(part.expect("the pages of a file were made from its length"));
                return Ok(());
            }
        };
        let failed = |source: std::io::Error| {
            let path = path.clone();
            match source.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::Changed { path },
                _ => Error::Io { verb: "read", path, source },
            }
        };
        let mut file: File = detect::open_file(path)?;
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        file.read_exact(out).map_err(failed)
    }

    fn read_part(&self, group: &Group, part: u64, out: &mut [u8]) -> Result<(), Error> {
        let planes = &group.geometry.planes;
        if planes.len() > 1 || planes.iter().any(|plane| plane.row_stride != plane.row_bytes) {
            out.fill(0);
        }
        for member in &group.members {
            let (rows, source) = self.rows(group, member, part)?;
            rows.pack(source, out).ok_or_else(|| self.not_exact(member))?;
        }
        Ok(())
    }

    /// The rows of a member that lie in a part, and the bytes of their tensor.
    fn rows<'a>(
        &'a self,
        group: &'a Group,
        member: &'a Member,
        part: u64,
    ) -> Result<(Rows<'a>, &'a [u8]), Error> {
        let found = || {
            let (file, tensor) = self.source(member.tensor)?;
            Some((Rows::of(member, &group.geometry, part)?, file.bytes(tensor)))
        };
        found().ok_or_else(|| self.not_exact(member))
    }

    fn not_exact(&self, member: &Member) -> Error {
        Error::NotExact { tensor: self.tensor_name(member.tensor) }
    }

    /// Says that the rows of a part have been passed.
    fn release(&self, group: &Group, part: u64) {
        for member in &group.members {
            let Some((file, tensor)) = self.source(member.tensor) else {
                continue;
            };
            let rows = Rows::of(member, &group.geometry, part);
            if let Some(range) = rows.and_then(|rows| rows.range()) {
                file.release(tensor, range);
            }
        }
    }

    /// Unpacks a part as `extract` will and compares it with the source.
    fn check_exact(
        &self,
        group: &Group,
        part: u64,
        page: PageId,
        packed: &[u8],
    ) -> Result<(), Error> {
        let first = page.0.saturating_sub(part as u32);
        let mut unpacked = Vec::new();
        for member in &group.members {
            let (rows, source) = self.rows(group, member, part)?;
            let listed_bytes = rows.listed(source).ok_or_else(|| self.not_exact(member))?;
            self.hash(member, &rows, &listed_bytes);
            let listed = self.listed.get(member.tensor).copied().flatten();
            let tensor = listed.and_then(|listed| self.manifest.tensors.get(listed));
            let tensor = tensor.ok_or_else(|| self.not_exact(member))?;
            let piece = member.piece(first);
            unpacked.clear();
            let range = unpack_piece(&group.geometry, tensor, &piece, part, packed, &mut unpacked);
            let same =
                matches!(range, Ok(range) if range.start == rows.source_row || rows.count == 0);
            if !same || unpacked != *listed_bytes {
                return Err(self.not_exact(member));
            }
        }
        if let Some(exact) = self.passed().exact.get_mut(page.0 as usize) {
            *exact = true;
        }
        Ok(())
    }

    /// Takes rows, given as they are listed, into the hash of their tensor.
    fn hash(&self, member: &Member, rows: &Rows<'_>, listed_bytes: &[u8]) {
        let Some(listed) = self.listed.get(member.tensor).copied().flatten() else {
            return;
        };
        let shape = self.manifest.tensors.get(listed).map(|tensor| &tensor.shape);
        let all = shape.and_then(|shape| shape.first()).copied();
        let mut passed = self.passed();
        let Some(state) = passed.hashes.get_mut(listed) else {
            return;
        };
        let Hashing::Running(hasher, hashed) = state else {
            return;
        };
        if rows.source_row > *hashed || !member.coding.in_order() {
            *state = Hashing::OutOfOrder;
        } else if rows.source_row == *hashed {
            hasher.update_rayon(listed_bytes);
            *hashed += rows.count;
            if Some(*hashed) == all {
                *state = Hashing::Done(*hasher.finalize().as_bytes());
            }
        } // else: a page read a second time
    }

    /// The hash of a tensor as it is listed, read again.
    fn hash_again(&self, tensor: usize) -> Hash {
        let mut hasher = blake3::Hasher::new();
        let coding = self.codings.get(tensor).copied().flatten();
        let Some(((file, tensor), coding)) = self.source(tensor).zip(coding) else {
            return *hasher.finalize().as_bytes();
        };
        let bytes = file.bytes(tensor);
        if coding.is_exact() {
            let mut start = 0;
            for chunk in bytes.chunks(CHUNK) {
                hasher.update_rayon(chunk);
                file.release(tensor, start..start + chunk.len());
                start += chunk.len();
            }
            return *hasher.finalize().as_bytes();
        }
        // Each of these rows was listed once before, when its page was checked.
        let width = coding.source_bytes().unwrap_or(usize::MAX).max(1);
        let mut listed = Vec::new();
        for row in 0..bytes.len() / width {
            let row = if coding.reordered { coding.source_row(row as u64) as usize } else { row };
            listed.clear();
            let source = bytes.get(row * width..(row + 1) * width);
            if source.and_then(|source| coding.list(source, &mut listed)).is_some() {
                hasher.update(&listed);
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// Packs and checks the pages that have not been checked yet.
    fn check_rest(&self) -> Result<(), Error> {
        let mut out = Vec::new();
        for (record, content) in self.pages.iter().zip(&self.content) {
            let page = PageId(record.id);
            let checked = self.passed().exact.get(page.0 as usize).copied();
            if matches!(content, Content::Part { .. }) && checked != Some(true) {
                out.resize(record.stored_len as usize, 0);
                self.read_page(page, Purpose::Convert, &mut out)?;
            }
        }
        Ok(())
    }
}

impl Pages for Packed {
    fn name(&self) -> &str {
        &self.name
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn pages(&self) -> &[PageRecord] {
        &self.pages
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), crate::Error> {
        if let Some(record) = self.pages.get(page.0 as usize) {
            assert_eq!(out.len() as u64, record.stored_len, "page {} is read whole", page.0);
        }
        Ok(self.read_page(page, self.purpose, out)?)
    }

    fn finish(&self) -> Result<Manifest, crate::Error> {
        self.check_rest()?;
        let mut manifest = self.manifest.clone();
        for (tensor, listed) in self.listed.iter().enumerate() {
            let Some(listed) = *listed else { continue };
            let known = match self.passed().hashes.get(listed) {
                Some(Hashing::Done(hash)) => Some(*hash),
                Some(Hashing::Running(..) | Hashing::OutOfOrder) | None => None,
            };
            if let Some(entry) = manifest.tensors.get_mut(listed) {
                entry.hash = known.unwrap_or_else(|| self.hash_again(tensor));
            }
        }
        manifest.provenance.exact_storage_preserved =
            self.codings.iter().flatten().all(Coding::is_exact);
        Ok(manifest)
    }
}

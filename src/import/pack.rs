//! A checkpoint as pages, packed as they are read: what an archive of it would hold, without the archive.
//!
//! [`groups`](super::groups) has decided which rows go where; here they are copied from the mapped files.
//! Hashes of source tensors are taken while a conversion reads the pages in order, and by reading the source
//! once more where it did not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::groups::{Group, Member, Placed};
use super::safetensors::{Dtype, Safetensors};
use super::shards::Weights;
use super::{Error, detect};
use crate::format::manifest::{Asset, Ignored, Piece, Provenance, SourceFile, Tensor, Transform};
use crate::format::{
    Geometry, Hash, MAX_PART_BYTES, Manifest, PageId, PageRecord, Pages, Plane, Role,
};
use crate::model::ModelSpec;
use crate::quant::{Format, float};

/// What the pages are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be run: nothing is hashed.
    Run,
    /// To be written: source tensors are hashed as their pages pass.
    Convert,
}

/// A file carried along.
#[derive(Debug)]
pub(super) struct AssetFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// A checkpoint seen as pages.
#[derive(Debug)]
pub struct Packed {
    name: String,
    files: Vec<(String, Safetensors)>,
    /// File and position of each tensor that members refer to.
    tensors: Vec<(usize, usize)>,
    /// Position in `Manifest::tensors` of each; none for ignored ones.
    listed: Vec<Option<usize>>,
    assets: Vec<AssetFile>,
    groups: Vec<Group>,
    /// What each page holds.
    content: Vec<Content>,
    pages: Vec<PageRecord>,
    manifest: Manifest,
    hashing: Option<Mutex<Vec<Hashing>>>,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// Bytes of an asset from here on.
    Asset { asset: usize, offset: u64 },
    /// A part of a group.
    Part { group: usize, part: u64 },
}

/// How far the hash of a source tensor is.
#[derive(Debug)]
enum Hashing {
    /// Rows up to here have passed, in order.
    Running(Box<blake3::Hasher>, u64),
    /// All have.
    Done(Hash),
    /// Rows passed in another order; the source must be read again.
    OutOfOrder,
}

impl Packed {
    pub(super) fn new(
        name: String,
        spec: &ModelSpec,
        weights: Weights,
        placed: Placed,
        assets: Vec<AssetFile>,
        purpose: Purpose,
    ) -> Result<Self, Error> {
        let mut table = Table::default();
        for (asset, file) in assets.iter().enumerate() {
            table.asset(asset, file);
        }
        let first_pages: Vec<u32> = placed
            .groups
            .iter()
            .enumerate()
            .map(|(index, group)| table.group(index, group))
            .collect();
        let (tensors, listed) = manifest_tensors(&weights, &placed, &first_pages);
        let hashing = (purpose == Purpose::Convert).then(|| {
            let fresh = |_: &Tensor| Hashing::Running(Box::default(), 0);
            Mutex::new(tensors.iter().map(fresh).collect())
        });
        let manifest = Manifest {
            spec: serde_json::to_value(spec).unwrap_or_default(),
            descriptors: table.descriptors,
            tensors,
            assets: table.assets,
            provenance: provenance(&weights, &placed),
        };
        Ok(Packed {
            name,
            files: weights.files,
            tensors: weights.tensors,
            listed,
            assets,
            groups: placed.groups,
            content: table.content,
            pages: table.pages,
            manifest,
            hashing,
        })
    }

    /// Whether one of the source files has this name.
    pub(super) fn reads_file(&self, name: &str) -> bool {
        self.files.iter().any(|(file, _)| file == name)
    }

    /// The manifest with the hashes of all source tensors.
    ///
    /// Tensors whose pages did not pass in order are hashed by reading the source again.
    pub fn finish(&self) -> Result<Manifest, Error> {
        let mut manifest = self.manifest.clone();
        for (tensor, listed) in self.listed.iter().enumerate() {
            if let Some(entry) = listed.and_then(|listed| manifest.tensors.get_mut(listed)) {
                entry.hash = match listed.and_then(|listed| self.hash_so_far(listed)) {
                    Some(hash) => hash,
                    None => *blake3::Hasher::new()
                        .update_rayon(self.bytes(tensor))
                        .finalize()
                        .as_bytes(),
                };
            }
        }
        Ok(manifest)
    }

    fn hash_so_far(&self, listed: usize) -> Option<Hash> {
        let hashing = self.hashing.as_ref()?;
        let hashing = hashing.lock().unwrap_or_else(PoisonError::into_inner);
        match hashing.get(listed)? {
            Hashing::Done(hash) => Some(*hash),
            Hashing::Running(..) | Hashing::OutOfOrder => None,
        }
    }

    fn bytes(&self, tensor: usize) -> &[u8] {
        let at = self.tensors.get(tensor);
        let file = at.and_then(|&(file, tensor)| Some((&self.files.get(file)?.1, tensor)));
        file.map(|(file, tensor)| file.bytes(tensor))
            .unwrap_or_default()
    }

    fn dtype(&self, tensor: usize) -> Option<Dtype> {
        let &(file, tensor) = self.tensors.get(tensor)?;
        Some(self.files.get(file)?.1.tensors.get(tensor)?.dtype)
    }

    fn tensor_name(&self, tensor: usize) -> String {
        let at = self.tensors.get(tensor);
        let entry = at.and_then(|&(file, tensor)| self.files.get(file)?.1.tensors.get(tensor));
        entry.map(|entry| entry.name.clone()).unwrap_or_default()
    }

    fn read_asset(&self, asset: usize, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let Some(asset) = self.assets.get(asset) else {
            return Ok(());
        };
        let failed = |source: std::io::Error| {
            let path = asset.path.clone();
            match source.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::Changed { path },
                _ => Error::Io {
                    verb: "read",
                    path,
                    source,
                },
            }
        };
        let mut file: File = detect::open_file(&asset.path)?;
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        file.read_exact(out).map_err(failed)
    }

    fn read_part(&self, group: &Group, part: u64, out: &mut [u8]) -> Result<(), Error> {
        let geometry = &group.geometry;
        if geometry.is_small()
            || geometry
                .planes
                .iter()
                .any(|plane| plane.row_stride != plane.row_bytes)
        {
            out.fill(0);
        }
        for member in &group.members {
            let not_exact = || Error::NotExact {
                tensor: self.tensor_name(member.tensor),
            };
            let run = Run::of(member, geometry, part).ok_or_else(not_exact)?;
            let dtype = self
                .dtype(member.tensor)
                .and_then(Dtype::format)
                .ok_or_else(not_exact)?;
            let width = run.source_row_bytes(dtype);
            let source = run.source(width);
            let bytes = self
                .bytes(member.tensor)
                .get(source.clone())
                .ok_or_else(not_exact)?;
            run.pack(bytes, dtype, out).ok_or_else(not_exact)?;
            self.passed(member, &run, bytes);
            if let Some(&(file, tensor)) = self.tensors.get(member.tensor)
                && let Some((_, file)) = self.files.get(file)
            {
                file.release(tensor, source);
            }
        }
        Ok(())
    }

    /// Takes rows that were packed into the hash of their tensor.
    fn passed(&self, member: &Member, run: &Run<'_>, bytes: &[u8]) {
        let Some(hashing) = &self.hashing else { return };
        let Some(listed) = self.listed.get(member.tensor).copied().flatten() else {
            return;
        };
        let rows = match self
            .manifest
            .tensors
            .get(listed)
            .and_then(|tensor| tensor.shape.first())
        {
            Some(&rows) => rows,
            None => return,
        };
        let mut hashing = hashing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = hashing.get_mut(listed) else {
            return;
        };
        let Hashing::Running(hasher, passed) = state else {
            return;
        };
        let first = member.source_row + run.first;
        if *passed != first {
            // A row seen a second time is harmless; one that was skipped is not.
            if first > *passed {
                *state = Hashing::OutOfOrder;
            }
            return;
        }
        hasher.update_rayon(bytes);
        *passed += run.count;
        if *passed == rows {
            *state = Hashing::Done(*hasher.finalize().as_bytes());
        }
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
        let count = self.pages.len();
        let record = self.pages.get(page.0 as usize);
        let (Some(record), Some(&content)) = (record, self.content.get(page.0 as usize)) else {
            return Err(Error::NoSuchPage {
                page: page.0,
                count,
            }
            .into());
        };
        assert_eq!(out.len() as u64, record.stored_len, "a page is read whole");
        match content {
            Content::Asset { asset, offset } => self.read_asset(asset, offset, out)?,
            Content::Part { group, part } => {
                if let Some(group) = self.groups.get(group) {
                    self.read_part(group, part, out)?;
                }
            }
        }
        Ok(())
    }
}

/// The rows of a member that lie in one part.
struct Run<'a> {
    plane: &'a Plane,
    /// First of them, counted within the member.
    first: u64,
    count: u64,
    /// Row of the source tensor that the first is.
    source_row: u64,
    /// Row of the part that the first is.
    part_row: u64,
    row_step: u64,
}

impl<'a> Run<'a> {
    fn of(member: &Member, geometry: &'a Geometry, part: u64) -> Option<Self> {
        let plane = geometry.planes.get(member.plane as usize)?;
        let (start, rows) = match geometry.is_small() {
            true => (0, plane.rows),
            false => (
                part.checked_mul(geometry.part_rows)?,
                geometry.rows_of(part),
            ),
        };
        // Row i of the member is row `first_row + i * row_step` of the group.
        let before = |row: u64| {
            row.saturating_sub(member.first_row)
                .div_ceil(member.row_step)
        };
        let first = before(start).min(member.rows);
        let end = before(start.checked_add(rows)?).min(member.rows);
        Some(Run {
            plane,
            first,
            count: end - first,
            source_row: member.source_row + first,
            part_row: (member.first_row + first * member.row_step).saturating_sub(start),
            row_step: member.row_step,
        })
    }

    /// Bytes of a row in the source: those of the plane, unless the numbers are widened.
    fn source_row_bytes(&self, format: Format) -> u64 {
        match self.plane.kind {
            crate::format::PlaneKind::Vector(_) => u64::from(format.bits()) / 8,
            _ => self.plane.row_bytes,
        }
    }

    /// The bytes of the source tensor.
    fn source(&self, width: u64) -> std::ops::Range<usize> {
        let start = self.source_row * width;
        start as usize..(start + self.count * width) as usize
    }

    /// Copies or widens the rows into a part. `None` where they would leave it.
    fn pack(&self, source: &[u8], format: Format, out: &mut [u8]) -> Option<()> {
        if self.count == 0 {
            return Some(());
        }
        let stride = self.plane.row_stride.checked_mul(self.row_step)? as usize;
        let start = self.plane.offset + self.part_row * self.plane.row_stride;
        let out = out.get_mut(start as usize..)?;
        let width = self.plane.row_bytes as usize;
        let widen: Option<fn(u16) -> f32> = match (self.plane.kind, format) {
            (crate::format::PlaneKind::Vector(_), Format::BF16) => Some(float::bf16_to_f32),
            (crate::format::PlaneKind::Vector(_), Format::F16) => Some(float::f16_to_f32),
            _ => None,
        };
        if let Some(widen) = widen {
            let (halves, _) = source.as_chunks::<2>();
            let rows = out.chunks_mut(stride).zip(halves);
            for (out, half) in rows {
                let value = widen(u16::from_le_bytes(*half)).to_le_bytes();
                out.get_mut(..4)?.copy_from_slice(&value);
            }
        } else if stride == width {
            out.get_mut(..source.len())?.copy_from_slice(source);
        } else {
            for (out, row) in out.chunks_mut(stride).zip(source.chunks_exact(width)) {
                out.get_mut(..width)?.copy_from_slice(row);
            }
        }
        Some(())
    }
}

/// The page table and what it refers to, as it grows.
#[derive(Default)]
struct Table {
    pages: Vec<PageRecord>,
    content: Vec<Content>,
    descriptors: Vec<Geometry>,
    assets: Vec<Asset>,
}

impl Table {
    fn asset(&mut self, asset: usize, file: &AssetFile) {
        self.assets.push(Asset {
            name: file.name.clone(),
            page: self.pages.len() as u32,
            bytes: file.bytes,
        });
        let parts = file.bytes.div_ceil(MAX_PART_BYTES);
        for part in 0..parts {
            let offset = part * MAX_PART_BYTES;
            let len = (file.bytes - offset).min(MAX_PART_BYTES);
            self.push(
                PageRecord {
                    stored_len: len,
                    part: part as u32,
                    ..blank(Role::Asset, Format::Bytes)
                },
                Content::Asset { asset, offset },
            );
        }
    }

    /// Adds the parts of a group; the answer is its first page.
    fn group(&mut self, index: usize, group: &Group) -> u32 {
        let first = self.pages.len() as u32;
        let geometry = &group.geometry;
        let known = self.descriptors.iter().position(|known| known == geometry);
        let descriptor = known.unwrap_or_else(|| {
            self.descriptors.push(geometry.clone());
            self.descriptors.len() - 1
        });
        for part in 0..geometry.parts() {
            self.push(
                PageRecord {
                    layer: group.layer,
                    stored_len: geometry.part_bytes(part),
                    descriptor: descriptor as u32,
                    part: part as u32,
                    first_row: (part * geometry.part_rows) as u32,
                    rows: geometry.rows_of(part) as u32,
                    ..blank(group.role, geometry.format)
                },
                Content::Part { group: index, part },
            );
        }
        first
    }

    fn push(&mut self, record: PageRecord, content: Content) {
        let id = self.pages.len() as u32;
        self.pages.push(PageRecord { id, ..record });
        self.content.push(content);
    }
}

fn blank(role: Role, format: Format) -> PageRecord {
    PageRecord {
        id: 0,
        role,
        layer: None,
        expert: None,
        format,
        layout: 0,
        offset: 0,
        stored_len: 0,
        hash: [0; 32],
        descriptor: 0,
        part: 0,
        first_row: 0,
        rows: 0,
    }
}

/// The manifest's list of stored tensors in source order, and the position in it of each source tensor.
fn manifest_tensors(
    weights: &Weights,
    placed: &Placed,
    first_pages: &[u32],
) -> (Vec<Tensor>, Vec<Option<usize>>) {
    let mut pieces: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
    let mut widened: BTreeMap<usize, bool> = BTreeMap::new();
    for (group, &page) in placed.groups.iter().zip(first_pages) {
        for member in &group.members {
            pieces.entry(member.tensor).or_default().push(Piece {
                page,
                plane: member.plane,
                source_row: member.source_row,
                rows: member.rows,
                first_row: member.first_row,
                row_step: member.row_step,
            });
            widened.insert(member.tensor, group.geometry.is_small());
        }
    }
    let mut tensors = Vec::new();
    let mut listed = vec![None; weights.tensors.len()];
    for (tensor, mut pieces) in pieces {
        let Some(&at) = weights.tensors.get(tensor) else {
            continue;
        };
        let Some(entry) = weights.entry(at) else {
            continue;
        };
        pieces.sort_by_key(|piece| piece.source_row);
        let is_vector = widened.get(&tensor).copied().unwrap_or(false);
        let widens = is_vector && entry.dtype.format() != Some(Format::F32);
        if let Some(listed) = listed.get_mut(tensor) {
            *listed = Some(tensors.len());
        }
        tensors.push(Tensor {
            name: entry.name.clone(),
            file: at.0 as u32,
            dtype: entry.dtype.name().to_owned(),
            shape: entry.shape.clone(),
            hash: [0; 32],
            transform: if widens {
                vec![Transform::WidenF32]
            } else {
                Vec::new()
            },
            pieces,
        });
    }
    (tensors, listed)
}

fn provenance(weights: &Weights, placed: &Placed) -> Provenance {
    let left_out = placed.ignored.iter().filter_map(|&(tensor, reason)| {
        Some((weights.entry(*weights.tensors.get(tensor)?)?, reason))
    });
    let unlisted = weights.unlisted.iter().filter_map(|&at| {
        Some((
            weights.entry(at)?,
            "not listed in model.safetensors.index.json",
        ))
    });
    Provenance {
        tool: concat!("thin ", env!("CARGO_PKG_VERSION")).to_owned(),
        source: "huggingface".to_owned(),
        files: weights
            .files
            .iter()
            .map(|(name, file)| SourceFile {
                name: name.clone(),
                bytes: file.len(),
                metadata: file.metadata.clone(),
            })
            .collect(),
        ignored: left_out
            .chain(unlisted)
            .map(|(entry, reason)| Ignored {
                name: entry.name.clone(),
                reason: reason.to_owned(),
            })
            .collect(),
        profile: "safe".to_owned(),
        exact_storage_preserved: false,
    }
}

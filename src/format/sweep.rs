//! Re-derives the hashes of source tensors while pages pass by in file order, so that `verify` reads a file
//! once. A tensor whose rows come in another order than the source's is left for later.

use std::collections::{HashMap, HashSet};

use super::header::first_not_zero;
use super::manifest::{Manifest, Piece};
use super::unpack::{parts_of, stored_row, unpack_piece};
use super::{Error, Geometry, Group, PageRecord, Role, groups};

/// Pieces of one group, and the tensors being hashed.
pub(super) struct Sweep<'a> {
    archive: &'a str,
    manifest: &'a Manifest,
    groups: Vec<Group>,
    /// Tensor, piece; by page, then tensor, then source row.
    pieces: Vec<(usize, Piece)>,
    open: HashMap<usize, Open>,
    late: HashSet<usize>,
    damaged: HashSet<usize>,
    problems: Vec<Error>,
}

/// A tensor of which some rows were seen.
#[derive(Default)]
struct Open {
    hasher: blake3::Hasher,
    next_row: u64,
}

impl<'a> Sweep<'a> {
    /// `manifest` and `pages` were found to agree.
    pub(super) fn new(archive: &'a str, manifest: &'a Manifest, pages: &[PageRecord]) -> Self {
        let mut pieces: Vec<(usize, Piece)> = manifest
            .tensors
            .iter()
            .enumerate()
            .flat_map(|(index, tensor)| tensor.pieces.iter().map(move |piece| (index, *piece)))
            .collect();
        pieces.sort_by_key(|(index, piece)| (piece.page, *index, piece.source_row));
        let open = manifest
            .tensors
            .iter()
            .enumerate()
            .filter(|(_, tensor)| tensor.pieces.is_empty())
            .map(|(index, _)| (index, Open::default()))
            .collect();
        let mut sweep = Sweep {
            archive,
            manifest,
            groups: groups(pages),
            pieces,
            open,
            late: HashSet::new(),
            damaged: HashSet::new(),
            problems: Vec::new(),
        };
        let empty: Vec<usize> = sweep.open.keys().copied().collect();
        empty.into_iter().for_each(|index| sweep.close(index));
        sweep
    }

    /// Takes the rows that a page holds.
    pub(super) fn page(&mut self, page: &PageRecord, bytes: &[u8]) {
        let Some((group, geometry)) = self.group_of(page) else {
            return;
        };
        let part = u64::from(page.part);
        let mut out = Vec::new();
        for (index, piece) in self.pieces_of(&group, geometry, part) {
            if self.damaged.contains(&index) || self.late.contains(&index) {
                continue;
            }
            let Some(tensor) = self.manifest.tensors.get(index) else {
                continue;
            };
            if tensor.permuted().is_some() {
                self.late.insert(index);
                continue;
            }
            out.clear();
            let rows = match unpack_piece(geometry, tensor, &piece, part, bytes, &mut out) {
                Ok(rows) => rows,
                Err(error) => {
                    self.problems.push(error);
                    self.damaged.insert(index);
                    self.open.remove(&index);
                    continue;
                }
            };
            if rows.is_empty() {
                continue;
            }
            let open = self.open.entry(index).or_default();
            if rows.start != open.next_row {
                self.open.remove(&index);
                self.late.insert(index);
                continue;
            }
            open.hasher.update_rayon(&out);
            open.next_row = rows.end;
            let all: u64 = tensor.pieces.iter().map(|piece| piece.rows).sum();
            if rows.end == all {
                self.close(index);
            }
        }
        self.check_padding(&group, geometry, page, bytes);
        if let Some((at, byte)) = slack(geometry, page, bytes) {
            self.problems.push(Error::NotZero {
                file: self.archive.into(),
                what: "the space behind a row",
                at: page.offset + at,
                byte,
            });
        }
    }

    /// Notes that a page is damaged and says which tensors lie in it: "; it holds 'a', 'b' and 3 more".
    pub(super) fn damaged(&mut self, page: &PageRecord) -> String {
        let names: Vec<&str> = if page.role == Role::Asset {
            let first = self.groups.partition_point(|group| group.first_page.0 <= page.id);
            let first = first
                .checked_sub(1)
                .and_then(|at| self.groups.get(at))
                .map(|group| group.first_page.0);
            self.manifest
                .assets
                .iter()
                .filter(|asset| Some(asset.page) == first)
                .map(|asset| asset.name.as_str())
                .collect()
        } else {
            let Some((group, geometry)) = self.group_of(page) else {
                return String::new();
            };
            let pieces = self.pieces_of(&group, geometry, u64::from(page.part));
            let mut indices: Vec<usize> = pieces.into_iter().map(|(index, _)| index).collect();
            indices.dedup();
            for index in &indices {
                self.damaged.insert(*index);
                self.open.remove(index);
            }
            indices
                .iter()
                .filter_map(|&index| self.manifest.tensors.get(index))
                .map(|tensor| tensor.name.as_str())
                .collect()
        };
        match names.as_slice() {
            [] => String::new(),
            [one] => format!("; it holds '{one}'"),
            [first, second] => format!("; it holds '{first}' and '{second}'"),
            [first, second, rest @ ..] => {
                format!("; it holds '{first}', '{second}' and {} more", rest.len())
            }
        }
    }

    /// What went wrong, and the tensors still to be looked at.
    pub(super) fn finish(self) -> (Vec<Error>, Vec<usize>) {
        let mut late: Vec<usize> = self.late.difference(&self.damaged).copied().collect();
        late.extend(self.open.keys());
        late.sort_unstable();
        (self.problems, late)
    }

    /// Compares the hash of a tensor whose rows were all seen.
    fn close(&mut self, index: usize) {
        let Some(open) = self.open.remove(&index) else {
            return;
        };
        let Some(tensor) = self.manifest.tensors.get(index) else {
            return;
        };
        let found = *open.hasher.finalize().as_bytes();
        if found != tensor.hash {
            self.problems.push(Error::TensorHash {
                file: self.archive.into(),
                tensor: tensor.name.clone(),
                stated: tensor.hash,
                found,
            });
        }
    }

    /// Rows that belong to no tensor are zero.
    fn check_padding(
        &mut self,
        group: &Group,
        geometry: &Geometry,
        page: &PageRecord,
        bytes: &[u8],
    ) {
        let here = self.manifest.padding.iter();
        for padding in here.filter(|padding| padding.page == group.first_page.0) {
            let Some(plane) = geometry.planes.get(padding.plane as usize) else {
                continue;
            };
            let first = u64::from(page.first_row).max(padding.first_row);
            let end = if geometry.is_small() {
                plane.rows
            } else {
                u64::from(page.first_row) + u64::from(page.rows)
            };
            for row in first..end.min(padding.first_row + padding.rows) {
                let stored = stored_row(geometry, plane, row, bytes).unwrap_or(&[]);
                if let Some((_, byte)) = first_not_zero(stored) {
                    self.problems.push(Error::PaddingRow {
                        file: self.archive.into(),
                        page: page.place(),
                        row,
                        byte,
                    });
                    break;
                }
            }
        }
    }

    fn group_of(&self, page: &PageRecord) -> Option<(Group, &'a Geometry)> {
        let after = self.groups.partition_point(|group| group.first_page.0 <= page.id);
        let group = self.groups.get(after.checked_sub(1)?)?;
        let geometry = self.manifest.descriptors.get(group.descriptor)?;
        (group.role != Role::Asset).then_some((*group, geometry))
    }

    fn pieces_of(&self, group: &Group, geometry: &Geometry, part: u64) -> Vec<(usize, Piece)> {
        let page = group.first_page.0;
        let start = self.pieces.partition_point(|(_, piece)| piece.page < page);
        let end = self.pieces.partition_point(|(_, piece)| piece.page <= page);
        let pieces = self.pieces.get(start..end).unwrap_or(&[]);
        pieces
            .iter()
            .filter(|(_, piece)| {
                parts_of(geometry, piece).is_some_and(|parts| parts.contains(&part))
            })
            .copied()
            .collect()
    }
}

/// The first byte of a page that is not zero although it belongs to no row: kernels may multiply it by zero,
/// which is not zero where it makes up a NaN.
fn slack(geometry: &Geometry, page: &PageRecord, bytes: &[u8]) -> Option<(u64, u8)> {
    let not_zero = |start: u64, end: u64| {
        let between = bytes.get(start as usize..end.min(bytes.len() as u64) as usize)?;
        let (at, byte) = first_not_zero(between)?;
        Some((start + at as u64, byte))
    };
    let mut end = 0;
    for plane in &geometry.planes {
        if let Some(found) = not_zero(end, plane.offset) {
            return Some(found);
        }
        let rows = if geometry.is_small() { plane.rows } else { u64::from(page.rows) };
        if plane.row_bytes < plane.row_stride {
            let found = (0..rows).find_map(|row| {
                let start = plane.offset + row * plane.row_stride;
                not_zero(start + plane.row_bytes, start + plane.row_stride)
            });
            if found.is_some() {
                return found;
            }
        }
        end = plane.offset + rows * plane.row_stride;
    }
    not_zero(end, bytes.len() as u64)
}

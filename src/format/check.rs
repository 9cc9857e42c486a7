//! Whether the parts of an archive agree: the page table with itself, with the file's length and with the
//! manifest, and the manifest with itself.
//!
//! `Archive::open`, `verify` and the writer share these checks. They run in steps; a step that fails ends the
//! run, because the next one counts on it: after [`contents`] found nothing, every piece lies inside its
//! group, every group row has one owner, and sums of these numbers cannot overflow. Memory is bounded by one
//! bit per row of the largest group, whose rows were first found to lie inside the file.

use std::collections::{HashMap, HashSet};

use super::finding::Finding;
use super::header::Header;
use super::manifest::{Manifest, Piece, Tensor};
use super::names::{MAX_TENSOR_NAME, clip, extracted_name, is_plain_name};
use super::unpack::{RowInverse, block_type, bytes_of, dtype_bytes, last_row};
use super::{
    Error, Geometry, Group, MAX_PART_BYTES, PAGE_ALIGN, PageRecord, PlaneKind, Role, groups,
    round_up,
};

/// More contradictions than this are not listed.
const MAX_FINDINGS: usize = 64;

/// Whether pages lie one after another, from the page table to the end of the file, and nothing else does.
#[must_use]
pub fn placement(pages: &[PageRecord], header: &Header) -> Vec<Finding> {
    let mut found = Findings::default();
    let mut expected = header.data_off();
    for (position, page) in pages.iter().enumerate() {
        let (place, offset) = (page.place(), page.offset);
        if page.id as usize != position {
            found.push(Finding::PageId { position: position as u32, found: page.id });
        }
        if !offset.is_multiple_of(PAGE_ALIGN) {
            found.push(Finding::PageUnaligned { page: place, offset });
        }
        if offset < expected {
            found.push(Finding::PageOverlaps { page: place, offset, end: expected });
        } else if offset > expected {
            found.push(Finding::PageGap { page: place, offset, expected });
        }
        let end = offset
            .checked_add(page.stored_len)
            .and_then(|end| round_up(end, PAGE_ALIGN))
            .filter(|&end| end <= header.file_len);
        let Some(end) = end else {
            found.push(Finding::PageOutside {
                page: place,
                offset,
                stored_len: page.stored_len,
                file_len: header.file_len,
            });
            return found.0;
        };
        expected = end;
        if found.is_full() {
            return found.0;
        }
    }
    if expected != header.file_len {
        found.push(Finding::FileEnd { end: expected, file_len: header.file_len });
    }
    found.0
}

/// Whether manifest and page table agree, places in the file aside: those are unknown while packing.
#[must_use]
pub fn contents(manifest: &Manifest, pages: &[PageRecord]) -> Vec<Finding> {
    let mut found = Findings::default();
    let groups = groups(pages);
    for step in [check_pages, check_groups, check_names, check_pieces, check_rows] {
        step(manifest, pages, &groups, &mut found);
        if !found.0.is_empty() {
            break;
        }
    }
    found.0
}

/// **Errors**: [`Error::Contradiction`] with the first of `findings`, if there is one.
pub fn none(file: &str, mut findings: Vec<Finding>) -> Result<(), Error> {
    if findings.is_empty() {
        return Ok(());
    }
    let finding = findings.swap_remove(0);
    Err(Error::Contradiction {
        file: file.into(),
        finding: Box::new(finding),
        others: findings.len(),
    })
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn push(&mut self, finding: Finding) {
        if !self.is_full() {
            self.0.push(finding);
        }
    }

    fn is_full(&self) -> bool {
        self.0.len() >= MAX_FINDINGS
    }
}

/// Step 1: each descriptor is a known layout; each page has a place its role can have and a descriptor of its
/// own kind.
fn check_pages(manifest: &Manifest, pages: &[PageRecord], _: &[Group], found: &mut Findings) {
    for (index, geometry) in manifest.descriptors.iter().enumerate() {
        if !is_known(geometry) {
            found.push(Finding::DescriptorInconsistent { descriptor: index });
        }
    }
    for page in pages {
        let place = page.place();
        if page.layout != 0 {
            found.push(Finding::UnknownLayout { page: place, layout: page.layout });
        }
        if !belongs(page) {
            found.push(Finding::RoleMisplaced { page: place });
        }
        if page.role == Role::Asset {
            check_field(page, "descriptor", u64::from(page.descriptor), 0, found);
            check_field(page, "first_row", u64::from(page.first_row), 0, found);
            check_field(page, "rows", u64::from(page.rows), 0, found);
            check_format(page, crate::quant::Format::Bytes, found);
            continue;
        }
        let Some(geometry) = manifest.descriptors.get(page.descriptor as usize) else {
            found.push(Finding::NoDescriptor {
                page: place,
                descriptor: page.descriptor,
                count: manifest.descriptors.len(),
            });
            continue;
        };
        if geometry.is_small() != (page.role == Role::Small) {
            found.push(Finding::DescriptorKind { page: place, descriptor: page.descriptor });
        }
        check_format(page, geometry.format, found);
    }
}

/// Step 2: each group has the parts its geometry says, and each part the rows and bytes.
fn check_groups(manifest: &Manifest, pages: &[PageRecord], groups: &[Group], found: &mut Findings) {
    for group in groups {
        let members = group.pages().filter_map(|id| pages.get(id.0 as usize));
        let geometry = match group.role {
            Role::Asset => None,
            _ => manifest.descriptors.get(group.descriptor),
        };
        let parts = geometry.map_or(u64::from(group.parts), Geometry::parts);
        for (part, page) in (0u64..).zip(members) {
            check_field(page, "part", u64::from(page.part), part, found);
            if part >= parts {
                continue;
            }
            if let Some(geometry) = geometry {
                let first_row = part * geometry.part_rows;
                let bytes = geometry.part_bytes(part);
                let rows = geometry.rows_of(part);
                check_field(page, "first_row", u64::from(page.first_row), first_row, found);
                check_field(page, "rows", u64::from(page.rows), rows, found);
                check_field(page, "stored_len", page.stored_len, bytes, found);
            } else if part + 1 < parts {
                check_field(page, "stored_len", page.stored_len, MAX_PART_BYTES, found);
            } else if page.stored_len > MAX_PART_BYTES || (part > 0 && page.stored_len == 0) {
                check_field(
                    page,
                    "stored_len",
                    page.stored_len,
                    page.stored_len.clamp(1, MAX_PART_BYTES),
                    found,
                );
            }
        }
        if u64::from(group.parts) != parts
            && let Some(page) = pages.get(group.first_page.0 as usize)
        {
            found.push(Finding::GroupParts {
                page: page.place(),
                found: u64::from(group.parts),
                expected: parts,
            });
        }
    }
}

/// Step 3: names are unique and harmless; carried files and their pages match one to one.
fn check_names(manifest: &Manifest, pages: &[PageRecord], groups: &[Group], found: &mut Findings) {
    let mut names = HashSet::new();
    for tensor in &manifest.tensors {
        let name = tensor.name.as_str();
        if name.is_empty() || name.len() > MAX_TENSOR_NAME || name == "__metadata__" {
            found.push(Finding::TensorName { name: clip(name) });
        }
        if !names.insert(name) {
            found.push(Finding::DuplicateName { name: clip(name) });
        }
        if tensor.file as usize >= manifest.provenance.files.len() {
            found.push(Finding::NoSourceFile {
                tensor: clip(name),
                file: tensor.file,
                count: manifest.provenance.files.len(),
            });
        }
    }

    // Some file systems do not tell `A` from `a`.
    let mut names = HashSet::new();
    let sources = manifest.provenance.files.iter();
    let sources = sources.map(|file| (&file.name, extracted_name(&file.name)));
    let assets = manifest.assets.iter().map(|asset| (&asset.name, asset.name.clone()));
    for (name, written) in sources.chain(assets) {
        if !is_plain_name(name) {
            found.push(Finding::FileName { name: clip(name) });
        }
        if !names.insert(written.to_lowercase()) {
            found.push(Finding::DuplicateName { name: clip(name) });
        }
    }

    let mut owners: HashMap<u32, usize> = HashMap::new();
    for asset in &manifest.assets {
        let Some(group) = group_at(groups, asset.page).filter(|group| group.role == Role::Asset)
        else {
            found.push(Finding::AssetGroup { name: asset.name.clone(), page: asset.page });
            continue;
        };
        *owners.entry(asset.page).or_default() += 1;
        let held: u64 = group
            .pages()
            .filter_map(|id| pages.get(id.0 as usize))
            .map(|page| page.stored_len)
            .sum();
        if held != asset.bytes {
            found.push(Finding::AssetBytes {
                name: asset.name.clone(),
                stated: asset.bytes,
                found: held,
            });
        }
    }
    for group in groups.iter().filter(|group| group.role == Role::Asset) {
        let count = owners.get(&group.first_page.0).copied().unwrap_or(0);
        if count != 1
            && let Some(page) = pages.get(group.first_page.0 as usize)
        {
            found.push(Finding::AssetOwners { page: page.place(), owners: count });
        }
    }
}

/// Step 4: each piece lies inside its group, fits its tensor's type and shape, and the pieces of a tensor
/// hold every source row once.
fn check_pieces(manifest: &Manifest, _: &[PageRecord], groups: &[Group], found: &mut Findings) {
    for tensor in &manifest.tensors {
        check_tensor(manifest, tensor, groups, found);
        if found.is_full() {
            return;
        }
    }
    for padding in &manifest.padding {
        let piece = padding.as_piece();
        place_of(manifest, groups, "padding", &piece, found);
    }
}

fn check_tensor(manifest: &Manifest, tensor: &Tensor, groups: &[Group], found: &mut Findings) {
    let name = || clip(&tensor.name);
    if dtype_bytes(&tensor.dtype).is_none() && block_type(&tensor.dtype).is_none() {
        return found.push(Finding::UnknownDtype { tensor: name(), dtype: clip(&tensor.dtype) });
    }
    let product = |dims: &[u64]| bytes_of(&tensor.dtype, dims);
    let Some(expected) = product(&tensor.shape) else {
        return found.push(Finding::ShapeOverflow { tensor: name() });
    };

    let mut runs = Vec::with_capacity(tensor.pieces.len());
    let mut bytes = Some(0u64);
    for piece in &tensor.pieces {
        let Some((geometry, plane)) = place_of(manifest, groups, &tensor.name, piece, found) else {
            return;
        };
        let Some(inverse) = RowInverse::of(tensor, geometry, plane) else {
            return found.push(Finding::PieceType {
                tensor: name(),
                dtype: clip(&tensor.dtype),
                page: piece.page,
                plane: piece.plane,
            });
        };
        let row_bytes = inverse.source_bytes;
        // A vector's row is one number, whatever the shape; a matrix row is whole trailing dimensions.
        let is_vector = matches!(plane.kind, PlaneKind::Vector(_));
        let suffixes = (0..tensor.shape.len()).filter_map(|from| tensor.shape.get(from..));
        if !is_vector && !suffixes.into_iter().any(|dims| product(dims) == Some(row_bytes)) {
            return found.push(Finding::PieceWidth { tensor: name(), page: piece.page, row_bytes });
        }
        runs.push((piece.source_row, piece.rows));
        bytes = bytes.and_then(|bytes| bytes.checked_add(row_bytes.checked_mul(piece.rows)?));
    }

    runs.sort_unstable();
    let mut next = 0u64;
    for (source_row, rows) in runs {
        if source_row != next {
            return found.push(Finding::SourceRows {
                tensor: name(),
                found: source_row,
                expected: next,
            });
        }
        next = next.saturating_add(rows);
    }
    if bytes != Some(expected) {
        found.push(Finding::TensorBytes {
            tensor: name(),
            found: bytes.unwrap_or(u64::MAX),
            expected,
        });
    }
}

/// Step 5: each row of each plane of each group belongs to one piece.
fn check_rows(manifest: &Manifest, pages: &[PageRecord], groups: &[Group], found: &mut Findings) {
    let of_tensors = manifest.tensors.iter().flat_map(|tensor| {
        let claim = |piece: &Piece| (*piece, tensor.fills_planes(), tensor.name.as_str());
        tensor.pieces.iter().map(claim)
    });
    let of_padding = manifest.padding.iter().map(|padding| (padding.as_piece(), false, "padding"));
    let mut claims: Vec<(Piece, bool, &str)> = of_tensors.chain(of_padding).collect();
    claims.sort_by_key(|(piece, ..)| piece.page);
    let mut claims = claims.as_slice();

    for group in groups.iter().filter(|group| group.role != Role::Asset) {
        let Some(page) = pages.get(group.first_page.0 as usize) else {
            continue;
        };
        let Some(geometry) = manifest.descriptors.get(group.descriptor) else {
            continue;
        };
        let here = claims.partition_point(|(piece, ..)| piece.page <= group.first_page.0);
        let (of_group, rest) = claims.split_at_checked(here).unwrap_or((claims, &[]));
        claims = rest;
        for (plane, index) in geometry.planes.iter().zip(0u32..) {
            let mut rows = Rows::new(plane.rows);
            let mut twice = false;
            let of_plane = of_group.iter().filter(|(piece, all, _)| *all || piece.plane == index);
            for (piece, _, owner) in of_plane {
                let claimed = (0..piece.rows)
                    .map(|step| piece.first_row + step * piece.row_step)
                    .find(|&row| !rows.claim(row));
                if let Some(row) = claimed {
                    twice = true;
                    found.push(Finding::RowTwice {
                        page: page.place(),
                        plane: index,
                        row,
                        owner: (*owner).into(),
                    });
                }
            }
            if let Some(row) = rows.first_unclaimed()
                && !twice
            {
                found.push(Finding::RowUnclaimed { page: page.place(), plane: index, row });
            }
        }
        if found.is_full() {
            return;
        }
    }
}

/// One bit per row of a plane.
struct Rows {
    bits: Vec<u64>,
    rows: u64,
}

impl Rows {
    fn new(rows: u64) -> Self {
        Rows { bits: vec![0; rows.div_ceil(64) as usize], rows }
    }

    /// Whether the row was free; it no longer is.
    fn claim(&mut self, row: u64) -> bool {
        let Some(word) = self.bits.get_mut((row / 64) as usize) else {
            return false;
        };
        let bit = 1u64 << (row % 64);
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    fn first_unclaimed(&self) -> Option<u64> {
        let (word, index) = self.bits.iter().zip(0u64..).find(|(word, index)| {
            let used = (self.rows - index * 64).min(64);
            word.count_ones() as u64 != used
        })?;
        Some(index * 64 + u64::from(word.trailing_ones()))
    }
}

/// The geometry and plane a piece lies in, once it was found to lie inside.
fn place_of<'a>(
    manifest: &'a Manifest,
    groups: &[Group],
    owner: &str,
    piece: &Piece,
    found: &mut Findings,
) -> Option<(&'a Geometry, &'a super::Plane)> {
    let group = group_at(groups, piece.page).filter(|group| group.role != Role::Asset);
    let Some(geometry) = group.and_then(|group| manifest.descriptors.get(group.descriptor)) else {
        found.push(Finding::PieceGroup { owner: owner.into(), page: piece.page });
        return None;
    };
    let Some(plane) = geometry.planes.get(piece.plane as usize) else {
        found.push(Finding::PiecePlane {
            owner: owner.into(),
            page: piece.page,
            plane: piece.plane,
            count: geometry.planes.len(),
        });
        return None;
    };
    let inside = piece.row_step > 0 && last_row(piece).is_some_and(|row| row < plane.rows);
    if !inside {
        found.push(Finding::PieceRows {
            owner: owner.into(),
            page: piece.page,
            first_row: piece.first_row,
            rows: piece.rows,
            row_step: piece.row_step,
            plane_rows: plane.rows,
        });
        return None;
    }
    Some((geometry, plane))
}

/// The group whose first page this is.
fn group_at(groups: &[Group], page: u32) -> Option<&Group> {
    let position = groups.binary_search_by_key(&page, |group| group.first_page.0).ok()?;
    groups.get(position)
}

/// Whether this version would have made this geometry, and its stated precision is that of its format.
fn is_known(geometry: &Geometry) -> bool {
    let kinds: HashSet<String> =
        geometry.planes.iter().map(|plane| format!("{:?}", plane.kind)).collect();
    geometry.is_consistent()
        && kinds.len() == geometry.planes.len()
        && geometry.planes.iter().all(|plane| plane.rows > 0)
        && geometry.quantization.storage_dtype == geometry.format
        && geometry.quantization.bits == geometry.format.bits()
}

/// Whether layer and expert are what the role has.
fn belongs(page: &PageRecord) -> bool {
    let (layer, expert) = (page.layer.is_some(), page.expert.is_some());
    match page.role {
        Role::Asset | Role::Embed | Role::Head => !layer && !expert,
        Role::Small => !expert,
        Role::AttnQkv
        | Role::AttnOut
        | Role::FfnGateUp
        | Role::FfnDown
        | Role::Router
        | Role::SharedGateUp
        | Role::SharedDown => layer && !expert,
        Role::ExpertGateUp | Role::ExpertDown => layer && expert,
    }
}

fn check_field(
    page: &PageRecord,
    field: &'static str,
    found: u64,
    expected: u64,
    findings: &mut Findings,
) {
    if found != expected {
        findings.push(Finding::PageField { page: page.place(), field, found, expected });
    }
}

fn check_format(page: &PageRecord, expected: crate::quant::Format, findings: &mut Findings) {
    if page.format != expected {
        findings.push(Finding::PageFormat { page: page.place(), found: page.format, expected });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_unclaimed_row_is_found_at_word_borders() {
        let mut rows = Rows::new(130);
        for row in 0..129 {
            assert!(rows.claim(row));
        }
        assert_eq!(rows.first_unclaimed(), Some(129));
        assert!(rows.claim(129));
        assert_eq!(rows.first_unclaimed(), None);
        assert!(!rows.claim(64));
        assert!(!rows.claim(1 << 40));
    }
}

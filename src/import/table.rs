//! The page table and the manifest of a source, from where its tensors were placed.

use std::collections::BTreeMap;

use super::coding::Coding;
use super::groups::{Group, Placed};
use super::pack::AssetFile;
use super::shards::Weights;
use crate::format::manifest::{Asset, Ignored, Piece, Provenance, SourceFile, Tensor};
use crate::format::record::number;
use crate::format::{Geometry, MAX_PART_BYTES, PageRecord};

/// What a page holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// Bytes of an asset from here on.
    Asset { asset: usize, offset: u64 },
    /// A part of a group.
    Part { group: usize, part: u64 },
}

/// The pages of a source and what they refer to.
#[derive(Default)]
pub(super) struct Table {
    pub(super) pages: Vec<PageRecord>,
    /// What each page holds.
    pub(super) content: Vec<Content>,
    pub(super) descriptors: Vec<Geometry>,
    pub(super) assets: Vec<Asset>,
    /// First page of each group.
    first_pages: Vec<u32>,
}

impl Table {
    /// Assets first, then the groups in their order.
    pub(super) fn new(assets: &[AssetFile], groups: &[Group]) -> Self {
        let mut table = Table::default();
        for (asset, file) in assets.iter().enumerate() {
            table.assets.push(Asset {
                name: file.name.clone(),
                page: table.pages.len() as u32,
                bytes: file.bytes(),
            });
            for record in PageRecord::of_asset(file.bytes()) {
                let offset = u64::from(record.part) * MAX_PART_BYTES;
                table.content.push(Content::Asset { asset, offset });
                table.pages.push(record);
            }
        }
        for (group, placed) in groups.iter().enumerate() {
            table.first_pages.push(table.pages.len() as u32);
            let descriptor = table.descriptor(&placed.geometry);
            let (role, layer) = (placed.role, placed.layer);
            let parts = PageRecord::of_group(role, layer, None, descriptor, &placed.geometry);
            for record in parts {
                let part = u64::from(record.part);
                table.content.push(Content::Part { group, part });
                table.pages.push(record);
            }
        }
        number(&mut table.pages);
        table
    }

    fn descriptor(&mut self, geometry: &Geometry) -> u32 {
        let known = self.descriptors.iter().position(|known| known == geometry);
        let index = known.unwrap_or_else(|| {
            self.descriptors.push(geometry.clone());
            self.descriptors.len() - 1
        });
        index as u32
    }

    /// The manifest's list of stored tensors in source order, hashes zero, and for each source tensor its
    /// position in that list.
    pub(super) fn tensors(
        &self,
        weights: &Weights,
        placed: &Placed,
    ) -> (Vec<Tensor>, Vec<Option<usize>>) {
        let mut pieces: BTreeMap<usize, (Coding, Vec<Piece>)> = BTreeMap::new();
        for (group, &page) in placed.groups.iter().zip(&self.first_pages) {
            for member in &group.members {
                let (_, pieces) =
                    pieces.entry(member.tensor).or_insert_with(|| (member.coding, Vec::new()));
                pieces.push(member.piece(page));
            }
        }
        let mut tensors = Vec::with_capacity(pieces.len());
        let mut listed = vec![None; weights.tensors.len()];
        for (tensor, (coding, mut pieces)) in pieces {
            let at = weights.tensors.get(tensor).copied();
            let Some((at, entry)) = at.and_then(|at| Some((at, weights.entry(at)?))) else {
                continue;
            };
            if let Some(listed) = listed.get_mut(tensor) {
                *listed = Some(tensors.len());
            }
            pieces.sort_by_key(|piece| piece.source_row);
            tensors.push(Tensor {
                name: placed.renamed.get(&tensor).unwrap_or(&entry.name).clone(),
                file: at.0 as u32,
                dtype: coding.listed.name().to_owned(),
                shape: entry.shape.clone(),
                hash: [0; 32],
                transform: coding.transform(),
                pieces,
            });
        }
        (tensors, listed)
    }
}

/// What kind of source, and what was done to its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) source: &'static str,
    pub(super) profile: &'static str,
}

/// Where the pages come from.
pub(super) fn provenance(weights: &Weights, placed: &Placed, origin: Origin) -> Provenance {
    let unused = placed
        .ignored
        .iter()
        .filter_map(|&(tensor, reason)| Some((*weights.tensors.get(tensor)?, reason)));
    let unlisted = weights.unlisted.iter().map(|&at| {
        let reason = "not listed in model.safetensors.index.json";
        (at, reason)
    });
    let ignored = unused.chain(unlisted).filter_map(|(at, reason)| {
        Some(Ignored { name: weights.entry(at)?.name.clone(), reason: reason.to_owned() })
    });
    let files = weights.files.iter().map(|(name, file)| SourceFile {
        name: name.clone(),
        bytes: file.len(),
        metadata: file.metadata.clone(),
    });
    Provenance {
        tool: concat!("thin ", env!("CARGO_PKG_VERSION")).to_owned(),
        source: origin.source.to_owned(),
        files: files.collect(),
        ignored: ignored.collect(),
        profile: origin.profile.to_owned(),
        exact_storage_preserved: false, // known when every page has been unpacked again
    }
}

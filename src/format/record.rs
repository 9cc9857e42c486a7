//! One record of the page table, the groups that consecutive records form, and the records a packer makes
//! for a matrix group or a file. The table itself is read and written by `format::table`.

use super::{Geometry, Hash, MAX_PART_BYTES, PageId, Role};
use crate::quant::Format;

/// One page: one part of a matrix group, the vectors of a layer, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// Position in the table.
    pub id: u32,
    /// What the page means.
    pub role: Role,
    /// Decoder layer, or none for what belongs to the whole model.
    pub layer: Option<u32>,
    /// Expert, where the group is one expert's.
    pub expert: Option<u32>,
    /// Storage format of the codes.
    pub format: Format,
    /// Row layout; 0 is the only one so far.
    pub layout: u16,
    /// Where the page starts in the file, a multiple of 4,096.
    pub offset: u64,
    /// Bytes stored; the same as the bytes in memory, there being no compression.
    pub stored_len: u64,
    /// BLAKE3 of the stored bytes.
    pub hash: Hash,
    /// Which entry of `Manifest::descriptors` gives the geometry; meaningless for assets (0).
    pub descriptor: u32,
    /// Position of this part in its group.
    pub part: u32,
    /// First row of the group that this part holds.
    pub first_row: u32,
    /// Rows this part holds.
    pub rows: u32,
}

impl PageRecord {
    /// The records of a group with this geometry, without ids, offsets and hashes; [`number`] gives the ids.
    #[must_use]
    pub fn of_group(
        role: Role,
        layer: Option<u32>,
        expert: Option<u32>,
        descriptor: u32,
        geometry: &Geometry,
    ) -> Vec<PageRecord> {
        (0..geometry.parts())
            .map(|part| PageRecord {
                id: 0,
                role,
                layer,
                expert,
                format: geometry.format,
                layout: 0,
                offset: 0,
                stored_len: geometry.part_bytes(part),
                hash: [0; 32],
                descriptor,
                part: part as u32,
                first_row: (part * geometry.part_rows) as u32,
                rows: geometry.rows_of(part) as u32,
            })
            .collect()
    }

    /// The records of a file of so many bytes: pages of 32 MiB, the last one shorter; an empty file has one
    /// empty page.
    #[must_use]
    pub fn of_asset(bytes: u64) -> Vec<PageRecord> {
        (0..bytes.div_ceil(MAX_PART_BYTES).max(1))
            .map(|part| PageRecord {
                id: 0,
                role: Role::Asset,
                layer: None,
                expert: None,
                format: crate::quant::Format::Bytes,
                layout: 0,
                offset: 0,
                stored_len: (bytes - part * MAX_PART_BYTES).min(MAX_PART_BYTES),
                hash: [0; 32],
                descriptor: 0,
                part: part as u32,
                first_row: 0,
                rows: 0,
            })
            .collect()
    }

    /// Which page this is and what it means, for messages.
    #[must_use]
    pub fn place(&self) -> PagePlace {
        PagePlace { id: self.id, role: self.role, layer: self.layer, expert: self.expert }
    }

    fn continues(&self, group: &Group) -> bool {
        self.part == group.parts
            && self.part > 0
            && (self.role, self.layer, self.expert) == (group.role, group.layer, group.expert)
            && self.descriptor as usize == group.descriptor
    }
}

/// Makes ids positions.
pub fn number(pages: &mut [PageRecord]) {
    for (id, page) in pages.iter_mut().enumerate() {
        page.id = id as u32;
    }
}

/// Which page, and what it means: `17 (attn_qkv, layer 3, expert 2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Position in the table.
    pub id: u32,
    /// What the page means.
    pub role: Role,
    /// Decoder layer, where it has one.
    pub layer: Option<u32>,
    /// Expert, where it is one expert's.
    pub expert: Option<u32>,
}

impl PagePlace {
    /// Role, layer and expert without the id: `attn_qkv, layer 3`.
    #[must_use]
    pub fn meaning(&self) -> String {
        let mut text = self.role.name().to_owned();
        if let Some(layer) = self.layer {
            text.push_str(&format!(", layer {layer}"));
        }
        if let Some(expert) = self.expert {
            text.push_str(&format!(", expert {expert}"));
        }
        text
    }
}

impl std::fmt::Display for PagePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.id, self.meaning())
    }
}

/// Consecutive pages that hold the parts of one matrix group, one `small` page, or one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it means.
    pub role: Role,
    /// Decoder layer, where it has one.
    pub layer: Option<u32>,
    /// Expert, where it is one expert's.
    pub expert: Option<u32>,
    /// Index into `Manifest::descriptors`; meaningless for files.
    pub descriptor: usize,
    /// The page of part 0.
    pub first_page: PageId,
    /// Pages of the group.
    pub parts: u32,
}

impl Group {
    /// The pages, part by part.
    pub fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
        let first = self.first_page.0;
        (first..first.saturating_add(self.parts)).map(PageId)
    }
}

/// The groups of a page table, in order. A page that does not continue the group before it starts one.
#[must_use]
pub fn groups(pages: &[PageRecord]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (position, page) in pages.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if page.continues(group) => group.parts += 1,
            _ => groups.push(Group {
                role: page.role,
                layer: page.layer,
                expert: page.expert,
                descriptor: page.descriptor as usize,
                first_page: PageId(position as u32),
                parts: 1,
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Format;

    #[test]
    fn groups_are_split_at_part_zero_and_where_the_meaning_changes() {
        // 20,000 rows of 4,096 bytes: parts of 8,192 rows, so three pages a group.
        let geometry = Geometry::matrix(Format::BF16, 20_000, 2_048).expect("fits");
        let mut pages = PageRecord::of_group(Role::Embed, None, None, 0, &geometry);
        pages.extend(PageRecord::of_group(Role::Head, None, None, 0, &geometry));
        pages.extend(PageRecord::of_asset(10));
        pages.extend(PageRecord::of_asset(MAX_PART_BYTES + 1));
        number(&mut pages);

        let groups = groups(&pages);

        let seen: Vec<_> =
            groups.iter().map(|group| (group.role, group.first_page.0, group.parts)).collect();
        assert_eq!(
            seen,
            [(Role::Embed, 0, 3), (Role::Head, 3, 3), (Role::Asset, 6, 1), (Role::Asset, 7, 2)]
        );
        assert_eq!(groups[1].pages().last(), Some(PageId(5)));
    }

    #[test]
    fn an_empty_file_has_one_empty_page() {
        let pages = PageRecord::of_asset(0);

        assert_eq!(pages.len(), 1);
        assert_eq!(pages[0].stored_len, 0);
    }
}

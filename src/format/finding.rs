//! Contradictions inside an archive: each names the page or tensor and the two numbers that disagree.

use super::{PAGE_ALIGN, PagePlace, grouped};

/// One contradiction. [`check`](super::check) finds them, `verify` lists them, a reader stops at the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A record's id is not its position.
    #[error("the record at position {position} has id {found}")]
    PageId {
        /// Position in the table.
        position: u32,
        /// The id it states.
        found: u32,
    },
    /// A page does not start at a multiple of 4,096.
    #[error("page {page} starts at byte {}, which is no multiple of {}", grouped(*offset), grouped(PAGE_ALIGN))]
    PageUnaligned {
        /// The page.
        page: PagePlace,
        /// Where it starts.
        offset: u64,
    },
    /// A page starts before the page before it, or the page table, ends.
    #[error("page {page} starts at byte {} but what lies before it ends at {}", grouped(*offset), grouped(*end))]
    PageOverlaps {
        /// The page.
        page: PagePlace,
        /// Where it starts.
        offset: u64,
        /// Where it may start at the earliest.
        end: u64,
    },
    /// There is room for something hidden before a page.
    #[error("page {page} starts at byte {} but belongs at {}", grouped(*offset), grouped(*expected))]
    PageGap {
        /// The page.
        page: PagePlace,
        /// Where it starts.
        offset: u64,
        /// Where it belongs.
        expected: u64,
    },
    /// A page ends after the file does, or its length overflows.
    #[error("page {page} of {} bytes starts at byte {} but the file has {}", grouped(*stored_len), grouped(*offset), grouped(*file_len))]
    PageOutside {
        /// The page.
        page: PagePlace,
        /// Where it starts.
        offset: u64,
        /// Its length.
        stored_len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// The file does not end where its last page does.
    #[error("the pages end at byte {} but the file has {}", grouped(*end), grouped(*file_len))]
    FileEnd {
        /// Where the last page ends, rounded up.
        end: u64,
        /// What the header says.
        file_len: u64,
    },
    /// A row layout this version does not know.
    #[error("page {page} has layout {layout}, which this version does not know")]
    UnknownLayout {
        /// The page.
        page: PagePlace,
        /// The number found.
        layout: u16,
    },
    /// Layer or expert are stated where the role has none, or are missing.
    #[error("page {page} has a layer or expert that its role does not have, or lacks one")]
    RoleMisplaced {
        /// The page.
        page: PagePlace,
    },
    /// A page points at a geometry that does not exist.
    #[error("page {page} has descriptor {descriptor} but there are {count}")]
    NoDescriptor {
        /// The page.
        page: PagePlace,
        /// The index it states.
        descriptor: u32,
        /// Descriptors there are.
        count: usize,
    },
    /// A geometry is not one this version would have made.
    #[error("descriptor {descriptor} is not a layout this version knows")]
    DescriptorInconsistent {
        /// Index into the manifest's descriptors.
        descriptor: usize,
    },
    /// A page of vectors has a matrix's geometry, or the other way round.
    #[error("page {page} has descriptor {descriptor}, which is of another kind")]
    DescriptorKind {
        /// The page.
        page: PagePlace,
        /// The index it states.
        descriptor: u32,
    },
    /// A page's format is not its geometry's.
    #[error("page {page} has format {found} but its descriptor has {expected}")]
    PageFormat {
        /// The page.
        page: PagePlace,
        /// What the record says.
        found: crate::quant::Format,
        /// What the geometry says.
        expected: crate::quant::Format,
    },
    /// A field of a page record is not what the geometry, or the place in its group, makes it.
    #[error("page {page} has {field} {} where {} is right", grouped(*found), grouped(*expected))]
    PageField {
        /// The page.
        page: PagePlace,
        /// "part", "first_row", "rows", "stored_len".
        field: &'static str,
        /// What the record says.
        found: u64,
        /// What is right.
        expected: u64,
    },
    /// A group has fewer or more pages than its geometry has parts.
    #[error("the group at page {page} has {found} parts but its descriptor has {expected}")]
    GroupParts {
        /// The group's first page.
        page: PagePlace,
        /// Pages there are.
        found: u64,
        /// Parts there should be.
        expected: u64,
    },
    /// Two tensors, or two files, have one name.
    #[error("the name '{name}' is used twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A tensor is called nothing, or what safetensors reserves.
    #[error("'{name}' is not a tensor name")]
    TensorName {
        /// The name.
        name: String,
    },
    /// A tensor points at a source file that does not exist.
    #[error("tensor '{tensor}' belongs to source file {file} but there are {count}")]
    NoSourceFile {
        /// The tensor.
        tensor: String,
        /// The index it states.
        file: u32,
        /// Source files there are.
        count: usize,
    },
    /// A number type this version does not know.
    #[error("tensor '{tensor}' has number type '{dtype}', which this version does not know")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// The name found.
        dtype: String,
    },
    /// The product of a shape and a number's size overflows, or is zero while there are rows.
    #[error("tensor '{tensor}' has a shape of more bytes than can be counted")]
    ShapeOverflow {
        /// The tensor.
        tensor: String,
    },
    /// A piece does not start at the first page of a group of rows.
    #[error(
        "a piece of '{owner}' names page {page}, which is not the first page of a matrix or of vectors"
    )]
    PieceGroup {
        /// The tensor, or "padding".
        owner: String,
        /// The page it names.
        page: u32,
    },
    /// A piece names a plane that its group does not have.
    #[error("a piece of '{owner}' names plane {plane} of page {page}, which has {count}")]
    PiecePlane {
        /// The tensor, or "padding".
        owner: String,
        /// First page of the group.
        page: u32,
        /// The plane it names.
        plane: u32,
        /// Planes there are.
        count: usize,
    },
    /// A piece leaves its group, is empty or does not advance.
    #[error("a piece of '{owner}' has {} rows from row {} of page {page} in steps of {}, and the plane has {} rows", grouped(*rows), grouped(*first_row), grouped(*row_step), grouped(*plane_rows))]
    PieceRows {
        /// The tensor, or "padding".
        owner: String,
        /// First page of the group.
        page: u32,
        /// First row.
        first_row: u64,
        /// Rows.
        rows: u64,
        /// Rows from one to the next.
        row_step: u64,
        /// Rows of the plane.
        plane_rows: u64,
    },
    /// Number type, transforms and plane contradict each other.
    #[error(
        "tensor '{tensor}' of type {dtype} cannot be stored in plane {plane} of page {page} with its transforms"
    )]
    PieceType {
        /// The tensor.
        tensor: String,
        /// Its number type.
        dtype: String,
        /// First page of the group.
        page: u32,
        /// The plane.
        plane: u32,
    },
    /// A row of the group is not made of whole trailing dimensions of the tensor.
    #[error("tensor '{tensor}' has rows of {} bytes in page {page}, which its shape does not have", grouped(*row_bytes))]
    PieceWidth {
        /// The tensor.
        tensor: String,
        /// First page of the group.
        page: u32,
        /// Bytes of a source row there.
        row_bytes: u64,
    },
    /// Source rows are missing from the pieces, or are there twice.
    #[error("the pieces of tensor '{tensor}' go on at source row {} where {} is next", grouped(*found), grouped(*expected))]
    SourceRows {
        /// The tensor.
        tensor: String,
        /// Where the next piece starts.
        found: u64,
        /// Where it should.
        expected: u64,
    },
    /// The pieces of a tensor hold more or fewer bytes than its shape says.
    #[error("the pieces of tensor '{tensor}' hold {} bytes but its shape has {}", grouped(*found), grouped(*expected))]
    TensorBytes {
        /// The tensor.
        tensor: String,
        /// Bytes of its pieces.
        found: u64,
        /// Bytes of its shape.
        expected: u64,
    },
    /// A row of a group belongs to two pieces.
    #[error("row {} of plane {plane} of page {page} belongs to '{owner}' and to another piece", grouped(*row))]
    RowTwice {
        /// First page of the group.
        page: PagePlace,
        /// The plane.
        plane: u32,
        /// The row.
        row: u64,
        /// The second owner.
        owner: String,
    },
    /// A row of a group belongs to no piece and is not named as padding.
    #[error("row {} of plane {plane} of page {page} belongs to no tensor", grouped(*row))]
    RowUnclaimed {
        /// First page of the group.
        page: PagePlace,
        /// The plane.
        plane: u32,
        /// The first such row.
        row: u64,
    },
    /// A carried file's name could leave the folder it is extracted to, or is not possible everywhere.
    #[error("'{name}' is not a plain file name")]
    FileName {
        /// The name.
        name: String,
    },
    /// A carried file does not start at the first of its pages.
    #[error("file '{name}' starts at page {page}, which is not the first page of a file")]
    AssetGroup {
        /// The name.
        name: String,
        /// The page it names.
        page: u32,
    },
    /// A carried file's pages hold more or fewer bytes than it states.
    #[error("file '{name}' has {} bytes but its pages hold {}", grouped(*stated), grouped(*found))]
    AssetBytes {
        /// The name.
        name: String,
        /// What the manifest says.
        stated: u64,
        /// What the pages hold.
        found: u64,
    },
    /// Pages of a file that no entry names, or that two entries name.
    #[error("page {page} belongs to {owners} files")]
    AssetOwners {
        /// First page.
        page: PagePlace,
        /// Entries that name it.
        owners: usize,
    },
}

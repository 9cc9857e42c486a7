//! What can be wrong with an archive, or with writing one: one variant per thing a user could act on.
//!
//! Messages name the thing and the two numbers that disagree; `hint` says what to do. Contradictions inside
//! an archive are [`Finding`]s, because `verify` lists all of them and a reader stops at the first.

use std::path::PathBuf;

use super::finding::Finding;
use super::header::Found;
use super::{Hash, PagePlace, grouped, short};

/// What is wrong with an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something other than a file stands where one is to be written.
    #[error("'{}' is not a file, and is left as it is", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {verb} '{}'", path.display())]
    Io {
        /// What was tried: "read", "write".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file does not start with the magic bytes.
    #[error("'{file}' is not a .thin archive: it {found}")]
    Magic {
        /// The file.
        file: String,
        /// What it looks like.
        found: Found,
    },
    /// The archive has a format version this program does not read.
    #[error("'{file}' has .thin format version {found}, and this program reads version {known}")]
    Version {
        /// The file.
        file: String,
        /// The version in its header.
        found: u32,
        /// The version read here.
        known: u32,
    },
    /// A header field has a value that no writer gives it.
    #[error("the header of '{file}' has {field} = {}, where {} is needed", grouped(*found), grouped(*needed))]
    HeaderField {
        /// The file.
        file: String,
        /// The field's name in the layout.
        field: &'static str,
        /// What the file says.
        found: u64,
        /// The value, or the limit, that is right.
        needed: u64,
    },
    /// A byte that must be zero is not.
    #[error("byte {} of '{file}' is {byte:#04x}, but {what} must be zero", grouped(*at))]
    NotZero {
        /// The file.
        file: String,
        /// What lies there.
        what: &'static str,
        /// Offset in the file.
        at: u64,
        /// The byte found.
        byte: u8,
    },
    /// The file ends before its header, manifest or page table does.
    #[error("the {what} of '{file}' ends at byte {} but the file has {}", grouped(*end), grouped(*len))]
    FrontCut {
        /// The file.
        file: String,
        /// "header", "manifest" or "page table".
        what: &'static str,
        /// Where it would end.
        end: u64,
        /// Bytes there are.
        len: u64,
    },
    /// The file ends before a page does.
    #[error("page {} of '{file}' ends at byte {} but the file has {} ({})", page.id, grouped(*end), grouped(*len), page.meaning())]
    PageCut {
        /// The file.
        file: String,
        /// The first page that is not whole.
        page: PagePlace,
        /// Where it would end.
        end: u64,
        /// Bytes there are.
        len: u64,
    },
    /// All pages are there, and the file still has another length than its header says.
    #[error("'{file}' has {} bytes but its header says {}", grouped(*found), grouped(*stated))]
    FileLength {
        /// The file.
        file: String,
        /// Bytes there are.
        found: u64,
        /// Bytes the header states.
        stated: u64,
    },
    /// Header, manifest and page table do not have the hash that the header states.
    #[error(
        "the header, manifest or page table of '{file}' was changed: its hash is {}..., stated is {}...",
        short(found),
        short(stated)
    )]
    ArchiveHash {
        /// The file.
        file: String,
        /// The hash in the header.
        stated: Hash,
        /// The hash of the bytes.
        found: Hash,
    },
    /// A page does not have the hash that its record states.
    #[error("page {} of '{file}' ({}) is damaged: its hash is {}..., stated is {}...", page.id, page.meaning(), short(found), short(stated))]
    PageHash {
        /// The file.
        file: String,
        /// The page.
        page: PagePlace,
        /// The hash in the page table.
        stated: Hash,
        /// The hash of the bytes.
        found: Hash,
    },
    /// A page was asked for that the archive does not have.
    #[error("page {page} was asked for but '{file}' has {count} pages")]
    NoSuchPage {
        /// The file.
        file: String,
        /// The page asked for.
        page: u32,
        /// Pages there are.
        count: usize,
    },
    /// A page has a role this version does not know.
    #[error("page {page} has role {code}, which this version does not know")]
    UnknownRole {
        /// Position in the page table.
        page: u32,
        /// The number found.
        code: u32,
    },
    /// A page has a number format this version does not know.
    #[error("page {page} has format {code}, which this version does not know")]
    UnknownFormat {
        /// Position in the page table.
        page: u32,
        /// The number found.
        code: u16,
    },
    /// A page record uses a field that version 1 keeps zero.
    #[error("page {page} has {field} = {}, where {} is needed", grouped(*found), grouped(*needed))]
    RecordField {
        /// Position in the page table.
        page: u32,
        /// The field's name in the layout.
        field: &'static str,
        /// What the file says.
        found: u64,
        /// The value that is right.
        needed: u64,
    },
    /// The manifest is not JSON of the known form.
    #[error("the manifest of '{file}' cannot be read")]
    Manifest {
        /// The file.
        file: String,
        /// What is wrong, with line and column.
        #[source]
        source: serde_json::Error,
    },
    /// Something other than spaces follows the manifest.
    #[error("byte {} of the manifest of '{file}' is {byte:#04x}, where '}}' or a space is needed", grouped(*at))]
    ManifestPadding {
        /// The file.
        file: String,
        /// Offset in the manifest region.
        at: u64,
        /// The byte found.
        byte: u8,
    },
    /// The manifest holds more values than its length explains.
    #[error("the manifest of '{file}' has {} values, and the limit for its length is {}", grouped(*values), grouped(*limit))]
    ManifestDense {
        /// The file.
        file: String,
        /// Values found.
        values: u64,
        /// Values allowed.
        limit: u64,
    },
    /// Parts of the archive contradict each other.
    #[error("'{file}' contradicts itself: {finding}{}", more(*others))]
    Contradiction {
        /// The file.
        file: String,
        /// The first contradiction.
        #[source]
        finding: Box<Finding>,
        /// How many more there are.
        others: usize,
    },
    /// The target exists and `--force` was not given.
    #[error("'{}' already exists", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// The target folder holds something and `--force` was not given.
    #[error("the folder '{}' is not empty", path.display())]
    NotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// The disk is too small.
    #[error("'{}' needs {} bytes but its disk has {} free", path.display(), grouped(*needed), grouped(*free))]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// Another process is writing the same archive.
    #[error("'{}' is being written by another process", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// The cancel flag was set.
    #[error("stopped after {pages} of {total} pages; '{}' is kept", path.display())]
    Interrupted {
        /// The unfinished file.
        path: PathBuf,
        /// Pages finished.
        pages: usize,
        /// Pages in all.
        total: usize,
    },
    /// A source's final manifest is longer than the one it announced.
    #[error("the manifest of '{file}' has {} bytes but {} were reserved", grouped(*found), grouped(*reserved))]
    ManifestGrew {
        /// The target.
        file: String,
        /// Bytes of the final manifest.
        found: u64,
        /// Bytes reserved from the first one.
        reserved: u64,
    },
    /// More pages, or a longer file, than the format can hold.
    #[error("'{file}' would have {} pages, and the format holds {}", grouped(*pages), grouped(*limit))]
    TooManyPages {
        /// The target.
        file: String,
        /// Pages asked for.
        pages: u64,
        /// Pages allowed.
        limit: u64,
    },
    /// A tensor's bytes, got back from its pages, are not the ones that were converted.
    #[error(
        "tensor '{tensor}' of '{file}' does not unpack to its source: its hash is {}..., stated is {}...",
        short(found),
        short(stated)
    )]
    TensorHash {
        /// The archive.
        file: String,
        /// The tensor.
        tensor: String,
        /// The hash in the manifest.
        stated: Hash,
        /// The hash of the bytes.
        found: Hash,
    },
    /// A source gave its final manifest without the hash of a tensor.
    #[error("the source of '{file}' did not say the hash of tensor '{tensor}'")]
    NoTensorHash {
        /// The target.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A row that no tensor owns is not zero.
    #[error("row {} of page {} of '{file}' ({}) belongs to no tensor but holds the byte {byte:#04x}", grouped(*row), page.id, page.meaning())]
    PaddingRow {
        /// The archive.
        file: String,
        /// The page.
        page: PagePlace,
        /// Row of the group.
        row: u64,
        /// The byte found.
        byte: u8,
    },
    /// A stored number cannot have come from the source's number type.
    #[error("row {} of tensor '{tensor}' holds {value:e}, which no {dtype} has", grouped(*row))]
    NotNarrowable {
        /// The tensor.
        tensor: String,
        /// The source's number type.
        dtype: String,
        /// Source row.
        row: u64,
        /// The number found.
        value: f32,
    },
    /// A tensor's pieces, transforms and number type do not fit its page.
    #[error(
        "tensor '{tensor}' cannot be unpacked from page {page}: its pieces do not fit that page"
    )]
    NotUnpackable {
        /// The tensor.
        tensor: String,
        /// First page of the group.
        page: u32,
    },
}

/// " (and 3 more contradictions)", or nothing.
fn more(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 more contradiction)".into(),
        n => format!(" (and {n} more contradictions)"),
    }
}

impl Error {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    "the disk is full; free some space and run the command again ('thin convert' goes on with --resume)"
                }
                std::io::ErrorKind::NotFound => "check the path",
                _ => return None,
            },
            Error::Magic { found, .. } => return found.hint().map(Into::into),
            Error::Version { .. }
            | Error::UnknownRole { .. }
            | Error::UnknownFormat { .. }
            | Error::RecordField { .. } => "the archive may be written by a newer version",
            Error::FrontCut { .. } | Error::PageCut { .. } => {
                "the download may be incomplete; fetch the file again"
            }
            Error::FileLength { found, stated, .. } if found < stated => {
                "the download may be incomplete; fetch the file again"
            }
            Error::FileLength { .. } => "something was appended to the file; copy it again",
            Error::HeaderField { .. }
            | Error::NotZero { .. }
            | Error::ArchiveHash { .. }
            | Error::PageHash { .. }
            | Error::ManifestPadding { .. }
            | Error::ManifestDense { .. }
            | Error::Manifest { .. } => {
                "the file is damaged; copy or convert it again ('thin verify' lists what is wrong)"
            }
            Error::Contradiction { .. } => "'thin verify' lists every contradiction",
            Error::Exists { .. } | Error::NotEmpty { .. } => "use --force to replace what is there",
            Error::NotAFile { .. } => "give another name with -o",
            Error::NoSpace { .. } => "free some space or choose another disk with -o",
            Error::Busy { .. } => "wait for it, or choose another name with -o",
            Error::Interrupted { .. } => "go on with --resume",
            Error::TensorHash { .. }
            | Error::PaddingRow { .. }
            | Error::NotNarrowable { .. }
            | Error::NotUnpackable { .. } => {
                "the archive was written by a faulty program or changed; convert it again"
            }
            Error::NoSuchPage { .. }
            | Error::NoTensorHash { .. }
            | Error::ManifestGrew { .. }
            | Error::TooManyPages { .. } => {
                return None;
            }
        };
        Some(hint.into())
    }
}

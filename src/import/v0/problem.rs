//! What can be wrong with a version-0 archive; each names the page or field and the two numbers that disagree.

use super::layout::{HEADER_BYTES, MAX_ID_BYTES, MAX_MANIFEST_BYTES, MIN_RECORD_BYTES};
use crate::format::{Hash, grouped, short};
use crate::import::safetensors::Dtype;

/// Why an archive of version 0 cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the messages name them")]
pub enum Problem {
    /// The file ends inside the header.
    #[error("the header has {HEADER_BYTES} bytes, but the file has {}", grouped(*len))]
    TooShort { len: u64 },
    /// Another kind of file.
    #[error("it does not start with the eight bytes of a version-0 archive")]
    Magic,
    /// A number of the header that can only have one value.
    #[error("the header's {field} is {}, where {} is right", grouped(*found), grouped(*expected))]
    Field { field: &'static str, found: u64, expected: u64 },
    /// The manifest does not end inside the file.
    #[error("the manifest has {} bytes, but the file has {}", grouped(*manifest_len), grouped(*len))]
    ManifestOutside { manifest_len: u64, len: u64 },
    /// A manifest of absurd size.
    #[error(
        "the manifest has {} bytes, but at most {} are accepted",
        grouped(*manifest_len),
        grouped(MAX_MANIFEST_BYTES)
    )]
    ManifestTooLong { manifest_len: u64 },
    /// More pages than fit.
    #[error(
        "the header states {} pages, but only {} records of {MIN_RECORD_BYTES} bytes fit behind the manifest",
        grouped(*count),
        grouped(*fits)
    )]
    Count { count: u64, fits: u64 },
    /// Bytes that must be zero.
    #[error("the 32 reserved bytes of the header are not zero")]
    Reserved,
    /// The file ends inside the page table.
    #[error("page record {position} is cut: the file ends at byte {}", grouped(*len))]
    RecordCut { position: u64, len: u64 },
    /// An id of no or too many bytes.
    #[error(
        "page record {position} has an id of {length} bytes, where 1 to {MAX_ID_BYTES} are right"
    )]
    IdLength { position: u64, length: usize },
    /// An id that is no text.
    #[error("page record {position} has an id that is not UTF-8")]
    IdText { position: u64 },
    /// Too many values for its size.
    #[error("the manifest has {} values, more than the {} a manifest of its size has", grouped(*values), grouped(*limit))]
    Dense { values: u64, limit: u64 },
    /// The manifest is not the JSON it should be.
    #[error("the manifest cannot be read: {source}")]
    Json { source: serde_json::Error },
    /// A text of the manifest that can only have one value.
    #[error("the manifest's {field} is '{found}', where '{expected}' is right")]
    Text { field: &'static str, found: String, expected: &'static str },
    /// A number of the manifest outside what any model has.
    #[error("{field} is {}, but must lie between {} and {}", grouped(*found), grouped(*min), grouped(*max))]
    Range { field: String, found: u64, min: u64, max: u64 },
    /// A text or list that must not be empty.
    #[error("{field} is empty")]
    Empty { field: String },
    /// Query heads do not share key-value heads evenly.
    #[error("{heads} attention heads cannot share {kv_heads} key-value heads evenly")]
    Heads { heads: u32, kv_heads: u32 },
    /// No width of a head.
    #[error("head_dim is absent and hidden_size {} is not a multiple of heads {heads}", grouped(*hidden_size))]
    HeadDim { hidden_size: u64, heads: u32 },
    /// A size of the memory plan below one that it contains.
    #[error("{field} is {}, less than the {} of {part}", grouped(*found), grouped(*least))]
    MemoryPlan { field: &'static str, found: u64, part: &'static str, least: u64 },
    /// A page or stage called something that could leave a folder.
    #[error("{what} '{name}' is not a plain name")]
    Name { what: &'static str, name: String },
    /// One name, twice.
    #[error("{what} '{name}' is there twice")]
    Twice { what: &'static str, name: String },
    /// A word that the format does not define.
    #[error("{what} '{name}' has the unknown {field} '{found}'")]
    Unknown { what: &'static str, name: String, field: &'static str, found: String },
    /// A page of a layer that the model does not have.
    #[error("page '{page}' belongs to layer {layer}, but the model has {layers}")]
    Layer { page: String, layer: u32, layers: u32 },
    /// A shape no file can hold.
    #[error("page '{page}' has the impossible shape {shape:?}")]
    Shape { page: String, shape: Vec<u64> },
    /// Shape and type need another number of bytes than the page has.
    #[error(
        "page '{page}' of shape {shape:?} in {dtype} takes {} bytes, but has {}",
        grouped(*expected),
        grouped(*found)
    )]
    Size { page: String, shape: Vec<u64>, dtype: Dtype, expected: u64, found: u64 },
    /// A tensor whose shape contradicts the model.
    #[error("page '{page}' has shape {shape:?}, but the model's {field} is {}", grouped(*stated))]
    Geometry { page: String, shape: Vec<u64>, field: &'static str, stated: u64 },
    /// Not the 64 hex digits of a hash.
    #[error("page '{page}' has the checksum '{found}', which is not 64 lower-case hex digits")]
    Checksum { page: String, found: String },
    /// A page inside another that is missing, or is no page for others.
    #[error("page '{page}' lies in '{parent}', which is not a fused page")]
    NoParent { page: String, parent: String },
    /// A place inside another page that is only half stated.
    #[error("page '{page}' states only one of fused_to and fused_offset")]
    HalfFused { page: String },
    /// The pages inside another do not fill it one after the other.
    #[error("in fused page '{parent}' {place} at byte {}, where {} is next", grouped(*found), grouped(*expected))]
    Fused { parent: String, place: String, found: u64, expected: u64 },
    /// A stage that uses a page which is not there.
    #[error("stage '{stage}' uses page '{page}', which does not exist")]
    StagePage { stage: String, page: String },
    /// A page without a record, or a record without a page.
    #[error("page '{page}' is {there} but not {missing}")]
    Unmatched { page: String, there: &'static str, missing: &'static str },
    /// Record and manifest, or two fields of a record, disagree.
    #[error("page '{page}' has {field} {} where {} is right", grouped(*found), grouped(*expected))]
    Record { page: String, field: &'static str, found: u64, expected: u64 },
    /// A feature no writer of this format ever had.
    #[error("page '{page}' has flags {flags:#x}, which are not supported")]
    Flags { page: String, flags: u32 },
    /// A page that does not start where the one before ends.
    #[error("page '{page}' starts at byte {}, but what lies before it ends at {}", grouped(*offset), grouped(*end))]
    Offset { page: String, offset: u64, end: u64 },
    /// A page that ends after the file does, or whose end overflows.
    #[error("page '{page}' of {} bytes starts at byte {}, but the file has {}", grouped(*stored), grouped(*offset), grouped(*len))]
    Outside { page: String, offset: u64, stored: u64, len: u64 },
    /// Bytes behind the last page.
    #[error("the pages end at byte {}, but the file has {}", grouped(*end), grouped(*len))]
    Trailing { end: u64, len: u64 },
    /// Record and manifest state different hashes.
    #[error("page '{page}' has one hash in the page table and another in the manifest")]
    TwoHashes { page: String },
    /// The bytes are not those that were written.
    #[error(
        "page '{page}' is damaged: its hash is {}.. where {}.. is stated",
        short(found),
        short(stated)
    )]
    PageHash { page: String, stated: Hash, found: Hash },
    /// A family whose settings this format does not record in full.
    #[error(
        "version 0 does not record every setting of {family} models, so that this one cannot be run"
    )]
    Family { family: String },
    /// A setting this format did not have, or one that no family we take from it uses.
    #[error("model.{field}: {value} has no meaning known for {family} models")]
    Setting { field: String, value: String, family: String },
    /// A setting that the format left out although the model depends on it.
    #[error(
        "use_sliding_window is true, but version 0 records neither layer_types nor max_window_layers here"
    )]
    WindowLayers,
}

impl Problem {
    /// A number of the header that can only have one value.
    pub(super) fn field(field: &'static str, found: u64, expected: u64) -> Self {
        Problem::Field { field, found, expected }
    }

    /// What the user could do about it.
    pub(in crate::import) fn hint(&self) -> Option<String> {
        let hint = match self {
            Problem::Family { .. } | Problem::Setting { .. } | Problem::WindowLayers => {
                "'thin extract' gives the tensors back; convert the original checkpoint to run it"
            }
            Problem::Json { .. } | Problem::PageHash { .. } | Problem::TwoHashes { .. } => {
                "copy the archive again, or convert the original checkpoint"
            }
            Problem::TooShort { .. }
            | Problem::ManifestOutside { .. }
            | Problem::RecordCut { .. }
            | Problem::Outside { .. } => "the file may be incomplete: copy it again",
            _ => "'thin verify' lists everything that is wrong",
        };
        Some(hint.to_owned())
    }
}

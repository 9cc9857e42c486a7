//! What can be wrong with a GGUF file, each with the thing and the numbers that disagree.

use super::value::Fault;
use crate::format::grouped;
use crate::model::arch::ARCHITECTURES;

/// Why a GGUF file cannot be used. Offsets of tensors count from the start of the tensor data, as in the file.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the messages name them")]
pub enum Problem {
    /// The file ends in the fixed part of its header.
    #[error("it has {len} bytes and ends before {what}")]
    Short { what: String, len: usize },
    /// Another kind of file.
    #[error("it starts with '{found}', not with 'GGUF'")]
    Magic { found: String },
    /// Numbers the other way round.
    #[error("it is big-endian (version {version}); this program reads little-endian files")]
    BigEndian { version: u32 },
    /// A version that is not read.
    #[error("it is of version {version}, but versions 2 and 3 are read")]
    Version { version: u32 },
    /// A count that the file has no room for.
    #[error("it states {} {what}, but only {} bytes follow", grouped(*count), grouped(*available))]
    Count { what: &'static str, count: u64, available: u64 },
    /// A name no file has.
    #[error("{what} {number} is {} bytes long, but at most 4,096 are accepted", grouped(*len))]
    Name { what: &'static str, number: u64, len: u64 },
    /// A tensor without a name.
    #[error("tensor {number} has an empty name")]
    NoName { number: u64 },
    /// A length beyond the end.
    #[error("{what} takes {} bytes, but only {} are left", grouped(*needed), grouped(*available))]
    Cut { what: String, needed: u64, available: u64 },
    /// A text in another encoding.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 { what: String },
    /// A truth value that is none.
    #[error("{what} is a BOOL of {found}, but 0 and 1 are the only ones")]
    NotBool { what: String, found: u8 },
    /// A number that stands for no type.
    #[error("'{key}' is of value type {code}, but 0 to 12 are the only ones")]
    ValueType { key: String, code: u32 },
    /// A list of lists.
    #[error("'{key}' is a list of lists, which is not read")]
    Nested { key: String },
    /// A list longer than the file.
    #[error("'{key}' states {} elements, but only {} bytes follow", grouped(*count), grouped(*available))]
    ArrayLength { key: String, count: u64, available: u64 },
    /// One key, two values.
    #[error("the metadata key '{key}' is there twice")]
    DuplicateKey { key: String },
    /// One name, two tensors.
    #[error("duplicate tensor name '{tensor}'")]
    DuplicateTensor { tensor: String },
    /// An alignment that is none.
    #[error("general.alignment is {value}, but must be a power of two from 8 to {}", grouped(*limit))]
    Alignment { value: u64, limit: u64 },
    /// More dimensions than a tensor has.
    #[error("tensor '{tensor}' has {n_dims} dimensions, but 1 to {limit} are accepted")]
    Dims { tensor: String, n_dims: u32, limit: u32 },
    /// A shape no file can hold.
    #[error("tensor '{tensor}' has the impossible dimensions {dims:?}")]
    Shape { tensor: String, dims: Vec<u64> },
    /// A number that stands for no tensor type.
    #[error("tensor '{tensor}' is of type {code}, which this version does not know")]
    TensorType { tensor: String, code: u32 },
    /// Rows that are not whole blocks.
    #[error(
        "tensor '{tensor}' is {tensor_type} with rows of {inner}, which are not whole blocks of {per_block}"
    )]
    Block { tensor: String, tensor_type: &'static str, inner: u64, per_block: u64 },
    /// An offset between alignments.
    #[error("tensor '{tensor}' starts at byte {offset}, which is not a multiple of {alignment}")]
    Unaligned { tensor: String, offset: u64, alignment: u64 },
    /// A tensor beyond the end.
    #[error("tensor '{tensor}' starts at byte {} and takes {}, but the file has {} bytes of tensors", grouped(*offset), grouped(*bytes), grouped(*available))]
    Outside { tensor: String, offset: u64, bytes: u64, available: u64 },
    /// Two tensors share bytes.
    #[error(
        "tensor '{tensor}' starts at byte {start}, but '{previous}' ends at byte {end}: they overlap"
    )]
    Overlap { tensor: String, start: u64, previous: String, end: u64 },

    /// A value of another type than its key has.
    #[error("'{key}' must be {expected}, not {found}")]
    WrongType { key: String, expected: &'static str, found: &'static str },
    /// A key without which the model is not described.
    #[error("'{key}' is missing")]
    Missing { key: String },
    /// A family this version does not run.
    #[error(
        "the architecture '{found}' is not supported by this version (supported: {})",
        supported()
    )]
    Architecture { found: String },
    /// A file that is no model.
    #[error("general.type is '{found}', but only a 'model' can be read")]
    NotModel { found: String },
    /// A setting that changes the result and is not implemented.
    #[error("'{key}' is {value}, which changes the arithmetic in a way this version does not know")]
    Changes { key: String, value: String },
    /// Two numbers that cannot both be right.
    #[error("{first} is {first_value}, but {second} is {second_value}")]
    Contradiction { first: String, first_value: String, second: String, second_value: String },
    /// A list that should have one entry for each layer.
    #[error("'{key}' has {found} entries, but the model has {layers} layers")]
    ListLength { key: String, found: usize, layers: u32 },
    /// Too few or too many layers.
    #[error("'{key}' is {found}, but must lie between 1 and {limit}")]
    Layers { key: String, found: u32, limit: u32 },
    /// No width of a head.
    #[error("'{key}' is absent and the width {hidden} is not a multiple of {heads} heads")]
    HeadDim { key: String, hidden: u32, heads: u32 },
    /// Factors of another number than there are frequencies.
    #[error(
        "tensor '{tensor}' has shape {found:?} in {tensor_type}, but {expected} factors in F32 are needed"
    )]
    Factors { tensor: &'static str, found: Vec<u64>, tensor_type: &'static str, expected: u32 },

    /// A tokenizer that is not rebuilt.
    #[error(
        "tokenizer.ggml.model is '{found}', but 'gpt2' (byte-level BPE) and 'llama' (SentencePiece) are the ones this version rebuilds"
    )]
    TokenizerModel { found: String },
    /// Text cut in a way this version does not know.
    #[error("tokenizer.ggml.pre is '{found}', which this version does not know (known: {known})")]
    PreTokenizer { found: String, known: String },
    /// Text cut in a way the file does not say.
    #[error(
        "tokenizer.ggml.pre is missing, so nothing says how text is cut before it is tokenised"
    )]
    NoPreTokenizer,
    /// A merge that is not two tokens.
    #[error("tokenizer.ggml.merges[{index}] is {found}, which is not two tokens")]
    Merge { index: usize, found: String },
    /// A list of another length than the vocabulary.
    #[error("'{key}' has {found} entries, but there are {tokens} tokens")]
    TokenList { key: &'static str, found: usize, tokens: usize },
    /// An id without a token.
    #[error("'{key}' is {id}, but there are {tokens} tokens")]
    TokenId { key: String, id: u64, tokens: usize },
    /// One text, two ids.
    #[error("tokens {first} and {second} are both {token:?}")]
    TwoTokens { first: usize, second: usize, token: String },

    /// A part of a model that lacks the others.
    #[error("it is part {number} of {count}, but '{missing}' does not exist")]
    PartMissing { number: u64, count: u64, missing: String },
    /// A part under a name that says another thing than its metadata.
    #[error("'{file}' says {key}: {found}, but its name says {expected}")]
    Part { file: String, key: &'static str, found: String, expected: u64 },
    /// Parts that do not have the tensors they should.
    #[error("split.tensors.count is {stated}, but the {parts} parts have {found} tensors")]
    PartTensors { stated: u64, parts: u64, found: u64 },
    /// A part under a name that does not say which.
    #[error("it is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf")]
    PartName { count: u64 },
}

impl Problem {
    /// The problem that a fault in `what` is, with `available` bytes left.
    pub(super) fn of(fault: Fault, what: String, available: usize) -> Self {
        match fault {
            Fault::Cut(needed) => Problem::Cut { what, needed, available: available as u64 },
            Fault::NotUtf8 => Problem::NotUtf8 { what },
            Fault::NotBool(found) => Problem::NotBool { what, found },
            Fault::Nested => Problem::Nested { key: what },
        }
    }

    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Problem::Short { .. }
            | Problem::Cut { .. }
            | Problem::Count { .. }
            | Problem::Outside { .. } => "the download may be incomplete; fetch the file again",
            Problem::PartMissing { .. } => "put all parts of the model into one folder",
            Problem::BigEndian { .. } => "convert the file with a little-endian machine",
            Problem::Version { .. } => "convert the model again with a current converter",
            Problem::Architecture { .. } => "'thin architectures' lists what this version runs",
            Problem::TokenizerModel { .. }
            | Problem::PreTokenizer { .. }
            | Problem::NoPreTokenizer => {
                "convert with --tokenizer DIR, the folder of the model's tokenizer.json"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn supported() -> String {
    let names: Vec<_> =
        ARCHITECTURES.iter().filter_map(|row| Some(row.gguf.as_ref()?.architecture)).collect();
    names.join(", ")
}

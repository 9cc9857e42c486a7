//! What can be wrong with a source, each with what the user could do about it.

use std::path::PathBuf;

use super::{config, gguf, safetensors};
use crate::format::{Role, grouped};
use crate::model::SpecError;

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the messages name them")]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {verb} '{}'", path.display())]
    Io {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Nothing there.
    #[error("'{}' does not exist", path.display())]
    NotFound { path: PathBuf },
    /// A link whose target is gone.
    #[error("'{}' is a link to '{}', which does not exist", path.display(), target.display())]
    DanglingLink { path: PathBuf, target: PathBuf },
    /// A pipe, a device or a folder where a file should be.
    #[error("'{}' is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// Larger than any file of its kind.
    #[error("'{}' is larger than the {} bytes accepted", path.display(), grouped(*limit))]
    TooLarge { path: PathBuf, limit: u64 },
    /// A file that a large-file store has not fetched yet.
    #[error("'{}' is a Git-LFS pointer, not the file itself", path.display())]
    LfsPointer { path: PathBuf },
    /// An error page saved under a model's name.
    #[error("'{}' is a web page, not the file itself", path.display())]
    Html { path: PathBuf },
    /// Known and not supported yet.
    #[error("'{}': {what} cannot be read by this version; that comes later", path.display())]
    Later { path: PathBuf, what: &'static str },
    /// Neither a model nor anything like one.
    #[error("'{}' is not a model: it starts with {found}", path.display())]
    UnknownFile { path: PathBuf, found: String },
    /// Weights that only Python can read.
    #[error("'{}' holds pickled weights, which this program does not read", path.display())]
    PickledWeights { path: PathBuf },
    /// A weight file that the model of its folder does not use.
    #[error("'{}' is not one of the weight files of the model in its folder", path.display())]
    NotOfModel { path: PathBuf },
    /// A folder without a description of the model.
    #[error("'{}' has no config.json", path.display())]
    NoConfig { path: PathBuf },
    /// A folder without weights.
    #[error("'{}' has neither model.safetensors nor model.safetensors.index.json", path.display())]
    NoWeights { path: PathBuf, found: Option<String> },
    /// Weight files that hold nothing.
    #[error("no weights found in '{}': 0 tensors", path.display())]
    NoTensors { path: PathBuf },
    /// Some shards of a model without the list of all.
    #[error("'{}' has shards such as '{shard}' but no model.safetensors.index.json", path.display())]
    NoIndex { path: PathBuf, shard: String },
    /// The tokenizer is there only in a form this program does not read.
    #[error("'{}' has a tokenizer.model but no tokenizer.json", path.display())]
    OnlyTokenizerModel { path: PathBuf },
    /// A safetensors file that is not what it says.
    #[error("'{}' is damaged: {problem}", path.display())]
    Safetensors { path: PathBuf, problem: safetensors::Problem },
    /// A GGUF file that is not what it says, or says what this version does not know.
    #[error("'{}': {problem}", path.display())]
    Gguf { path: PathBuf, problem: Box<gguf::Problem> },
    /// `--dequantize` for a source without blocks.
    #[error("'{}' is not a GGUF file: only its blocks can be dequantised", path.display())]
    NothingToDequantize { path: PathBuf },
    /// A JSON file that cannot be parsed.
    #[error("'{}' cannot be read as JSON: {problem}", path.display())]
    Json { path: PathBuf, problem: serde_json::Error },
    /// A config.json that cannot be used.
    #[error("'{}': {problem}", path.display())]
    Config { path: PathBuf, problem: Box<config::Problem> },
    /// A config.json with a number that cannot be right.
    #[error("'{}': {problem}", path.display())]
    Spec { path: PathBuf, problem: SpecError },
    /// The index names a file outside the folder.
    #[error("'{}' names the shard {shard:?} for '{tensor}', which is not a plain .safetensors file name", path.display())]
    ShardName { path: PathBuf, tensor: String, shard: String },
    /// The index names a file that is not there.
    #[error("'{}' names the shard '{shard}', which does not exist{}", path.display(), if *complete_without {
        "; every tensor it lists is nevertheless in the other files"
    } else {
        ""
    })]
    ShardMissing { path: PathBuf, shard: String, complete_without: bool },
    /// The index promises a tensor that its file does not have.
    #[error("'{}' places '{tensor}' in '{shard}', which has no such tensor", path.display())]
    NotInShard { path: PathBuf, tensor: String, shard: String },
    /// A file has a tensor the model needs and the index forgot.
    #[error("'{}' does not list '{tensor}', which is in '{shard}' and which the model needs", path.display())]
    NotInIndex { path: PathBuf, tensor: String, shard: String },
    /// One name, two contents.
    #[error("'{tensor}' is in '{first}' and, with other content, in '{second}'")]
    TwoShards { tensor: String, first: String, second: String },
    /// A tensor the model needs is nowhere.
    #[error("tensor '{tensor}' is missing: no weight file has it")]
    MissingTensor { tensor: String },
    /// The config asks for an output projection of its own.
    #[error("'{tensor}' is missing, but config.json says tie_word_embeddings: false")]
    MissingHead { tensor: String },
    /// Tensors without a place in the architecture.
    #[error("tensors without a place in this {model_type} model: {count}, such as {}", names.join(", "))]
    UnexpectedTensors { count: usize, model_type: &'static str, names: Vec<String> },
    /// A tensor of a layer that the config does not have.
    #[error("'{tensor}' belongs to layer {layer}, but the model has num_hidden_layers: {layers}")]
    LayerBeyond { tensor: String, layer: u32, layers: usize },
    /// Two tensors with the same meaning.
    #[error("'{first}' and '{second}' are the same tensor under two names")]
    TwoNames { first: String, second: String },
    /// Config and weights disagree.
    #[error(
        "tensor '{tensor}' has shape {found:?}, but the model's description implies {expected:?} ({why})"
    )]
    Shape { tensor: String, found: Vec<u64>, expected: Vec<u64>, why: &'static str },
    /// A number type that this version cannot store.
    #[error("tensor '{tensor}' is stored as {dtype}; this version reads F32, F16 and BF16{}", if dtype.contains('_') {
        ", and of GGUF's types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4"
    } else {
        ""
    })]
    Dtype { tensor: String, dtype: &'static str },
    /// Matrices that are computed together are stored differently.
    #[error(
        "'{first}' is {first_dtype} but '{second}' is {second_dtype}: this version needs one number type for all of {role}"
    )]
    MixedDtypes {
        first: String,
        first_dtype: &'static str,
        second: String,
        second_dtype: &'static str,
        role: Role,
    },
    /// A matrix that no page can hold.
    #[error("{role} of {rows} rows and {cols} columns does not fit the page format")]
    Geometry { role: Role, rows: u64, cols: u64 },
    /// A source file changed while it was read.
    #[error("'{}' changed while it was read", path.display())]
    Changed { path: PathBuf },
    /// Packing lost something.
    #[error("tensor '{tensor}' does not come back from its pages as it was")]
    NotExact { tensor: String },
    /// A page number beyond the table.
    #[error("page {page} was asked for, but there are {count}")]
    NoSuchPage { page: u32, count: usize },
}

impl Error {
    /// What the user could do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::NotFound { .. } => "check the path, or give a hub id such as ORG/NAME",
            Error::DanglingLink { .. } => {
                "download the model again, or copy it with its link targets"
            }
            Error::LfsPointer { .. } => "fetch the file itself with 'git lfs pull'",
            Error::Html { .. } => {
                "the download was answered with an error page; fetch the file again"
            }
            Error::PickledWeights { .. } => {
                "use a repository with .safetensors files, or convert it with transformers' save_pretrained"
            }
            Error::NoConfig { .. } => {
                "give the folder that holds config.json and model.safetensors"
            }
            Error::NoWeights { found: Some(found), .. } if found.ends_with(".gguf") => {
                return Some(format!("found '{found}'; give the path of that file"));
            }
            Error::NoWeights { found: Some(found), .. } => {
                return Some(format!("found '{found}'; use a repository with .safetensors files"));
            }
            Error::NoWeights { found: None, .. }
            | Error::NoTensors { .. }
            | Error::NoIndex { .. }
            | Error::ShardMissing { .. } => "the download may be incomplete; fetch the file again",
            Error::OnlyTokenizerModel { .. } => {
                "add a tokenizer.json, as transformers' AutoTokenizer.save_pretrained writes it"
            }
            Error::Safetensors { problem, .. } => match problem {
                safetensors::Problem::TooShort { .. }
                | safetensors::Problem::HeaderBeyondEnd { .. }
                | safetensors::Problem::DataLength { .. } => {
                    "the download may be incomplete; fetch the file again"
                }
                _ => return None,
            },
            Error::Config { problem, .. } => return problem.hint(),
            Error::Gguf { problem, .. } => return problem.hint(),
            Error::MixedDtypes { .. } => "for a GGUF file, convert it with --dequantize bf16",
            Error::Dtype { dtype, .. } if dtype.contains('_') => {
                "use a file of the model in one of these types"
            }
            Error::NotInShard { .. } | Error::NotInIndex { .. } | Error::TwoShards { .. } => {
                "index and shards come from different versions; download all of them again"
            }
            Error::MissingHead { .. } => {
                "if the output projection is the embedding, config.json must say tie_word_embeddings: true"
            }
            Error::Dtype { .. } => "use the repository with the unquantised weights",
            Error::Changed { .. } => "do not write to a model while it is read",
            Error::Io { .. }
            | Error::NotAFile { .. }
            | Error::TooLarge { .. }
            | Error::Later { .. }
            | Error::UnknownFile { .. }
            | Error::NotOfModel { .. }
            | Error::Json { .. }
            | Error::Spec { .. }
            | Error::ShardName { .. }
            | Error::MissingTensor { .. }
            | Error::UnexpectedTensors { .. }
            | Error::LayerBeyond { .. }
            | Error::TwoNames { .. }
            | Error::Shape { .. }
            | Error::NothingToDequantize { .. }
            | Error::Geometry { .. }
            | Error::NotExact { .. }
            | Error::NoSuchPage { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

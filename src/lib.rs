//! ThinTensor: a cross-vendor inference engine for causal language models.

pub mod backend;
pub mod chat;
pub mod detokenize;
pub mod engine;
mod error;
pub mod format;
pub mod generate;
pub mod import;
pub mod kv;
pub mod model;
pub mod plan;
pub mod program;
pub mod quant;
pub mod sample;
pub mod tokenizer;

pub use error::{Error, Result};

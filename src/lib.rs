//! ThinTensor: a cross-vendor inference engine for causal language models.

pub mod chat;
pub mod detokenize;
pub mod tokenizer;

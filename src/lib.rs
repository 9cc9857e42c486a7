//! ThinTensor: a cross-vendor inference engine for causal language models.
//!
//! # A token's journey
//!
//! The stops, in the order a token passes them; each is one module, and a module uses only those before it.
//!
//! 1. [`mod@format`] holds the `.thin` archive: a model as pages, each with the meaning of its tensor.
//!    [`quant`] says what the numbers in a page are.
//! 2. [`model`] describes a model without its weights: layers, heads, rotary frequencies.
//! 3. [`import`] sees a Hugging Face folder as the same pages, and writes archives.
//! 4. [`plan`] finds the groups a model needs among the pages and sizes the KV pool.
//! 5. [`program`] turns a model into a step: [`program::decoder`] is the one model file, a
//!    [`program::Program`] is plain data.
//! 6. [`backend`] runs programs on a device. [`backend::cpu`] interprets them with plain twins, the
//!    specification of every kernel.
//! 7. [`engine`] opens a model on a device: weights to buffers, programs compiled, sequences
//!    ([`engine::Session`]) with their blocks from [`kv`].
//! 8. [`tokenizer`] turns text into ids, [`chat`] conversations into prompts; [`sample`] says how ids are
//!    drawn, [`detokenize`] turns them back into text as they arrive.
//! 9. [`generate`] is the loop: feed, draw, detokenise, stop.
//!
//! Start with [`generate::Model::open`] for text and with [`Engine::builder`] for ids.

pub mod backend;
pub mod chat;
pub mod detokenize;
pub mod engine;
mod error;
pub mod format;
#[doc(hidden)]
pub mod fuzz;
pub mod generate;
pub mod import;
pub mod kv;
pub mod model;
pub mod plan;
pub mod program;
pub mod quant;
pub mod sample;
pub mod tokenizer;

pub use engine::Engine;
pub use error::{Error, Result};
pub use generate::Model;

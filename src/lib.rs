//! ThinTensor: a cross-vendor inference engine for causal language models.

pub mod backend;
mod error;
pub mod format;
pub mod model;
pub mod plan;
pub mod program;
pub mod quant;

pub use error::{Error, Result};

//! ThinTensor: a cross-vendor inference engine for causal language models.

mod error;
pub mod format;
pub mod import;
pub mod model;
pub mod quant;

pub use error::{Error, Result};

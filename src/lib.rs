//! ThinTensor: a cross-vendor inference engine for causal language models.

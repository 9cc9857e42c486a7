//! What a model is, apart from its weights: [`spec`] describes one, [`arch`] lists the architectures we run
//! and how their files name things, [`rope`] turns a rotary description into frequencies.

pub mod arch;
pub mod rope;
pub mod spec;

pub use spec::{
    Activation, LayerSpec, ModelSpec, NormKind, NormSpec, RopeScaling, RopeSpec, SpecError,
};

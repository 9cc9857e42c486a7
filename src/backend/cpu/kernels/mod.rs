//! The twins: one plain function per op, the specification every shader is compared with. Loops in f32 with
//! f64 sums, no SIMD, no threads, no cleverness. A twin works on one row; [`super::interpret`] picks rows.

pub(crate) mod add;
pub(crate) mod add_bias;
pub(crate) mod advance;
pub(crate) mod attention;
pub(crate) mod check_finite;
pub(crate) mod embed;
pub(crate) mod gated_act;
pub(crate) mod keep;
pub(crate) mod kv_append;
pub(crate) mod matmul;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod select_rows;

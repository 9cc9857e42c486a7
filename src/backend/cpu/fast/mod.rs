//! Faster forms of the two ops that take the time, tested against the twins: rows of a matrix on several
//! cores, sums in sixteen f32 lanes, AVX2 and FMA where the machine has them.
//!
//! A sum has one order whatever the number of rows, so a token's result does not depend on its batch.

pub(crate) mod attention;
pub(crate) mod dot;
pub(crate) mod matmul;

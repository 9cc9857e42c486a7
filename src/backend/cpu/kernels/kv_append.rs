//! Twin of `kv_append`: one head's keys or values stored in the pool's format.

use crate::backend::cpu::storage::Numbers;
use crate::plan::KvFormat;
use crate::quant::float::{f32_to_bf16, f32_to_f16};

/// Stores `x`, `[head_dim]`, from element `at` on; rounds to nearest even.
pub(crate) fn kv_append(x: &[f32], format: KvFormat, pool: &mut Numbers<'_>, at: usize) {
    for (index, &x) in x.iter().enumerate() {
        match format {
            KvFormat::F32 => pool.set_u32(at + index, x.to_bits()),
            KvFormat::F16 => pool.set_u16(at + index, f32_to_f16(x)),
            KvFormat::BF16 => pool.set_u16(at + index, f32_to_bf16(x)),
        }
    }
}

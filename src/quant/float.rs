//! Float formats: exact widening to F32, its exact inverse, and rounding to nearest even.
//!
//! Widening keeps every bit pattern apart, NaN payloads included, so that narrowing gives the source
//! bytes back; the `half` crate quiets signalling NaNs and is therefore used for rounding only.

use half::{bf16, f16};

/// bfloat16 bits as binary32.
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// binary16 bits as binary32, payloads of NaNs kept.
#[must_use]
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let mantissa = u32::from(bits & 0x03ff);
    if bits & 0x7c00 == 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (mantissa << 13));
    }
    // With the exponent's bias still that of a half, subnormals included; 2^112 makes up for it, exactly.
    let scaled = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(scaled.to_bits() | sign)
}

/// The bfloat16 bits that [`bf16_to_f32`] made `value` from, or `None` where it made no such value.
#[must_use]
pub fn f32_to_bf16_exact(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    (bits & 0xffff == 0).then_some((bits >> 16) as u16)
}

/// The binary16 bits that [`f16_to_f32`] made `value` from, or `None` where it made no such value.
#[must_use]
pub fn f32_to_f16_exact(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let half = if bits & 0x7f80_0000 == 0x7f80_0000 {
        ((bits >> 16) & 0x8000) as u16 | 0x7c00 | ((bits >> 13) & 0x03ff) as u16
    } else {
        f16::from_f32(value).to_bits()
    };
    (f16_to_f32(half).to_bits() == bits).then_some(half)
}

/// Nearest bfloat16, ties to even.
#[must_use]
pub fn f32_to_bf16(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

/// Nearest binary16, ties to even; magnitudes above 65,504 become infinite.
#[must_use]
pub fn f32_to_f16(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_inverted_exactly_for_every_bit_pattern() {
        for bits in 0..=u16::MAX {
            assert_eq!(f32_to_bf16_exact(bf16_to_f32(bits)), Some(bits), "bf16 {bits:#06x}");
            assert_eq!(f32_to_f16_exact(f16_to_f32(bits)), Some(bits), "f16 {bits:#06x}");
            let theirs = f16::from_bits(bits);
            assert!(theirs.is_nan() || theirs.to_f32().to_bits() == f16_to_f32(bits).to_bits());
        }
    }

    #[test]
    fn values_that_no_half_has_are_refused() {
        assert_eq!(f32_to_bf16_exact(1.000_000_1), None);
        assert_eq!(f32_to_f16_exact(1e-10), None);
        assert_eq!(f32_to_f16_exact(70_000.0), None);
    }

    #[test]
    fn rounding_goes_to_nearest_even() {
        // 1 + 2^-8 lies halfway between the bf16 values 1 and 1 + 2^-7.
        assert_eq!(f32_to_bf16(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(f32_to_f16(65_504.0), 0x7bff);
    }
}

//! What the planes of a stored row mean: how many bytes each takes, and the numbers they stand for.
//!
//! A row of a plain float format is one plane of numbers. A block format has a plane for each field of its
//! blocks ([`Layout`]); INT8 has one signed byte a weight, and a scale (and perhaps a minimum) as F32 for each
//! group. [`Encoding::decode`] is the specification that kernels are compared with.

use super::float::{bf16_to_f32, f16_to_f32};
use super::gguf::{Planes, scale_min};
use super::{Format, QuantizationDescriptor};

/// The planes of a block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Weights of a block.
    pub weights: u64,
    /// Bytes of a block in each plane: codes, high codes, scales, sub-scales, zeros.
    pub bytes: [u64; 5],
    /// Weights that share a scale.
    pub group_size: u32,
}

impl Format {
    /// The planes of a format that comes in blocks.
    #[must_use]
    pub fn layout(self) -> Option<Layout> {
        let (weights, bytes, group_size) = match self {
            Format::Q8_0 => (32, [32, 0, 2, 0, 0], 32),
            Format::Q4_0 => (32, [16, 0, 2, 0, 0], 32),
            Format::Q4_1 => (32, [16, 0, 2, 0, 2], 32),
            Format::Q4K => (256, [128, 0, 2, 12, 2], 32),
            Format::Q5K => (256, [128, 32, 2, 12, 2], 32),
            Format::Q6K => (256, [128, 64, 2, 16, 0], 16),
            Format::Mxfp4 => (32, [16, 0, 1, 0, 0], 32),
            Format::Bytes | Format::F32 | Format::F16 | Format::BF16 | Format::Int8 => return None,
        };
        Some(Layout { weights, bytes, group_size })
    }
}

/// A format with what it leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// The format of the codes.
    pub format: Format,
    /// INT8: weights that share a scale, 16 or 32. Otherwise 0.
    pub group_size: u32,
    /// INT8: whether a group has a minimum, which is added.
    pub minimum: bool,
}

impl Encoding {
    /// A format that leaves nothing open.
    #[must_use]
    pub fn plain(format: Format) -> Self {
        Encoding { format, group_size: 0, minimum: false }
    }

    /// INT8 in groups.
    #[must_use]
    pub fn int8(group_size: u32, minimum: bool) -> Self {
        Encoding { format: Format::Int8, group_size, minimum }
    }

    /// The encoding that a descriptor states, or `None` where it states none of ours.
    #[must_use]
    pub fn of(descriptor: &QuantizationDescriptor) -> Option<Self> {
        let encoding = match (descriptor.storage_dtype, descriptor.group_size) {
            (Format::Int8, Some(group @ (16 | 32))) => Encoding::int8(group, descriptor.zero_point),
            (Format::Int8, _) => return None,
            (format, _) => Encoding::plain(format),
        };
        let stated = encoding.descriptor();
        let same = descriptor.bits == stated.bits
            && descriptor.group_size == stated.group_size
            && descriptor.scale_dtype == stated.scale_dtype
            && descriptor.zero_point == stated.zero_point;
        same.then_some(encoding)
    }

    /// The descriptor that states this encoding.
    #[must_use]
    pub fn descriptor(self) -> QuantizationDescriptor {
        let mut descriptor = QuantizationDescriptor::float(self.format);
        if self.format == Format::Int8 {
            descriptor.method = "affine".into();
            descriptor.group_size = Some(self.group_size);
            descriptor.scale_dtype = Some(Format::F32);
            descriptor.zero_point = self.minimum;
        } else if let Some(layout) = self.format.layout() {
            descriptor.method = self.format.name().into();
            descriptor.group_size = Some(layout.group_size);
            // The power-of-two scales of MXFP4 have no format of their own.
            descriptor.scale_dtype =
                Some(if self.format == Format::Mxfp4 { Format::Bytes } else { Format::F16 });
            descriptor.zero_point = layout.bytes[4] > 0;
        }
        descriptor
    }

    /// Bytes of a row of `cols` numbers in each plane: codes, high codes, scales, sub-scales, zeros.
    ///
    /// `None` where `cols` is not whole groups, or too large to count.
    #[must_use]
    pub fn row_bytes(self, cols: u64) -> Option<[u64; 5]> {
        let groups = |of: u64| cols.is_multiple_of(of).then(|| cols / of);
        if let Some(layout) = self.format.layout() {
            let blocks = groups(layout.weights)?;
            let mut bytes = [0; 5];
            for (bytes, of_block) in bytes.iter_mut().zip(layout.bytes) {
                *bytes = of_block.checked_mul(blocks)?;
            }
            return Some(bytes);
        }
        if self.format == Format::Int8 {
            let groups = groups(u64::from(self.group_size).max(1))?;
            let scales = groups.checked_mul(4)?;
            return Some([cols, 0, scales, 0, if self.minimum { scales } else { 0 }]);
        }
        Some([cols.checked_mul(u64::from(self.format.bits()))? / 8, 0, 0, 0, 0])
    }

    /// The numbers of a row, given its planes. `out` has as many as the row.
    #[inline(always)]
    pub fn decode(self, planes: &Planes<'_>, out: &mut [f32]) {
        let [codes, high, scales, sub, zeros] = *planes;
        match self.format {
            Format::F32 => {
                for (out, code) in out.iter_mut().zip(codes.as_chunks::<4>().0) {
                    *out = f32::from_le_bytes(*code);
                }
            }
            Format::F16 | Format::BF16 => {
                let widen = if self.format == Format::F16 { f16_to_f32 } else { bf16_to_f32 };
                for (out, code) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
                    *out = widen(u16::from_le_bytes(*code));
                }
            }
            Format::Q8_0 => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 32]| {
                let scale = half(scales, group);
                each(out, &codes.map(|code| f32::from(code as i8)), |code| scale * code);
            }),
            Format::Q4_0 => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 16]| {
                let scale = half(scales, group);
                each(out, &nibbles(codes).map(f32::from), |code| scale * (code - 8.0));
            }),
            Format::Q4_1 => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 16]| {
                let (scale, zero) = (half(scales, group), half(zeros, group));
                each(out, &nibbles(codes).map(f32::from), |code| scale * code + zero);
            }),
            Format::Mxfp4 => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 16]| {
                let scale = power_of_two(scales[group]);
                let values = nibbles(codes).map(|code| FP4_TWICE[usize::from(code)]);
                each(out, &values, |value| scale * value);
            }),
            Format::Q4K => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 16]| {
                let (scale, zero) = k_scale(scales, sub, zeros, group);
                each(out, &nibbles(codes).map(f32::from), |code| scale * code - zero);
            }),
            Format::Q5K => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 16]| {
                let (scale, zero) = k_scale(scales, sub, zeros, group);
                let mut codes = nibbles(codes);
                let high = u32::from_le_bytes(high.as_chunks::<4>().0[group]);
                for (i, code) in codes.iter_mut().enumerate() {
                    *code |= (high >> i & 1) as u8 * 16;
                }
                each(out, &codes.map(f32::from), |code| scale * code - zero);
            }),
            Format::Q6K => groups(out, codes, |group, out: &mut [f32; 32], codes: &[u8; 16]| {
                let factor = half(scales, group / 8);
                let mut codes = nibbles(codes);
                let high = u64::from_le_bytes(high.as_chunks::<8>().0[group]);
                for (i, code) in codes.iter_mut().enumerate() {
                    *code |= (high >> (2 * i) & 3) as u8 * 16;
                }
                let numbers = codes.map(|code| f32::from(code) - 32.0);
                for (half, of_half) in (0..2).zip([0..16, 16..32]) {
                    let scale = factor * f32::from(sub[group * 2 + half] as i8);
                    for (out, number) in out[of_half.clone()].iter_mut().zip(&numbers[of_half]) {
                        *out = scale * number;
                    }
                }
            }),
            Format::Int8 => {
                let size = (self.group_size as usize).max(1);
                out.chunks_exact_mut(size).enumerate().for_each(|(group, out)| {
                    let number = |plane: &[u8]| {
                        plane.as_chunks::<4>().0.get(group).map(|bytes| f32::from_le_bytes(*bytes))
                    };
                    let scale = number(scales).unwrap_or(0.0);
                    let zero = if self.minimum { number(zeros) } else { None };
                    for (out, code) in out.iter_mut().zip(&codes[group * size..]) {
                        let value = scale * f32::from(*code as i8);
                        *out = zero.map_or(value, |zero| value + zero);
                    }
                });
            }
            Format::Bytes => {}
        }
    }
}

/// Twice the values of FP4 (E2M1); the scale is halved instead.
const FP4_TWICE: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Half of 2^(exponent - 127).
#[inline(always)]
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Number `index` of a plane of binary16.
#[inline(always)]
fn half(plane: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([plane[index * 2], plane[index * 2 + 1]]))
}

/// Scale and minimum of a group of 32 in a K format.
#[inline(always)]
fn k_scale(scales: &[u8], sub: &[u8], zeros: &[u8], group: usize) -> (f32, f32) {
    let block = group / 8;
    let (scale, zero) = scale_min(&sub[block * 12..], group % 8);
    (half(scales, block) * f32::from(scale), half(zeros, block) * f32::from(zero))
}

/// Calls `f` for each group of 32 numbers and its bytes of codes.
#[inline(always)]
fn groups<const BYTES: usize>(
    out: &mut [f32],
    codes: &[u8],
    f: impl Fn(usize, &mut [f32; 32], &[u8; BYTES]),
) {
    let groups = out.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<BYTES>().0);
    groups.enumerate().for_each(|(group, (out, codes))| f(group, out, codes));
}

/// out = f(code), number by number.
#[inline(always)]
fn each(out: &mut [f32; 32], codes: &[f32; 32], f: impl Fn(f32) -> f32) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f(*code);
    }
}

/// Two codes a byte, the lower half first.
#[inline(always)]
fn nibbles(codes: &[u8; 16]) -> [u8; 32] {
    let mut apart = [0; 32];
    for (pair, byte) in apart.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        *pair = [byte & 15, byte >> 4];
    }
    apart
}

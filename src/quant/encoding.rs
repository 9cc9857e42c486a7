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
        let [codes, _, scales, _, zeros] = *planes;
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
            Format::Q8_0 => q8_0(planes, out),
            Format::Q4_0 => q4_0(planes, out),
            Format::Q4_1 => q4_1(planes, out),
            Format::Mxfp4 => mxfp4(planes, out),
            Format::Q4K => q4_k(planes, out),
            Format::Q5K => q5_k(planes, out),
            Format::Q6K => q6_k(planes, out),
            Format::Int8 => {
                let size = (self.group_size as usize).max(1);
                for (group, out) in out.chunks_exact_mut(size).enumerate() {
                    let number = |plane: &[u8]| {
                        plane.as_chunks::<4>().0.get(group).map(|bytes| f32::from_le_bytes(*bytes))
                    };
                    let scale = number(scales).unwrap_or(0.0);
                    let zero = if self.minimum { number(zeros) } else { None };
                    for (out, code) in out.iter_mut().zip(&codes[group * size..]) {
                        let value = scale * f32::from(*code as i8);
                        *out = zero.map_or(value, |zero| value + zero);
                    }
                }
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
fn k_scale(planes: &Planes<'_>, group: usize) -> (f32, f32) {
    let block = group / 8;
    let (scale, zero) = scale_min(&planes[3][block * 12..], group % 8);
    (half(planes[2], block) * f32::from(scale), half(planes[4], block) * f32::from(zero))
}

/// A row in groups of 32 numbers, each with its `BYTES` bytes of codes.
///
/// **Why** the functions below are plain loops, all inlined: the caller may be compiled for vector
/// instructions, which a closure, or what `for_each` and `map` call, would not be.
#[inline(always)]
fn groups<'a, const BYTES: usize>(
    planes: &Planes<'a>,
    out: &'a mut [f32],
) -> impl Iterator<Item = (usize, (&'a mut [f32; 32], &'a [u8; BYTES]))> {
    out.as_chunks_mut::<32>().0.iter_mut().zip(planes[0].as_chunks::<BYTES>().0).enumerate()
}

#[inline(always)]
fn q8_0(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<32>(planes, out) {
        // Taken out first, so that the compiler need not think of `out` changing them.
        let (scale, codes) = (half(planes[2], group), *codes);
        for i in 0..32 {
            out[i] = scale * f32::from(codes[i] as i8);
        }
    }
}

#[inline(always)]
fn q4_0(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<16>(planes, out) {
        let (scale, codes) = (half(planes[2], group), nibbles(codes));
        for i in 0..32 {
            out[i] = scale * (f32::from(codes[i]) - 8.0);
        }
    }
}

#[inline(always)]
fn q4_1(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<16>(planes, out) {
        let (scale, zero) = (half(planes[2], group), half(planes[4], group));
        let codes = nibbles(codes);
        for i in 0..32 {
            out[i] = scale * f32::from(codes[i]) + zero;
        }
    }
}

#[inline(always)]
fn mxfp4(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<16>(planes, out) {
        let (scale, codes) = (power_of_two(planes[2][group]), nibbles(codes));
        for i in 0..32 {
            out[i] = scale * FP4_TWICE[usize::from(codes[i])];
        }
    }
}

#[inline(always)]
fn q4_k(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<16>(planes, out) {
        let ((scale, zero), codes) = (k_scale(planes, group), nibbles(codes));
        for i in 0..32 {
            out[i] = scale * f32::from(codes[i]) - zero;
        }
    }
}

#[inline(always)]
fn q5_k(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<16>(planes, out) {
        let ((scale, zero), codes) = (k_scale(planes, group), nibbles(codes));
        let high = u32::from_le_bytes(planes[1].as_chunks::<4>().0[group]);
        for i in 0..32 {
            let code = codes[i] + 16 * ((high >> i) & 1) as u8;
            out[i] = scale * f32::from(code) - zero;
        }
    }
}

#[inline(always)]
fn q6_k(planes: &Planes<'_>, out: &mut [f32]) {
    for (group, (out, codes)) in groups::<16>(planes, out) {
        let (factor, codes) = (half(planes[2], group / 8), nibbles(codes));
        let high = u64::from_le_bytes(planes[1].as_chunks::<8>().0[group]);
        let [first, second] = planes[3].as_chunks::<2>().0[group];
        let scales = [factor * f32::from(first as i8), factor * f32::from(second as i8)];
        for i in 0..32 {
            let code = codes[i] + 16 * ((high >> (2 * i)) & 3) as u8;
            out[i] = scales[i / 16] * (f32::from(code) - 32.0);
        }
    }
}

/// Two codes a byte, the lower half first.
#[inline(always)]
fn nibbles(codes: &[u8; 16]) -> [u8; 32] {
    let mut apart = [0; 32];
    for i in 0..16 {
        apart[2 * i] = codes[i] & 15;
        apart[2 * i + 1] = codes[i] >> 4;
    }
    apart
}

//! The tensor types of GGUF files: what a block of each holds, and the planes its bytes go to.
//!
//! A block is 32 or 256 weights of a row with their scales. [`split`] takes its bytes apart into planes and
//! [`join`] puts them together again, bit for bit; [`to_int8`] turns the rarer types into codes with a scale
//! and a minimum for every 16 or 32 weights, which keeps every value. In all planes code `i` of a row lies at
//! bit `i * width`, whatever order the block had. What the planes mean is `quant::encoding`.

use super::float::f16_to_f32;
use super::{Encoding, Format};

/// A number type of a GGUF tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(non_camel_case_types, missing_docs, reason = "the names are those of the format")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// Type, number in a file, name, weights in a block, bytes of a block.
const TYPES: &[(TensorType, u32, &str, u64, u64)] = &[
    (TensorType::F32, 0, "F32", 1, 4),
    (TensorType::F16, 1, "F16", 1, 2),
    (TensorType::Q4_0, 2, "Q4_0", 32, 18),
    (TensorType::Q4_1, 3, "Q4_1", 32, 20),
    (TensorType::Q5_0, 6, "Q5_0", 32, 22),
    (TensorType::Q5_1, 7, "Q5_1", 32, 24),
    (TensorType::Q8_0, 8, "Q8_0", 32, 34),
    (TensorType::Q8_1, 9, "Q8_1", 32, 36),
    (TensorType::Q2_K, 10, "Q2_K", 256, 84),
    (TensorType::Q3_K, 11, "Q3_K", 256, 110),
    (TensorType::Q4_K, 12, "Q4_K", 256, 144),
    (TensorType::Q5_K, 13, "Q5_K", 256, 176),
    (TensorType::Q6_K, 14, "Q6_K", 256, 210),
    (TensorType::Q8_K, 15, "Q8_K", 256, 292),
    (TensorType::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (TensorType::IQ2_XS, 17, "IQ2_XS", 256, 74),
    (TensorType::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (TensorType::IQ1_S, 19, "IQ1_S", 256, 50),
    (TensorType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    (TensorType::IQ3_S, 21, "IQ3_S", 256, 110),
    (TensorType::IQ2_S, 22, "IQ2_S", 256, 82),
    (TensorType::IQ4_XS, 23, "IQ4_XS", 256, 136),
    (TensorType::I8, 24, "I8", 1, 1),
    (TensorType::I16, 25, "I16", 1, 2),
    (TensorType::I32, 26, "I32", 1, 4),
    (TensorType::I64, 27, "I64", 1, 8),
    (TensorType::F64, 28, "F64", 1, 8),
    (TensorType::IQ1_M, 29, "IQ1_M", 256, 56),
    (TensorType::BF16, 30, "BF16", 1, 2),
    (TensorType::TQ1_0, 34, "TQ1_0", 256, 54),
    (TensorType::TQ2_0, 35, "TQ2_0", 256, 66),
    (TensorType::MXFP4, 39, "MXFP4", 32, 17),
];

/// The weights that four bits stand for in IQ4_NL and IQ4_XS.
const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl TensorType {
    /// Every type, in the order of its number.
    pub fn all() -> impl Iterator<Item = TensorType> {
        TYPES.iter().map(|row| row.0)
    }

    /// The type with this number, if the format defines it.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == code).map(|row| row.0)
    }

    /// The type with this name, if the format defines it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Weights of a block.
    #[must_use]
    pub fn block_weights(self) -> u64 {
        self.row().3
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }

    /// Bytes of so many weights, or `None` where they are not whole blocks or too many to count.
    #[must_use]
    pub fn bytes(self, weights: u64) -> Option<u64> {
        let whole = weights.is_multiple_of(self.block_weights());
        whole.then(|| (weights / self.block_weights()).checked_mul(self.block_bytes())).flatten()
    }

    /// How a matrix of this type is stored without changing a value; none for types that are refused.
    #[must_use]
    pub fn encoding(self) -> Option<Encoding> {
        Some(match self {
            TensorType::F32 => Encoding::plain(Format::F32),
            TensorType::F16 => Encoding::plain(Format::F16),
            TensorType::BF16 => Encoding::plain(Format::BF16),
            TensorType::Q8_0 => Encoding::plain(Format::Q8_0),
            TensorType::Q4_0 => Encoding::plain(Format::Q4_0),
            TensorType::Q4_1 => Encoding::plain(Format::Q4_1),
            TensorType::Q4_K => Encoding::plain(Format::Q4K),
            TensorType::Q5_K => Encoding::plain(Format::Q5K),
            TensorType::Q6_K => Encoding::plain(Format::Q6K),
            TensorType::MXFP4 => Encoding::plain(Format::Mxfp4),
            TensorType::Q5_0 | TensorType::IQ4_NL | TensorType::IQ4_XS => Encoding::int8(32, false),
            TensorType::Q5_1 => Encoding::int8(32, true),
            TensorType::Q2_K => Encoding::int8(16, true),
            TensorType::Q3_K => Encoding::int8(16, false),
            TensorType::F64
            | TensorType::I8
            | TensorType::I16
            | TensorType::I32
            | TensorType::I64
            | TensorType::Q8_1
            | TensorType::Q8_K
            | TensorType::IQ1_S
            | TensorType::IQ1_M
            | TensorType::IQ2_XXS
            | TensorType::IQ2_XS
            | TensorType::IQ2_S
            | TensorType::IQ3_XXS
            | TensorType::IQ3_S
            | TensorType::TQ1_0
            | TensorType::TQ2_0 => return None,
        })
    }

    /// Whether the stored planes give the bytes of the blocks back, beside their values.
    #[must_use]
    pub fn splits(self) -> bool {
        self.encoding().is_some_and(|encoding| encoding.format.layout().is_some())
    }

    fn row(self) -> &'static (TensorType, u32, &'static str, u64, u64) {
        let row = TYPES.iter().find(|row| row.0 == self);
        row.expect("every type has a row: tested")
    }
}

/// Where each plane of a block goes: codes, high codes, scales, sub-scales, zeros.
pub type Planes<'a> = [&'a [u8]; 5];

/// Planes that are being filled.
pub type PlanesMut<'a> = [&'a mut [u8]; 5];

/// Takes one block of `format` apart. The lengths are those of the format's layout; other lengths leave the
/// planes as they are.
pub fn split(format: Format, block: &[u8], planes: &mut PlanesMut<'_>) {
    let [codes, high, scales, sub, zeros] = planes;
    match (format, block.len()) {
        (Format::Q8_0, 34) => {
            scales.copy_from_slice(&block[..2]);
            codes.copy_from_slice(&block[2..]);
        }
        (Format::Q4_0, 18) => {
            scales.copy_from_slice(&block[..2]);
            in_order(&block[2..], 16, codes);
        }
        (Format::Q4_1, 20) => {
            scales.copy_from_slice(&block[..2]);
            zeros.copy_from_slice(&block[2..4]);
            in_order(&block[4..], 16, codes);
        }
        (Format::Mxfp4, 17) => {
            scales.copy_from_slice(&block[..1]);
            in_order(&block[1..], 16, codes);
        }
        (Format::Q4K, 144) => {
            scales.copy_from_slice(&block[..2]);
            zeros.copy_from_slice(&block[2..4]);
            sub.copy_from_slice(&block[4..16]);
            in_order(&block[16..], 32, codes);
        }
        (Format::Q5K, 176) => {
            scales.copy_from_slice(&block[..2]);
            zeros.copy_from_slice(&block[2..4]);
            sub.copy_from_slice(&block[4..16]);
            put(high, 1, |i| block[16 + i % 32] >> (i / 32));
            in_order(&block[48..], 32, codes);
        }
        (Format::Q6K, 210) => {
            in_order(&block[..128], 64, codes);
            put(high, 2, |i| block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2));
            sub.copy_from_slice(&block[192..208]);
            scales.copy_from_slice(&block[208..]);
        }
        _ => {}
    }
}

/// Puts one block together again: the inverse of [`split`].
pub fn join(format: Format, planes: &Planes<'_>, block: &mut [u8]) {
    let [codes, high, scales, sub, zeros] = planes;
    match (format, block.len()) {
        (Format::Q8_0, 34) => {
            block[..2].copy_from_slice(scales);
            block[2..].copy_from_slice(codes);
        }
        (Format::Q4_0, 18) => {
            block[..2].copy_from_slice(scales);
            as_in_blocks(codes, 16, &mut block[2..]);
        }
        (Format::Q4_1, 20) => {
            block[..2].copy_from_slice(scales);
            block[2..4].copy_from_slice(zeros);
            as_in_blocks(codes, 16, &mut block[4..]);
        }
        (Format::Mxfp4, 17) => {
            block[..1].copy_from_slice(scales);
            as_in_blocks(codes, 16, &mut block[1..]);
        }
        (Format::Q4K, 144) => {
            block[..2].copy_from_slice(scales);
            block[2..4].copy_from_slice(zeros);
            block[4..16].copy_from_slice(sub);
            as_in_blocks(codes, 32, &mut block[16..]);
        }
        (Format::Q5K, 176) => {
            block[..2].copy_from_slice(scales);
            block[2..4].copy_from_slice(zeros);
            block[4..16].copy_from_slice(sub);
            block[16..48].fill(0);
            (0..256).for_each(|i| block[16 + i % 32] |= bits(high, 1, i) << (i / 32));
            as_in_blocks(codes, 32, &mut block[48..]);
        }
        (Format::Q6K, 210) => {
            as_in_blocks(codes, 64, &mut block[..128]);
            block[128..192].fill(0);
            for i in 0..256 {
                block[128 + i / 128 * 32 + i % 32] |= bits(high, 2, i) << (i / 32 % 4 * 2);
            }
            block[192..208].copy_from_slice(sub);
            block[208..].copy_from_slice(scales);
        }
        _ => {}
    }
}

/// Turns one block of a type stored as INT8 into signed codes, and a scale and a minimum as little-endian F32
/// for each of its groups; the minima are left out where the type has none.
pub fn to_int8(tensor_type: TensorType, block: &[u8], planes: &mut PlanesMut<'_>) {
    let [codes, _, scales, _, zeros] = planes;
    let half = |at: usize| {
        block
            .get(at..at + 2)
            .map_or(0.0, |bytes| f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]])))
    };
    let mut code = |f: &dyn Fn(usize) -> i8| {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = f(i) as u8;
        }
    };
    let group = |out: &mut [u8], f: &dyn Fn(usize) -> f32| {
        for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *out = f(i).to_le_bytes();
        }
    };
    match (tensor_type, block.len()) {
        (TensorType::Q5_0, 22) => {
            code(&|i| (nibble(&block[6..], 16, i) | bits(&block[2..6], 1, i) << 4) as i8 - 16);
            group(scales, &|_| half(0));
        }
        (TensorType::Q5_1, 24) => {
            code(&|i| (nibble(&block[8..], 16, i) | bits(&block[4..8], 1, i) << 4) as i8);
            group(scales, &|_| half(0));
            group(zeros, &|_| half(2));
        }
        (TensorType::IQ4_NL, 18) => {
            code(&|i| IQ4_VALUES[usize::from(nibble(&block[2..], 16, i))]);
            group(scales, &|_| half(0));
        }
        (TensorType::IQ4_XS, 136) => {
            code(&|i| IQ4_VALUES[usize::from(nibble(&block[8..], 16, i))]);
            let high = &block[2..4];
            group(scales, &|g| {
                let scale = bits(&block[4..8], 4, g) | bits(high, 2, g) << 4;
                half(0) * f32::from(scale as i8 - 32)
            });
        }
        (TensorType::Q2_K, 84) => {
            code(&|i| two_bits(&block[16..80], i) as i8);
            group(scales, &|g| half(80) * f32::from(block[g] & 15));
            group(zeros, &|g| -(half(82) * f32::from(block[g] >> 4)));
        }
        (TensorType::Q3_K, 110) => {
            // The bit of the mask says that four is not taken off.
            code(&|i| {
                two_bits(&block[32..96], i) as i8 - 4 + 4 * (block[i % 32] >> (i / 32) & 1) as i8
            });
            let packed = &block[96..108];
            group(scales, &|g| {
                let low = packed[g % 8] >> (g / 8 * 4) & 15;
                let high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
                half(108) * f32::from((low | high << 4) as i8 - 32)
            });
        }
        _ => {}
    }
}

/// Takes a row of blocks apart into the planes that [`TensorType::encoding`] states. `None` where a length does
/// not fit.
pub fn split_row(tensor_type: TensorType, row: &[u8], planes: &mut PlanesMut<'_>) -> Option<()> {
    let encoding = tensor_type.encoding()?;
    let widths = encoding.row_bytes(tensor_type.block_weights())?.map(|width| width as usize);
    for (at, block) in row.chunks(tensor_type.block_bytes() as usize).enumerate() {
        let [codes, high, scales, sub, zeros] = planes;
        let [a, b, c, d, e] = widths;
        let of_block = &mut [
            codes.get_mut(at * a..(at + 1) * a)?,
            high.get_mut(at * b..(at + 1) * b)?,
            scales.get_mut(at * c..(at + 1) * c)?,
            sub.get_mut(at * d..(at + 1) * d)?,
            zeros.get_mut(at * e..(at + 1) * e)?,
        ];
        if tensor_type.splits() {
            split(encoding.format, block, of_block);
        } else {
            to_int8(tensor_type, block, of_block);
        }
    }
    Some(())
}

/// The numbers of a row of any type that is stored. `None` where a length does not fit.
pub fn decode_row(tensor_type: TensorType, row: &[u8], out: &mut [f32]) -> Option<()> {
    let encoding = tensor_type.encoding()?;
    (tensor_type.bytes(out.len() as u64)? == row.len() as u64).then_some(())?;
    if tensor_type.block_weights() == 1 {
        encoding.decode(&[row, &[], &[], &[], &[]], out);
        return Some(());
    }
    let mut planes = encoding.row_bytes(out.len() as u64)?.map(|width| vec![0; width as usize]);
    split_row(tensor_type, row, &mut planes.each_mut().map(Vec::as_mut_slice))?;
    encoding.decode(&planes.each_ref().map(Vec::as_slice), out);
    Some(())
}

/// The 6-bit scale and minimum of a group of 32 in the twelve bytes of Q4_K and Q5_K.
#[must_use]
pub fn scale_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let low = packed[group + 4];
    ((low & 15) | (packed[group - 4] >> 6) << 4, (low >> 4) | (packed[group] >> 6) << 4)
}

/// Code `i` of a plane with codes of `width` bits, 1, 2 or 4.
#[must_use]
pub fn bits(plane: &[u8], width: usize, i: usize) -> u8 {
    plane[i * width / 8] >> (i * width % 8) & ((1 << width) - 1)
}

/// Writes the low `width` bits of `f(i)` as code `i` of a plane, all codes.
fn put(plane: &mut [u8], width: usize, f: impl Fn(usize) -> u8) {
    let per_byte = 8 / width;
    for (at, byte) in plane.iter_mut().enumerate() {
        *byte = (0..per_byte).fold(0, |byte, nth| {
            byte | (f(at * per_byte + nth) & ((1 << width) - 1)) << (nth * width)
        });
    }
}

/// Nibble `i` of a block whose runs of `run` bytes hold `run` weights in their low halves and the next `run`
/// in their high ones.
fn nibble(block: &[u8], run: usize, i: usize) -> u8 {
    block[i / (2 * run) * run + i % run] >> (i / run % 2 * 4) & 15
}

/// Two bits `i` of a block whose runs of 32 bytes hold four times 32 weights.
fn two_bits(block: &[u8], i: usize) -> u8 {
    block[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Nibbles in runs, as in [`nibble`], brought into the order of the weights.
fn in_order(block: &[u8], run: usize, codes: &mut [u8]) {
    for (block, codes) in block.chunks_exact(run).zip(codes.chunks_exact_mut(run)) {
        let (first, second) = codes.split_at_mut(run / 2);
        for ((pair, low), high) in block.as_chunks::<2>().0.iter().zip(first).zip(second) {
            *low = pair[0] & 15 | pair[1] << 4;
            *high = pair[0] >> 4 | pair[1] & 0xf0;
        }
    }
}

/// The inverse of [`in_order`].
fn as_in_blocks(codes: &[u8], run: usize, block: &mut [u8]) {
    for (at, byte) in block.iter_mut().enumerate() {
        let first = at / run * 2 * run + at % run;
        *byte = bits(codes, 4, first) | bits(codes, 4, first + run) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_own_row() {
        for tensor_type in TensorType::all() {
            let row = tensor_type.row();

            assert_eq!(TensorType::from_code(row.1), Some(tensor_type));
            assert_eq!(TensorType::from_name(row.2), Some(tensor_type));
        }
        assert_eq!(TensorType::all().count(), TensorType::MXFP4 as usize + 1);
    }

    #[test]
    fn blocks_come_back_from_their_planes_bit_for_bit() {
        for tensor_type in TensorType::all().filter(|tensor_type| tensor_type.splits()) {
            let format = tensor_type.encoding().expect("splits").format;
            let widths = format.layout().expect("splits").bytes.map(|bytes| bytes as usize);
            assert_eq!(widths.iter().sum::<usize>() as u64, tensor_type.block_bytes());
            let mut state = 1u32;
            for _ in 0..200 {
                let block: Vec<u8> = (0..tensor_type.block_bytes())
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 24) as u8
                    })
                    .collect();
                let mut planes = widths.map(|width| vec![0u8; width]);
                let mut joined = vec![0; block.len()];

                split(format, &block, &mut planes.each_mut().map(Vec::as_mut_slice));
                join(format, &planes.each_ref().map(Vec::as_slice), &mut joined);

                assert_eq!(joined, block, "{}", tensor_type.name());
            }
        }
    }
}

//! Number formats of stored weights: what a code is, how many bytes a row of them takes, and the
//! descriptor that states a tensor's precision. Start at [`Format`]; [`encoding`] says what the planes of a
//! row mean, [`gguf`] how the blocks of GGUF files become planes. Where a row lies in a page is
//! `format::geometry`.

pub mod encoding;
pub mod float;
pub mod gguf;

pub use encoding::{Encoding, Layout};

use serde::{Deserialize, Serialize};

/// A storage format. The number is what a page record holds and is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u16)]
pub enum Format {
    /// Uninterpreted bytes: assets.
    #[serde(rename = "bytes")]
    Bytes = 0,
    /// IEEE binary32.
    #[serde(rename = "f32")]
    F32 = 1,
    /// IEEE binary16.
    #[serde(rename = "f16")]
    F16 = 2,
    /// bfloat16: the upper half of a binary32.
    #[serde(rename = "bf16")]
    BF16 = 3,
    /// Signed bytes, with an F32 scale and perhaps an F32 minimum for each group of 16 or 32.
    #[serde(rename = "int8")]
    Int8 = 16,
    /// FP4 (E2M1) with a power-of-two scale for each 32.
    #[serde(rename = "mxfp4")]
    Mxfp4 = 24,
    /// GGUF: signed bytes, an F16 scale for each 32.
    #[serde(rename = "q8_0")]
    Q8_0 = 32,
    /// GGUF: four bits less 8, an F16 scale for each 32.
    #[serde(rename = "q4_0")]
    Q4_0 = 33,
    /// GGUF: four bits, an F16 scale and an F16 minimum for each 32.
    #[serde(rename = "q4_1")]
    Q4_1 = 34,
    /// GGUF: four bits, 6-bit scales and minima for each 32, F16 factors for each 256.
    #[serde(rename = "q4_k")]
    Q4K = 35,
    /// GGUF: as Q4_K with five bits.
    #[serde(rename = "q5_k")]
    Q5K = 36,
    /// GGUF: six bits less 32, 8-bit scales for each 16, an F16 factor for each 256.
    #[serde(rename = "q6_k")]
    Q6K = 37,
}

impl Format {
    /// Every format this version reads.
    pub const ALL: &[Format] = &[
        Format::Bytes,
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Int8,
        Format::Mxfp4,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
    ];

    /// The number stored in a page record.
    #[must_use]
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The format with this number, if this version knows it.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.code() == code)
    }

    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Bytes => "bytes",
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::BF16 => "bf16",
            Format::Int8 => "int8",
            Format::Mxfp4 => "mxfp4",
            Format::Q8_0 => "q8_0",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
        }
    }

    /// Bits one weight takes, scales not counted.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Format::Bytes | Format::Int8 | Format::Q8_0 => 8,
            Format::F32 => 32,
            Format::F16 | Format::BF16 => 16,
            Format::Mxfp4 | Format::Q4_0 | Format::Q4_1 | Format::Q4K => 4,
            Format::Q5K => 5,
            Format::Q6K => 6,
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How a tensor's numbers are stored, in the terms model files use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizationDescriptor {
    /// "none", or the scheme's own name: "gptq", "mxfp4", ...
    pub method: String,
    /// Format of the codes.
    pub storage_dtype: Format,
    /// Bits of one code.
    pub bits: u32,
    /// Weights that share a scale; absent where there are no scales.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u32>,
    /// Format of the scales.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_dtype: Option<Format>,
    /// Whether codes have a zero point or a minimum of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero_point: bool,
    /// Roles the scheme left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules_to_not_convert: Vec<String>,
    /// The source's own quantization settings, as it wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_config: Option<serde_json::Value>,
}

impl QuantizationDescriptor {
    /// A float format stored as it is.
    #[must_use]
    pub fn float(format: Format) -> Self {
        QuantizationDescriptor {
            method: "none".into(),
            storage_dtype: format,
            bits: format.bits(),
            group_size: None,
            scale_dtype: None,
            zero_point: false,
            modules_to_not_convert: Vec::new(),
            source_config: None,
        }
    }
}

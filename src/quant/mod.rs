//! Number formats of stored weights: what a code is, how many bytes a row of them takes, and the
//! descriptor that states a tensor's precision. The exact float formats are here; low-bit formats join
//! as further rows of [`Format`]. Start at [`Format`]. Where a row lies in a page is `format::geometry`.

pub mod float;

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
}

impl Format {
    /// Every format this version reads.
    pub const ALL: &[Format] = &[Format::Bytes, Format::F32, Format::F16, Format::BF16];

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
        }
    }

    /// Bits one weight takes, scales not counted.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Format::Bytes => 8,
            Format::F32 => 32,
            Format::F16 | Format::BF16 => 16,
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

//! The manifest: what the pages mean, where each source tensor went, and what came along.
//!
//! Plain data with serde. A reader checks it against the page table (`format::check`) before anyone uses it.
//! The model description is kept as JSON here and parsed by `model::spec`, which this module must not know.

use serde::{Deserialize, Serialize};

use super::{Error, Geometry, Hash};
use crate::quant::Format;

/// Everything an archive says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The model description, `model::ModelSpec` as JSON.
    pub spec: serde_json::Value,
    /// Geometries of the matrix groups and `small` pages; page records point here.
    pub descriptors: Vec<Geometry>,
    /// Every source tensor that was stored, in source order.
    pub tensors: Vec<Tensor>,
    /// Rows of groups that no source tensor holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub padding: Vec<Padding>,
    /// Files the archive carries.
    pub assets: Vec<Asset>,
    /// Where it all came from.
    pub provenance: Provenance,
}

impl Manifest {
    /// Parses the manifest region of `file`: JSON, then nothing but spaces.
    ///
    /// **Errors**: other padding, too many values for its size, or JSON that is not a manifest.
    pub fn decode(file: &str, region: &[u8]) -> Result<Self, Error> {
        let end = region.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
        let (text, _) = region.split_at_checked(end).unwrap_or((region, &[]));
        if let Some(&byte) = text.last()
            && byte != b'}'
        {
            return Err(Error::ManifestPadding { file: file.into(), at: end as u64 - 1, byte });
        }
        // A parsed value takes up to 72 bytes where `0,` takes two, so a file could ask for far more memory
        // than it has bytes. Manifests have one value in nine to ten bytes.
        let values = text.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() as u64;
        let limit = text.len() as u64 / 6 + 65_536;
        if values > limit {
            return Err(Error::ManifestDense { file: file.into(), values, limit });
        }
        serde_json::from_slice(text).map_err(|source| Error::Manifest { file: file.into(), source })
    }

    /// The JSON that a manifest region starts with.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest has string keys only")
    }
}

/// One source tensor and the pages that hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// The name in the source.
    pub name: String,
    /// Index into `Provenance::files`.
    pub file: u32,
    /// The source's name for the number type: "BF16", "F32", ...
    pub dtype: String,
    /// The source's shape.
    pub shape: Vec<u64>,
    /// BLAKE3 of the source bytes.
    #[serde(with = "hex_hash")]
    pub hash: Hash,
    /// What was done to the numbers, in order, beyond placing rows; each step has an exact inverse.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transform: Vec<Transform>,
    /// Where its rows went; together they hold every source row once.
    pub pieces: Vec<Piece>,
}

/// A run of source rows and its place. Rows are counted after a [`Transform::RowPermutation`]; where the
/// planes of a row hold its fields, the piece names plane 0 and means all. Concatenation, slicing and gate/up interleaving are all of this
/// form, so `transform` need not repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// First page of the group.
    pub page: u32,
    /// Which plane of the group's geometry.
    pub plane: u32,
    /// First row in the source tensor.
    pub source_row: u64,
    /// Rows in this piece.
    pub rows: u64,
    /// Row of the group that `source_row` became.
    pub first_row: u64,
    /// Group rows from one source row to the next: 2 where gate and up alternate, else 1.
    pub row_step: u64,
}

/// A change of a tensor's numbers that `extract` undoes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// A vector of 16-bit floats stored as F32; narrowing gives the source bits back.
    WidenF32,
    /// Rows (or the numbers of a vector) reordered within each run of `head_rows`: those at even places come
    /// first, then those at odd ones. Source files that rotate neighbouring pairs become rotate-half by it.
    RowPermutation {
        /// Rows of a head; even.
        head_rows: u64,
    },
    /// Rows of blocks taken apart into the planes of a format.
    PlaneSplit {
        /// The format whose planes they are.
        layout: Format,
    },
    /// Rows of blocks stored as INT8 with F32 scales. Every value is kept, the bytes of the blocks are not: the
    /// tensor is listed, and given back, as the F32 numbers that the blocks stood for.
    Int8Groups {
        /// The source's type.
        source_type: String,
    },
}

impl Tensor {
    /// Rows of a head that were reordered, where they were.
    #[must_use]
    pub fn permuted(&self) -> Option<u64> {
        self.transform.iter().find_map(|transform| match transform {
            Transform::RowPermutation { head_rows } => Some(*head_rows),
            Transform::WidenF32 | Transform::PlaneSplit { .. } | Transform::Int8Groups { .. } => {
                None
            }
        })
    }

    /// Whether a piece at plane 0 means all planes of its rows.
    #[must_use]
    pub fn fills_planes(&self) -> bool {
        self.transform.iter().any(|transform| {
            matches!(transform, Transform::PlaneSplit { .. } | Transform::Int8Groups { .. })
        })
    }
}

/// Place in its head, before a [`Transform::RowPermutation`], of the row that is at `row` after it.
#[must_use]
pub fn permuted_row(head_rows: u64, row: u64) -> u64 {
    let half = (head_rows / 2).max(1);
    let (head, place) = (row / (2 * half), row % (2 * half));
    head * 2 * half + place % half * 2 + place / half
}

/// Rows of a group that no source tensor holds: a bias that one of three members lacks. They are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Padding {
    /// First page of the group.
    pub page: u32,
    /// Which plane of the group's geometry.
    pub plane: u32,
    /// First row of the group.
    pub first_row: u64,
    /// Rows from there on.
    pub rows: u64,
}

impl Padding {
    /// The same rows as a piece of no tensor.
    #[must_use]
    pub fn as_piece(&self) -> Piece {
        Piece {
            page: self.page,
            plane: self.plane,
            source_row: 0,
            rows: self.rows,
            first_row: self.first_row,
            row_step: 1,
        }
    }
}

/// A file stored whole in one page or several consecutive ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asset {
    /// File name, without any folder.
    pub name: String,
    /// First page.
    pub page: u32,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Where an archive came from. No absolute paths, no times: the same source gives the same archive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Program and version that wrote it.
    pub tool: String,
    /// "huggingface", "gguf", ...
    pub source: String,
    /// Source files that held tensors.
    pub files: Vec<SourceFile>,
    /// Source tensors left out, each with the reason.
    pub ignored: Vec<Ignored>,
    /// Precision profile the weights were written with; "safe" when nothing was lowered.
    pub profile: String,
    /// Whether `extract` gives back every stored tensor bit for bit.
    pub exact_storage_preserved: bool,
}

/// A source file that held tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// File name, without any folder.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Its own metadata (`__metadata__` of safetensors).
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub metadata: std::collections::BTreeMap<String, String>,
}

/// A source tensor that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ignored {
    /// The name in the source.
    pub name: String,
    /// Why.
    pub reason: String,
}

mod hex_hash {
    //! Digests as lower-case hex.

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Hash;

    pub(super) fn serialize<S: Serializer>(hash: &Hash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&blake3::Hash::from_bytes(*hash).to_hex())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Hash, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        blake3::Hash::from_hex(text.as_bytes())
            .map(|hash| *hash.as_bytes())
            .map_err(|error| D::Error::custom(format!("'{text}' is not a BLAKE3 digest: {error}")))
    }
}

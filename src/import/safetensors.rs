//! One safetensors file: a header that says where each tensor lies, then the tensors.
//!
//! ```text
//! 0  u64 header length n    8  JSON: { name: { dtype, shape, data_offsets: [start, end] }, "__metadata__": {} }
//! 8 + n  tensors, back to back, offsets counted from here
//! ```
//! Every field is checked against the others before a byte is used: names are unique, each span is what
//! shape and dtype need, spans follow each other without gap or overlap and end where the file ends.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::file::{Entry, WeightFile};
use super::json::UniqueMap;
use super::map::Map;
use super::{Error, detect};
use crate::format::grouped;

/// A header above this is refused, as the reference implementation does.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The largest rank of a tensor accepted from a file.
const MAX_RANK: usize = 16;

/// Maps a file and reads its header.
///
/// **Errors**: [`Error::Safetensors`] with what is wrong; [`Error::LfsPointer`] and [`Error::Html`] for what
/// is often found in its place.
pub(super) fn open(path: &Path) -> Result<WeightFile, Error> {
    let map = Map::open(path)?;
    detect::refuse_placeholder(path, map.bytes())?;
    let header = Header::parse(map.bytes())
        .map_err(|problem| Error::Safetensors { path: path.to_owned(), problem })?;
    Ok(WeightFile::new(map, header.tensors, header.metadata))
}

/// What the header of a file says, checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    tensors: Vec<Entry>,
    metadata: BTreeMap<String, String>,
}

impl Header {
    /// Reads the header of a file given whole. Allocates in proportion to the header, after bounding it.
    pub(super) fn parse(file: &[u8]) -> Result<Self, Problem> {
        let too_short = Problem::TooShort { len: file.len() };
        let (length, rest) = file.split_first_chunk::<8>().ok_or(too_short)?;
        let header_len = u64::from_le_bytes(*length);
        if header_len > MAX_HEADER_BYTES {
            return Err(Problem::HeaderTooLong { header_len });
        }
        let beyond = Problem::HeaderBeyondEnd { header_len, available: rest.len() };
        let (header, data) = usize::try_from(header_len)
            .ok()
            .and_then(|len| rest.split_at_checked(len))
            .ok_or(beyond)?;
        if header.first() != Some(&b'{') {
            return Err(Problem::HeaderStart { found: detect::printable(header) });
        }
        let raw: RawHeader =
            serde_json::from_slice(header).map_err(|problem| Problem::Json { problem })?;
        if let Some(name) = raw.duplicate {
            return Err(Problem::DuplicateName { name });
        }
        let data_start = file.len() - data.len();
        let mut tensors = raw
            .tensors
            .into_iter()
            .map(|(name, raw)| raw.check(name, data_start, data.len()))
            .collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by_key(|entry| (entry.range.start, entry.range.end));
        check_contiguous(&tensors, data_start, data.len())?;
        Ok(Header { tensors, metadata: raw.metadata })
    }
}

/// Whether the tensors, sorted, cover the data exactly once.
fn check_contiguous(tensors: &[Entry], data_start: usize, data_len: usize) -> Result<(), Problem> {
    let mut end = data_start;
    let mut previous = "the header";
    for entry in tensors {
        if entry.range.start != end {
            let (start, expected) = (entry.range.start - data_start, end - data_start);
            let (tensor, previous) = (entry.name.clone(), previous.to_owned());
            return Err(if start < expected {
                Problem::Overlap { tensor, start, previous, end: expected }
            } else {
                Problem::Gap { tensor, start, previous, end: expected }
            });
        }
        end = entry.range.end;
        previous = &entry.name;
    }
    let stated = end - data_start;
    if stated == data_len {
        return Ok(());
    }
    Err(Problem::DataLength { stated: stated as u64, found: data_len })
}

struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
    duplicate: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl RawEntry {
    fn check(self, tensor: String, data_start: usize, data_len: usize) -> Result<Entry, Problem> {
        let Some(dtype) = Dtype::from_name(&self.dtype) else {
            let dtype = self.dtype;
            return Err(Problem::UnknownDtype { tensor, dtype });
        };
        let (start, end) = self.data_offsets;
        if start > end {
            return Err(Problem::Backwards { tensor, start, end });
        }
        let bits = self.shape.iter().try_fold(dtype.bits(), |bits, &dim| bits.checked_mul(dim));
        let Some(bits) = bits.filter(|bits| bits % 8 == 0 && self.shape.len() <= MAX_RANK) else {
            let shape = self.shape;
            return Err(Problem::Overflow { tensor, shape });
        };
        if bits / 8 != end - start {
            return Err(Problem::Span {
                tensor,
                dtype,
                shape: self.shape,
                expected: bits / 8,
                found: end - start,
            });
        }
        let place = |offset: u64| {
            let offset = usize::try_from(offset).ok().filter(|&offset| offset <= data_len)?;
            data_start.checked_add(offset)
        };
        let (Some(first), Some(last)) = (place(start), place(end)) else {
            return Err(Problem::DataLength { stated: end, found: data_len });
        };
        Ok(Entry { name: tensor, dtype: dtype.name(), shape: self.shape, range: first..last })
    }
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;

        impl<'de> Visitor<'de> for Tensors {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header =
                    RawHeader { tensors: Vec::new(), metadata: BTreeMap::new(), duplicate: None };
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        header.duplicate.get_or_insert_with(|| name.clone());
                    }
                    let named = |error| A::Error::custom(format!("'{name}': {error}"));
                    if name == "__metadata__" {
                        let metadata: UniqueMap<String> = map.next_value().map_err(named)?;
                        header.metadata = metadata.0.into_iter().collect();
                    } else {
                        let entry = map.next_value().map_err(named)?;
                        header.tensors.push((name, entry));
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(Tensors)
    }
}

/// A number type by its safetensors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype(&'static str, u64);

/// Every number type the format defines, with its bits.
const DTYPES: &[Dtype] = &[
    Dtype("BOOL", 8),
    Dtype("F4", 4),
    Dtype("F6_E2M3", 6),
    Dtype("F6_E3M2", 6),
    Dtype("U8", 8),
    Dtype("I8", 8),
    Dtype("F8_E5M2", 8),
    Dtype("F8_E4M3", 8),
    Dtype("F8_E8M0", 8),
    Dtype("F8_E4M3FNUZ", 8),
    Dtype("F8_E5M2FNUZ", 8),
    Dtype("I16", 16),
    Dtype("U16", 16),
    Dtype("F16", 16),
    Dtype("BF16", 16),
    Dtype("I32", 32),
    Dtype("U32", 32),
    Dtype("F32", 32),
    Dtype("C64", 64),
    Dtype("F64", 64),
    Dtype("I64", 64),
    Dtype("U64", 64),
];

impl Dtype {
    /// The type with this name, if the format defines it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        DTYPES.iter().copied().find(|dtype| dtype.0 == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Bits of one number.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.1
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// What is wrong with a safetensors file. Offsets count from the end of the header, as in the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the messages name them")]
pub enum Problem {
    /// No room for the header's length.
    #[error("it has {len} bytes, but the length of the header alone takes 8")]
    TooShort { len: usize },
    /// The header's length is absurd.
    #[error(
        "it states a header of {} bytes, but at most {} are accepted",
        grouped(*header_len),
        grouped(MAX_HEADER_BYTES)
    )]
    HeaderTooLong { header_len: u64 },
    /// The file ends inside the header.
    #[error("it states a header of {} bytes, but only {available} follow", grouped(*header_len))]
    HeaderBeyondEnd { header_len: u64, available: usize },
    /// The header is not JSON at its first byte, a byte order mark included.
    #[error("its header does not start with '{{' but with {found}")]
    HeaderStart { found: String },
    /// The header is not the JSON it should be.
    #[error("its header cannot be read: {problem}")]
    Json { problem: serde_json::Error },
    /// A name is defined twice.
    #[error("duplicate tensor name '{name}'")]
    DuplicateName { name: String },
    /// A number type the format does not define.
    #[error("tensor '{tensor}' has the unknown dtype '{dtype}'")]
    UnknownDtype { tensor: String, dtype: String },
    /// A span that ends before it starts.
    #[error("tensor '{tensor}' starts at byte {start} but ends at byte {end}")]
    Backwards { tensor: String, start: u64, end: u64 },
    /// A shape no file can hold.
    #[error("tensor '{tensor}' has the impossible shape {shape:?}")]
    Overflow { tensor: String, shape: Vec<u64> },
    /// Shape and type need another number of bytes than the span has.
    #[error(
        "tensor '{tensor}' of shape {shape:?} in {dtype} takes {} bytes, but its offsets span {}",
        grouped(*expected),
        grouped(*found)
    )]
    Span { tensor: String, dtype: Dtype, shape: Vec<u64>, expected: u64, found: u64 },
    /// Two tensors share bytes.
    #[error(
        "tensor '{tensor}' starts at byte {start}, but '{previous}' ends at byte {end}: they overlap"
    )]
    Overlap { tensor: String, start: usize, previous: String, end: usize },
    /// Bytes that belong to no tensor.
    #[error("tensor '{tensor}' starts at byte {start}, but '{previous}' ends at byte {end}: a gap")]
    Gap { tensor: String, start: usize, previous: String, end: usize },
    /// The file is longer or shorter than its tensors.
    #[error("its tensors take {} bytes, but {} follow the header", grouped(*stated), grouped(*found as u64))]
    DataLength { stated: u64, found: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + data, 0);
        file
    }

    fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    }

    fn problem(tensors: &[String], data: usize) -> String {
        let header = format!("{{{}}}", tensors.join(","));
        let error = Header::parse(&file(&header, data)).expect_err("refused");
        error.to_string()
    }

    #[test]
    fn r37_header_rejects_a_length_it_cannot_have() {
        let says = |bytes: &[u8]| Header::parse(bytes).expect_err("refused").to_string();

        assert!(says(&[0xff; 8]).contains("18,446,744,073,709,551,615"));
        assert!(says(&[0; 7]).contains("it has 7 bytes"));
        assert!(says(&[]).contains("it has 0 bytes"));
        assert!(says(b"\x0a\0\0\0\0\0\0\0{}").contains("a header of 10 bytes, but only 2 follow"));
        assert!(says(&[0; 8]).contains("does not start with '{'"));
    }

    #[test]
    fn r38_header_rejects_offsets_that_disagree_with_shape_and_dtype() {
        let span = problem(&[tensor("a", "F32", "[1000,1000]", 0, 4)], 4);
        assert!(span.contains("takes 4,000,000 bytes, but its offsets span 4"), "{span}");
        let backwards = problem(&[tensor("a", "F32", "[1]", 4, 0)], 4);
        assert!(backwards.contains("starts at byte 4 but ends at byte 0"), "{backwards}");
        let huge = problem(&[tensor("a", "F32", "[4294967296,4294967296]", 0, 0)], 0);
        assert!(huge.contains("impossible shape"), "{huge}");
        let half = problem(&[tensor("a", "F4", "[3]", 0, 1)], 1);
        assert!(half.contains("impossible shape"), "{half}");
    }

    #[test]
    fn r38_header_rejects_overlap_gap_and_a_file_of_another_length() {
        let overlap = [tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[2]", 4, 12)];
        assert!(problem(&overlap, 12).contains("'a' ends at byte 8: they overlap"));
        let gap = [tensor("a", "F32", "[1]", 0, 4), tensor("b", "F32", "[1]", 8, 12)];
        assert!(problem(&gap, 12).contains("'a' ends at byte 4: a gap"));
        let one = [tensor("a", "F32", "[2]", 0, 8)];
        assert!(problem(&one, 7).contains("take 8 bytes, but 7 follow"));
        assert!(problem(&one, 9).contains("take 8 bytes, but 9 follow"));
        assert!(problem(&[], 1).contains("take 0 bytes, but 1 follow"));
    }

    #[test]
    fn r39_header_rejects_an_unknown_dtype_by_name() {
        let start = u64::MAX - 7;
        let found = problem(&[tensor("a", "Q9_Z", "[2]", start, 8)], 8);

        assert_eq!(found, "tensor 'a' has the unknown dtype 'Q9_Z'");
    }

    #[test]
    fn r40_header_rejects_a_name_given_twice_even_with_equal_offsets() {
        let a = tensor("a", "F32", "[1]", 0, 4);
        let other = tensor("a", "F32", "[1]", 4, 8);

        assert_eq!(problem(&[a.clone(), a.clone()], 4), "duplicate tensor name 'a'");
        assert_eq!(problem(&[a, other], 8), "duplicate tensor name 'a'");
        let field = r#""a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}"#;
        assert!(problem(&[field.to_owned()], 4).contains("duplicate field"));
    }

    #[test]
    fn r41_header_with_metadata_alone_has_no_tensors() {
        let header = r#"{"__metadata__":{"k":"v"}}"#;

        let parsed = Header::parse(&file(header, 0)).expect("accepted");

        assert_eq!(header.len(), 26);
        assert!(parsed.tensors.is_empty());
        assert_eq!(parsed.metadata["k"], "v");
    }

    #[test]
    fn header_accepts_scalars_empty_tensors_and_trailing_spaces() {
        let tensors = [tensor("empty", "F32", "[0]", 0, 0), tensor("scalar", "F32", "[]", 0, 4)];
        let header = format!("{{{}}}      ", tensors.join(","));

        let parsed = Header::parse(&file(&header, 4)).expect("accepted");

        let names: Vec<_> = parsed.tensors.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["empty", "scalar"]);
    }

    #[test]
    fn r49_header_rejects_a_byte_order_mark() {
        let found = Header::parse(&file("\u{feff}{}", 0)).expect_err("refused");

        assert!(found.to_string().contains("does not start with '{'"), "{found}");
    }

    #[test]
    fn header_names_the_tensor_whose_entry_is_malformed() {
        for entry in [
            r#""a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
            r#""a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}"#,
            r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
            r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#,
            r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}"#,
            r#""a":7"#,
            r#""a":null"#,
        ] {
            let found = problem(&[entry.to_owned()], 4);

            assert!(found.contains("'a': "), "{entry}: {found}");
        }
        assert!(problem(&[r#""__metadata__":{"k":1}"#.to_owned()], 0).contains("__metadata__"));
    }

    proptest::proptest! {
        #[test]
        fn header_of_any_bytes_is_parsed_or_refused(
            header in proptest::collection::vec(proptest::num::u8::ANY, 0..80),
            data in 0usize..9,
        ) {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(&header);
            bytes.resize(bytes.len() + data, 0);
            let _ = Header::parse(&bytes);
            let _ = Header::parse(&header);
        }

        #[test]
        fn header_accepts_only_tensors_that_cover_the_data(
            spans in proptest::collection::vec((0u64..20, 0u64..20, 0u64..5), 0..4),
            data in 0usize..20,
        ) {
            let tensors: Vec<_> = spans
                .iter()
                .enumerate()
                .map(|(nth, (start, end, dim))| {
                    tensor(&nth.to_string(), "F32", &format!("[{dim}]"), *start, *end)
                })
                .collect();
            let header = format!("{{{}}}", tensors.join(","));
            if let Ok(parsed) = Header::parse(&file(&header, data)) {
                let covered: usize = parsed.tensors.iter().map(|entry| entry.range.len()).sum();
                proptest::prop_assert_eq!(covered, data);
            }
        }
    }
}

//! The front of a GGUF file: metadata, then where each tensor lies.
//!
//! ```text
//! 0  "GGUF" · u32 version 2 or 3 · u64 tensors · u64 metadata entries
//!    entries: text key · u32 type · value          text: u64 length, UTF-8
//!    tensors: text name · u32 n_dims · u64 dims[n_dims], the innermost first · u32 type · u64 offset
//!    zeros up to a multiple of general.alignment, from which offsets count · tensor data
//! ```
//! Everything is little-endian. Each count is compared with the bytes that are left before anything is
//! allocated; nothing here can panic. Start at [`Header::parse`].

use std::collections::HashSet;
use std::ops::Range;

use super::problem::Problem;
use super::value::{Array, Fault, Kind, Value, fixed, scalar, text};
use crate::quant::gguf::TensorType;

/// First bytes of a GGUF file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The alignment of a file that states none.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest alignment accepted.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// The largest rank of a tensor.
const MAX_DIMS: u32 = 4;
/// The longest key and the longest tensor name accepted.
const MAX_NAME: u64 = 4096;
/// Fewest bytes of a metadata entry: an empty key, a type, one byte.
const MIN_ENTRY: u64 = 8 + 4 + 1;
/// Fewest bytes of a tensor's description: an empty name and one dimension.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// What the front of a file says, checked.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    pub(super) metadata: Vec<(&'a str, Value<'a>)>,
    /// In the order of the file's list.
    pub(super) tensors: Vec<Info<'a>>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info<'a> {
    pub(crate) name: &'a str,
    pub(crate) tensor_type: TensorType,
    /// Outermost dimension first, as everywhere in this program.
    pub(crate) shape: Vec<u64>,
    /// Its bytes in the file.
    pub(crate) range: Range<usize>,
}

impl<'a> Header<'a> {
    /// Reads the front of a file given whole.
    ///
    /// **Errors**: [`Problem`], naming the thing and both numbers.
    pub(crate) fn parse(file: &'a [u8]) -> Result<Self, Problem> {
        let mut rest = file;
        let cut = |what: &str| {
            let what = what.to_owned();
            move |_: Fault| Problem::Short { what, len: file.len() }
        };
        let magic: [u8; 4] = fixed(&mut rest).map_err(cut("the magic"))?;
        if magic != MAGIC {
            return Err(Problem::Magic { found: magic.escape_ascii().to_string() });
        }
        let version = u32::from_le_bytes(fixed(&mut rest).map_err(cut("the version"))?);
        if version.swap_bytes() <= 0xffff && version > 0xffff {
            return Err(Problem::BigEndian { version: version.swap_bytes() });
        }
        if !(2..=3).contains(&version) {
            return Err(Problem::Version { version });
        }
        let tensors = u64::from_le_bytes(fixed(&mut rest).map_err(cut("the tensor count"))?);
        let entries = u64::from_le_bytes(fixed(&mut rest).map_err(cut("the metadata count"))?);
        check_count("metadata entries", entries, MIN_ENTRY, rest)?;
        check_count("tensors", tensors, MIN_TENSOR, rest)?;

        let metadata = read_metadata(&mut rest, entries)?;
        let alignment = alignment(&metadata)?;
        let raw = read_infos(&mut rest, tensors)?;
        let read = (file.len() - rest.len()) as u64;
        let data = match raw.is_empty() {
            true => read,
            false => read.next_multiple_of(alignment),
        };
        let mut infos = Vec::with_capacity(raw.len());
        for raw in raw {
            infos.push(raw.check(data, alignment, file.len() as u64)?);
        }
        check_overlap(&infos, data)?;
        Ok(Header { metadata, tensors: infos })
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<Value<'a>> {
        self.metadata.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

/// A count that the rest of the file has no room for.
fn check_count(what: &'static str, count: u64, least: u64, rest: &[u8]) -> Result<(), Problem> {
    let available = rest.len() as u64;
    if count.checked_mul(least).is_some_and(|bytes| bytes <= available) {
        return Ok(());
    }
    Err(Problem::Count { what, count, available })
}

fn name<'a>(rest: &mut &'a [u8], what: &'static str, number: u64) -> Result<&'a str, Problem> {
    let len = rest.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    if let Some(len) = len.filter(|&len| len > MAX_NAME) {
        return Err(Problem::Name { what, number, len });
    }
    let owner = format!("{what} {number}");
    text(rest).map_err(|fault| Problem::of(fault, owner, rest.len()))
}

fn read_metadata<'a>(
    rest: &mut &'a [u8],
    entries: u64,
) -> Result<Vec<(&'a str, Value<'a>)>, Problem> {
    let mut metadata = Vec::with_capacity(entries as usize);
    let mut seen = HashSet::new();
    for number in 0..entries {
        let key = name(rest, "metadata key", number)?;
        if !seen.insert(key) {
            return Err(Problem::DuplicateKey { key: key.to_owned() });
        }
        let wrong = |fault, left| Problem::of(fault, format!("'{key}'"), left);
        let code = fixed(rest).map_err(|fault| wrong(fault, rest.len()))?;
        let kind = kind(key, u32::from_le_bytes(code))?;
        let value = match kind {
            Kind::Array => Value::Array(read_array(key, rest)?),
            _ => scalar(kind, rest).map_err(|fault| wrong(fault, rest.len()))?,
        };
        metadata.push((key, value));
    }
    Ok(metadata)
}

fn kind(key: &str, code: u32) -> Result<Kind, Problem> {
    Kind::from_code(code).ok_or_else(|| Problem::ValueType { key: key.to_owned(), code })
}

/// Checks every element, so that reading them later cannot fail.
fn read_array<'a>(key: &str, rest: &mut &'a [u8]) -> Result<Array<'a>, Problem> {
    let wrong = |fault, left| Problem::of(fault, format!("'{key}'"), left);
    let code = fixed(rest).map_err(|fault| wrong(fault, rest.len()))?;
    let kind = kind(key, u32::from_le_bytes(code))?;
    if kind == Kind::Array {
        return Err(Problem::Nested { key: key.to_owned() });
    }
    let count = u64::from_le_bytes(fixed(rest).map_err(|fault| wrong(fault, rest.len()))?);
    let available = rest.len() as u64;
    let fits = count.checked_mul(kind.least_bytes() as u64).is_some_and(|need| need <= available);
    if !fits {
        return Err(Problem::ArrayLength { key: key.to_owned(), count, available });
    }
    let start = *rest;
    for _ in 0..count {
        scalar(kind, rest).map_err(|fault| wrong(fault, rest.len()))?;
    }
    let (bytes, _) = start.split_at(start.len() - rest.len());
    Ok(Array { kind, len: count as usize, bytes })
}

/// `general.alignment`: a UINT32, a power of two.
fn alignment(metadata: &[(&str, Value<'_>)]) -> Result<u64, Problem> {
    let stated = metadata.iter().find(|(key, _)| *key == "general.alignment");
    match stated.map(|(_, value)| *value) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Unsigned(value, 32))
            if value.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&value) =>
        {
            Ok(value)
        }
        Some(Value::Unsigned(value, 32)) => Err(Problem::Alignment { value, limit: MAX_ALIGNMENT }),
        Some(other) => Err(Problem::WrongType {
            key: "general.alignment".to_owned(),
            expected: "a UINT32",
            found: other.type_name(),
        }),
    }
}

/// A tensor's description before its numbers are compared.
struct Raw<'a> {
    name: &'a str,
    tensor_type: TensorType,
    /// Innermost first.
    dims: Vec<u64>,
    offset: u64,
}

fn read_infos<'a>(rest: &mut &'a [u8], tensors: u64) -> Result<Vec<Raw<'a>>, Problem> {
    let mut infos = Vec::with_capacity(tensors as usize);
    let mut seen = HashSet::new();
    for number in 0..tensors {
        let name = name(rest, "tensor name", number)?;
        if name.is_empty() {
            return Err(Problem::NoName { number });
        }
        if !seen.insert(name) {
            return Err(Problem::DuplicateTensor { tensor: name.to_owned() });
        }
        let wrong = |fault, left| Problem::of(fault, format!("tensor '{name}'"), left);
        let n_dims = u32::from_le_bytes(fixed(rest).map_err(|fault| wrong(fault, rest.len()))?);
        if n_dims == 0 || n_dims > MAX_DIMS {
            return Err(Problem::Dims { tensor: name.to_owned(), n_dims, limit: MAX_DIMS });
        }
        let mut dims = Vec::with_capacity(n_dims as usize);
        for _ in 0..n_dims {
            let dim = fixed(rest).map_err(|fault| wrong(fault, rest.len()))?;
            dims.push(u64::from_le_bytes(dim));
        }
        let code = u32::from_le_bytes(fixed(rest).map_err(|fault| wrong(fault, rest.len()))?);
        let tensor_type = TensorType::from_code(code)
            .ok_or_else(|| Problem::TensorType { tensor: name.to_owned(), code })?;
        let offset = u64::from_le_bytes(fixed(rest).map_err(|fault| wrong(fault, rest.len()))?);
        infos.push(Raw { name, tensor_type, dims, offset });
    }
    Ok(infos)
}

impl<'a> Raw<'a> {
    fn check(self, data: u64, alignment: u64, len: u64) -> Result<Info<'a>, Problem> {
        let tensor = || self.name.to_owned();
        let count = self.dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim));
        let Some(count) = count.filter(|&count| count > 0) else {
            return Err(Problem::Shape { tensor: tensor(), dims: self.dims });
        };
        let per_block = self.tensor_type.block_weights();
        let inner = self.dims.first().copied().unwrap_or(0);
        if !inner.is_multiple_of(per_block) {
            let tensor_type = self.tensor_type.name();
            return Err(Problem::Block { tensor: tensor(), tensor_type, inner, per_block });
        }
        let Some(bytes) = self.tensor_type.bytes(count) else {
            return Err(Problem::Shape { tensor: tensor(), dims: self.dims });
        };
        if !self.offset.is_multiple_of(alignment) {
            return Err(Problem::Unaligned { tensor: tensor(), offset: self.offset, alignment });
        }
        let start = data.checked_add(self.offset);
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start.map(usize::try_from), end.filter(|&end| end <= len).map(usize::try_from)) {
            (Some(Ok(start)), Some(Ok(end))) => Ok(Info {
                name: self.name,
                tensor_type: self.tensor_type,
                shape: self.dims.into_iter().rev().collect(),
                range: start..end,
            }),
            _ => Err(Problem::Outside {
                tensor: tensor(),
                offset: self.offset,
                bytes,
                available: len.saturating_sub(data),
            }),
        }
    }
}

/// Whether two tensors share bytes.
fn check_overlap(infos: &[Info<'_>], data: u64) -> Result<(), Problem> {
    let mut order: Vec<&Info<'_>> = infos.iter().collect();
    order.sort_by_key(|info| (info.range.start, info.range.end));
    for (first, second) in order.iter().zip(order.iter().skip(1)) {
        if second.range.start < first.range.end {
            return Err(Problem::Overlap {
                tensor: second.name.to_owned(),
                start: (second.range.start as u64).saturating_sub(data),
                previous: first.name.to_owned(),
                end: (first.range.end as u64).saturating_sub(data),
            });
        }
    }
    Ok(())
}

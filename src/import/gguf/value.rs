//! The values of GGUF metadata, borrowed from the file they stand in.

/// A value with its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// An unsigned number, and its bits.
    Unsigned(u64, u32),
    /// A signed number, and its bits.
    Signed(i64, u32),
    /// A binary32.
    F32(f32),
    /// A binary64.
    F64(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(&'a str),
    /// A list of values of one type.
    Array(Array<'a>),
}

/// A list whose elements were checked when the file was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Array<'a> {
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    pub(super) bytes: &'a [u8],
}

/// The types of values, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

/// Kind and name, at the place of its number in the file.
const KINDS: [(Kind, &str); 13] = [
    (Kind::U8, "UINT8"),
    (Kind::I8, "INT8"),
    (Kind::U16, "UINT16"),
    (Kind::I16, "INT16"),
    (Kind::U32, "UINT32"),
    (Kind::I32, "INT32"),
    (Kind::F32, "FLOAT32"),
    (Kind::Bool, "BOOL"),
    (Kind::Text, "STRING"),
    (Kind::Array, "ARRAY"),
    (Kind::U64, "UINT64"),
    (Kind::I64, "INT64"),
    (Kind::F64, "FLOAT64"),
];

impl Kind {
    pub(super) fn from_code(code: u32) -> Option<Self> {
        KINDS.get(code as usize).map(|(kind, _)| *kind)
    }

    /// The name the format gives it.
    pub(crate) fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| *name)
    }

    /// Bytes of a value, or the fewest it can have.
    pub(super) fn least_bytes(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text => 8,
            Kind::Array => 12,
        }
    }
}

impl<'a> Value<'a> {
    /// The name of its type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Unsigned(_, bits) => match bits {
                8 => "UINT8",
                16 => "UINT16",
                32 => "UINT32",
                _ => "UINT64",
            },
            Value::Signed(_, bits) => match bits {
                8 => "INT8",
                16 => "INT16",
                32 => "INT32",
                _ => "INT64",
            },
            Value::F32(_) => "FLOAT32",
            Value::F64(_) => "FLOAT64",
            Value::Bool(_) => "BOOL",
            Value::Text(_) => "STRING",
            Value::Array(_) => "ARRAY",
        }
    }

    /// A whole number that is not negative, whatever its width.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(value, _) => Some(value),
            Value::Signed(value, _) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// A number.
    pub(crate) fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(value) => Some(f64::from(value)),
            Value::F64(value) => Some(value),
            Value::Unsigned(value, _) => Some(value as f64),
            Value::Signed(value, _) => Some(value as f64),
            Value::Bool(_) | Value::Text(_) | Value::Array(_) => None,
        }
    }

    /// Short and printable: for messages and for the notes of an archive.
    pub(crate) fn brief(&self) -> String {
        let text = match self {
            Value::Unsigned(value, _) => return value.to_string(),
            Value::Signed(value, _) => return value.to_string(),
            Value::F32(value) => return value.to_string(),
            Value::F64(value) => return value.to_string(),
            Value::Bool(value) => return value.to_string(),
            Value::Array(array) => return format!("{} values of {}", array.len, array.kind.name()),
            Value::Text(text) => text,
        };
        let mut brief: String = text.chars().take(60).collect();
        if brief.len() < text.len() {
            brief.push('…');
        }
        format!("{brief:?}")
    }
}

impl<'a> Array<'a> {
    /// The elements, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut bytes = self.bytes;
        let kind = self.kind;
        (0..self.len).map_while(move |_| scalar(kind, &mut bytes).ok())
    }
}

/// Why a value could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Fewer bytes than it needs: how many it needs.
    Cut(u64),
    /// A text that is not UTF-8.
    NotUtf8,
    /// A truth value that is neither 0 nor 1.
    NotBool(u8),
    /// A list inside a list.
    Nested,
}

/// Takes bytes off the front.
pub(super) fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Result<&'a [u8], Fault> {
    let taken = usize::try_from(count).ok().and_then(|count| bytes.split_at_checked(count));
    let (taken, rest) = taken.ok_or(Fault::Cut(count))?;
    *bytes = rest;
    Ok(taken)
}

/// Takes bytes of a known number off the front.
pub(super) fn fixed<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(Fault::Cut(N as u64))?;
    *bytes = rest;
    Ok(*taken)
}

/// Takes a length and as many bytes of UTF-8 off the front.
pub(super) fn text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, Fault> {
    let len = u64::from_le_bytes(fixed(bytes)?);
    std::str::from_utf8(take(bytes, len)?).map_err(|_| Fault::NotUtf8)
}

/// Takes one value that is not a list off the front.
pub(super) fn scalar<'a>(kind: Kind, bytes: &mut &'a [u8]) -> Result<Value<'a>, Fault> {
    Ok(match kind {
        Kind::U8 => Value::Unsigned(fixed::<1>(bytes)?[0].into(), 8),
        Kind::I8 => Value::Signed(i8::from_le_bytes(fixed(bytes)?).into(), 8),
        Kind::U16 => Value::Unsigned(u16::from_le_bytes(fixed(bytes)?).into(), 16),
        Kind::I16 => Value::Signed(i16::from_le_bytes(fixed(bytes)?).into(), 16),
        Kind::U32 => Value::Unsigned(u32::from_le_bytes(fixed(bytes)?).into(), 32),
        Kind::I32 => Value::Signed(i32::from_le_bytes(fixed(bytes)?).into(), 32),
        Kind::U64 => Value::Unsigned(u64::from_le_bytes(fixed(bytes)?), 64),
        Kind::I64 => Value::Signed(i64::from_le_bytes(fixed(bytes)?), 64),
        Kind::F32 => Value::F32(f32::from_le_bytes(fixed(bytes)?)),
        Kind::F64 => Value::F64(f64::from_le_bytes(fixed(bytes)?)),
        Kind::Bool => match fixed::<1>(bytes)?[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            other => return Err(Fault::NotBool(other)),
        },
        Kind::Text => Value::Text(text(bytes)?),
        Kind::Array => return Err(Fault::Nested),
    })
}

//! Header and page table of a version-0 archive, from the bytes of the whole file.

use std::ops::Range;

use super::{MAGIC, Problem};

/// Bytes of the header.
pub(super) const HEADER_BYTES: u64 = 88;
/// The shortest record: an id of one byte.
pub(super) const MIN_RECORD_BYTES: u64 = 63;
/// The longest id.
pub(super) const MAX_ID_BYTES: usize = 4096;
/// A manifest above this is refused before it is parsed; those of the largest models have 45 MB.
pub(super) const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Where the parts of a file lie, checked to lie inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) manifest_len: u64,
    pub(super) table_off: u64,
    pub(super) count: u64,
    pub(super) data_off: u64,
}

/// A page-table record.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) offset: u64,
    pub(super) stored: u64,
    pub(super) raw: u64,
    pub(super) flags: u32,
    pub(super) hash: [u8; 32],
}

impl Record {
    /// Its bytes, if the numbers can be those of bytes in memory.
    pub(super) fn range(&self) -> Option<Range<usize>> {
        let end = self.offset.checked_add(self.stored)?;
        Some(usize::try_from(self.offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// Reads numbers one after the other.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

impl Header {
    /// Reads and checks the header.
    pub(super) fn parse(file: &[u8]) -> Result<Self, Problem> {
        let len = file.len() as u64;
        let mut cursor = Cursor { rest: file };
        let mut read = || {
            let (magic, header_len, version) = (cursor.array()?, cursor.u32()?, cursor.u32()?);
            let (manifest_off, manifest_len) = (cursor.u64()?, cursor.u64()?);
            let (table_off, count, data_off) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            let reserved: [u8; 32] = cursor.array()?;
            let header = Header { manifest_len, table_off, count, data_off };
            Some((magic, header_len, version, manifest_off, header, reserved))
        };
        let fields = read().ok_or(Problem::TooShort { len })?;
        let (magic, header_len, version, manifest_off, header, reserved) = fields;
        let Header { manifest_len, table_off, count, .. } = header;
        if magic != MAGIC {
            return Err(Problem::Magic);
        }
        if u64::from(header_len) != HEADER_BYTES {
            return Err(Problem::field("length", header_len.into(), HEADER_BYTES));
        }
        if version != 0 {
            return Err(Problem::field("version", version.into(), 0));
        }
        if manifest_off != HEADER_BYTES {
            return Err(Problem::field("manifest offset", manifest_off, HEADER_BYTES));
        }
        let end = HEADER_BYTES.checked_add(manifest_len).filter(|&end| end <= len);
        let Some(end) = end else {
            return Err(Problem::ManifestOutside { manifest_len, len });
        };
        if manifest_len > MAX_MANIFEST_BYTES {
            return Err(Problem::ManifestTooLong { manifest_len });
        }
        if table_off != end {
            return Err(Problem::field("page table offset", table_off, end));
        }
        let fits = (len - end) / MIN_RECORD_BYTES;
        if count > fits {
            return Err(Problem::Count { count, fits });
        }
        if reserved != [0; 32] {
            return Err(Problem::Reserved);
        }
        Ok(header)
    }

    /// The bytes of the manifest.
    pub(super) fn manifest<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        let end = (HEADER_BYTES + self.manifest_len) as usize;
        file.get(HEADER_BYTES as usize..end).unwrap_or_default()
    }
}

/// Reads the page table, which ends where the data starts.
pub(super) fn table(file: &[u8], header: &Header) -> Result<Vec<Record>, Problem> {
    let start = header.table_off as usize; // inside the file, as the header's check says
    let mut cursor = Cursor { rest: file.get(start..).unwrap_or_default() };
    let mut records = Vec::new();
    for position in 0..header.count {
        let cut = Problem::RecordCut { position, len: file.len() as u64 };
        let Some(length) = cursor.u16() else {
            return Err(cut);
        };
        let length = usize::from(length);
        if length == 0 || length > MAX_ID_BYTES {
            return Err(Problem::IdLength { position, length });
        }
        let Some(id) = cursor.take(length) else {
            return Err(cut);
        };
        let Ok(id) = std::str::from_utf8(id) else {
            return Err(Problem::IdText { position });
        };
        let id = id.to_owned();
        let record = || {
            let (offset, stored, raw) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            let (flags, hash) = (cursor.u32()?, cursor.array()?);
            Some(Record { id, offset, stored, raw, flags, hash })
        };
        match record() {
            Some(record) => records.push(record),
            None => return Err(cut),
        }
    }
    let end = (file.len() - cursor.rest.len()) as u64;
    if header.data_off != end {
        return Err(Problem::field("data offset", header.data_off, end));
    }
    Ok(records)
}

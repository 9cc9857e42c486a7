//! The page table: 128 bytes a record, and the place of each page in the file.
//!
//! Decoding refuses what version 1 keeps zero and codes it does not know; whether records agree with each
//! other and with the manifest is the business of [`check`](super::check).

use super::header::first_not_zero;
use super::{Error, NONE, PAGE_ALIGN, PageRecord, RECORD_SIZE, role::role_of, round_up};
use crate::quant::Format;

/// Bytes of a record that mean something; zeros follow.
const USED: usize = 96;

/// Little-endian numbers taken from the front of a slice; `None` where it is too short.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Reads the records of a whole table.
///
/// **Errors**: an unknown role or format, or a field that must be zero; each names the page.
pub fn decode(bytes: &[u8]) -> Result<Vec<PageRecord>, Error> {
    let chunks = bytes.chunks_exact(RECORD_SIZE as usize);
    let mut records = Vec::with_capacity(chunks.len());
    for (page, record) in chunks.enumerate() {
        records.push(decode_record(page as u32, record)?);
    }
    Ok(records)
}

/// Writes the records; `raw_len` is `stored_len`.
#[must_use]
pub fn encode(records: &[PageRecord]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(records.len() * RECORD_SIZE as usize);
    for record in records {
        let end = bytes.len() + RECORD_SIZE as usize;
        for field in [
            record.id,
            record.role.code(),
            record.layer.unwrap_or(NONE),
            record.expert.unwrap_or(NONE),
        ] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&record.format.code().to_le_bytes());
        bytes.extend_from_slice(&record.layout.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        for field in [record.offset, record.stored_len, record.stored_len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&record.hash);
        for field in [record.descriptor, record.part, record.first_row, record.rows] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.resize(end, 0);
    }
    bytes
}

/// Gives each page its place, the first at `data_off`, each next at the following multiple of 4,096, and
/// returns the length of the file. `None` where that overflows.
#[must_use]
pub fn place(records: &mut [PageRecord], data_off: u64) -> Option<u64> {
    let mut offset = data_off;
    for record in records {
        record.offset = offset;
        offset = round_up(offset.checked_add(record.stored_len)?, PAGE_ALIGN)?;
    }
    Some(offset)
}

fn decode_record(page: u32, bytes: &[u8]) -> Result<PageRecord, Error> {
    let short = || Error::RecordField {
        page,
        field: "record_size",
        found: bytes.len() as u64,
        needed: RECORD_SIZE,
    };
    let mut fields = Fields(bytes);
    let id = fields.u32().ok_or_else(short)?;
    let role = fields.u32().ok_or_else(short)?;
    let layer = fields.u32().ok_or_else(short)?;
    let expert = fields.u32().ok_or_else(short)?;
    let format = fields.u16().ok_or_else(short)?;
    let layout = fields.u16().ok_or_else(short)?;
    let flags = fields.u32().ok_or_else(short)?;
    let offset = fields.u64().ok_or_else(short)?;
    let stored_len = fields.u64().ok_or_else(short)?;
    let raw_len = fields.u64().ok_or_else(short)?;
    let hash = fields.take::<32>().ok_or_else(short)?;
    let descriptor = fields.u32().ok_or_else(short)?;
    let part = fields.u32().ok_or_else(short)?;
    let first_row = fields.u32().ok_or_else(short)?;
    let rows = fields.u32().ok_or_else(short)?;
    debug_assert_eq!(bytes.len() - fields.0.len(), USED);

    for (field, found, needed) in [
        ("flags", u64::from(flags), 0),
        ("raw_len", raw_len, stored_len),
        ("reserved bytes", first_not_zero(fields.0).map_or(0, |(_, byte)| u64::from(byte)), 0),
    ] {
        if found != needed {
            return Err(Error::RecordField { page, field, found, needed });
        }
    }
    Ok(PageRecord {
        id,
        role: role_of(page, role)?,
        layer: (layer != NONE).then_some(layer),
        expert: (expert != NONE).then_some(expert),
        format: Format::from_code(format).ok_or(Error::UnknownFormat { page, code: format })?,
        layout,
        offset,
        stored_len,
        hash,
        descriptor,
        part,
        first_row,
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    fn record() -> PageRecord {
        PageRecord {
            id: 5,
            role: Role::ExpertDown,
            layer: Some(2),
            expert: None,
            format: Format::BF16,
            layout: 0,
            offset: 8192,
            stored_len: 300,
            hash: [9; 32],
            descriptor: 4,
            part: 3,
            first_row: 64,
            rows: 7,
        }
    }

    #[test]
    fn record_round_trips_and_has_its_fields_where_the_layout_says() {
        let bytes = encode(&[record()]);

        assert_eq!(bytes.len(), 128);
        assert_eq!(bytes[0..4], 5u32.to_le_bytes());
        assert_eq!(bytes[12..16], [0xff; 4]);
        assert_eq!(bytes[16..18], 3u16.to_le_bytes());
        assert_eq!(bytes[24..32], 8192u64.to_le_bytes());
        assert_eq!(bytes[40..48], 300u64.to_le_bytes());
        assert_eq!(bytes[48..80], [9; 32]);
        assert_eq!(bytes[92..96], 7u32.to_le_bytes());
        assert_eq!(decode(&bytes).expect("own bytes"), [record()]);
    }

    #[test]
    fn record_with_flags_other_raw_len_or_reserved_bytes_is_refused_by_field() {
        for (at, field) in [(20, "flags"), (40, "raw_len"), (127, "reserved bytes")] {
            let mut bytes = encode(&[record()]);
            bytes[at] ^= 1;

            let error = decode(&bytes).expect_err(field);

            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn record_with_unknown_role_or_format_is_refused_with_the_code() {
        let mut bytes = encode(&[record()]);
        bytes[4] = 200;
        let error = decode(&bytes).expect_err("role");
        assert_eq!(error.to_string(), "page 0 has role 200, which this version does not know");

        let mut bytes = encode(&[record()]);
        bytes[16] = 201;
        let error = decode(&bytes).expect_err("format");
        assert_eq!(error.to_string(), "page 0 has format 201, which this version does not know");
    }

    #[test]
    fn pages_are_placed_at_multiples_of_4096_and_overflow_is_none() {
        let mut records = [record(), record()];
        records[1].stored_len = 4096;

        assert_eq!(place(&mut records, 4096), Some(12_288));
        assert_eq!(records[1].offset, 8192);

        records[1].stored_len = u64::MAX;
        assert_eq!(place(&mut records, 4096), None);
    }
}

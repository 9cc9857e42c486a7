//! The first 4,096 bytes of an archive: where manifest, page table and pages lie, and the hash of the first
//! two. Decoding refuses every value a writer would not have given, so that later code can add the numbers
//! without fear. Start at [`Header::decode`].

use super::table::Fields;
use super::{
    Error, Hash, MAGIC, MAX_MANIFEST_BYTES, MAX_PAGES, PAGE_ALIGN, RECORD_SIZE, VERSION, round_up,
};

/// Bytes of the header.
pub const HEADER_BYTES: u64 = 4096;
/// Where the archive hash lies in it.
const HASH_AT: usize = 64;
/// Where the zeros begin.
const ZERO_AT: usize = 96;

/// The header's numbers. The manifest follows the header, the table the manifest, the pages the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the manifest region, padding included: a multiple of 4,096.
    pub manifest_len: u64,
    /// Pages.
    pub count: u32,
    /// Bytes of the whole file.
    pub file_len: u64,
    /// BLAKE3 of this header with the hash zero, the manifest region and the page table.
    pub archive_hash: Hash,
}

impl Header {
    /// Reads the header of `file` from its first bytes; `bytes` may be shorter or longer than a header.
    ///
    /// **Errors**: another kind of file, another version, a cut header, or a field no writer would set.
    pub fn decode(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let bytes = bytes.get(..HEADER_BYTES as usize).unwrap_or(bytes);
        let cut_magic = !bytes.is_empty() && MAGIC.starts_with(bytes);
        if !bytes.starts_with(&MAGIC) && !cut_magic {
            return Err(Error::Magic { file: file.into(), found: Found::of(bytes) });
        }
        let mut fields = Fields(bytes);
        let cut = || Error::FrontCut {
            file: file.into(),
            what: "header",
            end: HEADER_BYTES,
            len: bytes.len() as u64,
        };
        fields.take::<8>().ok_or_else(cut)?;
        let version = fields.u32().ok_or_else(cut)?;
        if version != VERSION {
            return Err(Error::Version { file: file.into(), found: version, known: VERSION });
        }
        if (bytes.len() as u64) < HEADER_BYTES {
            return Err(cut());
        }
        let flags = fields.u32().ok_or_else(cut)?;
        let manifest_off = fields.u64().ok_or_else(cut)?;
        let manifest_len = fields.u64().ok_or_else(cut)?;
        let table_off = fields.u64().ok_or_else(cut)?;
        let record_size = fields.u32().ok_or_else(cut)?;
        let count = fields.u32().ok_or_else(cut)?;
        let file_len = fields.u64().ok_or_else(cut)?;
        let zero = fields.u64().ok_or_else(cut)?;
        let archive_hash = fields.take::<32>().ok_or_else(cut)?;
        if let Some((at, byte)) = first_not_zero(fields.0) {
            return Err(Error::NotZero {
                file: file.into(),
                what: "the rest of the header",
                at: (ZERO_AT + at) as u64,
                byte,
            });
        }

        let header = Header { manifest_len, count, file_len, archive_hash };
        let longest = MAX_MANIFEST_BYTES.min(file_len);
        let aligned = round_up(manifest_len, PAGE_ALIGN).unwrap_or(0);
        for (field, found, needed, right) in [
            ("flags", u64::from(flags), 0, flags == 0),
            ("zero", zero, 0, zero == 0),
            ("manifest_off", manifest_off, HEADER_BYTES, manifest_off == HEADER_BYTES),
            (
                "record_size",
                u64::from(record_size),
                RECORD_SIZE,
                u64::from(record_size) == RECORD_SIZE,
            ),
            ("count", u64::from(count), u64::from(MAX_PAGES), count <= MAX_PAGES),
            // The limit first: everything after it can be added without overflow.
            ("manifest_len", manifest_len, longest, manifest_len <= longest),
            (
                "manifest_len",
                manifest_len,
                aligned.max(PAGE_ALIGN),
                manifest_len == aligned && manifest_len > 0,
            ),
        ] {
            if !right {
                return Err(Error::HeaderField { file: file.into(), field, found, needed });
            }
        }
        for (field, found, needed, right) in [
            ("table_off", table_off, header.table_off(), table_off == header.table_off()),
            ("file_len", file_len, header.data_off(), file_len >= header.data_off()),
        ] {
            if !right {
                return Err(Error::HeaderField { file: file.into(), field, found, needed });
            }
        }
        Ok(header)
    }

    /// The 4,096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&HEADER_BYTES.to_le_bytes());
        bytes.extend_from_slice(&self.manifest_len.to_le_bytes());
        bytes.extend_from_slice(&self.table_off().to_le_bytes());
        bytes.extend_from_slice(&(RECORD_SIZE as u32).to_le_bytes());
        bytes.extend_from_slice(&self.count.to_le_bytes());
        bytes.extend_from_slice(&self.file_len.to_le_bytes());
        bytes.extend_from_slice(&0u64.to_le_bytes());
        debug_assert_eq!(bytes.len(), HASH_AT, "fields before the hash");
        bytes.extend_from_slice(&self.archive_hash);
        bytes.resize(HEADER_BYTES as usize, 0);
        bytes
    }

    /// Where the page table starts.
    #[must_use]
    pub fn table_off(&self) -> u64 {
        HEADER_BYTES + self.manifest_len
    }

    /// Bytes of the page table, without the zeros that follow it.
    #[must_use]
    pub fn table_len(&self) -> u64 {
        u64::from(self.count) * RECORD_SIZE
    }

    /// Where the first page starts.
    #[must_use]
    pub fn data_off(&self) -> u64 {
        (self.table_off() + self.table_len()).next_multiple_of(PAGE_ALIGN)
    }

    /// The hash that `archive_hash` should be.
    #[must_use]
    pub fn hash(&self, manifest: &[u8], table: &[u8]) -> Hash {
        let unhashed = Header { archive_hash: [0; 32], ..*self };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&unhashed.encode());
        hasher.update_rayon(manifest);
        hasher.update_rayon(table);
        *hasher.finalize().as_bytes()
    }
}

/// Position and value of the first byte that is not zero.
pub(super) fn first_not_zero(bytes: &[u8]) -> Option<(usize, u8)> {
    bytes.iter().position(|&byte| byte != 0).and_then(|at| bytes.get(at).map(|&byte| (at, byte)))
}

/// What a file that is no archive looks like. Displayed as the end of "it ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Found {
    /// No bytes at all.
    #[error("is empty")]
    Empty,
    /// Zeros where the header belongs: an archive whose writing never ended.
    #[error("starts with zeros, as a file does whose writing or download never ended")]
    Unfinished,
    /// An archive of the first format.
    #[error("is a .thin archive of format version 0")]
    Version0,
    /// A later archive with another magic.
    #[error("is a .thin archive of format version {0}, and this program reads version {VERSION}")]
    Newer(u8),
    /// GGUF.
    #[error("is a GGUF file")]
    Gguf,
    /// A safetensors header: a length, then `{`.
    #[error("is a safetensors file")]
    Safetensors,
    /// A zip, which `.pt` and `.npz` files are too.
    #[error("is a zip file, as PyTorch checkpoints are")]
    Zip,
    /// A web page saved under the wrong name.
    #[error("is a web page")]
    Html,
    /// What git leaves in place of a large file.
    #[error("is a Git-LFS pointer, not the file it points to")]
    LfsPointer,
    /// A JSON document.
    #[error("is a JSON text")]
    Json,
    /// None of these.
    #[error("starts with {}", printable(.0))]
    Unknown([u8; 8]),
}

impl Found {
    /// Recognises a file by its first bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let text: Vec<u8> = bytes
            .iter()
            .copied()
            .skip_while(|byte| byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf))
            .take(16)
            .map(|byte| byte.to_ascii_lowercase())
            .collect();
        if bytes.is_empty() {
            return Found::Empty;
        }
        if let Some(&digit) = bytes.get(5)
            && bytes.starts_with(b"THINv")
            && digit.is_ascii_digit()
        {
            return match digit - b'0' {
                0 => Found::Version0,
                version => Found::Newer(version),
            };
        }
        if bytes.starts_with(b"GGUF") {
            return Found::Gguf;
        }
        if bytes.starts_with(b"PK\x03\x04") {
            return Found::Zip;
        }
        if bytes.starts_with(b"version https://git-lfs") {
            return Found::LfsPointer;
        }
        if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
            return Found::Html;
        }
        let mut fields = Fields(bytes);
        if let Some(length) = fields.u64()
            && (2..=100_000_000).contains(&length)
            && fields.0.first() == Some(&b'{')
        {
            return Found::Safetensors;
        }
        if text.starts_with(b"{") || text.starts_with(b"[") {
            return Found::Json;
        }
        let mut first = [0; 8];
        for (to, from) in first.iter_mut().zip(bytes) {
            *to = *from;
        }
        if bytes.len() >= 8 && first == [0; 8] {
            return Found::Unfinished;
        }
        Found::Unknown(first)
    }

    /// What the user could do about it.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Found::Empty | Found::Unfinished | Found::Html => {
                Some("the download failed or is incomplete; fetch the file again")
            }
            Found::Version0 => Some("convert it with 'thin convert OLD.thin -o NEW.thin'"),
            Found::Newer(_) => Some("a newer version of this program reads it"),
            Found::Gguf => Some("convert it with 'thin convert FILE.gguf -o FILE.thin'"),
            Found::Safetensors => {
                Some("give the folder it lies in to 'thin convert FOLDER -o FILE.thin'")
            }
            Found::Zip => Some("only safetensors and GGUF checkpoints can be converted"),
            Found::LfsPointer => Some("fetch the file itself with 'git lfs pull'"),
            Found::Json | Found::Unknown(_) => None,
        }
    }
}

/// Bytes as text where they are text, else as hex.
fn printable(bytes: &[u8; 8]) -> String {
    if bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return format!("'{}'", String::from_utf8_lossy(bytes));
    }
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("the bytes {}", digits.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { manifest_len: 8192, count: 33, file_len: 65_536, archive_hash: [7; 32] }
    }

    #[test]
    fn header_round_trips() {
        let bytes = header().encode();

        assert_eq!(bytes.len(), 4096);
        assert_eq!(Header::decode("a.thin", &bytes).expect("own bytes"), header());
        // 4,096 + 8,192 + 33 * 128 = 16,512, and the next multiple of 4,096 is 20,480.
        assert_eq!(header().data_off(), 20_480);
    }

    #[test]
    fn header_with_any_byte_changed_is_refused_or_hashes_differently() {
        let good = header().encode();
        let hash = header().hash(b"m", b"t");

        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;

            if let Ok(decoded) = Header::decode("a.thin", &bad) {
                let stated_differently = decoded.archive_hash != header().archive_hash;
                assert!(stated_differently || decoded.hash(b"m", b"t") != hash, "byte {at}");
            }
        }
    }

    #[test]
    fn header_cut_anywhere_is_refused() {
        let good = header().encode();

        for len in 0..good.len() {
            assert!(Header::decode("a.thin", &good[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn header_field_that_overflows_is_refused_by_name() {
        for (at, field) in [(24, "manifest_len"), (32, "table_off"), (48, "file_len")] {
            let mut bad = header().encode();
            bad[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            if field == "file_len" {
                // A huge file is not a contradiction of the header; the reader compares it with the file.
                assert!(Header::decode("a.thin", &bad).is_ok());
                continue;
            }

            let error = Header::decode("a.thin", &bad).expect_err("overflow");

            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn other_kinds_of_file_are_named() {
        let cases: [(&[u8], &str); 12] = [
            (b"", "'x' is not a .thin archive: it is empty"),
            (b"GGUF\x03\0\0\0", "it is a GGUF file"),
            (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "it is a safetensors file"),
            (b"PK\x03\x04....", "it is a zip file"),
            (b"\n<!DOCTYPE html><html>", "it is a web page"),
            (b"<html>", "it is a web page"),
            (b"version https://git-lfs.github.com/spec/v1", "Git-LFS pointer"),
            (b"THINv0\0\0", "format version 0"),
            (b"THINv2\0\0", "format version 2, and this program reads version 1"),
            (b"{\"a\": 1}", "JSON"),
            (b"\0\0\0\0\0\0\0\0\0", "never ended"),
            (b"hello world", "it starts with 'hello wo'"),
        ];
        for (bytes, text) in cases {
            let error = Header::decode("x", bytes).expect_err("no archive");
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_newer_version_is_named_with_both_numbers() {
        let mut bad = header().encode();
        bad[8] = 2;

        let error = Header::decode("x.thin", &bad).expect_err("newer");

        assert_eq!(
            error.to_string(),
            "'x.thin' has .thin format version 2, and this program reads version 1"
        );
    }
}

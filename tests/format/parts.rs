//! An archive taken apart and put together again with the right hashes, so that lies reach the deeper checks.

use thintensor::format::header::{HEADER_BYTES, Header};
use thintensor::format::manifest::Manifest;
use thintensor::format::{PageRecord, table};

use crate::double::Model;

/// An archive taken apart; [`Parts::bytes`] puts it together with the right hashes.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) header: Header,
    /// JSON and what follows it in the region.
    pub(crate) manifest: Vec<u8>,
    pub(crate) records: Vec<PageRecord>,
    /// Everything from the page table's end on.
    pub(crate) rest: Vec<u8>,
}

impl Parts {
    pub(crate) fn of(model: &Model) -> Self {
        let folder = tempfile::tempdir().expect("scratch folder");
        model.write(folder.path(), "m.thin");
        let bytes = std::fs::read(folder.path().join("m.thin")).expect("there");
        let header = Header::decode("m.thin", &bytes).expect("own bytes");
        let table = header.table_off() as usize..(header.table_off() + header.table_len()) as usize;
        Parts {
            manifest: bytes[HEADER_BYTES as usize..table.start].to_vec(),
            records: table::decode(&bytes[table.clone()]).expect("own bytes"),
            rest: bytes[table.end..].to_vec(),
            header,
        }
    }

    pub(crate) fn manifest(&self) -> Manifest {
        Manifest::decode("m.thin", &self.manifest).expect("own bytes")
    }

    pub(crate) fn set_manifest(&mut self, text: &[u8]) {
        let len = self.manifest.len();
        self.manifest = text.to_vec();
        assert!(text.len() <= len, "the region has room for small changes");
        self.manifest.resize(len, b' ');
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut table = table::encode(&self.records);
        let mut header = self.header.clone();
        header.archive_hash = header.hash(&self.manifest, &table);
        let mut bytes = header.encode();
        bytes.extend_from_slice(&self.manifest);
        bytes.append(&mut table);
        bytes.extend_from_slice(&self.rest);
        bytes
    }
}

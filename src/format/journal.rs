//! The file beside an unfinished archive that says which of its pages are done, and for which plan.
//!
//! `"THINJRN1"`, the plan's fingerprint, then 36 bytes a page: id and hash. An entry is appended after its
//! page was written. That order alone does not survive a power cut, so nobody believes an entry: the writer
//! compares the bytes that are there with the page before it skips it. An entry cut short is dropped.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::{Error, Hash, PAGE_ALIGN, table::Fields};

const MAGIC: &[u8; 8] = b"THINJRN1";
const ENTRY_BYTES: u64 = 36;
const HEAD_BYTES: u64 = 40;

/// An open journal.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    /// Hashes of the pages an earlier run finished, by id.
    pub(super) done: Vec<Option<Hash>>,
}

impl Journal {
    /// Begins a journal, replacing what was there.
    pub(super) fn begin(path: &Path, fingerprint: &Hash) -> Result<Self, Error> {
        let io = |source| Error::Io { verb: "write", path: path.into(), source };
        let mut file = File::create(path).map_err(io)?;
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(fingerprint);
        file.write_all(&head).map_err(io)?;
        Ok(Journal { file, path: path.into(), done: Vec::new() })
    }

    /// Opens the journal of an earlier run on `count` pages; `Ok(None)` where it belongs to another plan.
    pub(super) fn resume(
        path: &Path,
        fingerprint: &Hash,
        count: usize,
    ) -> Result<Option<Self>, Error> {
        let io = |source| Error::Io { verb: "read", path: path.into(), source };
        let mut file = File::options().read(true).append(true).open(path).map_err(io)?;
        // Each resumed run may add an entry for every page; a longer file is not a journal of this plan.
        let most = HEAD_BYTES + ENTRY_BYTES * count as u64 + PAGE_ALIGN;
        let mut bytes = Vec::new();
        (&mut file).take(most).read_to_end(&mut bytes).map_err(io)?;
        let mut fields = Fields(&bytes);
        let same_plan = fields.take::<8>().as_ref() == Some(MAGIC)
            && fields.take::<32>().as_ref() == Some(fingerprint)
            && (bytes.len() as u64) < most;
        if !same_plan {
            return Ok(None);
        }
        let mut done = vec![None; count];
        let entries = fields.0.chunks_exact(ENTRY_BYTES as usize);
        let whole = HEAD_BYTES + entries.len() as u64 * ENTRY_BYTES;
        for entry in entries {
            let mut fields = Fields(entry);
            if let (Some(id), Some(hash)) = (fields.u32(), fields.take::<32>())
                && let Some(slot) = done.get_mut(id as usize)
            {
                *slot = Some(hash);
            }
        }
        file.set_len(whole).map_err(io)?;
        Ok(Some(Journal { file, path: path.into(), done }))
    }

    /// Notes that a page is written.
    pub(super) fn add(&mut self, page: u32, hash: &Hash) -> Result<(), Error> {
        let mut entry = page.to_le_bytes().to_vec();
        entry.extend_from_slice(hash);
        self.file.write_all(&entry).map_err(|source| Error::Io {
            verb: "write",
            path: self.path.clone(),
            source,
        })
    }

    /// Removes the journal: its archive is finished.
    pub(super) fn remove(self) -> Result<(), Error> {
        let Journal { file, path, .. } = self;
        drop(file);
        std::fs::remove_file(&path).map_err(|source| Error::Io { verb: "remove", path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_of_another_plan_is_refused_and_a_cut_entry_dropped() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("j");
        let mut journal = Journal::begin(&path, &[1; 32]).expect("writable");
        journal.add(0, &[5; 32]).expect("writable");
        journal.add(2, &[6; 32]).expect("writable");
        drop(journal);
        let len = std::fs::metadata(&path).expect("there").len();
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(len - 1))
            .expect("writable");

        assert!(Journal::resume(&path, &[2; 32], 3).expect("readable").is_none());
        let mut journal =
            Journal::resume(&path, &[1; 32], 3).expect("readable").expect("same plan");
        assert_eq!(journal.done, [Some([5; 32]), None, None]);

        journal.add(1, &[7; 32]).expect("writable");
        let resumed = Journal::resume(&path, &[1; 32], 3).expect("readable").expect("same plan");
        assert_eq!(resumed.done, [Some([5; 32]), Some([7; 32]), None]);
    }
}

//! Writes an archive from anything that has pages: packed on the fly, or another archive.
//!
//! Pages are packed on the calling thread while another hashes and writes the ones before, three buffers of
//! at most 32 MiB in all. Bytes go to `NAME.partial` in the target's folder; header, manifest and table are
//! written last, then the file is flushed and renamed, so that no file of the final name is ever incomplete.
//! A run that stops leaves `NAME.partial` and its journal; `resume` packs every page again, because the
//! source may have changed and its hashes must be known, but writes only those that are not there yet.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Instant;

use super::header::{HEADER_BYTES, Header};
use super::journal::Journal;
use super::reader::{gap_after, hash, read_exact_at};
use super::{
    Error, Event, Hash, MAX_MANIFEST_BYTES, MAX_PAGES, Manifest, Notice, PAGE_ALIGN, PageId,
    PageRecord, Pages, Progress, check, round_up, table,
};

/// Buffers between packing and writing: one being packed, one waiting, one being written.
const BUFFERS: usize = 3;
/// Room the manifest may grow by while its hashes become known: `true` may become `false`.
const MANIFEST_SLACK: u64 = 64;

/// How to write.
#[derive(Clone, Copy)]
pub struct WriteOptions<'a> {
    /// Replace an archive that exists.
    pub force: bool,
    /// Go on where an earlier run stopped.
    pub resume: bool,
    /// Told about bytes done, from another thread.
    pub progress: Progress<'a>,
    /// Set to stop after the page at hand.
    pub cancel: &'a AtomicBool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct WriteReport {
    /// Bytes of the archive.
    pub bytes: u64,
    /// Its pages.
    pub pages: u64,
    /// Pages found in place from an earlier run.
    pub pages_kept: u64,
    /// Time it took.
    pub seconds: f64,
}

/// Writes the archive of `pages` to `path`.
///
/// **Errors**: the target exists, the disk is full or refuses, the source fails or contradicts itself, or
/// the cancel flag was set.
pub fn write(
    pages: &dyn Pages,
    path: &Path,
    options: &WriteOptions<'_>,
) -> Result<WriteReport, crate::Error> {
    let start = Instant::now();
    let path = &target(path)?;
    let mut plan = Plan::new(pages, path)?;
    if !options.force && path.symlink_metadata().is_ok() {
        return Err(Error::Exists { path: path.into() }.into());
    }
    let mut partial = Partial::open(path, &plan, options)?;
    (options.progress)(Event::Start { bytes: plan.page_bytes() });
    let written = write_pages(pages, &plan, &mut partial, options)?;
    for (record, hash) in plan.records.iter_mut().zip(&written.hashes) {
        record.hash = *hash;
    }
    let manifest = pages.finish()?;
    check::none(&plan.file, check::contents(&manifest, &plan.records))?;
    // Placeholders that stayed would only be noticed when someone verifies the archive.
    if let Some(tensor) = manifest.tensors.iter().find(|tensor| tensor.hash == [0; 32]) {
        return Err(Error::NoTensorHash { file: plan.file, tensor: tensor.name.clone() }.into());
    }
    let front = plan.front(&manifest)?;
    partial.finish(path, &front)?;
    Ok(WriteReport {
        bytes: plan.file_len,
        pages: plan.records.len() as u64,
        pages_kept: written.kept,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Where a file of this name is written: through a symbolic link, to the file behind it.
///
/// **Errors**: [`Error::NotAFile`] where something else stands there; renaming over it would destroy it.
pub fn target(path: &Path) -> Result<PathBuf, Error> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    match path.metadata() {
        Ok(found) if !found.is_file() => Err(Error::NotAFile { path }),
        Ok(_) | Err(_) => Ok(path),
    }
}

/// Where everything will lie, known before the first page is packed.
struct Plan {
    /// The target's name, for messages.
    file: String,
    records: Vec<PageRecord>,
    manifest_len: u64,
    file_len: u64,
    fingerprint: Hash,
}

impl Plan {
    fn new(pages: &dyn Pages, path: &Path) -> Result<Self, Error> {
        let file = file_name(path);
        let mut records = pages.pages().to_vec();
        for record in &mut records {
            record.hash = [0; 32];
        }
        let mut placeholder = pages.manifest().clone();
        for tensor in &mut placeholder.tensors {
            tensor.hash = [0; 32];
        }
        placeholder.provenance.exact_storage_preserved = false;
        let text = placeholder.encode();

        let count = records.len() as u64;
        let too_many = || Error::TooManyPages {
            file: file.clone(),
            pages: count,
            limit: u64::from(MAX_PAGES),
        };
        if count > u64::from(MAX_PAGES) {
            return Err(too_many());
        }
        let manifest_len = round_up(text.len() as u64 + MANIFEST_SLACK, PAGE_ALIGN)
            .filter(|&len| len <= MAX_MANIFEST_BYTES)
            .ok_or_else(|| Error::ManifestGrew {
                file: file.clone(),
                found: text.len() as u64,
                reserved: MAX_MANIFEST_BYTES,
            })?;
        let mut header = Header {
            manifest_len,
            count: records.len() as u32,
            file_len: 0,
            archive_hash: [0; 32],
        };
        header.file_len = table::place(&mut records, header.data_off()).ok_or_else(too_many)?;
        let mut findings = check::placement(&records, &header);
        findings.extend(check::contents(&placeholder, &records));
        check::none(&file, findings)?;

        let mut hasher = blake3::Hasher::new();
        hasher.update(&text);
        hasher.update(&table::encode(&records));
        Ok(Plan {
            file,
            records,
            manifest_len,
            file_len: header.file_len,
            fingerprint: *hasher.finalize().as_bytes(),
        })
    }

    fn page_bytes(&self) -> u64 {
        self.records.iter().map(|record| record.stored_len).sum()
    }

    /// Header, manifest region, page table and the zeros behind it.
    fn front(&self, manifest: &Manifest) -> Result<Vec<u8>, Error> {
        let mut text = manifest.encode();
        if text.len() as u64 > self.manifest_len {
            return Err(Error::ManifestGrew {
                file: self.file.clone(),
                found: text.len() as u64,
                reserved: self.manifest_len,
            });
        }
        text.resize(self.manifest_len as usize, b' ');
        let table = table::encode(&self.records);
        let mut header = Header {
            manifest_len: self.manifest_len,
            count: self.records.len() as u32,
            file_len: self.file_len,
            archive_hash: [0; 32],
        };
        header.archive_hash = header.hash(&text, &table);
        let mut front = header.encode();
        front.extend_from_slice(&text);
        front.extend_from_slice(&table);
        front.resize(header.data_off() as usize, 0);
        Ok(front)
    }
}

/// The unfinished file and its journal.
struct Partial {
    file: File,
    path: PathBuf,
    journal: Journal,
}

impl Partial {
    fn open(target: &Path, plan: &Plan, options: &WriteOptions<'_>) -> Result<Self, Error> {
        let path = with_suffix(target, ".partial");
        let journal_path = with_suffix(target, ".partial.journal");
        let name = file_name(&path);
        let notice = |notice| (options.progress)(Event::Notice(notice));
        let existed = path.symlink_metadata().is_ok();
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|source| write_error(&path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(Error::Busy { path }),
            // Some network file systems have no locks; two writers there are the user's business.
            Err(std::fs::TryLockError::Error(_)) => {}
        }

        let mut earlier = None;
        if options.resume {
            if existed && journal_path.exists() {
                let count = plan.records.len();
                earlier = Journal::resume(&journal_path, &plan.fingerprint, count)?;
                notice(match &earlier {
                    Some(journal) => Notice::Resuming {
                        file: name,
                        pages: journal.done.iter().flatten().count(),
                        total: count,
                    },
                    None => Notice::PlanChanged { file: name },
                });
            } else {
                notice(Notice::NothingToResume { file: name });
            }
        } else if existed {
            notice(Notice::PartialReplaced { file: name });
        }

        if earlier.is_none() {
            file.set_len(0).map_err(|source| write_error(&path, source))?;
        }
        if let Some(free) = free_bytes(&path) {
            let needed = plan.file_len.saturating_sub(allocated(&file));
            if needed > free {
                if !existed {
                    let _ = std::fs::remove_file(&path);
                }
                return Err(Error::NoSpace { path: target.into(), needed, free });
            }
        }
        let journal = match earlier {
            Some(journal) => journal,
            None => Journal::begin(&journal_path, &plan.fingerprint)?,
        };
        file.set_len(plan.file_len).map_err(|source| write_error(&path, source))?;
        Ok(Partial { file, path, journal })
    }

    /// Stores a page unless it is there already, which is what this returns. `bytes` ends with the zeros
    /// behind the page; `old` is scratch space.
    fn store(
        &mut self,
        record: &PageRecord,
        hash: &Hash,
        bytes: &[u8],
        old: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        if self.journal.done.get(record.id as usize) == Some(&Some(*hash)) {
            old.resize(bytes.len(), 0);
            if read_exact_at(&self.file, record.offset, old).is_ok() && old == bytes {
                return Ok(true);
            }
        }
        write_all_at(&self.file, record.offset, bytes)
            .map_err(|source| write_error(&self.path, source))?;
        self.journal.add(record.id, hash)?;
        Ok(false)
    }

    /// Writes what comes before the pages and gives the file its final name.
    fn finish(self, target: &Path, front: &[u8]) -> Result<(), Error> {
        // The header goes last: until then the file starts with zeros, which no reader takes for an archive.
        let (header, rest) = front.split_at_checked(HEADER_BYTES as usize).unwrap_or((front, &[]));
        write_all_at(&self.file, HEADER_BYTES, rest)
            .and_then(|()| self.file.sync_all())
            .and_then(|()| write_all_at(&self.file, 0, header))
            .and_then(|()| self.file.sync_all())
            .map_err(|source| write_error(&self.path, source))?;
        drop(self.file);
        std::fs::rename(&self.path, target).map_err(|source| write_error(target, source))?;
        sync_folder(target)?;
        self.journal.remove()
    }
}

/// What came of the pages.
struct Written {
    hashes: Vec<Hash>,
    kept: u64,
}

/// Packs on this thread, hashes and writes on another.
fn write_pages(
    pages: &dyn Pages,
    plan: &Plan,
    partial: &mut Partial,
    options: &WriteOptions<'_>,
) -> Result<Written, crate::Error> {
    let path = partial.path.clone();
    let (full, packed) = sync_channel::<Vec<u8>>(1);
    let (empty, returned) = channel::<Vec<u8>>();
    for _ in 0..BUFFERS {
        // The receiver lives until the end of this function.
        let _ = empty.send(Vec::new());
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || store_all(plan, partial, &packed, &empty, options));
        let mut failed = None;
        for (record, id) in plan.records.iter().zip(0u32..) {
            // Both channels close only when the writer has failed; its error is the one to report.
            let Ok(mut buffer) = returned.recv() else {
                break;
            };
            if options.cancel.load(Ordering::Relaxed) {
                failed = Some(Error::Interrupted {
                    path,
                    pages: id as usize,
                    total: plan.records.len(),
                });
                break;
            }
            buffer.clear();
            buffer.resize(record.stored_len as usize, 0);
            if let Err(error) = pages.read(PageId(id), &mut buffer) {
                drop(full);
                let _ = writer.join();
                return Err(error);
            }
            buffer.resize(buffer.len() + gap_after(record) as usize, 0);
            if full.send(buffer).is_err() {
                break;
            }
        }
        drop(full);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        failed.map_or(Ok(written), |error| Err(error.into()))
    })
}

/// The writing half: takes pages in order until there are no more.
fn store_all(
    plan: &Plan,
    partial: &mut Partial,
    packed: &Receiver<Vec<u8>>,
    empty: &Sender<Vec<u8>>,
    options: &WriteOptions<'_>,
) -> Result<Written, Error> {
    let mut written = Written { hashes: Vec::with_capacity(plan.records.len()), kept: 0 };
    let mut bytes = 0;
    let mut old = Vec::new();
    for record in &plan.records {
        let Ok(buffer) = packed.recv() else {
            break;
        };
        let (page, _) =
            buffer.split_at_checked(record.stored_len as usize).unwrap_or((&buffer, &[]));
        let hash = hash(page);
        written.kept += u64::from(partial.store(record, &hash, &buffer, &mut old)?);
        written.hashes.push(hash);
        bytes += record.stored_len;
        (options.progress)(Event::Done { bytes });
        // The packer may have stopped already.
        let _ = empty.send(buffer);
    }
    Ok(written)
}

fn write_error(path: &Path, source: std::io::Error) -> Error {
    Error::Io { verb: "write", path: path.into(), source }
}

/// `NAME` and a suffix, in the same folder.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Makes a rename in the folder of `path` survive a power cut, where the system can.
pub(super) fn sync_folder(path: &Path) -> Result<(), Error> {
    #[cfg(unix)]
    {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|source| write_error(folder, source))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Bytes free to this user on the disk of `path`, where the system tells.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(path).ok()?;
        disk.f_bavail.checked_mul(disk.f_frsize)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Bytes of disk the file already takes: a file with holes takes less than its length.
fn allocated(file: &File) -> u64 {
    #[cfg(unix)]
    {
        file.metadata().map_or(0, |metadata| {
            std::os::unix::fs::MetadataExt::blocks(&metadata).saturating_mul(512)
        })
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        0
    }
}

/// Writes all of `bytes` from byte `offset` on, whatever the file's own position.
fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::write_all_at(file, bytes, offset);
    #[cfg(windows)]
    {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(file, rest, at) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    (_, rest) = rest.split_at(written);
                    at += written as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

//! Opens an archive and reads its pages: positioned reads from a file, or a slice compiled into the program.
//!
//! Opening reads header, manifest and page table, checks their hash and that they agree with each other and
//! with the length of the file; nothing is allocated before its size is known to lie inside the file. Pages
//! are hashed each time they are read. No memory map: a mapped file that someone truncates kills the process.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::header::{HEADER_BYTES, Header, first_not_zero};
use super::{Error, Manifest, PAGE_ALIGN, PageId, PageRecord, Pages, check, table};

/// A `.thin` archive of version 1 that is whole and agrees with itself.
pub struct Archive {
    source: Source,
    name: String,
    header: Header,
    manifest: Manifest,
    pages: Vec<PageRecord>,
}

impl Archive {
    /// Opens the archive at `path`.
    ///
    /// **Errors**: the file cannot be read, is something else, is cut or damaged in its first part, or
    /// contradicts itself.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (source, name) = Source::open(path)?;
        Self::from_source(source, name)
    }

    /// Opens an archive that lies in memory for as long as the program runs.
    ///
    /// **Errors**: as [`Archive::open`].
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Self, Error> {
        Self::from_source(Source::Memory(bytes.into()), name.into())
    }

    /// Opens an archive that was read into memory.
    ///
    /// **Errors**: as [`Archive::open`].
    pub fn from_bytes(bytes: Vec<u8>, name: &str) -> Result<Self, Error> {
        Self::from_source(Source::Memory(bytes.into()), name.into())
    }

    fn from_source(source: Source, name: String) -> Result<Self, Error> {
        let len = source.len(&name)?;
        let header = read_header(&source, &name, len)?;
        let front = Front::read(&source, &name, len, &header)?;
        front.check_hash(&name, &header)?;
        let pages = table::decode(&front.table)?;
        check_length(&name, len, &header, &pages)?;
        front.check_padding(&name, &header)?;
        let manifest = Manifest::decode(&name, &front.manifest)?;
        drop(front);
        let mut findings = check::placement(&pages, &header);
        findings.extend(check::contents(&manifest, &pages));
        check::none(&name, findings)?;
        Ok(Self::from_parts(source, name, header, manifest, pages))
    }

    /// An archive of parts that were found to agree.
    pub(super) fn from_parts(
        source: Source,
        name: String,
        header: Header,
        manifest: Manifest,
        pages: Vec<PageRecord>,
    ) -> Self {
        Archive { source, name, header, manifest, pages }
    }

    /// The hash of header, manifest and page table, which hold the hashes of all pages: the archive's name
    /// by content.
    #[must_use]
    pub fn archive_hash(&self) -> super::Hash {
        self.header.archive_hash
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.header.file_len
    }

    /// The file, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::File { path, .. } => Some(path),
            Source::Memory(_) => None,
        }
    }
}

impl Pages for Archive {
    fn name(&self) -> &str {
        &self.name
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn pages(&self) -> &[PageRecord] {
        &self.pages
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), crate::Error> {
        let record = self.pages.get(page.0 as usize).ok_or_else(|| Error::NoSuchPage {
            file: self.name.clone(),
            page: page.0,
            count: self.pages.len(),
        })?;
        read_page(&self.source, &self.name, record, out)?;
        Ok(())
    }
}

/// The whole file called `name` that `pages` carries, or `None` where it carries none.
///
/// **Errors**: as [`Pages::read`].
pub fn asset(pages: &dyn Pages, name: &str) -> Result<Option<Vec<u8>>, crate::Error> {
    let Some(asset) = pages.manifest().assets.iter().find(|asset| asset.name == name) else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    for id in asset.page.. {
        let record = pages.pages().get(id as usize).ok_or_else(|| Error::NoSuchPage {
            file: pages.name().into(),
            page: id,
            count: pages.pages().len(),
        })?;
        let start = bytes.len();
        bytes.resize(start + record.stored_len as usize, 0);
        let (_, out) = bytes.split_at_mut(start);
        pages.read(PageId(id), out)?;
        if bytes.len() as u64 >= asset.bytes {
            break;
        }
    }
    Ok(Some(bytes))
}

/// Where an archive's bytes come from.
pub(super) enum Source {
    File { file: File, path: PathBuf },
    Memory(Cow<'static, [u8]>),
}

impl Source {
    /// Opens a file and gives the name people know it by.
    pub(super) fn open(path: &Path) -> Result<(Self, String), Error> {
        let io = |source| Error::Io { verb: "read", path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        let name = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        Ok((Source::File { file, path: path.into() }, name))
    }

    pub(super) fn len(&self, name: &str) -> Result<u64, Error> {
        match self {
            Source::File { file, .. } => file
                .metadata()
                .map(|metadata| metadata.len())
                .map_err(|source| self.io(name, source)),
            Source::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Fills `out` from byte `offset` on.
    pub(super) fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        match self {
            Source::File { file, .. } => {
                read_exact_at(file, offset, out).map_err(|source| self.io(name, source))
            }
            Source::Memory(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|start| bytes.get(start..)?.get(..out.len()))
                .map(|bytes| out.copy_from_slice(bytes))
                .ok_or_else(|| self.io(name, std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Reads `len` bytes; the caller knows that they lie inside the file.
    pub(super) fn read_vec(&self, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len as usize];
        self.read_at(name, offset, &mut bytes)?;
        Ok(bytes)
    }

    fn io(&self, name: &str, source: std::io::Error) -> Error {
        Error::Io {
            verb: "read",
            path: match self {
                Source::File { path, .. } => path.clone(),
                Source::Memory(_) => name.into(),
            },
            source,
        }
    }
}

/// Fills `out` from byte `offset` of `file` on, whatever the file's own position.
pub(super) fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, out, offset);
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < out.len() {
            let (_, rest) = out.split_at_mut(done);
            match std::os::windows::fs::FileExt::seek_read(file, rest, offset + done as u64) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

pub(super) fn read_header(source: &Source, name: &str, len: u64) -> Result<Header, Error> {
    let bytes = source.read_vec(name, 0, len.min(HEADER_BYTES))?;
    Header::decode(name, &bytes)
}

/// Manifest region, page table and the zeros behind it, as they lie in the file.
pub(super) struct Front {
    pub(super) manifest: Vec<u8>,
    pub(super) table: Vec<u8>,
    padding: Vec<u8>,
}

impl Front {
    pub(super) fn read(
        source: &Source,
        name: &str,
        len: u64,
        header: &Header,
    ) -> Result<Self, Error> {
        let table_end = header.table_off() + header.table_len();
        for (what, end) in [
            ("manifest", header.table_off()),
            ("page table", table_end),
            ("page table", header.data_off()),
        ] {
            if end > len {
                return Err(Error::FrontCut { file: name.into(), what, end, len });
            }
        }
        Ok(Front {
            manifest: source.read_vec(name, HEADER_BYTES, header.manifest_len)?,
            table: source.read_vec(name, header.table_off(), header.table_len())?,
            padding: source.read_vec(name, table_end, header.data_off() - table_end)?,
        })
    }

    pub(super) fn check_hash(&self, name: &str, header: &Header) -> Result<(), Error> {
        let found = header.hash(&self.manifest, &self.table);
        if found == header.archive_hash {
            return Ok(());
        }
        Err(Error::ArchiveHash { file: name.into(), stated: header.archive_hash, found })
    }

    pub(super) fn check_padding(&self, name: &str, header: &Header) -> Result<(), Error> {
        let at = header.table_off() + header.table_len();
        zeros(name, "the space behind the page table", at, &self.padding)
    }
}

/// **Errors**: a byte is not zero; `at` is where `bytes` lie in the file.
pub(super) fn zeros(name: &str, what: &'static str, at: u64, bytes: &[u8]) -> Result<(), Error> {
    first_not_zero(bytes).map_or(Ok(()), |(position, byte)| {
        Err(Error::NotZero { file: name.into(), what, at: at + position as u64, byte })
    })
}

/// Compares the file's length with its header, naming the first page that is cut.
pub(super) fn check_length(
    name: &str,
    len: u64,
    header: &Header,
    pages: &[PageRecord],
) -> Result<(), Error> {
    if len == header.file_len {
        return Ok(());
    }
    let end_of = |page: &PageRecord| page.offset.saturating_add(page.stored_len);
    if let Some(page) = pages.iter().find(|page| end_of(page) > len) {
        return Err(Error::PageCut {
            file: name.into(),
            page: page.place(),
            end: end_of(page),
            len,
        });
    }
    Err(Error::FileLength { file: name.into(), found: len, stated: header.file_len })
}

/// Reads the stored bytes of a page and compares their hash with the record.
pub(super) fn read_page(
    source: &Source,
    name: &str,
    record: &PageRecord,
    out: &mut [u8],
) -> Result<(), Error> {
    assert_eq!(
        out.len() as u64,
        record.stored_len,
        "the buffer of page {} has its stored length",
        record.id
    );
    if let Err(error) = source.read_at(name, record.offset, out) {
        // Someone may have cut the file since it was opened; say so instead of "unexpected end of file".
        let len = source.len(name)?;
        let end = record.offset.saturating_add(record.stored_len);
        if end <= len {
            return Err(error);
        }
        return Err(Error::PageCut { file: name.into(), page: record.place(), end, len });
    }
    let found = hash(out);
    if found == record.hash {
        return Ok(());
    }
    Err(Error::PageHash { file: name.into(), page: record.place(), stated: record.hash, found })
}

/// BLAKE3 of a page, on several cores where it is large.
pub(super) fn hash(bytes: &[u8]) -> super::Hash {
    let mut hasher = blake3::Hasher::new();
    // Below about 128 KiB handing work to other threads costs more than it saves.
    if bytes.len() >= 1 << 17 {
        hasher.update_rayon(bytes);
    } else {
        hasher.update(bytes);
    }
    *hasher.finalize().as_bytes()
}

/// Bytes from the end of a page to where the next one, or the end of the file, belongs.
pub(super) fn gap_after(record: &PageRecord) -> u64 {
    record.stored_len.wrapping_neg() % PAGE_ALIGN
}

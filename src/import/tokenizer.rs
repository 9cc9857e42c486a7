//! Tokenizer files of one folder behind the pages of a model that has none.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Error, detect};
use crate::format::manifest::Asset;
use crate::format::{MAX_PART_BYTES, Manifest, PageId, PageRecord, Pages, record};

/// The files that make a tokenizer.
const FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];
/// No tokenizer file is larger.
const MAX_BYTES: u64 = 256 << 20;

/// Pages with the tokenizer files of a folder behind them.
pub(super) struct WithTokenizer {
    pages: Box<dyn Pages>,
    manifest: Manifest,
    records: Vec<PageRecord>,
    /// First page and contents of each added file.
    added: Vec<(u32, Vec<u8>)>,
    assets: Vec<Asset>,
}

impl WithTokenizer {
    /// **Errors**: the model has a tokenizer, or the folder has no tokenizer.json.
    pub(super) fn new(pages: Box<dyn Pages>, folder: &Path) -> Result<Self, Error> {
        let mut manifest = pages.manifest().clone();
        let present: BTreeSet<&str> =
            pages.manifest().assets.iter().map(|asset| asset.name.as_str()).collect();
        if present.contains("tokenizer.json") {
            return Err(Error::TwoTokenizers { path: folder.to_owned() });
        }
        let mut records = pages.pages().to_vec();
        let (mut added, mut assets) = (Vec::new(), Vec::new());
        for name in FILES {
            let path = folder.join(name);
            if present.contains(name) || (name != "tokenizer.json" && !path.is_file()) {
                continue;
            }
            let bytes = detect::read_capped(&path, MAX_BYTES)?;
            let page = records.len() as u32;
            assets.push(Asset { name: name.into(), page, bytes: bytes.len() as u64 });
            records.extend(PageRecord::of_asset(bytes.len() as u64));
            added.push((page, bytes));
        }
        record::number(&mut records);
        manifest.assets.extend(assets.iter().cloned());
        Ok(WithTokenizer { pages, manifest, records, added, assets })
    }
}

impl Pages for WithTokenizer {
    fn name(&self) -> &str {
        self.pages.name()
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn pages(&self) -> &[PageRecord] {
        &self.records
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), crate::Error> {
        let Some((first, bytes)) = self.added.iter().rev().find(|(first, _)| *first <= page.0)
        else {
            return self.pages.read(page, out);
        };
        let start = (page.0 - first) as usize * MAX_PART_BYTES as usize;
        let part = bytes.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(part.expect("the records of a file were made from its length"));
        Ok(())
    }

    fn finish(&self) -> Result<Manifest, crate::Error> {
        let mut manifest = self.pages.finish()?;
        manifest.assets.extend(self.assets.iter().cloned());
        Ok(manifest)
    }
}

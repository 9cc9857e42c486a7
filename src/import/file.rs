//! A weight file of any kind, mapped: where its tensors lie and what they hold.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::map::Map;
use crate::quant::gguf::TensorType;

/// An open file.
#[derive(Debug)]
pub(super) struct WeightFile {
    map: Map,
    /// Tensors in the order they lie, or in the order of the file's list.
    pub(super) tensors: Vec<Entry>,
    /// The file's own notes about itself.
    pub(super) metadata: BTreeMap<String, String>,
}

/// One tensor of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name.
    pub(super) name: String,
    /// The file's name for its number type.
    pub(super) dtype: &'static str,
    /// Its shape, outermost dimension first.
    pub(super) shape: Vec<u64>,
    /// Its bytes in the file.
    pub(super) range: Range<usize>,
}

impl Entry {
    /// The number type, where this version reads it.
    pub(super) fn tensor_type(&self) -> Option<TensorType> {
        TensorType::from_name(self.dtype).filter(|found| found.encoding().is_some())
    }
}

impl WeightFile {
    /// A file whose tensors were found.
    pub(super) fn new(map: Map, tensors: Vec<Entry>, metadata: BTreeMap<String, String>) -> Self {
        WeightFile { map, tensors, metadata }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        self.map.path()
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.map.bytes().len() as u64
    }

    /// The bytes of a tensor.
    pub(super) fn bytes(&self, tensor: usize) -> &[u8] {
        self.tensors
            .get(tensor)
            .and_then(|entry| self.map.bytes().get(entry.range.clone()))
            .unwrap_or_default()
    }

    /// Says that bytes `range` of a tensor have been passed.
    pub(super) fn release(&self, tensor: usize, range: Range<usize>) {
        if let Some(entry) = self.tensors.get(tensor) {
            let start = entry.range.start;
            self.map.release(start + range.start..start + range.end);
        }
    }
}

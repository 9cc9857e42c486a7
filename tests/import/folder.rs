//! Reference checkpoints, copies of them that tests may damage, and reading pages back into tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thintensor::format::{PageId, Pages, manifest::Transform};
use thintensor::import::{Error, Packed, Purpose, open_source};

/// Tensors of safetensors files: dtype, shape, bytes.
pub(crate) type Tensors = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

/// The folder of a reference checkpoint.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/goldens").join(name)
}

/// A copy of a reference checkpoint that a test may change.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// Copies the files a model consists of; the reference outputs stay behind.
    pub(crate) fn copy_of(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for entry in std::fs::read_dir(golden(name)).expect("the reference checkpoint") {
            let path = entry.expect("an entry").path();
            let file = path.file_name().expect("a name");
            if !file.to_string_lossy().starts_with("golden") {
                std::fs::copy(&path, folder.path().join(file)).expect("a copy");
            }
        }
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.file(name), content).expect("written");
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.file(name)).expect("removed");
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).expect("read")
    }

    /// Changes the object in a JSON file.
    pub(crate) fn edit(
        &self,
        name: &str,
        change: impl FnOnce(&mut serde_json::Map<String, Value>),
    ) {
        let mut value: Value = serde_json::from_slice(&self.bytes(name)).expect("JSON");
        change(value.as_object_mut().expect("an object"));
        self.write(name, serde_json::to_vec(&value).expect("JSON"));
    }

    /// Sets one key of config.json.
    pub(crate) fn set(&self, key: &str, value: Value) {
        self.edit("config.json", |config| {
            config.insert(key.to_owned(), value);
        });
    }

    /// Removes one key of config.json.
    pub(crate) fn unset(&self, key: &str) {
        self.edit("config.json", |config| {
            config.remove(key);
        });
    }

    /// Changes the tensors of a weight file.
    pub(crate) fn edit_weights(&self, name: &str, change: impl FnOnce(&mut Tensors)) {
        let mut tensors = Tensors::new();
        read_safetensors(&self.file(name), &mut tensors);
        change(&mut tensors);
        self.write(name, safetensors(&tensors));
    }

    pub(crate) fn open(&self) -> Result<(Packed, Vec<String>), Error> {
        open_source(self.path(), Purpose::Run)
    }

    /// What the refusal says.
    pub(crate) fn refusal(&self) -> String {
        match self.open() {
            Ok(_) => panic!("was not refused"),
            Err(error) => error.to_string(),
        }
    }
}

/// A safetensors file with these tensors.
pub(crate) fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}

/// Adds the tensors of a file, read by the reference implementation of the format.
pub(crate) fn read_safetensors(path: &Path, tensors: &mut Tensors) {
    let bytes = std::fs::read(path).expect("read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    for (name, view) in file.tensors() {
        let shape = view.shape().iter().map(|&dim| dim as u64).collect();
        let tensor = (view.dtype().to_string(), shape, view.data().to_vec());
        tensors.insert(name, tensor);
    }
}

/// Every page of a model.
pub(crate) fn read_pages(pages: &dyn Pages) -> Vec<Vec<u8>> {
    let records = pages.pages().iter();
    records
        .map(|record| {
            let mut out = vec![0xaa; record.stored_len as usize];
            pages.read(PageId(record.id), &mut out).expect("a page");
            out
        })
        .collect()
}

/// The source tensors that the pages hold, taken apart by the manifest alone. Fails where a source row is in
/// no piece or in two.
pub(crate) fn unpack(pages: &dyn Pages, stored: &[Vec<u8>]) -> Tensors {
    let manifest = pages.manifest();
    let mut tensors = Tensors::new();
    for tensor in &manifest.tensors {
        let size = if tensor.dtype == "F32" { 4 } else { 2 };
        let cols: u64 = tensor.shape.iter().skip(1).product();
        let width = (cols * size) as usize;
        let rows = tensor.shape[0] as usize;
        let mut bytes = vec![0; rows * width];
        let mut seen = vec![0; rows];
        for piece in &tensor.pieces {
            let record = &pages.pages()[piece.page as usize];
            let geometry = &manifest.descriptors[record.descriptor as usize];
            let plane = &geometry.planes[piece.plane as usize];
            assert_eq!(record.part, 0, "a piece names the first page of its group");
            for row in 0..piece.rows {
                let place = piece.first_row + row * piece.row_step;
                let (part, offset) = if geometry.is_small() {
                    (0, plane.offset + place * plane.row_stride)
                } else {
                    let at = geometry.row_offset(plane, place);
                    (at / geometry.part_stride, at % geometry.part_stride)
                };
                let page = &stored[piece.page as usize + part as usize];
                let held = &page[offset as usize..(offset + plane.row_bytes) as usize];
                let source = (piece.source_row + row) as usize;
                seen[source] += 1;
                let out = &mut bytes[source * width..(source + 1) * width];
                match (tensor.transform.as_slice(), tensor.dtype.as_str()) {
                    ([], _) => out.copy_from_slice(held),
                    // A bf16 is the upper half of an f32.
                    ([Transform::WidenF32], "BF16") => out.copy_from_slice(&held[2..]),
                    ([Transform::WidenF32], "F16") => {
                        let value = f32::from_le_bytes(held.try_into().expect("four bytes"));
                        out.copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
                    }
                    other => panic!("unknown transform {other:?}"),
                }
            }
        }
        assert!(seen.iter().all(|&times| times == 1), "{}: {seen:?}", tensor.name);
        let unpacked = (tensor.dtype.clone(), tensor.shape.clone(), bytes);
        tensors.insert(tensor.name.clone(), unpacked);
    }
    tensors
}

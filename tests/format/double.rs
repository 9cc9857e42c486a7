//! A model in memory, packed the plain way: each source row is copied to where the geometry says it lies.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use thintensor::format::geometry::Geometry;
use thintensor::format::manifest::{
    Asset, Manifest, Padding, Piece, Provenance, SourceFile, Tensor, Transform,
};
use thintensor::format::writer::{WriteOptions, WriteReport, write};
use thintensor::format::{Event, PageId, PageRecord, Pages, PlaneKind, Role, Vector, record};
use thintensor::quant::Format;

/// A model whose pages, tensors and source bytes are all known.
#[derive(Clone, Default)]
pub(crate) struct Model {
    /// With all hashes.
    pub(crate) finished: Manifest,
    /// Without hashes, as before packing.
    announced: Manifest,
    pub(crate) records: Vec<PageRecord>,
    pub(crate) pages: Vec<Vec<u8>>,
    /// Source bytes of each tensor.
    pub(crate) sources: Vec<Vec<u8>>,
    /// Content of each carried file.
    pub(crate) files: Vec<Vec<u8>>,
}

/// Rows of one tensor in the group being added.
pub(crate) struct Rows<'a> {
    pub(crate) tensor: &'a str,
    pub(crate) plane: u32,
    pub(crate) source_row: u64,
    pub(crate) rows: u64,
    pub(crate) first_row: u64,
    pub(crate) row_step: u64,
}

impl Model {
    pub(crate) fn new(files: &[&str]) -> Self {
        let mut model = Model::default();
        model.finished.spec = serde_json::json!({"hidden_size": 9});
        model.finished.provenance = Provenance {
            tool: "double".into(),
            source: "memory".into(),
            files: files
                .iter()
                .map(|&name| SourceFile {
                    name: name.into(),
                    bytes: 0,
                    metadata: [("format".to_owned(), "pt".to_owned())].into(),
                })
                .collect(),
            ignored: Vec::new(),
            profile: "safe".into(),
            exact_storage_preserved: true,
        };
        model
    }

    /// Announces a tensor whose bytes follow from its name; vectors of 16-bit floats are stored widened.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        file: u32,
        dtype: &str,
        shape: &[u64],
        widen: bool,
    ) {
        let count: u64 = shape.iter().product();
        let seed = name.bytes().fold(17u32, |seed, byte| seed.wrapping_mul(31) + u32::from(byte));
        let bytes: Vec<u8> =
            (0..count as u32).flat_map(|index| number(dtype, seed.wrapping_add(index))).collect();
        self.finished.tensors.push(Tensor {
            name: name.into(),
            file,
            dtype: dtype.into(),
            shape: shape.to_vec(),
            hash: *blake3::hash(&bytes).as_bytes(),
            transform: widen.then_some(Transform::WidenF32).into_iter().collect(),
            pieces: Vec::new(),
        });
        self.sources.push(bytes);
    }

    /// Adds a group and packs these rows into it.
    pub(crate) fn group(
        &mut self,
        (role, layer, expert): (Role, Option<u32>, Option<u32>),
        geometry: &Geometry,
        rows: &[Rows<'_>],
    ) {
        let known = self.finished.descriptors.iter();
        let descriptor = match known.clone().position(|other| other == geometry) {
            Some(descriptor) => descriptor,
            None => {
                self.finished.descriptors.push(geometry.clone());
                self.finished.descriptors.len() - 1
            }
        };
        let first = self.records.len();
        let records = PageRecord::of_group(role, layer, expert, descriptor as u32, geometry);
        for record in &records {
            self.pages.push(vec![0; record.stored_len as usize]);
        }
        self.records.extend(records);
        record::number(&mut self.records);
        for run in rows {
            self.pack(geometry, first, run);
        }
    }

    fn pack(&mut self, geometry: &Geometry, first: usize, run: &Rows<'_>) {
        let index = self
            .finished
            .tensors
            .iter()
            .position(|tensor| tensor.name == run.tensor)
            .expect("announced");
        let plane = &geometry.planes[run.plane as usize];
        let tensor = &mut self.finished.tensors[index];
        tensor.pieces.push(Piece {
            page: first as u32,
            plane: run.plane,
            source_row: run.source_row,
            rows: run.rows,
            first_row: run.first_row,
            row_step: run.row_step,
        });
        let size = match tensor.dtype.as_str() {
            "F32" => 4,
            _ => 2,
        };
        let row_bytes = match plane.kind {
            PlaneKind::Vector(_) => size,
            _ => plane.row_bytes as usize,
        };
        for step in 0..run.rows {
            let at = (run.source_row + step) as usize * row_bytes;
            let mut source = self.sources[index][at..at + row_bytes].to_vec();
            if !tensor.transform.is_empty() && size == 2 {
                let bits = u16::from_le_bytes([source[0], source[1]]);
                let value = match tensor.dtype.as_str() {
                    "BF16" => thintensor::quant::float::bf16_to_f32(bits),
                    _ => thintensor::quant::float::f16_to_f32(bits),
                };
                source = value.to_le_bytes().to_vec();
            }
            let row = run.first_row + step * run.row_step;
            let (part, at) = match plane.kind {
                PlaneKind::Vector(_) => (0, plane.offset + row * 4),
                _ => {
                    let offset = geometry.row_offset(plane, row);
                    (offset / geometry.part_stride, offset % geometry.part_stride)
                }
            };
            self.pages[first + part as usize][at as usize..at as usize + source.len()]
                .copy_from_slice(&source);
        }
    }

    /// Names rows of the group that begins at `page` as padding.
    pub(crate) fn padding(&mut self, page: u32, plane: u32, first_row: u64, rows: u64) {
        self.finished.padding.push(Padding { page, plane, first_row, rows });
    }

    /// Carries a file.
    pub(crate) fn asset(&mut self, name: &str, content: &[u8]) {
        self.finished.assets.push(Asset {
            name: name.into(),
            page: self.records.len() as u32,
            bytes: content.len() as u64,
        });
        let mut rest = content;
        for record in PageRecord::of_asset(content.len() as u64) {
            let (page, after) = rest.split_at(record.stored_len as usize);
            self.pages.push(page.to_vec());
            self.records.push(record);
            rest = after;
        }
        record::number(&mut self.records);
        self.files.push(content.to_vec());
    }

    /// The model as it is before anything was packed.
    pub(crate) fn done(mut self) -> Self {
        self.announced = self.finished.clone();
        for tensor in &mut self.announced.tensors {
            tensor.hash = [0; 32];
        }
        self
    }

    /// Writes the archive `name` into `folder`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> WriteReport {
        let options = WriteOptions {
            force: false,
            resume: false,
            progress: &|_| {},
            cancel: &AtomicBool::new(false),
        };
        write(self, &folder.join(name), &options).expect("a sound model is written")
    }
}

impl Pages for Model {
    fn name(&self) -> &str {
        "double"
    }

    fn manifest(&self) -> &Manifest {
        &self.announced
    }

    fn pages(&self) -> &[PageRecord] {
        &self.records
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), thintensor::Error> {
        out.copy_from_slice(&self.pages[page.0 as usize]);
        Ok(())
    }

    fn finish(&self) -> Result<Manifest, thintensor::Error> {
        Ok(self.finished.clone())
    }
}

/// A model that sets a flag once it has packed so many pages.
pub(crate) struct Stopping<'a> {
    pub(crate) model: &'a Model,
    pub(crate) after: usize,
    pub(crate) packed: AtomicUsize,
    pub(crate) cancel: &'a AtomicBool,
}

impl Pages for Stopping<'_> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn manifest(&self) -> &Manifest {
        self.model.manifest()
    }

    fn pages(&self) -> &[PageRecord] {
        self.model.pages()
    }

    fn read(&self, page: PageId, out: &mut [u8]) -> Result<(), thintensor::Error> {
        if self.packed.fetch_add(1, Ordering::Relaxed) + 1 >= self.after {
            self.cancel.store(true, Ordering::Relaxed);
        }
        self.model.read(page, out)
    }

    fn finish(&self) -> Result<Manifest, thintensor::Error> {
        self.model.finish()
    }
}

/// Some number of the type that every type it is widened to can hold; NaN payloads among them.
fn number(dtype: &str, seed: u32) -> Vec<u8> {
    let bits = seed.wrapping_mul(2_654_435_761);
    match dtype {
        "F32" => bits.to_le_bytes().to_vec(),
        _ => ((bits >> 16) as u16).to_le_bytes().to_vec(),
    }
}

/// One matrix, one page of vectors, one file: 24 KiB.
pub(crate) fn small() -> Model {
    let mut model = Model::new(&["model.safetensors"]);
    model.tensor("embed", 0, "BF16", &[5, 9], false);
    model.tensor("norm", 0, "F16", &[9], true);
    model.group(
        (Role::Embed, None, None),
        &Geometry::matrix(Format::BF16, 5, 9).expect("fits"),
        &[whole("embed", 5)],
    );
    model.group(
        (Role::Small, None, None),
        &Geometry::small(&[(Vector::FinalNorm, 9)]).expect("fits"),
        &[whole("norm", 9)],
    );
    model.asset("config.json", b"{\"hidden_size\": 9}");
    model.done()
}

/// Two source files, all float formats, interleaved and concatenated members, a tensor split over experts, one
/// in backward order, padding, three carried files of which one is empty.
pub(crate) fn rich() -> Model {
    let mut model = Model::new(&["a.safetensors", "b.safetensors"]);
    model.tensor("embed", 0, "BF16", &[7, 9], false);
    for (name, rows) in [("q", 4), ("k", 2), ("v", 2)] {
        model.tensor(name, 0, "F16", &[rows, 9], false);
    }
    model.tensor("gate", 1, "F32", &[3, 9], false);
    model.tensor("up", 1, "F32", &[3, 9], false);
    model.tensor("experts", 1, "BF16", &[2, 3, 9], false);
    model.tensor("backward", 0, "BF16", &[6, 9], false);
    model.tensor("norm", 1, "BF16", &[9], true);
    model.tensor("q.bias", 1, "F16", &[4], true);
    model.tensor("v.bias", 1, "F32", &[2], false);
    model.tensor("empty", 1, "I64", &[0, 4], false);
    model.asset("config.json", b"{}");
    let matrix = |format, rows| Geometry::matrix(format, rows, 9).expect("fits");
    model.group((Role::Embed, None, None), &matrix(Format::BF16, 7), &[whole("embed", 7)]);
    let small = Geometry::small(&[(Vector::AttnNorm, 9), (Vector::AttnQkvBias, 8)]).expect("fits");
    let page = model.records.len() as u32;
    let bias = |tensor, rows, first_row| Rows { plane: 1, first_row, ..whole(tensor, rows) };
    model.group(
        (Role::Small, Some(0), None),
        &small,
        &[whole("norm", 9), bias("q.bias", 4, 0), bias("v.bias", 2, 6)],
    );
    model.padding(page, 1, 4, 2);
    let at = |tensor, rows, first_row| Rows { first_row, ..whole(tensor, rows) };
    model.group(
        (Role::AttnQkv, Some(0), None),
        &matrix(Format::F16, 8),
        &[whole("q", 4), at("k", 2, 4), at("v", 2, 6)],
    );
    let alternating = |tensor, first_row| Rows { first_row, row_step: 2, ..whole(tensor, 3) };
    model.group(
        (Role::FfnGateUp, Some(0), None),
        &matrix(Format::F32, 6),
        &[alternating("gate", 0), alternating("up", 1)],
    );
    let from = |tensor, source_row, rows| Rows { source_row, ..whole(tensor, rows) };
    for expert in 0..2 {
        model.group(
            (Role::ExpertDown, Some(0), Some(expert)),
            &matrix(Format::BF16, 3),
            &[from("experts", u64::from(expert) * 3, 3)],
        );
    }
    for (expert, source_row) in [(2, 3), (3, 0)] {
        model.group(
            (Role::ExpertDown, Some(0), Some(expert)),
            &matrix(Format::BF16, 3),
            &[from("backward", source_row, 3)],
        );
    }
    model.asset("empty.txt", b"");
    model.asset("LICENSE", &[b'x'; 5000]);
    model.done()
}

/// All rows of a tensor, from row 0 of plane 0 on.
pub(crate) fn whole(tensor: &str, rows: u64) -> Rows<'_> {
    Rows { tensor, plane: 0, source_row: 0, rows, first_row: 0, row_step: 1 }
}

/// Ignores progress.
pub(crate) fn quiet(_: Event) {}

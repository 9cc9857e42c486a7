//! What was packed comes back: page by page, tensor by tensor, file by file.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use thintensor::format::extract::extract;
use thintensor::format::geometry::Geometry;
use thintensor::format::verify::{Status, verify};
use thintensor::format::writer::{WriteOptions, write};
use thintensor::format::{Archive, PageId, Pages, Role, Vector, asset, groups};
use thintensor::quant::Format;

use crate::double::{Model, Rows, quiet, rich, small, whole};

/// Writes, opens, verifies, extracts and repacks `model`, comparing at each step.
fn round_trip(model: &Model) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");
    let report = model.write(folder.path(), "m.thin");
    let archive = Archive::open(&path).expect("own archive");

    assert_eq!(report.bytes, std::fs::metadata(&path).expect("there").len());
    assert_eq!(archive.manifest(), &model.finished);
    assert_eq!(groups(archive.pages()), groups(&model.records));
    for (record, want) in archive.pages().iter().zip(&model.pages) {
        let mut bytes = vec![0; record.stored_len as usize];
        archive.read(PageId(record.id), &mut bytes).expect("own page");
        assert!(bytes == *want, "page {}", record.place());
    }
    for (file, content) in model.finished.assets.iter().zip(&model.files) {
        let read = asset(&archive, &file.name).expect("own page");
        assert_eq!(read.as_ref(), Some(content), "{}", file.name);
    }

    let report = verify(&path, &quiet).expect("readable");
    assert!(report.ok, "{report:#?}");
    assert!(report.checks.iter().all(|check| check.status == Status::Passed));

    let out = folder.path().join("out");
    extract(&archive, &out, false, &quiet).expect("own archive");
    compare_extracted(model, &out);

    let again = folder.path().join("again.thin");
    let options = WriteOptions {
        force: false,
        resume: false,
        progress: &quiet,
        cancel: &AtomicBool::new(false),
    };
    write(&archive, &again, &options).expect("an archive can be written again");
    assert!(std::fs::read(&path).expect("there") == std::fs::read(&again).expect("there"));
    let mut left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("there")
        .map(|entry| entry.expect("there").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["again.thin", "m.thin", "out"], "nothing is left behind");
}

fn compare_extracted(model: &Model, out: &Path) {
    for (index, file) in model.finished.provenance.files.iter().enumerate() {
        let bytes = std::fs::read(out.join(&file.name)).expect("extracted");
        let (header, _) = safetensors::SafeTensors::read_metadata(&bytes).expect("safetensors");
        assert_eq!(header % 8, 0, "the data is aligned");
        let read = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let mut count = 0;
        for (tensor, source) in model.finished.tensors.iter().zip(&model.sources) {
            if tensor.file as usize != index {
                continue;
            }
            let view = read.tensor(&tensor.name).expect("every tensor is there");
            let shape: Vec<u64> = view.shape().iter().map(|&dim| dim as u64).collect();
            assert_eq!(shape, tensor.shape);
            assert_eq!(format!("{:?}", view.dtype()), tensor.dtype);
            assert!(view.data() == source, "{}", tensor.name);
            count += 1;
        }
        assert_eq!(read.len(), count);
    }
    for (file, content) in model.finished.assets.iter().zip(&model.files) {
        assert!(std::fs::read(out.join(&file.name)).expect("extracted") == *content);
    }
}

#[test]
fn small_model_round_trips() {
    round_trip(&small());
}

#[test]
fn model_with_every_kind_of_piece_round_trips() {
    round_trip(&rich());
}

#[test]
fn groups_of_several_parts_and_files_above_32_mib_round_trip() {
    // Rows of 1 MiB: 32 in the first part, 8 in the second; gate and up alternate over both.
    let mut model = Model::new(&["model.safetensors"]);
    let cols = (1 << 20) / 2;
    model.tensor("gate", 0, "BF16", &[20, cols], false);
    model.tensor("up", 0, "BF16", &[20, cols], false);
    let rows = |tensor, first_row| Rows { first_row, row_step: 2, ..whole(tensor, 20) };
    model.group(
        (Role::FfnGateUp, Some(0), None),
        &Geometry::matrix(Format::BF16, 40, cols).expect("fits"),
        &[rows("gate", 0), rows("up", 1)],
    );
    model.asset("tokenizer.json", &vec![b'y'; (32 << 20) + 5]);
    let model = model.done();
    assert_eq!(model.records.len(), 4);

    round_trip(&model);
}

#[test]
fn model_without_pages_round_trips() {
    round_trip(&Model::new(&[]).done());
}

#[test]
fn archive_in_memory_reads_as_the_file_does() {
    let folder = tempfile::tempdir().expect("scratch folder");
    rich().write(folder.path(), "m.thin");
    let bytes = std::fs::read(folder.path().join("m.thin")).expect("there");

    let archive = Archive::from_static(bytes.leak(), "demo").expect("own archive");

    assert_eq!(archive.name(), "demo");
    assert_eq!(archive.path(), None);
    let mut page = vec![0; archive.pages()[1].stored_len as usize];
    archive.read(PageId(1), &mut page).expect("own page");
    assert!(page == rich().pages[1]);
}

#[test]
fn extract_writes_an_index_that_covers_all_shards() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let model = rich();
    model.write(folder.path(), "m.thin");
    let archive = Archive::open(&folder.path().join("m.thin")).expect("own archive");
    let out = folder.path().join("out");

    extract(&archive, &out, false, &quiet).expect("own archive");

    let index = std::fs::read(out.join("model.safetensors.index.json")).expect("written");
    let index: serde_json::Value = serde_json::from_slice(&index).expect("JSON");
    let map = index["weight_map"].as_object().expect("a map");
    assert_eq!(map.len(), model.finished.tensors.len());
    assert_eq!(map["gate"], "b.safetensors");
}

#[test]
fn extract_refuses_a_folder_that_holds_something_unless_forced() {
    let folder = tempfile::tempdir().expect("scratch folder");
    small().write(folder.path(), "m.thin");
    let archive = Archive::open(&folder.path().join("m.thin")).expect("own archive");
    let out = folder.path().join("out");
    std::fs::create_dir(&out).expect("writable");
    std::fs::write(out.join("config.json"), "mine").expect("writable");

    let error = extract(&archive, &out, false, &quiet).expect_err("occupied");
    assert!(error.to_string().ends_with("is not empty"), "{error}");
    assert!(error.hint().expect("a hint").contains("--force"));
    assert_eq!(std::fs::read(out.join("config.json")).expect("there"), b"mine");

    extract(&archive, &out, true, &quiet).expect("forced");
    compare_extracted(&small(), &out);
}

#[cfg(unix)]
#[test]
fn extract_with_force_replaces_links_and_does_not_follow_them() {
    let folder = tempfile::tempdir().expect("scratch folder");
    small().write(folder.path(), "m.thin");
    let archive = Archive::open(&folder.path().join("m.thin")).expect("own archive");
    let out = folder.path().join("out");
    let outside = folder.path().join("outside");
    std::fs::create_dir(&out).expect("writable");
    std::fs::write(&outside, "mine").expect("writable");
    for name in ["config.json", ".thin-extract.partial"] {
        std::os::unix::fs::symlink(&outside, out.join(name)).expect("writable");
    }

    extract(&archive, &out, true, &quiet).expect("forced");

    assert_eq!(std::fs::read(&outside).expect("there"), b"mine");
    compare_extracted(&small(), &out);
}

fn vectors() -> impl Strategy<Value = Vec<(&'static str, bool, u64)>> {
    let dtype = prop_oneof![
        Just(("BF16", true)),
        Just(("F16", true)),
        Just(("F32", true)),
        Just(("F32", false))
    ];
    prop::collection::vec((dtype, 1u64..200), 1..5).prop_map(|vectors| {
        vectors.into_iter().map(|((dtype, widen), len)| (dtype, widen, len)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_shapes_round_trip(
        matrices in prop::collection::vec((0usize..3, 1u64..70, 1u64..70, 1u64..4), 1..5),
        vectors in vectors(),
        file in prop::collection::vec(any::<u8>(), 0..9000),
    ) {
        let formats = [Format::BF16, Format::F16, Format::F32];
        let dtypes = ["BF16", "F16", "F32"];
        let mut model = Model::new(&["a.safetensors", "b.gguf.safetensors"]);
        for (layer, &(format, rows, cols, members)) in (0u32..).zip(&matrices) {
            // `members` tensors share the group, their rows taking turns.
            let names: Vec<String> = (0..members).map(|m| format!("{layer}.{m}")).collect();
            for name in &names {
                model.tensor(name, layer % 2, dtypes[format], &[rows, cols], false);
            }
            let runs: Vec<Rows<'_>> = (0..members)
                .zip(&names)
                .map(|(m, name)| Rows { first_row: m, row_step: members, ..whole(name, rows) })
                .collect();
            let geometry = Geometry::matrix(formats[format], rows * members, cols).expect("fits");
            model.group((Role::AttnQkv, Some(layer), None), &geometry, &runs);
        }
        let shape: Vec<(Vector, u64)> = Vector::ALL
            .iter()
            .zip(&vectors)
            .map(|(&vector, &(_, _, len))| (vector, len))
            .collect();
        let names: Vec<String> = shape.iter().map(|(vector, _)| vector.to_string()).collect();
        for (name, &(dtype, widen, len)) in names.iter().zip(&vectors) {
            model.tensor(name, 1, dtype, &[len], widen);
        }
        let runs: Vec<Rows<'_>> = (0u32..)
            .zip(&names)
            .zip(&vectors)
            .map(|((plane, name), &(_, _, len))| Rows { plane, ..whole(name, len) })
            .collect();
        let geometry = Geometry::small(&shape).expect("fits");
        model.group((Role::Small, None, None), &geometry, &runs);
        model.asset("tokenizer.json", &file);

        round_trip(&model.done());
    }
}

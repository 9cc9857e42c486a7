//! One test per lie a file can tell. The hashes are right each time, so that the deeper checks are met.

use std::path::Path;

use thintensor::format::extract::extract;
use thintensor::format::manifest::{Manifest, Padding};
use thintensor::format::verify::verify;
use thintensor::format::{Archive, PageRecord, Pages};
use thintensor::quant::Format;

use crate::double::{quiet, rich};
use crate::parts::Parts;

/// The message on opening what `lie` made of a sound archive; `verify` must say the same and `lie` must be
/// the only thing wrong.
fn told(lie: impl FnOnce(&mut Parts)) -> String {
    let mut parts = Parts::of(&rich());
    lie(&mut parts);
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");
    std::fs::write(&path, parts.bytes()).expect("writable");

    let error = Archive::open(&path).err().expect("a lie");
    let report = verify(&path, &quiet).expect("readable");

    let text = error.to_string();
    let finding = text
        .strip_prefix("'m.thin' contradicts itself: ")
        .unwrap_or(&text)
        .split(" (and ")
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut problems = report.checks.iter().flat_map(|check| &check.problems);
    assert!(problems.any(|problem| problem.contains(&finding)), "{finding}: {report:#?}");
    assert!(!report.ok);
    finding
}

fn told_by_manifest(lie: impl FnOnce(&mut Manifest)) -> String {
    told(|parts| {
        let mut manifest = parts.manifest();
        lie(&mut manifest);
        parts.set_manifest(&manifest.encode());
    })
}

fn told_by_record(page: usize, lie: impl FnOnce(&mut PageRecord)) -> String {
    told(|parts| lie(&mut parts.records[page]))
}

// The pages of `rich`: 0 config.json, 1 embed, 2 small, 3 attn_qkv, 4 ffn_gate_up, 5-8 experts, 9 empty.txt,
// 10 LICENSE; the tensors: embed q k v gate up experts backward norm q.bias v.bias empty.

#[test]
fn an_archive_put_together_again_is_sound() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");
    std::fs::write(&path, Parts::of(&rich()).bytes()).expect("writable");

    assert!(verify(&path, &quiet).expect("readable").ok);
}

#[test]
fn id_that_is_no_position() {
    let text = told_by_record(2, |page| page.id = 3);
    assert_eq!(text, "the record at position 2 has id 3");
}

#[test]
fn offset_that_is_not_aligned() {
    let text = told_by_record(1, |page| page.offset += 8);
    assert!(
        text.starts_with("page 1 (embed) starts at byte ") && text.contains("no multiple of 4,096"),
        "{text}"
    );
}

#[test]
fn offset_before_the_end_of_the_page_before() {
    let text = told_by_record(2, |page| page.offset -= 4096);
    assert!(text.contains("but what lies before it ends at"), "{text}");
}

#[test]
fn offset_inside_the_page_table() {
    let text = told_by_record(0, |page| page.offset = 4096);
    assert!(text.starts_with("page 0 (asset) starts at byte 4,096 but"), "{text}");
}

#[test]
fn offset_that_leaves_room_for_something_hidden() {
    let text = told_by_record(3, |page| page.offset += 4096);
    assert!(text.contains("but belongs at"), "{text}");
}

#[test]
fn length_that_reaches_past_the_end_or_overflows() {
    for len in [1 << 40, 1 << 62, u64::MAX] {
        let text = told_by_record(3, |page| page.stored_len = len);
        assert!(text.contains("ends at byte") || text.contains("but the file has"), "{text}");
    }
}

#[test]
fn file_length_beyond_the_last_page() {
    let text = told(|parts| {
        parts.header.file_len += 4096;
        parts.rest.extend_from_slice(&[0; 4096]);
    });
    assert!(text.starts_with("the pages end at byte "), "{text}");
}

#[test]
fn file_length_that_is_not_the_file_s() {
    let text = told(|parts| parts.header.file_len = u64::MAX);
    assert!(text.ends_with("but its header says 18,446,744,073,709,551,615"), "{text}");
}

#[test]
fn count_that_needs_more_table_than_there_is() {
    for count in [1 << 20, 1 << 22] {
        let text = told(|parts| {
            parts.header.count = count;
            parts.header.file_len = 1 << 40;
        });
        assert!(text.starts_with("the page table of 'm.thin' ends at byte"), "{text}");
    }
}

#[test]
fn layout_that_is_unknown() {
    let text = told_by_record(3, |page| page.layout = 7);
    assert_eq!(text, "page 3 (attn_qkv, layer 0) has layout 7, which this version does not know");
}

#[test]
fn layer_or_expert_where_the_role_has_none_and_the_other_way_round() {
    for (page, layer, expert) in
        [(1, Some(0), None), (3, None, None), (3, Some(0), Some(1)), (5, Some(0), None)]
    {
        let text = told_by_record(page, |page| (page.layer, page.expert) = (layer, expert));
        assert!(text.contains("layer or expert"), "{text}");
    }
}

#[test]
fn descriptor_that_does_not_exist() {
    let text = told_by_record(1, |page| page.descriptor = 99);
    assert_eq!(text, "page 1 (embed) has descriptor 99 but there are 5");
}

#[test]
fn descriptor_of_a_matrix_for_a_page_of_vectors() {
    let text = told_by_record(2, |page| page.descriptor = 0);
    assert_eq!(text, "page 2 (small, layer 0) has descriptor 0, which is of another kind");
}

#[test]
fn descriptor_that_no_writer_makes() {
    let edits: [fn(&mut Manifest); 7] = [
        |m| m.descriptors[0].part_rows = 3,
        |m| m.descriptors[0].part_stride = 0,
        |m| m.descriptors[0].rows = u64::MAX,
        |m| m.descriptors[0].planes[0].row_stride = 0,
        |m| m.descriptors[0].planes.clear(),
        |m| m.descriptors[0].quantization.bits = 4,
        |m| {
            let plane = m.descriptors[1].planes[0].clone();
            m.descriptors[1].planes[1].kind = plane.kind;
        },
    ];
    for edit in edits {
        let text = told_by_manifest(edit);
        assert!(text.ends_with("is not a layout this version knows"), "{text}");
    }
}

#[test]
fn format_other_than_the_descriptor_s() {
    let text = told_by_record(1, |page| page.format = Format::F16);
    assert_eq!(text, "page 1 (embed) has format f16 but its descriptor has bf16");
}

#[test]
fn rows_parts_and_lengths_other_than_the_descriptor_s() {
    type Edit = fn(&mut PageRecord);
    let edits: [(Edit, &str); 4] = [
        (|p| p.rows = 6, "has rows 6 where 7 is right"),
        (|p| p.first_row = 1, "has first_row 1 where 0 is right"),
        (|p| p.part = 1, "has part 1 where 0 is right"),
        (|p| p.stored_len -= 32, "has stored_len 192 where 224 is right"),
    ];
    for (edit, want) in edits {
        let text = told_by_record(1, edit);
        assert_eq!(text, format!("page 1 (embed) {want}"));
    }
}

#[test]
fn group_with_a_part_missing() {
    // 7 rows of 2^20 bf16 numbers would be 14 MiB; 70 rows are 140 MiB in five parts.
    let text = told_by_manifest(|manifest| {
        let mut larger =
            thintensor::format::Geometry::matrix(Format::BF16, 70, 1 << 20).expect("fits");
        larger.quantization = manifest.descriptors[0].quantization.clone();
        manifest.descriptors[0] = larger;
    });
    assert!(text.contains("stored_len 224") || text.contains("has rows 7"), "{text}");
}

#[test]
fn tensor_names_that_are_reserved_empty_endless_or_used_twice() {
    for name in ["__metadata__", "", &"x".repeat(513)] {
        let text = told_by_manifest(|manifest| manifest.tensors[1].name = name.into());
        assert!(text.ends_with("is not a tensor name"), "{text}");
        assert!(text.len() < 600, "the message does not repeat the whole name");
    }
    let text = told_by_manifest(|manifest| manifest.tensors[1].name = "embed".into());
    assert_eq!(text, "the name 'embed' is used twice");
}

#[test]
fn tensor_of_a_source_file_that_does_not_exist() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].file = 2);
    assert_eq!(text, "tensor 'embed' belongs to source file 2 but there are 2");
}

#[test]
fn tensor_of_an_unknown_number_type() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].dtype = "banana".into());
    assert_eq!(text, "tensor 'embed' has number type 'banana', which this version does not know");
}

#[test]
fn shape_that_overflows() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].shape = vec![1 << 32, 1 << 32]);
    assert_eq!(text, "tensor 'embed' has a shape of more bytes than can be counted");
}

#[test]
fn shape_of_more_or_fewer_bytes_than_the_pieces() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].shape = vec![1000, 9]);
    assert_eq!(text, "the pieces of tensor 'embed' hold 126 bytes but its shape has 18,000");
    let text = told_by_manifest(|manifest| manifest.tensors[0].pieces.clear());
    assert_eq!(text, "the pieces of tensor 'embed' hold 0 bytes but its shape has 126");
}

#[test]
fn shape_turned_round() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].shape = vec![9, 7]);
    assert_eq!(
        text,
        "tensor 'embed' has rows of 18 bytes in page 1, which its shape does not have"
    );
}

#[test]
fn number_type_that_the_plane_does_not_store() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].dtype = "F16".into());
    assert_eq!(
        text,
        "tensor 'embed' of type F16 cannot be stored in plane 0 of page 1 with its transforms"
    );
    let text = told_by_manifest(|manifest| manifest.tensors[8].transform.clear());
    assert!(text.starts_with("tensor 'norm' of type BF16 cannot be stored"), "{text}");
    let text = told_by_manifest(|manifest| {
        let twice = manifest.tensors[8].transform[0].clone();
        manifest.tensors[8].transform.push(twice);
    });
    assert!(text.starts_with("tensor 'norm' of type BF16 cannot be stored"), "{text}");
}

#[test]
fn piece_of_a_page_that_is_no_group_s_first_or_a_file_s() {
    for page in [0, 99, u32::MAX] {
        let text = told_by_manifest(|manifest| manifest.tensors[0].pieces[0].page = page);
        assert!(
            text.starts_with(&format!("a piece of 'embed' names page {page}, which")),
            "{text}"
        );
    }
}

#[test]
fn piece_of_a_plane_that_does_not_exist() {
    let text = told_by_manifest(|manifest| manifest.tensors[0].pieces[0].plane = 1);
    assert_eq!(text, "a piece of 'embed' names plane 1 of page 1, which has 1");
}

#[test]
fn piece_that_leaves_its_group_or_does_not_advance() {
    type Edit = fn(&mut thintensor::format::manifest::Piece);
    let edits: [Edit; 6] = [
        |p| p.rows = 8,
        |p| p.rows = 0,
        |p| p.rows = u64::MAX,
        |p| p.first_row = u64::MAX,
        |p| p.row_step = 0,
        |p| p.row_step = u64::MAX,
    ];
    for edit in edits {
        let text = told_by_manifest(|manifest| edit(&mut manifest.tensors[0].pieces[0]));
        assert!(text.contains("and the plane has 7 rows"), "{text}");
    }
}

#[test]
fn source_rows_that_are_missing_or_there_twice() {
    let text = told_by_manifest(|manifest| manifest.tensors[6].pieces[1].source_row = 2);
    assert_eq!(text, "the pieces of tensor 'experts' go on at source row 2 where 3 is next");
    let text = told_by_manifest(|manifest| manifest.tensors[0].pieces[0].source_row = 1);
    assert_eq!(text, "the pieces of tensor 'embed' go on at source row 1 where 0 is next");
}

#[test]
fn rows_that_belong_to_two_tensors() {
    // k moves onto q's last rows.
    let text = told_by_manifest(|manifest| manifest.tensors[2].pieces[0].first_row = 2);
    assert_eq!(
        text,
        "row 2 of plane 0 of page 3 (attn_qkv, layer 0) belongs to 'k' and to another piece"
    );
    // up takes gate's rows.
    let text = told_by_manifest(|manifest| manifest.tensors[5].pieces[0].first_row = 0);
    assert!(text.contains("belongs to 'up' and to another piece"), "{text}");
}

#[test]
fn rows_that_belong_to_no_tensor() {
    let text = told_by_manifest(|manifest| manifest.padding.clear());
    assert_eq!(text, "row 4 of plane 1 of page 2 (small, layer 0) belongs to no tensor");
    let text = told_by_manifest(|manifest| {
        manifest.tensors.remove(3);
    });
    assert_eq!(text, "row 6 of plane 0 of page 3 (attn_qkv, layer 0) belongs to no tensor");
}

#[test]
fn padding_that_covers_a_tensor_or_leaves_the_plane() {
    let padding = |first_row, rows| Padding { page: 3, plane: 0, first_row, rows };
    let text = told_by_manifest(|manifest| manifest.padding.push(padding(0, 1)));
    assert!(text.contains("belongs to 'padding' and to another piece"), "{text}");
    let text = told_by_manifest(|manifest| manifest.padding.push(padding(7, 2)));
    assert!(text.starts_with("a piece of 'padding' has 2 rows from row 7"), "{text}");
}

#[test]
fn file_names_that_lead_elsewhere_or_are_used_twice() {
    for name in ["../evil", "/etc/passwd", "a\\b", "", "nul.txt", "a\0", "..", "C:x"] {
        let text = told_by_manifest(|manifest| manifest.assets[0].name = name.into());
        assert_eq!(text, format!("'{name}' is not a plain file name"));
        let text = told_by_manifest(|manifest| manifest.provenance.files[0].name = name.into());
        assert_eq!(text, format!("'{name}' is not a plain file name"));
    }
    for name in ["license", "A.safetensors"] {
        let text = told_by_manifest(|manifest| manifest.assets[0].name = name.into());
        assert!(text.ends_with("is used twice"), "{text}");
    }
    // `extract` would write both to b.gguf.safetensors.
    let text = told_by_manifest(|manifest| {
        manifest.provenance.files[0].name = "b.gguf".into();
        manifest.provenance.files[1].name = "b.gguf.safetensors".into();
    });
    assert!(text.ends_with("is used twice"), "{text}");
}

#[test]
fn carried_files_and_their_pages_that_do_not_match() {
    let text = told_by_manifest(|manifest| manifest.assets[2].bytes = 5001);
    assert_eq!(text, "file 'LICENSE' has 5,001 bytes but its pages hold 5,000");
    let text = told_by_manifest(|manifest| manifest.assets[2].page = 3);
    assert_eq!(text, "file 'LICENSE' starts at page 3, which is not the first page of a file");
    let text = told_by_manifest(|manifest| {
        manifest.assets.remove(2);
    });
    assert_eq!(text, "page 10 (asset) belongs to 0 files");
    let text = told_by_manifest(|manifest| {
        let mut twice = manifest.assets[2].clone();
        twice.name = "copy".into();
        manifest.assets.push(twice);
    });
    assert_eq!(text, "page 10 (asset) belongs to 2 files");
}

#[test]
fn manifest_that_is_not_json_or_has_unknown_or_double_fields() {
    for (text, why) in [
        (&b"{]}"[..], "key must be a string"),
        (b"", "EOF"),
        (b"{}", "missing field"),
        (b"{\"surprise\":1}", "unknown field `surprise`"),
        (b"{\"spec\":1,\"spec\":2}", "duplicate field `spec`"),
        (b"{\"spec\":\"\xff\"}", "invalid unicode"),
    ] {
        let mut parts = Parts::of(&rich());
        parts.set_manifest(text);
        let error =
            Archive::from_static(parts.bytes().leak(), "m.thin").err().expect("no manifest");

        assert_eq!(error.to_string(), "the manifest of 'm.thin' cannot be read");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(cause.contains(why), "{cause}");
    }
}

#[test]
fn manifest_nested_too_deeply() {
    let deep = [b"{\"spec\":", "[".repeat(2000).as_bytes(), b"}"].concat();
    let mut parts = Parts::of(&rich());
    parts.set_manifest(&deep);

    let error = Archive::from_static(parts.bytes().leak(), "m.thin").err().expect("too deep");

    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(cause.contains("recursion limit"), "{cause}");
}

#[test]
fn manifest_of_more_values_than_its_length_explains() {
    let text = told(|parts| {
        let dense = format!("{{\"spec\":[{}0]}}", "0,".repeat(200_000));
        let region = dense.len().next_multiple_of(4096);
        let grown = region as u64 - parts.header.manifest_len;
        parts.header.manifest_len = region as u64;
        parts.header.file_len += grown;
        parts.records.iter_mut().for_each(|page| page.offset += grown);
        parts.manifest = vec![b' '; region];
        parts.set_manifest(dense.as_bytes());
    });
    assert!(text.starts_with("the manifest of 'm.thin' has 200,002 values"), "{text}");
}

#[test]
fn manifest_padded_with_something_else() {
    let text = told(|parts| *parts.manifest.last_mut().expect("not empty") = b'\n');
    assert!(text.ends_with("is 0x0a, where '}' or a space is needed"), "{text}");
}

#[test]
fn tensor_hash_of_other_bytes_is_found_by_verify_and_extract() {
    // In source order, out of source order, and empty.
    for index in [0, 7, 11] {
        let mut parts = Parts::of(&rich());
        let mut manifest = parts.manifest();
        manifest.tensors[index].hash[5] ^= 1;
        let name = manifest.tensors[index].name.clone();
        parts.set_manifest(&manifest.encode());
        let want = format!("tensor '{name}' of 'm.thin' does not unpack to its source");
        assert_deep(&parts, &want);
    }
}

#[test]
fn numbers_that_the_source_type_does_not_have_are_found_by_verify_and_extract() {
    let mut parts = Parts::of(&rich());
    edit_page(&mut parts, 2, |page| {
        page[0..4].copy_from_slice(&1.000_000_1f32.to_le_bytes());
    });
    assert_deep(&parts, "row 0 of tensor 'norm' holds 1.0000001e0, which no BF16 has");
}

#[test]
fn padding_that_is_not_zero_is_found_by_verify() {
    let mut parts = Parts::of(&rich());
    // Row 4 of the second plane, which starts at 256.
    edit_page(&mut parts, 2, |page| page[256 + 16] = 1);
    let text = verified(&parts);
    assert_eq!(
        text,
        "row 4 of page 2 of 'm.thin' (small, layer 0) belongs to no tensor but holds the byte 0x01"
    );

    let mut parts = Parts::of(&rich());
    // Rows of 18 bytes in 32.
    edit_page(&mut parts, 1, |page| page[18] = 1);
    let text = verified(&parts);
    assert!(text.ends_with("is 0x01, but the space behind a row must be zero"), "{text}");

    let mut parts = Parts::of(&rich());
    // Nine numbers of four bytes, then nothing until the next plane at 256.
    edit_page(&mut parts, 2, |page| page[36] = 1);
    let text = verified(&parts);
    assert!(text.ends_with("is 0x01, but the space behind a row must be zero"), "{text}");
}

/// Changes the bytes of a page and its hash.
fn edit_page(parts: &mut Parts, page: usize, edit: impl FnOnce(&mut [u8])) {
    let table_end = parts.header.table_off() + parts.header.table_len();
    let record = &mut parts.records[page];
    let start = (record.offset - table_end) as usize;
    let bytes = &mut parts.rest[start..start + record.stored_len as usize];
    edit(bytes);
    record.hash = *blake3::hash(bytes).as_bytes();
}

fn write_parts(parts: &Parts, folder: &Path) -> std::path::PathBuf {
    let path = folder.join("m.thin");
    std::fs::write(&path, parts.bytes()).expect("writable");
    path
}

/// The only problem that `verify` finds.
fn verified(parts: &Parts) -> String {
    let folder = tempfile::tempdir().expect("scratch folder");
    let report = verify(&write_parts(parts, folder.path()), &quiet).expect("readable");
    let problems: Vec<_> = report.checks.iter().flat_map(|check| check.problems.clone()).collect();
    assert_eq!(problems.len(), 1, "{report:#?}");
    assert!(!report.ok);
    problems[0].clone()
}

/// `verify` and `extract` say this, and `extract` leaves no file that holds the tensor.
fn assert_deep(parts: &Parts, want: &str) {
    let text = verified(parts);
    assert!(text.starts_with(want), "{text}");

    let folder = tempfile::tempdir().expect("scratch folder");
    let archive = Archive::open(&write_parts(parts, folder.path())).expect("agrees with itself");
    let out = folder.path().join("out");
    let error = extract(&archive, &out, false, &quiet).expect_err("wrong bytes");
    assert!(error.to_string().starts_with(want), "{error}");
    let file = archive
        .manifest()
        .tensors
        .iter()
        .find(|tensor| want.contains(&format!("'{}'", tensor.name)))
        .map(|tensor| tensor.file as usize)
        .expect("a tensor is named");
    let name = &archive.manifest().provenance.files[file].name;
    assert!(!out.join(name).exists());
}

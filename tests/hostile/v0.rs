//! Lies of a version-0 archive, each told by a file that is otherwise right.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::case::{Case, case, command, fixture};

/// A version-0 archive taken apart.
pub(crate) struct Parts {
    pub(crate) manifest: Value,
    pub(crate) records: Vec<Record>,
    /// The manifest's bytes, where they are no JSON of ours.
    pub(crate) text: Option<Vec<u8>>,
    /// Bytes of each page.
    data: Vec<Vec<u8>>,
}

/// A page-table record. Offsets are set when the file is put together, and then moved by `shift`.
pub(crate) struct Record {
    id: Vec<u8>,
    shift: u64,
    stored: u64,
    raw: u64,
    flags: u32,
    hash: [u8; 32],
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Parts {
    pub(crate) fn of(name: &str) -> Self {
        let file = std::fs::read(fixture(&format!("compat/{name}.thin"))).expect("an archive");
        let (length, table) = (number(&file, 24) as usize, number(&file, 32) as usize);
        let manifest = serde_json::from_slice(&file[88..88 + length]).expect("JSON");
        let (mut records, mut data, mut at) = (Vec::new(), Vec::new(), table);
        for _ in 0..number(&file, 40) {
            let length = usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
            let id = file[at + 2..at + 2 + length].to_vec();
            at += 2 + length;
            let (offset, stored) = (number(&file, at) as usize, number(&file, at + 8));
            let hash = file[at + 28..at + 60].try_into().expect("a hash");
            data.push(file[offset..offset + stored as usize].to_vec());
            records.push(Record { id, shift: 0, stored, raw: stored, flags: 0, hash });
            at += 60;
        }
        Parts { manifest, records, data, text: None }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let text = match &self.text {
            Some(text) => text.clone(),
            None => serde_json::to_vec_pretty(&self.manifest).expect("JSON"),
        };
        let table: usize = self.records.iter().map(|record| 62 + record.id.len()).sum();
        let data_off = (88 + text.len() + table) as u64;
        let mut file = b"THINv0\0\0".to_vec();
        file.extend(88u32.to_le_bytes());
        file.extend(0u32.to_le_bytes());
        let count = self.records.len() as u64;
        for value in [88, text.len() as u64, 88 + text.len() as u64, count, data_off] {
            file.extend(value.to_le_bytes());
        }
        file.extend([0; 32]);
        file.extend(&text);
        let mut offset = data_off;
        for (record, data) in self.records.iter().zip(&self.data) {
            file.extend((record.id.len() as u16).to_le_bytes());
            file.extend(&record.id);
            for value in [offset.wrapping_add(record.shift), record.stored, record.raw] {
                file.extend(value.to_le_bytes());
            }
            file.extend(record.flags.to_le_bytes());
            file.extend(record.hash);
            offset += data.len() as u64;
        }
        self.data.iter().for_each(|data| file.extend(data));
        file
    }
}

fn write(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("lie.thin");
    std::fs::write(&path, bytes).expect("written");
    path
}

/// The file with bytes changed, given to `verify`.
fn file(folder: &Path, lie: impl FnOnce(&mut Vec<u8>)) -> Vec<OsString> {
    let mut bytes = Parts::of("tiny-llama").bytes();
    lie(&mut bytes);
    command("verify FILE", &write(folder, &bytes))
}

fn parts(folder: &Path, words: &str, name: &str, lie: impl FnOnce(&mut Parts)) -> Vec<OsString> {
    let mut parts = Parts::of(name);
    lie(&mut parts);
    command(words, &write(folder, &parts.bytes()))
}

fn records(folder: &Path, lie: impl FnOnce(&mut Parts)) -> Vec<OsString> {
    parts(folder, "verify FILE", "tiny-llama", lie)
}

/// A value of the manifest replaced, found by its JSON pointer.
fn manifest(folder: &Path, pointer: &str, value: Value) -> Vec<OsString> {
    records(folder, |parts| set(parts, pointer, value))
}

fn set(parts: &mut Parts, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    match parts.manifest.pointer_mut(parent).expect("there") {
        Value::Object(fields) => drop(fields.insert(key.to_owned(), value)),
        Value::Array(list) => list[key.parse::<usize>().expect("an index")] = value,
        other => panic!("{other}"),
    }
}

fn header(folder: &Path, at: usize, value: u64) -> Vec<OsString> {
    file(folder, |bytes| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()))
}

/// The file whose manifest is this text.
fn text(folder: &Path, text: &[u8]) -> Vec<OsString> {
    records(folder, |parts| parts.text = Some(text.to_vec()))
}

/// Cuts the text of the manifest where `from` stands and puts `to` there.
fn edited(folder: &Path, from: &str, to: &str) -> Vec<OsString> {
    let whole = serde_json::to_string(&Parts::of("tiny-llama").manifest).expect("JSON");
    assert!(whole.contains(from), "{from} is not in the manifest");
    text(folder, whole.replacen(from, to, 1).as_bytes())
}

const L: &str = "v0 l";

pub(crate) fn cases() -> Vec<Case> {
    let mut all = file_cases();
    all.extend(record_cases());
    all.extend(manifest_cases());
    all.extend(use_cases());
    all
}

fn file_cases() -> Vec<Case> {
    vec![
        case("v0_empty_file", L, |f| file(f, Vec::clear), "is not a .thin archive"),
        case("v0_wrong_magic", L, |f| file(f, |b| b[5] = b'9'), "version"),
        case("v0_header_cut", L, |f| file(f, |b| b.truncate(40)), "the file has 40"),
        case("v0_manifest_cut", L, |f| file(f, |b| b.truncate(2000)), "but the file has 2,000"),
        case(
            "v0_page_table_cut",
            L,
            |f| {
                file(f, |b| {
                    let table = number(b, 32) as usize;
                    b.truncate(table + 1500);
                })
            },
            "is cut: the file ends at byte",
        ),
        case(
            "v0_last_byte_missing",
            L,
            |f| file(f, |b| b.truncate(b.len() - 1)),
            "but the file has",
        ),
        case(
            "v0_payload_byte_flipped",
            L,
            |f| {
                file(f, |b| {
                    let last = b.len() - 1;
                    b[last] ^= 1;
                })
            },
            "is damaged: its hash is",
        ),
        case(
            "v0_header_length_89",
            L,
            |f| file(f, |b| b[8] = 89),
            "header's length is 89, where 88",
        ),
        case("v0_version_1", L, |f| file(f, |b| b[12] = 1), "version is 1, where 0"),
        case("v0_manifest_offset_89", L, |f| header(f, 16, 89), "manifest offset is 89, where 88"),
        case("v0_manifest_length_2_63", L, |f| header(f, 24, 1 << 63), "the manifest has 9,223"),
        case("v0_manifest_length_max", L, |f| header(f, 24, u64::MAX), "the manifest has 18,446"),
        case("v0_manifest_length_0", L, |f| text(f, b""), "the manifest cannot be read: EOF"),
        case("v0_page_count_2_60", L, |f| header(f, 40, 1 << 60), "the header states 1,152,921"),
        case("v0_page_count_2_33", L, |f| header(f, 40, 1 << 33), "the header states 8,589,934"),
        case("v0_page_count_2_24", L, |f| header(f, 40, 1 << 24), "the header states 16,777,216"),
        case("v0_page_count_0", L, |f| header(f, 40, 0), "data offset is"),
        case("v0_table_offset_past_the_end", L, |f| header(f, 32, 1 << 40), "page table offset is"),
        case("v0_data_offset_0", L, |f| header(f, 48, 0), "data offset is 0, where"),
        case("v0_reserved_hash_not_zero", L, |f| header(f, 56, 7), "reserved bytes"),
        case(
            "v0_junk_after_the_last_page",
            L,
            |f| file(f, |b| b.extend([7; 4096])),
            "pages end at",
        ),
    ]
}

fn record_cases() -> Vec<Case> {
    vec![
        case(
            "v0_offset_past_the_end",
            L,
            |f| records(f, |p| p.records[3].shift = 1 << 40),
            "starts",
        ),
        case(
            "v0_offset_overflows",
            L,
            |f| records(f, |p| p.records[3].shift = u64::MAX - 16_000),
            "starts at byte",
        ),
        case(
            "v0_page_size_2_40",
            L,
            |f| records(f, |p| (p.records[3].stored, p.records[3].raw) = (1 << 40, 1 << 40)),
            "of 1,099,511,627,776 bytes",
        ),
        case(
            "v0_page_size_2_62",
            L,
            |f| records(f, |p| (p.records[3].stored, p.records[3].raw) = (1 << 62, 1 << 62)),
            "of 4,611,686,018,427,387,904 bytes",
        ),
        case(
            "v0_page_size_max",
            L,
            |f| records(f, |p| (p.records[3].stored, p.records[3].raw) = (u64::MAX, u64::MAX)),
            "of 18,446,744,073,709,551,615 bytes",
        ),
        case("v0_raw_size_differs", "v0", |f| records(f, |p| p.records[3].raw += 1), "raw size"),
        case("v0_flags", L, |f| records(f, |p| p.records[3].flags = 1), "flags 0x1"),
        case(
            "v0_duplicate_record",
            L,
            |f| records(f, |p| p.records[3].id = p.records[2].id.clone()),
            "is there twice",
        ),
        case(
            "v0_overlapping_pages",
            L,
            |f| records(f, |p| p.records[3].shift = 0u64.wrapping_sub(8)),
            "but what lies before it ends at",
        ),
        case(
            "v0_gap_between_pages",
            "v0",
            |f| records(f, |p| p.records[3].shift = 8),
            "but what lies before it ends at",
        ),
        case(
            "v0_id_of_no_bytes",
            "v0",
            |f| records(f, |p| p.records[3].id.clear()),
            "id of 0 bytes",
        ),
        case("v0_id_endless", "v0", |f| records(f, |p| p.records[3].id = vec![b'a'; 5000]), "5000"),
        case("v0_id_not_text", "v0", |f| records(f, |p| p.records[3].id[0] = 0xff), "not UTF-8"),
        case(
            "v0_record_without_a_page",
            "v0",
            |f| records(f, |p| p.records[3].id[0] = b'x'),
            "in the page table but not",
        ),
        case("v0_record_hash_differs", "v0", |f| records(f, |p| p.records[3].hash[0] ^= 1), "hash"),
    ]
}

fn manifest_cases() -> Vec<Case> {
    vec![
        case(
            "v0_kv_heads_3_of_4",
            L,
            |f| manifest(f, "/model/kv_heads", json!(3)),
            "cannot share 3",
        ),
        case("v0_kv_heads_above_heads", "v0", |f| manifest(f, "/model/kv_heads", json!(8)), "is 8"),
        case("v0_shape_7_13", L, |f| manifest(f, "/pages/0/shape", json!([7, 13])), "takes 182"),
        case("v0_dtype_banana", L, |f| manifest(f, "/pages/0/dtype", json!("banana")), "'banana'"),
        case(
            "v0_shape_empty",
            "v0",
            |f| manifest(f, "/pages/0/shape", json!([])),
            "impossible shape",
        ),
        case("v0_shape_zero", "v0", |f| manifest(f, "/pages/0/shape", json!([0, 4])), "impossible"),
        case(
            "v0_shape_overflows",
            "v0",
            |f| manifest(f, "/pages/0/shape", json!([1u64 << 40, 1u64 << 40])),
            "impossible shape",
        ),
        case(
            "v0_page_id_evil",
            L,
            |f| manifest(f, "/pages/0/id", json!("../../evil")),
            "plain name",
        ),
        case(
            "v0_page_id_with_escapes",
            "v0",
            |f| manifest(f, "/pages/0/id", json!("a\u{1b}[2J")),
            "is not a plain name",
        ),
        case(
            "v0_unknown_operator",
            L,
            |f| manifest(f, "/execution_tape/0/operator", json!("teleport")),
            "unknown operator 'teleport'",
        ),
        case(
            "v0_tape_names_a_missing_page",
            L,
            |f| manifest(f, "/execution_tape/0/page_refs", json!(["nowhere"])),
            "uses page 'nowhere'",
        ),
        case("v0_layers_missing", L, |f| edited(f, "\"layers\":2,", ""), "missing field `layers`"),
        case(
            "v0_layers_2_32",
            L,
            |f| manifest(f, "/model/layers", json!(1u64 << 32)),
            "4294967296",
        ),
        case(
            "v0_duplicate_key",
            L,
            |f| edited(f, "\"heads\":4,", "\"heads\":4,\"heads\":4,"),
            "heads",
        ),
        case(
            "v0_layers_max",
            L,
            |f| manifest(f, "/model/layers", json!(u32::MAX)),
            "layers is 4,294",
        ),
        case(
            "v0_head_dim_2_63",
            L,
            |f| manifest(f, "/model/head_dim", json!(1u64 << 63)),
            "head_dim is",
        ),
        case(
            "v0_scratch_max",
            L,
            |f| manifest(f, "/memory_plan/scratch_bytes", json!(u64::MAX)),
            "less than the 18,446",
        ),
        case(
            "v0_nested_200000_deep",
            L,
            |f| text(f, &[b'['; 200_000]),
            "the manifest has 200,000 values",
        ),
        case(
            "v0_nested_10000_deep",
            "v0",
            |f| text(f, &[br#"{"format":"#.to_vec(), vec![b'['; 10_000]].concat()),
            "cannot be read",
        ),
        case("v0_manifest_not_utf8", L, edited_bytes, "cannot be read"),
        case(
            "v0_child_of_a_missing_parent",
            L,
            |f| fused(f, "/fused_to", json!("nowhere")),
            "is not a fused page",
        ),
        case(
            "v0_child_outside_its_parent",
            "v0",
            |f| fused(f, "/fused_offset", json!(1u64 << 40)),
            "next",
        ),
        case("v0_child_overflows", "v0", |f| fused(f, "/fused_offset", json!(u64::MAX)), "is next"),
        case("v0_children_overlap", "v0", |f| fused(f, "/fused_offset", json!(8)), "is next"),
        case(
            "v0_child_without_offset",
            "v0",
            |f| fused(f, "/fused_offset", Value::Null),
            "only one of",
        ),
        case(
            "v0_unknown_kind",
            "v0",
            |f| manifest(f, "/pages/0/kind", json!("poem")),
            "kind 'poem'",
        ),
        case(
            "v0_layer_beyond",
            "v0",
            |f| manifest(f, "/pages/2/layer", json!(2)),
            "the model has 2",
        ),
        case(
            "v0_checksum_upper_case",
            "v0",
            |f| manifest(f, "/pages/0/checksum", json!("AB")),
            "'AB'",
        ),
        case("v0_no_pages", "v0", |f| manifest(f, "/pages", json!([])), "list of pages is empty"),
        case(
            "v0_vocab_contradicts",
            "v0",
            |f| manifest(f, "/model/vocab_size", json!(99)),
            "is 99",
        ),
        case(
            "v0_hidden_contradicts",
            "v0",
            |f| manifest(f, "/model/hidden_size", json!(32)),
            "is 32",
        ),
        case("v0_dense_manifest", "v0", |f| text(f, &b"[0,".repeat(100_000)), "more than the"),
    ]
}

fn edited_bytes(folder: &Path) -> Vec<OsString> {
    let mut whole = serde_json::to_vec(&Parts::of("tiny-llama").manifest).expect("JSON");
    let at = whole.windows(5).position(|window| window == b"llama").expect("there");
    whole[at] = 0xff;
    text(folder, &whole)
}

/// A page inside another, of the archive that has such, changed.
fn fused(folder: &Path, field: &str, value: Value) -> Vec<OsString> {
    parts(folder, "verify FILE", "tiny-llama.fused_decode_v1", |parts| {
        let pages = parts.manifest["pages"].as_array().expect("pages");
        let child = pages
            .iter()
            .position(|page| page["fused_offset"].as_u64().is_some_and(|offset| offset > 0));
        let pointer = format!("/pages/{}{field}", child.expect("a child"));
        set(parts, &pointer, value);
    })
}

/// Files that `verify` finds right, and that cannot be run, or are noticed elsewhere.
fn use_cases() -> Vec<Case> {
    const RUN: &str = "run FILE --tokens 1,2 --max-tokens 1 --device cpu";
    let ok = |case: Case| Case { exit: 0, ..case };
    vec![
        ok(case(
            "v0_rope_theta_changed",
            "v0 l: cannot be noticed",
            |f| manifest(f, "/model/rope_theta", json!(500)),
            "version 0 has no hash over its settings",
        )),
        ok(case(
            "v0_unknown_json_field",
            "v0 l: ignored outside model",
            |f| manifest(f, "/pages/0/colour", json!("blue")),
            "version 0 has no hash",
        )),
        case(
            "v0_unknown_model_field",
            "v0",
            |f| parts(f, RUN, "tiny-llama", |p| set(p, "/model/attention_warp", json!(2))),
            "model.attention_warp: 2 has no meaning",
        ),
        case(
            "v0_layer_norm",
            "v0",
            |f| parts(f, RUN, "tiny-llama", |p| set(p, "/model/norm_kind", json!("layer_norm"))),
            "norm_kind",
        ),
        case(
            "v0_family_not_recorded_in_full",
            "v0",
            |f| parts(f, RUN, "tiny-llama", |p| set(p, "/model/model_type", json!("granite"))),
            "does not record every setting of granite",
        ),
        case(
            "v0_family_not_supported",
            "v0",
            |_| command(RUN, &fixture("compat/tiny-gptoss.thin")),
            "not supported by this version",
        ),
        case(
            "v0_payload_byte_flipped_and_run",
            "v0",
            |f| {
                let mut bytes = Parts::of("tiny-llama").bytes();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                command(RUN, &write(f, &bytes))
            },
            "is damaged",
        ),
        case(
            "v0_payload_byte_flipped_and_extracted",
            "v0",
            |f| {
                let mut bytes = Parts::of("tiny-llama").bytes();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                command("extract FILE -o out", &write(f, &bytes))
            },
            "is damaged",
        ),
        case(
            "v0_intermediate_size_contradicts",
            "v0",
            |f| parts(f, RUN, "tiny-llama", |p| set(p, "/model/intermediate_size", json!(64))),
            "intermediate_size",
        ),
    ]
}

//! Archives that nobody wrote: random bytes behind a valid header, and sound archives with fields changed and
//! hashes made right. Nothing panics, and memory stays within a small multiple of the file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::*;
use thintensor::format::extract::extract;
use thintensor::format::header::Header;
use thintensor::format::verify::verify;
use thintensor::format::{Archive, PageId, Pages, asset, groups};

use crate::double::{quiet, rich};
use crate::parts::Parts;

/// Counts what each thread holds.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // A thread that ends has no counters any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that `work` held at once beyond what was held before.
fn peak_of(work: impl FnOnce()) -> isize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    PEAK.get() - before
}

/// Does with these bytes all that can be done with an archive.
fn use_up(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");
    std::fs::write(&path, bytes).expect("writable");

    let peak = peak_of(|| {
        let report = verify(&path, &quiet).expect("readable");
        let Ok(archive) = Archive::open(&path) else {
            assert!(!report.ok, "what cannot be opened does not verify");
            return;
        };
        assert!(!groups(archive.pages()).is_empty() || archive.pages().is_empty());
        let mut page = Vec::new();
        for record in archive.pages() {
            page.resize(record.stored_len as usize, 0);
            let _ = archive.read(PageId(record.id), &mut page);
        }
        for file in archive.manifest().assets.clone() {
            let _ = asset(&archive, &file.name);
        }
        let extracted = extract(&archive, &folder.path().join("out"), false, &quiet);
        assert!(extracted.is_ok() || !report.ok, "what verifies can be extracted");
    });

    // `extract` writes through a buffer of 1 MiB; a parsed manifest takes more than its text.
    let bound = (4 << 20) + 16 * bytes.len() as isize;
    assert!(peak < bound, "{peak} bytes for a file of {}", bytes.len());
}

/// Numbers at which arithmetic goes wrong.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        prop::sample::select(vec![
            0,
            1,
            2,
            3,
            7,
            8,
            9,
            255,
            256,
            4095,
            4096,
            8192,
            16_384,
            20_480,
            40_960,
            (32 << 20) - 1,
            32 << 20,
            (32 << 20) + 1,
            (1 << 31) - 1,
            1 << 31,
            u64::from(u32::MAX),
            1 << 32,
            1 << 40,
            1 << 53,
            1 << 62,
            (1 << 63) - 1,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ]),
        any::<u64>(),
        0u64..100,
    ]
}

/// Sets one field of a page record, by position in the record.
fn set_record(parts: &mut Parts, page: usize, field: usize, value: u64) {
    let page = page % parts.records.len();
    let record = &mut parts.records[page];
    let small = value as u32;
    match field % 11 {
        0 => record.id = small,
        1 => {
            let roles = thintensor::format::Role::ALL;
            record.role = roles[value as usize % roles.len()];
        }
        2 => record.layer = (!small.is_multiple_of(3)).then_some(small),
        3 => record.expert = (!small.is_multiple_of(3)).then_some(small),
        4 => {
            let formats = thintensor::quant::Format::ALL;
            record.format = formats[value as usize % formats.len()];
        }
        5 => record.offset = value,
        6 => record.stored_len = value,
        7 => record.descriptor = small,
        8 => record.part = small,
        9 => record.first_row = small,
        _ => record.rows = small,
    }
}

/// All numbers, strings and lists of a JSON value, by way of which they are changed.
fn leaves(value: &mut serde_json::Value) -> Vec<&mut serde_json::Value> {
    use serde_json::Value;
    match value {
        Value::Object(map) => map.iter_mut().flat_map(|(_, value)| leaves(value)).collect(),
        Value::Array(list) => list.iter_mut().flat_map(leaves).collect(),
        leaf => vec![leaf],
    }
}

/// The list number `n` of those that have something in them.
fn nth_list<'a>(
    value: &'a mut serde_json::Value,
    n: &mut usize,
) -> Option<&'a mut Vec<serde_json::Value>> {
    use serde_json::Value;
    match value {
        Value::Object(map) => map.iter_mut().find_map(|(_, value)| nth_list(value, n)),
        Value::Array(list) => {
            if *n == 0 && !list.is_empty() {
                return Some(list);
            }
            *n = n.saturating_sub(usize::from(!list.is_empty()));
            list.iter_mut().find_map(|value| nth_list(value, n))
        }
        _ => None,
    }
}

/// One change of a manifest.
#[derive(Clone, Debug)]
enum Edit {
    Number(usize, u64),
    Text(usize, String),
    Drop(usize, usize),
    Double(usize, usize),
    Swap(usize, usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let text = prop::sample::select(vec![
        "",
        "F16",
        "F32",
        "BF16",
        "I64",
        "U8",
        "embed",
        "q",
        "f32",
        "f16",
        "bytes",
        "codes",
        "scales",
        "../x",
        "a.safetensors",
        "none",
        "0000000000000000000000000000000000000000000000000000000000000000",
    ]);
    prop_oneof![
        4 => (any::<usize>(), number()).prop_map(|(at, value)| Edit::Number(at, value)),
        1 => (any::<usize>(), text).prop_map(|(at, text)| Edit::Text(at, text.into())),
        1 => (0usize..60, any::<usize>()).prop_map(|(list, at)| Edit::Drop(list, at)),
        1 => (0usize..60, any::<usize>()).prop_map(|(list, at)| Edit::Double(list, at)),
        1 => (0usize..60, any::<usize>(), any::<usize>()).prop_map(|(l, a, b)| Edit::Swap(l, a, b)),
    ]
}

fn apply(manifest: &mut serde_json::Value, edit: &Edit) {
    let nth = |manifest: &mut serde_json::Value,
               mut n: usize,
               change: &dyn Fn(&mut Vec<serde_json::Value>)| {
        if let Some(list) = nth_list(manifest, &mut n) {
            change(list);
        }
    };
    match edit {
        Edit::Number(at, value) => {
            let mut numbers = leaves(manifest);
            numbers.retain(|leaf| leaf.is_number());
            let at = at % numbers.len();
            *numbers[at] = (*value).into();
        }
        Edit::Text(at, text) => {
            let mut texts = leaves(manifest);
            texts.retain(|leaf| leaf.is_string());
            let at = at % texts.len();
            *texts[at] = text.clone().into();
        }
        Edit::Drop(list, at) => nth(manifest, *list, &|list| {
            list.remove(at % list.len());
        }),
        Edit::Double(list, at) => nth(manifest, *list, &|list| {
            let twice = list[at % list.len()].clone();
            list.push(twice);
        }),
        Edit::Swap(list, a, b) => nth(manifest, *list, &|list| {
            let len = list.len();
            list.swap(a % len, b % len);
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn changed_manifest_never_panics_nor_takes_memory(edits in prop::collection::vec(edit(), 1..4)) {
        let mut parts = sound().clone();
        let end = parts.manifest.iter().rposition(|&byte| byte != b' ').expect("JSON");
        let mut manifest = serde_json::from_slice(&parts.manifest[..=end]).expect("JSON");
        edits.iter().for_each(|edit| apply(&mut manifest, edit));
        parts.set_manifest(manifest.to_string().as_bytes());

        use_up(&parts.bytes());
    }

    #[test]
    fn changed_page_table_never_panics_nor_takes_memory(
        edits in prop::collection::vec((any::<usize>(), any::<usize>(), number()), 1..4),
        count in prop::option::of(number()),
        file_len in prop::option::weighted(0.2, number()),
    ) {
        let mut parts = sound().clone();
        for (page, field, value) in edits {
            set_record(&mut parts, page, field, value);
        }
        if let Some(count) = count {
            parts.header.count = count as u32;
        }
        if let Some(file_len) = file_len {
            parts.header.file_len = file_len;
        }

        use_up(&parts.bytes());
    }

    #[test]
    fn random_bytes_behind_a_header_never_panic_nor_take_memory(
        manifest_len in 1u64..3,
        count in 0u32..200,
        stray in prop::option::weighted(0.2, number()),
        bytes in prop::collection::vec(any::<u8>(), 0..40_000),
    ) {
        let mut header = Header {
            manifest_len: manifest_len * 4096,
            count,
            file_len: 4096 + bytes.len() as u64,
            archive_hash: [0; 32],
        };
        let table = header.table_off() as usize - 4096;
        let end = table + header.table_len() as usize;
        if let (Some(text), Some(table)) = (bytes.get(..table), bytes.get(table..end)) {
            header.archive_hash = header.hash(text, table);
        }
        if let Some(value) = stray {
            header.file_len = value;
        }
        let file = [header.encode(), bytes].concat();

        use_up(&file);
    }

    #[test]
    fn random_records_behind_a_sound_manifest_never_panic_nor_take_memory(
        page in any::<usize>(),
        bytes in prop::collection::vec(any::<u8>(), 128),
    ) {
        let parts = sound().clone();
        let mut file = parts.bytes();
        let start = parts.header.table_off() as usize + page % parts.records.len() * 128;
        // Codes this version knows, so that decoding goes on.
        let mut record = bytes;
        record[4] %= 13;
        record[5..8].fill(0);
        record[16] %= 4;
        record[17..24].fill(0);
        let stored: [u8; 8] = record[32..40].try_into().expect("8 bytes");
        record[40..48].copy_from_slice(&stored);
        record[96..].fill(0);
        file[start..start + 128].copy_from_slice(&record);
        let mut header = parts.header.clone();
        let table = header.table_off() as usize;
        let end = table + header.table_len() as usize;
        header.archive_hash = header.hash(&file[4096..table], &file[table..end]);
        file[..4096].copy_from_slice(&header.encode());

        use_up(&file);
    }
}

/// Made once: a thousand cases start from it.
fn sound() -> &'static Parts {
    static SOUND: std::sync::OnceLock<Parts> = std::sync::OnceLock::new();
    SOUND.get_or_init(|| Parts::of(&rich()))
}

#[test]
fn files_of_a_few_bytes_are_refused_at_once() {
    for bytes in [&b""[..], b"T", b"THINv1\0", b"THINv1\0\0", b"THINv1\0\0\x01\0\0\0", &[0xff; 8]] {
        let peak = peak_of(|| {
            assert!(Archive::from_static(bytes.to_vec().leak(), "x").is_err());
        });
        assert!(peak < 1 << 16, "{peak}");
    }
}

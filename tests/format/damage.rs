//! Every byte is covered: one changed, missing or added byte is noticed, and the message says where.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use thintensor::format::header::Header;
use thintensor::format::verify::{Report, verify};
use thintensor::format::{Archive, Error, PageId, Pages, asset};

use crate::double::{Model, quiet, rich, small};

fn written(model: &Model, folder: &Path) -> Vec<u8> {
    model.write(folder, "model.thin");
    std::fs::read(folder.join("model.thin")).expect("there")
}

fn problems(report: &Report) -> String {
    let all = report.checks.iter().flat_map(|check| &check.problems);
    all.cloned().collect::<Vec<_>>().join("\n")
}

#[test]
fn verify_names_the_place_of_any_changed_byte() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let bytes = written(&small(), folder.path());
    let path = folder.path().join("model.thin");
    let header = Header::decode("model.thin", &bytes).expect("own bytes");
    let pages = Archive::open(&path).expect("own archive").pages().to_vec();
    let mut file = File::options().write(true).open(&path).expect("writable");
    let mut put = |at: u64, byte: u8| {
        file.seek(SeekFrom::Start(at)).expect("seekable");
        file.write_all(&[byte]).expect("writable");
    };

    for (at, &byte) in bytes.iter().enumerate() {
        // Another bit each time, so that all eight are met.
        let changed = byte ^ 1 << (at % 8);
        put(at as u64, changed);
        let report = verify(&path, &quiet).expect("readable");
        let opened = Archive::open(&path);
        let read = pages
            .iter()
            .find(|page| (page.offset..page.offset + page.stored_len).contains(&(at as u64)))
            .map(|page| {
                let archive = Archive::open(&path).expect("pages are not read when opened");
                let mut out = vec![0; page.stored_len as usize];
                (page, archive.read(PageId(page.id), &mut out))
            });
        put(at as u64, byte);

        let text = problems(&report);
        assert!(!report.ok, "byte {at} changed and nobody noticed");
        let at = at as u64;
        let table_end = header.table_off() + header.table_len();
        if let Some((page, read)) = read {
            let start =
                format!("page {} of 'model.thin' ({}) is damaged", page.id, page.place().meaning());
            assert!(text.starts_with(&start), "byte {at}: {text}");
            assert!(text.contains("; it holds '"), "byte {at}: {text}");
            let error = read.expect_err("damaged");
            assert!(error.to_string().starts_with(&start), "{error}");
        } else if at >= header.data_off() {
            assert!(text.contains("the space behind a page must be zero"), "byte {at}: {text}");
            assert!(opened.is_ok(), "gaps are not read when opened");
        } else if at >= table_end {
            assert!(text.contains("the space behind the page table"), "byte {at}: {text}");
            assert!(opened.is_err());
        } else {
            let named = text.contains("header, manifest or page table of 'model.thin' was changed")
                || text.contains("the header of 'model.thin'")
                || text.contains("is not a .thin archive")
                || text.contains(".thin format version")
                || text.contains("the rest of the header must be zero")
                || text.contains("of 'model.thin' ends at byte");
            assert!(named, "byte {at}: {text}");
            assert!(opened.is_err());
        }
    }
    assert!(verify(&path, &quiet).expect("readable").ok, "all bytes are back");
}

#[test]
fn file_cut_at_any_length_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let bytes = written(&small(), folder.path());
    let path = folder.path().join("model.thin");
    let file = File::options().write(true).open(&path).expect("writable");

    for len in (0..bytes.len() as u64).rev() {
        file.set_len(len).expect("writable");

        let report = verify(&path, &quiet).expect("readable");
        assert!(!report.ok, "{len} bytes");
        assert!(!problems(&report).is_empty(), "{len} bytes");
        let Err(error) = Archive::open(&path) else {
            panic!("{len} bytes were taken for an archive");
        };
        assert!(error.hint().is_some(), "{len} bytes: {error}");
        if len >= 16 {
            let grouped = |n: u64| match n {
                0..1000 => n.to_string(),
                _ => format!("{},{:03}", n / 1000, n % 1000),
            };
            assert!(error.to_string().contains(&grouped(len)), "{len}: {error}");
        }
    }
}

#[test]
fn a_cut_page_is_named_with_its_end_and_the_files() {
    let folder = tempfile::tempdir().expect("scratch folder");
    written(&small(), folder.path());
    let path = folder.path().join("model.thin");
    let pages = Archive::open(&path).expect("own archive").pages().to_vec();
    let file = File::options().write(true).open(&path).expect("writable");
    file.set_len(pages[1].offset).expect("writable");

    let error = Archive::open(&path).err().expect("cut");

    // The small page has nine F32 numbers in a plane of 256 bytes, and starts at 16,384.
    assert_eq!(
        error.to_string(),
        "page 1 of 'model.thin' ends at byte 16,640 but the file has 16,384 (small)"
    );
    assert!(error.hint().expect("a hint").contains("download may be incomplete"));
}

#[test]
fn a_file_cut_after_it_was_opened_gives_an_error_and_no_signal() {
    let folder = tempfile::tempdir().expect("scratch folder");
    written(&small(), folder.path());
    let path = folder.path().join("model.thin");
    let archive = Archive::open(&path).expect("own archive");
    let page = archive.pages()[1].clone();
    let file = File::options().write(true).open(&path).expect("writable");
    file.set_len(page.offset + 1).expect("writable");

    let mut out = vec![0; page.stored_len as usize];
    let error = archive.read(PageId(1), &mut out).expect_err("cut");

    assert!(error.to_string().contains("but the file has 16,385"), "{error}");
}

#[test]
fn bytes_after_the_end_are_refused() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut bytes = written(&small(), folder.path());
    let len = bytes.len();
    let path = folder.path().join("model.thin");
    bytes.push(0);
    std::fs::write(&path, &bytes).expect("writable");

    let report = verify(&path, &quiet).expect("readable");
    let error = Archive::open(&path).err().expect("too long");

    assert_eq!(len, 24_576);
    let want = "'model.thin' has 24,577 bytes but its header says 24,576";
    assert_eq!(error.to_string(), want);
    assert!(!report.ok && problems(&report).contains(want));
}

#[test]
fn a_damaged_page_is_reported_with_the_tensors_it_holds() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut bytes = written(&rich(), folder.path());
    let path = folder.path().join("model.thin");
    let pages = Archive::open(&path).expect("own archive").pages().to_vec();
    let qkv = pages.iter().find(|page| page.role.name() == "attn_qkv").expect("there");
    bytes[qkv.offset as usize] ^= 1;
    std::fs::write(&path, &bytes).expect("writable");

    let report = verify(&path, &quiet).expect("readable");

    let text = problems(&report);
    assert!(text.contains("(attn_qkv, layer 0) is damaged"), "{text}");
    assert!(text.ends_with("; it holds 'q', 'k' and 1 more"), "{text}");
    let archive = Archive::open(&path).expect("pages are read later");
    assert!(asset(&archive, "config.json").is_ok());
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["ok"], false);
    assert_eq!(json["checks"][0]["status"], "passed");
}

#[test]
fn a_missing_file_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("none.thin");

    let error = Archive::open(&path).err().expect("missing");

    assert!(matches!(error, Error::Io { .. }));
    assert!(error.to_string().contains("none.thin"), "{error}");
    assert!(verify(&path, &quiet).is_err());
    assert!(Archive::open(folder.path()).is_err(), "a folder");
}

#[test]
fn archives_of_the_first_format_are_named_as_such() {
    let error =
        Archive::from_static(b"THINv0\0\0\x58\0\0\0\0\0\0\0", "old.thin").err().expect("version 0");

    assert_eq!(
        error.to_string(),
        "'old.thin' is not a .thin archive: it is a .thin archive of format version 0"
    );
    assert!(error.hint().expect("a hint").contains("thin convert"));
}

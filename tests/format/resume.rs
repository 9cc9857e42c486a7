//! Writing that stops, and what is left of it: never a file of the final name, always a way to go on.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use thintensor::format::geometry::Geometry;
use thintensor::format::verify::verify;
use thintensor::format::writer::{WriteOptions, WriteReport, write};
use thintensor::format::{Error, Event, Notice, Pages, Role};
use thintensor::quant::Format;

use crate::double::{Model, Stopping, quiet, rich, small, whole};

/// Writes with `resume` and collects the notices.
fn resume(pages: &dyn Pages, path: &Path) -> (Result<WriteReport, thintensor::Error>, Vec<Notice>) {
    let notices = Mutex::new(Vec::new());
    let note = |event| {
        if let Event::Notice(notice) = event {
            notices.lock().expect("unpoisoned").push(notice);
        }
    };
    let options = WriteOptions {
        force: false,
        resume: true,
        progress: &note,
        cancel: &AtomicBool::new(false),
    };
    let result = write(pages, path, &options);
    (result, notices.into_inner().expect("unpoisoned"))
}

/// Writes until `after` pages were packed.
fn interrupted(model: &Model, path: &Path, after: usize) -> Error {
    let cancel = AtomicBool::new(after == 0);
    let stopping = Stopping { model, after, packed: AtomicUsize::new(0), cancel: &cancel };
    let options = WriteOptions { force: false, resume: true, progress: &quiet, cancel: &cancel };
    match write(&stopping, path, &options).expect_err("stopped") {
        thintensor::Error::Format(error) => error,
        other => panic!("{other}"),
    }
}

fn whole_archive(model: &Model) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("scratch folder");
    model.write(folder.path(), "model.thin");
    std::fs::read(folder.path().join("model.thin")).expect("there")
}

#[test]
fn writing_stopped_after_any_page_resumes_to_the_same_bytes() {
    let model = rich();
    let want = whole_archive(&model);

    for after in 0..model.records.len() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("model.thin");
        let error = interrupted(&model, &path, after);
        assert!(matches!(error, Error::Interrupted { pages, .. } if pages == after), "{error}");
        assert!(error.hint().expect("a hint").contains("--resume"));
        assert!(!path.exists(), "no file has the final name yet");

        let (report, notices) = resume(&model, &path);

        assert_eq!(report.expect("resumed").pages_kept, after as u64);
        assert!(
            matches!(&notices[..], [Notice::Resuming { pages, .. }] if *pages == after),
            "{notices:?}"
        );
        assert!(std::fs::read(&path).expect("there") == want, "after {after}");
        let left = std::fs::read_dir(folder.path()).expect("there").count();
        assert_eq!(left, 1, "the journal is gone");
    }
}

#[test]
fn writing_stopped_after_every_page_in_turn_ends_with_the_same_bytes() {
    let model = rich();
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");

    for after in 1..model.records.len() {
        interrupted(&model, &path, after);
    }
    let (report, _) = resume(&model, &path);

    assert_eq!(report.expect("resumed").pages_kept, model.records.len() as u64 - 1);
    assert!(std::fs::read(&path).expect("there") == whole_archive(&model));
}

#[test]
fn a_page_the_journal_lies_about_is_written_again() {
    let model = rich();
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    interrupted(&model, &path, 4);
    // As after a power cut: the journal got to the disk, the page of the embedding and the zeros behind did not.
    let partial = folder.path().join("model.thin.partial");
    let mut bytes = std::fs::read(&partial).expect("there");
    let end = bytes.len();
    bytes[8192..end].fill(0xaa);
    std::fs::write(&partial, &bytes).expect("writable");

    let (report, _) = resume(&model, &path);

    assert_eq!(report.expect("resumed").pages_kept, 0);
    assert!(std::fs::read(&path).expect("there") == whole_archive(&model));
}

#[test]
fn a_source_that_changed_in_between_is_packed_anew() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    interrupted(&small(), &path, 2);
    // Same plan, other numbers.
    let mut other = small();
    other.pages[0][0] ^= 1;
    other.sources[0][0] ^= 1;
    other.finished.tensors[0].hash = *blake3::hash(&other.sources[0]).as_bytes();

    let (report, _) = resume(&other, &path);

    assert_eq!(report.expect("resumed").pages_kept, 1);
    assert!(std::fs::read(&path).expect("there") == whole_archive(&other));
}

#[test]
fn an_unfinished_file_of_another_plan_is_started_over_with_a_notice() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    interrupted(&rich(), &path, 5);

    let (report, notices) = resume(&small(), &path);

    assert_eq!(report.expect("written").pages_kept, 0);
    assert!(matches!(&notices[..], [Notice::PlanChanged { .. }]), "{notices:?}");
    assert!(std::fs::read(&path).expect("there") == whole_archive(&small()));
}

#[test]
fn resume_without_anything_to_resume_says_so_and_writes() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");

    let (report, notices) = resume(&small(), &path);

    assert_eq!(report.expect("written").pages_kept, 0);
    assert!(matches!(&notices[..], [Notice::NothingToResume { .. }]), "{notices:?}");
}

#[test]
fn an_unfinished_file_is_replaced_with_a_notice_when_not_resuming() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    interrupted(&rich(), &path, 3);
    let notices = Mutex::new(Vec::new());
    let options = WriteOptions {
        force: false,
        resume: false,
        progress: &|event| {
            if let Event::Notice(notice) = event {
                notices.lock().expect("unpoisoned").push(notice.to_string());
            }
        },
        cancel: &AtomicBool::new(false),
    };

    write(&small(), &path, &options).expect("written");

    assert_eq!(
        *notices.lock().expect("unpoisoned"),
        ["replacing 'model.thin.partial', which an earlier run left unfinished"]
    );
    assert!(std::fs::read(&path).expect("there") == whole_archive(&small()));
}

#[test]
fn an_archive_that_exists_is_kept_unless_forced() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    std::fs::write(&path, "mine").expect("writable");
    let mut options = WriteOptions {
        force: false,
        resume: false,
        progress: &quiet,
        cancel: &AtomicBool::new(false),
    };

    let error = write(&small(), &path, &options).expect_err("exists");
    assert!(error.to_string().ends_with("already exists"), "{error}");
    assert_eq!(std::fs::read(&path).expect("there"), b"mine");

    options.force = true;
    write(&small(), &path, &options).expect("forced");
    assert!(verify(&path, &quiet).expect("readable").ok);
}

#[test]
fn an_unfinished_file_is_no_archive() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    interrupted(&small(), &path, 2);

    let report = verify(&folder.path().join("model.thin.partial"), &quiet).expect("readable");

    assert!(!report.ok);
    assert!(report.checks[0].problems[0].contains("never ended"), "{report:#?}");
}

#[test]
fn a_source_that_fails_gives_its_error_and_leaves_no_archive() {
    struct Failing(Model);
    impl Pages for Failing {
        fn name(&self) -> &str {
            "failing"
        }
        fn manifest(&self) -> &thintensor::format::Manifest {
            self.0.manifest()
        }
        fn pages(&self) -> &[thintensor::format::PageRecord] {
            self.0.pages()
        }
        fn read(
            &self,
            page: thintensor::format::PageId,
            out: &mut [u8],
        ) -> Result<(), thintensor::Error> {
            if page.0 == 3 {
                return Err(Error::UnknownRole { page: 3, code: 77 }.into());
            }
            self.0.read(page, out)
        }
    }
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    let options = WriteOptions {
        force: false,
        resume: false,
        progress: &quiet,
        cancel: &AtomicBool::new(false),
    };

    let error = write(&Failing(rich()), &path, &options).expect_err("fails");

    assert!(error.to_string().contains("role 77"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_source_that_never_says_its_tensor_hashes_is_not_written() {
    let mut model = small();
    model.finished = model.manifest().clone();
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");

    let (result, _) = resume(&model, &path);

    let text = result.expect_err("zero hashes").to_string();
    assert_eq!(text, "the source of 'm.thin' did not say the hash of tensor 'embed'");
    assert!(!path.exists());
}

#[test]
fn a_model_that_contradicts_itself_is_not_written() {
    let mut model = rich();
    model.finished.tensors[0].shape = vec![8, 9];
    let model = model.done();
    let folder = tempfile::tempdir().expect("scratch folder");
    let options = WriteOptions {
        force: false,
        resume: false,
        progress: &quiet,
        cancel: &AtomicBool::new(false),
    };

    let error = write(&model, &folder.path().join("m.thin"), &options).expect_err("8 rows of 7");

    let text = error.to_string();
    assert!(text.contains("hold 126 bytes but its shape has 144"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
}

#[test]
fn a_disk_that_is_too_small_is_refused_with_both_numbers() {
    // 2^19 rows of 32 MiB are 16 TiB.
    let mut model = Model::new(&["model.safetensors"]);
    let cols = 32 << 20 >> 2;
    let geometry = Geometry::matrix(Format::F32, 1 << 19, cols).expect("fits");
    model.tensor("embed", 0, "F32", &[0, cols], false);
    model.finished.tensors[0].shape[0] = 1 << 19;
    model.finished.descriptors.push(geometry.clone());
    model.records = thintensor::format::PageRecord::of_group(Role::Embed, None, None, 0, &geometry);
    thintensor::format::record::number(&mut model.records);
    model.finished.tensors[0].pieces.push(thintensor::format::manifest::Piece {
        page: 0,
        plane: 0,
        source_row: 0,
        rows: whole("embed", 1 << 19).rows,
        first_row: 0,
        row_step: 1,
    });
    let model = model.done();
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");

    let (result, _) = resume(&model, &path);

    let text = result.expect_err("no such disk").to_string();
    assert!(text.contains("needs 17,592,"), "{text}");
    assert!(text.contains("bytes but its disk has "), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
}

/// R88: needs a disk of some 50 to 500 MB whose folder `THIN_SMALL_DISK` names, such as a tmpfs.
#[test]
fn a_disk_that_fills_up_while_writing_gives_an_error_and_no_archive() {
    let Some(disk) = std::env::var_os("THIN_SMALL_DISK") else {
        eprintln!("not run: THIN_SMALL_DISK is not set");
        return;
    };
    let folder = tempfile::tempdir_in(disk).expect("scratch folder");
    let path = folder.path().join("m.thin");
    let mut model = Model::new(&["model.safetensors"]);
    model.asset("a.bin", &vec![1; 20 << 20]);
    model.asset("b.bin", &vec![2; 20 << 20]);
    let model = model.done();
    let filler = folder.path().join("filler");
    let fill = |event| {
        if let Event::Done { .. } = event {
            let mut file = std::fs::File::create(&filler).expect("writable");
            while std::io::Write::write_all(&mut file, &[0; 1 << 16]).is_ok() {}
        }
    };
    let options = WriteOptions {
        force: false,
        resume: false,
        progress: &fill,
        cancel: &AtomicBool::new(false),
    };

    let error = write(&model, &path, &options).expect_err("full");

    assert!(error.to_string().starts_with("cannot write "), "{error}");
    assert!(error.hint().expect("a hint").contains("disk is full"), "{error:?}");
    assert!(!path.exists());

    std::fs::remove_file(&filler).expect("ours");
    let (report, _) = resume(&model, &path);
    assert_eq!(report.expect("room again").pages_kept, 1);
    assert!(std::fs::read(&path).expect("there") == whole_archive(&model));
}

#[test]
fn two_writers_of_one_archive_are_refused() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("m.thin");
    let partial = folder.path().join("m.thin.partial");
    let other = std::fs::File::create(&partial).expect("writable");
    other.lock().expect("lockable");

    let (result, _) = resume(&small(), &path);

    let text = result.expect_err("busy").to_string();
    assert!(text.ends_with("is being written by another process"), "{text}");
}

const CHILD: &str = "THIN_TEST_WRITE_TO";

/// Not a test of its own: what `writer_killed_at_any_time_...` starts and kills.
#[test]
fn child_that_writes_slowly() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let slowly = |event| {
        if let Event::Done { .. } = event {
            std::thread::sleep(std::time::Duration::from_millis(4));
        }
    };
    let options = WriteOptions {
        force: true,
        resume: true,
        progress: &slowly,
        cancel: &AtomicBool::new(false),
    };
    write(&rich(), Path::new(&path), &options).expect("written");
}

/// R88: an interrupted conversion is never taken for a complete one.
#[test]
fn writer_killed_at_any_time_leaves_no_archive_or_a_whole_one_and_resumes() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("model.thin");
    let want = whole_archive(&rich());

    for wait_ms in [5, 12, 20, 28, 36, 44, 52, 60, 68, 76] {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "resume::child_that_writes_slowly"])
            .env(CHILD, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("this test starts");
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");

        if path.exists() {
            assert!(verify(&path, &quiet).expect("readable").ok, "{wait_ms} ms");
        }
    }
    let _ = std::fs::remove_file(&path);
    let (report, _) = resume(&rich(), &path);

    report.expect("resumed");
    assert!(std::fs::read(&path).expect("there") == want);
}

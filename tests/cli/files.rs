//! Commands about archives, and `logits`: reports, refusals, and files that are whole or not there.

use std::path::Path;

use crate::common::Tensors;

use super::{llama, root, scratch, text, thin, thin_in};

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn converted(folder: &Path) -> std::path::PathBuf {
    let archive = folder.join("llama.thin");
    thin(&["convert", text(llama()), "-o", text(&archive)]).expect(0);
    archive
}

#[test]
fn the_embedded_demo_model_is_what_convert_makes_of_its_source() {
    let folder = scratch();
    let archive = folder.path().join("demo.thin");

    thin(&["convert", text(&root().join("assets/demo")), "-o", text(&archive)]).expect(0);

    let ours = std::fs::read(&archive).expect("written");
    let embedded = std::fs::read(root().join("assets/demo.thin")).expect("committed");
    assert!(ours == embedded, "see assets/demo/README.md for the command that makes it again");
}

#[test]
fn convert_reports_what_it_wrote_and_extract_gives_the_source_back() {
    let folder = scratch();
    let archive = folder.path().join("llama.thin");

    let report = thin(&["convert", text(llama()), "-o", text(&archive), "--json"]).expect(0).json();
    let back = folder.path().join("back");
    let extracted =
        thin(&["extract", text(&archive), "-o", text(&back), "--json"]).expect(0).json();

    let bytes = std::fs::metadata(&archive).expect("written").len();
    assert_eq!(report["bytes"], bytes);
    assert!(report["seconds"].is_f64() && report["gb_per_s"].is_f64());
    assert!(report["notes"][0].as_str().is_some_and(|note| note.contains("goldens.safetensors")));
    assert_eq!(extracted["files"][0]["name"], "model.safetensors");
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        let source = std::fs::read(llama().join(name)).expect("a fixture");
        assert!(std::fs::read(back.join(name)).expect("extracted") == source, "{name}");
    }
    assert_eq!(names(folder.path()), ["back", "llama.thin"]);
}

#[test]
fn convert_names_the_archive_after_the_folder_where_no_name_is_given() {
    let folder = scratch();

    thin_in(folder.path(), &["convert", text(llama())]).expect(0);

    assert_eq!(names(folder.path()), ["llama.thin"]);
}

#[test]
fn convert_keeps_an_archive_that_exists_unless_forced() {
    let folder = scratch();
    let archive = folder.path().join("llama.thin");
    std::fs::write(&archive, "precious").expect("written");
    let convert = ["convert", text(llama()), "-o", text(&archive)];

    thin(&convert).expect(1).says(&["already exists", "hint: use --force"]);
    assert_eq!(std::fs::read(&archive).expect("still there"), b"precious");
    thin(&[&convert[..], &["--force"]].concat()).expect(0);
    thin(&["verify", text(&archive)]).expect(0);
}

#[test]
fn convert_refuses_what_comes_later_and_targets_that_cannot_be() {
    let folder = scratch();
    let out = folder.path().join("x.thin");
    let convert = |more: &[&str]| thin(&[&["convert", text(llama())], more].concat());

    convert(&["-o", text(&out), "--profile", "quality-fp8"]).expect(2).says(&["later version"]);
    convert(&["-o", text(&out), "--set", "head=fp8"]).expect(2).says(&["later version"]);
    convert(&["-o", text(&out), "--dequantize", "bf16"]).expect(2).says(&["not a GGUF file"]);
    convert(&["-o", text(folder.path())]).expect(2).says(&["is a folder"]);
    convert(&["-o", text(&folder.path().join("no/x.thin"))]).expect(2).says(&["does not exist"]);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn convert_takes_a_tokenizer_from_another_folder() {
    let folder = scratch();
    let source = folder.path().join("source");
    std::fs::create_dir(&source).expect("a folder");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(llama().join(name), source.join(name)).expect("copied");
    }
    let out = folder.path().join("out.thin");
    let convert = ["convert", text(&source), "-o", text(&out), "--tokenizer"];

    thin(&[&convert[..], &[text(folder.path())]].concat()).expect(2).says(&["tokenizer.json"]);
    thin(&[&convert[..], &[text(llama())]].concat()).expect(0);

    thin(&["verify", text(&out)]).expect(0);
    let run = ["run", text(&out), "ab", "--device", "cpu", "--temp", "0", "-n", "2", "--json"];
    assert!(thin(&run).expect(0).json()["text"].is_string());
    let own = ["convert", text(llama()), "-o", text(&out), "--force", "--tokenizer", text(llama())];
    thin(&own).expect(2).says(&["tokenizer.json of its own"]);
}

#[test]
fn verify_passes_a_whole_archive_and_names_what_is_wrong_with_a_damaged_one() {
    let folder = scratch();
    let archive = converted(folder.path());
    let good = thin(&["verify", text(&archive), "--json"]).expect(0).json();
    assert_eq!(good["ok"], true);

    let mut bytes = std::fs::read(&archive).expect("written");
    let page = bytes.len() / 2;
    bytes[page] ^= 1;
    std::fs::write(&archive, &bytes).expect("written");
    let damaged =
        thin(&["verify", text(&archive)]).expect(1).says(&["is damaged: page ", "hint: "]);
    let report = thin(&["verify", text(&archive), "--json"]).expect(1).json();

    let failed = |line: &str| line.starts_with("pages ") && line.ends_with("FAILED");
    assert!(damaged.stdout.lines().any(failed), "{damaged:#?}");
    assert_eq!(report["ok"], false);
    thin(&["verify", "demo"]).expect(2);
    thin(&["verify", text(folder.path())]).expect(2).says(&["is a folder"]);
    thin(&["verify", "no-such.thin"]).expect(2).says(&["no-such.thin", "hint: "]);
}

#[test]
fn extract_keeps_a_folder_that_holds_something_unless_forced() {
    let folder = scratch();
    let archive = converted(folder.path());
    let out = folder.path().join("out");
    let extract = ["extract", text(&archive), "-o", text(&out)];
    thin(&extract).expect(0);

    thin(&extract).expect(1).says(&["is not empty", "hint: use --force"]);
    thin(&[&extract[..], &["--force"]].concat()).expect(0);
    thin(&["extract", text(&archive), "-o", text(&archive)]).expect(2).says(&["is a file"]);
}

#[test]
fn stats_add_up_to_the_file() {
    let folder = scratch();
    let archive = converted(folder.path());

    let stats = thin(&["stats", text(&archive), "--json"]).expect(0).json();
    let table = thin(&["stats", text(&archive)]).expect(0).stdout;

    let number = |key: &str| stats[key].as_u64().expect("a number");
    let parts = ["payload_bytes", "row_padding_bytes", "page_padding_bytes", "overhead_bytes"];
    assert_eq!(parts.map(number).iter().sum::<u64>(), number("file_bytes"));
    assert_eq!(number("file_bytes"), std::fs::metadata(&archive).expect("written").len());
    // embedding and head 2 · 264 · 64, three layers of qkv 128 · 64, o 64 · 64, gate and up 256 · 64,
    // down 64 · 128 and two norms of 64, the final norm
    assert_eq!(number("parameters"), 2 * 264 * 64 + 3 * (128 + 64 + 256 + 128 + 2) * 64 + 64);
    thin(&["stats", text(llama())]).expect(2).says(&["is a folder", "thin convert"]);
    assert!(table.contains("ffn_gate_up") && table.contains("bf16"), "{table}");
}

#[test]
fn inspect_states_precision_and_origin_and_prints_programs() {
    let folder = scratch();
    let archive = converted(folder.path());

    let report = thin(&["inspect", text(&archive), "--json"]).expect(0).json();
    let source = thin(&["inspect", text(llama()), "--json"]).expect(0).json();
    let programs = thin(&["inspect", "demo", "--program", "--device", "cpu"]).expect(0).stdout;

    assert_eq!(report["exact_storage_preserved"], true);
    assert!(source["exact_storage_preserved"].is_null());
    assert_eq!(report["spec"], source["spec"]);
    assert_eq!(report["spec"]["model_type"], "llama");
    assert_eq!(report["precision"][0]["source"]["storage_dtype"], "bf16");
    assert_eq!(report["precision"][0]["runtime"]["method"], "none");
    assert_eq!(report["provenance"]["source"], "huggingface");
    assert!(report["assets"].as_array().is_some_and(|assets| !assets.is_empty()));
    assert!(programs.contains("rows=1") && programs.contains("rows=32"), "{programs}");
    thin(&["inspect", "demo", "--program", "--device", "wgpu"]).expect(2).says(&["wgpu"]);
}

#[test]
fn r85_paths_that_are_not_ascii_work_everywhere() {
    let scratch = scratch();
    let folder = scratch.path().join("Jerôme Иван").join("模型 ü");
    std::fs::create_dir_all(&folder).expect("a folder");
    let archive = folder.join("m 🦙.thin");
    let logits = folder.join("логиты.safetensors");

    thin(&["convert", text(llama()), "-o", text(&archive)]).expect(0);
    thin(&["verify", text(&archive)]).expect(0);
    thin(&["extract", text(&archive), "-o", text(&folder.join("наружу"))]).expect(0);
    thin(&["logits", text(&archive), "--tokens", "1,2", "-o", text(&logits)]).expect(0);
    let run = ["run", "--tokens", "1,2", "-n", "2", "--device", "cpu", "--temp", "0"];
    thin(&[&run[..], &[text(&archive)]].concat()).expect(0);
    assert!(Tensors::open(&logits).is_ok());
}

#[cfg(target_os = "linux")]
#[test]
fn r85_paths_that_are_not_even_utf8_work() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;

    let folder = scratch();
    let archive = folder.path().join(OsStr::from_bytes(b"caf\xe9.thin"));
    let args = |words: &[&str], path: &Path| {
        let mut args: Vec<OsString> = words.iter().map(OsString::from).collect();
        args.push(path.into());
        args
    };

    thin(&args(&["convert", text(llama()), "-o"], &archive)).expect(0);
    thin(&args(&["verify"], &archive)).expect(0);
    thin(&args(&["run", "--tokens", "1", "-n", "1", "--device", "cpu"], &archive)).expect(0);
}

#[test]
fn logits_hold_the_documented_tensors_and_metadata() {
    let folder = scratch();
    let out = folder.path().join("out.safetensors");
    let args = ["logits", text(llama()), "--tokens", "1,7,9", "--kv", "f32", "--device", "cpu"];

    thin(&[&args[..], &["--hidden", "-o", text(&out)]].concat()).expect(0);

    let file = Tensors::open(&out).expect("a safetensors file");
    assert_eq!(file.ids("input_ids").expect("ids"), [1, 7, 9]);
    assert_eq!(file.f32("logits").expect("logits").shape, [3, 264]);
    for name in ["hidden.embed", "hidden.0", "hidden.2", "hidden.final_norm"] {
        assert_eq!(file.f32(name).expect(name).shape, [3, 64], "{name}");
    }
    assert_eq!(file.names().len(), 7);
    for (key, value) in [("device", "cpu"), ("profile", "safe"), ("model", "llama"), ("kv", "f32")]
    {
        assert_eq!(file.metadata(key).as_deref(), Some(value));
    }
    assert!(file.metadata("tool").is_some_and(|tool| tool.starts_with("thin ")));
    assert_eq!(names(folder.path()), ["out.safetensors"]);
}

#[test]
fn logits_of_the_last_position_are_the_last_row_of_all() {
    let folder = scratch();
    let (all, last) = (folder.path().join("all"), folder.path().join("last"));
    let ids = (0..600).map(|id| (id % 264).to_string()).collect::<Vec<_>>().join(" ");
    let args = ["logits", text(llama()), "--tokens", &ids, "--device", "cpu"];

    thin(&[&args[..], &["-o", text(&all)]].concat()).expect(0);
    thin(&[&args[..], &["--positions", "last", "-o", text(&last)]].concat()).expect(0);

    let all = Tensors::open(&all).expect("a file").f32("logits").expect("logits");
    let last = Tensors::open(&last).expect("a file").f32("logits").expect("logits");
    assert_eq!(all.shape, [600, 264]); // more than one chunk
    assert_eq!(last.shape, [1, 264]);
    assert_eq!(last.values, all.row(599));
}

#[test]
fn r88_a_failed_logits_run_leaves_the_old_file_and_no_partial_one() {
    let folder = scratch();
    let out = folder.path().join("out.safetensors");
    std::fs::write(&out, "old").expect("written");
    let logits = |more: &[&str]| {
        thin(&[&["logits", "demo", "--device", "cpu", "-o", text(&out)], more].concat())
    };

    logits(&["--tokens", "1,2,99999"]).expect(2).says(&["99999", "2048"]);
    logits(&["--tokens", &vec!["1"; 513].join(",")]).expect(2).says(&["513 tokens", "512"]);
    logits(&[]).expect(2).says(&["--tokens 1,2,3", "hint: "]);

    assert_eq!(std::fs::read(&out).expect("still there"), b"old");
    assert_eq!(names(folder.path()), ["out.safetensors"]);
    let nowhere = folder.path().join("no/out.safetensors");
    thin(&["logits", "demo", "--tokens", "1", "-o", text(&nowhere)]).expect(1);
    thin(&["logits", "demo", "--tokens", "1", "-o", text(folder.path())]).expect(2);
}

#[test]
fn logits_of_a_text_are_those_of_its_ids() {
    let folder = scratch();
    let out = folder.path().join("out.safetensors");

    let args = ["logits", "demo", "--prompt", "Once upon a time", "-o", text(&out), "--json"];
    let report = thin(&args).expect(0).json();

    assert_eq!(report["tokens"], 5);
    let ids = Tensors::open(&out).expect("a file").ids("input_ids").expect("ids");
    assert_eq!(ids, [1, 412, 428, 260, 381]);
}

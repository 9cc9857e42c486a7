//! `thin run`: which argument is what, where the prompt comes from, what comes out.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{chatty, command, llama, root, scratch, text, thin, thin_in, thin_reading};

/// Greedy, on the CPU, five tokens.
const SHORT: [&str; 6] = ["--temp", "0", "-n", "5", "--device", "cpu"];

fn args<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["run"], first, more].concat()
}

#[test]
fn a_single_argument_with_white_space_is_completed_by_the_demo_model() {
    let outcome = thin(&args(&["Once upon a time"], &SHORT)).expect(0);

    assert_eq!(outcome.stdout, ", there was a girl\n");
    assert_eq!(outcome.stderr, "");
}

#[test]
fn a_single_argument_that_is_no_model_is_a_usage_error_with_a_hint() {
    for argument in ["word", "no-such.thin", "no-such.gguf", "no such.safetensors", "ORG/NAME"] {
        thin(&["run", argument]).expect(2).says(&[argument, "hint: "]);
    }
}

#[test]
fn a_misspelt_archive_is_answered_with_the_name_that_is_there() {
    let folder = scratch();
    for name in ["smollm2.thin", "other.txt", "unrelated.thin"] {
        std::fs::write(folder.path().join(name), "").expect("written");
    }

    let outcome = thin_in(folder.path(), &["run", "smoll.thin"]).expect(2);

    let outcome = outcome.says(&["'smoll.thin' does not exist", "did you mean 'smollm2.thin'?"]);
    assert!(!outcome.stderr.contains("unrelated"), "{outcome:#?}");
}

#[test]
fn a_path_that_exists_is_the_model_even_with_white_space() {
    let folder = scratch();
    let file = folder.path().join("a prompt");
    std::fs::write(&file, "not a model").expect("written");

    thin_reading(b"hi", &["run", text(&file)]).expect(1).says(&["is not a model"]);
}

#[test]
fn r83_a_prompt_is_read_from_stdin_where_none_is_given() {
    let piped = thin_reading(b"Once upon a time\n", &args(&[], &SHORT)).expect(0);
    let marked =
        thin_reading(b"\xef\xbb\xbfOnce upon a time\r\n", &args(&["demo"], &SHORT)).expect(0);

    assert_eq!(piped.stdout, ", there was a girl\n");
    assert_eq!(marked.stdout, piped.stdout);
}

#[test]
fn r83_a_prompt_comes_from_a_file_and_dash_is_stdin() {
    let folder = scratch();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "Once upon a time\n").expect("written");

    let from_file = thin(&args(&["demo", "-f", text(&file)], &SHORT)).expect(0);
    let from_dash = thin_reading(b"Once upon a time", &args(&["-f", "-"], &SHORT)).expect(0);

    assert_eq!(from_file.stdout, ", there was a girl\n");
    assert_eq!(from_dash.stdout, from_file.stdout);
    thin(&["run", "demo", "-f", "no-such.txt"]).expect(2).says(&["no-such.txt"]);
    thin(&["run", "demo", "hi", "-f", text(&file)]).expect(2);
}

#[test]
fn r83_an_empty_or_missing_prompt_is_a_usage_error() {
    thin(&["run"]).expect(2).says(&["stdin is empty", "hint: "]);
    thin(&["run", "demo"]).expect(2).says(&["stdin is empty"]);
    thin_reading(b"\n", &["run", "demo"]).expect(2).says(&["stdin is empty"]);
    thin(&["run", "demo", ""]).expect(2).says(&["the prompt is empty"]);
}

#[test]
fn r83_a_silent_pipe_is_never_waited_for_where_a_prompt_is_given() {
    let start = Instant::now();
    for arguments in [args(&["demo", "hi"], &SHORT), vec!["--version"], vec!["run", "--help"]] {
        let mut child = command(&root())
            .args(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("thin starts");
        let silent = child.stdin.take();

        assert!(child.wait().expect("thin ends").success(), "{arguments:?}");
        drop(silent);
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn r83_stdin_that_is_not_utf8_is_refused_with_the_byte() {
    let outcome =
        thin_reading(b"ok \xff\xfe", &["run", "demo", "--device", "cpu", "--json"]).expect(1);

    let outcome = outcome.says(&["stdin is not text in UTF-8: byte 3", "hint: "]);
    assert!(outcome.json()["error"]["message"].is_string());
}

#[test]
fn r83_ten_megabytes_of_stdin_end_in_the_context_error() {
    let start = Instant::now();
    let words = "once upon a time ".repeat(600_000);

    let outcome = thin_reading(words.as_bytes(), &["run", "demo", "--device", "cpu"]).expect(2);

    outcome.says(&["tokens, but the context holds 512", "hint: the model was trained for 512"]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn r82_a_prompt_longer_than_the_context_names_both_numbers() {
    let ids = vec!["1"; 40].join(",");
    let run = |more: &[&str]| {
        thin(&args(&["demo", "--tokens", &ids, "--device", "cpu", "--temp", "0"], more))
    };

    run(&["--context", "39"]).expect(2).says(&["40 tokens", "holds 39", "--context 40 or more"]);
    let full = run(&["--context", "40", "--json"]).expect(0);
    assert_eq!(full.json()["finish_reason"], "context");
    assert_eq!(full.json()["generated_tokens"], 1);
}

#[test]
fn a_context_beyond_training_is_a_usage_error() {
    let outcome = thin(&args(&["demo", "hi", "--context", "513"], &SHORT)).expect(2);

    outcome.says(&["513", "512", "hint: use --context 512 or less"]);
}

#[test]
fn token_ids_come_in_four_forms() {
    let folder = scratch();
    let forms = [
        ("list.json", "[1, 412, 428, 260, 381]"),
        ("object.json", "{\"input_ids\": [1,412,428,260,381], \"attention_mask\": [1]}"),
        ("plain.txt", "1 412,428\n260 381\n"),
    ];
    let typed = thin(&args(&["demo", "--tokens", "1,412, 428 260,381"], &SHORT)).expect(0);

    assert_eq!(typed.stdout, ", there was a girl\n");
    for (name, contents) in forms {
        let file = folder.path().join(name);
        std::fs::write(&file, contents).expect("written");
        let outcome = thin(&args(&["demo", "--tokens-file", text(&file)], &SHORT)).expect(0);
        assert_eq!(outcome.stdout, typed.stdout, "{name}");
    }
}

#[test]
fn token_ids_that_are_none_are_usage_errors() {
    let folder = scratch();
    for (name, contents, mention) in [
        ("a.json", "[1, -2]", "'-2' is not a token id"),
        ("b.json", "{\"ids\": [1]}", "no 'input_ids'"),
        ("c.json", "[[1, 2]]", "is not a token id"),
        ("d.json", "[1, 2", "EOF"),
        ("e.json", "[]", "no token ids"),
        ("f.txt", "one", "'one' is not a token id"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, contents).expect("written");
        thin(&["run", "demo", "--tokens-file", text(&file)]).expect(2).says(&[mention, "hint: "]);
    }
    thin(&["run", "demo", "--tokens", "-1"]).expect(2).says(&["'-1' is not a token id"]);
    thin(&["run", "demo", "--tokens", "2048", "--device", "cpu"]).expect(2).says(&["2048"]);
    thin(&["run", "demo", "hi", "--tokens", "1"]).expect(2).says(&["both token ids and a prompt"]);
    thin(&["run", "demo", "--tokens", "1", "--tokens-file", "x"]).expect(2);
}

#[test]
fn r84_json_is_one_line_and_has_the_documented_fields() {
    let outcome = thin(&args(&["demo", "Once upon a time", "--json"], &SHORT)).expect(0);

    assert_eq!(outcome.stdout.lines().count(), 1);
    let report = outcome.json();
    assert_eq!(report["prompt_tokens"], 5);
    assert_eq!(report["token_ids"].as_array().map(Vec::len), Some(5));
    assert_eq!(report["text"], ", there was a girl");
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["device"]["name"], "cpu");
    assert_eq!(report["profile"], "safe");
    assert_eq!(report["model"], "demo");
    assert_eq!(report["seed"], json!(null));
    for number in ["load_s", "ttft_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(report["timings"][number].as_f64().is_some_and(|n| n > 0.0), "{number}");
    }
    for number in ["peak_device_bytes", "peak_host_bytes", "overhead_bytes"] {
        assert!(report["memory"][number].is_u64(), "{number}");
    }
    assert_eq!(report["memory"]["budget_bytes"], json!(null));
    assert!(report["bytes_per_token"].as_u64().is_some_and(|bytes| bytes > 6_900_000));
}

#[test]
fn r105_json_says_what_was_asked_for_and_why_it_ended() {
    let more =
        ["--json", "--device", "cpu", "--temp", "0.5", "--seed", "7", "--top-k", "3", "-n", "4"];
    let report = thin(&args(&["demo", "Once upon a time"], &more)).expect(0).json();

    assert_eq!((&report["max_tokens"], &report["generated_tokens"]), (&json!(4), &json!(4)));
    assert_eq!(report["seed"], 7);
    assert_eq!(report["sampling"]["temperature"], 0.5);
    assert_eq!(report["sampling"]["top_k"], 3);
    assert_eq!(report["sampling"]["top_p"], 0.95); // of the demo's generation_config.json
}

#[test]
fn a_seed_is_shown_when_drawn_and_repeats_the_reply_when_given() {
    let more = ["--device", "cpu", "-n", "12"];
    let drawn = thin(&args(&["demo", "Once upon a time"], &more)).expect(0);
    let seed = drawn.stderr.trim().strip_prefix("seed: ").expect("the seed is shown").to_owned();

    let again = [&more[..], &["--seed", &seed]].concat();
    let again = thin(&args(&["demo", "Once upon a time"], &again)).expect(0);

    assert_eq!(again.stdout, drawn.stdout);
    assert_eq!(again.stderr, "");
}

#[test]
fn stop_texts_end_a_reply_and_are_not_shown() {
    let more = ["--temp", "0", "--device", "cpu", "--stop", "xyzzy", "--stop", " girl", "--json"];
    let report = thin(&args(&["demo", "Once upon a time"], &more)).expect(0).json();

    assert_eq!(report["text"], ", there was a");
    assert_eq!(report["finish_reason"], "stop");
    thin(&["run", "demo", "hi there", "--stop", ""]).expect(2).says(&["--stop"]);
}

#[test]
fn r94_without_max_tokens_a_reply_ends_with_an_end_token_or_the_context() {
    let more = ["--temp", "0", "--device", "cpu", "--json"];
    let ended = thin(&args(&["demo", "Once upon a time"], &more)).expect(0).json();
    let more = [&more[..], &["--ignore-eos", "--context", "300"]].concat();
    let full = thin(&args(&["demo", "Once upon a time"], &more)).expect(0).json();

    assert_eq!(ended["finish_reason"], "stop");
    assert_eq!(full["finish_reason"], "context");
    assert_eq!(full["generated_tokens"], 296); // five of the prompt, and the last one is not fed
}

#[test]
fn r55_ignore_eos_draws_exactly_as_many_as_asked_for() {
    let more = ["--temp", "0", "--device", "cpu", "--json", "--ignore-eos", "-n", "250"];
    let report = thin(&args(&["demo", "Once upon a time"], &more)).expect(0).json();

    assert_eq!(report["generated_tokens"], 250);
    assert_eq!(report["finish_reason"], "length");
}

#[test]
fn r3_without_a_gpu_one_warning_says_that_the_cpu_runs_and_naming_it_none() {
    let auto = thin(&["run", "demo", "hi there", "-n", "1", "--temp", "0"]).expect(0);
    let named = thin(&args(&["demo", "hi there"], &SHORT)).expect(0);

    // Drivers may talk too; of our own lines there is one, unless a GPU was found.
    let ours = auto.stderr.lines().filter(|line| line.starts_with("warning: "));
    let told = ours.clone().filter(|line| line.contains("CPU")).count();
    assert!(ours.count() == told && told <= 1, "{auto:#?}");
    assert_eq!(named.stderr, "");
    for device in ["wgpu:99", "cuda:0"] {
        let unknown = thin(&["run", "demo", "hi there", "--device", device]);
        unknown.expect(2).says(&[device, "cpu:reference"]);
    }
}

#[test]
fn r68_sizes_need_units_and_a_budget_too_small_is_refused_before_loading() {
    for flag in ["--budget", "--host-budget"] {
        thin(&["run", "demo", "hi there", flag, "20000000"])
            .expect(2)
            .says(&["no unit", "20000000MiB"]);
        thin(&["run", "demo", "hi there", flag, "1.5"]).expect(2).says(&["no unit"]);
        thin(&["run", "demo", "hi there", flag, "6X"]).expect(2).says(&["unit is not known"]);
    }
    let small = thin(&args(&["demo", "hi there", "--budget", "1MiB"], &SHORT)).expect(1);
    small.says(&["the model needs", "budget is 1048576", "hint: "]);
}

#[test]
fn r68_a_budget_is_never_exceeded_and_a_smaller_context_is_told() {
    let more = ["--budget", "13.5MB", "--host-budget", "1GiB", "--json"];
    let outcome = thin(&[args(&["demo", "hi there"], &SHORT), more.to_vec()].concat()).expect(0);

    let outcome = outcome.says(&["warning: a context of 512 tokens does not fit", "--context 256"]);
    let memory = &outcome.json()["memory"];
    assert_eq!(memory["budget_bytes"], 13_500_000);
    assert!(memory["peak_device_bytes"].as_u64().is_some_and(|bytes| bytes <= 13_500_000));
}

#[test]
fn flags_that_come_later_are_refused_and_say_so() {
    for (flag, value, mention) in [
        ("--profile", "balanced", "comes in a later version"),
        ("--profile", "autofit", "comes in a later version"),
        ("--profile", "fastest", "there is no profile 'fastest'"),
        ("--kv", "q8", "comes in a later version"),
        ("--kv", "int3", "there is no KV format"),
        ("--set", "ffn_down=mxfp4", "comes in a later version"),
    ] {
        thin(&["run", "demo", "hi there", flag, value]).expect(2).says(&[mention, "hint: "]);
    }
    thin(&["run", "demo", "hi there", "--context", "auto"]).expect(2);
    thin(&["run", "demo", "hi there", "--context", "0"]).expect(2);
    thin(&["run", "demo", "hi there", "--temp", "-1"]).expect(2).says(&["temperature is -1"]);
}

#[test]
fn kv_formats_are_followed() {
    for kv in ["f32", "f16", "bf16"] {
        let more = [&SHORT[..], &["--kv", kv, "--json"]].concat();
        let report = thin(&args(&["demo", "Once upon a time"], &more)).expect(0).json();

        assert_eq!(report["kv"], kv);
        assert_eq!(report["text"], ", there was a girl");
    }
}

#[test]
fn a_prompt_is_a_user_turn_with_a_template_and_completed_with_raw() {
    let folder = scratch();
    let model = chatty(folder.path());
    let run = |more: &[&str]| {
        let more = [&SHORT[..], &["--json"], more].concat();
        thin(&args(&[text(&model), "Once upon a time"], &more))
    };

    let turn = run(&[]).expect(0).json();
    let raw = run(&["--raw"]).expect(0).json();
    let system = run(&["--system", "Hello"]).expect(0).json();
    let silent = run(&["--chat-arg", "silent=true"]).expect(0).json();

    assert_eq!(raw["prompt_tokens"], 5);
    assert!(turn["prompt_tokens"].as_u64() > raw["prompt_tokens"].as_u64(), "{turn}");
    assert!(system["prompt_tokens"].as_u64() > turn["prompt_tokens"].as_u64(), "{system}");
    assert!(silent["prompt_tokens"].as_u64() < turn["prompt_tokens"].as_u64(), "{silent}");
    run(&["--system", "bad"]).expect(1).says(&["no bad words", "hint: "]);
    run(&["--raw", "--system", "x"]).expect(2).says(&["--system needs a chat template"]);
    run(&["--chat-arg", "silent"]).expect(2).says(&["has no KEY="]);
    run(&["--chat-arg", "silent=yes"]).expect(2).says(&["is not JSON", "hint: "]);
}

#[test]
fn thoughts_are_apart_from_the_answer_and_can_be_hidden() {
    let folder = scratch();
    let model = chatty(folder.path());
    let run = |more: &[&str]| {
        let more = [&SHORT[..], &["--chat-arg", "think=true"], more].concat();
        thin(&args(&[text(&model), "A girl"], &more)).expect(0)
    };

    let report = run(&["--json"]).json();
    let hidden = run(&["--json", "--hide-thinking"]).json();
    let piped = run(&[]);

    assert_eq!(report["text"], "");
    assert!(report["reasoning"].as_str().is_some_and(|text| !text.is_empty()), "{report}");
    assert!(hidden["reasoning"].is_null());
    assert_eq!(piped.stdout, ""); // a pipe gets the answer only
}

#[test]
fn stats_go_to_stderr_after_the_reply() {
    let outcome = thin(&args(&["demo", "Once upon a time", "--stats"], &SHORT)).expect(0);

    assert_eq!(outcome.stdout, ", there was a girl\n");
    outcome.says(&["prompt", "5 tokens", "ended by length", "of 512 tokens", "GB/s"]);
}

#[test]
fn a_folder_runs_like_its_archive_and_unsupported_models_are_named_at_once() {
    let more = [&SHORT[..], &["--json", "--tokens", "1,2,3", "--ignore-eos"]].concat();
    let folder = thin(&args(&[text(llama())], &more)).expect(0).json();
    let scratch = scratch();
    let archive = scratch.path().join("llama.thin");
    thin(&["convert", text(llama()), "-o", text(&archive)]).expect(0);

    let converted = thin(&args(&[text(&archive)], &more)).expect(0).json();

    assert_eq!(folder["token_ids"], converted["token_ids"]);
    let mllama = crate::common::fixture("goldens/mllama");
    thin(&["run", text(&mllama), "hi"]).expect(1).says(&["not supported by this version"]);
}

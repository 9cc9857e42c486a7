//! The golden suite: the `thin` binary against reference outputs in float32, one trial for each
//! (device, model, prompt). One process, so that later a device's pipelines are made once.
//!
//!     cargo test --test goldens                      everything
//!     cargo test --test goldens cpu::llama::         one family
//!     cargo test --test goldens -- --ignored gemma2  a family that is not supported yet
//!
//! `FAMILIES` says what is expected to work. A table of measured errors is printed at the end.

use std::{fs, process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

use bench::{Bench, Log, Subject};
use common::{fixture, required_devices};
use trained::{SmolLm2, demo_trials, smollm2_gguf_trials, smollm2_trials};

#[path = "goldens/bench.rs"]
mod bench;
mod common;
#[path = "goldens/trained.rs"]
mod trained;

/// Whether a family's trials must pass or are only listed.
#[derive(Clone, Copy, PartialEq)]
enum Support {
    Now,
    Later,
}
use Support::{Later, Now};

/// Every folder of `tests/fixtures/goldens`.
const FAMILIES: &[(&str, Support)] = &[
    ("llama", Now),
    ("llama-bias-linear", Now),
    ("llama-sharded", Now),
    ("llama-tied", Now),
    ("mistral", Now),
    ("phi3", Now),
    ("qwen2", Now),
    ("qwen2-swa", Now),
    ("qwen2-yarn", Now),
    ("qwen3", Now),
    ("smollm3", Now),
    ("awq-int4", Later),
    ("deepseek-v3", Later),
    ("fp8-block", Later),
    ("fp8-ct-channel", Later),
    ("fp8-ct-tensor", Later),
    ("gemma", Later),
    ("gemma2", Later),
    ("gemma3", Later),
    ("gemma3-text", Later),
    ("gemma4-moe", Later),
    ("gemma4-text", Later),
    ("glm4", Later),
    ("gpt-oss", Later),
    ("gpt-oss-mxfp4", Later),
    ("gptq-int4", Later),
    ("gptq-int4-actorder", Later),
    ("granite", Later),
    ("granitemoe", Later),
    ("int4-ct", Later),
    ("mixtral", Later),
    ("mllama", Later),
    ("olmo2", Later),
    ("olmo3", Later),
    ("olmoe", Later),
    ("phi3-longrope", Later),
    ("qwen2-moe", Later),
    ("qwen3-moe", Later),
    ("qwen3-next", Later),
    ("qwen3_5", Later),
    ("qwen3_5-moe", Later),
    ("stablelm", Later),
    ("starcoder2", Later),
];

/// Files of `tests/fixtures/goldens-gguf`, and the folders that they were made from.
const GGUF: &[(&str, &str)] = &[
    ("llama.gguf", "llama"),
    ("llama-tied.gguf", "llama-tied"),
    ("qwen3.gguf", "qwen3"),
    ("smollm3.gguf", "smollm3"),
];

/// The devices that this suite runs on: how `--device` names each, what `THIN_REQUIRE` calls it, and how
/// many times the tolerance of the f32 reference it may use.
fn devices() -> Vec<(&'static str, &'static str, f32)> {
    let mut devices = vec![("cpu", "cpu", 1.0)];
    if let Some((device, _)) = common::adapter() {
        devices.push((device.leak(), "wgpu", 4.0));
    }
    devices
}

fn main() -> ExitCode {
    let log = Arc::new(Log::default());
    let smollm2 = Arc::new(SmolLm2::default());
    let mut trials =
        vec![Trial::test("families_are_the_fixture_folders", || Ok(families_match()?))];
    let devices = devices();
    let known = |name: &String| devices.iter().any(|(_, known, _)| known == name);
    for device in required_devices().into_iter().filter(|name| !known(name)) {
        let message = format!("THIN_REQUIRE names '{device}', but this machine has none");
        trials.push(Trial::test(format!("{device}::is_available"), move || {
            Err(Failed::from(message))
        }));
    }
    for &(device, _, factor) in &devices {
        for &(family, support) in FAMILIES {
            trials.extend(family_trials((device, factor), family, family, support, &log));
        }
        for &(file, family) in GGUF {
            trials.extend(family_trials((device, factor), file, family, Now, &log));
        }
        trials.extend(demo_trials(device, &log));
        trials.extend(smollm2_trials(device, &smollm2, &log));
        // The other devices do not read blocks yet.
        if device == "cpu" {
            trials.extend(smollm2_gguf_trials(device, &log));
        }
    }
    drop(smollm2); // the trials own the converted model, and its folder goes with the last of them

    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    log.print();
    conclusion.exit_code()
}

type Check = fn(&Bench) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("short", |bench| bench.check_logits("short")),
    ("mid", |bench| bench.check_logits("mid")),
    ("long", |bench| bench.check_logits("long")),
    ("hidden", |bench| bench.check_hidden("mid")),
    ("greedy_mid", |bench| bench.check_greedy("mid")),
    ("greedy_long", |bench| bench.check_greedy("long")),
];

/// Six trials for a supported family; one ignored trial that does all six for another.
fn family_trials(
    (device, factor): (&'static str, f32),
    model: &'static str,
    family: &'static str,
    support: Support,
    log: &Arc<Log>,
) -> Vec<Trial> {
    let trial = |name: String, checks: &'static [(&'static str, Check)]| {
        let log = log.clone();
        Trial::test(name.clone(), move || {
            let bench = Bench::open(subject((device, factor), model, family)?, log)?;
            Ok(checks.iter().try_for_each(|(_, check)| check(&bench))?)
        })
    };
    match support {
        Now => CHECKS
            .iter()
            .map(|check| {
                trial(format!("{device}::{model}::{}", check.0), std::slice::from_ref(check))
            })
            .collect(),
        Later => {
            let all = trial(format!("{device}::{model}"), CHECKS);
            vec![all.with_kind("family comes later").with_ignored_flag(true)]
        }
    }
}

fn families_match() -> Result<(), String> {
    let mut listed: Vec<&str> = FAMILIES.iter().map(|&(name, _)| name).collect();
    let entries = fs::read_dir(fixture("goldens")).map_err(|e| e.to_string())?;
    let mut folders: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    listed.sort_unstable();
    folders.sort_unstable();
    if listed == folders { Ok(()) } else { Err(format!("listed {listed:?}\nfolders {folders:?}")) }
}

/// `model` is the family's folder, or the file made from it.
fn subject(
    (device, factor): (&'static str, f32),
    model: &'static str,
    family: &'static str,
) -> Result<Subject, String> {
    let file = fixture("goldens-gguf").join(model);
    let folder = fixture("goldens").join(family);
    let text = fs::read_to_string(folder.join("golden.json")).map_err(|e| e.to_string())?;
    let golden: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let tolerance =
        golden["tolerance_f32_max_abs"].as_f64().ok_or("golden.json has no tolerance")? as f32;
    let tolerance = tolerance * factor;
    let model_path = if model == family { folder.clone() } else { file };
    Ok(Subject { device, name: model, model: model_path, reference: folder, tolerance })
}

//! Trained models: the demo that the binary embeds, and SmolLM2 when its weights are at hand.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use libtest_mimic::{Completion, Trial};
use tempfile::TempDir;

use crate::{
    bench::{Bench, Log, Subject, same_ids, text, token_ids},
    common::{Array, Tensors, adapter_is_rasteriser, fixture, real_model, scratch, thin, worst},
};

/// Half of the smallest lead of a greedy id in the reference (0.0019): below it no id can change.
const DEMO_TOLERANCE: f32 = 9e-4;
/// Twenty times the reference's own noise between two attention implementations (9e-5).
const SMOLLM2_TOLERANCE: f32 = 2e-3;

const SMOLLM2: &str = "smollm2-135m";
const SMOLLM2_TAGS: &[&str] = &["short", "mid", "long", "chat"];

/// A check of the demo model.
type Check = fn(&Bench) -> Result<(), String>;
/// A check of one prompt of SmolLM2.
type TagCheck = fn(&Bench, &str) -> Result<(), String>;

pub(crate) fn demo_trials(device: &'static str, log: &Arc<Log>) -> Vec<Trial> {
    let checks: [(&str, Check); 3] =
        [("logits", demo_logits), ("forced", demo_forced), ("greedy", demo_greedy)];
    let trial = |(name, check): (&str, Check)| {
        let log = log.clone();
        Trial::test(format!("{device}::demo::{name}"), move || {
            let subject = Subject {
                device,
                name: "demo",
                model: "demo".into(),
                reference: fixture("demo"),
                tolerance: DEMO_TOLERANCE,
            };
            Ok(check(&Bench::open(subject, log)?)?)
        })
    };
    checks.into_iter().map(trial).collect()
}

fn demo_logits(bench: &Bench) -> Result<(), String> {
    let got = bench.logits(&bench.reference.ids("input_ids")?, &[])?;
    bench.compare("logits", "logits", &got.f32("logits")?, &bench.reference.f32("logits")?)
}

/// The logits behind every greedy choice, on the reference's own tokens.
fn demo_forced(bench: &Bench) -> Result<(), String> {
    let prompt = bench.reference.ids("input_ids")?;
    let greedy = bench.reference.ids("greedy_ids")?;
    let ids = [prompt.as_slice(), &greedy[..greedy.len() - 1]].concat();
    let all = bench.logits(&ids, &[])?.f32("logits")?;
    let first = prompt.len() - 1; // the last prompt position chose the first greedy id
    let width = *all.shape.last().ok_or("logits have no shape")?;
    let got = Array {
        shape: vec![all.shape[0].saturating_sub(first), width],
        values: all.values.get(first * width..).ok_or("fewer rows of logits than ids")?.to_vec(),
    };
    bench.compare("forced", "logits", &got, &bench.reference.f32("greedy_logits")?)
}

fn demo_greedy(bench: &Bench) -> Result<(), String> {
    let expected = bench.reference.ids("greedy_ids")?;
    let report = bench.run(&["Once upon a time"], expected.len())?;
    same_ids(&token_ids(&report)?, &expected, bench.reference.f32("greedy_logits").ok().as_ref())?;
    let (got, expected) = (report["text"].as_str(), bench.reference.metadata("greedy_text"));
    if got == expected.as_deref() {
        Ok(())
    } else {
        Err(format!("text {got:?}\nexpected {expected:?}"))
    }
}

/// The real model, converted to `.thin` by the first trial that needs it.
#[derive(Default)]
pub(crate) struct SmolLm2 {
    archive: OnceLock<Result<(TempDir, PathBuf), String>>,
}

impl SmolLm2 {
    fn archive(&self, source: &Path) -> Result<PathBuf, String> {
        let convert = || {
            let folder = scratch()?;
            let archive = folder.path().join("smollm2-135m.thin");
            thin(&["convert", text(source)?, "-o", text(&archive)?])?;
            Ok((folder, archive))
        };
        self.archive
            .get_or_init(convert)
            .as_ref()
            .map(|(_, archive)| archive.clone())
            .map_err(String::clone)
    }
}

pub(crate) fn smollm2_trials(
    device: &'static str,
    model: &Arc<SmolLm2>,
    log: &Arc<Log>,
) -> Vec<Trial> {
    let checks: [(&'static str, TagCheck); 2] =
        [("logits", smollm2_logits), ("greedy", |bench, tag| bench.check_greedy(tag))];
    let trial = |tag: &'static str, (name, check): (&'static str, TagCheck)| {
        let (model, log) = (model.clone(), log.clone());
        Trial::ignorable_test(format!("{device}::{SMOLLM2}::{tag}::{name}"), move || {
            let source = match real_model(SMOLLM2) {
                Ok(source) => source,
                Err(reason) => return Ok(Completion::ignored_with(reason)),
            };
            // A rasteriser takes minutes for what a card does in seconds; one prompt is enough there.
            if adapter_is_rasteriser(device) && (tag, name) != ("short", "logits") {
                return Ok(Completion::ignored_with("too slow on a rasteriser"));
            }
            let archive = model.archive(&source)?;
            let subject = Subject {
                device,
                name: SMOLLM2,
                model: archive,
                reference: fixture("goldens-real").join(SMOLLM2),
                tolerance: SMOLLM2_TOLERANCE,
            };
            check(&Bench::open(subject, log)?, tag)?;
            Ok(Completion::Completed)
        })
    };
    SMOLLM2_TAGS.iter().flat_map(|tag| checks.map(|check| trial(tag, check))).collect()
}

/// The GGUF file that the weights of the folder were made from: its blocks as they are, against the
/// reference on weights rounded to bf16; and rounded the same way, against the folder's own bytes.
pub(crate) fn smollm2_gguf_trials(device: &'static str, log: &Arc<Log>) -> Vec<Trial> {
    let log = log.clone();
    let file = || {
        let folder = real_model(SMOLLM2)?;
        let file = folder.join("../cache/smollm2-135m.gguf");
        if file.is_file() { Ok((folder, file)) } else { Err("THIN_MODELS has no GGUF".to_owned()) }
    };
    let ignored = |reason: String| Ok(Completion::ignored_with(reason));
    let native = move || {
        let (_, model) = match file() {
            Ok(found) => found,
            Err(reason) => return ignored(reason),
        };
        let reference = fixture("goldens-real").join(SMOLLM2);
        let (name, tolerance) = ("smollm2-135m.gguf", SMOLLM2_TOLERANCE);
        let bench =
            Bench::open(Subject { device, name, model, reference, tolerance }, log.clone())?;
        mean_kl_is_small(&bench)?;
        Ok(Completion::Completed)
    };
    let dequantized = move || {
        let (folder, model) = match file() {
            Ok(found) => found,
            Err(reason) => return ignored(reason),
        };
        let scratch = scratch()?;
        let (archive, out) = (scratch.path().join("m.thin"), scratch.path().join("out"));
        thin(&["convert", text(&model)?, "-o", text(&archive)?, "--dequantize", "bf16"])?;
        thin(&["extract", text(&archive)?, "-o", text(&out)?])?;
        let ours = Tensors::open(&out.join("smollm2-135m.gguf.safetensors"))?;
        ours.same_as(&Tensors::open(&folder.join("model.safetensors"))?)?;
        Ok(Completion::Completed)
    };
    vec![
        Trial::ignorable_test(format!("{device}::smollm2-135m.gguf::mean_kl"), native),
        Trial::ignorable_test("smollm2-135m.gguf::dequantized_is_the_folder", dequantized),
    ]
}

/// KL(reference || ours) in nats over all positions of all prompts: the 20 best tokens and the rest as one,
/// which is all that the reference keeps (a lower bound), and the whole vocabulary at the last position.
fn mean_kl_is_small(bench: &Bench) -> Result<(), String> {
    const LIMIT: f64 = 2e-3;
    let (mut sum, mut positions) = (0.0, 0);
    for tag in SMOLLM2_TAGS {
        let of = |what: &str| format!("{tag}.{what}");
        let ids = bench.reference.ids(&of("input_ids"))?;
        let got = bench.logits(&ids, &[])?.f32("logits")?;
        let top_ids = bench.reference.ids(&of("top20.ids"))?;
        let top = bench.reference.f32(&of("top20.logits"))?;
        let normaliser = bench.reference.f32(&of("logsumexp"))?;
        for position in 0..ids.len() {
            let row = got.row(position);
            let (norm, ours_norm) =
                (f64::from(normaliser.values[position]), f64::from(logsumexp(row)));
            let (mut kl, mut p_rest, mut q_rest) = (0.0, 1.0f64, 1.0f64);
            for (logit, id) in top.row(position).iter().zip(&top_ids[position * 20..]) {
                let p = f64::from(*logit) - norm;
                let q = f64::from(row[*id as usize]) - ours_norm;
                kl += p.exp() * (p - q);
                p_rest -= p.exp();
                q_rest -= q.exp();
            }
            sum += kl + p_rest.max(1e-12) * (p_rest.max(1e-12) / q_rest.max(1e-12)).ln();
            positions += 1;
        }
        let last = bench.reference.f32(&of("last_logits"))?;
        let row = got.row(ids.len() - 1);
        let (norm, ours_norm) = (f64::from(logsumexp(&last.values)), f64::from(logsumexp(row)));
        let kl = last.values.iter().zip(row).map(|(p, q)| {
            let (p, q) = (f64::from(*p) - norm, f64::from(*q) - ours_norm);
            p.exp() * (p - q)
        });
        let kl: f64 = kl.sum();
        if kl > LIMIT {
            return Err(format!("{tag}: KL at the last position is {kl:.2e}, above {LIMIT:.0e}"));
        }
    }
    let mean = sum / f64::from(positions);
    println!("smollm2-135m.gguf: mean KL over {positions} positions is {mean:.2e}");
    if mean <= LIMIT { Ok(()) } else { Err(format!("mean KL is {mean:.2e}, above {LIMIT:.0e}")) }
}

/// All logits of the last position; the 20 best and the normaliser of every position.
fn smollm2_logits(bench: &Bench, tag: &str) -> Result<(), String> {
    let of = |what: &str| format!("{tag}.{what}");
    let ids = bench.reference.ids(&of("input_ids"))?;
    let got = bench.logits(&ids, &[])?.f32("logits")?;
    let last = bench.reference.f32(&of("last_logits"))?;
    if got.shape != [ids.len(), last.values.len()] {
        return Err(format!(
            "logits have shape {:?}, expected [{}, {}]",
            got.shape,
            ids.len(),
            last.values.len()
        ));
    }
    bench.judge(tag, "last logits", worst(got.row(ids.len() - 1), &last.values)?)?;

    let top_ids = bench.reference.ids(&of("top20.ids"))?;
    let top = bench.reference.f32(&of("top20.logits"))?;
    let normaliser = bench.reference.f32(&of("logsumexp"))?;
    for position in 0..ids.len() {
        let what = format!("position {position}");
        let best: Vec<usize> =
            top_ids[position * 20..(position + 1) * 20].iter().map(|&id| id as usize).collect();
        let row = got.row(position);
        let ours: Vec<f32> = best.iter().map(|&id| row[id]).collect();
        bench.judge(tag, &format!("{what}, top 20"), worst(&ours, top.row(position))?)?;
        // near ties may change order, but nothing else may rise above the twentieth
        let bound = top.row(position)[19] + bench.subject.tolerance;
        if let Some((id, logit)) =
            row.iter().enumerate().find(|(id, logit)| **logit > bound && !best.contains(id))
        {
            return Err(format!(
                "{what}: id {id} has logit {logit}, above the reference's twentieth"
            ));
        }
        let error = worst(&[logsumexp(row)], &normaliser.values[position..=position])?;
        bench.judge(tag, &format!("{what}, logsumexp"), error)?;
    }
    Ok(())
}

fn logsumexp(row: &[f32]) -> f32 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    (f64::from(max) + sum.ln()) as f32
}

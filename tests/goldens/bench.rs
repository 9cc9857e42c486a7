//! One model on one device with its reference: runs `thin`, compares, logs what was measured.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Array, Tensors, Worst, scratch, thin, worst};

/// A tolerance above this would accept a wrong model: logits have a standard deviation of 2.5.
const MAX_TOLERANCE: f32 = 2e-2;

/// What is tested, and against what.
pub(crate) struct Subject {
    pub(crate) device: &'static str,
    pub(crate) name: &'static str,
    /// The MODEL argument of `thin`.
    pub(crate) model: PathBuf,
    /// The folder of `goldens.safetensors`.
    pub(crate) reference: PathBuf,
    /// The largest absolute difference of a logit or hidden value that is accepted.
    pub(crate) tolerance: f32,
}

pub(crate) struct Bench {
    pub(crate) subject: Subject,
    pub(crate) reference: Tensors,
    scratch: TempDir,
    log: Arc<Log>,
}

impl Bench {
    pub(crate) fn open(subject: Subject, log: Arc<Log>) -> Result<Bench, String> {
        let tolerance = subject.tolerance;
        if !(tolerance > 0.0 && tolerance <= MAX_TOLERANCE) {
            return Err(format!(
                "tolerance {tolerance} is not above 0 and at most {MAX_TOLERANCE}"
            ));
        }
        let reference = Tensors::open(&subject.reference.join("goldens.safetensors"))?;
        Ok(Bench { subject, reference, scratch: scratch()?, log })
    }

    pub(crate) fn check_logits(&self, tag: &str) -> Result<(), String> {
        let ids = self.reference.ids(&format!("{tag}.input_ids"))?;
        let expected = self.reference.f32(&format!("{tag}.logits"))?;
        let got = self.logits(&ids, &[])?.f32("logits")?;
        self.compare(tag, "logits", &got, &expected)
    }

    /// Compares in the order of the computation, so the first message names the first wrong layer.
    pub(crate) fn check_hidden(&self, tag: &str) -> Result<(), String> {
        let ids = self.reference.ids(&format!("{tag}.input_ids"))?;
        let got = self.logits(&ids, &["--hidden"])?;
        let prefix = format!("{tag}.layer.");
        let mut layers: Vec<usize> = self
            .reference
            .names()
            .iter()
            .filter_map(|name| name.strip_prefix(&prefix)?.parse().ok())
            .collect();
        layers.sort_unstable();
        let pairs = [("hidden.embed".to_owned(), format!("{tag}.embed"))]
            .into_iter()
            .chain(
                layers.iter().map(|layer| (format!("hidden.{layer}"), format!("{prefix}{layer}"))),
            )
            .chain([("hidden.final_norm".to_owned(), format!("{tag}.final_norm"))]);
        for (ours, theirs) in pairs {
            self.compare("hidden", &ours, &got.f32(&ours)?, &self.reference.f32(&theirs)?)?;
        }
        Ok(())
    }

    pub(crate) fn check_greedy(&self, tag: &str) -> Result<(), String> {
        let prompt = self.reference.ids(&format!("{tag}.input_ids"))?;
        let expected = self.reference.ids(&format!("{tag}.greedy.ids"))?;
        let tokens = self.tokens_file(&prompt)?;
        let report = self.run(&["--tokens-file", text(&tokens)?], expected.len())?;
        let got = token_ids(&report)?;
        if report["prompt_tokens"].as_u64() != Some(prompt.len() as u64) {
            return Err(format!(
                "prompt_tokens is {}, expected {}",
                report["prompt_tokens"],
                prompt.len()
            ));
        }
        let logits = self.reference.f32(&format!("{tag}.greedy.logits")).ok();
        same_ids(&got, &expected, logits.as_ref())
    }

    /// `thin logits` on these ids: the file it wrote, its ids, device and profile checked.
    pub(crate) fn logits(&self, ids: &[i64], more: &[&str]) -> Result<Tensors, String> {
        let tokens = self.tokens_file(ids)?;
        let out = self.scratch.path().join("out.safetensors");
        let mut args = vec!["logits", text(&self.subject.model)?, "--tokens-file", text(&tokens)?];
        args.extend([
            "--profile",
            "safe",
            "--kv",
            "f32",
            "--device",
            self.subject.device,
            "-o",
            text(&out)?,
        ]);
        args.extend(more);
        thin(&args)?;
        let got = Tensors::open(&out)?;
        if got.ids("input_ids")? != ids {
            return Err("input_ids are not those that were given".into());
        }
        // a silent fall-back to another device or precision must not pass
        let device = got.metadata("device").unwrap_or_default();
        let expected = match crate::common::adapter() {
            Some((asked, name)) if asked == self.subject.device => name,
            Some(_) | None => self.subject.device.to_owned(),
        };
        if !device.to_lowercase().contains(&expected) {
            return Err(format!("the file was computed on '{device}', expected {expected}"));
        }
        match got.metadata("profile").as_deref() {
            Some("safe") => Ok(got),
            other => Err(format!("the file's profile is {other:?}, expected safe")),
        }
    }

    /// The JSON report of a greedy `thin run`.
    pub(crate) fn run(&self, prompt: &[&str], max_tokens: usize) -> Result<Value, String> {
        let max_tokens = max_tokens.to_string();
        let mut args = vec!["run", text(&self.subject.model)?];
        args.extend(prompt);
        args.extend(["--max-tokens", max_tokens.as_str(), "--temp", "0", "--ignore-eos"]);
        args.extend(["--kv", "f32", "--device", self.subject.device, "--json"]);
        let stdout = thin(&args)?;
        serde_json::from_slice(&stdout).map_err(|e| format!("thin run --json: {e}"))
    }

    fn tokens_file(&self, ids: &[i64]) -> Result<PathBuf, String> {
        let path = self.scratch.path().join("ids.json");
        let json = serde_json::to_vec(ids).expect("integers are JSON");
        fs::write(&path, json).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn compare(
        &self,
        tag: &str,
        what: &str,
        got: &Array,
        expected: &Array,
    ) -> Result<(), String> {
        if got.shape != expected.shape {
            return Err(format!("{what} has shape {:?}, expected {:?}", got.shape, expected.shape));
        }
        self.judge(tag, what, worst(&got.values, &expected.values)?)
    }

    /// Logs a measured difference and holds it against the tolerance.
    pub(crate) fn judge(&self, tag: &str, what: &str, worst: Worst) -> Result<(), String> {
        self.log.add(
            format!("{}::{}::{tag}", self.subject.device, self.subject.name),
            worst.error,
            self.subject.tolerance,
        );
        if worst.error <= self.subject.tolerance {
            return Ok(());
        }
        Err(format!("{what}: {worst}; tolerance {:.1e}", self.subject.tolerance))
    }
}

pub(crate) fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

pub(crate) fn token_ids(report: &Value) -> Result<Vec<i64>, String> {
    let ids = report["token_ids"].as_array().ok_or("the report has no token_ids")?;
    ids.iter()
        .map(|id| id.as_i64().ok_or_else(|| format!("token id {id} is not a number")))
        .collect()
}

/// Exact equality; the message gives the reference's lead there, which tells rounding from a fault.
pub(crate) fn same_ids(
    got: &[i64],
    expected: &[i64],
    logits: Option<&Array>,
) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let step = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let (Some(&ours), Some(&theirs)) = (got.get(step), expected.get(step)) else {
        return Err(format!("{} ids, expected {}", got.len(), expected.len()));
    };
    let logit =
        |id: i64| usize::try_from(id).ok().and_then(|id| logits?.row(step).get(id).copied());
    let lead = match (logit(theirs), logit(ours)) {
        (Some(theirs), Some(ours)) => {
            format!(" (the reference prefers it by {:.4})", theirs - ours)
        }
        _ => String::new(),
    };
    Err(format!(
        "greedy id {step} is {ours}, expected {theirs}{lead}\ngot      {got:?}\nexpected {expected:?}"
    ))
}

/// (trial, largest error, tolerance), one entry per comparison.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<(String, f32, f32)>>);

impl Log {
    fn add(&self, name: String, error: f32, tolerance: f32) {
        let mut rows = self.0.lock().expect("no trial panics while it logs");
        match rows.iter_mut().find(|row| row.0 == name) {
            Some(row) => row.1 = row.1.max(error),
            None => rows.push((name, error, tolerance)),
        }
    }

    pub(crate) fn print(&self) {
        let mut rows = self.0.lock().expect("no trial panics while it logs").clone();
        if rows.is_empty() {
            return;
        }
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        println!("{:<40} {:>12} {:>10}", "largest |error|", "measured", "tolerance");
        for (name, error, tolerance) in rows {
            let mark = if error <= tolerance { "" } else { "  <-- above" };
            println!("{name:<40} {error:>12.2e} {tolerance:>10.1e}{mark}");
        }
    }
}

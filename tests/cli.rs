//! The command line as a user meets it: the built binary, its exit codes, what it writes where.
//!
//! `cli/run.rs` has prompts, stdin and replies, `cli/files.rs` the commands about archives and logits,
//! `cli/terminal.rs` Ctrl-C, closed pipes and chats on a pseudo-terminal.

#[path = "cli/files.rs"]
mod files;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/terminal.rs"]
mod terminal;

mod common;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

/// What a command wrote, and its exit code.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn of(output: Output) -> Self {
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }

    /// Asserts the exit code; a failure shows everything.
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts that stderr mentions each of these.
    #[track_caller]
    fn says(self, mentions: &[&str]) -> Self {
        for mention in mentions {
            assert!(self.stderr.contains(mention), "'{mention}' is not in {self:#?}");
        }
        self
    }

    /// stdout as one JSON value and nothing else.
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:#?}"))
    }
}

/// A command in a folder, without the environment's settings.
fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thin"));
    command.current_dir(folder).stdin(Stdio::null());
    for variable in ["THIN_LOG", "THIN_MODELS", "THIN_REQUIRE"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command with nothing on stdin.
fn thin<S: AsRef<OsStr>>(args: &[S]) -> Outcome {
    Outcome::of(command(&root()).args(args).output().expect("thin starts"))
}

/// Runs a command in a folder.
fn thin_in<S: AsRef<OsStr>>(folder: &Path, args: &[S]) -> Outcome {
    Outcome::of(command(folder).args(args).output().expect("thin starts"))
}

/// Runs a command with this on stdin.
fn thin_reading(stdin: &[u8], args: &[&str]) -> Outcome {
    let mut child = command(&root())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("thin starts");
    let mut pipe = child.stdin.take().expect("stdin is piped");
    let bytes = stdin.to_vec();
    // A command that needs no stdin may be gone before all is written.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().expect("thin ends");
    writer.join().expect("the writer ends");
    Outcome::of(output)
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn scratch() -> tempfile::TempDir {
    common::scratch().expect("a scratch folder")
}

/// A small model, as a folder.
fn llama() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| common::fixture("goldens/llama"));
    &FOLDER
}

/// The demo model with a chat template, in a folder of its own.
fn chatty(folder: &Path) -> PathBuf {
    const TEMPLATE: &str = concat!(
        "{%- for m in messages %}",
        "{%- if m.content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}",
        "{{ m.content }}\n{% endfor %}",
        "{%- if add_generation_prompt and not silent %}Once upon a time{% endif %}",
        "{%- if think %}<think>{% endif %}",
    );
    let target = folder.join("chatty");
    std::fs::create_dir(&target).expect("a folder");
    let demo = root().join("assets/demo");
    for entry in std::fs::read_dir(demo).expect("the demo model").flatten() {
        std::fs::copy(entry.path(), target.join(entry.file_name())).expect("copied");
    }
    std::fs::write(target.join("chat_template.jinja"), TEMPLATE).expect("written");
    target
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

#[test]
fn help_names_every_command_and_exits_0() {
    let help = thin(&["--help"]).expect(0);

    for command in
        ["run", "convert", "inspect", "stats", "verify", "extract", "logits", "completions"]
    {
        assert!(help.stdout.contains(&format!("\n  {command}")), "{command}: {}", help.stdout);
    }
    let run = thin(&["help", "run"]).expect(0).stdout;
    for flag in ["--max-tokens", "--temp", "--seed", "--stop", "--raw", "--chat-arg", "--budget"] {
        assert!(run.contains(flag), "{flag}");
    }
}

#[test]
fn version_goes_to_stdout_and_no_arguments_at_all_is_a_usage_error() {
    let version = thin(&["--version"]).expect(0);
    let nothing = thin::<&str>(&[]).expect(2);

    assert_eq!(version.stdout, concat!("thin ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(nothing.stdout, "");
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = thin(&["completions", shell]).expect(0);

        assert!(script.stdout.contains("tokens-file"), "{shell}");
        assert_eq!(script.stderr, "", "{shell}");
    }
}

#[test]
fn r90_unknown_thin_variables_are_named_with_the_nearest_one() {
    let output = command(&root())
        .args(["stats", "demo"])
        .env("THIN_LOGG", "debug")
        .env("THIN_REQUIRE", "cpu")
        .output()
        .expect("thin starts");

    let outcome = Outcome::of(output).expect(0).says(&["THIN_LOGG", "THIN_LOG?"]);
    assert!(!outcome.stderr.contains("THIN_REQUIRE"), "{outcome:#?}");
}

#[test]
fn thin_log_logs_to_stderr_and_a_wrong_filter_is_a_usage_error() {
    let run = ["run", "demo", "--tokens", "1", "-n", "1", "--device", "cpu", "--temp", "0"];
    let with = |filter: &str| {
        Outcome::of(command(&root()).args(run).env("THIN_LOG", filter).output().expect("starts"))
    };

    with("thintensor=info").expect(0).says(&["plan chosen", "context=512"]);
    with("a=b=c").expect(2).says(&["THIN_LOG=a=b=c is not a filter", "hint: "]);
}

#[test]
fn r84_usage_errors_are_json_on_stdout_where_json_was_asked_for() {
    let unknown = thin(&["run", "demo", "hi", "--no-such-flag", "--json"]).expect(2);
    let missing = thin(&["stats", "no-such.thin", "--json"]).expect(2);

    assert!(
        unknown.json()["error"]["message"].as_str().is_some_and(|m| m.contains("--no-such-flag"))
    );
    assert!(
        missing.json()["error"]["message"].as_str().is_some_and(|m| m.contains("no-such.thin"))
    );
    assert!(missing.json()["error"]["hint"].is_string());
}

//! A hostile input, the command it is given to, and what the user must see.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A command that takes longer is killed.
const DEADLINE: Duration = Duration::from_secs(20);
/// The most memory that refusing an input may take: the program and its libraries have about 10 MiB.
const MAX_PEAK_MIB: f64 = 64.0;

/// Makes the input in a folder, and says what to call.
type Make = fn(&Path) -> Vec<OsString>;

/// One lie.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What it is about, for the table: R37, "l" for the list of what the earlier program did, ...
    pub(crate) covers: &'static str,
    pub(crate) make: Make,
    /// Part of what is said.
    pub(crate) expect: &'static str,
    pub(crate) exit: i32,
}

/// A case that fails with exit code 1.
pub(crate) const fn case(
    name: &'static str,
    covers: &'static str,
    make: Make,
    expect: &'static str,
) -> Case {
    Case { name, covers, make, expect, exit: 1 }
}

/// What a run of the program left.
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) peak_mib: f64,
    pub(crate) time: Duration,
}

/// A path below `tests/fixtures`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// The arguments of a command, `FILE` standing for a path.
pub(crate) fn command(words: &str, file: &Path) -> Vec<OsString> {
    words
        .split_whitespace()
        .map(|word| if word == "FILE" { file.as_os_str().to_owned() } else { word.into() })
        .collect()
}

impl Case {
    /// Runs the case in a scratch folder.
    pub(crate) fn run(&self) -> Result<Outcome, String> {
        let folder =
            tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
        let arguments = (self.make)(folder.path());
        let mut outcome = run(&arguments, folder.path())?;
        for text in [&mut outcome.stdout, &mut outcome.stderr] {
            *text = text.replace(&format!("{}/", folder.path().display()), "");
        }
        Ok(outcome)
    }

    /// Whether the user sees what they must.
    pub(crate) fn check(&self) -> Result<(), String> {
        let outcome = self.run()?;
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        let seen = || format!("{} said:\n{said}", self.name);
        if outcome.status.code() != Some(self.exit) {
            return Err(format!("{} and not {}; {}", outcome.status, self.exit, seen()));
        }
        if !said.contains(self.expect) {
            return Err(format!("'{}' is not told; {}", self.expect, seen()));
        }
        if said.contains("panicked") || outcome.status.signal().is_some() {
            return Err(seen());
        }
        if outcome.peak_mib > MAX_PEAK_MIB {
            return Err(format!("{:.1} MiB; {}", outcome.peak_mib, seen()));
        }
        Ok(())
    }
}

/// Runs the program to its end, measuring it.
fn run(arguments: &[OsString], folder: &Path) -> Result<Outcome, String> {
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_thin"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("THIN_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("thin does not start: {e}"))?;
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let mut stderr = child.stderr.take().ok_or("no stderr")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        bytes
    });
    let pid = child.id();
    let (ended, wait) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if wait.recv_timeout(DEADLINE).is_err() {
            // SAFETY: the child is waited for after this thread has ended or was told to, so its id is its own.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        }
    });
    let mut out = Vec::new();
    let _ = stdout.read_to_end(&mut out);
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage; wait4 writes to the two places it is given and to nothing else.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::wait4(pid as libc::pid_t, &raw mut status, 0, &raw mut usage);
        usage
    };
    let _ = ended.send(());
    let _ = watch.join();
    let stderr = reader.join().map_err(|_| "stderr was not read")?;
    Ok(Outcome {
        status: ExitStatus::from_raw(status),
        stdout: String::from_utf8_lossy(&out).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        peak_mib: usage.ru_maxrss as f64 / 1024.0,
        time: start.elapsed(),
    })
}

/// Prints what the user sees of each case.
pub(crate) fn print_table(cases: &[Case]) -> Result<(), String> {
    println!(
        "| input | covers | exit | peak MiB | ms | what the user sees |\n|---|---|---|---|---|---|"
    );
    for case in cases {
        let outcome = case.run()?;
        let said = outcome.stderr.lines().find(|line| line.starts_with("error"));
        let said = said.or_else(|| outcome.stderr.lines().next()).unwrap_or("").replace('|', "\\|");
        println!(
            "| {} | {} | {} | {:.1} | {} | {said} |",
            case.name,
            case.covers,
            outcome.status.code().unwrap_or(-1),
            outcome.peak_mib,
            outcome.time.as_millis(),
        );
    }
    println!();
    Ok(())
}

//! What needs a living process: closed pipes, Ctrl-C, and chats on a pseudo-terminal, which the system's
//! `script` provides. Where that is missing the chat tests say so and pass.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Outcome, chatty, command, root, scratch, text};

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command whose stdout can be read while it runs.
fn started(args: &[&str]) -> Child {
    command(&root())
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("thin starts")
}

fn send_interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Replies that would take much longer than a test: the slow kernels, and no end.
const LONG: [&str; 8] =
    ["--device", "cpu:reference", "--temp", "0", "--ignore-eos", "--kv", "f32", "--context"];

#[test]
fn r84_a_closed_pipe_ends_quietly() {
    let mut child =
        started(&["run", "demo", "Once upon a time", "--device", "cpu", "--ignore-eos"]);
    let mut stdout = child.stdout.take().expect("piped");
    let mut first = [0; 4];
    stdout.read_exact(&mut first).expect("some text");
    drop(stdout);

    let outcome = Outcome::of(child.wait_with_output().expect("thin ends")).expect(141);

    assert!(outcome.stderr.starts_with("seed: "), "{outcome:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
}

#[test]
fn r84_help_into_a_closed_pipe_is_no_panic() {
    for args in [&["help", "run"][..], &["stats", "demo"], &["completions", "zsh"]] {
        let mut child = started(args);
        drop(child.stdout.take());

        let outcome = Outcome::of(child.wait_with_output().expect("thin ends"));

        assert!(matches!(outcome.code, Some(0 | 141)), "{outcome:#?}");
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    }
}

#[test]
fn ctrl_c_stops_a_reply_shows_what_there_is_and_exits_130() {
    let mut child =
        started(&[&["run", "demo", "Once upon a time"], &LONG[..], &["512", "--stats"]].concat());
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut seen = vec![0; 8];
    stdout.read_exact(&mut seen).expect("some text");

    send_interrupt(&child);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    let outcome = Outcome::of(child.wait_with_output().expect("thin ends")).expect(130);

    assert!(rest.ends_with('\n'), "{rest}");
    outcome.says(&["ended by interrupted"]);
}

#[test]
fn ctrl_c_with_json_gives_the_report_of_what_there_is() {
    let mut child = started(
        &[&["run", "demo", "Once upon a time"], &LONG[..], &["512", "--json", "-v"]].concat(),
    );
    // decoding has begun once the program of a step is logged
    let log = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut log = log.map_while(Result::ok);
    assert!(log.any(|line| line.contains("program compiled")), "no program was logged");

    send_interrupt(&child);
    drop(std::thread::spawn(move || log.count()));
    let output = child.wait_with_output().expect("thin ends");

    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(report["finish_reason"], "interrupted");
}

/// A command on a pseudo-terminal.
struct Terminal {
    child: Child,
    screen: String,
    arriving: Receiver<String>,
}

impl Terminal {
    /// `None` where the system has no `script`.
    fn open(folder: &Path, args: &[&str]) -> Option<Terminal> {
        let quoted: Vec<String> = [env!("CARGO_BIN_EXE_thin")]
            .iter()
            .chain(args)
            .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
            .collect();
        let child = Command::new("script")
            .args(["-qefc", &quoted.join(" "), "/dev/null"])
            .current_dir(folder)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env_remove("THIN_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("not run: this system has no 'script'");
            return None;
        };
        let mut stdout = child.stdout.take().expect("piped");
        let (sender, arriving) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                if sender.send(String::from_utf8_lossy(&buffer[..read]).into_owned()).is_err() {
                    break;
                }
            }
        });
        Some(Terminal { child, screen: String::new(), arriving })
    }

    fn types(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()).expect("typed");
    }

    /// Waits for a text, and gives what was shown up to it.
    #[track_caller]
    fn shows(&mut self, awaited: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.screen.find(awaited) {
                let rest = self.screen.split_off(at + awaited.len());
                return std::mem::replace(&mut self.screen, rest);
            }
            match self.arriving.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(text) => self.screen.push_str(&text),
                Err(error) => panic!("{error} while waiting for {awaited:?} in {:?}", self.screen),
            }
        }
    }

    #[track_caller]
    fn ends(mut self, code: i32) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("still running: {:?}", self.screen),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        assert_eq!(status.code(), Some(code), "{:?}", self.screen);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROMPT: &str = "> ";

#[test]
fn a_chat_of_three_turns_keeps_what_it_computed() {
    let folder = scratch();
    let model = chatty(folder.path());
    let args = ["run", text(&model), "--device", "cpu", "--temp", "0", "-n", "8", "--stats"];
    let Some(mut chat) = Terminal::open(folder.path(), &args) else { return };

    chat.shows(PROMPT);
    chat.types("A girl and a boy\r");
    let first = chat.shows("GB/s");
    chat.shows(PROMPT);
    chat.types("one\\\r");
    chat.shows(". ");
    chat.types("two\r");
    let second = chat.shows("GB/s");
    chat.shows(PROMPT);
    chat.types("\"\"\"three\r");
    chat.shows(". ");
    chat.types("lines\"\"\"\r");
    let third = chat.shows("GB/s");
    chat.shows(PROMPT);
    chat.types("/save chat.json\r");
    chat.shows("wrote 'chat.json'");
    chat.shows(PROMPT);
    chat.types("/save chatty/config.json\r");
    chat.shows("exists already");
    chat.shows(PROMPT);
    chat.types("/exit\r");
    chat.ends(0);

    assert!(first.contains(" 0 kept from before"), "{first}");
    for later in [&second, &third] {
        assert!(later.contains("kept from before") && !later.contains(" 0 kept"), "{later}");
    }
    let saved = std::fs::read(folder.path().join("chat.json")).expect("saved");
    let saved: Value = serde_json::from_slice(&saved).expect("JSON");
    let contents: Vec<&str> = saved["messages"]
        .as_array()
        .expect("turns")
        .iter()
        .filter(|turn| turn["role"] == "user")
        .filter_map(|turn| turn["content"].as_str())
        .collect();
    assert_eq!(contents, ["A girl and a boy", "one\ntwo", "three\nlines"]);
}

#[test]
fn a_chat_survives_a_full_context_and_a_reset_makes_room() {
    let folder = scratch();
    let model = chatty(folder.path());
    let args =
        ["run", text(&model), "--device", "cpu", "--temp", "0", "--ignore-eos", "--context", "40"];
    let Some(mut chat) = Terminal::open(folder.path(), &args) else { return };

    chat.shows(PROMPT);
    chat.types("A girl\r");
    chat.shows("the context of 40 tokens is full");
    chat.shows(PROMPT);
    chat.types("and then?\r");
    chat.shows("but the context holds 40");
    chat.shows("the turn was withdrawn");
    chat.shows(PROMPT);
    chat.types("/reset\r");
    chat.shows("forgotten");
    chat.shows(PROMPT);
    chat.types("A boy\r");
    chat.shows("the context of 40 tokens is full");
    chat.shows(PROMPT);
    chat.types("\x04");
    chat.ends(0);
}

#[test]
fn a_template_that_refuses_withdraws_the_turn() {
    let folder = scratch();
    let model = chatty(folder.path());
    let args = ["run", text(&model), "--device", "cpu", "--system", "bad"];
    let Some(mut chat) = Terminal::open(folder.path(), &args) else { return };

    chat.shows(PROMPT);
    chat.types("Hello\r");
    chat.shows("no bad words");
    chat.shows("the turn was withdrawn");
    chat.shows(PROMPT);
    chat.types("/nonsense\r");
    chat.shows("there is no command /nonsense");
    chat.shows(PROMPT);
    chat.types("/quit\r");
    chat.ends(0);
}

#[test]
fn ctrl_c_in_a_chat_stops_the_reply_and_at_the_prompt_the_chat() {
    let folder = scratch();
    let args = [&["run", "demo"], &LONG[..], &["512"]].concat();
    let Some(mut chat) = Terminal::open(folder.path(), &args) else { return };

    chat.shows(PROMPT);
    chat.types("Once upon a time\r");
    chat.shows(", there was");
    chat.types("\x03");
    chat.shows("ended by interrupted");
    chat.shows(PROMPT);
    chat.types("\x03");
    chat.ends(130);
}

#[test]
fn on_a_terminal_thoughts_are_dimmed() {
    let folder = scratch();
    let model = chatty(folder.path());
    let args = ["run", text(&model), "A girl", "--chat-arg", "think=true", "-n", "3"];
    let Some(mut terminal) = Terminal::open(folder.path(), &args) else { return };

    terminal.shows("seed: ");
    terminal.shows("\x1b[2m");
    terminal.shows("\x1b[0m");
    terminal.ends(0);
}

#[test]
fn on_a_terminal_the_text_to_complete_is_shown_before_its_completion() {
    let folder = scratch();
    let args = ["run", "Once upon a time", "--device", "cpu", "--temp", "0", "-n", "5"];
    let Some(mut terminal) = Terminal::open(folder.path(), &args) else { return };

    terminal.shows("Once upon a time");
    terminal.shows(", there was a girl");
    terminal.ends(0);
}

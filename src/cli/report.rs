//! How results look: tables, byte and rate units, JSON, progress bars, and the two output streams.
//!
//! stdout is data and stderr is talk. Writing never panics: a closed stdout ends the command quietly, a
//! closed stderr is ignored.

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use thintensor::format::Event;

use super::error::Error;

/// Writes to stdout and flushes, so that a reader sees it at once.
///
/// **Errors**: [`Error::ClosedPipe`], or what else the system says.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// Writes a report to stdout as JSON, on one line.
///
/// **Errors**: as [`print()`].
pub(crate) fn print_json(report: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(report).map_err(|error| Error::Failed {
        message: format!("the report cannot be written as JSON: {error}"),
        hint: None,
    })?;
    print(&format!("{text}\n"))
}

fn stdout_error(source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::BrokenPipe => Error::ClosedPipe,
        _ => Error::Io { verb: "write", what: "stdout".into(), source },
    }
}

/// Says something on stderr.
pub(crate) fn say(line: &str) {
    // Where nobody listens there is nothing left to do.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says a warning on stderr.
pub(crate) fn warn(line: &str) {
    say(&format!("warning: {line}"));
}

/// Says something on stderr that is good to know.
pub(crate) fn note(line: &str) {
    say(&format!("note: {line}"));
}

/// Whether a person reads stdout.
pub(crate) fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether terminals may be sent colours: NO_COLOR is not set, and the terminal is not a dumb one.
pub(crate) fn colours() -> bool {
    static COLOURS: OnceLock<bool> = OnceLock::new();
    *COLOURS.get_or_init(|| {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
    })
}

/// Text in a weaker colour, where colours may be sent.
pub(crate) fn dimmed(text: &str) -> String {
    if colours() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// Bytes in binary units, as `6.60 GiB`; small numbers as they are.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.*} {}", if value < 10.0 { 2 } else { 1 }, UNITS[unit])
}

/// A number with its thousands apart, as `3,476,736`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Parameters, as `3.48 M` or `1.54 B`.
pub(crate) fn parameters(count: u64) -> String {
    let value = count as f64;
    match count {
        0..=999_999 => format!("{:.1} K", value / 1e3),
        1_000_000..=999_999_999 => format!("{:.2} M", value / 1e6),
        _ => format!("{:.2} B", value / 1e9),
    }
}

/// GB per second, in decimal units as memory and disks are sold.
pub(crate) fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e9 / seconds } else { 0.0 }
}

/// The most memory this process has held, where the system tells.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A table with a header line; columns are as wide as their widest cell. Numbers (cells that start with a
/// digit) stand at the right of their column.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let cell = |row: &Vec<String>| row.get(column).map_or(0, |cell| cell.chars().count());
            rows.iter().map(cell).max().unwrap_or(0).max(name.chars().count())
        })
        .collect();
    let numeric: Vec<bool> = (0..header.len())
        .map(|column| {
            let mut cells = rows.iter().filter_map(|row| row.get(column)).peekable();
            cells.peek().is_some()
                && cells
                    .all(|cell| cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit()))
        })
        .collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for ((cell, &width), &numeric) in cells.zip(&widths).zip(&numeric) {
            let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
            let (before, after) = if numeric { (gap.as_str(), "") } else { ("", gap.as_str()) };
            line.push_str(&format!("{before}{cell}{after}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Names with their values, one a line.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// A progress bar over bytes on stderr. It shows on terminals only, and not for what is done at once.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
}

/// A task shorter than this has no bar.
const AT_ONCE: Duration = Duration::from_millis(400);

impl Progress {
    /// A bar for a task, such as "loading".
    pub(crate) fn new(task: &'static str) -> Self {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        let style =
            "{msg} {bar:32} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        bar.set_style(
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(task);
        Progress { bar, start: Instant::now() }
    }

    /// Bytes done so far.
    pub(crate) fn done(&self, bytes: u64) {
        if self.bar.is_hidden() && self.start.elapsed() > AT_ONCE && std::io::stderr().is_terminal()
        {
            self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        self.bar.set_position(bytes);
    }

    /// Bytes in all.
    pub(crate) fn total(&self, bytes: u64) {
        self.bar.set_length(bytes);
    }

    /// What a long task of the library tells.
    pub(crate) fn event(&self, event: Event) {
        match event {
            Event::Start { bytes } => self.total(bytes),
            Event::Done { bytes } => self.done(bytes),
            Event::Notice(notice) => self.bar.suspend(|| note(&notice.to_string())),
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// A duration, for people.
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_below_a_thousand() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(6_953_472), "6.63 MiB");
        assert_eq!(bytes(24 << 30), "24.0 GiB");
    }

    #[test]
    fn a_table_puts_numbers_at_the_right() {
        let rows = [vec!["embed".into(), "1,024".into()], vec!["x".into(), "2".into()]];

        assert_eq!(table(&["role", "bytes"], &rows), "role   bytes\nembed  1,024\nx          2\n");
    }
}

//! Ctrl-C. While a [`Watch`] lives, the first one is a request to stop that the work looks at, and a second
//! one within a second ends the program. Without a watch the first one ends the program.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::error::Exit;
use super::report;

static WATCHED: AtomicU64 = AtomicU64::new(0);
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// When the last one came.
static LAST: Mutex<Option<Instant>> = Mutex::new(None);
/// A second request within this many milliseconds is meant seriously.
const SERIOUS_MS: u128 = 1000;

/// Makes Ctrl-C a request; dropping it makes Ctrl-C end the program again.
#[must_use]
pub(crate) struct Watch(());

impl Watch {
    /// Starts watching. An earlier request is forgotten.
    pub(crate) fn new() -> Self {
        static INSTALLED: OnceLock<()> = OnceLock::new();
        INSTALLED.get_or_init(|| {
            if let Err(error) = ctrlc::set_handler(pressed) {
                tracing::warn!(%error, "Ctrl-C cannot be caught; it ends the program");
            }
        });
        REQUESTED.store(false, Ordering::SeqCst);
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = None;
        WATCHED.fetch_add(1, Ordering::SeqCst);
        Watch(())
    }

    /// Whether Ctrl-C was pressed since.
    pub(crate) fn requested(&self) -> bool {
        REQUESTED.load(Ordering::SeqCst)
    }

    /// The flag itself, for work that wants one.
    pub(crate) fn flag(&self) -> &'static AtomicBool {
        &REQUESTED
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs on a thread of its own, so it may lock and print.
fn pressed() {
    let now = Instant::now();
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
    let again = last.is_some_and(|last| now.duration_since(last).as_millis() < SERIOUS_MS);
    if WATCHED.load(Ordering::SeqCst) > 0 && !again {
        REQUESTED.store(true, Ordering::SeqCst);
        return;
    }
    if report::stdout_is_terminal() {
        report::say("");
    }
    std::process::exit(i32::from(Exit::Interrupted.code()));
}

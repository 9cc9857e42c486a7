//! Lies of what a user types or pipes: prompts, token ids, files of them.

use std::ffi::OsString;
use std::path::Path;

use crate::case::{Case, case, command};

/// A file given to the built-in model.
fn file(folder: &Path, words: &str, content: impl AsRef<[u8]>) -> Vec<OsString> {
    let path = folder.join("prompt");
    std::fs::write(&path, content).expect("written");
    command(words, &path)
}

const RUN: &str = "run demo -f FILE --max-tokens 1 --device cpu";
const IDS: &str = "run demo --tokens-file FILE --max-tokens 1 --device cpu";

/// A case whose fault is the command line.
const fn usage(case: Case) -> Case {
    Case { exit: 2, ..case }
}

const fn fine(case: Case) -> Case {
    Case { exit: 0, ..case }
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        usage(case("prompt_empty", "R82", |f| file(f, RUN, ""), "nothing to answer")),
        usage(case(
            "prompt_of_white_space",
            "R82",
            |f| file(f, RUN, " \n\t "),
            "nothing to answer",
        )),
        case("prompt_not_utf8", "R83", |f| file(f, RUN, b"ok\xff\xfe"), "byte 2 is wrong"),
        fine(case("prompt_with_zero_bytes", "R83", |f| file(f, RUN, "a\0b"), "")),
        fine(case("prompt_of_control_characters", "R83", |f| file(f, RUN, "\u{1b}[2J\u{7}"), "")),
        usage(case(
            "prompt_too_long",
            "R82",
            |f| file(f, RUN, "word ".repeat(100_000)),
            "the context holds",
        )),
        usage(case(
            "prompt_of_one_endless_word",
            "R82",
            |f| file(f, RUN, "a".repeat(2_000_000)),
            "context holds",
        )),
        usage(case(
            "ids_outside_the_vocabulary",
            "R82",
            |f| file(f, IDS, "[1, 4294967295]"),
            "vocabulary",
        )),
        usage(case("ids_negative", "R82", |f| file(f, IDS, "[-1]"), "-1")),
        usage(case(
            "ids_beyond_64_bits",
            "R82",
            |f| file(f, IDS, "[99999999999999999999999]"),
            "1e+23",
        )),
        usage(case("ids_empty", "R82", |f| file(f, IDS, "[]"), "no token")),
        usage(case("ids_nested", "R82", |f| file(f, IDS, "[".repeat(200_000)), "")),
        usage(case("ids_not_utf8", "R83", |f| file(f, IDS, b"\xff"), "")),
    ]
}

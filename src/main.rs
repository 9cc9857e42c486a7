//! The `thin` binary: parse, dispatch, print the error chain and its hint, set the exit code.

fn main() {}

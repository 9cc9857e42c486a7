//! `thintensor::fuzz::fuzz_archive_v0` under a coverage-guided fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thintensor::fuzz::fuzz_archive_v0(bytes));

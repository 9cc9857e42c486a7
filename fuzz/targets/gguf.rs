//! `thintensor::fuzz::fuzz_gguf` under a coverage-guided fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thintensor::fuzz::fuzz_gguf(bytes));

//! `thintensor::fuzz::fuzz_safetensors` under a coverage-guided fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thintensor::fuzz::fuzz_safetensors(bytes));

//! Reads and prints tuples with arbitrary columns and bytes: no panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::tuple::run(data));

//! Tuples whose columns and bytes are arbitrary: no panic, neither in reading nor in printing.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::tuple::run(data));

//! Arbitrary pages. Half of the inputs get page headers that are right, so that the fuzzer gets past them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::page_stream::run(data));

//! Decodes arbitrary pages. Half of the inputs get correct page headers, so that the fuzzer passes their
//! checks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::page_stream::run(data));

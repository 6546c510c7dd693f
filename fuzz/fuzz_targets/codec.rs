//! Decodes hostile compressed files: no panic, bounded memory, and output that matches the checksum in the
//! file. Half of the inputs get correct checksums, so that the fuzzer passes these checks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::codec::run(data));

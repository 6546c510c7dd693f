//! Any bytes as segments, half of them with page headers and checksums of records that are right: they come back as they
//! were, as one file and as the second member of a pack.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::codec_roundtrip::run(data));

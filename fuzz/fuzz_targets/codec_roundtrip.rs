//! Compresses arbitrary bytes as segments, and decodes them to the same bytes, as one file and as members of
//! a pack. Half of the inputs get correct page headers and record checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::codec_roundtrip::run(data));

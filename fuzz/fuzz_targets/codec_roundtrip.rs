//! Compresses arbitrary bytes as the members of a pack, and decodes them to the same bytes. Half of the
//! inputs are divided into two segments with correct page headers and record checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::codec_roundtrip::run(data));

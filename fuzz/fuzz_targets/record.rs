//! Decodes records with correct lengths and checksums and arbitrary contents: every kind and every version,
//! down to the typed fields.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::record::run(data));

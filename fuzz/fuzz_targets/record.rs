//! Records whose lengths and checksums are right and whose contents are arbitrary: every kind, every version, down to
//! the typed fields.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::record::run(data));

//! Cuts the tar archive of a server into pieces, and reads lists of pieces of an archive.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::base_backup::run(data));

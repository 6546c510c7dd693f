//! Feeds arbitrary bytes to the socket of `walden archive serve`: no panic, and no allocation above a
//! request's maximum size.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::archive_request::run(data));

//! What arrives at the socket of `walden archive serve`: no bytes may make it panic or allocate more than a request has.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::archive_request::run(data));

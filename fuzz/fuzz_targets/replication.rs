//! What a server says over a replication connection: any messages, of any length.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::replication::run(data));

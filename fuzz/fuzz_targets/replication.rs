//! Reads a server's messages on a replication connection: arbitrary messages of any length.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::replication::run(data));

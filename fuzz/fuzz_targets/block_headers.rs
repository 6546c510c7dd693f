//! The headers within a record, without the frame around them: any lengths, also of records that are not held whole.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::block_headers::run(data));

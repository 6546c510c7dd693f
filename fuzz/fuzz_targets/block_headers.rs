//! Decodes the headers within a record, without its frame: arbitrary lengths, also of records that are not
//! entirely in memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| walden_fuzz::block_headers::run(data));

//! What a server says over a replication connection: any messages, of any length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walden_source::replication::read_messages;

fuzz_target!(|data: &[u8]| {
    let Ok(count) = read_messages(data) else { return };
    // Each message has a type and a length.
    assert!(count * 5 <= data.len());
});

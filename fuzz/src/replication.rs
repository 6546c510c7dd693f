//! Reads a server's messages on a replication connection: arbitrary messages of any length.

use walden_postgres::replication::read_messages;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(count) = read_messages(data) else { return };
    // Each message has a type and a length.
    assert!(count * 5 <= data.len());
}

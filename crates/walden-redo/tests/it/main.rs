//! Replays whole WAL files, and records that no server wrote.

mod arbitrary;
mod bounded;
mod hostile;

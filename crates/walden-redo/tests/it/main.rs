//! Replay of whole logs, and of records that no server wrote.

mod arbitrary;
mod bounded;
mod hostile;
mod recompress;

//! Reads files from the archive: for recovery, as plain files, and as WAL for other readers.

pub mod base;
pub mod diverging;
pub mod export;
pub mod get;
pub mod log;
pub mod neighbors;
pub mod prefetch;
pub mod recovery;
pub mod server;
pub mod source;
pub mod sources;

//! Out of the archive: what recovery asks for, plain files, and the log for whatever else reads it.

pub mod base;
pub mod export;
pub mod get;
pub mod log;
pub mod prefetch;
pub mod recovery;
pub mod server;
pub mod source;
pub mod sources;

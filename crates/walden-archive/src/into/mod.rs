//! Into the archive: from a server that archives, from streams, and from other archives.

pub mod import;
pub(crate) mod intake;
pub mod probe;
pub mod push;
pub mod serve;

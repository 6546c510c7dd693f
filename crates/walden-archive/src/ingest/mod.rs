//! Adds files to the archive: from an archiving server, from streams, and from other archives.

pub mod import;
pub(crate) mod intake;
pub mod probe;
pub mod push;
pub mod serve;

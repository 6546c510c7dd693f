//! An archive of PostgreSQL's write-ahead log that is small, fast and never wrong.
//!
//! [`Archive`] is a [`store::Store`] with the log of one cluster in it. [`push()`] checks a file in full ([`check`]), compresses it
//! and proves that it comes back, and stores it under a key of its own ([`name`]) that no later write replaces.
#![forbid(unsafe_code)]

pub mod acknowledge;
pub mod against;
mod ahead;
pub mod archive;
pub mod backup;
mod backup_files;
pub mod base;
mod boot;
pub mod check;
pub mod contents;
pub mod documents;
pub mod drill;
pub mod encryption;
pub mod export;
pub mod gaps;
pub mod get;
mod hash;
pub mod import;
mod intake;
pub mod list;
pub mod log;
pub mod name;
pub mod object;
pub mod pack;
pub mod parts;
pub mod pending;
pub mod prefetch;
pub mod probe;
pub mod prune;
pub mod push;
pub mod recovery;
pub mod replay;
pub mod same_log;
pub mod serve;
pub mod server;
mod snapshot;
pub mod source;
pub mod sources;
pub mod status;
pub mod store;
pub mod url;
pub mod verified;
pub mod verify;

pub use archive::{Archive, ArchiveError};
pub use pending::clean_up_on_signals;
pub use push::push;
pub use walden_source::history;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

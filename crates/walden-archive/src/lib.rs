//! An archive of PostgreSQL's write-ahead log: small, fast and verified.
//!
//! [`Archive`] is a [`store::Store`] with the WAL of one cluster. [`push()`] verifies a file ([`check`]),
//! compresses it, proves that it decompresses to the original, and stores the object under the file's own key
//! ([`name`]), which no later write replaces.
//!
//! | Source folder | Contents |
//! |---|---|
//! | `store`, `encryption` | storage of objects, and their encryption |
//! | `objects` | the files that PostgreSQL archives, by name; their checks; and the objects that hold them |
//! | `inventory` | present and missing files, according to listings |
//! | `ingest` | writing to the archive: from archiving servers, from streams, and from other archives |
//! | `restore` | reading from the archive: for recovery, as plain files, and for other readers of WAL |
//! | `inspect` | possible recovery targets, verification, and comparison with servers |
//! | `base_backups` | base backups in the archive |
//! | `maintenance` | packs, removal of WAL that no backup needs, test restores, and a lost `archive.json` |
#![forbid(unsafe_code)]

pub mod archive;
pub mod base_backups;
mod boot;
pub mod copies;
pub mod encryption;
mod hash;
mod ingest;
mod inspect;
mod inventory;
mod maintenance;
mod objects;
#[cfg(any(feature = "encryption", feature = "s3"))]
mod program;
mod restore;
pub mod store;
pub mod url;

pub use archive::{Archive, ArchiveError, Extent};
pub use ingest::push::push;
pub use ingest::{import, probe, push, serve};
pub use inspect::{acknowledge, against, cost, list, replay, status, verify};
pub use inventory::{gaps, parts, verified};
pub use maintenance::{backup, catch_up, compare, copy, drill, lock, pack, prune, repair, undelete};
pub use objects::{check, contents, documents, name, object, same_log};
pub use restore::{
    base, diverging, export, get, log, neighbors, prefetch, recovery, server, source, sources,
};
pub use walden_output::pending::{self, clean_up_on_signals};
pub use walden_source::history;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

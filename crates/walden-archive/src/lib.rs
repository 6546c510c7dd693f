//! An archive of PostgreSQL's write-ahead log that is small, fast and never wrong.
//!
//! [`Archive`] is a [`store::Store`] with the log of one cluster in it. [`push()`] checks a file in full ([`check`]), compresses it
//! and proves that it comes back, and stores it under a key of its own ([`name`]) that no later write replaces.
//!
//! | Folder of the sources | What is in it |
//! |---|---|
//! | `store`, `encryption` | where objects lie, and how they are encrypted on the way there |
//! | `stored` | the files that PostgreSQL archives by name, what is checked of them, and the objects that hold them |
//! | `inventory` | what there is and what is missing, as listings show it |
//! | `into` | into the archive: from a server that archives, from streams, and from other archives |
//! | `out` | out of the archive: for recovery, as plain files, and for whatever else reads the log |
//! | `inspect` | what can be restored, whether all of it is as it was stored, what servers have that it lacks |
//! | `care` | packs, the removal of WAL that no backup needs, restores that are tried out, and a lost `archive.json` |
#![forbid(unsafe_code)]

pub mod archive;
mod boot;
mod care;
pub mod encryption;
mod hash;
mod inspect;
mod into;
mod inventory;
mod out;
pub mod pending;
pub mod store;
mod stored;
pub mod url;

pub use archive::{Archive, ArchiveError, Extent};
pub use care::{backup, drill, pack, prune, repair};
pub use inspect::{acknowledge, against, list, replay, status, verify};
pub use into::push::push;
pub use into::{import, probe, push, serve};
pub use inventory::{gaps, parts, verified};
pub use out::{base, export, get, log, prefetch, recovery, server, source, sources};
pub use pending::clean_up_on_signals;
pub use stored::{check, contents, documents, name, object, same_log};
pub use walden_source::history;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

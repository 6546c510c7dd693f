//! Predictors for GIN indexes: pending lists, entries, and pages.
//!
//! A heap tuple's keys first go to the pending list (`pending.rs`), one tuple per key, in key order. The
//! words of a text are predicted from the `tsvector` inserted into the table directly before. Later, the TIDs
//! of each key move to its entry together (`entries.rs`), and are predicted from the pending list
//! (`pending_keys.rs`). `pages.rs` codes pages of a newly built index.

mod entries;
mod pages;
mod pending;
pub mod pending_keys;

pub use self::entries::NewEntry;
pub use self::pages::PageEntries;
pub use self::pending::PendingTuples;

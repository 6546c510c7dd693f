//! GIN indexes: their pending lists, the entries that these become, and their pages.
//!
//! A heap tuple's keys first go to the pending list (`pending.rs`): a tuple each, in the order of the keys. Of a text's
//! words, the `tsvector` that was inserted into the table right before predicts them all. Later, each key's TIDs go into its
//! entry together (`entries.rs`): which these are is known from the pending list (`pending_keys.rs`). Pages of an index that
//! is built are in `pages.rs`.

mod entries;
mod pages;
mod pending;
pub mod pending_keys;

pub use self::entries::NewEntry;
pub use self::pages::PageEntries;
pub use self::pending::PendingTuples;

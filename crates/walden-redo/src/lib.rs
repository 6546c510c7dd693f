//! Replays PostgreSQL's write-ahead log into data pages.
//!
//! [`Replay`] receives the records in the order of the WAL. For each block that a record refers to, it takes
//! the page out of the [`PageStore`], restores the record's full-page image or lets the record's resource
//! manager change the page, and puts the page back. A page is *exact*, *unknown* (the WAL has had no image of
//! the page so far, or a record did not fit the page) or *untracked* (changed by a record that cannot be
//! replayed). Replay never guesses.
//!
//! Replay mirrors PostgreSQL's redo routines, and is verified against PostgreSQL's full-page images: see
//! [`check`].
#![forbid(unsafe_code)]

pub mod check;
pub mod describe;
pub mod page;
pub mod reconstruct;

mod family;
mod image;
mod manager;
mod managers;
mod mask;
mod pool;
mod replay;
mod step;
mod store;
#[cfg(test)]
mod testing;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use family::Family;
pub use image::restore_image;
pub use page::{Misfit, PAGE_BYTES, Page};
pub use pool::PageBox;
pub use replay::{BlockSet, Observer, Replay, rehearse};
pub use step::{Role, Touched};
pub use store::{
    BasePages, BlockKey, HintLogging, HintSettings, LastRecord, MIN_RESIDENT, NOTE_BYTES, Overwrites,
    PageShare, PageStore, Slot, State, StoreFailure, StoreOptions, Unknown,
};

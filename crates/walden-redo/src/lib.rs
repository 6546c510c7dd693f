//! Replays the log into pages: what every page is after each record.
//!
//! [`Replay`] is handed the records in the log's order. For each block that a record refers to it takes the page out of the
//! [`store::PageStore`], restores the record's image or lets the record's resource manager change the page, and puts it
//! back. A page is *exact*, *unknown* (nothing told its content yet, or a record did not fit it) or *untracked* (nobody
//! here knows what its records do); nothing is guessed.
//!
//! PostgreSQL's own redo routines decide what is right, and its full-page images are the judge: see [`check`].
#![forbid(unsafe_code)]

pub mod check;
pub mod checksum;
pub mod describe;
pub mod displaced;
pub mod family;
pub mod files;
pub mod image;
pub mod lz4;
pub mod mask;
pub mod page;
pub mod pglz;
mod pool;
pub mod recompress;
pub mod replay;
pub mod store;
pub mod zstd;

mod brin;
mod btree;
mod generic;
mod gin;
mod gist;
mod hash;
mod heap;
mod index_items;
mod sequence;
mod spgist;
mod storage;
#[cfg(test)]
mod testing;

pub use page::{Misfit, PAGE_BYTES, Page};
pub use pool::PageBox;
pub use replay::{Observer, Replay};
pub use store::{PageStore, State};

//! The log in few bytes, and back, byte for byte.
//!
//! A compressor that knows what WAL is: page headers, links, checksums and padding are derived and not stored; what is left
//! of records goes into columns of one kind each (`columns`); pages are replayed on both sides, so an image is stored as
//! its difference from the page that is known already. What does not parse is stored by a general compressor.
//!
//! A model is written once, against `columns::Coder`, and run in both directions: what encoding writes, decoding reads,
//! in the same order, with the same state.
#![deny(unsafe_code)]

pub mod coder;
mod columns;
pub mod container;
mod entropy;
mod framing;
mod move_to_front;
mod page;
mod predict;
mod record;
mod tuple;
mod value;
mod zigzag;

/// A compressed form that can't be what was written: what is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt(pub &'static str);

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Corrupt {}

/// What is wrong, said where it is found. Apart from the rest, which hardly ever needs it and takes less room so in the
/// processor's cache of instructions.
#[cold]
#[inline(never)]
fn corrupt(what: &'static str) -> Corrupt {
    Corrupt(what)
}

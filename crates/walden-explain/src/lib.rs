//! Every byte of a range of the log put where it belongs: into a bucket, to a relation, a kind of record, a transaction,
//! a database, a span of time, a checkpoint cycle.
//!
//! The accounting is exact: the buckets add up to the bytes of the files, and every view adds up to the same.
//!
//! Bytes of a record that belong to no single block (its header, its main data, its alignment) are counted with the
//! relation of its first block; those of a record without blocks with no relation, under its kind. Page headers,
//! padding and tails are framing and are shown as such.
#![forbid(unsafe_code)]

pub mod checkpoints;
mod collect;
pub mod document;
pub mod explain;
pub mod findings;
pub mod group;
pub mod labels;
pub mod rewrites;
pub mod slices;
pub mod tally;
pub mod timeline;

pub use explain::{Bound, ExplainError, Explanation, Request, explain};

//! How PostgreSQL lays out what is on its pages: line pointers, heap tuples, index tuples, GIN entries and posting lists.
//!
//! Nothing here codes anything.

pub mod gin;
pub mod heap;
pub mod index;
pub mod items;
pub mod schema;

//! Splits page items and tuples of records into the parts that the predictors code: line pointers, heap
//! tuples, index tuples, GIN entries and posting lists. [`walden_redo::page`] describes the layouts. This
//! module does no coding.

pub mod gin;
pub mod heap;
pub mod index;
pub mod items;
pub mod schema;

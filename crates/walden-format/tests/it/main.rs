//! Tests of the format crate through its public interface.

mod records;
mod stream;
mod writer;

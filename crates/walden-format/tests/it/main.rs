//! Tests of the format crate through its public interface.

mod stream;
mod writer;

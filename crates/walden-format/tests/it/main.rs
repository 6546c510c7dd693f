//! Tests of the format crate through its public interface.

mod damage;
mod records;
mod stream;

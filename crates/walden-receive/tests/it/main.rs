//! The spool on a disk that fails, lies and loses power at every call.

mod disk;
mod spool;

#[allow(dead_code, reason = "walden-format's own tests use all of it")]
#[path = "../../../walden-format/tests/it/writer.rs"]
mod writer;

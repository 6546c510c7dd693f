//! Tests the spool on a disk that fails, lies and loses power at every call.

mod disk;
mod spool;

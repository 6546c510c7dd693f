//! The bodies of the fuzz targets. `fuzz_targets/` passes them to libFuzzer, and `tests/` runs each of them
//! on damaged copies of real inputs.
//!
//! The bodies of `redo` and `whatif` are in `walden-redo` and `walden-whatif`, whose property tests run them.

#![forbid(unsafe_code)]

pub mod archive_request;
pub mod base_backup;
pub mod block_headers;
pub mod codec;
pub mod codec_roundtrip;
pub mod page_stream;
pub mod record;
pub mod replication;
pub mod tuple;

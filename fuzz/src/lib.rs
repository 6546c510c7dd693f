//! What the fuzz targets do with an input. `fuzz_targets/` hands them to libFuzzer, and `tests/` runs each of them over inputs that
//! were real and then damaged.
//!
//! Of `redo` and `whatif` the bodies are in `walden-redo` and `walden-whatif`, whose property tests run them.

#![forbid(unsafe_code)]

pub mod archive_request;
pub mod block_headers;
pub mod codec;
pub mod codec_roundtrip;
pub mod page_stream;
pub mod record;
pub mod replication;
pub mod tuple;

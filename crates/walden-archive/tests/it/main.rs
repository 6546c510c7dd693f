//! The archive as its users see it, on real segments.

mod check;
mod encryption;
mod faults;
mod material;
mod pack;
mod prune;
mod races;
mod requests;
mod round_trip;
mod source;
mod watched;

#[allow(dead_code, reason = "walden-format's own tests use all of it")]
#[path = "../../../walden-format/tests/it/writer.rs"]
mod writer;

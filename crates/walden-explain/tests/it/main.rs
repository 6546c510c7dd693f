//! Explanations of logs made in memory and of the golden segments, without a server.

mod accounting;
mod checkpoints;
mod findings;
mod material;
mod transactions;

#[allow(dead_code, reason = "walden-format's own tests use all of it")]
#[path = "../../../walden-format/tests/it/writer.rs"]
mod writer;

//! Forecasts without a server: of golden segments, of logs made in memory, and of arbitrary records.

mod forecast;
mod hostile;
mod predicted;

#[allow(dead_code, reason = "walden-format's own tests use all of it")]
#[path = "../../../walden-format/tests/it/writer.rs"]
mod writer;

//! Forecasts without a server: of golden segments, of logs made in memory, and of arbitrary records.

mod forecast;
mod hostile;
mod predicted;

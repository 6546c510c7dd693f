//! Forecasts without a server: of golden segments, of WAL generated in memory, and of arbitrary records.

mod forecast;
mod hostile;
mod predicted;

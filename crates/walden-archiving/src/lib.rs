#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod activity;
pub mod archiver;
pub mod arrival;
pub mod base_backup;
pub mod behind;
pub mod check;
pub mod commands;
pub mod configuration;
pub mod data_directory;
mod error;
pub mod exporter;
pub mod get;
pub mod log;
pub mod metrics;
mod missing_library;
pub mod other_writer;
pub mod place;
pub mod queue;
pub mod receiving;
pub mod report;
pub mod repositories;
pub mod serve;
pub mod server_files;
mod standby;
pub mod status;
#[cfg(test)]
mod testing;
pub mod text;
pub mod writable;

pub use error::{ArchivingError, FetchError, PlaceError};

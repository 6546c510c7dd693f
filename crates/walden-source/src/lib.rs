#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod compressed;
pub mod connection;
pub mod datadir;
mod error_text;
pub mod follow;
pub mod history;
pub mod inventory;
pub mod names;
pub mod open;
pub mod replay;
pub mod replication;
pub mod scan;
pub mod server_log;
pub mod store;
mod tar_file;
pub mod timelines;
mod windows;
pub mod workers;

pub use error_text::error_text;

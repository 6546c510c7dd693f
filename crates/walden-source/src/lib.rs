#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod compressed;
pub mod connection;
pub mod datadir;
pub mod inventory;
pub mod names;
pub mod open;
pub mod replay;
pub mod scan;
pub mod store;
pub mod timelines;
mod windows;
pub mod workers;

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod archiver;
pub mod document;
pub mod forecast;
pub mod http;
pub mod locate;
pub mod metrics;
pub mod process;
pub mod prometheus;
mod refresh;
pub mod retention;
pub mod running;
#[cfg(feature = "screen")]
pub mod screen;
pub mod server;
pub mod session;
pub mod settings;
pub mod slots;
pub mod table;
pub mod totals;
pub mod watch;
pub mod windows;

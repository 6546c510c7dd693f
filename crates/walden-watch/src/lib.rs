#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod archiver;
pub mod document;
pub mod forecast;
pub mod process;
pub mod retention;
pub mod running;
pub mod server;
pub mod settings;
pub mod slots;
pub mod totals;
pub mod watch;
pub mod windows;

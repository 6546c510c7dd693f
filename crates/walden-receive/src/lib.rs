#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod archiving;
pub mod disk;
mod receiver;
mod session;
pub mod spool;
pub mod status;
mod syncing;
mod uploading;
mod verifier;

#[cfg(test)]
#[allow(dead_code, reason = "walden-format's own tests use all of it")]
#[path = "../../walden-format/tests/it/writer.rs"]
mod writer;

pub use receiver::{AckAfter, Event, Observer, Options, ReceiveError, Receiver};

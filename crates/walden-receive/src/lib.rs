#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod archiving;
mod backoff;
pub mod disk;
mod error;
mod event;
mod options;
mod receiver;
mod session;
pub mod spool;
pub mod status;
mod syncing;
mod uploading;
mod verifier;

pub use error::ReceiveError;
pub use event::{Event, Observer};
pub use options::{AckAfter, Options};
pub use receiver::Receiver;

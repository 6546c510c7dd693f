#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// Three threads beside the one that receives (`session`), each for a step of the log's way: `syncing` has what was received durable on this
// machine's disk, `archiving` takes complete segments from there into the archive, and `uploading`, with `--ack-after archive`, parts of the
// segment that is not complete yet.
mod archiving;
mod backoff;
pub mod disk;
mod error;
mod event;
pub mod handover;
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

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// Besides the thread that receives (`session`), three threads run, one for each step on the WAL's way to the
// archive: `syncing` makes received WAL durable on this machine's disk, `archiving` archives complete
// segments, and `uploading`, with `--ack-after archive`, archives parts of the incomplete segment, with a
// thread for each copy of the archive (`uploads`). If there are several copies, another thread brings those
// up to date that were away.
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
mod uploads;
mod verifier;

pub use error::ReceiveError;
pub use event::{Event, Observer};
pub use options::{AckAfter, Options};
pub use receiver::Receiver;
pub use uploading::UploadError;

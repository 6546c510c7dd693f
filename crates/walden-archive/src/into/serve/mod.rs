//! A process that stays and archives what servers ask it for: the other side of `archive_library`.
//!
//! [`protocol`] is what the module in the server and this process say to each other, [`Resident`] is what archives. It does for a
//! file what a call of [`crate::push()`] does, and keeps what such a call begins with and throws away: the connection to the
//! store, listings, buffers, and the files that it has archived ahead.

pub mod protocol;
mod resident;

pub use resident::{Report, Resident, Stopped};

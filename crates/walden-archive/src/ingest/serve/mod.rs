//! Implements the resident process that archives files on request: the counterpart of `archive_library`.
//!
//! [`protocol`] defines the messages between the server's module and this process. [`Resident`] archives the
//! files. It does the same for a file as a call of [`crate::push()`], but keeps the state that such a call
//! sets up and discards: the connection to the store, listings, buffers, and the files archived ahead.

pub mod protocol;
mod resident;

pub use resident::{Report, Resident, Stopped};

/// The socket on which the process listens, unless another one is named. The module has the same default
/// (`walden.socket`).
pub const SOCKET: &str = "/run/walden/archive.sock";

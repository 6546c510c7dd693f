//! Implements the resident process that archives files on request: the counterpart of `archive_library`.
//!
//! [`protocol`] defines the messages between the server's module and this process. [`Resident`] archives the
//! files. [`Resident`] treats a file like a call of [`crate::push()`], but keeps the state that each of these
//! calls sets up and discards: the connection to the store, listings, buffers, and the files archived ahead.

pub mod protocol;
mod resident;

pub use resident::{Report, Resident, Stopped};

/// The default socket on which the process listens. The module has the same default (`walden.socket`).
pub const SOCKET: &str = "/run/walden/archive.sock";

//! Tests that need programs that not every machine has: PostgreSQL of other versions, a browser, sshd and so
//! on.
//!
//! [`Need`] is the table of these programs. A test requests one with [`Need::find`] or `postgres` and returns
//! the error. [`run`], a harness with the arguments and the output of the standard one, then reports the test
//! as ignored. If the environment variable `WALDEN_REQUIRE` names the program, the test fails instead.
//!
//! [`writer`] writes synthetic WAL for the tests of all crates that read WAL.

#![forbid(unsafe_code)]

mod harness;
mod need;
#[cfg(feature = "servers")]
mod servers;
pub mod writer;

use std::path::Path;
use std::process::Command;

pub use harness::{Body, IntoOutcome, Outcome, Test, run};
pub use need::{ALL_SERVERS, Missing, Need};
#[cfg(feature = "servers")]
pub use servers::{pg_waldump, postgres, server_headers};

/// Creates a named pipe. Readers of files must not wait for it.
///
/// # Panics
/// If it cannot be created.
pub fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success(), "{}", path.display());
}

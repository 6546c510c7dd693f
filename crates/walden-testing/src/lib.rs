//! Tests that need programs which not every machine has: PostgreSQL of other versions, a browser, sshd and so on.
//!
//! [`Need`] is the table of these programs. A test asks for one by [`Need::find`] or `postgres` and hands the error on;
//! [`run`], a harness with the arguments and the output of the standard one, then shows the test as ignored and counts it so
//! in its closing line. Where the environment variable `WALDEN_REQUIRE` names the program, the test fails instead.
//!
//! [`writer`] writes logs by hand, for the tests of all crates that read them.

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

/// Makes a named pipe, which no reader of files may wait for.
///
/// # Panics
/// If it cannot be made.
pub fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success(), "{}", path.display());
}

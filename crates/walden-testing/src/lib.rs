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

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

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

/// Creates a program from its text. Another process writes the file: a process that another thread starts
/// inherits files that are open for writing, and Linux executes no such file ("Text file busy").
///
/// # Panics
/// If it cannot be created.
pub fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh");
    shell.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("the shell reads its input");
    assert!(shell.wait().expect("sh").success(), "{}", path.display());
}

/// Copies a program. Another process writes the copy, as for [`write_program`].
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(program: &Path, copy: &Path) {
    let copied = Command::new("cp").arg(program).arg(copy).status().expect("cp");
    assert!(copied.success(), "{}", copy.display());
}

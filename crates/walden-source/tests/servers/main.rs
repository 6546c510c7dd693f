//! Tests of data directories against real servers.

mod datadir;

use std::process::ExitCode;

fn main() -> ExitCode {
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers"), &[datadir::TESTS])
}

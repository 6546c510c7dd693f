//! Tests of the names of relations against real servers.

mod names;

use std::process::ExitCode;

fn main() -> ExitCode {
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers"), &[names::TESTS])
}

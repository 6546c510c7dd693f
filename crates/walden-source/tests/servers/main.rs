//! The crate against real servers: what they say and write.

mod datadir;
mod names;

use std::process::ExitCode;

fn main() -> ExitCode {
    let modules = [datadir::TESTS, names::TESTS];
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers"), &modules)
}

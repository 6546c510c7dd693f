//! The `walden` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    walden::main()
}

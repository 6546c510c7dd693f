//! The lab against real servers: one binary, one module per topic.

mod cluster;
mod experiments;
mod install;
mod kill;
mod mariadb;
mod workloads;

use std::process::ExitCode;

fn main() -> ExitCode {
    if kill::is_child() {
        kill::child();
    }
    let modules =
        [cluster::TESTS, experiments::TESTS, install::TESTS, kill::TESTS, mariadb::TESTS, workloads::TESTS];
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it"), &modules)
}

//! The crate against real servers: what they say and write.

mod datadir;
mod names;

use std::process::ExitCode;

use walden_lab::{Installation, Wanted, find_or_install};
use walden_testing::{Missing, Need};

fn main() -> ExitCode {
    let modules = [datadir::TESTS, names::TESTS];
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers"), &modules)
}

/// The first PostgreSQL of this machine or the cache, or else 18, which is downloaded.
fn any_postgres() -> Result<Installation, Missing> {
    find_or_install(Wanted::Any).map_err(|error| Need::Postgres(18).missing(&format!("{error:#}")))
}

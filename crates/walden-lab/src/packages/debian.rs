//! PostgreSQL from the packages of Debian's development suites, in a separate folder.
//!
//! apt downloads the server's package and all its dependencies, with its own configuration, lists and status,
//! so that nothing on the machine changes; it verifies their signatures as usual. The folder then contains
//! PostgreSQL's files and the shared libraries, including the C library, which is newer than the machine's. A
//! script for each program starts it with the package's own dynamic linker. PostgreSQL's programs find each
//! other and their files relative to the path by which they were started: the script's path.
//!
//! ```text
//! bin -> usr/lib/postgresql/19/bin
//! usr/lib/postgresql/19/bin/             scripts
//! usr/lib/postgresql/19/programs/        the package's programs
//! usr/lib/postgresql/19/lib/             modules and extensions
//! usr/share/postgresql/19/
//! usr/lib/x86_64-linux-gnu/              the dynamic linker and shared libraries
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use walden_server::programs::Version;

use super::Release;
use super::apt_sources::{Source, debian_sources};
use super::command::{run, runs};

/// The folder of programs in an unpacked package.
pub(super) const BIN_DIR: &str = "bin";

/// The suites in which new versions are published first. apt takes their newest version.
const SUITES: [&str; 2] = ["sid", "experimental"];

/// The advice if this machine cannot download a package.
const ALTERNATIVE: &str = "install PostgreSQL yourself and name its folder of programs in WALDEN_PG_BIN";

/// The folder of time zones, an absolute path in Debian's builds of PostgreSQL.
const TIME_ZONES: &str = "/usr/share/zoneinfo";

/// Downloads a package `postgresql-N` and unpacks it into `into`.
pub(super) fn fetch(package: &str, release: Release, download: &Path, into: &Path) -> Result<()> {
    if let Some(missing) = ["apt-get", "dpkg-deb"].into_iter().find(|program| !runs(&[program])) {
        bail!("{missing} does not run here, which downloads Debian's {package}; {ALTERNATIVE}");
    }
    if !Path::new(TIME_ZONES).is_dir() {
        bail!("expected time zones in {TIME_ZONES}, found none; install Debian's package tzdata");
    }
    let sources = debian_sources()?;
    if sources.is_empty() {
        bail!(
            "expected an archive of Debian in apt's sources, which has {package}, found none; {ALTERNATIVE}"
        );
    }
    // apt downloads as another user, who must be able to enter the folder.
    fs::set_permissions(into, fs::Permissions::from_mode(0o755))?;
    let apt = Apt::new(download, &sources, package)?;
    // An archive may lack one of the suites.
    let updated = apt.update();
    let Some(candidate) = apt.candidate(package)? else {
        let archives: Vec<&str> = sources.iter().map(Source::uris).collect();
        let problem = updated.err().map(|error| format!("\n{error:#}")).unwrap_or_default();
        bail!(
            "expected {package} in the suites {} of {}, found none; {ALTERNATIVE}{problem}",
            SUITES.join(" and "),
            archives.join(", ")
        );
    };
    if server_version(&candidate).is_none_or(|version| !release.includes(version)) {
        bail!("expected PostgreSQL {release} in Debian's {package}, found {candidate}; {ALTERNATIVE}");
    }
    for archive in apt.download(package)? {
        unpack(&archive, into, release.major())
            .with_context(|| format!("cannot unpack {}", archive.display()))?;
    }
    wrap_programs(into, release.major())
}

/// apt with its own configuration, lists and cache in a folder.
struct Apt {
    folder: PathBuf,
}

/// Disables hooks of the machine's configuration, which are meant for the machine's own lists and packages.
const WITHOUT_HOOKS: &str = "\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
";

impl Apt {
    fn new(folder: &Path, sources: &[Source], package: &str) -> Result<Apt> {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        for name in ["none", "state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        // No package is installed here, so that all are downloaded.
        File::create(folder.join("state/status"))?;
        let stanzas = sources.iter().flat_map(|source| SUITES.map(|suite| source.stanza(suite)));
        fs::write(folder.join("archives.sources"), stanzas.collect::<Vec<_>>().join("\n"))?;
        fs::write(folder.join("preferences"), preferences(package))?;
        fs::write(folder.join("apt.conf"), WITHOUT_HOOKS)?;
        Ok(Apt { folder: folder.to_owned() })
    }

    /// Downloads the lists of packages.
    fn update(&self) -> Result<()> {
        run(self.command("apt-get").arg("update")).map(|_| ())
    }

    /// Returns the version of the package that apt would install.
    fn candidate(&self, package: &str) -> Result<Option<String>> {
        let policy = run(self.command("apt-cache").args(["policy", package]))?;
        let line = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
        Ok(line.filter(|version| *version != "(none)").map(str::to_owned))
    }

    /// Downloads a package and its dependencies.
    fn download(&self, package: &str) -> Result<Vec<PathBuf>> {
        run(self.command("apt-get").args(["install", "--yes", "--download-only", package]))?;
        let files = fs::read_dir(self.folder.join("cache/archives"))?.flatten().map(|entry| entry.path());
        Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--config-file").arg(self.folder.join("apt.conf"));
        for (setting, path) in [
            ("Dir::Etc::SourceList", "archives.sources"),
            ("Dir::Etc::SourceParts", "none"),
            ("Dir::Etc::Preferences", "preferences"),
            ("Dir::Etc::PreferencesParts", "none"),
            ("Dir::State", "state"),
            ("Dir::State::status", "state/status"),
            ("Dir::Cache", "cache"),
            ("Dir::Log", "none"),
        ] {
            let mut assignment = OsString::from(format!("{setting}="));
            assignment.push(self.folder.join(path));
            command.arg("--option").arg(assignment);
        }
        for setting in [
            "APT::Install-Recommends=false",
            "APT::Get::AllowUnauthenticated=false",
            "Acquire::Languages=none",
        ] {
            command.args(["--option", setting]);
        }
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// Prefers from experimental only the source package's own packages, for which versions alone decide.
fn preferences(package: &str) -> String {
    [("*", 1), (&format!("src:{package}"), 500)]
        .map(|(packages, priority)| {
            format!("Package: {packages}\nPin: release a=experimental\nPin-Priority: {priority}\n")
        })
        .join("\n")
}

/// Returns PostgreSQL's version of a Debian version: 19.1 of `19.1-1+b1`, and 19.0 of `19~rc1-1`.
fn server_version(debian: &str) -> Option<Version> {
    let upstream = debian.split_once(':').map_or(debian, |(_epoch, upstream)| upstream);
    let (major, rest) = split_number(upstream)?;
    let minor = rest.strip_prefix('.').and_then(split_number).map_or(0, |(minor, _)| minor);
    Some(Version { major, minor })
}

/// Splits a decimal number from the text after it.
fn split_number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Unpacks a package's shared libraries, and the files in PostgreSQL's own folders.
fn unpack(archive: &Path, into: &Path, major: u32) -> Result<()> {
    let own = ["lib", "share"].map(|folder| format!("usr/{folder}/postgresql/{major}"));
    let is_needed = |path: &Path| {
        let is_library = path.parent().is_some_and(|parent| parent.parent() == Some(Path::new("usr/lib")))
            && path.file_name().is_some_and(|name| name.as_bytes().windows(3).any(|part| part == b".so"));
        is_library || own.iter().any(|folder| path.starts_with(folder))
    };
    let mut command = Command::new("dpkg-deb");
    command.arg("--fsys-tarfile").arg(archive).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run dpkg-deb")?;
    let stdout = child.stdout.take().context("dpkg-deb has no standard output")?;
    let unpacked = unpack_entries(stdout, into, is_needed);
    let status = child.wait()?;
    if unpacked.is_ok() && !status.success() {
        bail!("dpkg-deb --fsys-tarfile failed ({status})");
    }
    unpacked
}

fn unpack_entries(tar: impl Read, into: &Path, is_needed: impl Fn(&Path) -> bool) -> Result<()> {
    let mut tar = tar::Archive::new(tar);
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        if is_needed(path.strip_prefix(".").unwrap_or(&path)) {
            entry.unpack_in(into)?;
        }
    }
    // dpkg-deb fails if it cannot write all of the archive's padding.
    std::io::copy(&mut tar.into_inner(), &mut std::io::sink())?;
    Ok(())
}

/// Starts a program by the dynamic linker of its package. The linker passes the script's own path as the
/// program's name.
const WRAPPER: &str = r#"#!/bin/sh
program=$0
[ -L "$program" ] && program=$(readlink -f -- "$program")
folder=${program%/*}
libraries=$folder/../../../@LIBRARIES@
exec "$libraries/@LINKER@" --inhibit-cache --library-path "$libraries" --argv0 "$program" "$folder/../programs/${program##*/}" "$@"
"#;

/// Moves the programs to another folder, and replaces each by a script.
fn wrap_programs(root: &Path, major: u32) -> Result<()> {
    let (libraries, linker) = dynamic_linker(&root.join("usr/lib"))?;
    let script = WRAPPER.replace("@LIBRARIES@", &libraries).replace("@LINKER@", &linker);
    let package = root.join(format!("usr/lib/postgresql/{major}"));
    let (bin, programs) = (package.join("bin"), package.join("programs"));
    fs::create_dir(&programs)?;
    for entry in fs::read_dir(&bin).with_context(|| format!("cannot read {}", bin.display()))? {
        let path = entry?.path();
        if is_elf_file(&path)? {
            fs::rename(&path, programs.join(path.file_name().unwrap_or_default()))?;
            fs::write(&path, &script)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    symlink(format!("usr/lib/postgresql/{major}/bin"), root.join(BIN_DIR))?;
    Ok(())
}

/// Returns the folder of shared libraries, and the dynamic linker's name in it, such as `x86_64-linux-gnu`
/// and `ld-linux-x86-64.so.2`.
fn dynamic_linker(folder: &Path) -> Result<(String, String)> {
    for libraries in fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(libraries.path())?.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.starts_with("ld-linux") {
                return Ok((libraries.file_name().to_string_lossy().into_owned(), name));
            }
        }
    }
    bail!("expected a dynamic linker ld-linux* in the packages, found none")
}

fn is_elf_file(path: &Path) -> Result<bool> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut start)?;
    Ok(start == b"\x7fELF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_versions_are_those_of_postgresql() {
        for (debian, major, minor) in [
            ("19~rc1-1", 19, 0),
            ("19~beta2-1.1", 19, 0),
            ("19.0-1", 19, 0),
            ("19.1-1", 19, 1),
            ("19.1-1+b1", 19, 1),
            ("19.10-0+deb14u1", 19, 10),
            ("1:19.2-1", 19, 2),
        ] {
            assert_eq!(server_version(debian), Some(Version { major, minor }), "{debian}");
        }
        assert_eq!(server_version("unstable"), None);
    }
}

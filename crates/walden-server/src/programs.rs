//! Finds programs on this machine, and the versions of PostgreSQL's programs.

use std::env;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Serialize, Serializer};

use crate::account;

/// A PostgreSQL version from 10 on, such as `18.6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major version, `18`.
    pub major: u32,
    /// The minor version, `6`; 0 for a beta or a development version.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Version> {
        let numbers = || {
            let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
            Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
        };
        numbers().with_context(|| {
            format!("cannot read the version \"{text}\": expected a PostgreSQL version such as 17 or 17.10")
        })
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Finds a program in `PATH`.
pub fn find_in_path(name: &str) -> Option<PathBuf> {
    find(name, folders_in("PATH"))
}

/// Finds the program of a daemon, such as `sshd`, in `PATH`, `/usr/sbin` or `/usr/local/sbin`. The `PATH` of
/// users often lacks these two folders.
pub fn find_server_in_path(name: &str) -> Option<PathBuf> {
    find(name, folders_in("PATH").into_iter().chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from)))
}

/// Returns the folders in an environment variable.
fn folders_in(variable: &str) -> Vec<PathBuf> {
    env::var_os(variable).map(|value| env::split_paths(&value).collect()).unwrap_or_default()
}

fn find(name: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    folders.into_iter().map(|folder| folder.join(name)).find(is_executable)
}

/// Returns folders that may contain an installation on this machine, with symbolic links resolved and without
/// duplicates.
pub fn installed_bin_dirs() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut add = |bin_dir: PathBuf| {
        // A folder in PATH may contain only a link to `postgres`; the link's target is in the folder with all
        // programs.
        let real =
            bin_dir.join("postgres").canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned()));
        let real = real.or_else(|| bin_dir.canonicalize().ok());
        if let Some(real) = real
            && !found.contains(&real)
        {
            found.push(real);
        }
    };
    folders_in("WALDEN_PG_BIN").into_iter().chain(folders_in("PATH")).for_each(&mut add);
    for (parent, prefix) in [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")] {
        let Ok(entries) = fs::read_dir(parent) else { continue };
        let mut numbered: Vec<(u32, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let major = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
                Some((major, entry.path().join("bin")))
            })
            .collect();
        numbered.sort_by(|a, b| b.cmp(a));
        numbered.into_iter().for_each(|(_, bin_dir)| add(bin_dir));
    }
    found
}

/// Reads a program's version with `--version`, run as the server's user, who must be able to run it.
///
/// # Errors
/// The program cannot be run, or does not print a version.
pub fn program_version(program: &Path) -> Result<Version> {
    let mut command = account::command(program, Path::new("/"))?;
    let output = command.arg("--version").stderr(Stdio::piped()).output().with_context(|| {
        let user = account::server_account()
            .ok()
            .flatten()
            .map_or(String::new(), |user| format!(" as the user {}", user.name));
        format!("cannot run {}{user}", program.display())
    })?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!(
            "{} --version failed ({}): {}",
            program.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    parse_version_line(&stdout)
        .with_context(|| format!("{} --version printed \"{}\"", program.display(), stdout.trim()))
}

/// Parses `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, `... 19beta1`, `... 19devel`.
fn parse_version_line(line: &str) -> Option<Version> {
    let (_, rest) = line.split_once("(PostgreSQL) ")?;
    let number = rest.split_whitespace().next()?;
    let digits =
        |text: &str| text.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    Some(Version { major: digits(major)?, minor: digits(minor)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_program_output() {
        for (line, major, minor) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", 15, 18),
            ("pgbench (PostgreSQL) 18.6\n", 18, 6),
            ("postgres (PostgreSQL) 19beta1\n", 19, 0),
            ("postgres (PostgreSQL) 19devel\n", 19, 0),
        ] {
            assert_eq!(parse_version_line(line), Some(Version { major, minor }), "{line}");
        }
        assert_eq!(parse_version_line("something else 1.2"), None);
    }
}

//! Folders of servers: temporary folders, copies, and the last lines of log files.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::account;

/// The port number in a socket's name. All servers use the same port number, because each has its own socket
/// folder.
pub const PORT: u16 = 5432;

/// Longest path of a Unix socket in bytes: `sun_path` of `struct sockaddr_un` without its terminating zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Creates a folder that only the server's user and root can enter, with a path short enough for a Unix
/// socket in its subfolder `s`.
///
/// # Errors
/// No folder can be created in any of the usual places.
pub fn temporary_folder() -> Result<PathBuf> {
    let mut candidates = vec![env::temp_dir()];
    candidates.extend(["/tmp", "/var/tmp"].map(PathBuf::from));
    let mut problems = Vec::new();
    for parent in candidates {
        match temporary_folder_in(&parent) {
            Ok(folder) => return Ok(folder),
            Err(error) => problems.push(format!("{}: {error:#}", parent.display())),
        }
    }
    bail!(
        "cannot create a folder for a temporary cluster (set TMPDIR to a folder in which this is possible): {}",
        problems.join("; ")
    )
}

/// Creates a temporary folder for a server in `parent`.
///
/// # Errors
/// The folder's path is too long, or the server's user cannot enter the folder.
pub fn temporary_folder_in(parent: &Path) -> Result<PathBuf> {
    let folder = tempfile::Builder::new().prefix("walden-").tempdir_in(parent)?;
    let socket = folder.path().join("s").join(format!(".s.PGSQL.{PORT}"));
    let socket_path: OsString = socket.into();
    if socket_path.len() > MAX_SOCKET_PATH_BYTES {
        bail!(
            "expected at most {MAX_SOCKET_PATH_BYTES} bytes for the socket's path, found {}",
            socket_path.len()
        );
    }
    account::chown(folder.path())?;
    // When this process is root, the server's user may lack permission for a parent folder.
    let entered = account::command(Path::new("true"), folder.path())?.status();
    entered.context("the server's user cannot enter it")?;
    Ok(folder.keep())
}

/// Copies a folder recursively, with the entries for which `wanted` is true. Follows symbolic links.
///
/// # Errors
/// Errors of the file system.
pub fn copy_folder(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    let copying = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to).with_context(copying)?;
    // The server refuses a data directory that other users may read.
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).with_context(copying)?;
    for entry in fs::read_dir(from).with_context(copying)? {
        let path = entry.with_context(copying)?.path();
        let Some(name) = path.file_name().filter(|_| wanted(&path)) else { continue };
        let target = to.join(name);
        let kind = fs::metadata(&path).with_context(copying)?;
        if kind.is_dir() {
            copy_folder(&path, &target, wanted)?;
        } else if kind.is_file() {
            fs::copy(&path, &target).with_context(copying)?;
        }
    }
    Ok(())
}

/// Returns the last lines of a file, read from its last 16 kB.
pub fn tail(path: &Path, lines: usize) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(16 * 1024)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_else(|error| format!("({}: {error})", path.display()));
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

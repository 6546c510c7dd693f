//! Files and folders that only their owner reads, as a server creates them (`PG_FILE_MODE_OWNER`,
//! `PG_DIR_MODE_OWNER`).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file to read and write it; creates it if `create` is set.
pub(crate) fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path)
}

/// Creates a file and empties an existing one.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Writes a file and replaces an existing one.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(bytes.as_ref())
}

/// Creates a folder and those above it, unless they exist.
pub(crate) fn create_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a folder and its content, if it exists.
pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(folder, error)),
        _ => Ok(()),
    }
}

/// Adds the path to an error.
pub(crate) fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

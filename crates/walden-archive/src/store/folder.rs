//! Stores objects as files in a folder.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use walden_source::regular_file;

use super::pace::Pace;
use super::versions::Kept;
use super::{Cause, Created, Listed, MAX_OBJECT_BYTES, Store, StoreError, is_valid};
use crate::pending::{self, ENDING};

/// File mode of an object.
const MODE: u32 = 0o640;
/// Exceeds the folder depth of every key that Walden writes, so a deeper tree means a symbolic link loops.
const MAX_DEPTH: usize = 16;

/// A folder in a POSIX file system that holds each object in its own file.
///
/// `create` writes a temporary file in the target's folder, synchronizes it, renames it without replacing an
/// existing file, and synchronizes the folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    location: String,
    /// Folders whose directory entries are durable, all the way up to the root. An existing folder does not
    /// count until it is synchronized here: its creator may have been killed before synchronizing it.
    durable: Mutex<BTreeSet<PathBuf>>,
    pace: Arc<Pace>,
}

impl Folder {
    /// Returns the store in `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Folder {
        let root = root.into();
        let location = root.display().to_string();
        Folder { root, location, durable: Mutex::default(), pace: Arc::default() }
    }

    /// Limits the transfer of content to a number of bytes per second, or not at all, for network file
    /// systems.
    #[must_use]
    pub fn with_bandwidth(self, limit: Option<u64>) -> Folder {
        Folder { pace: Pace::new(limit), ..self }
    }

    /// Returns the folder that contains the objects.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, operation: &'static str, key: &str) -> Result<PathBuf, StoreError> {
        if is_valid(key) && !key.ends_with(ENDING) {
            Ok(self.root.join(key))
        } else {
            Err(self.error(operation, key, Cause::InvalidKey, None))
        }
    }

    fn error(
        &self,
        operation: &'static str,
        key: &str,
        cause: Cause,
        source: Option<io::Error>,
    ) -> StoreError {
        let source = source.map(Into::into);
        StoreError { operation, key: key.to_owned(), location: self.location.clone(), cause, source }
    }

    fn failed(&self, operation: &'static str, key: &str) -> impl Fn(io::Error) -> StoreError {
        move |error| self.error(operation, key, cause_of(&error), Some(error))
    }

    /// Like [`Folder::failed`], for reads. A path that crosses a broken link, for example to an unmounted
    /// file system, is not reported as missing: the object may exist.
    fn failed_to_read(&self, key: &str, path: &Path) -> impl Fn(io::Error) -> StoreError {
        move |error| {
            let error = match error.kind() {
                io::ErrorKind::NotFound => self.broken_link_above(path).unwrap_or(error),
                _ => error,
            };
            self.error("read", key, cause_of(&error), Some(error))
        }
    }

    /// Returns an error if the path crosses a broken link below the root.
    fn broken_link_above(&self, path: &Path) -> Option<io::Error> {
        let below_root = path.ancestors().take_while(|above| *above != self.root);
        let is_broken = |link: &&Path| link.is_symlink() && !link.exists();
        let link = below_root.filter(|above| above.starts_with(&self.root)).find(is_broken)?;
        Some(io::Error::other(format!(
            "cannot follow the link {}: its target does not exist",
            link.display()
        )))
    }

    /// Creates a folder below the root and its parents, and makes each directory entry durable. The root
    /// counts as durable: the creation of the archive synchronized it.
    fn make_folders(&self, folder: &Path) -> io::Result<()> {
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_folders_below_root(folder, &mut durable)
    }

    fn make_folders_below_root(&self, folder: &Path, durable: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        if folder == self.root || !folder.starts_with(&self.root) {
            return match self.root.is_dir() {
                true => Ok(()),
                false => Err(io::ErrorKind::NotFound.into()),
            };
        }
        let is_there = folder.is_dir();
        if is_there && durable.contains(folder) {
            return Ok(());
        }
        let above = folder.parent().unwrap_or(&self.root);
        self.make_folders_below_root(above, durable)?;
        if !is_there {
            make_folder(folder)?;
            self.hand_over(&File::open(folder)?)?;
        }
        walden_source::sync(above)?;
        durable.insert(folder.to_owned());
        Ok(())
    }

    /// Gives a file that root created the owner and group of the archive's folder, so that the servers using
    /// the archive can read it.
    fn hand_over(&self, file: &File) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let (root, own) = (fs::metadata(&self.root)?, file.metadata()?);
        match (root.uid(), root.gid()) == (own.uid(), own.gid()) {
            true => Ok(()),
            false => fchown(file, Some(root.uid()), Some(root.gid())),
        }
    }

    /// Walks a folder. `prefix` is the key prefix of its entries, including the final `/`.
    ///
    /// The walk follows symbolic links, as `read` does, because an administrator may have moved part of an
    /// archive to another file system.
    fn walk(&self, folder: &Path, prefix: &str, visit: &mut dyn FnMut(Listed)) -> io::Result<()> {
        if prefix.bytes().filter(|&byte| byte == b'/').count() > MAX_DEPTH {
            return Err(io::Error::other(format!(
                "expected at most {MAX_DEPTH} levels of folders, found more in {}: is there a circular link?",
                folder.display()
            )));
        }
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.broken_link_above(folder).map_or(Ok(()), Err);
            }
            Err(error) => return Err(add_path(folder, &error)),
        };
        for entry in entries {
            let entry = entry?;
            // Keys are ASCII, so a file with another name is not an object.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let key = format!("{prefix}{name}");
            if name.ends_with(ENDING) {
                continue;
            }
            let is_link = entry.file_type()?.is_symlink();
            match fs::metadata(entry.path()) {
                Ok(metadata) if metadata.is_dir() => self.walk(&entry.path(), &format!("{key}/"), visit)?,
                Ok(metadata) if metadata.is_file() => {
                    let stored = metadata.modified().ok().and_then(|time| time.try_into().ok());
                    visit(Listed { key, bytes: metadata.len(), stored });
                }
                Ok(_) => {}
                // A broken link may hide existing objects.
                Err(error) if is_link => {
                    let link = entry.path();
                    return Err(io::Error::other(format!(
                        "cannot follow the link {}: {error}",
                        link.display()
                    )));
                }
                // Removed since the listing, by pack or prune.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(add_path(&entry.path(), &error)),
            }
        }
        Ok(())
    }
}

impl Store for Folder {
    fn make_root(&self) -> Result<(), StoreError> {
        make_folders(&self.root).map_err(self.failed("create", ""))
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        let path = self.path("create", key)?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound if !self.root.is_dir() => {
                self.error("create", key, Cause::NoArchive, None)
            }
            _ => self.failed("create", key)(error),
        };
        let folder = path.parent().unwrap_or(&self.root);
        self.make_folders(folder).map_err(&failed)?;
        if path.symlink_metadata().is_ok() {
            return Ok(Created::Exists);
        }
        let mut temporary = pending::begin(&path, MODE).map_err(&failed)?;
        self.hand_over(temporary.as_file()).map_err(&failed)?;
        let written = self.pace.write(temporary.as_file_mut(), content);
        written.and_then(|()| temporary.as_file().sync_all()).map_err(&failed)?;
        match pending::publish(temporary, &path, false) {
            Ok(_) => {
                walden_source::sync(folder).map_err(&failed)?;
                Ok(Created::New)
            }
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(Created::Exists),
            Err(error) => Err(failed(error.error)),
        }
    }

    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path("synchronise", key)?;
        let failed = self.failed("synchronise", key);
        let folder = path.parent().unwrap_or(&self.root);
        regular_file::open(&path).and_then(|file| file.sync_all()).map_err(&failed)?;
        walden_source::sync(folder).and_then(|()| self.make_folders(folder)).map_err(&failed)
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.path("read", key)?;
        let failed = self.failed_to_read(key, &path);
        let file = regular_file::open(&path).map_err(&failed)?;
        let bytes = file.metadata().map_err(&failed)?.len();
        let too_large = || self.error("read", key, Cause::TooLarge, None);
        if bytes > MAX_OBJECT_BYTES {
            return Err(too_large());
        }
        let content = self.pace.read(file.take(MAX_OBJECT_BYTES + 1)).map_err(&failed)?;
        match content.len() as u64 > MAX_OBJECT_BYTES {
            true => Err(too_large()),
            false => Ok(content),
        }
    }

    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let path = self.path("read", key)?;
        let failed = self.failed_to_read(key, &path);
        let mut file = regular_file::open(&path).map_err(&failed)?;
        let bytes = range.end.saturating_sub(range.start);
        if bytes > MAX_OBJECT_BYTES {
            return Err(self.error("read", key, Cause::TooLarge, None));
        }
        file.seek(SeekFrom::Start(range.start)).map_err(&failed)?;
        self.pace.read(file.take(bytes)).map_err(&failed)
    }

    fn size(&self, key: &str) -> Result<u64, StoreError> {
        let path = self.path("read", key)?;
        let failed = self.failed_to_read(key, &path);
        let metadata = fs::metadata(&path).map_err(&failed)?;
        regular_file::expect(&metadata).map_err(&failed)?;
        Ok(metadata.len())
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        let folder = match prefix.strip_suffix('/') {
            None => self.root.clone(),
            Some(prefix) => self.path("list", prefix)?,
        };
        self.walk(&folder, prefix, visit).map_err(self.failed("list", prefix))
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path("remove", key)?;
        let failed = self.failed("remove", key);
        match fs::remove_file(&path) {
            Ok(()) => walden_source::sync(path.parent().unwrap_or(&self.root)).map_err(&failed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn remove_all(&self, prefix: &str) -> Result<Option<Kept>, StoreError> {
        let folder = self.path("remove", prefix.trim_end_matches('/'))?;
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("remove", prefix)(error))
            }
            _ => Ok(None),
        }
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        remove_leftovers_below(&self.root).map_err(self.failed("remove leftovers in", ""))
    }

    fn location(&self) -> &str {
        &self.location
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn can_be_unmounted(&self) -> bool {
        true
    }
}

fn remove_leftovers_below(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    pending::remove_leftovers_in(folder)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_leftovers_below(&entry.path())?;
        }
    }
    Ok(())
}

/// Creates the archive's root folder and its parents, and makes the new directory entries durable.
fn make_folders(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_folders(above)?;
    }
    make_folder(folder)?;
    match folder.parent() {
        Some(above) if !above.as_os_str().is_empty() => walden_source::sync(above),
        _ => walden_source::sync(Path::new(".")),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Adds the path to an error. The prefix of a listing does not identify the subfolder that failed.
fn add_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn cause_of(error: &io::Error) -> Cause {
    match error.kind() {
        io::ErrorKind::NotFound => Cause::NotFound,
        io::ErrorKind::PermissionDenied => Cause::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Cause::Full,
        io::ErrorKind::ReadOnlyFilesystem => Cause::ReadOnly,
        io::ErrorKind::TimedOut | io::ErrorKind::StaleNetworkFileHandle | io::ErrorKind::HostUnreachable => {
            Cause::Unavailable
        }
        _ => Cause::Other,
    }
}

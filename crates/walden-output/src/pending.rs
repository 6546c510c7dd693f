//! Files that appear complete or not at all: written under a temporary name next to the target, then renamed.
//!
//! The writer decides what to synchronize, depending on the data that a system crash may lose:
//!
//! | File | Synchronized | Why |
//! |---|---|---|
//! | archive object | the file before the rename, its folder after it | the server removes its WAL next |
//! | exported segment, output of `walden compress` and others | the same | the original may be removed next |
//! | segment for recovery ([`Incoming`]) | nothing | recovery asks for it again |
//! | regularly replaced state ([`replace_state`]) | nothing | soon replaced; syncing delays other files |

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, PersistError, TempPath};
use walden_server::signals::{self, Stage};

/// File name extension of unfinished files.
pub const ENDING: &str = ".tmp";

/// Number of attempts with the derived temporary name before another name is used.
const ATTEMPTS: usize = 4;

/// Temporary files of this process, by identity: another process may have taken the name since.
static UNFINISHED: Mutex<Vec<Unfinished>> = Mutex::new(Vec::new());
/// Length at which finished files are dropped from the list. Fewer files are written concurrently.
const MAX_KNOWN: usize = 64;

struct Unfinished {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Unfinished {
    fn is_there(&self) -> bool {
        let found = self.path.symlink_metadata();
        found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }
}

fn unfinished() -> MutexGuard<'static, Vec<Unfinished>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the removal of this process's unfinished files for the case that a signal ends it.
pub fn clean_up_on_signals() {
    // Without a handler, a temporary file may remain, which the next run uses or removes: no reason to stop.
    let _ = signals::before_exit(Stage::Files, remove_unfinished);
}

fn remove_unfinished() {
    let unfinished = unfinished();
    for file in unfinished.iter().filter(|file| file.is_there()) {
        let _ = fs::remove_file(&file.path);
    }
    // Locked until the process ends, so that no other file is started after this.
    std::mem::forget(unfinished);
}

/// Creates a file under a temporary name next to `target`, for [`publish`].
///
/// The temporary name is derived from the target's, so the next writer of the same target reuses the file of
/// a killed process, and leftovers do not accumulate. The file is locked while it is written; if another
/// process is writing it, a unique name is used.
///
/// # Errors
/// Errors of the file system.
pub fn begin(target: &Path, mode: u32) -> io::Result<NamedTempFile> {
    expect_file(target)?;
    register(|| {
        let mut name = hidden_name(target);
        name.push(ENDING);
        let path = parent_folder(target).join(name);
        for _ in 0..ATTEMPTS {
            if let Some(file) = claim(&path, mode)? {
                return Ok(NamedTempFile::from_parts(file, TempPath::try_from_path(path)?));
            }
        }
        create_apart(target, ENDING, mode)
    })
}

/// Creates a file like [`begin`], but under a unique temporary name with another extension: in users'
/// folders, the derived name may belong to any file.
///
/// # Errors
/// Errors of the file system.
pub fn begin_apart(target: &Path, ending: &str, mode: u32) -> io::Result<NamedTempFile> {
    expect_file(target)?;
    register(|| create_apart(target, ending, mode))
}

/// Renames a finished file to its target. An existing target is replaced, or an error.
///
/// # Errors
/// Errors of the file system, with the file, which is removed on drop.
pub fn publish(file: NamedTempFile, target: &Path, replaces: bool) -> Result<File, PersistError> {
    let path = file.path().to_owned();
    // A thread that gets the lock after a signal finds the file removed, and must not report that as an
    // error.
    let mut unfinished = unfinished();
    let published = if replaces { file.persist(target) } else { file.persist_noclobber(target) };
    if published.is_ok() {
        unfinished.retain(|other| other.path != path);
    }
    published
}

/// Size of the write buffer in bytes. Decoding returns most of a segment in larger parts, which are not
/// copied.
const WRITE_BUFFER: usize = 64 << 10;

/// A file for recovery, or for a caller that can ask again, while it is written.
pub struct Incoming {
    target: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl Incoming {
    /// Creates a file in the target's folder.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(target: &Path) -> io::Result<Incoming> {
        let file = BufWriter::with_capacity(WRITE_BUFFER, begin(target, 0o600)?);
        Ok(Incoming { target: target.to_owned(), file })
    }

    /// Renames the file to its target without synchronizing: after a crash, recovery asks for it again.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn publish(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        publish(file, &self.target, true)?;
        Ok(())
    }

    /// Synchronizes the file, then renames it to its target.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn publish_durably(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().as_file().sync_all()?;
        self.publish()
    }
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Replaces a small state file without synchronizing.
///
/// # Errors
/// Errors of the file system.
pub fn replace_state(target: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut file = begin(target, mode)?;
    file.write_all(content)?;
    publish(file, target, true)?;
    Ok(())
}

fn register(begin: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
    let mut unfinished = unfinished();
    let file = begin()?;
    if unfinished.len() >= MAX_KNOWN {
        unfinished.retain(Unfinished::is_there);
    }
    let found = file.as_file().metadata()?;
    unfinished.push(Unfinished { path: file.path().to_owned(), device: found.dev(), inode: found.ino() });
    Ok(file)
}

/// A rename would replace a device by a file: for root, `/dev/null` would become a regular file.
fn expect_file(target: &Path) -> io::Result<()> {
    match fs::metadata(target) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            let problem = format!(
                "{}: expected a regular file or none, found a device, pipe or socket",
                target.display()
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
        }
        _ => Ok(()),
    }
}

/// Creates a temporary file under a unique name.
fn create_apart(target: &Path, ending: &str, mode: u32) -> io::Result<NamedTempFile> {
    let mut prefix = hidden_name(target);
    prefix.push(".");
    let permissions = Permissions::from_mode(mode);
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(ending)
        .permissions(permissions)
        .tempfile_in(parent_folder(target))?;
    // Locked, so that no process treats it as a leftover. If locks are unsupported, its age protects it.
    let _ = file.as_file().try_lock();
    Ok(file)
}

fn hidden_name(target: &Path) -> OsString {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name
}

/// Returns the folder of a path's file; `.` if the path has none.
pub fn parent_folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens, locks and empties a temporary file. Returns `None` if another process may be using it.
fn claim(path: &Path, mode: u32) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.write(true).read(true).create(true).truncate(false).mode(mode);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let file = match options.open(path) {
        // Another user's leftover, or a link from another user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.exists() => return Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Ok(None);
        }
        other => other?,
    };
    // If locks are unsupported, every writer uses a unique name.
    if let Err(TryLockError::Error(_)) = file.try_lock() {
        let _ = fs::remove_file(path);
        return Ok(None);
    }
    if !is_locked_now(&file, path)? {
        return Ok(None);
    }
    // File systems without a non-replacing rename publish by a hard link: the file left by a process that was
    // killed right after that is the published file itself.
    if file.metadata()?.nlink() > 1 {
        fs::remove_file(path)?;
        return Ok(None);
    }
    file.set_len(0)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(Some(file))
}

/// Locks a file. Returns false if another process has locked it, or it was renamed or removed after it was
/// opened.
fn is_locked_now(file: &File, path: &Path) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => {}
        Err(_) => return Ok(false),
    }
    let own = file.metadata()?;
    match path.symlink_metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a temporary file that no process is writing. Returns whether it did.
///
/// # Errors
/// Errors of the file system.
pub fn remove_leftover(path: &Path) -> io::Result<bool> {
    let file = match OpenOptions::new().write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if !is_locked_now(&file, path)? {
        return Ok(false);
    }
    fs::remove_file(path)?;
    Ok(true)
}

/// Returns whether a file name denotes an unfinished file.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(ENDING)
}

/// Removes the temporary files in a folder that no process is writing. Returns their paths.
///
/// # Errors
/// A folder that cannot be read.
pub fn remove_leftovers_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_own = entry.file_name().to_str().is_some_and(is_temporary);
        if is_own && entry.file_type()?.is_file() && remove_leftover(&entry.path())? {
            removed.push(entry.path());
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn two_writers_of_one_name_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let mut first = begin(&target, 0o640).unwrap();
        let mut second = begin(&target, 0o640).unwrap();
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        assert!(remove_leftovers_in(folder.path()).unwrap().is_empty());
        assert_eq!(names(folder.path()).len(), 2);
        second.persist_noclobber(&target).unwrap();
        assert!(first.persist_noclobber(&target).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"second");
        assert_eq!(names(folder.path()), ["file"]);
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn what_a_killed_process_left_is_used_or_removed_but_never_what_it_published() {
        let folder = tempfile::tempdir().unwrap();
        let (target, temporary) = (folder.path().join("file"), folder.path().join(".file.tmp"));
        fs::write(&temporary, b"half").unwrap();
        let mut file = begin(&target, 0o600).unwrap();
        file.write_all(b"x").unwrap();
        file.persist(&target).unwrap();
        assert_eq!((fs::read(&target).unwrap(), names(folder.path()).len()), (b"x".to_vec(), 1));
        // Killed between creating the link and removing the temporary name.
        fs::hard_link(&target, &temporary).unwrap();
        drop(begin(&target, 0o600).unwrap());
        assert_eq!(fs::read(&target).unwrap(), b"x");
        fs::hard_link(&target, &temporary).unwrap();
        assert_eq!(remove_leftovers_in(folder.path()).unwrap(), std::slice::from_ref(&temporary));
        assert_eq!(fs::read(&target).unwrap(), b"x");
        // A link to another folder is not followed.
        std::os::unix::fs::symlink(&target, &temporary).unwrap();
        begin(&target, 0o600).unwrap().write_all(b"y").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"x");
    }
}

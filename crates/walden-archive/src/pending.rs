//! Files that appear complete or not at all: written under a temporary name beside the target, which they get by a rename.
//!
//! The writer decides what is synchronised, by what a crash of the system may lose:
//!
//! | File | Synchronised | Why |
//! |---|---|---|
//! | object of an archive | the file before the rename, its folder after it | a server removes its WAL on our word |
//! | segment that is exported, output of `walden compress` and others | the same | the original may be removed next |
//! | segment for recovery ([`Incoming`]) | nothing | recovery asks for it again |
//! | state that the next one replaces ([`replace_state`]) | nothing | the next one says more, and other files are waited for on the same disk |

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, PersistError, TempPath};
use walden_server::signals::{self, Stage};

/// What the names of files end with that are being written.
pub const ENDING: &str = ".tmp";

/// How often the temporary file of a name is tried before another name is used.
const ATTEMPTS: usize = 4;

/// Temporary files of this process, by what they are: another process may have taken the name since.
static UNFINISHED: Mutex<Vec<Unfinished>> = Mutex::new(Vec::new());
/// More of them than are written at the same time: those that are finished are dropped from the list.
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

/// Has what this process is writing and has not finished removed if a signal ends it.
pub fn clean_up_on_signals() {
    // Without a handler, a temporary file may stay behind, which the next run uses or removes: no reason not to go on.
    let _ = signals::before_exit(Stage::Files, remove_unfinished);
}

fn remove_unfinished() {
    let unfinished = unfinished();
    for file in unfinished.iter().filter(|file| file.is_there()) {
        let _ = fs::remove_file(&file.path);
    }
    // Locked to the end of the process, so that no other file is begun after this.
    std::mem::forget(unfinished);
}

/// Begins a file: under a temporary name beside `target`, which it gets by [`publish`].
///
/// The temporary name follows from the target's, so what a killed process left is used by the next that writes the same, and no
/// leftovers accumulate. The file is locked while it is written: where another process is writing it, a name of its own is made.
///
/// # Errors
/// The file system's.
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

/// Begins a file as [`begin`] does, but under a temporary name of its own with another ending: in folders of users, where what has the
/// name that follows from the target's may be anybody's.
///
/// # Errors
/// The file system's.
pub fn begin_apart(target: &Path, ending: &str, mode: u32) -> io::Result<NamedTempFile> {
    expect_file(target)?;
    register(|| create_apart(target, ending, mode))
}

/// Gives a file that was begun its name; a target that exists is replaced or an error.
///
/// # Errors
/// The file system's, with the file, which is removed when that is dropped.
pub fn publish(file: NamedTempFile, target: &Path, replaces: bool) -> Result<File, PersistError> {
    let path = file.path().to_owned();
    // Whoever gets the lock after a signal finds the file removed, and must not take that for an error.
    let mut unfinished = unfinished();
    let published = if replaces { file.persist(target) } else { file.persist_noclobber(target) };
    if published.is_ok() {
        unfinished.retain(|other| other.path != path);
    }
    published
}

/// Bytes that are collected before they are written. Decoding gives most of a segment in larger parts, which are not copied.
const WRITE_BUFFER: usize = 64 << 10;

/// A file for recovery or for whoever asks again, while it is written.
pub struct Incoming {
    target: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl Incoming {
    /// Begins a file in the target's folder.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(target: &Path) -> io::Result<Incoming> {
        let file = BufWriter::with_capacity(WRITE_BUFFER, begin(target, 0o600)?);
        Ok(Incoming { target: target.to_owned(), file })
    }

    /// Gives the file its name. It is not synchronised: after a crash, recovery asks for it again.
    ///
    /// # Errors
    /// The file system's.
    pub fn publish(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        publish(file, &self.target, true)?;
        Ok(())
    }

    /// Gives the file its name once its bytes are durable.
    ///
    /// # Errors
    /// The file system's.
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

/// Replaces a small file that says how things are now. It is not synchronised.
///
/// # Errors
/// The file system's.
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

/// A rename would put a file in the place of a device: as root, `/dev/null` would be one from then on.
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

/// Creates a temporary file under a name that no other process has.
fn create_apart(target: &Path, ending: &str, mode: u32) -> io::Result<NamedTempFile> {
    let mut prefix = hidden_name(target);
    prefix.push(".");
    let permissions = Permissions::from_mode(mode);
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(ending)
        .permissions(permissions)
        .tempfile_in(parent_folder(target))?;
    // So that nobody takes it for a leftover. Where there are no locks, its age has to do.
    let _ = file.as_file().try_lock();
    Ok(file)
}

fn hidden_name(target: &Path) -> OsString {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name
}

/// The folder that a path's file is in; `.` where the path has none.
pub fn parent_folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens and locks a temporary file, empty; nothing if it cannot be this process's alone.
fn claim(path: &Path, mode: u32) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.write(true).read(true).create(true).truncate(false).mode(mode);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let file = match options.open(path) {
        // Another user's leftover, or a link that somebody put there.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.exists() => return Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Ok(None);
        }
        other => other?,
    };
    // Where there are no locks, every writer has a name of its own.
    if let Err(TryLockError::Error(_)) = file.try_lock() {
        let _ = fs::remove_file(path);
        return Ok(None);
    }
    if !is_locked_now(&file, path)? {
        return Ok(None);
    }
    // On file systems without a rename that does not replace, a name is given by a link: what a process left that was killed
    // right after it is the file itself.
    if file.metadata()?.nlink() > 1 {
        fs::remove_file(path)?;
        return Ok(None);
    }
    file.set_len(0)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(Some(file))
}

/// Locks a file; false if another process has it locked, or has renamed or removed it since it was opened.
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

/// Removes a temporary file that no process is writing any more; whether it was one.
///
/// # Errors
/// The file system's.
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

/// Whether a file of this name is one that is being written.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(ENDING)
}

/// The temporary files in a folder that nobody writes any more are removed.
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
        // Killed between a link and the removal of the temporary name.
        fs::hard_link(&target, &temporary).unwrap();
        drop(begin(&target, 0o600).unwrap());
        assert_eq!(fs::read(&target).unwrap(), b"x");
        fs::hard_link(&target, &temporary).unwrap();
        assert_eq!(remove_leftovers_in(folder.path()).unwrap(), std::slice::from_ref(&temporary));
        assert_eq!(fs::read(&target).unwrap(), b"x");
        // A link to elsewhere is not followed.
        std::os::unix::fs::symlink(&target, &temporary).unwrap();
        begin(&target, 0o600).unwrap().write_all(b"y").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"x");
    }
}

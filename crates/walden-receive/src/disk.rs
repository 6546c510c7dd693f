//! The file system calls of the spool. There are few of them, so that tests can make each of them fail.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A folder with WAL files.
pub trait Disk: Send + Sync {
    /// Lists the names of its files.
    ///
    /// # Errors
    /// Errors of the file system, as for all calls.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file of `bytes` zeros, which are durable; its name is durable only after
    /// [`Disk::sync_names`]. Replaces a file of this name.
    ///
    /// # Errors
    /// The errors of [`Disk::list`].
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file.
    ///
    /// # Errors
    /// The errors of [`Disk::list`].
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file, and replaces a file of the new name. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// The errors of [`Disk::list`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// The errors of [`Disk::list`].
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names durable.
    ///
    /// # Errors
    /// The errors of [`Disk::list`].
    fn sync_names(&self) -> io::Result<()>;
    /// Returns the path of a file.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// Errors of the file system.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills the buffer with bytes at an offset.
    ///
    /// # Errors
    /// Errors of the file system, and [`ErrorKind::UnexpectedEof`] if the file ends first.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes written bytes durable.
    ///
    /// # Errors
    /// Errors of the file system. Written bytes may then be lost, even if a later call succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system, locked for this process.
pub struct Folder {
    path: PathBuf,
    /// Holds the lock while it is open.
    _lock: File,
}

/// The file that the receiving process locks.
const LOCK: &str = "lock";
/// Bytes written at a time to fill a file.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// How long to try to lock the folder: [`is_in_use`] of another process holds the lock for a moment.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
/// How often to try.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Returns whether a process receives into a folder. False if the lock file cannot be opened.
pub fn is_in_use(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

impl Folder {
    /// Opens a folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// Errors of the file system, and [`ErrorKind::ResourceBusy`] if another process receives into it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        fs::create_dir_all(path)?;
        let lock = File::options().create(true).append(true).mode(0o600).open(path.join(LOCK))?;
        let began = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Folder { path: path.to_owned(), _lock: lock }),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_WITHIN => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => return Err(ErrorKind::ResourceBusy.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Disk for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| entry.map(|entry| entry.file_name().into_string()));
        let names: io::Result<Vec<_>> = names.collect();
        // A name that is not Unicode does not belong to the spool.
        Ok(names?.into_iter().flatten().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = File::options();
        let file = options.create(true).truncate(true).read(true).write(true).mode(0o600);
        let mut file = file.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(self.path(name))?;
        let mut left = bytes;
        while left > 0 {
            let now = left.min(ZEROS.len() as u64);
            file.write_all(&ZEROS[..now as usize])?;
            left -= now;
        }
        file.sync_all()?;
        Ok(Arc::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(File::options().read(true).write(true).open(self.path(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        walden_source::sync(&self.path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl DiskFile for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // The size never changes after a file was filled.
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_opened_although_somebody_looks_whether_it_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        drop(Folder::open(folder.path()).unwrap());
        // As `is_in_use` does, but slowly.
        let look = File::open(folder.path().join(LOCK)).unwrap();
        look.try_lock_shared().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(look);
            });
            assert!(!is_in_use(folder.path()));
            let _open = Folder::open(folder.path()).unwrap();
            assert!(is_in_use(folder.path()));
            let second = Folder::open(folder.path()).err().map(|error| error.kind());
            assert_eq!(second, Some(ErrorKind::ResourceBusy));
        });
        assert!(!is_in_use(folder.path()));
    }
}

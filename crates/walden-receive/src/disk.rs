//! What the spool asks of a file system: few calls, so that tests can let each of them fail.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A folder with files of WAL.
pub trait Disk: Send + Sync {
    /// The names of the files in it.
    ///
    /// # Errors
    /// The file system's, as of all calls.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a file of so many zero bytes, which are durable; its name is only after [`Disk::sync_names`]. What has the name is
    /// replaced.
    ///
    /// # Errors
    /// As [`Disk::list`].
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file.
    ///
    /// # Errors
    /// As [`Disk::list`].
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name; a file that has it is replaced. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// As [`Disk::list`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Durable after [`Disk::sync_names`].
    ///
    /// # Errors
    /// As [`Disk::list`].
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names durable.
    ///
    /// # Errors
    /// As [`Disk::list`].
    fn sync_names(&self) -> io::Result<()>;
    /// Where a file is.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// The file system's.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Reads bytes at an offset, all that the buffer takes.
    ///
    /// # Errors
    /// The file system's, and [`ErrorKind::UnexpectedEof`] if the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes what was written durable.
    ///
    /// # Errors
    /// The file system's. What was written may be lost then, even if a later call succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system, locked for this process.
pub struct Folder {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

/// The file that is locked by the process that receives.
const LOCK: &str = "lock";
/// Bytes that are written at a time to fill a file.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// For how long a folder's lock is tried: [`is_in_use`] of another process holds it for a moment.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
/// How often it is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Whether a process receives into a folder, as far as the user may find that out.
pub fn is_in_use(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

impl Folder {
    /// Uses a folder, which is made if it is not there.
    ///
    /// # Errors
    /// The file system's, and [`ErrorKind::ResourceBusy`] if another process receives into it.
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
        // Names that are not Unicode are not ours.
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
        File::open(&self.path)?.sync_all()
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
        // What `is_in_use` does, slowly.
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

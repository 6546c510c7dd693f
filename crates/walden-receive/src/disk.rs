//! What the spool asks of a file system: few calls, so that tests can let each of them fail.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Reads bytes at an offset, all that the buffer takes.
    ///
    /// # Errors
    /// The file system's.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
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
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(ErrorKind::ResourceBusy.into()),
            Err(TryLockError::Error(error)) => Err(error),
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
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // The size never changes after a file was filled.
        self.sync_data()
    }
}

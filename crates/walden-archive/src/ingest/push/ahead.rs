//! Records files that one call of `push` archived ahead of time, for later calls that request them.
//!
//! Without these notes, a later call would read both the file and its object to check that they are
//! unchanged. It can skip both if the file system shows that the file was not written since it was checked
//! and stored ([`Stamp`]), and if the archive lists the object with its original size. The notes are stored
//! next to the segments in one file per archive ([`Notes`]) and are valid for [`MAX_AGE`]. Files without
//! valid notes are read.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use walden_source::regular_file;

use crate::archive::Archive;
use crate::boot::{BOOT_ID, boot_id};
use crate::objects::name::ArchivedFile;
use crate::pending;

/// How long a note is trusted to show that the object is still archived unchanged.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30);
/// Coarsest timestamp resolution of a file system. A file that changed within this time may change again
/// without a new timestamp.
const RESOLUTION: Duration = Duration::from_secs(2);
/// Exceeds the notes of the largest number of files that one call archives.
const MAX_BYTES: u64 = 4 << 20;
/// Prefix of the names of the files that contain notes.
const PREFIX: &str = "walden-ahead-";

/// File metadata that detects writes to a file, because each change updates its timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Modification time in seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// Time of the last change of the inode, including renames, in the same units.
    changed: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of a file, or `None` if it changed too recently.
    pub fn read(file: &File) -> Option<Stamp> {
        let found = file.metadata().ok()?;
        is_settled(&found).then(|| Stamp {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

fn is_settled(found: &Metadata) -> bool {
    let Ok(seconds) = u64::try_from(found.ctime()) else { return false };
    // Rounds up because the fraction of the second is ignored.
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds + 1);
    changed.elapsed().is_ok_and(|age| age > RESOLUTION)
}

/// Notes about the files archived ahead from one `pg_wal` into one archive.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(crate) struct Notes {
    /// ID of the system boot during which the notes were written.
    boot: String,
    files: Vec<Note>,
}

/// A note about a file that was archived ahead.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    name: String,
    stamp: Stamp,
    /// Size of the object in bytes.
    stored: u64,
    /// Time of the note in milliseconds since the system booted.
    at: u64,
}

impl Note {
    /// Creates a note about a file that was just stored in `stored` bytes.
    pub fn new(file: ArchivedFile, stamp: Stamp, stored: u64) -> Note {
        Note { name: file.to_string(), stamp, stored, at: since_boot() }
    }
}

impl Notes {
    /// Reads the notes next to a server's segments. Notes from another boot of the system are discarded.
    pub fn read(beside: &Path, archive: &Archive) -> Notes {
        let bytes = regular_file::read(&path(beside, archive), MAX_BYTES).unwrap_or_default();
        let notes: Notes = serde_json::from_slice(&bytes).unwrap_or_default();
        let boot = boot_id(Path::new(BOOT_ID));
        if boot.is_some_and(|boot| boot == notes.boot) { notes } else { Notes::default() }
    }

    /// Replaces the notes next to a server's segments. Errors are ignored because later calls then read the
    /// files instead.
    pub fn replace(beside: &Path, archive: &Archive, files: Vec<Note>) {
        let Some(boot) = boot_id(Path::new(BOOT_ID)) else { return };
        let json = serde_json::to_vec(&Notes { boot, files }).unwrap_or_default();
        let _ = pending::replace_state(&path(beside, archive), 0o600, &json);
    }

    /// Returns the sizes of a file and of its recently stored object, if the file has not changed since it
    /// was read.
    pub fn sizes(&self, file: ArchivedFile, content: &File) -> Option<(u64, u64)> {
        let name = file.to_string();
        let note = self.files.iter().find(|note| note.name == name)?;
        let age = Duration::from_millis(since_boot().checked_sub(note.at)?);
        (age < MAX_AGE && Stamp::read(content) == Some(note.stamp)).then_some((note.stamp.bytes, note.stored))
    }
}

/// Returns the monotonic clock in milliseconds. It cannot be set, and all processes share it.
fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1000
        + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

fn path(beside: &Path, archive: &Archive) -> PathBuf {
    beside.join(archive.name_beside_segments(PREFIX))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_stamp_tells_what_was_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("segment");
        fs::write(&path, [1; 100]).expect("a file");
        let stamp = || Stamp::read(&File::open(&path).expect("a file"));
        assert_eq!(stamp(), None, "changed a moment ago");
        let settle = || std::thread::sleep(RESOLUTION + Duration::from_secs(2));
        settle();
        let first = stamp().expect("a stamp");
        assert_eq!(stamp(), Some(first));
        // The modification time can be set back; the change time cannot.
        let mut file = File::options().write(true).open(&path).expect("a file");
        let modified = file.metadata().and_then(|found| found.modified()).expect("a time");
        file.write_all(&[2; 100]).expect("written");
        file.set_modified(modified).expect("set");
        settle();
        let second = stamp().expect("a stamp");
        assert_eq!((second.bytes, second.modified, second.inode), (first.bytes, first.modified, first.inode));
        assert_ne!(second, first);
    }
}

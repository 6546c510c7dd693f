//! What one call of `push` has archived ahead, for the calls that ask for it soon.
//!
//! Such a call would read its file and the object, to see that they are still the same. Both need not be read while the file system says
//! that nobody has written to the file since it was checked and stored ([`Stamp`]), and the archive lists the object with the size that it
//! was stored with. This lies beside the segments, in a file of its own for each archive ([`Notes`]), and counts for [`MAX_AGE`]: what is
//! not known in this way is read.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use walden_source::regular_file;

use crate::archive::Archive;
use crate::boot::{BOOT_ID, boot_id};
use crate::pending;
use crate::stored::name::ArchivedFile;

/// How long it is relied on that what was archived ahead is in the archive as it was stored.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30);
/// File systems note the time of a change by a clock that stands still in between, for two seconds on some: what was changed within that
/// may change once more at the same time.
const RESOLUTION: Duration = Duration::from_secs(2);
/// More than notes of the most files that one call archives take.
const MAX_BYTES: u64 = 4 << 20;
/// What the names of the files begin with that have notes.
const PREFIX: &str = "walden-ahead-";

/// What a file system says of a file, from which follows whether it was written to: each change sets the time of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// The same of the last change of anything, names included.
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of a file; nothing if it was changed a moment ago.
    pub fn of(file: &File) -> Option<Stamp> {
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
    // Without the part of a second the change seems longer ago by that.
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds + 1);
    changed.elapsed().is_ok_and(|age| age > RESOLUTION)
}

/// What was archived ahead of one `pg_wal`, into one archive.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(crate) struct Notes {
    /// The boot of the system under which they were written.
    boot: String,
    files: Vec<Note>,
}

/// A file that was archived ahead.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    name: String,
    stamp: Stamp,
    /// Bytes of the object.
    stored: u64,
    /// Milliseconds since the system was booted.
    at: u64,
}

impl Note {
    /// A file that has just been stored in so many bytes; nothing where time cannot be told.
    pub fn new(file: ArchivedFile, stamp: Stamp, stored: u64) -> Note {
        Note { name: file.to_string(), stamp, stored, at: since_boot() }
    }
}

impl Notes {
    /// The notes beside the segments of a server; none that another boot of the system has left.
    pub fn read(beside: &Path, archive: &Archive) -> Notes {
        let bytes = regular_file::read(&path(beside, archive), MAX_BYTES).unwrap_or_default();
        let notes: Notes = serde_json::from_slice(&bytes).unwrap_or_default();
        let boot = boot_id(Path::new(BOOT_ID));
        if boot.is_some_and(|boot| boot == notes.boot) { notes } else { Notes::default() }
    }

    /// Replaces the notes beside the segments of a server. Where that cannot be, the next calls read what these would spare them.
    pub fn replace(beside: &Path, archive: &Archive, files: Vec<Note>) {
        let Some(boot) = boot_id(Path::new(BOOT_ID)) else { return };
        let json = serde_json::to_vec(&Notes { boot, files }).unwrap_or_default();
        let _ = pending::replace_state(&path(beside, archive), 0o600, &json);
    }

    /// The bytes of a file and of the object in which it was stored a moment ago, if the file has not changed since it was read for that.
    pub fn sizes(&self, file: ArchivedFile, content: &File) -> Option<(u64, u64)> {
        let name = file.to_string();
        let note = self.files.iter().find(|note| note.name == name)?;
        let age = Duration::from_millis(since_boot().checked_sub(note.at)?);
        (age < MAX_AGE && Stamp::of(content) == Some(note.stamp)).then_some((note.stamp.bytes, note.stored))
    }
}

/// Milliseconds of a clock that nobody sets, and that is the same for all processes.
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
        let stamp = || Stamp::of(&File::open(&path).expect("a file"));
        assert_eq!(stamp(), None, "changed a moment ago");
        let settle = || std::thread::sleep(RESOLUTION + Duration::from_secs(2));
        settle();
        let first = stamp().expect("a stamp");
        assert_eq!(stamp(), Some(first));
        // The time of the last modification can be set back; that of the last change cannot.
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

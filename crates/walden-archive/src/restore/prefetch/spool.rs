//! Manages the folder of prefetched segments.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use walden_format::lsn::SegmentName;
use walden_source::regular_file;

use crate::archive::{Archive, Identity};
use crate::boot::{BOOT_ID, boot_id};
use crate::pending;
use crate::restore::server::system_id_of_server;

/// The folder of prefetched segments.
///
/// Segments are not synchronized, because that would slow down recovery more than anything else here. After a
/// power failure, a file may have its name but not its content. So the spool records the system boot during
/// which it was filled, and its segments are valid only during that boot. If the system does not provide a
/// boot ID, each segment is synchronized before it gets its name.
///
/// A location may later contain the archive of another cluster. So the spool also records the cluster of its
/// segments, and a server whose system identifier is known rejects segments of other clusters.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
    /// File that contains the boot ID.
    boot_id: PathBuf,
    /// System identifier of the server next to the spool, if it can be read.
    own: Option<u64>,
}

/// File that records the boot, the segment size in bytes, and the cluster of the spool's segments.
const FILLED: &str = "filled";
/// Recorded instead of a boot if segments are synchronized.
const SYNCHRONISED: &str = "synchronised";
/// File that contains the last requested segment.
const POSITION: &str = "position";
/// File that lists the segments being fetched.
const COMING: &str = "coming";
/// File that the fetching process locks.
pub(crate) const LOCK: &str = "lock";
/// Prefix of the names of spool folders.
pub(crate) const FOLDER_PREFIX: &str = "walden-prefetch-";
/// Number of segments for which the file system must keep free space.
const KEPT_FREE: u64 = 4;
/// Maximum size of `postmaster.pid` in bytes.
const MAX_PID_FILE: u64 = 1 << 16;
/// Maximum time to wait for a segment that another process is fetching.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl Spool {
    /// Returns the spool for an archive, in a folder next to a server's segments.
    pub fn new(beside: &Path, archive: &Archive) -> Spool {
        let folder = beside.join(archive.name_beside_segments(FOLDER_PREFIX));
        let mut spool = Spool { folder, boot_id: PathBuf::from(BOOT_ID), own: None };
        spool.own = spool.data_directory().and_then(system_id_of_server);
        spool
    }

    /// Returns the folder that is the data directory if the spool is in a server's `pg_wal`.
    fn data_directory(&self) -> Option<&Path> {
        self.folder.parent()?.parent()
    }

    /// Returns the server's process ID from `postmaster.pid`, if the process is running.
    pub(super) fn server_process(&self) -> Option<i32> {
        let file = self.data_directory()?.join("postmaster.pid");
        let text = String::from_utf8(regular_file::read(&file, MAX_PID_FILE).ok()?).ok()?;
        // In single-user mode, the number is negative.
        let process = text.lines().next()?.trim().parse().ok().filter(|&process: &i32| process > 0)?;
        let pid = rustix::process::Pid::from_raw(process)?;
        // The process of another user results in a different error.
        let is_gone = rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        (!is_gone).then_some(process)
    }

    /// Returns whether the spool is in the data directory of a running server. Otherwise no server requests
    /// consecutive segments or removes the spool, and `pg_rewind -c` fails if files in `pg_wal` disappear
    /// while it works.
    pub fn is_of_a_server(&self) -> bool {
        self.server_process().is_some()
    }

    /// Uses another file for the boot ID. If it is unreadable, segments are synchronized.
    #[must_use]
    pub fn with_boot_id(self, boot_id: &Path) -> Spool {
        Spool { boot_id: boot_id.to_owned(), ..self }
    }

    /// Returns the folder of the segments.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether a segment is ready or being fetched.
    pub fn is_ahead(&self, segment: SegmentName) -> bool {
        self.has(segment) || self.is_coming(segment)
    }

    /// Moves a segment to `target` if it is ready, or once it is ready if it is being fetched. Returns
    /// whether it was moved.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn take(&self, segment: SegmentName, target: &Path) -> io::Result<bool> {
        let began = Instant::now();
        loop {
            // Checked before the search for the segment: the announcement is removed only once the segment is
            // ready.
            let is_coming = began.elapsed() < MAX_WAIT && self.is_coming(segment);
            if self.take_ready(segment, target)? {
                return Ok(true);
            }
            if !is_coming {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take_ready(&self, segment: SegmentName, target: &Path) -> io::Result<bool> {
        if !self.has(segment) {
            return Ok(false);
        }
        match fs::rename(self.path(segment), target) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::CrossesDevices) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether a running process is fetching a segment.
    fn is_coming(&self, segment: SegmentName) -> bool {
        let names = fs::read_to_string(self.folder.join(COMING)).unwrap_or_default();
        names.lines().any(|line| SegmentName::parse(line) == Some(segment))
            && File::open(self.folder.join(LOCK)).is_ok_and(|file| is_held(&file.try_lock_shared()))
    }

    /// Records which segments are being fetched.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn announce<'s>(&self, segments: impl Iterator<Item = &'s SegmentName>) -> io::Result<()> {
        let names: String = segments.map(|segment| format!("{segment}\n")).collect();
        self.write(COMING, &names)
    }

    /// Records the requested segment, so that the segments after it are fetched.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn note(&self, segment: SegmentName) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        self.write(POSITION, &segment.to_string())
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        pending::replace_state(&self.folder.join(name), 0o600, text.as_bytes())
    }

    /// Returns the last requested segment.
    pub(super) fn position(&self) -> Option<SegmentName> {
        SegmentName::parse(&fs::read_to_string(self.folder.join(POSITION)).ok()?)
    }

    /// Takes the lock of the fetching process. Returns `None` if another process has it.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let open = || {
            fs::create_dir_all(&self.folder)?;
            File::options().create(true).append(true).open(self.folder.join(LOCK))
        };
        // An ending process may remove the folder between the two steps.
        let file = open().or_else(|_| open())?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Waits until no process uses the spool, if it exists.
    pub fn wait_until_unused(&self, limit: Duration) {
        let began = Instant::now();
        while began.elapsed() < limit
            && let Ok(lock) = File::open(self.folder.join(LOCK))
            && matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Prepares the spool for an archive: removes the files of a killed process, and segments that a power
    /// failure may have damaged or that belong to another cluster. Returns whether each segment must be
    /// synchronized.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn prepare(&self, of: &Identity) -> io::Result<bool> {
        pending::remove_leftovers_in(&self.folder)?;
        self.announce(std::iter::empty())?;
        let boot = self.boot();
        let filled = Filled {
            boot: boot.clone(),
            segment_bytes: of.segment_bytes,
            system_identifier: of.system_identifier.clone(),
        };
        if self.filled().as_ref() != Some(&filled) {
            self.keep(&BTreeSet::new())?;
            if boot == SYNCHRONISED {
                // Makes the removals durable, because segments that reappear after a power failure would
                // count as valid.
                walden_source::sync(&self.folder)?;
            }
            self.write(FILLED, &filled.to_string())?;
        }
        Ok(boot == SYNCHRONISED)
    }

    /// Returns the ID of the current boot.
    fn boot(&self) -> String {
        boot_id(&self.boot_id).unwrap_or_else(|| SYNCHRONISED.to_owned())
    }

    fn filled(&self) -> Option<Filled> {
        Filled::parse(&fs::read_to_string(self.folder.join(FILLED)).ok()?)
    }

    /// Returns how many segments may be in the spool. The server uses the same file system, so some space
    /// stays free.
    pub(super) fn room(&self, segment_bytes: u64) -> usize {
        let Ok(system) = rustix::fs::statvfs(&self.folder) else { return usize::MAX };
        let free = system.f_bavail.saturating_mul(system.f_frsize) / segment_bytes.max(1);
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ready = entries.filter_map(|entry| SegmentName::parse(entry.file_name().to_str()?)).count();
        usize::try_from(free.saturating_sub(KEPT_FREE)).unwrap_or(usize::MAX).saturating_add(ready)
    }

    /// Stops prefetching and removes all segments from the spool to free space.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn give_way(&self) -> io::Result<()> {
        let began = Instant::now();
        let _ = fs::remove_file(self.folder.join(POSITION));
        // Without a position, the process ends once its threads have fetched their current segments.
        while began.elapsed() < MAX_WAIT && self.lock()?.is_none() {
            self.keep(&BTreeSet::new())?;
            std::thread::sleep(Duration::from_millis(5));
        }
        self.keep(&BTreeSet::new())?;
        pending::remove_leftovers_in(&self.folder).map(drop)
    }

    /// Removes all segments except the segments in `wanted`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn keep(&self, wanted: &BTreeSet<SegmentName>) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let segment = name.to_str().and_then(SegmentName::parse);
            if segment.is_none_or(|segment| wanted.contains(&segment)) {
                continue;
            }
            match fs::remove_file(entry.path()) {
                // The segment was moved to its target.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns whether the spool is obsolete: the server in whose `pg_wal` it is runs and has finished
    /// recovery. During recovery the server will request its segments, even if it replays slowly or is
    /// paused. At the end of recovery it removes the signal files.
    ///
    /// The spool of a stopped server is never removed: `pg_rewind`, which also calls `restore_command`, lists
    /// the files of a stopped server and fails if one disappears before it removes it.
    pub fn is_left_over(&self) -> bool {
        let Some(data) = self.data_directory() else { return false };
        let is_there = |name: &&str| data.join(name).exists();
        self.folder.exists()
            && is_there(&"postmaster.pid")
            && !["recovery.signal", "standby.signal", "recovery.conf"].iter().any(is_there)
    }

    /// Removes the spool. The caller must hold the lock.
    pub(super) fn remove(&self) {
        let _ = self.keep(&BTreeSet::new());
        let _ = pending::remove_leftovers_in(&self.folder);
        // The lock is removed last, so that no other process fills the folder earlier.
        for name in [POSITION, COMING, FILLED, LOCK] {
            let _ = fs::remove_file(self.folder.join(name));
        }
        let _ = fs::remove_dir(&self.folder);
    }

    /// Returns whether a segment is ready, complete and valid.
    pub(super) fn has(&self, segment: SegmentName) -> bool {
        let Ok(found) = self.path(segment).metadata() else { return false };
        let Some(filled) = self.filled() else { return false };
        let is_own = self.own.is_none_or(|own| filled.system_identifier == own.to_string());
        is_own && filled.boot == self.boot() && filled.segment_bytes == found.len()
    }

    /// Returns the path of a segment that is ready.
    pub(super) fn path(&self, segment: SegmentName) -> PathBuf {
        self.folder.join(segment.to_string())
    }
}

/// Returns whether the attempt shows that another process holds the lock. Other errors, for example on a file
/// system without locks, show nothing about other processes.
fn is_held(attempt: &Result<(), fs::TryLockError>) -> bool {
    matches!(attempt, Err(fs::TryLockError::WouldBlock))
}

/// The origin of the spool's segments.
#[derive(PartialEq, Eq)]
struct Filled {
    /// ID of the system boot.
    boot: String,
    /// Segment size in bytes.
    segment_bytes: u64,
    /// System identifier of the cluster.
    system_identifier: String,
}

impl Filled {
    fn parse(text: &str) -> Option<Filled> {
        let mut lines = text.lines();
        Some(Filled {
            boot: lines.next()?.to_owned(),
            segment_bytes: lines.next()?.parse().ok()?,
            system_identifier: lines.next()?.to_owned(),
        })
    }
}

impl fmt::Display for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}\n{}\n", self.boot, self.segment_bytes, self.system_identifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_does_not_show_that_another_process_fetches() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let other = File::open(file.path()).expect("a file");
        file.as_file().lock().expect("a lock");
        assert!(is_held(&other.try_lock_shared()));
        file.as_file().unlock().expect("no lock");
        assert!(!is_held(&other.try_lock_shared()));
        let without_locks = io::Error::from(io::ErrorKind::Unsupported);
        assert!(!is_held(&Err(fs::TryLockError::Error(without_locks))));
    }

    #[test]
    fn segments_of_another_cluster_do_not_count() {
        let root = tempfile::tempdir().expect("a folder");
        let segment = SegmentName::parse("000000010000000000000003").expect("a name");
        let (folder, boot_id) = (root.path().join("spool"), root.path().join("boot_id"));
        fs::create_dir(&folder).expect("a folder");
        fs::write(&boot_id, "7a0e").expect("a file");
        let spool = |own| Spool { folder: folder.clone(), boot_id: boot_id.clone(), own };
        let identity = |cluster: u64| Identity {
            walden_archive: 1,
            system_identifier: cluster.to_string(),
            segment_bytes: 1 << 20,
            encryption: None,
        };
        spool(None).prepare(&identity(7)).expect("a spool");
        let put = || fs::write(folder.join(segment.to_string()), vec![0; 1 << 20]).expect("a segment");
        put();
        assert!(spool(Some(7)).has(segment) && spool(None).has(segment));
        assert!(!spool(Some(8)).has(segment));
        // The location now has the archive of another cluster.
        spool(None).prepare(&identity(8)).expect("a spool");
        assert!(!folder.join(segment.to_string()).exists());
        put();
        assert!(spool(Some(8)).has(segment) && !spool(Some(7)).has(segment));
    }
}

//! The folder where segments lie ready.

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
use crate::out::server::system_id_of_server;
use crate::pending;

/// Segments that lie ready.
///
/// They are not synchronised, which would cost recovery more than anything else here: after a power failure a file may have its name and
/// not its bytes. So the spool notes under which boot of the system it was filled, and what is in it counts only as long as that goes
/// on. Where the system does not say which boot it is, each segment is synchronised before it gets its name.
///
/// A place may get the archive of another cluster. So the spool also notes whose segments it has, and a server that knows its own
/// identifier takes no others.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
    /// What names the boot.
    boot_id: PathBuf,
    /// The system identifier of the server beside it, if that can be read.
    own: Option<u64>,
}

/// The file that says under which boot the spool was filled, of how many bytes its segments are, and of which cluster.
const FILLED: &str = "filled";
/// In place of a boot: segments are synchronised.
const SYNCHRONISED: &str = "synchronised";
/// The file that says what was asked for last.
const POSITION: &str = "position";
/// The file that names the segments that are being fetched.
const COMING: &str = "coming";
/// The file that is locked by the process that fetches.
pub(crate) const LOCK: &str = "lock";
/// What the names of spools begin with.
pub(crate) const FOLDER_PREFIX: &str = "walden-prefetch-";
/// Segments for which there is space left on the file system whatever lies ready.
const KEPT_FREE: u64 = 4;
/// Bytes that a `postmaster.pid` has at most.
const MAX_PID_FILE: u64 = 1 << 16;
/// How long a segment is waited for that another process is fetching.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl Spool {
    /// The spool for an archive, in a folder beside the segments of a server.
    pub fn new(beside: &Path, archive: &Archive) -> Spool {
        let folder = beside.join(archive.name_beside_segments(FOLDER_PREFIX));
        let mut spool = Spool { folder, boot_id: PathBuf::from(BOOT_ID), own: None };
        spool.own = spool.data_directory().and_then(system_id_of_server);
        spool
    }

    /// The folder that would be a server's data directory: its `pg_wal` is beside the spool.
    fn data_directory(&self) -> Option<&Path> {
        self.folder.parent()?.parent()
    }

    /// The process of the server that asks, if it runs and its data directory names it (`postmaster.pid`).
    pub(super) fn server_process(&self) -> Option<i32> {
        let file = self.data_directory()?.join("postmaster.pid");
        let text = String::from_utf8(regular_file::read(&file, MAX_PID_FILE).ok()?).ok()?;
        let process: i32 = text.lines().next()?.trim().parse().ok()?;
        let pid = rustix::process::Pid::from_raw(process)?;
        // Another user's process answers with another error.
        let is_gone = rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        (!is_gone).then_some(process)
    }

    /// Whether a server's data directory is there. Otherwise nobody asks for one segment after the other, and nobody would remove what lies
    /// ready.
    pub fn is_of_a_server(&self) -> bool {
        self.data_directory().is_some_and(|data| data.join("PG_VERSION").exists())
    }

    /// As on a system that says in this file which boot it is, or in none that can be read.
    #[must_use]
    pub fn with_boot_id(self, boot_id: &Path) -> Spool {
        Spool { boot_id: boot_id.to_owned(), ..self }
    }

    /// Where the segments lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a segment lies ready or is being fetched.
    pub fn is_ahead(&self, segment: SegmentName) -> bool {
        self.has(segment) || self.is_coming(segment)
    }

    /// Hands a segment over: one that lies ready, or that is being fetched, once it does.
    ///
    /// # Errors
    /// The file system's.
    pub fn take(&self, segment: SegmentName, target: &Path) -> io::Result<bool> {
        let began = Instant::now();
        loop {
            // Looked at before the segment is: it is taken off once the segment lies ready.
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

    /// Whether a process that is there is fetching a segment.
    fn is_coming(&self, segment: SegmentName) -> bool {
        let names = fs::read_to_string(self.folder.join(COMING)).unwrap_or_default();
        names.lines().any(|line| SegmentName::parse(line) == Some(segment))
            && File::open(self.folder.join(LOCK)).is_ok_and(|file| is_held(&file.try_lock_shared()))
    }

    /// Says which segments are being fetched.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn announce<'s>(&self, segments: impl Iterator<Item = &'s SegmentName>) -> io::Result<()> {
        let names: String = segments.map(|segment| format!("{segment}\n")).collect();
        self.write(COMING, &names)
    }

    /// Says what was asked for, so that what follows it is fetched.
    ///
    /// # Errors
    /// The file system's.
    pub fn note(&self, segment: SegmentName) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        self.write(POSITION, &segment.to_string())
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        pending::replace_state(&self.folder.join(name), 0o600, text.as_bytes())
    }

    /// What was asked for last.
    pub(super) fn position(&self) -> Option<SegmentName> {
        SegmentName::parse(&fs::read_to_string(self.folder.join(POSITION)).ok()?)
    }

    /// Takes the lock of the process that fetches; nothing if there is such a process.
    ///
    /// # Errors
    /// The file system's.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let open = || {
            fs::create_dir_all(&self.folder)?;
            File::options().create(true).append(true).open(self.folder.join(LOCK))
        };
        // A process that ends may remove the folder in between.
        let file = open().or_else(|_| open())?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Prepares the spool for segments of an archive: what a process left that was killed is removed, and what was there before a
    /// power failure may have come in between. Whether each segment has to be synchronised.
    ///
    /// # Errors
    /// The file system's.
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
                // What came back after a power failure would count.
                File::open(&self.folder)?.sync_all()?;
            }
            self.write(FILLED, &filled.to_string())?;
        }
        Ok(boot == SYNCHRONISED)
    }

    /// The boot of the system that goes on.
    fn boot(&self) -> String {
        boot_id(&self.boot_id).unwrap_or_else(|| SYNCHRONISED.to_owned())
    }

    fn filled(&self) -> Option<Filled> {
        Filled::parse(&fs::read_to_string(self.folder.join(FILLED)).ok()?)
    }

    /// How many segments of so many bytes may lie ready: the file system is the server's, and keeps some space for it.
    pub(super) fn room(&self, segment_bytes: u64) -> usize {
        let Ok(system) = rustix::fs::statvfs(&self.folder) else { return usize::MAX };
        let free = system.f_bavail.saturating_mul(system.f_frsize) / segment_bytes.max(1);
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ready = entries.filter_map(|entry| SegmentName::parse(entry.file_name().to_str()?)).count();
        usize::try_from(free.saturating_sub(KEPT_FREE)).unwrap_or(usize::MAX).saturating_add(ready)
    }

    /// Ends what fetches ahead and removes what lies ready, for the space that it takes.
    ///
    /// # Errors
    /// The file system's.
    pub fn give_way(&self) -> io::Result<()> {
        let began = Instant::now();
        let _ = fs::remove_file(self.folder.join(POSITION));
        // Without a position, the process ends as soon as its threads have what they are fetching.
        while began.elapsed() < MAX_WAIT && self.lock()?.is_none() {
            self.keep(&BTreeSet::new())?;
            std::thread::sleep(Duration::from_millis(5));
        }
        self.keep(&BTreeSet::new())?;
        pending::remove_leftovers_in(&self.folder).map(drop)
    }

    /// Removes segments that are none of these.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn keep(&self, wanted: &BTreeSet<SegmentName>) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let segment = name.to_str().and_then(SegmentName::parse);
            if segment.is_none_or(|segment| wanted.contains(&segment)) {
                continue;
            }
            match fs::remove_file(entry.path()) {
                // It was handed over.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether the spool is there although nobody will ask for what is in it: the server in whose `pg_wal` it is runs, and is done with
    /// recovery. While it recovers it will ask for what lies ready, even if it replays slowly or is paused; it removes the files that say so
    /// when recovery ends.
    ///
    /// Of a server that does not run, nothing is removed. `pg_rewind`, which calls `restore_command` too, lists the files of such a one,
    /// and fails if one of them is gone when it gets to removing it.
    pub fn is_left_over(&self) -> bool {
        let Some(data) = self.data_directory() else { return false };
        let is_there = |name: &&str| data.join(name).exists();
        self.folder.exists()
            && is_there(&"postmaster.pid")
            && !["recovery.signal", "standby.signal", "recovery.conf"].iter().any(is_there)
    }

    /// Removes the spool, by the process that has the lock.
    pub(super) fn remove(&self) {
        let _ = self.keep(&BTreeSet::new());
        let _ = pending::remove_leftovers_in(&self.folder);
        // The lock last: until then, no other process fills the folder.
        for name in [POSITION, COMING, FILLED, LOCK] {
            let _ = fs::remove_file(self.folder.join(name));
        }
        let _ = fs::remove_dir(&self.folder);
    }

    /// Whether a segment lies ready, whole and as it was written.
    pub(super) fn has(&self, segment: SegmentName) -> bool {
        let Ok(found) = self.path(segment).metadata() else { return false };
        let Some(filled) = self.filled() else { return false };
        let is_own = self.own.is_none_or(|own| filled.system_identifier == own.to_string());
        is_own && filled.boot == self.boot() && filled.segment_bytes == found.len()
    }

    /// Where a segment lies when it is ready.
    pub(super) fn path(&self, segment: SegmentName) -> PathBuf {
        self.folder.join(segment.to_string())
    }
}

/// Whether an attempt to take a lock shows that another process has it. Other errors, such as that of a file system without locks, say
/// nothing of other processes.
fn is_held(attempt: &Result<(), fs::TryLockError>) -> bool {
    matches!(attempt, Err(fs::TryLockError::WouldBlock))
}

/// What the spool was filled with.
#[derive(PartialEq, Eq)]
struct Filled {
    /// The boot of the system that went on.
    boot: String,
    /// Bytes of each segment.
    segment_bytes: u64,
    /// The cluster whose segments they are.
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
        // The archive that is there now is another cluster's.
        spool(None).prepare(&identity(8)).expect("a spool");
        assert!(!folder.join(segment.to_string()).exists());
        put();
        assert!(spool(Some(8)).has(segment) && !spool(Some(7)).has(segment));
    }
}

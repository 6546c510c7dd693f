//! The folder where segments lie ready.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use walden_format::lsn::SegmentName;

use crate::archive::Archive;
use crate::pending;

/// Segments that lie ready.
///
/// They are not synchronised, which would cost recovery more than anything else here: after a power failure a file may have its name and
/// not its bytes. So the spool notes under which boot of the system it was filled, and what is in it counts only as long as that goes
/// on. Where the system does not say which boot it is, each segment is synchronised before it gets its name.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
    /// What names the boot.
    boot_id: PathBuf,
}

/// What Linux names each boot by.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The file that says under which boot the spool was filled, and of how many bytes its segments are.
const FILLED: &str = "filled";
/// In place of a boot: segments are synchronised.
const SYNCHRONISED: &str = "synchronised";
/// The file that says what was asked for last.
const POSITION: &str = "position";
/// The file that names the segments that are being fetched.
const COMING: &str = "coming";
/// The file that is locked by the process that fetches.
const LOCK: &str = "lock";
/// How long a segment is waited for that another process is fetching.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl Spool {
    /// The spool for an archive, in a folder beside the segments of a server.
    pub fn new(beside: &Path, archive: &Archive) -> Spool {
        let place = blake3::hash(archive.store().location().as_bytes());
        let folder = beside.join(format!("walden-prefetch-{}", &place.to_hex()[..16]));
        Spool { folder, boot_id: PathBuf::from(BOOT_ID) }
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
            && matches!(File::open(self.folder.join(LOCK)).map(|file| file.try_lock_shared()), Ok(Err(_)))
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

    /// Prepares the spool for segments of so many bytes: what a process left that was killed is removed, and what was there before a
    /// power failure may have come in between. Whether each segment has to be synchronised.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn prepare(&self, segment_bytes: u64) -> io::Result<bool> {
        pending::remove_leftovers_in(&self.folder)?;
        self.announce(std::iter::empty())?;
        let boot = self.boot();
        if self.filled() != Some((boot.clone(), segment_bytes)) {
            self.keep(&BTreeSet::new())?;
            if boot == SYNCHRONISED {
                // What came back after a power failure would count.
                File::open(&self.folder)?.sync_all()?;
            }
            self.write(FILLED, &format!("{boot}\n{segment_bytes}\n"))?;
        }
        Ok(boot == SYNCHRONISED)
    }

    /// The boot of the system that goes on.
    fn boot(&self) -> String {
        let read = fs::read_to_string(&self.boot_id).unwrap_or_default();
        match read.trim() {
            "" => SYNCHRONISED.to_owned(),
            boot => boot.to_owned(),
        }
    }

    /// Under which boot the spool was filled, and of how many bytes its segments are.
    fn filled(&self) -> Option<(String, u64)> {
        let text = fs::read_to_string(self.folder.join(FILLED)).ok()?;
        let (boot, bytes) = text.split_once('\n')?;
        Some((boot.to_owned(), bytes.trim_end().parse().ok()?))
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
        let Some(data) = self.folder.parent().and_then(Path::parent) else { return false };
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
        self.filled().is_some_and(|(boot, bytes)| boot == self.boot() && bytes == found.len())
    }

    /// Where a segment lies when it is ready.
    pub(super) fn path(&self, segment: SegmentName) -> PathBuf {
        self.folder.join(segment.to_string())
    }
}

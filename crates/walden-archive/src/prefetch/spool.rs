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
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
}

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
        Spool { folder: beside.join(format!("walden-prefetch-{}", &place.to_hex()[..16])) }
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
        fs::create_dir_all(&self.folder)?;
        let file = File::options().create(true).append(true).open(self.folder.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes what a process left that was killed.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn remove_leftovers(&self) -> io::Result<()> {
        pending::remove_leftovers_in(&self.folder)?;
        self.announce(std::iter::empty())
    }

    /// Removes segments that are none of these.
    pub(super) fn keep(&self, wanted: &BTreeSet<SegmentName>) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let segment = name.to_str().and_then(SegmentName::parse);
            if segment.is_some_and(|segment| !wanted.contains(&segment)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    pub(super) fn has(&self, segment: SegmentName) -> bool {
        self.path(segment).exists()
    }

    /// Where a segment lies when it is ready.
    pub(super) fn path(&self, segment: SegmentName) -> PathBuf {
        self.folder.join(segment.to_string())
    }
}

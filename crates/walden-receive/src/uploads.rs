//! The copies of the archive that get the segment being received in parts. WAL counts as archived once enough
//! copies have it.

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use walden_archive::name::ArchivedFile;
use walden_format::lsn::{Lsn, SegmentName, Timeline};

use crate::spool::{Spool, SpoolError};
use crate::uploading::Uploading;

/// How often the spool is searched for files that a former connection left.
const LEFT_INTERVAL: Duration = Duration::from_millis(50);

/// Archives parts in all copies. A copy that is slow or fails does not delay the other copies.
pub(crate) struct Uploads<'s> {
    copies: Vec<Uploading<'s>>,
    acknowledge: usize,
    spool: &'s Spool<'s>,
    left: Mutex<Left>,
}

/// The files before the received WAL that were in the spool when the connection started. No WAL after these
/// files is acknowledged before they are archived, because only the spool has them.
#[derive(Default)]
struct Left {
    files: Vec<ArchivedFile>,
    searched: Option<Instant>,
    /// The segment before the received WAL was named.
    has_base: bool,
}

impl<'s> Uploads<'s> {
    /// Creates uploads to `copies`. WAL counts as archived once `acknowledge` copies have it.
    pub fn new(copies: Vec<Uploading<'s>>, acknowledge: usize, spool: &'s Spool<'s>) -> Uploads<'s> {
        Uploads { copies, acknowledge, spool, left: Mutex::default() }
    }

    /// Returns the upload to each copy.
    pub fn iter(&self) -> impl Iterator<Item = &Uploading<'s>> {
        self.copies.iter()
    }

    /// Restarts at the start of the segment of a position, after the files that wait in the spool.
    ///
    /// # Errors
    /// Errors of the spool.
    pub fn restart(&self, timeline: Timeline, at: Lsn) -> Result<(), SpoolError> {
        let files = self.spool.waiting()?;
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        (left.files, left.searched) = (files, None);
        self.copies.iter().for_each(|copy| copy.restart(timeline, at));
        Ok(())
    }

    /// Sets the segment that precedes all WAL of this process; only the first call has an effect. If several
    /// copies must have WAL, a copy that lacks this segment while another copy has it does not count: the
    /// copy may have been away when earlier WAL was archived.
    pub fn expect_base(&self, base: SegmentName) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if self.acknowledge > 1 && !std::mem::replace(&mut left.has_base, true) {
            self.copies.iter().for_each(|copy| copy.expect_base(base));
        }
    }

    /// Requests that everything up to `wanted` is stored, and returns the end of the WAL that enough copies
    /// have; [`Lsn::INVALID`] if they lack earlier WAL.
    pub fn store_to(&self, wanted: Lsn) -> Lsn {
        let stored: Vec<(Lsn, Option<bool>)> =
            self.copies.iter().map(|copy| (copy.store_to(wanted), copy.has_base())).collect();
        if !self.is_left_archived() {
            return Lsn::INVALID;
        }
        stored_in(&stored, self.acknowledge)
    }

    /// Records that enough copies have a file.
    pub fn note_archived(&self, file: ArchivedFile) {
        self.copies.iter().for_each(|copy| copy.note_archived(file));
    }

    /// Sets the stream that gets a byte when more WAL is stored.
    ///
    /// # Errors
    /// Errors of the system, if there are no more file descriptors.
    pub fn wake_by(&self, waker: &UnixStream) -> std::io::Result<()> {
        self.copies.iter().try_for_each(|copy| {
            copy.wake_by(waker.try_clone()?);
            Ok(())
        })
    }

    /// Makes the threads end after the current part.
    pub fn stop(&self) {
        self.copies.iter().for_each(Uploading::stop);
    }

    /// Returns whether no file is left that a former connection received.
    fn is_left_archived(&self) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.files.is_empty() {
            return true;
        }
        if left.searched.is_some_and(|at| at.elapsed() < LEFT_INTERVAL) {
            return false;
        }
        left.searched = Some(Instant::now());
        // Archived files leave the spool.
        if let Ok(waiting) = self.spool.waiting() {
            left.files.retain(|file| waiting.contains(file));
        }
        left.files.is_empty()
    }
}

/// Returns the end of the WAL that `acknowledge` copies have. Each copy is given by the end of its WAL, and
/// whether it has the segment before the received WAL, if that is known.
fn stored_in(copies: &[(Lsn, Option<bool>)], acknowledge: usize) -> Lsn {
    let count = |wanted| copies.iter().filter(|(_, has_base)| *has_base == Some(wanted)).count();
    // If so many copies lack the segment, it was never acknowledged.
    let is_nowhere = count(true) == 0 && count(false) + acknowledge > copies.len();
    let counts = |has_base: Option<bool>| has_base == Some(true) || is_nowhere && has_base == Some(false);
    let mut stored: Vec<Lsn> =
        copies.iter().filter(|(_, has_base)| counts(*has_base)).map(|&(stored, _)| stored).collect();
    stored.sort_unstable_by(|one, other| other.cmp(one));
    stored.get(acknowledge - 1).copied().unwrap_or(Lsn::INVALID)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use walden_archive::{Archive, store};
    use walden_format::lsn::SegmentSize;

    use super::*;
    use crate::disk::Folder;
    use crate::status;

    const MB: u64 = 1 << 20;

    /// A connection starts while a segment of the previous connection is only in the spool.
    #[test]
    fn nothing_is_acknowledged_after_wal_that_only_the_spool_has() {
        let folder = tempfile::tempdir().unwrap();
        let archives = ["one", "two"].map(|name| {
            let archive = Archive::new(Box::new(store::Folder::new(folder.path().join(name))));
            archive.create().unwrap();
            archive
        });
        let disk = Folder::open(&folder.path().join("spool")).unwrap();
        let size = SegmentSize::new(MB).unwrap();
        let (spool, status) = (Spool::open(&disk, size).unwrap(), status::Shared::default());
        let (start, end) = (Lsn(3 * MB), Lsn(4 * MB + 8192));
        spool.write(1, start, &vec![7; (MB + 8192) as usize]).unwrap();
        spool.note_verified(end);
        spool.sync().unwrap();
        let copies = archives.iter().enumerate();
        let copies = copies.map(|copy| Uploading::new(copy, &spool, size, &status, |_, _| {}));
        let uploads = Uploads::new(copies.collect(), 2, &spool);
        uploads.restart(1, Lsn(4 * MB)).unwrap();
        let wait_for = |expected: Lsn| {
            let began = Instant::now();
            while uploads.iter().any(|copy| copy.store_to(end) < end) || uploads.store_to(end) != expected {
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        std::thread::scope(|scope| {
            uploads.iter().for_each(|copy| drop(scope.spawn(|| copy.run())));
            wait_for(Lsn::INVALID);
            std::thread::sleep(2 * LEFT_INTERVAL);
            assert_eq!(uploads.store_to(end), Lsn::INVALID);
            let segment = SegmentName { timeline: 1, log: 0, segment: 3 };
            spool.remove(ArchivedFile::Segment(segment)).unwrap();
            wait_for(end);
            uploads.stop();
        });
    }

    #[test]
    fn wal_is_stored_once_enough_copies_have_it() {
        let of = |copies: &[(u64, Option<bool>)], acknowledge| {
            let copies: Vec<_> = copies.iter().map(|&(lsn, base)| (Lsn(lsn), base)).collect();
            stored_in(&copies, acknowledge).0
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(of(&[(7, yes)], 1), 7);
        assert_eq!(of(&[(7, yes), (9, yes)], 1), 9);
        assert_eq!(of(&[(7, yes), (9, yes)], 2), 7);
        assert_eq!(of(&[(7, yes), (9, yes), (8, yes)], 2), 8);
        // A copy that lacks the WAL before does not count, and one that cannot be asked neither.
        assert_eq!(of(&[(7, yes), (9, no)], 2), 0);
        assert_eq!(of(&[(7, yes), (9, None)], 2), 0);
        assert_eq!(of(&[(7, yes), (9, no), (8, yes)], 2), 7);
        // No copy has the segment before: nothing was archived before, or the gap is known.
        assert_eq!(of(&[(7, no), (9, no)], 2), 7);
        assert_eq!(of(&[(7, no), (9, None)], 2), 0);
        assert_eq!(of(&[(7, no), (9, no), (8, None)], 2), 7);
        assert_eq!(of(&[(7, no), (9, None), (8, None)], 2), 0);
    }
}

//! The thread that archives the incomplete segment, in parts, in one copy of the archive, if WAL is
//! acknowledged only once it is in the archive. Once the segment is complete, `archiving` archives it as a
//! whole, and this thread removes its parts. `uploads` runs this thread for each copy.
//!
//! Parts are stored one at a time. WAL that arrives meanwhile becomes the next part, so many commits wait for
//! one request.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walden_archive::name::ArchivedFile;
use walden_archive::parts::{self, Part};
use walden_archive::store::Cause;
use walden_archive::{Archive, ArchiveError, list, same_log};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::error_text;

use crate::backoff::Backoff;
use crate::spool::{Spool, SpoolError};
use crate::status;

/// The default of [`Uploading::backoff`].
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), max: Duration::from_secs(10) };
/// Time between two searches of a copy for the segment before the received WAL, if the copy lacks this
/// segment.
const BASE_INTERVAL: Duration = Duration::from_secs(2);
/// The default of [`Uploading::max_part_bytes`].
const MAX_PART_BYTES: u64 = 16 << 20;

/// Why WAL is not archived in parts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// The archive's error.
    #[error("cannot archive the segment that is being written in {location}")]
    Archive {
        /// Location of the archive.
        location: String,
        /// The cause.
        #[source]
        source: ArchiveError,
    },
    /// The spool's error.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Another process has removed received WAL.
    #[error("the segment {0} is missing in the spool, although it is not archived yet")]
    Gone(SegmentName),
    /// The archive has parts of other WAL.
    #[error(
        "the archive in {location} has parts of other WAL: at {at} in {segment}, the archived bytes in {folder} differ from the received bytes"
    )]
    Different {
        /// Location of the archive.
        location: String,
        /// The first byte that differs.
        at: Lsn,
        /// The segment.
        segment: SegmentName,
        /// The folder of its parts.
        folder: String,
    },
}

walden_format::diagnostics! { UploadError {
    Self::Archive { source, .. } => of(source),
    Self::Spool(error) => code_of(error),
    Self::Gone(_) => "receive-spool-removed": "restart walden receive: it asks the server for the segment again",
    Self::Different { .. } => "receive-other-parts": "nothing was overwritten. The server was restored, or another server answers: compare both; to continue with the server's WAL, use a new archive",
} }

/// Called with each failure and the time until the next attempt.
type Report<'s> = Box<dyn Fn(&UploadError, Duration) + Sync + Send + 's>;

/// Archives parts of incomplete segments in one archive: tracks up to which position WAL is wanted there, and
/// up to which it is there.
pub(crate) struct Uploading<'s> {
    archive: &'s Archive,
    /// The number of the archive among the copies.
    copy: usize,
    spool: &'s Spool<'s>,
    size: SegmentSize,
    status: &'s status::Shared,
    report: Report<'s>,
    /// Wait after a failure.
    backoff: Backoff,
    /// Most bytes of a part, which is held in memory.
    max_part_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// State shared by the threads that receive, archive and store parts.
#[derive(Default)]
struct State {
    /// The timeline that is being received.
    timeline: Timeline,
    /// End of the WAL in the archive.
    stored: Lsn,
    /// End of the WAL that should be in the archive.
    wanted: Lsn,
    /// Number of restarts.
    restarts: u64,
    /// Archived segments, which may have parts.
    archived: Vec<SegmentName>,
    /// The segment before the received WAL, and whether the archive has it, or is new and has none.
    base: Option<(SegmentName, Option<bool>)>,
    /// Gets a byte when more WAL is stored.
    waker: Option<UnixStream>,
    is_over: bool,
}

impl State {
    /// Returns the segment before the received WAL if it was not found yet.
    fn base_to_find(&self) -> Option<SegmentName> {
        self.base.filter(|(_, is_there)| *is_there != Some(true)).map(|(base, _)| base)
    }
}

/// The bytes of a segment that were already archived when the thread started to archive it.
struct Begun {
    segment: SegmentName,
    restarts: u64,
    bytes: Vec<u8>,
}

impl<'s> Uploading<'s> {
    pub fn new(
        (copy, archive): (usize, &'s Archive),
        spool: &'s Spool<'s>,
        size: SegmentSize,
        status: &'s status::Shared,
        report: impl Fn(&UploadError, Duration) + Sync + Send + 's,
    ) -> Uploading<'s> {
        let (report, state) = (Box::new(report), Mutex::default());
        Uploading {
            archive,
            copy,
            spool,
            size,
            status,
            report,
            backoff: BACKOFF,
            max_part_bytes: MAX_PART_BYTES,
            state,
            changed: Condvar::new(),
        }
    }

    /// Stores parts until [`Uploading::stop`] is called. The spool keeps the remaining WAL.
    pub fn run(&self) {
        let (mut pause, mut begun, mut is_tidy) = (self.backoff.first, None, false);
        let mut searched: Option<Instant> = None;
        loop {
            let mut state = self.state();
            let is_base_due = |state: &State| {
                state.base_to_find().is_some_and(|_| searched.is_none_or(|at| at.elapsed() > BASE_INTERVAL))
            };
            while state.wanted <= state.stored
                && state.archived.is_empty()
                && !state.is_over
                && !is_base_due(&state)
            {
                state = match state.base_to_find() {
                    Some(_) => {
                        let waited = self.changed.wait_timeout(state, BASE_INTERVAL);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
            }
            if state.is_over {
                return;
            }
            let base = state.base_to_find().filter(|_| is_base_due(&state));
            drop(state);
            let found = match base {
                Some(base) => {
                    searched = Some(Instant::now());
                    self.find_base(base)
                }
                None => Ok(()),
            };
            match found.and_then(|()| self.step(&mut begun, &mut is_tidy)) {
                Ok(()) => {
                    pause = self.backoff.first;
                    self.status.lock().note_stored(self.copy, self.state().stored, None);
                }
                Err(error) => {
                    self.status.lock().note_stored(self.copy, self.state().stored, Some(error_text(&error)));
                    (self.report)(&error, pause);
                    self.sleep(pause);
                    pause = self.backoff.after(pause);
                }
            }
        }
    }

    /// Records whether the archive has the segment before the received WAL. A new archive needs none.
    fn find_base(&self, base: SegmentName) -> Result<(), UploadError> {
        let find = || -> Result<bool, ArchiveError> {
            // The place may have been unmounted, and an empty one is no new archive.
            let archive = self.archive.afresh();
            archive.expect_archive()?;
            let is_there = archive.find(ArchivedFile::Segment(base))?.is_some();
            Ok(is_there || list::newest_segment(&archive)?.is_none())
        };
        let is_there = find().map_err(|error| self.failed(error))?;
        let mut state = self.state();
        if let Some((expected, found)) = &mut state.base
            && *expected == base
        {
            *found = Some(is_there);
        }
        wake(&state);
        Ok(())
    }

    fn failed(&self, source: ArchiveError) -> UploadError {
        UploadError::Archive { location: self.archive.store().location().to_owned(), source }
    }

    /// Stores the next part, and removes parts that are no longer needed.
    fn step(&self, begun: &mut Option<Begun>, is_tidy: &mut bool) -> Result<(), UploadError> {
        self.store_next(begun)?;
        if !*is_tidy {
            parts::remove_archived(self.archive).map_err(|error| self.failed(error))?;
            *is_tidy = true;
        }
        let archived = std::mem::take(&mut self.state().archived);
        // A copy that lacks the segment keeps its parts until it was brought up to date.
        let remove = |&segment| parts::remove_if_archived(self.archive, segment).map(drop);
        let removed = archived.iter().try_for_each(remove);
        if removed.is_err() {
            self.state().archived.extend(archived);
        }
        removed.map_err(|error| self.failed(error))
    }

    fn store_next(&self, begun: &mut Option<Begun>) -> Result<(), UploadError> {
        let (stored, wanted, timeline, restarts) = {
            let state = self.state();
            (state.stored, state.wanted, state.timeline, state.restarts)
        };
        if wanted <= stored {
            return Ok(());
        }
        let segment = SegmentName::new(timeline, self.size.segment_of(stored), self.size);
        let start = self.size.start_of(self.size.segment_of(stored));
        let until = wanted.min(start.plus(self.size.bytes())).min(stored.plus(self.max_part_bytes));
        let known = match begun {
            Some(known) if known.segment == segment && known.restarts == restarts => known,
            _ => {
                let bytes = match parts::assemble(self.archive, segment) {
                    // Without the private key, the stored parts cannot be read, and their WAL is stored
                    // again.
                    Err(error) if error.store_error().is_some_and(|it| it.cause == Cause::Locked) => {
                        Vec::new()
                    }
                    other => other.map_err(|error| self.failed(error))?.unwrap_or_default(),
                };
                begun.insert(Begun { segment, restarts, bytes })
            }
        };
        let from = stored.bytes_since(start);
        // The segment is not in the spool: it was archived as a whole, which [`Uploading::note_archived`]
        // records.
        let Some(bytes) = self.spool.read(segment, from..until.bytes_since(start))? else {
            self.sleep(self.backoff.first);
            let state = self.state();
            let is_noted = state.stored > stored || state.restarts != restarts || state.is_over;
            return if is_noted { Ok(()) } else { Err(UploadError::Gone(segment)) };
        };
        // An earlier process may have stored these bytes.
        let before = known.bytes.get(from as usize..).unwrap_or_default();
        let both = before.len().min(bytes.len());
        if let Some(offset) = before.iter().zip(&bytes).position(|(before, now)| before != now) {
            let at = stored.plus(offset as u64);
            let same = known.bytes.get(..from as usize + offset).unwrap_or_default();
            // The bytes after a switch record are not WAL, and may differ.
            if same_log::switch_end(segment, same).is_none_or(|end| at < end) {
                let folder = parts::folder_of(segment);
                let location = self.archive.store().location().to_owned();
                return Err(UploadError::Different { location, at, segment, folder });
            }
        }
        if both < bytes.len() {
            let [start, end] = [from + both as u64, until.bytes_since(start)].map(|offset| offset as u32);
            let stored = parts::store(self.archive, Part { segment, start, end }, &bytes[both..]);
            stored.map_err(|error| self.failed(error))?;
        }
        let mut state = self.state();
        if state.restarts == restarts {
            state.stored = state.stored.max(until);
        }
        wake(&state);
        Ok(())
    }

    /// Restarts at the start of the segment of a position. The thread first reads the segment's parts in the
    /// archive.
    pub fn restart(&self, timeline: Timeline, at: Lsn) {
        let mut state = self.state();
        let start = self.size.start_of(self.size.segment_of(at));
        (state.timeline, state.stored, state.wanted) = (timeline, start, start);
        state.restarts += 1;
    }

    /// Names the segment before the received WAL. Its presence in this archive is reported by
    /// [`Uploading::has_base`].
    pub fn expect_base(&self, base: SegmentName) {
        self.state().base = Some((base, None));
        self.changed.notify_one();
    }

    /// Returns whether the archive has the segment before the received WAL, if there is one and that is
    /// known.
    pub fn has_base(&self) -> Option<bool> {
        self.state().base.map_or(Some(true), |(_, is_there)| is_there)
    }

    /// Requests that everything up to `wanted` is stored, and returns the end of the stored WAL.
    pub fn store_to(&self, wanted: Lsn) -> Lsn {
        let mut state = self.state();
        if state.wanted < wanted {
            state.wanted = wanted;
            self.changed.notify_one();
        }
        state.stored.min(wanted)
    }

    /// Records that a file was archived, so that its parts are removed.
    pub fn note_archived(&self, file: ArchivedFile) {
        let (ArchivedFile::Segment(name) | ArchivedFile::Partial(name)) = file else { return };
        let mut state = self.state();
        if file == ArchivedFile::Segment(name)
            && name.timeline == state.timeline
            && let Some(start) = name.start(self.size)
        {
            // Segments are archived in order, so all WAL before this segment is archived too.
            state.stored = state.stored.max(start.plus(self.size.bytes()));
            wake(&state);
        }
        state.archived.push(name);
        self.changed.notify_one();
    }

    /// Sets the stream that gets a byte when more WAL is stored.
    pub fn wake_by(&self, waker: UnixStream) {
        self.state().waker = Some(waker);
    }

    /// Makes the thread end after the current part.
    pub fn stop(&self) {
        self.state().is_over = true;
        self.changed.notify_one();
    }

    fn sleep(&self, time: Duration) {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !state.is_over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(state: &State) {
    // If the write would block, unread bytes wake the reader already.
    let _ = state.waker.as_ref().map(|mut waker| waker.write(&[1]));
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicU32, Ordering};

    use walden_archive::store::{self, Created, Listed, Store, StoreError};
    use walden_format::rmgr::rmid;
    use walden_format::version::Major;
    use walden_testing::writer::LogWriter;

    use super::*;
    use crate::disk::{Disk, Folder};

    /// A folder in which every `every`-th call fails.
    struct Failing {
        folder: store::Folder,
        every: u32,
        calls: AtomicU32,
    }

    impl Failing {
        fn call<T>(
            &self,
            call: impl FnOnce(&store::Folder) -> Result<T, StoreError>,
        ) -> Result<T, StoreError> {
            if self.calls.fetch_add(1, Ordering::SeqCst) % self.every == self.every - 1 {
                return Err(StoreError::new("use", "an object", self.location(), Cause::Unavailable));
            }
            call(&self.folder)
        }
    }

    impl Store for Failing {
        fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
            // Fails alternately before and after the object exists.
            self.call(|folder| folder.create(key, content)).and_then(|created| self.call(|_| Ok(created)))
        }

        fn make_durable(&self, key: &str) -> Result<(), StoreError> {
            self.call(|folder| folder.make_durable(key))
        }

        fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
            self.call(|folder| folder.read(key))
        }

        fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
            self.call(|folder| folder.read_range(key, range))
        }

        fn size(&self, key: &str) -> Result<u64, StoreError> {
            self.call(|folder| folder.size(key))
        }

        fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
            self.call(|folder| folder.list(prefix, visit))
        }

        fn remove(&self, key: &str) -> Result<(), StoreError> {
            self.call(|folder| folder.remove(key))
        }

        fn remove_leftovers(&self) -> Result<(), StoreError> {
            self.call(Store::remove_leftovers)
        }

        fn location(&self) -> &str {
            self.folder.location()
        }
    }

    const MB: u64 = 1 << 20;

    fn name(segment: u32) -> SegmentName {
        SegmentName { timeline: 1, log: 0, segment }
    }

    fn content(range: Range<u64>) -> Vec<u8> {
        range.map(|at| (at ^ at >> 7) as u8).collect()
    }

    /// Receives two segments in parts while calls of the store fail. Whenever a position is reported, all WAL
    /// before it must be in the archive.
    #[test]
    fn what_is_said_to_be_stored_is() {
        for every in [9, 11, 13, u32::MAX] {
            let folder = tempfile::tempdir().unwrap();
            let own = || store::Folder::new(folder.path().join("repo"));
            let failing = Failing { folder: own(), every, calls: AtomicU32::new(0) };
            let (archive, sound) = (Archive::new(Box::new(failing)), Archive::new(Box::new(own())));
            sound.create().unwrap();
            let disk = Folder::open(&folder.path().join("spool")).unwrap();
            let size = SegmentSize::new(MB).unwrap();
            let spool = Spool::open(&disk, size).unwrap();
            let status = status::Shared::default();
            let mut uploading = Uploading::new((0, &archive), &spool, size, &status, |_, _| {});
            uploading.backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(1) };
            let start = 3 * MB;
            uploading.restart(1, Lsn(start));
            std::thread::scope(|scope| {
                scope.spawn(|| uploading.run());
                let mut at = start;
                for step in [1000, 50_000, 7, 300_000, 900_000, 123_456] {
                    let end = at + step;
                    spool.write(1, Lsn(at), &content(at..end)).unwrap();
                    spool.note_verified(Lsn(end));
                    spool.sync().unwrap();
                    let mut stored = uploading.store_to(Lsn(end));
                    let began = Instant::now();
                    loop {
                        let here = stored.0.min(4 * MB);
                        let parts = parts::assemble(&sound, name(3)).unwrap().unwrap_or_default();
                        assert!(parts.len() as u64 >= here - start, "{every}: {} for {stored}", parts.len());
                        assert!(parts == content(start..start + parts.len() as u64), "{every}");
                        if stored.0 > 4 * MB {
                            let parts = parts::assemble(&sound, name(4)).unwrap().unwrap_or_default();
                            assert!(parts.len() as u64 >= stored.0 - 4 * MB);
                        }
                        if stored == Lsn(end) {
                            break;
                        }
                        assert!(began.elapsed() < Duration::from_secs(60), "{every}: {stored}");
                        std::thread::sleep(Duration::from_millis(5));
                        stored = uploading.store_to(Lsn(end));
                    }
                    at = end;
                }
                uploading.stop();
            });
            // Another process continues with the parts in the archive.
            spool.end_connection();
            let again = Uploading::new((0, &sound), &spool, size, &status, |_, _| {});
            again.restart(1, Lsn(4 * MB));
            let stored = std::thread::scope(|scope| {
                scope.spawn(|| again.run());
                let wanted = Lsn(start + 1_374_463);
                let began = Instant::now();
                while again.store_to(wanted) < wanted && began.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                again.stop();
                again.store_to(wanted)
            });
            assert_eq!(stored, Lsn(start + 1_374_463));
        }
    }

    #[test]
    fn other_bytes_behind_a_switch_are_not_another_log() {
        let mut writer = LogWriter::new(Major::V18);
        let (size, start) = (writer.info.segment_size, writer.start);
        let record = writer.main_data(rmid::XLOG, 0x20, b"before the switch");
        writer.switch();
        let segment = SegmentName::new(writer.info.timeline, size.segment_of(start), size);
        let end = same_log::switch_end(segment, &writer.bytes).unwrap().bytes_since(start) as usize;
        let (first, received) = (record.bytes_since(start) as usize, writer.bytes);
        for (at, is_same) in [(end, true), (end + 5000, true), (end - 1, false), (first, false)] {
            let folder = tempfile::tempdir().unwrap();
            let archive = Archive::new(Box::new(store::Folder::new(folder.path().join("repo"))));
            archive.create().unwrap();
            let disk = Folder::open(&folder.path().join("spool")).unwrap();
            let spool = Spool::open(&disk, size).unwrap();
            let status = status::Shared::default();
            let mut other = received[..6000].to_vec();
            other[at] ^= 1;
            parts::store(&archive, Part { segment, start: 0, end: 6000 }, &other).unwrap();
            let uploading = Uploading::new((0, &archive), &spool, size, &status, |_, _| {});
            spool.write(segment.timeline, start, &received[..8192]).unwrap();
            spool.sync().unwrap();
            uploading.restart(segment.timeline, start);
            uploading.store_to(start.plus(8192));
            let stored = uploading.store_next(&mut None);
            assert_eq!(stored.is_ok(), is_same, "{at}: {stored:?}");
            let all = uploading.store_to(start.plus(8192)) == start.plus(8192);
            assert_eq!(all, is_same, "{at}");
            let archived = parts::assemble(&archive, segment).unwrap().unwrap();
            assert_eq!(archived.len(), if is_same { 8192 } else { 6000 });
        }
    }

    #[test]
    fn what_has_piled_up_is_stored_in_several_parts() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(Box::new(store::Folder::new(folder.path().join("repo"))));
        archive.create().unwrap();
        let disk = Folder::open(&folder.path().join("spool")).unwrap();
        let size = SegmentSize::new(MB).unwrap();
        let spool = Spool::open(&disk, size).unwrap();
        let status = status::Shared::default();
        let (start, end) = (Lsn(3 * MB), Lsn(3 * MB + 250_000));
        spool.write(1, start, &content(start.0..end.0)).unwrap();
        spool.sync().unwrap();
        let mut uploading = Uploading::new((0, &archive), &spool, size, &status, |_, _| {});
        uploading.max_part_bytes = 100_000;
        uploading.restart(1, start);
        uploading.store_to(end);
        let mut begun = None;
        for bytes in [100_000, 200_000, 250_000] {
            uploading.store_next(&mut begun).unwrap();
            assert_eq!(uploading.store_to(end), start.plus(bytes));
        }
        assert!(parts::assemble(&archive, name(3)).unwrap() == Some(content(start.0..end.0)));
    }

    #[test]
    fn parts_of_another_log_are_not_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(Box::new(store::Folder::new(folder.path().join("repo"))));
        archive.create().unwrap();
        let disk = Folder::open(&folder.path().join("spool")).unwrap();
        let size = SegmentSize::new(MB).unwrap();
        let spool = Spool::open(&disk, size).unwrap();
        let status = status::Shared::default();
        parts::store(&archive, Part { segment: name(3), start: 0, end: 100 }, &[7; 100]).unwrap();
        let uploading = Uploading::new((0, &archive), &spool, size, &status, |_, _| {});
        spool.write(1, Lsn(3 * MB), &content(3 * MB..3 * MB + 500)).unwrap();
        spool.sync().unwrap();
        uploading.restart(1, Lsn(3 * MB));
        uploading.store_to(Lsn(3 * MB + 500));
        let error = uploading.store_next(&mut None).unwrap_err();
        assert!(error.to_string().contains("at 0/00300000 in 000000010000000000000003"), "{error}");
        assert_eq!(uploading.store_to(Lsn(3 * MB + 500)), Lsn(3 * MB));
        // The received WAL is gone although it is not archived.
        disk.remove("000000010000000000000003.partial").unwrap();
        assert!(matches!(uploading.store_next(&mut None), Err(UploadError::Gone(_))));
    }
}

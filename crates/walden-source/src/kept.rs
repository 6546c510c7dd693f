//! Keeps decoded segments in memory between two scans, so that each is decoded once.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use walden_format::lsn::Lsn;

use crate::compressed::Members;
use crate::inventory::Run;
use crate::open::{Compression, open_with};
use crate::segment_file::SegmentFile;
use crate::store::{SegmentContents, SegmentStore, SharedStore};

/// The first number of kept segments. Members of a pack, which may have the same path, have smaller numbers.
const FIRST_NUMBER: u64 = 1 << 63;

/// Segments of a run that are decoded as a whole, and kept from the first scan to the last scan.
#[derive(Debug)]
pub struct KeptSegments(Arc<Shared>);

struct Shared {
    segments: Vec<Kept>,
    is_last_scan: AtomicBool,
}

struct Kept {
    /// The segment as it is stored.
    file: SegmentFile,
    /// Locked while the segment is decoded: another thread that needs it waits.
    content: Mutex<Option<Arc<Vec<u8>>>>,
}

impl KeptSegments {
    /// Changes a run so that the first scan keeps its decoded segments from `from` on, up to `max_bytes`.
    /// Later segments, and those that are not compressed by Walden, are read by each scan.
    pub fn keep(run: &mut Run, from: Lsn, max_bytes: usize) -> KeptSegments {
        let size = run.segment_size.bytes();
        let first = run.segments.partition_point(|segment| segment.start.plus(size) <= from);
        let fitting = usize::try_from(max_bytes as u64 / size).unwrap_or(usize::MAX);
        let is_decoded = |segment: &&SegmentFile| segment.compression == Compression::Walden;
        let decoded = run.segments[first..].iter().take_while(is_decoded).count();
        let mut count = decoded.min(fitting);
        // A member that is decoded after the previous one would have it decoded again.
        while count > 0 && run.segments.get(first + count).is_some_and(|segment| segment.needs_previous) {
            count -= 1;
        }
        let wanted = &mut run.segments[first..first + count];
        let kept = |segment: &SegmentFile| Kept { file: segment.clone(), content: Mutex::default() };
        let segments = wanted.iter().map(kept).collect();
        let shared = Arc::new(Shared { segments, is_last_scan: AtomicBool::new(false) });
        let store = SharedStore::new(Store(Arc::clone(&shared)));
        for (segment, number) in wanted.iter_mut().zip(FIRST_NUMBER..) {
            (segment.store, segment.member) = (Some(store.clone()), Some(number));
        }
        KeptSegments(shared)
    }

    /// Announces the last scan: it takes each segment out of memory.
    pub fn start_last_scan(&self) {
        self.0.is_last_scan.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptSegments").field("segments", &self.segments.len()).finish()
    }
}

#[derive(Debug)]
struct Store(Arc<Shared>);

impl SegmentStore for Store {
    fn reader(&self) -> Box<dyn SegmentContents> {
        Box::new(Reader { shared: Arc::clone(&self.0), members: Members::default() })
    }
}

/// Reads kept segments, and decodes all other segments.
struct Reader {
    shared: Arc<Shared>,
    members: Members,
}

impl SegmentContents for Reader {
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let index = usize::try_from(number.wrapping_sub(FIRST_NUMBER)).unwrap_or(usize::MAX);
        let kept = self.shared.segments.get(index).ok_or(io::ErrorKind::NotFound)?;
        let mut content = kept.content.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = self.shared.is_last_scan.load(Ordering::Relaxed);
        if let Some(found) = if is_last { content.take() } else { content.clone() } {
            return Ok(found);
        }
        let decoded =
            open_with(&kept.file, &mut self.members)?.decoded().ok_or(io::ErrorKind::InvalidData)?;
        if !is_last {
            *content = Some(Arc::clone(&decoded));
        }
        Ok(decoded)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use walden_format::lsn::{SegmentName, SegmentSize};

    use super::*;
    use crate::open::open;

    const SEGMENT: usize = 1 << 20;

    /// Counts how often it decodes.
    #[derive(Debug)]
    struct Counting(Arc<AtomicUsize>);

    impl SegmentStore for Counting {
        fn reader(&self) -> Box<dyn SegmentContents> {
            Box::new(Counting(Arc::clone(&self.0)))
        }
    }

    impl SegmentContents for Counting {
        fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(vec![number as u8; SEGMENT]))
        }
    }

    fn run(count: u64, needs_previous: impl Fn(u64) -> bool) -> (Run, Arc<AtomicUsize>) {
        let size = SegmentSize::new(SEGMENT as u64).unwrap();
        let decoded = Arc::new(AtomicUsize::new(0));
        let store = SharedStore::new(Counting(Arc::clone(&decoded)));
        let segment = |number: u64| SegmentFile {
            compression: Compression::Walden,
            member: Some(number),
            store: Some(store.clone()),
            needs_previous: needs_previous(number),
            ..SegmentFile::plain(Path::new("archive"), SegmentName::new(1, number, size), size)
        };
        let segments: Vec<SegmentFile> = (1..=count).map(segment).collect();
        let first = &segments[0];
        let (system_id, version) = (first.system_id, first.version);
        (Run { system_id, timeline: 1, version, segment_size: size, segments }, decoded)
    }

    fn scan(run: &Run) {
        for (segment, number) in run.segments.iter().zip(1..) {
            assert_eq!(*open(segment).unwrap().decoded().unwrap(), vec![number; SEGMENT]);
        }
    }

    #[test]
    fn segments_that_fit_are_decoded_once_and_freed_by_the_last_scan() {
        for (from, fitting, expected) in [(0, 4, 4), (0, 9, 6), (3, 2, 2), (3, 9, 4), (0, 0, 0)] {
            let (mut run, decoded) = run(6, |_| false);
            let kept = KeptSegments::keep(&mut run, Lsn(from * SEGMENT as u64), fitting * SEGMENT + 7);
            scan(&run);
            scan(&run);
            assert_eq!(decoded.load(Ordering::Relaxed), 12 - expected, "{from}, {fitting}");
            kept.start_last_scan();
            scan(&run);
            let is_held = |kept: &Kept| kept.content.lock().unwrap().is_some();
            assert!(!kept.0.segments.iter().any(is_held));
            assert_eq!(decoded.load(Ordering::Relaxed), 18 - 2 * expected);
            scan(&run);
            assert_eq!(decoded.load(Ordering::Relaxed), 24 - 2 * expected, "and can be read again");
        }
    }

    #[test]
    fn members_that_are_decoded_together_are_kept_together() {
        let (mut run, _) = run(6, |number| number % 3 != 1);
        let kept = KeptSegments::keep(&mut run, Lsn(0), 5 * SEGMENT);
        assert_eq!(kept.0.segments.len(), 3);
        let numbers: Vec<bool> = run.segments.iter().map(|it| it.member >= Some(FIRST_NUMBER)).collect();
        assert_eq!(numbers, [true, true, true, false, false, false]);
    }
}

//! Keeps decoded segments in memory between two scans, so that each is decoded once.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use walden_format::lsn::Lsn;

use crate::compressed::Members;
use crate::inventory::Run;
use crate::open::{Compression, open_with};
use crate::segment_file::SegmentFile;
use crate::store::{SegmentContents, SegmentStore, SharedStore};

/// The first number of kept segments. Members of a pack, which may have the same path, have smaller numbers.
const FIRST_NUMBER: u64 = 1 << 63;
/// A segment is cut only if that frees this part of it: the rest is copied.
const MIN_FREED: usize = 4;
/// Buffers of cut segments that are reused: those in use by the threads of a scan, and one more.
const MAX_BUFFERS: usize = 12;

/// Segments of a run that are decoded as a whole, and kept from the first scan to the last scan.
#[derive(Debug)]
pub struct KeptSegments(Arc<Shared>);

struct Shared {
    segments: Vec<Kept>,
    /// Memory for contents that is not in use yet, in bytes.
    left: AtomicUsize,
    /// Whether no further contents are kept.
    is_complete: AtomicBool,
    is_last_scan: AtomicBool,
    /// Contents of cut segments that the last scan has read, for reuse.
    buffers: Mutex<Vec<Arc<Vec<u8>>>>,
}

struct Kept {
    /// The segment as it is stored.
    file: SegmentFile,
    /// Locked while the segment is decoded: another thread that needs it waits.
    content: Mutex<Content>,
    /// The segments that are kept together.
    group: Arc<Group>,
}

/// A segment and those that are decoded after it, of which all are kept, or none.
#[derive(Debug)]
struct Group {
    bytes: usize,
    /// Whether there was memory for it when its first segment was decoded.
    is_kept: OnceLock<bool>,
}

/// The parts of a segment in memory.
enum Content {
    /// Nothing, unless a reader holds it.
    Held(Weak<Vec<u8>>),
    Whole(Arc<Vec<u8>>),
    Cut(Cut),
}

/// A segment without the bytes that the last scan does not need.
struct Cut {
    bytes: Vec<u8>,
    /// The ranges of the segment that `bytes` consists of, in ascending order.
    ranges: Vec<Range<usize>>,
    segment_bytes: usize,
}

impl KeptSegments {
    /// Changes a run so that the first scan keeps its decoded segments from `from` on, up to `max_bytes`.
    /// Segments without room, and those that are not compressed by Walden, are read by each scan.
    pub fn keep(run: &mut Run, from: Lsn, max_bytes: usize) -> KeptSegments {
        let size = run.segment_size.bytes();
        let first = run.segments.partition_point(|segment| segment.start.plus(size) <= from);
        let is_decoded = |segment: &&SegmentFile| segment.compression == Compression::Walden;
        let mut count = run.segments[first..].iter().take_while(is_decoded).count();
        // A member that is decoded after the previous one would have it decoded again.
        while count > 0 && run.segments.get(first + count).is_some_and(|segment| segment.needs_previous) {
            count -= 1;
        }
        let wanted = &mut run.segments[first..first + count];
        let mut segments: Vec<Kept> = Vec::with_capacity(count);
        for of_group in wanted.chunk_by(|_, next| next.needs_previous) {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let group = Group { bytes: size.saturating_mul(of_group.len()), is_kept: OnceLock::new() };
            let group = Arc::new(group);
            segments.extend(of_group.iter().map(|segment| Kept {
                file: segment.clone(),
                content: Mutex::new(Content::Held(Weak::new())),
                group: Arc::clone(&group),
            }));
        }
        let shared = Arc::new(Shared {
            segments,
            left: AtomicUsize::new(max_bytes),
            is_complete: AtomicBool::new(false),
            is_last_scan: AtomicBool::new(false),
            buffers: Mutex::default(),
        });
        let store = SharedStore::new(Store(Arc::clone(&shared)));
        for (segment, number) in wanted.iter_mut().zip(FIRST_NUMBER..) {
            (segment.store, segment.member) = (Some(store.clone()), Some(number));
        }
        KeptSegments(shared)
    }

    /// Cuts bytes out of a kept segment: the last scan gets any bytes in their place. Other scans decode the
    /// segment again. `unneeded` are ranges of its bytes, in ascending order and without overlaps; ranges
    /// that are not are ignored.
    pub fn cut(&self, start: Lsn, unneeded: impl IntoIterator<Item = Range<usize>>) {
        let index = self.0.segments.binary_search_by_key(&start, |kept| kept.file.start);
        let Some(kept) = index.ok().and_then(|index| self.0.segments.get(index)) else { return };
        let mut content = lock(&kept.content);
        let Content::Whole(whole) = &*content else { return };
        let (mut ranges, mut at, mut bytes) = (Vec::new(), 0, 0);
        let mut keep = |range: Range<usize>| {
            bytes += range.len();
            ranges.push(range);
        };
        for range in unneeded {
            if (at..=whole.len()).contains(&range.start) && (range.start..=whole.len()).contains(&range.end) {
                keep(at..range.start);
                at = range.end;
            }
        }
        keep(at..whole.len());
        let freed = whole.len() - bytes;
        if freed < whole.len() / MIN_FREED {
            return;
        }
        let mut kept_bytes = Vec::with_capacity(bytes);
        ranges.iter().for_each(|range| kept_bytes.extend_from_slice(&whole[range.clone()]));
        let segment_bytes = whole.len();
        *content = Content::Cut(Cut { bytes: kept_bytes, ranges, segment_bytes });
        self.0.left.fetch_add(freed, Ordering::Relaxed);
    }

    /// Drops all segments that were cut: the last scan decodes them again. No further segments are kept.
    pub fn drop_cut(&self) {
        self.0.is_complete.store(true, Ordering::Relaxed);
        for kept in &self.0.segments {
            let mut content = lock(&kept.content);
            if let Content::Cut(_) = &*content {
                *content = Content::Held(Weak::new());
            }
        }
    }

    /// Announces the last scan: it takes each segment out of memory.
    pub fn start_last_scan(&self) {
        self.0.is_complete.store(true, Ordering::Relaxed);
        self.0.is_last_scan.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptSegments").field("segments", &self.segments.len()).finish()
    }
}

impl Shared {
    /// Reserves the memory of a group with its first segment. Returns whether the group is kept.
    fn reserve(&self, group: &Group) -> bool {
        let take = |left: usize| left.checked_sub(group.bytes);
        let reserve = || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        *group.is_kept.get_or_init(reserve)
    }

    /// Returns a cut segment at its full length, in a buffer that no reader has any more.
    fn restore(&self, cut: &Cut) -> Arc<Vec<u8>> {
        let mut buffers = lock(&self.buffers);
        let free = buffers
            .iter()
            .position(|buffer| Arc::strong_count(buffer) == 1 && buffer.len() == cut.segment_bytes);
        let mut buffer = match free {
            Some(free) => buffers.swap_remove(free),
            None => Arc::new(vec![0; cut.segment_bytes]),
        };
        let whole = Arc::make_mut(&mut buffer);
        let mut rest = &cut.bytes[..];
        for range in &cut.ranges {
            let (bytes, after) = rest.split_at(range.len());
            whole[range.clone()].copy_from_slice(bytes);
            rest = after;
        }
        if buffers.len() < MAX_BUFFERS {
            buffers.push(Arc::clone(&buffer));
        }
        buffer
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut content = lock(&kept.content);
        let is_last = self.shared.is_last_scan.load(Ordering::Relaxed);
        let (found, held) = match &*content {
            Content::Whole(whole) => (Some(Arc::clone(whole)), Arc::downgrade(whole)),
            Content::Cut(cut) => (is_last.then(|| self.shared.restore(cut)), Weak::new()),
            Content::Held(held) => (held.upgrade(), Weak::clone(held)),
        };
        if let Some(found) = found {
            if is_last {
                *content = Content::Held(held);
            }
            return Ok(found);
        }
        let decoded =
            open_with(&kept.file, &mut self.members)?.decoded().ok_or(io::ErrorKind::InvalidData)?;
        if let Content::Held(held) = &mut *content {
            *held = Arc::downgrade(&decoded);
            if !self.shared.is_complete.load(Ordering::Relaxed) && self.shared.reserve(&kept.group) {
                *content = Content::Whole(Arc::clone(&decoded));
            }
        }
        Ok(decoded)
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;
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
            assert!(!kept.0.segments.iter().any(is_in_memory));
            assert_eq!(decoded.load(Ordering::Relaxed), 18 - 2 * expected);
            scan(&run);
            assert_eq!(decoded.load(Ordering::Relaxed), 24 - 2 * expected, "and can be read again");
        }
    }

    fn is_in_memory(kept: &Kept) -> bool {
        !matches!(&*lock(&kept.content), Content::Held(held) if held.strong_count() == 0)
    }

    #[test]
    fn members_that_are_decoded_together_are_kept_together() {
        let (mut run, decoded) = run(6, |number| number % 3 != 1);
        let kept = KeptSegments::keep(&mut run, Lsn(0), 5 * SEGMENT);
        scan(&run);
        let in_memory: Vec<bool> = kept.0.segments.iter().map(is_in_memory).collect();
        assert_eq!(in_memory, [true, true, true, false, false, false]);
        scan(&run);
        assert_eq!(decoded.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn the_last_scan_gets_a_cut_segment_without_the_bytes_that_were_cut() {
        let (mut run, decoded) = run(4, |_| false);
        let kept = KeptSegments::keep(&mut run, Lsn(0), 3 * SEGMENT);
        scan(&run);
        let start = |number: usize| run.segments[number - 1].start;
        // Too little; ranges that overlap; a segment that is not in memory.
        kept.cut(start(1), once(5..SEGMENT / 4));
        kept.cut(start(2), [0..SEGMENT / 2, 3..SEGMENT, SEGMENT - 7..SEGMENT, SEGMENT..SEGMENT + 1]);
        kept.cut(start(3), once(SEGMENT / 3..SEGMENT));
        kept.cut(start(4), once(0..SEGMENT));
        scan(&run);
        assert_eq!(decoded.load(Ordering::Relaxed), 4 + 3, "cut segments are decoded again");
        kept.cut(start(2), once(0..SEGMENT));
        kept.start_last_scan();
        let read = |number: usize| open(&run.segments[number - 1]).unwrap().decoded().unwrap();
        assert_eq!(*read(1), [1; SEGMENT]);
        let (zeros, twos) = (vec![0; SEGMENT / 2], vec![2; SEGMENT / 2 - 7]);
        assert!(*read(2) == [zeros, twos, vec![0; 7]].concat());
        let found = read(3);
        assert!(found[..SEGMENT / 3].iter().all(|byte| *byte == 3));
        assert!(found[SEGMENT / 3..].iter().all(|byte| *byte != 3), "a buffer of another segment");
        assert_eq!(*read(4), [4; SEGMENT]);
        assert_eq!(decoded.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn memory_that_cuts_free_is_used_for_further_segments_until_cut_ones_are_dropped() {
        let (mut run, decoded) = run(6, |_| false);
        let kept = KeptSegments::keep(&mut run, Lsn(0), 2 * SEGMENT);
        for segment in &run.segments {
            open(segment).unwrap().decoded().unwrap();
            kept.cut(segment.start, once(SEGMENT / 4..SEGMENT));
        }
        let in_memory = kept.0.segments.iter().filter(|kept| is_in_memory(kept)).count();
        assert_eq!(
            (in_memory, decoded.load(Ordering::Relaxed)),
            (5, 6),
            "one and a quarter, and a whole one"
        );
        kept.drop_cut();
        assert!(!kept.0.segments.iter().any(is_in_memory));
        kept.start_last_scan();
        scan(&run);
        assert_eq!(decoded.load(Ordering::Relaxed), 12);
    }
}

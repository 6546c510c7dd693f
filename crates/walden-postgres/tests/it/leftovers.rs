//! Files that a server has used before or uses again. After a promotion, recycled files of the previous
//! timeline have pages with exactly the addresses that belong there.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_postgres::follow::{FolderFollower, Follower};
use walden_source::inventory::{Inventory, SpareKind};
use walden_source::scan::{DamageKind, ScanOptions, SegmentEnd, scan, scan_in_order};
use walden_testing::writer::{LogWriter, PAGE};

const SIZE: usize = 1 << 20;
/// `LogWriter` starts with segment 5. There are three segments.
const FIRST: u64 = 5;
const SEGMENTS: usize = 3;

#[derive(Default)]
struct Count(u64);

impl Visitor for Count {
    fn record(&mut self, _: &Record<'_>) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Continue(())
    }
}

/// Returns all segments as the server on the parent timeline wrote them.
fn parent() -> Vec<u8> {
    let mut log = LogWriter::new(Major::V15);
    log.info.timeline = 1;
    while log.bytes.len() < SEGMENTS * SIZE {
        log.main_data(10, 0, &[1; 100]);
    }
    log.bytes.truncate(SEGMENTS * SIZE);
    log.bytes
}

/// Returns WAL of timeline 2, which starts in the first segment, with at least this number of bytes.
fn child(bytes: usize) -> LogWriter {
    let mut log = LogWriter::new(Major::V15);
    log.info.timeline = 1;
    log.main_data(10, 0, &[2; 300]);
    log.info.timeline = 2;
    grow(&mut log, bytes);
    log
}

fn grow(log: &mut LogWriter, bytes: usize) {
    while log.bytes.len() < bytes {
        log.main_data(10, 0, &[2; 300]);
    }
}

fn name(timeline: u32, index: usize) -> SegmentName {
    let size = LogWriter::new(Major::V15).info.segment_size;
    SegmentName::new(timeline, FIRST + index as u64, size)
}

/// Writes the pages of the WAL over those of the parent, as segments of timeline 2.
fn save(folder: &Path, log: &LogWriter) {
    let mut bytes = log.bytes.clone();
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
    let rest = &parent()[bytes.len()..];
    bytes.extend(rest);
    for (index, content) in bytes.chunks(SIZE).enumerate() {
        fs::write(folder.join(name(2, index).to_string()), content).unwrap();
    }
}

fn saved(log: &LogWriter) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), log);
    folder
}

fn options(threads: usize) -> ScanOptions {
    ScanOptions::new(threads)
}

/// Asserts that all readers find the end of WAL in a folder at this position, in pages of the parent.
fn expect_end(folder: &Path, end: Lsn, segments: usize) {
    let inventory = Inventory::search(&[folder]).unwrap();
    assert_eq!((inventory.runs.len(), inventory.runs[0].segments.len()), (1, segments));
    let spares: Vec<_> = inventory.spares.iter().map(|spare| spare.kind).collect();
    let expected: Vec<_> = (segments..SEGMENTS).map(|index| SpareKind::Recycled(name(1, index))).collect();
    assert_eq!(spares, expected);
    let mut count = Count::default();
    let (reached, found) = scan_in_order(&inventory.runs[0], options(1), &mut count, |_| ());
    let SegmentEnd::EndOfLog(tail) = found else { panic!("{end}: {found:?}") };
    assert_eq!(reached, end);
    assert!(tail.recycled > 0 && count.0 > 0, "{tail:?}");
    let mut last = None;
    scan(
        &inventory.runs[0],
        options(3),
        |_| Count::default(),
        |outcome| {
            last = Some((outcome.position, matches!(outcome.end, SegmentEnd::EndOfLog(_))));
            ControlFlow::Continue(())
        },
    );
    assert_eq!(last, Some((end, true)));
    let follower = FolderFollower::at_end(folder).unwrap();
    assert_eq!((follower.info().timeline, follower.position()), (2, end));
}

#[test]
fn pages_of_an_earlier_timeline_behind_the_end_are_no_log() {
    // Not in the segment of the switch: PostgreSQL fills the rest of that one with zeros (`XLogFileCopy`).
    for bytes in [SIZE + 300, SIZE + 9_000, SIZE + 47_000, SIZE + 400_000, 2 * SIZE + 70_000] {
        let log = child(bytes);
        expect_end(saved(&log).path(), log.position(), bytes / SIZE + 1);
    }
}

#[test]
fn a_record_that_a_crash_cut_off_before_such_pages_is_no_damage() {
    let mut log = child(SIZE + 400_000);
    let end = log.position();
    log.crash_in_record(60_000, 20_000);
    expect_end(saved(&log).path(), end, 2);
}

#[test]
fn zeros_before_pages_of_the_same_timeline_are_damage() {
    let mut log = child(SIZE + 400_000);
    let hole = SIZE + 20 * PAGE;
    log.bytes[hole..hole + PAGE].fill(0);
    let folder = saved(&log);
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let (reached, end) = scan_in_order(&inventory.runs[0], options(1), &mut Count::default(), |_| ());
    assert!(matches!(end, SegmentEnd::Damaged(_)), "{end:?}");
    assert!(reached <= log.start.plus(hole as u64));
}

/// A server may recycle a file that is held open, and write to it under its new name.
#[test]
fn pages_of_a_later_segment_are_no_end_of_the_log() {
    let original = &parent()[..SIZE];
    let mut log = LogWriter::new(Major::V15);
    (log.info.timeline, log.start) = (1, log.start.plus(10 * SIZE as u64));
    grow(&mut log, SIZE);
    let later = &log.bytes[..SIZE];
    for overwritten in [0..1, 0..SIZE / PAGE, 20..21, 100..SIZE / PAGE] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name(1, 0).to_string());
        fs::write(&path, original).unwrap();
        let inventory = Inventory::search(&[folder.path()]).unwrap();
        let bytes = overwritten.start * PAGE..overwritten.end * PAGE;
        let mut content = original.to_vec();
        content[bytes.clone()].copy_from_slice(&later[bytes.clone()]);
        fs::write(&path, content).unwrap();
        let run = &inventory.runs[0];
        let (reached, end) = scan_in_order(run, options(1), &mut Count::default(), |_| ());
        let SegmentEnd::Damaged(damage) = end else { panic!("{overwritten:?}: {end:?}") };
        assert!(reached <= run.start().plus(bytes.start as u64), "{overwritten:?}: {reached}");
        assert!(matches!(damage.kind, DamageKind::Recycled { next: None, .. }), "{damage}");
    }
}

#[test]
fn a_log_that_grows_over_such_pages_is_followed() {
    let mut log = child(SIZE + 100_000);
    let folder = saved(&log);
    let mut follower = FolderFollower::at_end(folder.path()).unwrap();
    for bytes in [SIZE + 100_400, SIZE + 300_000, 2 * SIZE - 100, 2 * SIZE + 50_000] {
        let before = log.records.len();
        grow(&mut log, bytes);
        save(folder.path(), &log);
        let mut count = Count::default();
        let polled = follower.poll(&mut count, Duration::ZERO).unwrap();
        assert_eq!((polled.news, follower.position()), (None, log.position()));
        assert_eq!(count.0, (log.records.len() - before) as u64);
    }
}

//! Acknowledged WAL is kept, whichever call fails.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use walden_archive::history::History;
use walden_archive::name::ArchivedFile;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_receive::disk::{Disk, DiskFile};
use walden_receive::handover::{CopyError, Known, copy_out};
use walden_receive::spool::{Position, Spool, SpoolError};
use walden_testing::writer::LogWriter;

use crate::disk::{Failure, Memory};

const SEGMENT: u64 = 1 << 20;
/// The first segment of the WAL.
const FIRST: u64 = 3;

fn size() -> SegmentSize {
    SegmentSize::new(SEGMENT).unwrap()
}

/// Returns two and a half segments of WAL, full of records, some across segment boundaries.
fn log() -> Vec<u8> {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    writer.start = Lsn(FIRST * SEGMENT);
    writer.previous = Lsn(FIRST * SEGMENT - 32);
    let mut number = 0_u64;
    while (writer.bytes.len() as u64) < 5 * SEGMENT / 2 {
        number += 1;
        let text = format!("record {number} ").repeat(1 + number as usize % 900);
        writer.main_data(rmid::XLOG, 0x20, text.as_bytes());
    }
    writer.bytes.clone()
}

/// Returns the parts in which the server sends the WAL, of any size.
fn parts(log: &[u8], from: Lsn) -> impl Iterator<Item = (Lsn, &[u8])> {
    let sizes = [50_000_usize, 7, 131_072, 8192, 300_000, 1];
    let mut at = from.bytes_since(Lsn(FIRST * SEGMENT)) as usize;
    let mut sizes = sizes.into_iter().cycle();
    std::iter::from_fn(move || {
        let end = (at + sizes.next()?).min(log.len());
        let part = (Lsn(FIRST * SEGMENT).plus(at as u64), &log[at..end]);
        at = end;
        (!part.1.is_empty()).then_some(part)
    })
}

/// Receives the WAL from the spool's position on, and synchronises after each part. `acknowledged` is the
/// position reported to the server.
fn receive(disk: &Memory, log: &[u8], acknowledged: &mut Lsn) -> Result<(), SpoolError> {
    let spool = Spool::open(disk, size())?;
    spool.prepare()?;
    connect(&spool, log, acknowledged)
}

/// Receives over one of several connections of a process.
fn connect(spool: &Spool<'_>, log: &[u8], acknowledged: &mut Lsn) -> Result<(), SpoolError> {
    let position =
        spool.position()?.unwrap_or(Position { timeline: 1, start: Lsn(FIRST * SEGMENT), info: None });
    for (start, bytes) in parts(log, position.start) {
        spool.write(1, start, bytes)?;
        // As if all records up to here were right. Verification is tested elsewhere.
        spool.note_verified(start.plus(bytes.len() as u64));
        *acknowledged = (*acknowledged).max(spool.sync()?);
    }
    Ok(())
}

/// Asserts that the spool's files have the WAL up to a position.
fn assert_holds(disk: &Memory, log: &[u8], until: Lsn, what: &str) {
    for number in FIRST..=size().segment_of(until) {
        let start = size().start_of(number);
        let wanted = until.min(start.plus(SEGMENT)).bytes_since(start) as usize;
        if wanted == 0 {
            continue;
        }
        let name = SegmentName::new(1, number, size());
        let complete = disk.content(&ArchivedFile::Segment(name).to_string());
        let content = complete.or_else(|| disk.content(&ArchivedFile::Partial(name).to_string()));
        let content =
            content.unwrap_or_else(|| panic!("{what}: {name} is missing, acknowledged up to {until}"));
        let offset = ((number - FIRST) * SEGMENT) as usize;
        assert!(content[..wanted] == log[offset..][..wanted], "{what}: {name} differs");
    }
}

#[test]
fn the_log_is_kept_as_it_came() {
    let (disk, log) = (Memory::default(), log());
    let mut acknowledged = Lsn(0);
    receive(&disk, &log, &mut acknowledged).unwrap();
    assert_eq!(acknowledged, Lsn(FIRST * SEGMENT + log.len() as u64));
    assert_holds(&disk, &log, acknowledged, "no failure");
    let spool = Spool::open(&disk, size()).unwrap();
    let waiting: Vec<String> = spool.waiting().unwrap().iter().map(ArchivedFile::to_string).collect();
    assert_eq!(waiting, ["000000010000000000000003", "000000010000000000000004"]);
    // At the page of the last record.
    let position = spool.position().unwrap().unwrap();
    let behind = acknowledged.bytes_since(position.start);
    assert!(position.timeline == 1 && behind > 0 && behind < 30_000, "{position:?} of {acknowledged}");
    assert!(position.start.0.is_multiple_of(8192) && position.info.is_some(), "{position:?}");
}

/// For every call: the power fails at it, with none or some of the unsynchronised writes on the disk; or the
/// call fails once, and the process continues. Acknowledged WAL is kept, and receiving again yields all WAL.
#[test]
fn nothing_acknowledged_is_lost_whichever_call_fails() {
    let log = log();
    let whole = Lsn(FIRST * SEGMENT + log.len() as u64);
    let calls = {
        let disk = Memory::default();
        receive(&disk, &log, &mut Lsn(0)).unwrap();
        disk.calls()
    };
    assert!(calls > 80, "{calls} calls");
    for call in 1..=calls {
        for failure in [Failure::Power, Failure::Error] {
            let (disk, mut acknowledged) = (Memory::default(), Lsn(0));
            disk.fail_at(call, failure);
            let result = receive(&disk, &log, &mut acknowledged);
            assert!(result.is_err(), "call {call}, {failure:?}: nobody noticed");
            for is_lucky in [false, true] {
                let what = format!("call {call}, {failure:?}, all was written: {is_lucky}");
                let disk = disk.after_power_loss(is_lucky);
                assert_holds(&disk, &log, acknowledged, &what);
                let mut again = acknowledged;
                receive(&disk, &log, &mut again).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(again, whole, "{what}");
                assert_holds(&disk.after_power_loss(false), &log, whole, &what);
            }
            if failure == Failure::Error {
                // The same process, or another one, on a machine that keeps running.
                let what = format!("call {call} failed once");
                receive(&disk, &log, &mut acknowledged).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(acknowledged, whole);
                assert_holds(&disk.after_power_loss(false), &log, whole, &what);
            }
        }
    }
}

#[test]
fn a_process_goes_on_once_a_full_disk_has_room_again() {
    let (disk, log) = (Memory::default(), log());
    let is_unfinished = |name: &String| name.ends_with(".new");
    let (segment, foreign) = (SEGMENT as usize, SEGMENT as usize * 6 / 10);
    disk.create("foreign", foreign as u64).unwrap();
    // Two segments and most of a third one.
    disk.set_capacity(3 * segment + segment / 2);
    let (spool, mut acknowledged) = (Spool::open(&disk, size()).unwrap(), Lsn(0));
    for _ in 0..3 {
        assert!(matches!(connect(&spool, &log, &mut acknowledged), Err(SpoolError::Disk { .. })));
        assert!(spool.prepare().is_err());
        assert!(spool.keep_history(2, &vec![7; 2 * segment]).is_err());
        spool.forget_open_files();
        let left: Vec<String> = disk.list().unwrap().into_iter().filter(is_unfinished).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    assert_holds(&disk, &log, acknowledged, "full");
    disk.remove("foreign").unwrap();
    connect(&spool, &log, &mut acknowledged).unwrap();
    assert_holds(&disk.after_power_loss(false), &log, Lsn(FIRST * SEGMENT + log.len() as u64), "room again");
    // A copy uses the prepared file.
    disk.set_capacity(4 * segment);
    spool.prepare().unwrap();
    spool.forget_open_files();
    connect(&spool, &log, &mut acknowledged).unwrap();
}

/// The prepared file does not keep received WAL from finding room, and is not created again before that has
/// found room.
#[test]
fn the_file_that_was_made_ahead_gives_way_on_a_full_disk() {
    let disk = Memory::default();
    let spool = Spool::open(&disk, size()).unwrap();
    let segment = SEGMENT as usize;
    disk.set_capacity(segment + segment / 2);
    spool.prepare().unwrap();
    let history = vec![7; segment];
    assert!(spool.keep_history(2, &history).is_err());
    assert!(spool.prepare().is_err());
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
    spool.keep_history(2, &history).unwrap();
    disk.set_capacity(3 * segment);
    spool.prepare().unwrap();
}

/// A disk that is slow to fill a file with zeros.
struct SlowToFill(Memory);

impl Disk for SlowToFill {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let created = self.0.create(name, bytes);
        thread::sleep(Duration::from_millis(100));
        created
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_names()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}

/// If there is room for one file, the receiver waits for the prepared one and uses it.
#[test]
fn two_files_are_not_made_at_a_time() {
    let (disk, log) = (SlowToFill(Memory::default()), log());
    disk.0.set_capacity(SEGMENT as usize * 3 / 2);
    let spool = Spool::open(&disk, size()).unwrap();
    thread::scope(|scope| {
        let preparing = scope.spawn(|| spool.prepare());
        while disk.list().unwrap().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        spool.write(1, Lsn(FIRST * SEGMENT), &log[..8192]).unwrap();
        preparing.join().unwrap().unwrap();
    });
}

#[test]
fn a_partial_segment_goes_only_if_the_archived_one_has_its_records() {
    let (disk, log) = (Memory::default(), log());
    let (spool, mut acknowledged) = (Spool::open(&disk, size()).unwrap(), Lsn(0));
    // The first segment and half of the second.
    connect(&spool, &log[..3 * SEGMENT as usize / 2], &mut acknowledged).unwrap();
    let name = SegmentName::new(1, FIRST + 1, size());
    let archived = &log[SEGMENT as usize..2 * SEGMENT as usize];
    let mut other = archived.to_vec();
    other[SEGMENT as usize / 4] ^= 1;
    assert!(!spool.remove_archived_partial(name, &other).unwrap());
    assert!(!spool.remove_archived_partial(name, &archived[..SEGMENT as usize / 4]).unwrap());
    assert!(spool.has_partial(name).unwrap());
    // Bytes after the received ones may differ.
    other.copy_from_slice(archived);
    other[SEGMENT as usize - 1] ^= 1;
    assert!(spool.remove_archived_partial(name, &other).unwrap());
    assert!(!spool.has_partial(name).unwrap());
}

#[test]
fn another_history_is_refused_and_nothing_is_overwritten() {
    let (disk, log) = (Memory::default(), log());
    let mut acknowledged = Lsn(0);
    receive(&disk, &log, &mut acknowledged).unwrap();
    let before = disk.content("000000010000000000000005.partial").unwrap();
    let mut other = log.clone();
    // In the page of the last record, which is sent again.
    let flipped = log.len() - 20;
    other[flipped] ^= 1;
    let error = receive(&disk, &other, &mut acknowledged).unwrap_err();
    let SpoolError::Different { at, name, .. } = error else { panic!("{error}") };
    assert_eq!(
        (at, name.to_string()),
        (Lsn(FIRST * SEGMENT + flipped as u64), "000000010000000000000005".into())
    );
    let after = disk.content("000000010000000000000005.partial").unwrap();
    assert!(before == after, "the partial segment has changed");
}

#[test]
fn a_segment_is_complete_once_its_last_record_is() {
    let (disk, log) = (Memory::default(), log());
    let spool = Spool::open(&disk, size()).unwrap();
    let start = Lsn(FIRST * SEGMENT);
    spool.write(1, start, &log[..SEGMENT as usize + 100]).unwrap();
    // A record that continues in the next segment.
    spool.note_verified(start.plus(SEGMENT - 64));
    assert_eq!(spool.sync().unwrap(), start.plus(SEGMENT + 100));
    assert_eq!(spool.waiting().unwrap(), []);
    spool.note_verified(start.plus(SEGMENT + 100));
    spool.sync().unwrap();
    assert_eq!(spool.waiting().unwrap().len(), 1);
}

#[test]
fn what_comes_once_more_is_durable_once_it_is_synchronised_again() {
    let (disk, log) = (Memory::default(), log());
    let spool = Spool::open(&disk, size()).unwrap();
    let (start, received) = (Lsn(FIRST * SEGMENT), &log[..100_000]);
    let end = start.plus(100_000);
    spool.write(1, start, received).unwrap();
    spool.note_verified(start.plus(50_000));
    assert_eq!(spool.sync().unwrap(), end);
    spool.end_connection();
    assert_eq!(spool.durable(), start.plus(50_000));
    let from = spool.position().unwrap().unwrap().start;
    let again = &received[from.bytes_since(start) as usize..];
    let (first, second) = again.split_at(again.len() / 2);
    spool.write(1, from, first).unwrap();
    let durable = spool.sync().unwrap();
    assert!(durable < end, "{durable}");
    // The end of the last record may differ from before, for example because the network had flipped a bit.
    spool.write(1, from.plus(first.len() as u64), second).unwrap();
    assert_eq!(spool.durable(), durable);
    assert_eq!(spool.sync().unwrap(), end);
}

/// As the operating system reports success for the second attempt.
#[test]
fn what_failed_to_be_synchronised_is_not_synchronised_again() {
    let (disk, log) = (Memory::default(), log());
    let spool = Spool::open(&disk, size()).unwrap();
    let start = Lsn(FIRST * SEGMENT);
    spool.write(1, start, &log[..SEGMENT as usize + 100]).unwrap();
    spool.note_verified(start.plus(SEGMENT + 100));
    disk.fail_at(1, Failure::Error);
    assert!(spool.sync().is_err());
    assert!(spool.sync().is_err());
    assert_eq!(spool.durable(), Lsn(0));
    assert_eq!(spool.waiting().unwrap(), []);
    spool.end_connection();
    spool.forget_open_files();
    let mut acknowledged = Lsn(0);
    connect(&spool, &log, &mut acknowledged).unwrap();
    assert_holds(&disk.after_power_loss(false), &log, acknowledged, "once more");
}

/// A standby sends the previous bytes of its file; the primary sends zeros.
#[test]
fn what_follows_a_switch_may_be_anything() {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    writer.start = Lsn(FIRST * SEGMENT);
    writer.previous = Lsn(FIRST * SEGMENT - 32);
    for number in 0..2000 {
        writer.main_data(rmid::XLOG, 0x20, format!("record {number}").as_bytes());
    }
    writer.record(rmid::XLOG, 0x40, 0, &[]);
    let used = writer.bytes.len();
    let mut zeros = writer.bytes.clone();
    zeros.resize(SEGMENT as usize, 0);
    let mut recycled = zeros.clone();
    recycled[used..].fill(0x5A);
    let (disk, start) = (Memory::default(), Lsn(FIRST * SEGMENT));
    let spool = Spool::open(&disk, size()).unwrap();
    spool.write(1, start, &zeros[..zeros.len() - 8192]).unwrap();
    spool.sync().unwrap();
    let name = SegmentName::new(1, FIRST, size());
    // In a record after the page at which the next connection starts.
    let mut different = recycled.clone();
    different[used - 30] ^= 1;
    for (sent, is_same) in [(&different, false), (&recycled, true)] {
        let spool = Spool::open(&disk, size()).unwrap();
        let position = spool.position().unwrap().unwrap();
        let rest = &sent[position.start.bytes_since(start) as usize..];
        match spool.write(1, position.start, rest) {
            Ok(()) => assert!(is_same),
            Err(SpoolError::Different { .. }) => assert!(!is_same),
            Err(error) => panic!("{error}"),
        }
    }
    let disk = Memory::default();
    let spool = Spool::open(&disk, size()).unwrap();
    spool.write(1, start, &zeros[..zeros.len() - 8192]).unwrap();
    spool.sync().unwrap();
    assert!(!spool.remove_archived_partial(name, &different).unwrap());
    assert!(spool.remove_archived_partial(name, &recycled).unwrap());
}

#[test]
fn the_log_has_no_holes() {
    let (disk, log) = (Memory::default(), log());
    let spool = Spool::open(&disk, size()).unwrap();
    let start = Lsn(FIRST * SEGMENT);
    assert!(matches!(spool.write(1, start.plus(8), &log[8..99]), Err(SpoolError::Order { .. })));
    spool.write(1, start, &log[..5000]).unwrap();
    let error = spool.write(1, start.plus(6000), &log[6000..7000]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server sent WAL from a wrong position: expected 0/00301388, found 0/00301770"
    );
}

#[test]
fn a_timeline_that_ended_is_archived_as_partial_and_says_nothing_of_the_next() {
    let (disk, log) = (Memory::default(), log());
    let spool = Spool::open(&disk, size()).unwrap();
    let start = Lsn(FIRST * SEGMENT);
    spool.write(1, start, &log[..50_000]).unwrap();
    spool.note_verified(start.plus(50_000));
    assert_eq!(spool.sync().unwrap(), start.plus(50_000));
    spool.leave(start);
    spool.keep_history(2, b"1\t0/308000\tpromoted\n").unwrap();
    assert_eq!(spool.durable(), start);
    spool.write(2, start, &log[..40_000]).unwrap();
    assert_eq!(spool.sync().unwrap(), start.plus(40_000));
    let waiting: Vec<String> = spool.waiting().unwrap().iter().map(ArchivedFile::to_string).collect();
    assert_eq!(waiting, ["00000002.history", "000000010000000000000003.partial"]);
    assert_eq!(spool.position().unwrap().map(|position| position.timeline), Some(2));
}

/// If a timeline ends with a segment, as after `pg_switch_wal`, PostgreSQL does not archive it as `.partial`
/// either: the next timeline needs the complete segment.
#[test]
fn a_segment_that_ends_with_its_timeline_is_never_partial() {
    for is_verified_before in [true, false] {
        let (disk, log) = (Memory::default(), log());
        let spool = Spool::open(&disk, size()).unwrap();
        let (start, end) = (Lsn(FIRST * SEGMENT), Lsn((FIRST + 1) * SEGMENT));
        let waiting =
            || -> Vec<String> { spool.waiting().unwrap().iter().map(ArchivedFile::to_string).collect() };
        spool.write(1, start, &log[..SEGMENT as usize]).unwrap();
        if is_verified_before {
            spool.note_verified(end);
        }
        spool.sync().unwrap();
        spool.leave(end);
        let segment = "000000010000000000000003";
        let expected: &[&str] = if is_verified_before { &[segment] } else { &[] };
        // The archiving thread may read the list at any moment.
        assert_eq!(waiting(), expected);
        spool.write(2, end, &log[..40_000]).unwrap();
        assert_eq!(waiting(), expected);
        spool.note_verified(end.plus(40_000));
        spool.sync().unwrap();
        assert_eq!(waiting(), [segment]);
        assert_eq!(disk.content(segment).as_deref(), Some(&log[..SEGMENT as usize]));
    }
}

#[test]
fn a_whole_segment_behind_the_end_of_its_timeline_stays_partial() {
    let (disk, log) = (Memory::default(), log());
    let spool = Spool::open(&disk, size()).unwrap();
    let start = Lsn(FIRST * SEGMENT);
    spool.write(1, start, &log[..SEGMENT as usize + 100]).unwrap();
    // The last record of the first segment is incomplete.
    spool.note_verified(start.plus(SEGMENT - 64));
    spool.sync().unwrap();
    spool.leave(start);
    spool.write(2, start, &log[..SEGMENT as usize + 100]).unwrap();
    spool.note_verified(start.plus(SEGMENT + 100));
    spool.sync().unwrap();
    let waiting: Vec<String> = spool.waiting().unwrap().iter().map(ArchivedFile::to_string).collect();
    let expected =
        ["000000010000000000000003.partial", "000000010000000000000004.partial", "000000020000000000000003"];
    assert_eq!(waiting, expected);
}

/// WAL that a primary wrote after its standby was promoted does not belong to the new timeline, although
/// recovery requests the segment by its name.
#[test]
fn recovery_gets_no_more_than_the_timelines_have_in_common() {
    let (folder, log) = (tempfile::tempdir().unwrap(), log());
    let name = SegmentName::new(1, 4, size());
    let segment = &log[SEGMENT as usize..][..SEGMENT as usize];
    let partial = folder.path().join(ArchivedFile::Partial(name).to_string());
    std::fs::write(&partial, segment).unwrap();
    let target = folder.path().join("RECOVERYXLOG");
    // Returns how many bytes of the file recovery gets, or `None` if it gets no file.
    let known = |archived: &[(u32, &str)]| -> Result<Option<usize>, CopyError> {
        let parsed =
            archived.iter().map(|&(of, text)| (of, History::parse(of, text.as_bytes()).unwrap())).collect();
        let file = ArchivedFile::Segment(name);
        if !copy_out(folder.path(), file, &target, &Known::default(), || Ok(parsed))? {
            return Ok(None);
        }
        let given = std::fs::read(&target).unwrap();
        let same = given.iter().zip(segment).take_while(|(one, other)| one == other).count();
        assert!(given.len() as u64 == SEGMENT && given[same..].iter().all(|byte| *byte == 0));
        Ok(Some(same))
    };
    // Zeros of the WAL itself may follow the fork.
    let up_to = |bytes: usize| {
        let zeros = segment[bytes..].iter().take_while(|byte| **byte == 0).count();
        Some(bytes + zeros)
    };
    assert_eq!(known(&[]).unwrap(), Some(SEGMENT as usize));
    assert_eq!(known(&[(2, "1\t0/480000\tx\n")]).unwrap(), up_to(0x80000));
    assert_eq!(known(&[(2, "1\t0/500090\tx\n")]).unwrap(), Some(SEGMENT as usize));
    assert_eq!(known(&[(2, "1\t0/400000\tx\n")]).unwrap(), None);
    assert_eq!(known(&[(2, "1\t0/3000B0\tx\n")]).unwrap(), None);
    // A history in the spool counts as well. An invalid one is an error.
    let history = folder.path().join("00000002.history");
    std::fs::write(&history, "1\t0/440000\tx\n").unwrap();
    assert_eq!(known(&[]).unwrap(), up_to(0x40000));
    std::fs::write(&history, "garbage").unwrap();
    let damaged = known(&[]).unwrap_err();
    assert!(damaged.to_string().contains("00000002.history"), "{damaged}");
    let known = Known::default();
    let copied =
        copy_out(folder.path(), ArchivedFile::History(2), &target, &known, || Ok(Default::default()));
    assert!(copied.is_err());
}

/// Wherever the received WAL ends, recovery gets it. A bit flipped before the last record is noticed.
#[test]
fn what_was_received_is_handed_over_and_damage_is_not() {
    let (folder, log) = (tempfile::tempdir().unwrap(), log());
    let name = SegmentName::new(1, FIRST, size());
    let path = folder.path().join(ArchivedFile::Partial(name).to_string());
    let target = folder.path().join("RECOVERYXLOG");
    let get = |content: &[u8], known: &Known| {
        std::fs::write(&path, content).unwrap();
        copy_out(folder.path(), ArchivedFile::Segment(name), &target, known, || Ok(Default::default()))
    };
    let mut content = vec![0; SEGMENT as usize];
    for end in (1000..SEGMENT as usize).step_by(9973) {
        content[..end].copy_from_slice(&log[..end]);
        let got = get(&content, &Known::default());
        assert!(matches!(got, Ok(true)), "{end}: {got:?}");
        assert!(std::fs::read(&target).unwrap() == content, "{end}");
    }
    let last_page = SEGMENT as usize - 40_000;
    for offset in (100..last_page).step_by(20_011) {
        let mut damaged = content.clone();
        damaged[offset] ^= 0x10;
        let error = get(&damaged, &Known::default()).expect_err("damage");
        assert!(matches!(error, CopyError::Refused { .. }), "{offset}: {error:?}");
    }
    // In the last page, the record after the damage reveals it.
    let mut short = vec![0; SEGMENT as usize];
    let one_page = 8000;
    short[..one_page].copy_from_slice(&log[..one_page]);
    short[100] ^= 0x10;
    let error = get(&short, &Known::default()).expect_err("damage");
    assert!(matches!(error, CopyError::Behind { .. }), "{error:?}");
    // Nothing was received.
    assert!(matches!(get(&vec![0; SEGMENT as usize], &Known::default()), Ok(false)));
    // A file that is not complete, and a file of another cluster.
    let other = |cluster| Known {
        system_ids: vec![(cluster, "pg_control".to_owned())],
        segment_bytes: Some(SEGMENT),
    };
    let own = LogWriter::new(Major::V18).info.system_id;
    assert!(matches!(get(&content, &other(own)), Ok(true)));
    assert!(matches!(get(&content, &other(7)), Err(CopyError::OtherCluster { expected: 7, .. })));
    for short in [&content[..0], &content[..SEGMENT as usize / 2]] {
        assert!(matches!(get(short, &other(own)), Err(CopyError::Refused { .. })), "{}", short.len());
    }
}

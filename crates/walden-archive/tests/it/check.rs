//! Refused and accepted files, by kind.

use std::ops::ControlFlow;

use walden_archive::check::{Refusal, Rules, check};
use walden_archive::history::{Ancestor, History};
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushError, PushOptions, push};
use walden_format::fault::FaultKind;
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_format::version::Major;
use walden_testing::writer::LogWriter;

use crate::material::{archive_of, log, segments};

fn file(name: &str) -> ArchivedFile {
    ArchivedFile::parse(name).expect("a name")
}

/// Returns why a file is refused.
fn refusal(name: &str, content: &[u8]) -> Refusal {
    check(file(name), &mut &content[..], Rules::default()).expect_err(name)
}

#[test]
fn real_segments_of_all_versions_are_accepted_and_unfinished_ones_are_not() {
    let (mut accepted, mut unfinished) = (0, 0);
    for version in [
        "14.23",
        "15.18",
        "15.18-first",
        "15.18-lz4",
        "15.18-pglz",
        "15.18-zstd",
        "16.14",
        "17.10",
        "17.11",
        "18.6",
    ] {
        for (name, bytes) in segments(version) {
            let checked = match check(file(&name), &mut &bytes[..], Rules::default()) {
                Ok(checked) => {
                    accepted += 1;
                    checked
                }
                // The segment to which the server was writing when it was stopped.
                Err(Refusal::Incomplete { .. }) => {
                    unfinished += 1;
                    check(file(&format!("{name}.partial")), &mut &bytes[..], Rules::default())
                        .expect("a beginning")
                }
                Err(refusal) => panic!("{version} {name}: {refusal}"),
            };
            let contents = checked.contents.expect("a segment's");
            assert!(contents.records > 0 && checked.warnings.is_empty(), "{version} {name}");
            assert_eq!(checked.bytes, bytes.len() as u64);
        }
    }
    assert!(accepted >= 4 && accepted + unfinished == 14, "{accepted} accepted, {unfinished} unfinished");
}

/// No checksum covers padding. If a copy with damaged padding was archived, the server's own segment would be
/// refused.
#[test]
fn padding_that_is_not_zero_is_refused() {
    struct Padding(Vec<(Lsn, u8)>);
    impl Visitor for Padding {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            self.0.extend((record.alignment > 0).then_some((record.end, record.alignment)));
            ControlFlow::Continue(())
        }
    }
    for version in ["14.23", "15.18", "16.14", "17.11", "18.6", "19.rc1"] {
        let (name, content) = segments(version).swap_remove(0);
        let info = StreamInfo::from_first_page(&content).unwrap();
        let start = SegmentName::parse(&name).unwrap().start(info.segment_size).unwrap();
        let mut padding = Padding(Vec::new());
        let _ = Decoder::new(info, start, start.plus(info.segment_size.bytes())).push(&content, &mut padding);
        let of_records =
            padding.0.iter().map(|&(end, bytes)| end.bytes_since(start) as usize - bytes as usize);
        // The padding of a page header, and the remaining length in a page without a continued record.
        let is_whole = |page: &usize| content[page + 2] & 1 == 0;
        let page = (8192..content.len()).step_by(8192).find(is_whole);
        let of_headers = [20, 8192 + 23].into_iter().chain(page.map(|page| page + 16));
        let mut tested = 0;
        for at in of_headers.chain(of_records.step_by(padding.0.len() / 20 + 1)) {
            let mut damaged = content.clone();
            damaged[at] ^= 0x40;
            let Err(Refusal::Damaged { offset, fault }) =
                check(file(&name), &mut &damaged[..], Rules::default())
            else {
                panic!("{version} {name}: padding at {at}");
            };
            assert_eq!(
                (offset, fault.kind),
                (at as u64, FaultKind::Padding { found: 0x40 }),
                "{version} {name}"
            );
            tested += 1;
        }
        assert!(tested > 10, "{version}: {tested}");
    }
}

#[test]
fn what_is_not_what_its_name_says_is_refused() {
    let (name, segment) = segments("18.6").swap_remove(1);
    let table: [(&str, &str, Vec<u8>); 9] = [
        ("the first page", &name, Vec::new()),
        ("the first page", &name, vec![0; segment.len()]),
        ("the first page", &name, noise(segment.len())),
        ("the file's size", &name, segment[..segment.len() / 2].to_vec()),
        ("the file's size", &name, [&segment[..], &[0; 8192]].concat()),
        ("the first page's address", "00000001000000000000000C", segment.clone()),
        ("the first page's timeline", "00000000000000000000000B", segment.clone()),
        ("the name", "0000000100000000FFFFFFFF", segment.clone()),
        (
            "the first line of the backup history file",
            "000000010000000000000007.00000028.backup",
            segment.clone(),
        ),
    ];
    for (what, name, content) in table {
        match refusal(name, &content) {
            Refusal::Mismatch { what: found, .. } => assert_eq!(found, what, "{name}"),
            other => panic!("{what}: {other}"),
        }
    }
    assert!(matches!(refusal("00000002.history", &segment), Refusal::History(_)));
    assert!(matches!(refusal("00000002.history", b""), Refusal::History(_)));
}

#[test]
fn a_changed_byte_in_a_record_is_refused_and_named() {
    let (name, segment) = segments("18.6").swap_remove(0);
    for offset in [200, 10_000, 100_000, 300_000] {
        let mut damaged = segment.clone();
        damaged[offset] ^= 0x10;
        match refusal(&name, &damaged) {
            Refusal::Damaged { offset: found, .. } => {
                assert!(found <= offset as u64 + 8192, "{found} {offset}")
            }
            other => panic!("{offset}: {other}"),
        }
        let rules = Rules { accept_damaged: true, ..Rules::default() };
        let checked = check(file(&name), &mut &damaged[..], rules).expect("accepted");
        assert_eq!(checked.warnings.len(), 1, "{:?}", checked.warnings);
        assert!(checked.is_damage_accepted);
    }
}

#[test]
fn a_tail_of_zeros_is_one_that_was_not_written_unless_the_timeline_ended_there() {
    let (name, segment) = segments("18.6").swap_remove(0);
    let mut cut = segment.clone();
    let at = 20 * 8192;
    cut[at..].fill(0);
    let incomplete = refusal(&name, &cut);
    assert!(matches!(incomplete, Refusal::Incomplete { .. }), "{incomplete}");
    assert!(!incomplete.hint().is_some_and(|hint| hint.contains("--accept-damaged")));
    // A recycled file has older pages after the end.
    let mut recycled = segment.clone();
    recycled[at..].copy_from_slice(&segment[8192..][..segment.len() - at]);
    assert!(matches!(refusal(&name, &recycled), Refusal::Incomplete { .. }));
    // The last segment of an abandoned timeline.
    let partial = check(file(&format!("{name}.partial")), &mut &cut[..], Rules::default()).expect("partial");
    let end: walden_format::lsn::Lsn = partial.contents.expect("a segment's").end.parse().expect("an LSN");
    let history = walden_archive::history::History {
        timeline: 2,
        ancestors: vec![walden_archive::history::Ancestor { timeline: 1, end, reason: String::new() }],
        without_log: Vec::new(),
    };
    let rules = Rules { histories: std::slice::from_ref(&history), ..Rules::default() };
    let checked = check(file(&name), &mut &cut[..], rules).expect("the timeline's end");
    assert!(checked.warnings[0].contains("the timeline ends in this segment"), "{:?}", checked.warnings);
    // Even then, a hole before valid pages is damage.
    let mut hole = segment.clone();
    hole[at..at + 8192].fill(0);
    let damaged = check(file(&name), &mut &hole[..], rules);
    assert!(matches!(damaged, Err(Refusal::Damaged { .. })));
    assert!(matches!(refusal(&format!("{name}.partial"), &hole), Refusal::Damaged { .. }));
}

#[test]
fn backup_history_files_are_checked_and_empty_ones_do_not_stop_archiving() {
    let name = "000000010000000000000002.00000028.backup";
    let text =
        b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nSTOP WAL LOCATION: 0/2000100\n";
    let checked = check(file(name), &mut &text[..], Rules::default()).expect("a label");
    assert!(checked.warnings.is_empty());
    for empty in [&b""[..], &[0; 100]] {
        let checked = check(file(name), &mut &empty[..], Rules::default()).expect("an empty one");
        assert_eq!(checked.warnings.len(), 1);
    }
    let other = b"START WAL LOCATION: 0/3000028 (file 000000010000000000000003)\n";
    assert!(matches!(refusal(name, other), Refusal::Mismatch { .. }));
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// The first segment of a timeline starts with its parent's pages up to the switch.
#[test]
fn a_timeline_that_begins_within_a_segment_is_accepted() {
    let (name, mut segment) = segments("18.6").swap_remove(0);
    for page in segment.chunks_mut(8192).skip(5) {
        page[4..8].copy_from_slice(&2u32.to_le_bytes());
    }
    let child = format!("00000002{}", &name[8..]);
    let checked = check(file(&child), &mut &segment[..], Rules::default()).expect("a segment");
    assert!(checked.contents.expect("a segment's").records > 0);
    // On the parent's timeline, the segment is refused.
    assert!(matches!(refusal(&name, &segment), Refusal::Damaged { offset: 40960, .. }));
}

/// Start and end of the segment returned by [`begun_late`].
const SEGMENT: (u64, u64) = (0x22 << 20, 0x23 << 20);

fn history_of_2(end: u64) -> History {
    let ancestors = vec![Ancestor { timeline: 1, end: Lsn(end), reason: String::new() }];
    History { timeline: 2, ancestors, without_log: Vec::new() }
}

/// Writes timeline 1 in segment 0x22, at least up to an LSN.
fn parent_until(end: u64) -> LogWriter {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    (writer.start, writer.previous) = (Lsn(SEGMENT.0), Lsn(SEGMENT.0 - 32));
    while writer.position().0 < end {
        // An XLOG_NOOP record with some text.
        writer.main_data(rmid::XLOG, 0x20, &[7; 500]);
    }
    writer
}

/// Returns a segment in which timeline 2 starts without a page of its own: a segment switch follows on the
/// page on which timeline 1 ended.
fn begun_late() -> Vec<u8> {
    let mut writer = parent_until(SEGMENT.0 + 50_000);
    // XLOG_END_OF_RECOVERY: a time, the timeline, the previous timeline, wal_level and padding.
    let end_of_recovery =
        [&0i64.to_le_bytes()[..], &2u32.to_le_bytes(), &1u32.to_le_bytes(), &1i32.to_le_bytes(), &[0; 4]];
    writer.main_data(rmid::XLOG, 0x90, &end_of_recovery.concat());
    writer.record(rmid::XLOG, 0x40, 0, &[]);
    writer.bytes.resize(1 << 20, 0);
    writer.bytes
}

/// Returns a segment at whose very end timeline 2 starts: its first record continues in the next segment.
fn begun_last() -> Vec<u8> {
    let mut writer = parent_until(SEGMENT.1);
    writer.bytes.truncate(1 << 20);
    writer.bytes
}

#[test]
fn a_segment_of_older_pages_is_accepted_only_where_the_timeline_begins_in_it() {
    let name = file("000000020000000000000022");
    let check_by = |content: &[u8], histories: &[History]| {
        check(name, &mut &content[..], Rules { histories, ..Rules::default() })
    };
    let is_refused = |content: &[u8], histories: &[History]| {
        matches!(check_by(content, histories), Err(Refusal::Timeline { expected: 2, found: 1 }))
    };
    // The timeline's first record shows it, with or without its history.
    check_by(&begun_late(), &[]).expect("a segment");
    check_by(&begun_late(), &[history_of_2(SEGMENT.0 + 50_400)]).expect("a segment");
    assert!(matches!(
        check(file("000000030000000000000022"), &mut &begun_late()[..], Rules::default()),
        Err(Refusal::Timeline { expected: 3, found: 1 })
    ));
    // Only the timeline's history shows it.
    assert!(is_refused(&begun_last(), &[]));
    check_by(&begun_last(), &[history_of_2(SEGMENT.1 - 100)]).expect("a segment");
    // The timeline starts elsewhere: before pages of its parent, at the start of this segment or of the next
    // one, or later.
    for begin in [SEGMENT.0 - 100, SEGMENT.0, SEGMENT.0 + 50_000, SEGMENT.1, SEGMENT.1 + 100] {
        assert!(is_refused(&begun_last(), &[history_of_2(begin)]), "{begin:X}");
    }
    // If two histories disagree, one belongs to another archive.
    check_by(&begun_last(), &[history_of_2(SEGMENT.1 + 100), history_of_2(SEGMENT.1 - 100)])
        .expect("a segment");
    // The same applies to the last segment of an abandoned timeline.
    let partial = file("000000020000000000000022.partial");
    check(partial, &mut &begun_late()[..], Rules::default()).expect("a beginning");
    assert!(check(partial, &mut &begun_last()[..], Rules::default()).is_err());
}

#[test]
fn pages_of_the_parent_behind_the_end_of_a_timeline_are_no_log() {
    let mut writer = parent_until(SEGMENT.0 + 50_000);
    writer.info.timeline = 2;
    while writer.position().0 < SEGMENT.0 + 200_000 {
        writer.main_data(rmid::XLOG, 0x20, &[8; 300]);
    }
    let end = writer.position();
    let mut segment = writer.bytes;
    segment.resize(segment.len().next_multiple_of(8192), 0);
    // The file was recycled from the parent's segment at the same LSN.
    segment.extend(&parent_until(SEGMENT.1).bytes[segment.len()..1 << 20]);
    let name = "000000020000000000000022";
    assert!(matches!(refusal(name, &segment), Refusal::Incomplete { end: found, .. } if found == end));
    check(file(&format!("{name}.partial")), &mut &segment[..], Rules::default()).expect("a beginning");
    let ancestors = vec![Ancestor { timeline: 2, end, reason: String::new() }];
    let history = History { timeline: 3, ancestors, without_log: Vec::new() };
    let rules = Rules { histories: std::slice::from_ref(&history), ..Rules::default() };
    let checked = check(file(name), &mut &segment[..], rules).expect("the timeline's end");
    assert!(checked.warnings[0].contains("the timeline ends in this segment"), "{:?}", checked.warnings);
}

#[test]
fn a_renamed_segment_is_refused_whatever_is_known_of_the_timeline() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 2);
    let archive = archive_of(root.path(), &files);
    let wal = root.path().join("pg_wal");
    let options = PushOptions::default().look_ahead(0);
    let push_as = |name: &str, content: &[u8]| {
        std::fs::write(wal.join(name), content).expect("a segment");
        push(&archive, &wal.join(name), &options).asked
    };
    let is_refused = |name: &str| {
        let refused = push_as(name, &files[1].1);
        matches!(refused, Err(PushError::Refused { refusal: Refusal::Timeline { .. }, .. }))
    };
    assert!(is_refused("000000020000000000000021") && is_refused("000000030000000000000021"));
    // The timeline's history is archived, but no longer next to the segment.
    push_as("00000002.history", b"1\t0/22FFF00\tno recovery target specified\n").expect("archived");
    std::fs::remove_file(wal.join("00000002.history")).expect("removed");
    assert!(is_refused("000000020000000000000021"));
    push_as("000000020000000000000022", &begun_last()).expect("archived");
}

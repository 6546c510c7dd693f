//! What is refused and what is accepted, table by table.

use walden_archive::check::{Refusal, Rules, check};
use walden_archive::name::ArchivedFile;

use crate::material::segments;

fn file(name: &str) -> ArchivedFile {
    ArchivedFile::parse(name).expect("a name")
}

/// Why a file is refused.
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
                // The segment that the server was writing when it was stopped.
                Err(Refusal::Damaged { fault, .. }) if fault.is_unwritten() => {
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
    }
}

#[test]
fn a_tail_of_zeros_is_damage_unless_the_timeline_ended_there() {
    let (name, segment) = segments("18.6").swap_remove(0);
    let mut cut = segment.clone();
    let at = 20 * 8192;
    cut[at..].fill(0);
    assert!(matches!(refusal(&name, &cut), Refusal::Damaged { .. }));
    // The last segment of a timeline that was left.
    let partial = check(file(&format!("{name}.partial")), &mut &cut[..], Rules::default()).expect("partial");
    let end: walden_format::lsn::Lsn = partial.contents.expect("a segment's").end.parse().expect("an LSN");
    let history = walden_archive::history::History {
        timeline: 2,
        ancestors: vec![walden_archive::history::Ancestor { timeline: 1, end, reason: String::new() }],
    };
    let rules = Rules { histories: std::slice::from_ref(&history), ..Rules::default() };
    let checked = check(file(&name), &mut &cut[..], rules).expect("the timeline's end");
    assert!(checked.warnings[0].contains("the timeline ends in this segment"), "{:?}", checked.warnings);
    // Even so, damage before pages that belong there is damage.
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

/// The first segment of a timeline begins with its parent's pages, as many as there were before the switch.
#[test]
fn a_timeline_that_begins_within_a_segment_is_accepted() {
    let (name, mut segment) = segments("18.6").swap_remove(0);
    for page in segment.chunks_mut(8192).skip(5) {
        page[4..8].copy_from_slice(&2u32.to_le_bytes());
    }
    let child = format!("00000002{}", &name[8..]);
    let checked = check(file(&child), &mut &segment[..], Rules::default()).expect("a segment");
    assert!(checked.contents.expect("a segment's").records > 0);
    // On its parent's timeline it is not.
    assert!(matches!(refusal(&name, &segment), Refusal::Damaged { offset: 40960, .. }));
}

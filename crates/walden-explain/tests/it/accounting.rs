//! The sums are exact: over whole runs, cut ranges, damaged segments, several segments, and for any number of
//! threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use walden_explain::group::{Dimension, ViewSpec};
use walden_explain::{Explanation, Timeline};
use walden_format::lsn::Lsn;
use walden_format::record::Fork;
use walden_format::version::Major;
use walden_source::inventory::Inventory;
use walden_testing::writer::PAGE;

use crate::material::{
    GOLDEN, Log, SEGMENT, document, explain_folder, explain_golden, golden, range, record_starts, request,
    unpack,
};

/// All sums of an explanation add up to the bytes of its ranges.
pub fn check(explanation: &Explanation) {
    let bytes: u64 = explanation.ranges.iter().map(|range| range.end.bytes_since(range.start)).sum();
    assert_eq!(explanation.file_bytes, bytes);
    assert_eq!(explanation.buckets.total(), bytes);
    assert_eq!(explanation.cells.iter().map(|(_, tally)| tally.bytes()).sum::<u64>(), bytes);
    assert_eq!(explanation.cells.iter().map(|(_, tally)| tally.records).sum::<u64>(), explanation.records);
    for view in &explanation.views {
        let rows: u64 = view.rows.iter().map(|(_, tally)| tally.bytes()).sum();
        assert_eq!(rows + view.rest.1.bytes(), bytes, "{:?}", view.spec);
    }
    let sums = explanation.transaction_sums;
    assert_eq!(sums.bytes + sums.system_bytes, explanation.record_bytes());
    assert!(sums.aborted_bytes + sums.aborted_subtransaction_bytes <= sums.bytes);
    let listed: u64 = explanation.transactions.iter().map(|one| one.bytes).sum();
    let are_all_listed = sums.committed + sums.aborted + sums.open == explanation.transactions.len() as u64;
    assert!(if are_all_listed { listed == sums.bytes } else { listed <= sums.bytes });
    // A view by transaction only has the same sums.
    let Some(by_xid) = explanation.views.iter().find(|view| view.spec == ViewSpec::by(Dimension::Xid)) else {
        return;
    };
    let mut of_xid = BTreeMap::new();
    explanation.transactions.iter().for_each(|one| *of_xid.entry(one.xid).or_insert(0) += one.bytes);
    for (xid, bytes) in of_xid {
        let row = by_xid.rows.iter().find(|(key, _)| key.xid == Some(xid));
        let in_view = row.map_or(0, |(_, tally)| tally.bytes());
        assert!(
            if are_all_listed { bytes == in_view } else { bytes <= in_view },
            "{xid}: {bytes}, {in_view}"
        );
    }
}

/// Each byte has one cause, and the causes are sorted.
pub fn check_causes(explanation: &Explanation) {
    let document = document(explanation);
    let bytes: u64 = document.causes.iter().map(|cause| cause.bytes).sum();
    assert_eq!(bytes, document.wal_bytes);
    assert_eq!(document.causes.iter().map(|cause| cause.records).sum::<u64>(), explanation.records);
    let images: u64 = explanation.cells.iter().map(|(_, tally)| tally.images).sum();
    assert_eq!(document.causes.iter().map(|cause| cause.images).sum::<u64>(), images);
    assert!(document.causes.is_sorted_by_key(|cause| std::cmp::Reverse(cause.bytes)));
    let mut keys: Vec<_> =
        document.causes.iter().map(|cause| (cause.activity, &cause.relation, cause.mechanism)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), document.causes.len());
}

pub fn all_views() -> Vec<ViewSpec> {
    let by = |dimensions: &[Dimension]| ViewSpec { dimensions: dimensions.to_vec() };
    vec![
        by(&[Dimension::Relation]),
        by(&[Dimension::Record, Dimension::Database]),
        by(&[Dimension::Xid]),
        by(&[Dimension::Time, Dimension::Relation]),
        by(&[Dimension::Checkpoint]),
    ]
}

#[test]
fn whole_segments_add_up_in_every_view() {
    for version in GOLDEN {
        let inventory = Inventory::search(&[golden(version)]).unwrap();
        let explanations = explain_golden(version, &request(all_views()));
        explanations.iter().for_each(check);
        explanations.iter().for_each(check_causes);
        assert!(explanations.iter().all(|one| one.damage.is_none()), "{version}");
        let bytes: u64 = explanations.iter().map(|one| one.file_bytes).sum();
        assert_eq!(bytes, (inventory.segments().count() * SEGMENT) as u64, "{version}");
        let records: u64 = explanations.iter().map(|one| one.records).sum();
        assert_eq!(records, record_starts(&inventory).len() as u64, "{version}");
    }
}

#[test]
fn the_sums_do_not_depend_on_the_number_of_threads() {
    for version in ["15.18-lz4", "18.6"] {
        let of = |threads| {
            let explanation = explain_golden(version, &request(all_views()).threads(threads)).remove(0);
            let views: Vec<_> = explanation.views.iter().map(|view| view.rows.clone()).collect();
            (explanation.cells, views, explanation.transactions, explanation.transaction_sums)
        };
        assert_eq!(of(1), of(3), "{version}");
    }
}

/// Records of any kind, of catalogs, tables, indexes and no relation, with and without images.
#[test]
fn causes_add_up_for_any_records() {
    let mut state = 7_u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for version in Major::all() {
        for _ in 0..6 {
            let mut log = Log::with_version(version);
            for _ in 0..400 {
                let (manager, info) = (random(23) as u8, (random(16) << 4) as u8);
                let relation = if random(4) == 0 { 1249 } else { 16_380 + random(5) };
                let (xid, size) = (random(4) * 700, random(900) as usize);
                // The image headers are those of 15 and later.
                let has_images = version >= Major::V15;
                match random(3) {
                    // A record of the resource manager XLOG needs valid content, as checkpoints have.
                    _ if manager == 0 && has_images => {
                        log.hint_image(relation, Fork(random(3) as u8), 24 + size)
                    }
                    _ if manager == 0 => log.heap_insert(xid, relation, 1 + size),
                    0 if has_images => log.image((manager, info), xid, relation, Fork::MAIN, 24 + size),
                    1 => log.record((manager, info), xid, relation, &[(7, b"x"), (8, b"")], &[0x22; 30]),
                    _ => log.block_record(manager, info, xid, relation, 1 + size),
                };
            }
            let explanation = log.explain(&request(Vec::new()));
            assert!(explanation.damage.is_none(), "{:?}", explanation.damage);
            assert_eq!(explanation.records, 400);
            check_causes(&explanation);
        }
    }
}

/// Two adjacent ranges have the sums of the combined range, except for the page header between them.
#[test]
fn adjacent_ranges_add_up() {
    for version in ["15.18", "17.11", "18.6"] {
        let inventory = Inventory::search(&[golden(version)]).unwrap();
        let starts = record_starts(&inventory);
        for step in 1..8 {
            let (a, b, c) = (step * 13, starts.len() * step / 9, starts.len() - 1 - step);
            let [a, b, c] = [a, b, c].map(|at| Some(starts[at]));
            let of = |from, to| explain_folder(&golden(version), &range(from, to));
            let (left, right, both) = (of(a, b), of(b, c), of(a, c));
            [&left, &right, &both].into_iter().for_each(check);
            assert_eq!(left.records + right.records, both.records, "{version} {b:?}");
            let header = both.file_bytes - left.file_bytes - right.file_bytes;
            assert!([0, 24, 40].contains(&header), "{version} {b:?}: {header}");
            assert_eq!(Some(both.ranges[0].start), a);
        }
    }
}

/// Asserts that the ranges before and from each of these positions are adjacent and add up to the whole WAL.
/// Returns the sums of the whole.
fn expect_whole_log_of_two_ranges(folder: &Path, cuts: impl IntoIterator<Item = Lsn>) -> Explanation {
    let of = |from, to| {
        let explanation = explain_folder(folder, &range(from, to).views(all_views()));
        check(&explanation);
        explanation
    };
    let whole = of(None, None);
    assert!(whole.damage.is_none());
    for at in cuts {
        let (left, right) = (of(None, Some(at)), of(Some(at), None));
        let start = right.ranges.first().map_or(whole.ranges[0].end, |range| range.start);
        assert_eq!(left.ranges[0].end, start, "{at}");
        assert_eq!(left.file_bytes + right.file_bytes, whole.file_bytes, "{at}");
        assert_eq!(left.records + right.records, whole.records, "{at}");
    }
    whole
}

/// Ends a page with a record. Returns the position after it.
fn fill_page(log: &mut Log) -> Lsn {
    let room = |log: &Log| PAGE - log.writer.bytes.len() % PAGE;
    if room(log) < 1000 {
        log.heap_insert(9, 16384, 2000);
    }
    log.heap_insert(9, 16384, room(log) - (24 + 20 + 2 + 3));
    let page = log.writer.position();
    assert_eq!(page.0 % PAGE as u64, 0);
    page
}

/// The sums of ranges that meet outside of records add up too: at or in the header of a page or segment, and
/// in the padding after a switch.
#[test]
fn ranges_that_meet_between_records_add_up() {
    let mut log = Log::new();
    (0..100).for_each(|_| {
        log.heap_insert(9, 16384, 600);
    });
    let switch = log.writer.position();
    log.writer.switch();
    let segment = log.writer.position();
    (0..100).for_each(|_| {
        log.heap_insert(9, 16384, 600);
    });
    let page = fill_page(&mut log);
    (0..10).for_each(|_| {
        log.heap_insert(9, 16384, 600);
    });
    let of_switch = [0, 8, 24, 32, 8192, 9000].map(|bytes| switch.plus(bytes));
    let of_segment = [0, 8, 40, 48].map(|bytes| segment.plus(bytes));
    let of_page = [0, 8, 24, 32].map(|bytes| page.plus(bytes));
    let folder = tempfile::tempdir().unwrap();
    log.writer.save(folder.path());
    let cuts = of_switch.into_iter().chain(of_segment).chain(of_page);
    let whole = expect_whole_log_of_two_ranges(folder.path(), cuts);
    assert_eq!(whole.file_bytes, 2 * SEGMENT as u64, "{:?}", whole.ranges);
    let from_segment = explain_folder(folder.path(), &range(Some(segment), None));
    assert_eq!((from_segment.ranges[0].start, from_segment.file_bytes), (segment, SEGMENT as u64));
}

/// Bytes after the last record belong to the range that they start in, even if the range has no record.
#[test]
fn ranges_that_meet_at_the_end_of_the_log_add_up() {
    let mut log = Log::new();
    let insert = |log: &mut Log, until: usize| {
        while log.writer.bytes.len() < until {
            log.heap_insert(9, 16384, 600);
        }
    };
    let expect = |log: &Log, cuts: &[Lsn]| {
        let folder = tempfile::tempdir().unwrap();
        log.writer.save(folder.path());
        let whole = expect_whole_log_of_two_ranges(folder.path(), cuts.iter().copied());
        assert_eq!(whole.ranges[0].end.0 % SEGMENT as u64, 0);
    };
    let around = |lsn: Lsn| [Lsn(lsn.0 - 8), lsn, lsn.plus(8), lsn.plus(2 * PAGE as u64)];

    insert(&mut log, 3 * PAGE + 1000);
    expect(&log, &around(log.writer.position()));
    let page = fill_page(&mut log);
    expect(&log, &around(page));

    // The last record continues in the next segment.
    insert(&mut log, SEGMENT - 700);
    let last = log.heap_insert(9, 16384, 3000);
    let segment = log.writer.start.plus(SEGMENT as u64);
    let of_segment = [0, 8, 40, 48].map(|bytes| segment.plus(bytes));
    let cuts = [around(last), of_segment, around(log.writer.position())].concat();
    expect(&log, &cuts);
    // A record over more than one page.
    insert(&mut log, 2 * SEGMENT - 9000);
    let long = log.heap_insert(9, 16384, 30_000);
    let third = log.writer.start.plus(2 * SEGMENT as u64);
    assert!(long < third && log.writer.position() > third.plus(2 * PAGE as u64));
    expect(&log, &[0, 8, 40, 48, 9000].map(|bytes| third.plus(bytes)));
    log.writer.bytes.truncate(2 * SEGMENT);
    // The next segment is missing.
    log.writer.bytes.truncate(SEGMENT);
    expect(&log, &[Lsn(last.0 - 8), last, last.plus(8), Lsn(segment.0 - 8)]);
}

/// A record that a crash interrupted belongs to the range that it starts in.
#[test]
fn a_range_may_start_with_a_record_that_a_crash_cut_off() {
    let mut log = Log::new();
    let mut cuts = Vec::new();
    for _ in 0..2 {
        log.writer.crash_in_record(20_000, 9000);
        (0..9).for_each(|_| {
            log.heap_insert(9, 16384, 600);
        });
        let last = log.heap_insert(9, 16384, 600);
        cuts.extend([last, last.plus(8), log.writer.position()]);
    }
    let folder = tempfile::tempdir().unwrap();
    log.writer.save(folder.path());
    let whole = expect_whole_log_of_two_ranges(folder.path(), cuts);
    let from_start = explain_folder(folder.path(), &range(Some(log.writer.start), None));
    check(&from_start);
    assert_eq!(from_start.file_bytes, whole.file_bytes);
}

#[test]
fn damage_ends_the_sums_at_the_record_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = unpack("17.11", folder.path()).remove(0);
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let (start, starts) = (inventory.runs[0].start(), record_starts(&inventory));
    let intact = fs::read(&path).unwrap();
    for at in [100, starts.len() / 3, starts.len() / 2] {
        let record = starts[at];
        let mut content = intact.clone();
        // Within the record's header: its transaction ID.
        content[record.bytes_since(start) as usize + 5] ^= 0x20;
        fs::write(&path, content).unwrap();
        let explanation = explain_folder(folder.path(), &request(all_views()));
        check(&explanation);
        assert_eq!(explanation.records, at as u64);
        let damage = explanation.damage.as_ref().unwrap();
        assert_eq!((damage.lsn, damage.path.as_path()), (record, path.as_path()));
        assert!(damage.offset.abs_diff(record.bytes_since(start)) < 24, "{}", damage.offset);
        assert!(explanation.ranges[0].end <= record);
    }
}

#[test]
fn records_across_segments_are_counted_once() {
    let mut log = Log::new();
    let mut records = 0;
    while log.writer.bytes.len() < 3 * SEGMENT - 8192 {
        log.heap_insert(9, 16384, 3000 + records % 5000);
        records += 1;
    }
    let explanation = log.explain(&request(all_views()));
    check(&explanation);
    assert_eq!(explanation.records, records as u64);
    let heap = explanation.cells.iter().find(|(cell, _)| cell.kind.is_some()).unwrap().1;
    assert_eq!(heap.records, records as u64);
    let bytes: usize = log.writer.records.iter().map(|(_, bytes)| bytes.len().next_multiple_of(8)).sum();
    assert_eq!(explanation.record_bytes(), bytes as u64);
    // Only the middle segment starts with the end of a record.
    let middle = Lsn(6 << 20);
    let alone = log.explain(&range(Some(middle), Some(middle.plus(SEGMENT as u64))));
    check(&alone);
    assert!(alone.records > 0 && alone.records < explanation.records);
}

/// Commits have microseconds, so a bound within a second may be between two of them, even in different
/// segments.
#[test]
fn times_within_a_second_are_positions_between_its_transactions() {
    /// Seconds from 1970 to 2000, the epoch of PostgreSQL's timestamps.
    const EPOCH: i64 = 946_684_800;
    let mut log = Log::new();
    let mut starts = Vec::new();
    for (xid, micros, inserts) in
        [(11, 10_200_000, 1), (12, 10_300_001, 1), (13, 10_900_000, 20), (14, 12_000_000, 1)]
    {
        starts.push(log.heap_insert(xid, 16384, 30));
        for _ in 1..inserts {
            log.heap_insert(xid, 16384, 60_000);
        }
        log.end_at(xid, true, micros, &[]);
    }
    // No transaction ends before the first one.
    starts[0] = Lsn(0);
    let folder = tempfile::tempdir().unwrap();
    log.writer.save(folder.path());
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    assert_eq!(inventory.runs[0].segments.len(), 2);
    for threads in [1, 2] {
        let timeline = Timeline::read(&inventory.runs, threads, |_| {});
        for (micros, transaction) in [
            (9_500_000, Some(0)),
            (10_000_000, Some(0)),
            (10_200_000, Some(0)),
            (10_200_001, Some(1)),
            (10_300_001, Some(1)),
            (10_300_002, Some(2)),
            (10_900_000, Some(2)),
            (10_900_001, Some(3)),
            (11_000_000, Some(3)),
            (12_000_000, Some(3)),
            (12_000_001, None),
            (13_000_000, None),
        ] {
            let expected = transaction.map(|transaction: usize| starts[transaction]);
            assert_eq!(timeline.position_of(EPOCH * 1_000_000 + micros), expected, "{micros}");
        }
    }
}

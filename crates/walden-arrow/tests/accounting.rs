//! Rows add up to the sums of `walden explain`, however the WAL is divided.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array as _, AsArray, RecordBatch};
use arrow::compute::{cast, concat_batches, sum};
use arrow::datatypes::{DataType, UInt32Type, UInt64Type};
use walden_arrow::{Batches, Part, ReadError, ReadOptions, Table, is_divisible, read, read_part};
use walden_explain::tally::Bucket;
use walden_explain::{Bound, Explanation, Request, explain};
use walden_format::lsn::Lsn;
use walden_format::rmgr::info::xlog;
use walden_format::rmgr::rmid;
use walden_format::transam::FIRST_NORMAL_XID;
use walden_format::version::Major;
use walden_source::inventory::{Inventory, Run};
use walden_source::names::Names;
use walden_testing::writer::{LogWriter, PAGE};

fn golden() -> Vec<(PathBuf, Inventory)> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden"));
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<(PathBuf, Inventory)> = entries
        .filter(|path| path.is_dir())
        .map(|path| (path.clone(), Inventory::search(&[path]).unwrap()))
        .filter(|(_, inventory)| !inventory.runs.is_empty())
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(found.len() > 5, "testdata/golden has {} folders of segments", found.len());
    found
}

fn options(run: &Run) -> ReadOptions {
    ReadOptions::new(Arc::new(Names::builtin(Some(run.version))), 2).batch_rows(1000)
}

fn table(runs: &[Run], table: Table, options: &ReadOptions) -> RecordBatch {
    let mut batches = Vec::new();
    let result = read(runs, table, options, |batch| {
        // The blocks of a record, up to 33, are in one batch; the sums are one batch.
        assert!(batch.num_rows() > 0);
        assert!(batch.num_rows() < options.batch_rows + 33 || table == Table::Relations);
        batches.push(batch);
        ControlFlow::Continue(())
    });
    match result {
        Ok(()) => {}
        // Some of the golden segments end in damage; the rows before it count.
        Err(ReadError::Damaged(_)) => {}
        Err(error) => panic!("{table:?}: {error}"),
    }
    concat_batches(&options.schema(table), &batches).unwrap()
}

fn total(batch: &RecordBatch, column: &str) -> u64 {
    let array = cast(batch.column_by_name(column).unwrap(), &DataType::UInt64).unwrap();
    sum(array.as_primitive::<UInt64Type>()).unwrap_or_default()
}

fn explained(runs: &[Run], from: Option<Lsn>, to: Option<Lsn>) -> Explanation {
    let bound = |lsn: Option<Lsn>| lsn.map(Bound::Lsn);
    explain(runs, &Request::new(2).from(bound(from)).to(bound(to)), |_| ()).unwrap()
}

#[test]
fn sums_are_those_of_explain() {
    for (path, inventory) in golden() {
        let runs = &inventory.runs[..1];
        let options = options(&runs[0]);
        let explanation = explained(runs, None, None);
        let records = table(runs, Table::Records, &options);
        let framing = table(runs, Table::Framing, &options);
        let path = path.display();
        assert_eq!(total(&records, "bytes") + total(&framing, "bytes"), explanation.file_bytes, "{path}");
        assert_eq!(records.num_rows() as u64, explanation.records, "{path}");
        assert_eq!(total(&records, "fpi_length"), explanation.buckets.images(), "{path}");
        let segments = table(runs, Table::Segments, &options);
        assert_eq!(total(&segments, "bytes"), explanation.file_bytes, "{path}");
        assert_eq!(total(&segments, "records"), explanation.records, "{path}");
        if explanation.damage.is_none() {
            let relations = table(runs, Table::Relations, &options);
            assert_eq!(total(&relations, "bytes"), explanation.file_bytes, "{path}");
        }
        let blocks = table(runs, Table::Blocks, &options);
        assert_eq!(total(&blocks, "fpi_length"), explanation.buckets.images(), "{path}");
        assert_eq!(total(&blocks, "data_length"), total(&records, "block_data_length"), "{path}");
        assert_eq!(blocks.num_rows() as u64, total(&records, "block_count"), "{path}");
    }
}

#[test]
fn framing_has_the_buckets_of_explain() {
    for (path, inventory) in golden() {
        let runs = &inventory.runs[..1];
        let explanation = explained(runs, None, None);
        let framing = table(runs, Table::Framing, &options(&runs[0]));
        for bucket in Bucket::all().filter(|bucket| bucket.is_framing()) {
            let found = framing_bytes(&framing, bucket);
            assert_eq!(found, explanation.buckets.get(bucket), "{}: {}", path.display(), bucket.name());
        }
    }
}

fn framing_bytes(framing: &RecordBatch, bucket: Bucket) -> u64 {
    let labels = cast(framing.column_by_name("bucket").unwrap(), &DataType::Utf8).unwrap();
    let labels = labels.as_string::<i32>();
    let bytes = framing.column_by_name("bytes").unwrap().as_primitive::<UInt64Type>();
    (0..labels.len()).filter(|row| labels.value(*row) == bucket.name()).map(|row| bytes.value(row)).sum()
}

#[test]
fn parts_have_the_rows_of_the_whole() {
    for (path, inventory) in golden() {
        let whole = [Part::all(&inventory.runs[0])];
        let options = options(&inventory.runs[0]).threads(1);
        for of in Table::all().filter(|table| is_divisible(*table)) {
            let expected = table(&inventory.runs[..1], of, &options);
            for count in [1, 2, 3, 7] {
                let mut batches = Vec::new();
                for part in Part::divide(&whole, count) {
                    let result = read_part(&part, of, &options, |batch| {
                        batches.push(batch);
                        ControlFlow::Continue(())
                    });
                    if result.is_err() {
                        break;
                    }
                }
                let found = concat_batches(&options.schema(of), &batches).unwrap();
                let texts = |batch: &RecordBatch| -> Vec<String> {
                    let columns = batch.columns().iter().map(|column| format!("{:?}", plain(column)));
                    columns.collect()
                };
                assert_eq!(texts(&found), texts(&expected), "{} {of:?} in {count}", path.display());
            }
        }
    }
}

fn plain(array: &arrow::array::ArrayRef) -> arrow::array::ArrayRef {
    match array.data_type() {
        DataType::Dictionary(..) => cast(array, &DataType::Utf8).unwrap(),
        _ => array.clone(),
    }
}

#[test]
fn ranges_are_those_of_explain() {
    for (path, inventory) in golden() {
        let runs = &inventory.runs[..1];
        let all = table(runs, Table::Records, &options(&runs[0]));
        let starts = all.column_by_name("start_lsn").unwrap().as_primitive::<UInt64Type>();
        let at = |tenth: usize| Lsn(starts.value((starts.len() - 1) * tenth / 10));
        for (from, to) in [(None, Some(at(3))), (Some(at(4)), None), (Some(at(2)), Some(at(9)))] {
            let options = options(&runs[0]).from(from).to(to);
            let explanation = explained(runs, from, to);
            let records = table(runs, Table::Records, &options);
            let framing = table(runs, Table::Framing, &options);
            let bytes = total(&records, "bytes") + total(&framing, "bytes");
            assert_eq!(bytes, explanation.file_bytes, "{} {from:?} {to:?}", path.display());
            assert_eq!(records.num_rows() as u64, explanation.records);
        }
    }
}

/// Returns the sums of a range from the tables, checked against `walden explain`: records, their bytes, bytes
/// of each kind of framing.
fn sums_of(run: &Run, from: Option<Lsn>, to: Option<Lsn>) -> Vec<u64> {
    let runs = std::slice::from_ref(run);
    let options = options(run).from(from).to(to);
    let framing = table(runs, Table::Framing, &options);
    let segments = table(runs, Table::Segments, &options);
    let buckets = || Bucket::all().filter(|bucket| bucket.is_framing());
    let mut sums = vec![total(&segments, "records"), total(&segments, "record_bytes")];
    sums.extend(buckets().map(|bucket| framing_bytes(&framing, bucket)));
    let explanation = explained(runs, from, to);
    let mut expected = vec![explanation.records, explanation.record_bytes()];
    expected.extend(buckets().map(|bucket| explanation.buckets.get(bucket)));
    assert_eq!(sums, expected, "{from:?} {to:?}");
    assert_eq!(total(&segments, "bytes"), explanation.file_bytes, "{from:?} {to:?}");
    let mut of_parts = 0;
    for part in Part::divide(&[Part::all(run)], run.segments.len()) {
        let result = read_part(&part, Table::Framing, &options, |batch| {
            of_parts += total(&batch, "bytes");
            ControlFlow::Continue(())
        });
        if result.is_err() {
            break;
        }
    }
    assert_eq!(of_parts, total(&framing, "bytes"), "{from:?} {to:?}");
    sums
}

/// Asserts that the ranges before and after each of these positions together have the sums of the whole run.
fn expect_whole_of_two_ranges(run: &Run, positions: impl IntoIterator<Item = u64>) {
    let whole = sums_of(run, None, None);
    for position in positions {
        let at = Some(Lsn(position));
        let (left, right) = (sums_of(run, None, at), sums_of(run, at, None));
        let both: Vec<u64> = left.iter().zip(&right).map(|(left, right)| left + right).collect();
        assert_eq!(both, whole, "{} {at:?}", run.segments[0].path.display());
    }
}

/// Positions that divide a run into two ranges: at and within records, in page headers, around segment
/// starts, after the last record, and, with `in_padding`, in the padding after a switch instead of these.
fn dividing_positions(run: &Run, in_padding: bool) -> BTreeSet<u64> {
    let records = table(std::slice::from_ref(run), Table::Records, &options(run));
    let starts = records.column_by_name("start_lsn").unwrap().as_primitive::<UInt64Type>().values();
    let kinds = cast(records.column_by_name("record_type").unwrap(), &DataType::Utf8).unwrap();
    let kinds = kinds.as_string::<i32>();
    let ends = records.column_by_name("end_lsn").unwrap().as_primitive::<UInt64Type>();
    let page_bytes = run.geometry().page_bytes();
    let (last, end) = (starts[starts.len() - 1], ends.value(starts.len() - 1));
    let mut positions = BTreeSet::from([last + 8, end, end + 8]);
    // A page with a record that starts immediately after its header.
    let pages: Vec<u64> =
        starts.iter().filter(|start| *start % page_bytes == 24).map(|start| start - 24).collect();
    for page in pages.iter().step_by(pages.len() / 2 + 1) {
        positions.extend([0, 8, 24, 32].map(|bytes| *page + bytes));
    }
    for start in starts.iter().step_by(starts.len() / 3 + 1) {
        positions.extend([*start, start + 8]);
    }
    for segment in &run.segments[1..] {
        let start = segment.start.0;
        positions.extend([start - 8, start, start + 8, start + 40, start + 48]);
    }
    positions.retain(|position| *position < run.end().0);
    let mut padding: Vec<Range<u64>> = Vec::new();
    for row in (0..starts.len()).filter(|row| kinds.value(*row) == "SWITCH") {
        let (start, end) = (starts[row], ends.value(row));
        let segment_end = end.next_multiple_of(run.segment_size.bytes());
        let page = end.next_multiple_of(page_bytes) + page_bytes;
        positions.extend([start + 8, end, end + 8, page, page + 8, page + 24, page + 40]);
        positions.extend([segment_end - page_bytes, segment_end - 8]);
        padding.push(start + 1..segment_end);
    }
    positions.retain(|position| padding.iter().any(|range| range.contains(position)) == in_padding);
    positions
}

fn assert_that_ranges_add_up(in_padding: bool) {
    let mut count = 0;
    for (path, inventory) in golden() {
        if !["15.18-zstd", "16.14", "18.6"].iter().any(|name| path.ends_with(name)) {
            continue;
        }
        for run in &inventory.runs {
            let positions = dividing_positions(run, in_padding);
            count += positions.len();
            expect_whole_of_two_ranges(run, positions);
        }
    }
    assert!(count > 15, "{count} positions");
}

#[test]
fn ranges_that_meet_add_up() {
    assert_that_ranges_add_up(false);
}

#[test]
fn ranges_that_meet_in_padding_add_up() {
    assert_that_ranges_add_up(true);
}

/// Inserts records until the WAL has this many bytes. Returns the LSN of the last one.
fn fill(log: &mut LogWriter, bytes: usize) -> Lsn {
    while log.bytes.len() < bytes {
        log.main_data(rmid::XLOG, xlog::NOOP, &[7; 600]);
    }
    log.previous
}

/// Bytes after the last record belong to the range in which they start, even without a record.
#[test]
fn ranges_that_meet_at_the_end_of_the_log_add_up() {
    let expect = |log: &LogWriter, positions: &[Lsn]| {
        let folder = tempfile::tempdir().unwrap();
        log.save(folder.path());
        let inventory = Inventory::search(&[folder.path()]).unwrap();
        expect_whole_of_two_ranges(&inventory.runs[0], positions.iter().map(|lsn| lsn.0));
    };
    let around = |lsn: Lsn| [Lsn(lsn.0 - 8), lsn, lsn.plus(8)];
    let mut log = LogWriter::new(Major::V15);
    let segment_bytes = log.info.segment_size.bytes() as usize;
    let segment = log.start.plus(segment_bytes as u64);
    let last = fill(&mut log, 3 * PAGE + 1000);
    expect(&log, &[around(last), around(log.position())].concat());
    // A crash truncated it in the last of several pages.
    let begun = log.bytes.len();
    let last = log.main_data(rmid::XLOG, xlog::NOOP, &[7; 5 * PAGE]);
    let whole = log.bytes.clone();
    for end in [begun + 4 * PAGE + 3000, log.bytes.len() - 100, begun + PAGE, begun + 100] {
        log.bytes.truncate(end);
        expect(&log, &[around(last), around(last.plus(2 * PAGE as u64))].concat());
        log.bytes.clone_from(&whole);
    }
    // A record truncated by a crash, alone in its range.
    let cut_off = log.position();
    log.crash_in_record(20_000, 9000);
    let last = log.main_data(rmid::XLOG, xlog::NOOP, &[7; 600]);
    expect(&log, &[around(cut_off), around(last), around(log.position())].concat());

    // The last record continues in the next segment.
    fill(&mut log, segment_bytes - 700);
    let last = log.main_data(rmid::XLOG, xlog::NOOP, &[7; 3000]);
    let of_segment = [0, 8, 40, 48].map(|bytes| segment.plus(bytes));
    expect(&log, &[&around(last)[..], &of_segment, &around(log.position())].concat());
    // A crash truncated it in the next segment.
    log.bytes.truncate(segment_bytes + 1000);
    expect(&log, &around(last));
    // The next segment is missing.
    log.bytes.truncate(segment_bytes);
    expect(&log, &around(last));

    // A segment contains only a part of the truncated record.
    let mut log = LogWriter::new(Major::V15);
    fill(&mut log, segment_bytes - 700);
    let last = log.main_data(rmid::XLOG, xlog::NOOP, &vec![7; segment_bytes + 3 * PAGE]);
    log.bytes.truncate(2 * segment_bytes + PAGE + 100);
    expect(&log, &around(last));
}

/// A record that starts before a segment and ends after it belongs to the range in which it starts, wherever
/// the next range starts.
#[test]
fn ranges_that_meet_in_a_record_of_several_segments_add_up() {
    let mut log = LogWriter::new(Major::V15);
    let segment_bytes = log.info.segment_size.bytes() as usize;
    let first = fill(&mut log, segment_bytes - 700);
    let long = log.main_data(rmid::XLOG, xlog::NOOP, &vec![7; 2 * segment_bytes + 3 * PAGE]);
    let behind = log.position();
    fill(&mut log, 3 * segment_bytes + 5 * PAGE);
    let whole = log.bytes.clone();
    let segment = |number: usize| log.start.0 + (number * segment_bytes) as u64;
    let mut positions = vec![first.0, long.0 - 8, long.0, long.0 + 8, behind.0 - 8, behind.0, behind.0 + 8];
    for number in 1..=3 {
        positions
            .extend([0, 8, 40, 48, 3 * PAGE as u64, segment_bytes as u64 / 2].map(|at| segment(number) + at));
        positions.push(segment(number) - 8);
    }
    // Complete, and truncated by a crash in its last page, before it, in an earlier segment, and at a
    // segment's end.
    let last_page = 3 * segment_bytes + 3 * PAGE;
    let ends = [
        whole.len(),
        last_page + 100,
        last_page - PAGE - 100,
        2 * segment_bytes + 500,
        3 * segment_bytes,
        2 * segment_bytes,
    ];
    for end in ends {
        log.bytes.clone_from(&whole);
        log.bytes.truncate(end);
        let folder = tempfile::tempdir().unwrap();
        log.save(folder.path());
        // Then without the segment in which the record starts, and also without the next one: a range that
        // ends within the record includes the bytes in its last segment.
        for first in [log.start.plus(8), behind, behind] {
            let inventory = Inventory::search(&[folder.path()]).unwrap();
            let run = &inventory.runs[0];
            let within = first.0..run.end().0;
            expect_whole_of_two_ranges(run, positions.iter().copied().filter(|lsn| within.contains(lsn)));
            if run.segments.len() == 1 {
                break;
            }
            std::fs::remove_file(&run.segments[0].path).unwrap();
        }
    }
}

#[test]
fn transactions_have_all_bytes_of_records_with_a_transaction() {
    for (path, inventory) in golden() {
        let runs = &inventory.runs[..1];
        let options = options(&runs[0]);
        let transactions = table(runs, Table::Transactions, &options);
        let records = table(runs, Table::Records, &options);
        let xids = records.column_by_name("xid").unwrap().as_primitive::<UInt32Type>();
        let bytes = records.column_by_name("bytes").unwrap().as_primitive::<UInt32Type>();
        // initdb's bootstrap is not a transaction.
        let is_of_one = |row: &usize| xids.is_valid(*row) && xids.value(*row) >= FIRST_NORMAL_XID;
        let expected: u64 = (0..xids.len()).filter(is_of_one).map(|row| u64::from(bytes.value(row))).sum();
        assert_eq!(total(&transactions, "bytes"), expected, "{}", path.display());
        let explanation = explained(runs, None, None);
        if explanation.damage.is_none() {
            let outcomes = cast(transactions.column_by_name("outcome").unwrap(), &DataType::Utf8).unwrap();
            let sums = &explanation.transaction_sums;
            for (outcome, expected) in [("committed", sums.committed), ("aborted", sums.aborted)] {
                let count =
                    outcomes.as_string::<i32>().iter().flatten().filter(|one| *one == outcome).count();
                assert_eq!(count as u64, expected, "{outcome}: {}", path.display());
            }
        }
    }
}

#[test]
fn columns_are_those_that_are_wanted() {
    let (_, inventory) = golden().pop().unwrap();
    let runs = &inventory.runs[..1];
    for of in Table::all() {
        let all = table(runs, of, &options(&runs[0]));
        for index in 0..of.columns().len() {
            let options = options(&runs[0]).columns(Some(vec![index]));
            let one = table(runs, of, &options);
            assert_eq!(format!("{:?}", plain(one.column(0))), format!("{:?}", plain(all.column(index))));
        }
        let none = options(&runs[0]).columns(Some(Vec::new()));
        let mut rows = 0;
        let result = read(runs, of, &none, |batch| {
            rows += batch.num_rows();
            ControlFlow::Continue(())
        });
        assert!(matches!(result, Ok(()) | Err(ReadError::Damaged(_))));
        assert_eq!(rows, all.num_rows(), "{of:?}");
    }
}

/// Walden's tests with `pg_waldump` compare the texts.
#[test]
fn records_of_known_kinds_have_descriptions() {
    for (path, inventory) in golden() {
        for run in &inventory.runs {
            let records = table(std::slice::from_ref(run), Table::Records, &options(run));
            let column = |name: &str| cast(records.column_by_name(name).unwrap(), &DataType::Utf8).unwrap();
            let [managers, kinds, texts] = ["resource_manager", "record_type", "description"].map(column);
            let [managers, kinds, texts] = [&managers, &kinds, &texts].map(|one| one.as_string::<i32>());
            for row in 0..records.num_rows() {
                let is_known = run.version >= Major::V14 && !managers.value(row).starts_with("custom");
                let kind = format!("{}: {} {}", path.display(), managers.value(row), kinds.value(row));
                assert_eq!(texts.is_valid(row), is_known, "{kind}");
                if managers.value(row) == "Heap" && kinds.value(row).starts_with("INSERT") {
                    assert!(texts.value(row).starts_with("off"), "{kind}: {}", texts.value(row));
                }
            }
        }
    }
}

#[test]
fn positions_have_texts_where_they_are_asked_for() {
    let (_, inventory) = golden().pop().unwrap();
    let options = options(&inventory.runs[0]).lsn_text(true);
    let records = table(&inventory.runs[..1], Table::Records, &options);
    let numbers = records.column_by_name("start_lsn").unwrap().as_primitive::<UInt64Type>();
    let texts = records.column_by_name("start_lsn_text").unwrap().as_string::<i32>();
    assert_eq!(texts.value(7).parse::<Lsn>().unwrap(), Lsn(numbers.value(7)));
}

#[test]
fn times_go_on_from_segment_to_segment() {
    for (path, inventory) in golden() {
        let runs = &inventory.runs[..1];
        let records = table(runs, Table::Records, &options(&runs[0]));
        let times = records.column_by_name("time").unwrap();
        let first = (0..times.len()).find(|row| times.is_valid(*row));
        if let Some(first) = first {
            assert!((first..times.len()).all(|row| times.is_valid(row)), "{}", path.display());
        }
    }
}

/// The last transaction end before a record may be before the range, in the same segment or in one that is
/// not read.
#[test]
fn times_in_a_range_are_those_in_the_whole() {
    for (path, inventory) in golden() {
        let (run, runs) = (&inventory.runs[0], &inventory.runs[..1]);
        let all = table(runs, Table::Records, &options(run));
        let starts = all.column_by_name("start_lsn").unwrap().as_primitive::<UInt64Type>();
        let times = all.column_by_name("time").unwrap();
        for row in (0..all.num_rows()).step_by(all.num_rows() / 4 + 1) {
            let from = Some(Lsn(starts.value(row)));
            let expected = times.slice(row, times.len() - row);
            for threads in [1, 3] {
                let options = options(run).from(from).threads(threads);
                let found = table(runs, Table::Records, &options);
                let found = found.column_by_name("time").unwrap();
                assert_eq!(found, &expected, "{} {from:?} with {threads} threads", path.display());
                let mut batches = Vec::new();
                for part in Part::divide(&[Part::between(run, from, None)], 2) {
                    let result = read_part(&part, Table::Records, &options, |batch| {
                        batches.push(batch);
                        ControlFlow::Continue(())
                    });
                    if result.is_err() {
                        break;
                    }
                }
                let found = concat_batches(&options.schema(Table::Records), &batches).unwrap();
                let found = found.column_by_name("time").unwrap();
                assert_eq!(found, &expected, "{} {from:?} in parts", path.display());
            }
        }
    }
}

#[test]
fn batches_end_when_nobody_wants_more() {
    let (_, inventory) = golden().pop().unwrap();
    let options = options(&inventory.runs[0]).batch_rows(10);
    let inventory = Arc::new(inventory);
    let mut batches = Batches::start(inventory.clone(), Table::Records, options.clone());
    assert_eq!(batches.next_batch().unwrap().unwrap().num_rows(), 10);
    // Its thread waits for space in the channel; dropping the batches must end it.
    drop(batches);
    let rows: usize = Batches::start(inventory.clone(), Table::Records, options.clone())
        .map(|batch| batch.map_or(0, |batch| batch.num_rows()))
        .sum();
    assert_eq!(rows, table(&inventory.runs, Table::Records, &options).num_rows());
}

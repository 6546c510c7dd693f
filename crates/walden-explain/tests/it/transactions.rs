//! Transactions: subtransactions are folded into their top-level one, across segments.

use walden_explain::group::{Dimension, ViewSpec};
use walden_explain::{Explanation, Outcome};

use crate::accounting::{all_views, check};
use crate::material::{Log, SEGMENT, explain_golden, request};

#[test]
fn subtransactions_are_folded_into_their_top_level_one() {
    let mut log = Log::new();
    for round in 0..400 {
        for (xid, data) in [(100, 50), (101, 700), (102, 900), (200, 400), (300, 1000)] {
            log.heap_insert(xid, 16384, data + round % 3);
        }
    }
    assert!(log.writer.bytes.len() > SEGMENT, "the transactions are in two segments");
    log.end(100, true, 1000, &[101, 102]);
    log.end(200, false, 1001, &[]);
    let explanation = log.explain(&request(Vec::new()));
    let [first, second, third] = explanation.transactions.as_slice() else {
        panic!("{:?}", explanation.transactions)
    };
    assert_eq!((first.xid, first.outcome, first.subtransactions), (100, Outcome::Committed, 2));
    assert_eq!(first.bytes, log.bytes_of(&[100, 101, 102]));
    assert_eq!(first.records, 1201);
    assert_eq!((second.xid, second.outcome), (300, Outcome::Open));
    assert_eq!((third.xid, third.outcome, third.bytes), (200, Outcome::Aborted, log.bytes_of(&[200])));
    // Seconds from 1970 to 2000.
    assert_eq!(third.time, Some((1001 + 946_684_800) * 1_000_000));
    let sums = explanation.transaction_sums;
    assert_eq!((sums.committed, sums.aborted, sums.open), (1, 1, 1));
    assert_eq!(sums.aborted_bytes, third.bytes);
    assert_eq!(sums.bytes, first.bytes + second.bytes + third.bytes);
}

#[test]
fn only_the_largest_transactions_are_kept_and_all_are_summed() {
    let mut log = Log::new();
    for xid in 1..=500 {
        log.heap_insert(xid, 16384, xid as usize);
        log.end(xid, true, xid.into(), &[]);
    }
    let explanation = log.explain(&request(Vec::new()).top(3));
    let xids: Vec<u32> = explanation.transactions.iter().map(|one| one.xid).collect();
    assert!(xids.len() == 3 && xids.iter().all(|xid| *xid > 490), "{xids:?}");
    assert_eq!(explanation.transaction_sums.committed, 500);
    assert_eq!(explanation.transaction_sums.bytes, explanation.record_bytes());
}

/// The first segment of a cluster: initdb's records in bootstrap mode have transaction ID 1.
#[test]
fn the_bootstrap_of_a_new_cluster_is_no_transaction() {
    let by_xid = vec![ViewSpec::by(Dimension::Xid)];
    let explanation = explain_golden("15.18-first", &request(by_xid)).remove(0);
    let sums = explanation.transaction_sums;
    assert_eq!((sums.committed, sums.aborted, sums.open, sums.bytes), (0, 0, 0, 0));
    assert_eq!(sums.system_bytes, explanation.record_bytes());
    assert_eq!(sums.system_records, explanation.records);
    assert_eq!(explanation.transactions, []);
    let rows = &explanation.views[0].rows;
    assert!(rows.iter().all(|(key, _)| key.xid == Some(0)), "{rows:?}");
    assert_eq!(rows.iter().map(|(_, sum)| sum.records).sum::<u64>(), sums.system_records);

    // IDs 1 and 2 are older than any ID in RUNNING_XACTS.
    let mut log = Log::new();
    (1..=4).for_each(|xid| {
        log.heap_insert(xid, 16384, 100);
    });
    log.running_xacts(9);
    let sums = log.explain(&request(Vec::new())).transaction_sums;
    assert_eq!((sums.committed, sums.aborted, sums.open), (0, 2, 0));
    assert_eq!(sums.system_records, 3);
}

/// Explains WAL, checks that its sums add up, and returns its transactions: number, outcome, bytes.
fn transactions_of(log: &Log) -> (Explanation, Vec<(u32, Outcome, u64)>) {
    let explanation = log.explain(&request(all_views()));
    check(&explanation);
    let rows = explanation.transactions.iter().map(|one| (one.xid, one.outcome, one.bytes)).collect();
    (explanation, rows)
}

/// Enough records to move the remaining records into another segment.
fn fill_segment(log: &mut Log) {
    let end = log.writer.bytes.len() + SEGMENT;
    while log.writer.bytes.len() < end {
        log.heap_insert(0, 16384, 8000);
    }
}

#[test]
fn a_subtransaction_that_is_rolled_back_is_its_transactions_if_the_log_names_that() {
    for is_long in [false, true] {
        // As the server logs it: INSERT; SAVEPOINT s; INSERT; ROLLBACK TO s; SAVEPOINT s2; INSERT; RELEASE
        // s2; COMMIT.
        let mut log = Log::new();
        log.heap_insert(778, 16384, 100);
        log.first_insert(779, 778, 100);
        for _ in 0..1000 {
            log.heap_insert(779, 16384, 100);
        }
        if is_long {
            fill_segment(&mut log);
        }
        log.end(779, false, 5, &[]);
        log.first_insert(780, 778, 100);
        if is_long {
            fill_segment(&mut log);
        }
        log.end(778, true, 6, &[780]);
        let (explanation, rows) = transactions_of(&log);
        assert_eq!(rows, [(778, Outcome::Committed, log.bytes_of(&[778, 779, 780]))]);
        let sums = explanation.transaction_sums;
        assert_eq!((sums.committed, sums.aborted, sums.open, sums.aborted_bytes), (1, 0, 0, 0));
        assert_eq!((sums.subtransactions, sums.aborted_subtransactions), (2, 1));
        assert_eq!(sums.aborted_subtransaction_bytes, log.bytes_of(&[779]));
    }
}

#[test]
fn all_that_a_transaction_wrote_is_rolled_back_with_it() {
    // SAVEPOINT a; INSERT; ROLLBACK TO a; SAVEPOINT b; INSERT; ROLLBACK.
    let mut log = Log::new();
    log.first_insert(779, 778, 100);
    log.heap_insert(779, 16384, 200);
    log.end(779, false, 5, &[]);
    log.first_insert(780, 778, 50);
    log.end(778, false, 6, &[780]);
    let (explanation, rows) = transactions_of(&log);
    let all = log.bytes_of(&[778, 779, 780]);
    assert_eq!(rows, [(778, Outcome::Aborted, all)]);
    let sums = explanation.transaction_sums;
    assert_eq!((sums.aborted, sums.aborted_bytes, sums.aborted_subtransaction_bytes), (1, all, 0));
}

#[test]
fn nested_subtransactions_name_the_transaction_of_the_outer_one() {
    // The outer subtransaction wrote nothing, and the inner one is released into it.
    let mut log = Log::new();
    log.first_insert(802, 800, 100);
    log.end(801, false, 5, &[802]);
    log.end(800, true, 6, &[]);
    let (_, rows) = transactions_of(&log);
    assert_eq!(rows, [(800, Outcome::Committed, log.bytes_of(&[800, 801, 802]))]);
}

#[test]
fn subtransactions_of_a_transaction_without_an_end_are_its_own() {
    for (is_over, outcome) in [(false, Outcome::Open), (true, Outcome::Aborted)] {
        let mut log = Log::new();
        log.first_insert(779, 778, 100);
        log.end(779, false, 5, &[]);
        log.first_insert(780, 778, 100);
        if is_over {
            log.running_xacts(900);
        }
        let (explanation, rows) = transactions_of(&log);
        let all = log.bytes_of(&[779, 780]);
        assert_eq!(rows, [(778, outcome, all)]);
        assert_eq!(explanation.transaction_sums.aborted_bytes, if is_over { all } else { 0 });
    }
}

#[test]
fn assignments_name_subtransactions_that_were_rolled_back_before() {
    for is_long in [false, true] {
        let mut log = Log::new();
        let subxids: Vec<u32> = (1001..1065).collect();
        log.heap_insert(1000, 16384, 10);
        for subxid in &subxids {
            log.heap_insert(*subxid, 16384, 100);
            if subxid % 2 == 0 {
                log.end(*subxid, false, 7, &[]);
            }
        }
        // A transaction that is smaller than all of these, but as large as the smallest in the list of the
        // largest.
        log.heap_insert(999, 16384, 1);
        log.end(999, true, 7, &[]);
        if is_long {
            fill_segment(&mut log);
        }
        log.assign(1000, &subxids);
        // After the last 64: the WAL does not show its top-level transaction.
        log.heap_insert(1065, 16384, 100);
        log.end(1065, false, 8, &[]);
        let released: Vec<u32> = subxids.iter().copied().filter(|subxid| subxid % 2 == 1).collect();
        log.end(1000, true, 9, &released);
        let (explanation, rows) = transactions_of(&log);
        let of_all: Vec<u32> = (1000..1065).collect();
        assert_eq!(
            rows,
            [
                (1000, Outcome::Committed, log.bytes_of(&of_all)),
                (1065, Outcome::Aborted, log.bytes_of(&[1065])),
                (999, Outcome::Committed, log.bytes_of(&[999])),
            ]
        );
        let sums = explanation.transaction_sums;
        assert_eq!((sums.committed, sums.aborted, sums.aborted_bytes), (2, 1, log.bytes_of(&[1065])));
        assert_eq!((sums.subtransactions, sums.aborted_subtransactions), (64, 32));
        // Rows that are no transactions do not displace others.
        let few = log.explain(&request(all_views()).top(3));
        assert_eq!(few.transactions, explanation.transactions);
        check(&few);
    }
}

/// Rollbacks count as transactions as soon as no older one runs, regardless of later records.
#[test]
fn rollbacks_without_an_older_transaction_are_transactions() {
    let mut log = Log::new();
    for xid in [500, 501] {
        log.heap_insert(xid, 16384, 100);
        log.end(xid, false, xid.into(), &[]);
    }
    log.running_xacts(600);
    let (explanation, rows) = transactions_of(&log);
    let outcomes = [500, 501].map(|xid| (xid, Outcome::Aborted, log.bytes_of(&[xid])));
    assert_eq!(rows, outcomes);
    let time = explanation.transactions[1].time;
    assert_eq!(time, Some((501 + 946_684_800) * 1_000_000));
}

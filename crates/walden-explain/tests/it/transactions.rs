//! Transactions: subtransactions are folded into their top-level one, whatever the segment.

use walden_explain::{Outcome, Request};
use walden_format::rmgr::info::standby;
use walden_format::rmgr::rmid;

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
    let bytes = |log: &Log, of: &[u32]| -> u64 {
        let is_of = |record: &[u8]| of.contains(&u32::from_le_bytes(record[4..8].try_into().unwrap()));
        let records = log.writer.records.iter().filter(|(_, bytes)| is_of(bytes));
        records.map(|(_, bytes)| bytes.len().next_multiple_of(8) as u64).sum()
    };
    log.end(100, true, 1000, &[101, 102]);
    log.end(200, false, 1001, &[]);
    let explanation = log.explain(&request(Vec::new()));
    let [first, second, third] = explanation.transactions.as_slice() else {
        panic!("{:?}", explanation.transactions)
    };
    assert_eq!((first.xid, first.outcome, first.subtransactions), (100, Outcome::Committed, 2));
    assert_eq!(first.bytes, bytes(&log, &[100, 101, 102]));
    assert_eq!(first.records, 1201);
    assert_eq!((second.xid, second.outcome), (300, Outcome::Open));
    assert_eq!((third.xid, third.outcome, third.bytes), (200, Outcome::Aborted, bytes(&log, &[200])));
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
    let explanation = log.explain(&Request { top: 3, ..request(Vec::new()) });
    let xids: Vec<u32> = explanation.transactions.iter().map(|one| one.xid).collect();
    assert!(xids.len() == 3 && xids.iter().all(|xid| *xid > 490), "{xids:?}");
    assert_eq!(explanation.transaction_sums.committed, 500);
    assert_eq!(explanation.transaction_sums.bytes, explanation.record_bytes());
}

/// The first segment of a cluster: what initdb writes in bootstrap mode has transaction ID 1.
#[test]
fn the_bootstrap_of_a_new_cluster_is_no_transaction() {
    let explanation = explain_golden("15.18-first", &request(Vec::new())).remove(0);
    let sums = explanation.transaction_sums;
    assert_eq!((sums.committed, sums.aborted, sums.open, sums.bytes), (0, 0, 0, 0));
    assert_eq!(sums.system_bytes, explanation.record_bytes());
    assert_eq!(sums.system_records, explanation.records);
    assert_eq!(explanation.transactions, []);

    // IDs 1 and 2 are older than any that RUNNING_XACTS has.
    let mut log = Log::new();
    (1..=4).for_each(|xid| {
        log.heap_insert(xid, 16384, 100);
    });
    // xcnt, subxcnt, subxid_overflow, nextXid, oldestRunningXid, latestCompletedXid
    let running: Vec<u8> = [0, 0, 0, 9, 9, 8].into_iter().flat_map(u32::to_le_bytes).collect();
    log.record((rmid::STANDBY, standby::RUNNING_XACTS), 0, 0, &[], &running);
    let sums = log.explain(&request(Vec::new())).transaction_sums;
    assert_eq!((sums.committed, sums.aborted, sums.open), (0, 2, 0));
    assert_eq!(sums.system_records, 3);
}

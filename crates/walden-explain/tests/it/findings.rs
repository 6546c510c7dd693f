//! Findings are made where the log gives rise to them, and only there.

use crate::material::Log;

fn rules(log: &Log) -> Vec<&'static str> {
    log.document().findings.iter().map(|finding| finding.rule).collect()
}

/// Inserts into a table and an index, all in transactions of their own.
fn inserts(index_bytes: usize) -> Log {
    let mut log = Log::new();
    for xid in 1..1000 {
        log.heap_insert(xid, 16384, 600);
        log.index_insert(xid, 16390, index_bytes);
        log.end(xid, true, xid.into(), &[]);
    }
    log
}

#[test]
fn an_index_is_large_from_its_share_on() {
    let found = inserts(300).document();
    let finding = found.findings.iter().find(|finding| finding.rule == "large-index").unwrap();
    assert_eq!(finding.points_at, "1663/5/16390");
    let index: u64 = 999 * (24 + 20 + 2 + 300 + 3_u64).next_multiple_of(8);
    assert!((finding.share - index as f64 / found.file_bytes as f64).abs() < 1e-3, "{finding:?}");
    assert!(!rules(&inserts(8)).contains(&"large-index"));
}

#[test]
fn rolled_back_transactions_are_found_by_their_bytes() {
    let with = |aborted: u32| {
        let mut log = Log::new();
        for xid in 1..1000 {
            log.heap_insert(xid, 16384, 500);
            log.end(xid, xid % 10 >= aborted, xid.into(), &[]);
        }
        rules(&log).contains(&"rolled-back")
    };
    assert!(with(4));
    assert!(!with(0));
}

#[test]
fn one_large_transaction_is_found() {
    let with = |xid: fn(u32) -> u32| {
        let mut log = Log::new();
        for round in 1..2000 {
            log.heap_insert(xid(round), 16384, 500);
        }
        rules(&log).contains(&"large-transaction")
    };
    assert!(with(|_| 7));
    assert!(!with(|round| round));
}

#[test]
fn segment_switches_are_found_by_their_padding() {
    let mut log = inserts(8);
    assert!(!rules(&log).contains(&"switch-padding"));
    log.writer.switch();
    log.heap_insert(5, 16384, 10);
    log.writer.switch();
    log.heap_insert(5, 16384, 10);
    assert!(rules(&log).contains(&"switch-padding"));
}

#[test]
fn full_page_writes_off_is_found_if_a_checkpoint_says_so() {
    let with = |full_page_writes| {
        let mut log = inserts(8);
        log.checkpoint(1000, full_page_writes);
        rules(&log).contains(&"no-full-page-writes")
    };
    assert!(with(false));
    assert!(!with(true));
}

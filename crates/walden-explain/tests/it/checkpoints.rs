//! Causes of checkpoints, from the records of the WAL.

use walden_explain::checkpoints::{Cause, CheckpointSettings, explain_checkpoints};
use walden_format::payload::xlog::WalLevel;
use walden_format::rmgr::info::xlog;
use walden_format::rmgr::rmid;
use walden_format::version::Major;

use crate::material::{Log, SEGMENT, document, request};

/// Checkpoints that start at the end of every second segment.
fn by_volume(seconds: i64) -> Log {
    let mut log = Log::new();
    for number in 1..=4 {
        while log.writer.bytes.len() < number * 2 * SEGMENT {
            log.heap_insert(1, 16384, 4000);
        }
        log.checkpoint(number as i64 * seconds, true);
    }
    log
}

#[test]
fn volume_and_time_are_told_apart_by_the_settings() {
    let settings = CheckpointSettings {
        timeout: 300,
        max_wal_size: 4 << 20,
        completion_target_milli: 900,
        keeps_one: true,
    };
    let causes = |seconds| {
        let explanation = by_volume(seconds).explain(&request(Vec::new()));
        assert_eq!(explanation.checkpoints.len(), 4);
        let checkpoints =
            explain_checkpoints(&explanation.checkpoints, explanation.segment_size, Some(settings));
        let distances = checkpoints.iter().filter_map(|one| one.distance);
        assert!(distances.into_iter().all(|distance| distance.abs_diff(2 * SEGMENT as u64) < 8192));
        checkpoints.iter().map(|one| one.cause).collect::<Vec<_>>()
    };
    assert_eq!(causes(7), [Cause::First, Cause::Volume, Cause::Volume, Cause::Volume]);
    assert_eq!(causes(300), [Cause::First, Cause::Time, Cause::Time, Cause::Time]);
}

#[test]
fn the_document_counts_causes_and_says_whether_they_are_inferred() {
    let document = by_volume(300).document();
    assert_eq!(document.checkpoints.count, 4);
    assert_eq!(document.checkpoints.by_cause["time"], 3);
    assert!(!document.checkpoints.causes_from_settings);
    assert_eq!(document.checkpoints.mean_interval_seconds, Some(300.0));
    assert_eq!(document.settings["full_page_writes"], "on");
}

/// `wal_level` is always `replica`.
#[test]
fn since_19_the_log_records_switches_of_logical_decoding() {
    let mut log = Log::with_version(Major::V19);
    let mut record = |kind, main: &[u8]| log.record(kind, 0, 0, &[], main).0;
    record((rmid::XLOG, xlog::CHECKPOINT_REDO), &[1, 0, 0, 0]);
    let slot = record((rmid::XLOG, xlog::LOGICAL_DECODING_STATUS_CHANGE), &[1]);
    let explanation = log.explain(&request(Vec::new()));
    let logged = &explanation.logged_settings;
    let changes: Vec<_> = logged
        .changes
        .iter()
        .map(|change| (change.lsn.0, change.name, change.before.as_str(), change.after.as_str()))
        .collect();
    assert_eq!(changes, [(slot, "effective_wal_level", "replica", "logical")]);
    assert_eq!(
        (logged.wal_level, logged.effective_wal_level()),
        (Some(WalLevel::Replica), Some(WalLevel::Logical))
    );
    let settings = document(&explanation).settings;
    let shown = ["wal_level", "effective_wal_level"].map(|name| settings[name].as_str());
    assert_eq!(shown, [Some("replica"), Some("logical")]);
}

/// The range ends between the redo pointer of the second checkpoint and its record, and transactions end
/// every second.
#[test]
fn a_checkpoint_without_its_record_began_at_the_last_transaction_before_it() {
    const SINCE_1970: i64 = 946_684_800;
    let mut log = Log::with_version(Major::V17);
    let mut redo_pointers = Vec::new();
    for second in 0..100 {
        if second % 30 == 10 {
            let redo = log.record((rmid::XLOG, xlog::CHECKPOINT_REDO), 0, 0, &[], &[1, 0, 0, 0]);
            redo_pointers.push(redo);
        }
        log.end(1000 + second as u32, true, second, &[]);
    }
    let explanation = log.explain(&request(Vec::new()));
    let begun: Vec<_> = explanation.checkpoints.iter().map(|one| (one.redo, one.time - SINCE_1970)).collect();
    let expected: Vec<_> = redo_pointers.into_iter().zip([9, 39, 69, 99]).collect();
    assert_eq!(begun, expected[..3]);
    let causes = explain_checkpoints(&explanation.checkpoints, explanation.segment_size, None);
    assert_eq!(
        causes.iter().map(|one| one.cause).collect::<Vec<_>>(),
        [Cause::First, Cause::Time, Cause::Time]
    );
}

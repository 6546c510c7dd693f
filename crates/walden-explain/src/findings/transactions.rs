//! Causes in transactions and subtransactions.

use walden_format::rmgr::info::xact;
use walden_format::rmgr::rmid;
use walden_source::counted;

use super::facts::{Facts, is_delete, is_insert, is_update};
use super::ledger::Claim;
use super::{Candidate, bytes_text};
use crate::time::second_text;

const MIN_TRANSACTIONS: u64 = 1000;
const MIN_PREPARED: u64 = 100;
/// Rows that a transaction changes, up to which it counts as tiny.
const MAX_TINY_ROWS: f64 = 2.0;
/// Maximum number of records, including the commit, of a tiny transaction that changes no rows of tables.
const MAX_TINY_RECORDS: f64 = 4.0;

fn is_kind(manager: u8, info: u8, kind: u8) -> bool {
    manager == rmid::XACT && info & xact::OPMASK == kind
}

pub(super) fn tiny(facts: &Facts<'_>) -> Vec<Candidate> {
    let sums = facts.explanation.transaction_sums;
    let commits = facts.cells_without_relation(|manager, info| is_kind(manager, info, xact::COMMIT));
    let records: u64 = facts.explanation.records.saturating_sub(sums.system_records);
    let transactions = (sums.committed + sums.aborted).max(1) as f64;
    let mean = records as f64 / transactions;
    // Entries of indexes do not make a transaction larger for the application.
    let is_row = |manager: u8, info: u8| {
        is_insert(manager, info) || is_update(manager, info) || is_delete(manager, info)
    };
    let rows: u64 = facts.user_tables().map(|table| facts.records(facts.cells(table.heaps(), is_row))).sum();
    let is_tiny = mean <= MAX_TINY_RECORDS || rows as f64 <= MAX_TINY_ROWS * transactions;
    if sums.committed < MIN_TRANSACTIONS || !is_tiny {
        return Vec::new();
    }
    let claim = facts.claim(commits.into_iter(), 1.0, 1.0);
    vec![Candidate {
        text: format!(
            "{} transactions have {:.1} records each besides their commit; the commit records take {} of the WAL",
            sums.committed,
            (mean - 1.0).max(0.0),
            facts.percent(claim.bytes())
        ),
        points_at: "transactions of a row or two".into(),
        remedy: "several rows in one transaction; COPY also writes rows in fewer records".into(),
        ..Candidate::new(claim, (0.9, 1.0))
    }]
}

/// Subtransactions cost little by themselves: an entry in the commit record, and an `ASSIGNMENT` record per
/// 64 subtransactions; if rolled back, an abort record and the records that they wrote.
pub(super) fn savepoints(facts: &Facts<'_>) -> Vec<Candidate> {
    /// Bytes of a subtransaction's entry in the commit record.
    const ENTRY: u64 = 4;
    /// Bytes of a commit record for the flag and the number of its subtransactions, and of its alignment.
    const LIST: u64 = 8;
    const ALIGNMENT: u64 = 4;
    let sums = facts.explanation.transaction_sums;
    if sums.subtransactions < MIN_TRANSACTIONS || sums.subtransactions < 2 * sums.committed {
        return Vec::new();
    }
    let assignments = facts.cells_without_relation(|manager, info| is_kind(manager, info, xact::ASSIGNMENT));
    let mut claim = facts.claim(assignments.into_iter(), 1.0, 1.0);
    claim.add_spread(sums.aborted_subtransaction_bytes);
    let other_bytes = claim.bytes() as f64;
    let entries = sums.subtransactions - sums.aborted_subtransactions;
    // Commit records with entries: at most all of them.
    let lists = sums.committed.min(entries);
    claim.add_spread(ENTRY * entries + LIST * lists);
    // One savepoint remains in each transaction, or none.
    let least = (ENTRY * (entries - lists)).saturating_sub(ALIGNMENT * lists) as f64 + 0.9 * other_bytes;
    let most = (ENTRY * entries + (LIST + ALIGNMENT) * lists) as f64 + other_bytes;
    vec![Candidate {
        text: format!(
            "{} subtransactions, {} committed; rolled back alone: {}; these, and the bookkeeping of all, take {} of the WAL",
            sums.subtransactions,
            counted(sums.committed, "transaction"),
            counted(sums.aborted_subtransactions, "subtransaction"),
            facts.percent(claim.bytes())
        ),
        points_at: "SAVEPOINT, EXCEPTION blocks of PL/pgSQL".into(),
        remedy: "a savepoint per batch instead of one per row; avoid errors before the write (ON CONFLICT DO NOTHING)".into(),
        saves: Some(((least + most) as u64 / 2, (most - least) as u64 / 2)),
        ..Candidate::new(claim, (0.9, 1.0))
    }]
}

/// Transactions that `PREPARE TRANSACTION` ends: their records contain the state until `COMMIT PREPARED`,
/// however little they write.
pub(super) fn two_phase(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_prepare = |manager: u8, info: u8| is_kind(manager, info, xact::PREPARE);
    let is_end = |manager: u8, info: u8| {
        is_kind(manager, info, xact::COMMIT_PREPARED) || is_kind(manager, info, xact::ABORT_PREPARED)
    };
    let (prepares, ends) = (facts.cells_without_relation(is_prepare), facts.cells_without_relation(is_end));
    let count = facts.records(prepares.iter().copied());
    if count < MIN_PREPARED {
        return Vec::new();
    }
    let prepare_bytes = facts.claim(prepares.iter().copied(), 1.0, 1.0).bytes();
    let claim = facts.claim(prepares.into_iter().chain(ends), 1.0, 1.0);
    vec![Candidate {
        text: format!(
            "{count} transactions were prepared (PREPARE TRANSACTION), {} each; these records and those of COMMIT PREPARED take {} of the \
             WAL",
            bytes_text(prepare_bytes / count),
            facts.percent(claim.bytes())
        ),
        points_at: "PREPARE TRANSACTION".into(),
        remedy: "COMMIT where only one server takes part in the transaction; several rows in one transaction elsewhere".into(),
        ..Candidate::new(claim, (0.5, 0.9))
    }]
}

pub(super) fn rolled_back(facts: &Facts<'_>) -> Vec<Candidate> {
    let sums = facts.explanation.transaction_sums;
    let bytes = sums.aborted_bytes - sums.cut_off_bytes;
    let mut found: Vec<Candidate> = cut_off(facts).into_iter().collect();
    if bytes == 0 {
        return found;
    }
    let mut claim = Claim::default();
    claim.add_spread(bytes);
    found.push(Candidate {
        text: format!(
            "{} of the WAL is of {} rolled back, {} committed; subtransactions (EXCEPTION blocks of PL/pgSQL, ROLLBACK TO SAVEPOINT) whose \
             transaction the WAL does not name count, too",
            facts.percent(bytes),
            match sums.aborted - sums.cut_off {
                1 => "1 transaction that was".to_owned(),
                many => format!("{many} transactions that were"),
            },
            sums.committed
        ),
        points_at: "errors and retries of the application, EXCEPTION blocks".into(),
        remedy: "find out in the server's log why they fail, and check that before the first write; errors that an EXCEPTION block \
                 catches are not in it: avoid them, such as by ON CONFLICT DO NOTHING"
            .into(),
        ..Candidate::new(claim, (0.9, 1.0))
    });
    found
}

/// Transactions without an end in the WAL although later WAL shows that they no longer ran. If parts of the
/// WAL are missing, these parts may contain the ends.
fn cut_off(facts: &Facts<'_>) -> Option<Candidate> {
    let sums = facts.explanation.transaction_sums;
    let has_gap = facts.explanation.ranges.windows(2).any(|pair| pair[1].start > pair[0].end);
    if sums.cut_off_bytes == 0 || has_gap {
        return None;
    }
    let mut claim = Claim::default();
    claim.add_spread(sums.cut_off_bytes);
    Some(Candidate {
        text: format!(
            "{} of the WAL is of {} that ended without a commit or abort record: the server crashed or was stopped at once, or a recovery \
             ended before they did",
            facts.percent(sums.cut_off_bytes),
            counted(sums.cut_off_xids, "transaction")
        ),
        points_at: "a crash of the server".into(),
        remedy: "find out in the server's log why it stopped without a checkpoint (a crash, pg_ctl stop -m immediate); nothing is wrong \
                 with the transactions"
            .into(),
        saves: None,
        ..Candidate::new(claim, (0.0, 1.0))
    })
}

/// Messages of `pg_logical_emit_message`.
pub(super) fn messages(facts: &Facts<'_>) -> Vec<Candidate> {
    let cells = facts.cells_without_relation(|manager, _| manager == rmid::LOGICALMSG);
    let count = facts.records(cells.iter().copied());
    if count == 0 {
        return Vec::new();
    }
    let claim = facts.claim(cells.into_iter(), 1.0, 1.0);
    vec![Candidate {
        text: format!(
            "{count} {} for logical decoding (pg_logical_emit_message) of {}{}: {} of the WAL",
            if count == 1 { "message" } else { "messages" },
            bytes_text(claim.bytes() / count),
            if count == 1 { "" } else { " on average" },
            facts.percent(claim.bytes())
        ),
        points_at: "pg_logical_emit_message".into(),
        remedy: "messages that no output plugin reads need not be written; long ones can refer to their content by its key".into(),
        ..Candidate::new(claim, (0.0, 1.0))
    }]
}

pub(super) fn large(facts: &Facts<'_>) -> Vec<Candidate> {
    let Some(largest) = facts.explanation.transactions.first() else { return Vec::new() };
    let mut claim = Claim::default();
    claim.add_spread(largest.bytes);
    let when = largest.time.map(|time| format!(" at {}", second_text(time.div_euclid(1_000_000))));
    vec![Candidate {
        text: format!(
            "transaction {} ({}{}) writes {} of the WAL in {} records",
            largest.xid,
            largest.outcome.name(),
            when.unwrap_or_default(),
            facts.percent(largest.bytes),
            largest.records
        ),
        points_at: format!("transaction {}", largest.xid),
        remedy: "--by xid,relation,record shows its records".into(),
        saves: None,
        ..Candidate::new(claim, (0.0, 1.0))
    }]
}

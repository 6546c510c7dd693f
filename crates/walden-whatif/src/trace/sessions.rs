//! Whether the work is that of one session at a time.
//!
//! What a single session writes is the same each time it does the same: two runs of pgbench with one client differ by a few bytes.
//! With several sessions, or autovacuum beside one, the order of changes differs from run to run, and so do the pages that are changed.

use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::info::xact::{
    ABORT, ABORT_PREPARED, COMMIT, COMMIT_PREPARED, HAS_INFO, OPMASK, PREPARE,
};
use walden_format::rmgr::info::{heap, heap2};
use walden_format::rmgr::rmid;
use walden_format::version::Major;

/// Transactions in progress that are remembered.
const MAX_OPEN: usize = 64;

/// Observes whether transactions overlap.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Transactions and subtransactions in progress that have written something.
    open: Vec<u32>,
    last: u32,
    overlaps: bool,
}

impl Sessions {
    /// Whether a transaction wrote something while another one was in progress.
    pub fn overlap(&self) -> bool {
        self.overlaps
    }

    /// Observes a record.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) {
        if self.overlaps {
            return;
        }
        let xid = record.header.xid;
        if record.header.rmid == rmid::XACT {
            self.end(record);
        } else if xid == 0 {
            // Vacuum, and pruning by a reader: a session with a transaction in progress would have logged that.
            self.overlaps = !record.blocks.is_empty() && !self.open.is_empty();
        } else if xid != self.last {
            self.last = xid;
            if !self.open.contains(&xid) && self.open.len() < MAX_OPEN {
                self.open.push(xid);
            }
        }
    }

    #[inline(never)]
    fn end(&mut self, record: &Record<'_>) {
        let (xid, info) = (record.header.xid, record.header.info);
        self.last = 0;
        let kind = info & OPMASK;
        match kind {
            // A session does nothing else between the preparation of a transaction and its next one.
            PREPARE => self.open.clear(),
            COMMIT | ABORT if info & HAS_INFO == 0 => self.open.retain(|open| *open != xid),
            COMMIT | ABORT | COMMIT_PREPARED | ABORT_PREPARED => {
                if let Ok(Payload::Commit(end) | Payload::Abort(end)) = payload::parse(record) {
                    self.open.retain(|open| *open != xid && end.subxacts.into_iter().all(|sub| sub != *open));
                }
            }
            _ => return,
        }
        // After the abort of a subtransaction, the one around it is still in progress.
        self.overlaps = matches!(kind, COMMIT) && !self.open.is_empty();
    }
}

/// What is written without a transaction: by vacuum, and by statements that prune a page or log a hint before they change anything.
///
/// When autovacuum comes to a table depends on the clock and on how busy the machine is. In another run it comes once more or less
/// often, and finds more or less to do. Of the others, each record is one that another run may have or not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Background {
    vacuum: Written,
    others: Written,
    /// Until 16, vacuum prunes pages by the same records as statements do.
    prunes: Written,
    /// Updates of a relation's statistics, with which its vacuum ends (`vac_update_relstats`).
    runs: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Written {
    bytes: u64,
    records: u64,
}

impl Written {
    fn add(&mut self, record: &Record<'_>) {
        self.bytes += u64::from(record.header.total_len);
        self.records += 1;
    }
}

impl Background {
    /// Observes a record.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) {
        if record.header.xid != 0 || record.blocks.is_empty() {
            return;
        }
        let (manager, kind) = (record.header.rmid, record.rmgr_info() & heap::OPMASK);
        self.runs += u64::from(manager == rmid::HEAP && kind == heap::INPLACE);
        let written = match (manager, kind) {
            // The same value as `PRUNE_ON_ACCESS` of 17 and later.
            (rmid::HEAP2, heap2::PRUNE) if record.version < Major::V17 => &mut self.prunes,
            (rmid::HEAP2, heap2::PRUNE) | (rmid::XLOG, _) => &mut self.others,
            _ => &mut self.vacuum,
        };
        written.add(record);
    }

    /// Twice the standard error of its bytes in another run, as a fraction of all, if relations are vacuumed, and pages pruned by
    /// statements, as independently of each other as calls arrive (a Poisson process).
    pub fn noise(&self, trace_bytes: u64) -> f64 {
        // Vacuum logs something else, too, for nearly each page that it prunes: its visibility, or what is removed in the end.
        let by_vacuum = (self.vacuum.records as f64 / self.prunes.records.max(1) as f64).min(1.0);
        let of_prunes = |share: f64| [self.prunes.bytes, self.prunes.records].map(|all| share * all as f64);
        let [vacuum_prune_bytes, _] = of_prunes(by_vacuum);
        let [prune_bytes, prunes] = of_prunes(1.0 - by_vacuum);
        let runs = if self.runs > 0 { self.runs } else { self.vacuum.records };
        let error = |bytes: f64, times: f64| 2.0 * bytes / times.max(1.0).sqrt();
        let vacuum = error(self.vacuum.bytes as f64 + vacuum_prune_bytes, runs as f64);
        let others = error(self.others.bytes as f64 + prune_bytes, self.others.records as f64 + prunes);
        vacuum.hypot(others) / trace_bytes.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_vacuum_is_its_share_by_the_root_of_its_runs() {
        let vacuum = Written { bytes: 200, records: 1000 };
        let background = Background { vacuum, runs: 100, ..Background::default() };
        assert_eq!(background.noise(1000), 2.0 * 0.2 / 10.0);
        assert_eq!(Background::default().noise(0), 0.0);
        let readers = Background { runs: 0, ..background };
        assert!(readers.noise(1000) < background.noise(1000));
    }

    #[test]
    fn pages_that_statements_prune_are_independent_of_each_other() {
        let prunes = Written { bytes: 400, records: 10_000 };
        // Four relations were analyzed; nothing was vacuumed.
        let background = Background { prunes, runs: 4, ..Background::default() };
        assert_eq!(background.noise(1000), 2.0 * 0.4 / 100.0);
        // Vacuum with as many records of its own has pruned them.
        let vacuum = Written { bytes: 0, records: 10_000 };
        let vacuumed = Background { vacuum, ..background };
        assert_eq!(vacuumed.noise(1000), 2.0 * 0.4 / 2.0);
    }
}

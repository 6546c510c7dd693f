//! Whether the work is that of one session at a time.
//!
//! What a single session writes is the same each time it does the same: two runs of pgbench with one client differ by a few bytes.
//! With several sessions, or autovacuum beside one, the order of changes differs from run to run, and so do the pages that are changed.

use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::info::heap;
use walden_format::rmgr::info::xact::{
    ABORT, ABORT_PREPARED, COMMIT, COMMIT_PREPARED, HAS_INFO, OPMASK, PREPARE,
};
use walden_format::rmgr::rmid;

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

/// What vacuum writes, and readers that prune pages: records without a transaction.
///
/// When autovacuum comes to a table depends on the clock and on how busy the machine is. In another run it comes once more or less
/// often, and finds more or less to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Background {
    bytes: u64,
    records: u64,
    /// Updates of a relation's statistics, with which its vacuum ends (`vac_update_relstats`).
    runs: u64,
}

impl Background {
    /// Observes a record.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) {
        if record.header.xid == 0 && !record.blocks.is_empty() {
            self.bytes += u64::from(record.header.total_len);
            self.records += 1;
            let is_inplace =
                record.header.rmid == rmid::HEAP && record.rmgr_info() & heap::OPMASK == heap::INPLACE;
            self.runs += u64::from(is_inplace);
        }
    }

    /// Twice the standard error of its bytes in another run, as a fraction of all, if relations are vacuumed as independently of each
    /// other as calls arrive (a Poisson process).
    pub fn noise(&self, trace_bytes: u64) -> f64 {
        let runs = if self.runs > 0 { self.runs } else { self.records }.max(1);
        2.0 * self.bytes as f64 / trace_bytes.max(1) as f64 / (runs as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_vacuum_is_its_share_by_the_root_of_its_runs() {
        let background = Background { bytes: 200, records: 1000, runs: 100 };
        assert_eq!(background.noise(1000), 2.0 * 0.2 / 10.0);
        assert_eq!(Background::default().noise(0), 0.0);
        let readers = Background { runs: 0, ..background };
        assert!(readers.noise(1000) < background.noise(1000));
    }
}

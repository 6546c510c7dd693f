//! Determines whether a single session at a time does the work.
//!
//! A single session writes nearly the same WAL each time it does the same work: two runs of pgbench with one
//! client differ by a few bytes. With several sessions, or with autovacuum next to one, the order of changes
//! differs from run to run, and so do the changed pages.

use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::info::xact::{
    ABORT, ABORT_PREPARED, COMMIT, COMMIT_PREPARED, HAS_INFO, OPMASK, PREPARE,
};
use walden_format::rmgr::info::{btree, heap, heap2};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_redo::PAGE_BYTES;

/// Maximum number of remembered transactions in progress.
const MAX_OPEN: usize = 64;

/// Observes whether transactions overlap.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Transactions and subtransactions in progress that have written WAL.
    open: Vec<u32>,
    last: u32,
    overlaps: bool,
}

impl Sessions {
    /// Returns whether a transaction wrote WAL while another transaction was in progress.
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
            // Vacuum, or pruning by a reader: a session with a transaction in progress would have logged it
            // with an xid.
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
        // After the abort of a subtransaction, its parent is still in progress.
        self.overlaps = matches!(kind, COMMIT) && !self.open.is_empty();
    }
}

/// Splits of B-tree pages that new keys in random order cause. In another run, other pages are split, as
/// random keys are others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RandomSplits(Written);

/// Minimum bytes of the right page after a split that random keys cause. Random keys divide a page in half;
/// after keys in ascending order, the left page is full.
const MIN_RIGHT_BYTES: usize = PAGE_BYTES * 3 / 10;

impl RandomSplits {
    /// Observes a record.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) {
        let is_split = record.header.rmid == rmid::BTREE
            && matches!(record.rmgr_info(), btree::SPLIT_L | btree::SPLIT_R);
        if is_split
            && record
                .blocks
                .iter()
                .any(|block| block.id == 1 && usize::from(block.data_len) >= MIN_RIGHT_BYTES)
        {
            self.0.add(record);
        }
    }

    /// Returns twice the standard error of the bytes of random splits in another run, as a fraction of all
    /// bytes, as if splits were independent events. Splits are rarer where a page has just been split, so
    /// this is an upper bound.
    pub fn noise(&self, trace_bytes: u64) -> f64 {
        self.0.error() / trace_bytes.max(1) as f64
    }
}

/// WAL that is written without a transaction: by vacuum, and by statements that prune a page or log a hint
/// before they change anything.
///
/// The time at which autovacuum processes a table depends on the clock and on the load of the machine. In
/// another run it processes the table more or less often, and finds more or less work. Each of the other
/// records may or may not occur in another run.
///
/// If many records of background processes follow each other and no session writes, the preceding work has
/// ended: vacuum then finds the result of this work, which is the same in another run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Background {
    beside_others: Counts,
    /// Counts since a transaction last wrote WAL.
    streak: Counts,
}

/// Number of records in a row that come from a vacuum without concurrent activity. Otherwise, autovacuum
/// pauses after ten pages by default.
const ALONE: u64 = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    vacuum: Written,
    others: Written,
    /// Until 16, vacuum prunes pages with the same records as statements.
    prunes: Written,
    /// Number of updates of a relation's statistics, which end its vacuum (`vac_update_relstats`).
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

    /// Returns twice the standard error in bytes of independent records.
    fn error(self) -> f64 {
        2.0 * self.bytes as f64 / (self.records as f64).max(1.0).sqrt()
    }

    fn plus(self, other: Written) -> Written {
        Written { bytes: self.bytes + other.bytes, records: self.records + other.records }
    }
}

impl Background {
    /// Observes a record.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) {
        if record.header.xid != 0 {
            if self.streak.records() > 0 {
                self.beside_others = self.all_beside_others();
                self.streak = Counts::default();
            }
        } else if !record.blocks.is_empty() {
            self.streak.observe(record);
        }
    }

    /// Returns twice the standard error of its bytes in another run, as a fraction of all bytes, assuming
    /// that vacuums of relations and prunings by statements are independent events (a Poisson process).
    pub fn noise(&self, trace_bytes: u64) -> f64 {
        self.all_beside_others().error() / trace_bytes.max(1) as f64
    }

    /// Whether a vacuum ended.
    pub fn has_vacuum(&self) -> bool {
        self.all_beside_others().runs > 0
    }

    fn all_beside_others(&self) -> Counts {
        match self.streak.records() < ALONE {
            true => self.beside_others.plus(&self.streak),
            false => self.beside_others,
        }
    }
}

/// Records that prune pages, in parts of equally many updates and deletes.
///
/// A statement prunes a page of the row versions that no snapshot sees. While a transaction with an older
/// snapshot is in progress, pages are pruned of fewer versions, or not at all. In another run, transactions
/// with older snapshots are in progress at other times. The differences between adjacent parts of the trace
/// show how much this matters.
#[derive(Clone, Debug)]
pub(super) struct Prunes {
    /// Records in each complete part.
    parts: Vec<u32>,
    /// Number of updates and deletes in a part.
    part_versions: u32,
    /// Counts of the part that is not complete.
    versions: u32,
    records: u32,
    all_records: u64,
    /// Bytes of all these records without images.
    bytes: u64,
}

/// Number of parts at which adjacent parts are merged in pairs.
const MAX_PARTS: usize = 128;

impl Default for Prunes {
    fn default() -> Prunes {
        Prunes { parts: Vec::new(), part_versions: 64, versions: 0, records: 0, all_records: 0, bytes: 0 }
    }
}

impl Prunes {
    /// Observes a record.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) {
        match (record.header.rmid, record.rmgr_info() & heap::OPMASK) {
            (rmid::HEAP, heap::HOT_UPDATE | heap::UPDATE | heap::DELETE) => self.add_version(),
            // The same value as `PRUNE_ON_ACCESS` of 17 and later.
            (rmid::HEAP2, heap2::PRUNE) => {
                self.add_pruning(record.header.total_len.saturating_sub(record.image_bytes()));
            }
            _ => {}
        }
    }

    fn add_pruning(&mut self, bytes: u32) {
        self.records += 1;
        self.all_records += 1;
        self.bytes += u64::from(bytes);
    }

    fn add_version(&mut self) {
        self.versions += 1;
        if self.versions < self.part_versions {
            return;
        }
        self.parts.push(self.records);
        (self.versions, self.records) = (0, 0);
        if self.parts.len() == MAX_PARTS {
            self.parts = self.parts.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.part_versions = self.part_versions.saturating_mul(2);
        }
    }

    /// Returns the sum of the differences between adjacent parts, in bytes: records times their mean size.
    pub fn noise(&self) -> f64 {
        let differences: u64 = self.parts.windows(2).map(|pair| u64::from(pair[0].abs_diff(pair[1]))).sum();
        self.bytes as f64 / self.all_records.max(1) as f64 * differences as f64
    }
}

impl Counts {
    fn records(&self) -> u64 {
        self.vacuum.records + self.others.records + self.prunes.records
    }

    fn plus(&self, other: &Counts) -> Counts {
        Counts {
            vacuum: self.vacuum.plus(other.vacuum),
            others: self.others.plus(other.others),
            prunes: self.prunes.plus(other.prunes),
            runs: self.runs + other.runs,
        }
    }

    fn observe(&mut self, record: &Record<'_>) {
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

    /// Returns twice the standard error in bytes.
    fn error(&self) -> f64 {
        // Vacuum also logs another record for nearly each page that it prunes: its visibility, or the removed
        // line pointers.
        let by_vacuum = (self.vacuum.records as f64 / self.prunes.records.max(1) as f64).min(1.0);
        let of_prunes = |share: f64| [self.prunes.bytes, self.prunes.records].map(|all| share * all as f64);
        let [vacuum_prune_bytes, _] = of_prunes(by_vacuum);
        let [prune_bytes, prunes] = of_prunes(1.0 - by_vacuum);
        let runs = if self.runs > 0 { self.runs } else { self.vacuum.records };
        let error = |bytes: f64, times: f64| 2.0 * bytes / times.max(1.0).sqrt();
        let vacuum = error(self.vacuum.bytes as f64 + vacuum_prune_bytes, runs as f64);
        let others = error(self.others.bytes as f64 + prune_bytes, self.others.records as f64 + prunes);
        vacuum.hypot(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_splits_is_their_share_by_the_root_of_their_number() {
        let splits = RandomSplits(Written { bytes: 400_000, records: 100 });
        assert_eq!(splits.noise(8_000_000), 2.0 * 0.05 / 10.0);
        assert_eq!(RandomSplits::default().noise(0), 0.0);
    }

    #[test]
    fn the_noise_of_prunings_is_how_much_their_number_changes() {
        let noise = |prunings: &dyn Fn(u32) -> u32| {
            let mut prunes = Prunes::default();
            for version in 0..20_000 {
                (0..prunings(version)).for_each(|_| prunes.add_pruning(80));
                prunes.add_version();
            }
            assert!(prunes.parts.len() < MAX_PARTS && prunes.bytes == prunes.all_records * 80);
            prunes.noise() / prunes.bytes.max(1) as f64
        };
        assert_eq!(noise(&|_| 0), 0.0);
        assert!(noise(&|_| 1) < 0.01);
        // More and more pages are full.
        assert!(noise(&|version| u32::from(version % 16 < version / 1250)) < 0.1);
        // Pages are pruned only while no other transaction is in progress.
        assert!(noise(&|version| u32::from(version / 1000 % 2 == 0)) > 0.3);
    }

    fn beside_others(counts: Counts) -> Background {
        Background { beside_others: counts, ..Background::default() }
    }

    #[test]
    fn the_noise_of_vacuum_is_its_share_by_the_root_of_its_runs() {
        let counts = Counts { vacuum: Written { bytes: 200, records: 1000 }, runs: 100, ..Counts::default() };
        let noise = beside_others(counts).noise(1000);
        assert_eq!(noise, 2.0 * 0.2 / 10.0);
        assert_eq!(Background::default().noise(0), 0.0);
        let readers = Counts { runs: 0, ..counts };
        assert!(beside_others(readers).noise(1000) < noise);
    }

    #[test]
    fn a_vacuum_that_has_the_server_for_itself_is_no_noise() {
        let vacuum =
            |records| Counts { vacuum: Written { bytes: 200, records }, runs: 1, ..Counts::default() };
        let noise = |records| Background { streak: vacuum(records), ..Background::default() }.noise(1000);
        assert_eq!(noise(ALONE - 1), 2.0 * 0.2);
        assert_eq!(noise(ALONE), 0.0);
    }

    #[test]
    fn pages_that_statements_prune_are_independent_of_each_other() {
        let prunes = Written { bytes: 400, records: 10_000 };
        // Four relations were analyzed; no relation was vacuumed.
        let counts = Counts { prunes, runs: 4, ..Counts::default() };
        assert_eq!(beside_others(counts).noise(1000), 2.0 * 0.4 / 100.0);
        // Vacuum pruned the pages, and wrote an equal number of other records.
        let vacuum = Written { bytes: 0, records: 10_000 };
        assert_eq!(beside_others(Counts { vacuum, ..counts }).noise(1000), 2.0 * 0.4 / 2.0);
    }
}

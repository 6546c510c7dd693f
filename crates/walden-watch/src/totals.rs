//! Sums since the start, with a bounded number of keys; the source of counters in metrics.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use walden_explain::checkpoints::Cause;
use walden_explain::group::{Cell, Owner};
use walden_explain::live::Piece;
use walden_explain::tally::Tally;
use walden_format::record::RelFileLocator;

/// Maximum number of databases with a separate sum.
const MAX_DATABASES: usize = 100;
/// After this time without WAL, in seconds, a relation may lose its separate sum to another relation.
const IDLE_AFTER: f64 = 900.0;
/// Maximum number of relations with a separate sum, as a multiple of the number of largest relations. A
/// relation that is no longer among the largest keeps its sum, so that no sum ends while it grows.
const MAX_SHARE: usize = 10;

/// Sums since the start. Each sum only grows. The sum of a relation may end once the relation is idle, and
/// start again from 0.
#[derive(Debug, Default)]
pub struct Totals {
    /// Everything.
    pub all: Tally,
    /// By kind of record; `None` for page headers and padding.
    pub kinds: BTreeMap<Option<u16>, Tally>,
    /// By database; `None` for bytes without a database.
    pub databases: BTreeMap<Option<u32>, Tally>,
    /// Sum of the databases beyond the limit.
    pub other_databases: Tally,
    /// Sums by relation, for relations with a separate sum.
    pub relations: FxHashMap<RelFileLocator, RelationTotal>,
    /// Sum of the other relations.
    pub other_relations: Tally,
    /// Sum of the relations whose separate sum has ended.
    pub left_relations: Tally,
    /// Ended sums of relations that are not yet added to `left_relations` or to another file of the same
    /// relation.
    pub(crate) ended: Vec<(RelFileLocator, Tally)>,
    /// Records and framing without a relation.
    pub no_relation: Tally,
    /// Number of the largest relations that keep a separate sum when `MAX_SHARE` times as many have one.
    pub max_relations: usize,
    /// Committed transactions.
    pub committed: u64,
    /// Number of transactions that were rolled back.
    pub aborted: u64,
    /// Bytes of WAL that were not counted because they could not be read.
    pub missed_bytes: u64,
    pub(crate) checkpoints: BTreeMap<&'static str, u64>,
}

/// The sum of a relation.
#[derive(Clone, Copy, Debug, Default)]
pub struct RelationTotal {
    /// Sum since the relation has a separate sum.
    pub tally: Tally,
    /// When the relation last wrote WAL, in seconds since the start.
    pub last: f64,
    /// Whether it is among the largest.
    pub is_large: bool,
}

impl Totals {
    pub(crate) fn add(&mut self, piece: &Piece, now: f64) {
        let mut relations: FxHashMap<RelFileLocator, Tally> = FxHashMap::default();
        for (Cell { owner, kind }, tally) in &piece.cells {
            self.all.merge(tally);
            self.kinds.entry(*kind).or_default().merge(tally);
            let database = match owner {
                Owner::Relation(relation, _) => {
                    relations.entry(*relation).or_default().merge(tally);
                    Some(relation.database)
                }
                Owner::None | Owner::Framing => {
                    self.no_relation.merge(tally);
                    None
                }
            };
            let has_room = self.databases.len() < MAX_DATABASES;
            match self.databases.get_mut(&database) {
                Some(sum) => sum.merge(tally),
                None if has_room => drop(self.databases.insert(database, *tally)),
                None => self.other_databases.merge(tally),
            }
        }
        let mut relations: Vec<_> = relations.into_iter().collect();
        relations.sort_unstable_by_key(|(relation, tally)| (std::cmp::Reverse(tally.bytes()), *relation));
        for (relation, tally) in relations {
            self.add_relation(relation, &tally, now);
        }
        self.committed += piece.committed;
        self.aborted += piece.aborted;
    }

    fn add_relation(&mut self, relation: RelFileLocator, tally: &Tally, now: f64) {
        if let Some(total) = self.relations.get_mut(&relation) {
            total.tally.merge(tally);
            total.last = now;
            return;
        }
        let large = || self.relations.iter().filter(|(_, total)| total.is_large);
        if large().count() >= self.max_relations {
            let idlest = large().min_by(|one, other| one.1.last.total_cmp(&other.1.last));
            // An idle relation loses its separate sum, and so does a small relation if another relation now
            // writes more at once than the small relation ever has.
            let smallest = || large().min_by_key(|(key, total)| (total.tally.bytes(), **key));
            let leaves = match idlest {
                Some((key, total)) if now - total.last > IDLE_AFTER => Some(*key),
                _ => smallest().filter(|(_, total)| total.tally.bytes() < tally.bytes()).map(|(key, _)| *key),
            };
            let Some(leaves) = leaves.filter(|_| self.has_room(now)) else {
                return self.other_relations.merge(tally);
            };
            if let Some(total) = self.relations.get_mut(&leaves) {
                total.is_large = false;
            }
            self.make_room(now);
        }
        self.relations.insert(relation, RelationTotal { tally: *tally, last: now, is_large: true });
    }

    /// Returns the relation that has been idle for the longest time, if its sum may end.
    fn idle_relation(&self, now: f64) -> Option<RelFileLocator> {
        let idle = self.relations.iter().filter(|(_, total)| now - total.last > IDLE_AFTER);
        idle.min_by(|one, other| one.1.last.total_cmp(&other.1.last)).map(|(key, _)| *key)
    }

    fn is_full(&self) -> bool {
        self.relations.len() >= self.max_relations.saturating_mul(MAX_SHARE)
    }

    /// Returns whether another relation can get a sum of its own.
    fn has_room(&self, now: f64) -> bool {
        !self.is_full() || self.idle_relation(now).is_some()
    }

    fn make_room(&mut self, now: f64) {
        if self.is_full()
            && let Some(idle) = self.idle_relation(now)
            && let Some(total) = self.relations.remove(&idle)
        {
            self.ended.push((idle, total.tally));
        }
    }

    pub(crate) fn add_checkpoint(&mut self, cause: Cause) {
        *self.checkpoints.entry(cause.name()).or_default() += 1;
    }

    /// Returns the number of checkpoints with this cause whose record was seen.
    pub fn checkpoints(&self, cause: Cause) -> u64 {
        self.checkpoints.get(cause.name()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walden_explain::tally::Bucket;
    use walden_format::record::Fork;

    fn piece(relation: u32, bytes: u64) -> Piece {
        let mut tally = Tally::default();
        tally.buckets.add(Bucket::BlockData, bytes);
        let relation = RelFileLocator { tablespace: 1663, database: relation % 300, relation };
        let cell = Cell { owner: Owner::Relation(relation, Fork::MAIN), kind: Some(1) };
        Piece { cells: vec![(cell, tally)], ..Piece::default() }
    }

    #[test]
    fn keys_are_bounded_and_sums_are_exact() {
        let mut totals = Totals { max_relations: 5, ..Totals::default() };
        let mut sum = 0;
        for number in 0..1000_u32 {
            // Each relation has been idle for long before the last one is added.
            totals.add(&piece(number, u64::from(number % 7) * 100), 20.0 * f64::from(number));
            sum += u64::from(number % 7) * 100;
            let apart: u64 = totals.relations.values().map(|total| total.tally.bytes()).sum();
            let ended: u64 = totals.ended.iter().map(|(_, tally)| tally.bytes()).sum();
            assert_eq!(apart + totals.other_relations.bytes() + ended, sum);
            assert!(totals.relations.len() <= 5 * MAX_SHARE);
        }
        assert!(!totals.ended.is_empty());
        let databases: u64 = totals.databases.values().map(Tally::bytes).sum();
        assert_eq!(databases + totals.other_databases.bytes(), sum);
        assert!(totals.databases.len() <= MAX_DATABASES);
        assert_eq!((totals.all.bytes(), totals.kinds[&Some(1)].bytes()), (sum, sum));
    }

    #[test]
    fn no_relation_ends_while_it_writes() {
        let mut totals = Totals { max_relations: 2, ..Totals::default() };
        for number in 0..1000_u32 {
            totals.add(&piece(number, 100 + u64::from(number)), 0.5 * f64::from(number));
        }
        assert_eq!((totals.relations.len(), totals.ended.len()), (2 * MAX_SHARE, 0));
        let large = totals.relations.values().filter(|total| total.is_large).count();
        assert_eq!(large, 2);
        assert!(totals.other_relations.bytes() > 0);
    }

    #[test]
    fn an_idle_relation_gives_its_place_to_one_that_writes() {
        let mut totals = Totals { max_relations: 1, ..Totals::default() };
        let is_apart =
            |totals: &Totals, number| totals.relations.keys().any(|relation| relation.relation == number);
        totals.add(&piece(1, 1_000_000), 0.0);
        totals.add(&piece(2, 10), 1.0);
        assert!(is_apart(&totals, 1) && !is_apart(&totals, 2));
        totals.add(&piece(2, 10), IDLE_AFTER + 1.0);
        // Its sum continues while there is room.
        assert!(is_apart(&totals, 1) && is_apart(&totals, 2));
        assert!(!totals.relations.values().any(|total| total.is_large && total.tally.bytes() > 10));
    }
}

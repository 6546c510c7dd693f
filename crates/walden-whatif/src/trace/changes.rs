//! When each block was last changed, for all simulations at once.
//!
//! A block gets a full-page image if its last change lies before the redo pointer. So one number for each block serves all
//! simulations that write the same records, whatever their checkpoints: the epoch of its last change, where an epoch ends whenever
//! a checkpoint begins in any of them.

use crate::simulate::Simulation;

/// Epochs of the last change of each block.
#[derive(Debug)]
pub(super) struct LastChanges {
    epoch: u32,
    cycles: Vec<Cycle>,
    columns: usize,
    /// The simulations of each column, as bit masks.
    members: Vec<u64>,
    /// By slot and column; 0 for none since the start.
    changed: Vec<u32>,
}

/// The current checkpoint cycle of a simulation.
#[derive(Debug)]
struct Cycle {
    column: usize,
    number: u32,
    /// The epoch in which it began.
    began: u32,
}

/// In place of an epoch: the block was changed, and the change not logged, so that the page has no LSN. Before any epoch.
const NOT_LOGGED: u32 = 1;
/// The epoch in which all simulations start.
const FIRST_EPOCH: u32 = 2;

impl LastChanges {
    /// `omits`: what a simulation does not write, such as images for hint bits. Those that omit the same share a column.
    pub fn new<T: PartialEq>(
        simulations: &[Simulation],
        mut omits: impl FnMut(&Simulation) -> T,
    ) -> LastChanges {
        let mut columns: Vec<T> = Vec::new();
        let mut column_of = |simulation: &Simulation| {
            let key = omits(simulation);
            columns.iter().position(|known| *known == key).unwrap_or_else(|| {
                columns.push(key);
                columns.len() - 1
            })
        };
        let cycle =
            |one: &Simulation| Cycle { column: column_of(one), number: one.cycle, began: FIRST_EPOCH };
        let cycles: Vec<Cycle> = simulations.iter().map(cycle).collect();
        let mut members = vec![0; columns.len()];
        cycles.iter().enumerate().for_each(|(at, cycle)| members[cycle.column] |= 1 << at);
        LastChanges { epoch: FIRST_EPOCH, cycles, columns: columns.len(), members, changed: Vec::new() }
    }

    /// Observes the checkpoints that began since the last change.
    #[inline]
    pub fn observe_checkpoints(&mut self, simulations: &[Simulation]) {
        let mut has_begun = false;
        for (cycle, simulation) in self.cycles.iter_mut().zip(simulations) {
            if cycle.number != simulation.cycle {
                cycle.number = simulation.cycle;
                cycle.began = self.epoch + 1;
                has_begun = true;
            }
        }
        self.epoch += u32::from(has_begun);
    }

    /// Makes room for a block. `is_fresh`: the slot belonged to another block before.
    #[inline]
    pub fn reserve(&mut self, slot: usize, is_fresh: bool) {
        let end = (slot + 1) * self.columns;
        if self.changed.len() < end {
            self.changed.resize(end.max(1024), 0);
        }
        if is_fresh {
            self.changed[slot * self.columns..end].fill(0);
        }
    }

    /// Whether the block has not been changed in the simulation's current checkpoint cycle. `is_recent`: whether it was, before
    /// the start.
    #[inline]
    pub fn is_stale(&self, slot: usize, simulation: usize, is_recent: bool) -> bool {
        let Cycle { column, began, .. } = self.cycles[simulation];
        match self.changed[slot * self.columns + column] {
            0 => began > FIRST_EPOCH || !is_recent,
            changed => changed < began,
        }
    }

    /// Whether the block was changed in the simulation since the start.
    #[inline]
    pub fn is_changed(&self, slot: usize, simulation: usize) -> bool {
        self.changed[slot * self.columns + self.cycles[simulation].column] != 0
    }

    /// Notes a change by these simulations, as a bit mask, and so by all that write the same records.
    #[inline]
    pub fn note(&mut self, slot: usize, simulations: u64) {
        self.set(slot, simulations, self.epoch);
    }

    /// Notes a change that these simulations do not log: the next one that they do log has an image, whenever it comes.
    pub fn note_not_logged(&mut self, slot: usize, simulations: u64) {
        self.set(slot, simulations, NOT_LOGGED);
    }

    #[inline]
    fn set(&mut self, slot: usize, simulations: u64, epoch: u32) {
        let Some(row) = self.changed.get_mut(slot * self.columns..(slot + 1) * self.columns) else { return };
        for (column, members) in self.members.iter().enumerate() {
            if members & simulations != 0 {
                row[column] = epoch;
            }
        }
    }

    /// Notes a change by all simulations.
    #[inline]
    pub fn note_all(&mut self, slot: usize) {
        self.note(slot, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use walden_format::lsn::Lsn;
    use walden_format::version::Major;

    use super::*;
    use crate::settings::Settings;
    use crate::simulate::CheckpointRecords;

    fn simulations(count: usize) -> Vec<Simulation> {
        let one = |_| {
            let settings = Settings::default_of(Major::V15);
            Simulation::new(settings, Lsn(0x100_0028), Lsn(0x100_0028), 0, CheckpointRecords::default())
        };
        (0..count).map(one).collect()
    }

    /// A page whose change was not logged has no LSN, and so an image at the next one, in the first checkpoint cycle too.
    #[test]
    fn a_change_that_is_not_logged_leaves_the_page_without_a_position() {
        let simulations = simulations(2);
        let mut at = 0..;
        let mut changes = LastChanges::new(&simulations, |_| at.next().unwrap());
        changes.reserve(0, true);
        changes.note_not_logged(0, 0b01);
        assert!(changes.is_stale(0, 0, true) && changes.is_changed(0, 0));
        assert!(!changes.is_stale(0, 1, true) && !changes.is_changed(0, 1));
        changes.note(0, 0b01);
        assert!(!changes.is_stale(0, 0, true));
    }

    /// The rule with a cycle for each block and simulation, which is what the epochs stand for.
    #[test]
    fn epochs_are_as_good_as_cycles() {
        let mut simulations = simulations(5);
        let groups = [0, 1, 0, 1, 2];
        let mut at = 0..;
        let mut changes = LastChanges::new(&simulations, |_| groups[at.next().unwrap()]);
        let mut cycles = [[0_u32; 5]; 8];
        let mut random = 12_345_u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % below
        };
        for _ in 0..2000 {
            for simulation in &mut simulations {
                simulation.cycle += u32::from(next(10) == 0);
            }
            changes.observe_checkpoints(&simulations);
            let slot = next(8) as usize;
            let is_fresh = next(20) == 0;
            changes.reserve(slot, is_fresh);
            if is_fresh {
                cycles[slot] = [0; 5];
            }
            for (at, simulation) in simulations.iter().enumerate() {
                let stale = match cycles[slot][at] {
                    0 => simulation.cycle > 1,
                    cycle => cycle != simulation.cycle,
                };
                assert_eq!(changes.is_stale(slot, at, true), stale);
                assert_eq!(changes.is_changed(slot, at), cycles[slot][at] != 0);
            }
            let group = next(4);
            if group == 3 {
                changes.note_all(slot);
            } else {
                changes.note(slot, 1 << groups.iter().position(|one| *one == group).unwrap());
            }
            for at in (0..5).filter(|at| group == 3 || groups[*at] == group) {
                cycles[slot][at] = simulations[at].cycle;
            }
        }
    }

    #[test]
    fn a_block_takes_as_much_memory_with_many_simulations_as_with_one() {
        let bytes = |count| {
            let mut changes = LastChanges::new(&simulations(count), |_| ());
            (0..100_000).for_each(|slot| {
                changes.reserve(slot, false);
                changes.note_all(slot);
            });
            changes.changed.capacity() * size_of::<u32>()
        };
        assert_eq!(bytes(1), bytes(64));
        assert!(bytes(64) <= 2 * 4 * 100_000);
    }
}

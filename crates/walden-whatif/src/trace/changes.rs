//! Tracks the last change of each block, for all simulations.
//!
//! A block gets a full-page image if its last change precedes the redo pointer. So one number for each block
//! serves all simulations that write the same records, whatever their checkpoints: the epoch of the block's
//! last change, where an epoch ends whenever a checkpoint starts in any simulation.

use walden_format::lsn::Lsn;

use crate::simulate::Simulation;

/// Epochs of the last change of each block.
#[derive(Debug)]
pub(super) struct LastChanges {
    epoch: u32,
    cycles: Vec<Cycle>,
    columns: usize,
    /// The simulations of each column, as bit masks.
    members: Vec<u64>,
    /// By slot and column; 0 if unchanged since the start.
    changed: Vec<u32>,
    /// The starts of the checkpoint cycles of each simulation, and of the trace's own.
    begins: Vec<Vec<Begin>>,
    begins_of_trace: Vec<Begin>,
    /// By slot: whether readers set hint bits on the page.
    is_hintable: Vec<bool>,
}

/// The start of a checkpoint cycle.
#[derive(Clone, Copy, Debug)]
struct Begin {
    epoch: u32,
    /// The position in the trace.
    lsn: Lsn,
}

/// Distance in bytes up to which a checkpoint of a simulation and the next checkpoint of the trace count as
/// one checkpoint.
const SAME_CHECKPOINT: u64 = 256 << 10;

/// The current checkpoint cycle of a simulation.
#[derive(Debug)]
struct Cycle {
    column: usize,
    number: u32,
    /// The epoch in which it started.
    began: u32,
}

/// A special epoch, before all others: the block was changed without logging the change, so the page has no
/// LSN.
const NOT_LOGGED: u32 = 1;
/// The epoch in which all simulations start.
const FIRST_EPOCH: u32 = 2;

impl LastChanges {
    /// `omits` returns the types of records that a simulation does not write, such as images for hint bits.
    /// Simulations that omit the same share a column.
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
        LastChanges {
            epoch: FIRST_EPOCH,
            columns: columns.len(),
            members,
            changed: Vec::new(),
            begins: vec![Vec::new(); cycles.len()],
            begins_of_trace: Vec::new(),
            is_hintable: Vec::new(),
            cycles,
        }
    }

    /// Observes the simulations' checkpoints since the last change, at a position of the trace.
    #[inline]
    pub fn observe_checkpoints(&mut self, simulations: &[Simulation], lsn: Lsn) {
        let mut has_begun = false;
        for ((cycle, simulation), begins) in self.cycles.iter_mut().zip(simulations).zip(&mut self.begins) {
            if cycle.number != simulation.cycle {
                cycle.number = simulation.cycle;
                cycle.began = self.epoch + 1;
                begins.push(Begin { epoch: cycle.began, lsn });
                has_begun = true;
            }
        }
        self.epoch += u32::from(has_begun);
    }

    /// Observes a checkpoint of the trace.
    pub fn observe_checkpoint_of_trace(&mut self, redo: Lsn) {
        self.epoch += 1;
        self.begins_of_trace.push(Begin { epoch: self.epoch, lsn: redo });
    }

    /// Records that readers set hint bits on the page of a slot.
    #[inline]
    pub fn note_hintable(&mut self, slot: usize) {
        if self.is_hintable.len() <= slot {
            self.is_hintable.resize((slot + 1).next_power_of_two(), false);
        }
        self.is_hintable[slot] = true;
    }

    /// Returns the number of the simulation's cycles since a page was last changed in an epoch, if the trace
    /// does not show hint bits set in the first of these: in the trace's own cycle, the page had already been
    /// changed.
    fn cycles_with_hidden_hints(&self, changed: u32, simulation: usize) -> usize {
        let after = |begins: &[Begin]| begins.partition_point(|begin| begin.epoch <= changed);
        let begins = &self.begins[simulation];
        let first = after(begins);
        let Some(begin) = begins.get(first).filter(|_| changed >= FIRST_EPOCH) else { return 0 };
        let of_trace = self.begins_of_trace.get(after(&self.begins_of_trace));
        let is_hidden = of_trace.is_none_or(|own| own.lsn > begin.lsn.plus(SAME_CHECKPOINT));
        if is_hidden { begins.len() - first } else { 0 }
    }

    /// Whether hint bits are set on the page of a slot.
    #[inline]
    pub fn is_hintable(&self, slot: usize) -> bool {
        self.is_hintable.get(slot).is_some_and(|is_hintable| *is_hintable)
    }

    /// Returns the number of the trace's own cycles since the last change of the page.
    pub fn cycles_of_trace(&self, slot: usize) -> usize {
        self.cycles_of_trace_since(self.changed[slot * self.columns])
    }

    fn cycles_of_trace_since(&self, changed: u32) -> usize {
        let begun = self.begins_of_trace.partition_point(|begin| begin.epoch <= changed);
        if changed >= FIRST_EPOCH { self.begins_of_trace.len() - begun } else { 0 }
    }

    /// Returns the number of pages whose hint bits may have been set in a later cycle of the trace than their
    /// last change.
    pub fn hint_chances_at_end(&self) -> u64 {
        let rows = self.changed.chunks_exact(self.columns).zip(&self.is_hintable);
        let chances =
            rows.filter(|(row, is_hintable)| **is_hintable && self.cycles_of_trace_since(row[0]) > 0);
        chances.count() as u64
    }

    /// Returns the number of cycles of a simulation, as a multiple of the trace's.
    pub fn cycles_ratio(&self, simulation: usize) -> f64 {
        self.begins[simulation].len() as f64 / self.begins_of_trace.len().max(1) as f64
    }

    /// Whether the simulation may have logged an image for hint bits of a page since its last change that the
    /// trace does not contain. In the current cycle, this image replaces the image of the change.
    #[inline]
    pub fn may_hide_hint(&self, slot: usize, simulation: usize) -> bool {
        let changed = self.changed[slot * self.columns + self.cycles[simulation].column];
        self.cycles_with_hidden_hints(changed, simulation) > 1
    }

    /// Returns the number of a simulation's cycles that started since a page was last changed.
    fn cycles_since(&self, changed: u32, simulation: usize) -> usize {
        let begins = &self.begins[simulation];
        let begun = begins.partition_point(|begin| begin.epoch <= changed);
        if changed >= FIRST_EPOCH { begins.len() - begun } else { 0 }
    }

    /// Whether the simulation may have logged an image for hint bits of a page in a cycle in which no record
    /// changed it, if the trace's server logged no hint bits.
    #[inline]
    pub fn may_have_hint(&self, slot: usize, simulation: usize) -> bool {
        let changed = self.changed[slot * self.columns + self.cycles[simulation].column];
        self.cycles_since(changed, simulation) > 1
    }

    /// Returns the number of pages for which the simulation may have logged an image for hint bits between
    /// their last change and the end.
    pub fn hints_at_end(&self, simulation: usize) -> u64 {
        let column = self.cycles[simulation].column;
        let changed = self.changed.chunks_exact(self.columns).map(|row| row[column]);
        changed.filter(|changed| self.cycles_since(*changed, simulation) > 0).count() as u64
    }

    /// Returns the number of pages for which the simulation may have logged such an image between their last
    /// change and the end.
    pub fn hidden_hints_at_end(&self, simulation: usize) -> u64 {
        let column = self.cycles[simulation].column;
        let rows = self.changed.chunks_exact(self.columns).zip(&self.is_hintable);
        let hintable = rows.filter(|(_, is_hintable)| **is_hintable).map(|(row, _)| row[column]);
        hintable.filter(|changed| self.cycles_with_hidden_hints(*changed, simulation) > 0).count() as u64
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

    /// Whether the block has not been changed in the simulation's current checkpoint cycle. `is_recent`:
    /// whether it was changed before the start.
    #[inline]
    pub fn is_stale(&self, slot: usize, simulation: usize, is_recent: bool) -> bool {
        let Cycle { column, began, .. } = self.cycles[simulation];
        match self.changed[slot * self.columns + column] {
            0 => began > FIRST_EPOCH || !is_recent,
            changed => changed < began,
        }
    }

    /// Whether the block was changed in the simulation since the start.
    #[cfg(test)]
    fn is_changed(&self, slot: usize, simulation: usize) -> bool {
        self.changed[slot * self.columns + self.cycles[simulation].column] != 0
    }

    /// Records a change by these simulations, as a bit mask, and by all others that write the same records.
    #[inline]
    pub fn note(&mut self, slot: usize, simulations: u64) {
        self.set(slot, simulations, self.epoch);
    }

    /// Records a change that these simulations do not log: their next logged change always has an image.
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

    /// Records a change by all simulations.
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

    /// A page whose change was not logged has no LSN, and therefore an image at the next change, even in the
    /// first checkpoint cycle.
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

    /// Compares with the rule that stores a cycle for each block and simulation, which the epochs replace.
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
            changes.observe_checkpoints(&simulations, Lsn(0));
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
    fn hint_bits_are_hidden_where_the_trace_has_no_checkpoint() {
        let mut simulations = simulations(1);
        let mut changes = LastChanges::new(&simulations, |_| ());
        let mut checkpoint = |changes: &mut LastChanges, lsn| {
            simulations[0].cycle += 1;
            changes.observe_checkpoints(&simulations, Lsn(lsn));
        };
        changes.reserve(0, true);
        changes.note_hintable(0);
        changes.note_all(0);
        assert_eq!((changes.may_hide_hint(0, 0), changes.hidden_hints_at_end(0)), (false, 0));
        assert_eq!((changes.may_have_hint(0, 0), changes.hints_at_end(0)), (false, 0));
        checkpoint(&mut changes, 1 << 20);
        // If logged in this cycle, it replaces the image of a change.
        assert_eq!((changes.may_hide_hint(0, 0), changes.hidden_hints_at_end(0)), (false, 1));
        assert_eq!((changes.may_have_hint(0, 0), changes.hints_at_end(0)), (false, 1));
        checkpoint(&mut changes, 2 << 20);
        assert_eq!((changes.may_hide_hint(0, 0), changes.hidden_hints_at_end(0)), (true, 1));
        assert_eq!((changes.may_have_hint(0, 0), changes.hints_at_end(0)), (true, 1));
        // The trace has a checkpoint before the checkpoints of the simulation, and shows the hint bits.
        changes.note_all(0);
        changes.observe_checkpoint_of_trace(Lsn(3 << 20));
        checkpoint(&mut changes, (3 << 20) + 100);
        checkpoint(&mut changes, 4 << 20);
        assert_eq!((changes.may_hide_hint(0, 0), changes.hidden_hints_at_end(0)), (false, 0));
        // Or slightly later.
        changes.note_all(0);
        checkpoint(&mut changes, 5 << 20);
        changes.observe_checkpoint_of_trace(Lsn((5 << 20) + 8192));
        checkpoint(&mut changes, 6 << 20);
        assert!(!changes.may_hide_hint(0, 0));
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

//! Pruning of dead heap tuples, and freezing: `PRUNE`, `VACUUM` and `FREEZE_PAGE`, and since 17
//! `PRUNE_ON_ACCESS`, `PRUNE_VACUUM_SCAN` and `PRUNE_VACUUM_CLEANUP`, which both prune and freeze.
//! `pruneheap.c` and `vacuumlazy.c` write these records.

use walden_format::payload::heap::{
    FreezeFlags, FreezePlan, FrozenTuple, PruneFlags, PruneLists, Redirection, XlHeapFreezePage,
    XlHeapPrune16, XlHeapVacuum,
};
use walden_format::payload::offset_numbers;
use walden_format::reader::Reader;
use walden_format::transam::FROZEN_XID;
use walden_format::version::Major;

use super::UNREADABLE;
use super::visibility_map;
use crate::manager::PagesAround;
use crate::page::heap_tuple::{HeapTupleHeader, HeapTupleHeaderMut, infomask, infomask2};
use crate::page::maps::{VISIBILITYMAP_ALL_FROZEN, VISIBILITYMAP_ALL_VISIBLE};
use crate::page::{ItemState, LinePointer, Misfit, Page};
use crate::step::Step;

const CUT: Misfit = Misfit("the record has not all its line pointers");

/// An array of 16-bit numbers in a record.
#[derive(Clone, Copy, Default)]
struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    fn read(reader: &mut Reader<'a>, count: usize) -> Result<Numbers<'a>, Misfit> {
        reader.take(count * 2).map(Numbers).ok_or(CUT)
    }

    /// Reads the length of an array, then the array (`xlhp_prune_items`); each entry has `per_item` numbers.
    fn read_counted(reader: &mut Reader<'a>, per_item: usize) -> Result<Numbers<'a>, Misfit> {
        let count = reader.u16().ok_or(CUT)?;
        Numbers::read(reader, usize::from(count) * per_item)
    }

    fn iter(self) -> impl Iterator<Item = u16> + 'a {
        offset_numbers(self.0)
    }

    fn pairs(self) -> impl Iterator<Item = (u16, u16)> + 'a {
        offset_numbers(self.0).step_by(2).zip(offset_numbers(self.0).skip(1).step_by(2))
    }
}

/// Lists of line pointers by their new state.
#[derive(Clone, Copy, Default)]
struct Pruned<'a> {
    redirected: Numbers<'a>,
    dead: Numbers<'a>,
    unused: Numbers<'a>,
}

impl Pruned<'_> {
    /// Mirrors `heap_page_prune_execute`.
    fn execute(self, page: &mut Page, version: Major, only_truncate: bool) -> Result<(), Misfit> {
        for (from, to) in self.redirected.pairs() {
            page.set_line_pointer(from, LinePointer::redirect(to))?;
        }
        for number in self.dead.iter() {
            page.set_line_pointer(number, LinePointer::dead())?;
        }
        for number in self.unused.iter() {
            page.set_line_pointer(number, LinePointer::UNUSED)?;
        }
        if only_truncate {
            page.check()?;
            page.truncate_line_pointers();
            Ok(())
        } else {
            page.repair_fragmentation(version >= Major::V15)
        }
    }

    fn is_empty(self) -> bool {
        self.redirected.0.is_empty() && self.dead.0.is_empty() && self.unused.0.is_empty()
    }
}

/// Replays `PRUNE`, and `CLEAN` until 13 (`heap_xlog_prune`). The remaining data lists the unused line
/// pointers.
pub(super) fn prune(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapPrune16 { redirected, dead, .. } = XlHeapPrune16::read(step.main()).ok_or(UNREADABLE)?;
    let (version, mut data) = (step.version(), Reader::new(step.data(0)));
    let Some(page) = step.page(0) else { return Ok(()) };
    let redirected = Numbers::read(&mut data, 2 * usize::from(redirected))?;
    let dead = Numbers::read(&mut data, dead.into())?;
    Pruned { redirected, dead, unused: Numbers(data.rest()) }.execute(page, version, false)
}

/// Replays `VACUUM`, 14 to 16 (`heap_xlog_vacuum`): dead line pointers to which no index refers any more.
pub(super) fn vacuum(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapVacuum { unused } = XlHeapVacuum::read(step.main()).ok_or(UNREADABLE)?;
    let (version, mut data) = (step.version(), Reader::new(step.data(0)));
    let Some(page) = step.page(0) else { return Ok(()) };
    let unused = Numbers::read(&mut data, unused.into())?;
    Pruned { unused, ..Pruned::default() }.execute(page, version, true)
}

/// A plan to freeze a heap tuple (`HeapTupleFreeze`).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Plan {
    xmax: u32,
    infomask2: u16,
    infomask: u16,
    flags: FreezeFlags,
}

impl From<FreezePlan> for Plan {
    fn from(FreezePlan { xmax, infomask2, infomask, flags, .. }: FreezePlan) -> Plan {
        Plan { xmax, infomask2, infomask, flags }
    }
}

impl From<FrozenTuple> for Plan {
    fn from(FrozenTuple { xmax, infomask2, infomask, flags, .. }: FrozenTuple) -> Plan {
        Plan { xmax, infomask2, infomask, flags }
    }
}

impl Plan {
    /// Returns the key by which a record's plans are sorted (`heap_log_freeze_cmp`).
    fn order(self) -> (u32, u16, u16, u8) {
        (self.xmax, self.infomask2, self.infomask, self.flags.0)
    }

    /// Mirrors `heap_execute_freeze_tuple`.
    fn execute(self, page: &mut Page, number: u16) -> Result<(), Misfit> {
        let mut header = HeapTupleHeaderMut::parse(page.normal_item_mut(number)?)?;
        header.set_xmax(self.xmax);
        if self.flags.freezes_xvac() {
            header.set_xvac(FROZEN_XID);
        }
        if self.flags.invalidates_xvac() {
            header.set_xvac(0);
        }
        header.change_infomask(self.infomask, u16::MAX);
        header.change_infomask2(self.infomask2, u16::MAX);
        Ok(())
    }

    /// Returns the plan that changed a heap tuple's header from `before` to `after`; `None` if the tuple was
    /// not frozen.
    ///
    /// A frozen tuple has a frozen `xmin` or a new `xmax`; no other change in a record that freezes tuples
    /// affects either field.
    fn between(before: &HeapTupleHeader<'_>, after: &HeapTupleHeader<'_>) -> Option<Plan> {
        let was_moved =
            before.infomask() & infomask::HEAP_MOVED != 0 && after.infomask() & infomask::HEAP_MOVED == 0;
        let frozen = after.is_xmin_frozen() && !before.is_xmin_frozen();
        if !frozen && !was_moved && before.xmax() == after.xmax() {
            return None;
        }
        let flags = match was_moved {
            true if before.infomask() & infomask::HEAP_MOVED_OFF != 0 => FreezeFlags::INVALID_XVAC,
            true => FreezeFlags::FREEZE_XVAC,
            false => 0,
        };
        let (infomask2, infomask) = (after.infomask2(), after.infomask());
        Some(Plan { xmax: after.xmax(), infomask2, infomask, flags: FreezeFlags(flags) })
    }
}

/// Replays `FREEZE_PAGE`, until 16 (`heap_xlog_freeze_page`).
pub(super) fn freeze(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapFreezePage { count, .. } = XlHeapFreezePage::read(step.main()).ok_or(UNREADABLE)?;
    let (version, mut data) = (step.version(), Reader::new(step.data(0)));
    let plans = data.take(usize::from(count) * FreezePlan::WIDTH);
    let Some(page) = step.page(0) else { return Ok(()) };
    let plans = plans.ok_or(CUT)?;
    if version >= Major::V16 {
        return freeze_alike(page, plans, &mut data);
    }
    for tuple in plans.as_chunks().0.iter().map(FrozenTuple::from_bytes) {
        Plan::from(tuple).execute(page, tuple.offset)?;
    }
    Ok(())
}

/// Executes plans of several heap tuples each, whose line pointers are next in `numbers`.
fn freeze_alike(page: &mut Page, plans: &[u8], numbers: &mut Reader<'_>) -> Result<(), Misfit> {
    for plan in plans.as_chunks().0.iter().map(FreezePlan::from_bytes) {
        for number in Numbers::read(numbers, plan.tuples.into())?.iter() {
            Plan::from(plan).execute(page, number)?;
        }
    }
    Ok(())
}

/// Replays `PRUNE_ON_ACCESS`, `PRUNE_VACUUM_SCAN` and `PRUNE_VACUUM_CLEANUP` (`heap_xlog_prune_freeze`).
pub(super) fn prune_and_freeze(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let version = step.version();
    let flags = PruneFlags::read(step.main(), version).ok_or(UNREADABLE)?;
    let sets_map = flags.sets_all_visible();
    let mut data = Reader::new(step.data(0));
    if let Some(page) = step.page(0) {
        let mut plans: &[u8] = &[];
        if flags.has_freeze_plans() {
            // `nplans`, and 2 bytes of padding that align the plans (`xlhp_freeze_plans`).
            let count = data.u32().ok_or(CUT)? as u16;
            plans = data.take(usize::from(count) * FreezePlan::WIDTH).ok_or(CUT)?;
        }
        let mut counted = |is_there: bool, per_item| {
            if is_there { Numbers::read_counted(&mut data, per_item) } else { Ok(Numbers(&[])) }
        };
        let pruned = Pruned {
            redirected: counted(flags.has_redirections(), 2)?,
            dead: counted(flags.has_dead_items(), 1)?,
            unused: counted(flags.has_now_unused_items(), 1)?,
        };
        if !pruned.is_empty() {
            pruned.execute(page, version, !flags.cleanup_lock())?;
        }
        freeze_alike(page, plans, &mut data)?;
        if data.left() > 0 {
            return Err(Misfit("the record has more than its line pointers"));
        }
        if sets_map {
            page.set_prune_xid(0);
        }
    }
    if sets_map {
        if flags.has_lists() {
            visibility_map::mark_changed_page(step, 0);
        } else {
            visibility_map::note_logged_hints(step, 0);
            visibility_map::mark_page(step, 0);
        }
        let frozen = if flags.sets_all_frozen() { VISIBILITYMAP_ALL_FROZEN } else { 0 };
        visibility_map::set(step, 1, 0, VISIBILITYMAP_ALL_VISIBLE | frozen)?;
    }
    Ok(())
}

/// The line pointers that a record changed, in the order in which the record lists them.
#[derive(Default)]
struct PredictedPrune {
    redirected: Vec<Redirection>,
    dead: Vec<u16>,
    unused: Vec<u16>,
}

/// The new state of a line pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    Redirected(u16),
    Dead,
    Unused,
}

/// The pages before and after a record that pruned the page.
struct Compared<'p> {
    before: &'p Page,
    after: &'p Page,
}

impl<'p> Compared<'p> {
    fn compare(around: &PagesAround<'p>) -> Option<Compared<'p>> {
        Some(Compared { before: around.before(0)?, after: around.after(0)? })
    }

    fn pointer(&self, number: u16) -> LinePointer {
        self.before.line_pointer(number).unwrap_or(LinePointer::UNUSED)
    }

    fn fate(&self, number: u16) -> Fate {
        let before = self.pointer(number);
        // Unused line pointers at the end may be truncated.
        let after = self.after.line_pointer(number).unwrap_or(LinePointer::UNUSED);
        match (before.state(), after.state()) {
            (ItemState::Unused, _) | (ItemState::Dead, ItemState::Dead) => Fate::Stays,
            (_, ItemState::Unused) => Fate::Unused,
            (_, ItemState::Dead) => Fate::Dead,
            (_, ItemState::Redirect) if before != after => Fate::Redirected(after.offset()),
            _ => Fate::Stays,
        }
    }

    fn header(&self, number: u16) -> Option<HeapTupleHeader<'p>> {
        HeapTupleHeader::parse(self.before.normal_item(number).ok()?)
    }

    fn is_heap_only(&self, number: u16) -> bool {
        self.header(number).is_some_and(|header| header.is_heap_only())
    }

    /// Iterates over the members of a chain after its root that became unused.
    fn chain(&self, root: u16) -> impl Iterator<Item = u16> {
        let mut next = match self.pointer(root) {
            pointer if pointer.state() == ItemState::Redirect => Some((pointer.offset(), None)),
            _ => self.next(root),
        };
        // A chain is no longer than the number of line pointers, even on a damaged page.
        (0..self.before.items()).map_while(move |_| {
            let (number, xmax) = next?;
            let follows = self
                .header(number)
                .is_some_and(|header| header.is_heap_only() && xmax.is_none_or(|xmax| xmax == header.xmin()));
            next = self.next(number);
            (follows && self.fate(number) == Fate::Unused).then_some(number)
        })
    }

    /// Returns the next member of a chain, and its expected `xmin`: this tuple's `xmax`, unless that is a
    /// MultiXact.
    fn next(&self, number: u16) -> Option<(u16, Option<u32>)> {
        let header =
            self.header(number).filter(|header| header.infomask2() & infomask2::HEAP_HOT_UPDATED != 0)?;
        let next = header.ctid().offset_number;
        let xmax = (header.infomask() & infomask::HEAP_XMAX_IS_MULTI == 0).then(|| header.xmax());
        Some((next, xmax))
    }

    /// Lists the line pointers in the order in which `heap_page_prune` (since 17
    /// `heap_page_prune_and_freeze`) visits them. The only members of a chain whose order may differ are
    /// those that one transaction both inserted and rolled back, because the page does not show that.
    fn predict(&self, version: Major) -> PredictedPrune {
        let items = self.before.items();
        let mut predicted = PredictedPrune::default();
        let mut in_chain = vec![false; usize::from(items) + 1];
        let is_root = |number| match self.pointer(number).state() {
            ItemState::Redirect => true,
            ItemState::Normal => !self.is_heap_only(number),
            _ => false,
        };
        for root in (1..=items).filter(|&number| is_root(number) && self.fate(number) != Fate::Stays) {
            self.chain(root).for_each(|member| in_chain[usize::from(member)] = true);
        }
        // Since 17, dead line pointers of tables without indexes come first; the page is scanned from its
        // end.
        let is_dead = |number: u16| self.pointer(number).state() == ItemState::Dead;
        let unused = |number: u16| self.fate(number) == Fate::Unused;
        predicted.unused.extend((1..=items).rev().filter(|&number| is_dead(number) && unused(number)));
        let mut aborted = Vec::new();
        let mut listed = vec![false; usize::from(items) + 1];
        for number in 1..=items {
            if is_dead(number) {
                continue;
            }
            if !is_root(number) {
                if unused(number) && !in_chain[usize::from(number)] {
                    let list = if version >= Major::V17 { &mut aborted } else { &mut predicted.unused };
                    list.push(number);
                }
                continue;
            }
            match self.fate(number) {
                Fate::Stays => continue,
                Fate::Redirected(to) => predicted.redirected.push(Redirection { from: number, to }),
                Fate::Dead => predicted.dead.push(number),
                Fate::Unused => predicted.unused.push(number),
            }
            for member in self.chain(number) {
                if !std::mem::replace(&mut listed[usize::from(member)], true) {
                    predicted.unused.push(member);
                }
            }
        }
        predicted.unused.extend(aborted);
        predicted
    }

    /// Returns the dead line pointers that became unused, ascending.
    fn vacuumed(&self) -> Vec<u16> {
        (1..=self.before.items()).filter(|&number| self.fate(number) == Fate::Unused).collect()
    }

    /// Returns the plans to freeze and their line pointers.
    fn frozen(&self) -> Vec<(Plan, u16)> {
        let plan = |number| {
            let after = HeapTupleHeader::parse(self.after.normal_item(number).ok()?)?;
            Some((Plan::between(&self.header(number)?, &after)?, number))
        };
        (1..=self.after.items()).filter_map(plan).collect()
    }
}

/// Groups tuples that are frozen in the same way into plans, as since 16 (`heap_log_freeze_plan`). Returns
/// the plans and their line pointers.
fn freeze_plans(mut frozen: Vec<(Plan, u16)>) -> (Vec<FreezePlan>, Vec<u16>) {
    frozen.sort_unstable_by_key(|(plan, number)| (plan.order(), *number));
    let plan_of = |alike: &[(Plan, u16)]| {
        let (Plan { xmax, infomask2, infomask, flags }, _) = alike[0];
        FreezePlan { xmax, infomask2, infomask, flags, tuples: alike.len() as u16 }
    };
    let plans = frozen.chunk_by(|(one, _), (other, _)| one == other).map(plan_of).collect();
    (plans, frozen.iter().map(|(_, number)| *number).collect())
}

/// Reconstructs the three lists of a `PRUNE`.
pub(super) fn prune_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let XlHeapPrune16 { redirected, dead, .. } = XlHeapPrune16::read(around.record.main_data())?;
    let predicted = Compared::compare(around)?.predict(around.record.version);
    let counts = (redirected.into(), dead.into());
    // The main data has the counts even if the block has no data.
    let PredictedPrune { redirected, dead, unused } = &predicted;
    let lists = PruneLists { redirected, dead, unused, ..PruneLists::default() };
    ((redirected.len(), dead.len()) == counts).then(|| lists.lists_alone())
}

/// Reconstructs the list of a `VACUUM`.
pub(super) fn vacuum_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let XlHeapVacuum { unused: count } = XlHeapVacuum::read(around.record.main_data())?;
    let unused = Compared::compare(around)?.vacuumed();
    let lists = PruneLists { unused: &unused, ..PruneLists::default() };
    (unused.len() == usize::from(count)).then(|| lists.lists_alone())
}

/// Reconstructs the plans of a `FREEZE_PAGE`.
pub(super) fn freeze_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let XlHeapFreezePage { count: logged_count, .. } = XlHeapFreezePage::read(around.record.main_data())?;
    let frozen = Compared::compare(around)?.frozen();
    let (count, data) = if around.record.version >= Major::V16 {
        let (plans, numbers) = freeze_plans(frozen);
        let lists = PruneLists { freeze_plans: &plans, frozen: &numbers, ..PruneLists::default() };
        (plans.len(), lists.lists_alone())
    } else {
        let tuple = |&(Plan { xmax, infomask2, infomask, flags }, offset): &(Plan, u16)| {
            FrozenTuple { xmax, offset, infomask2, infomask, flags }.to_bytes()
        };
        (frozen.len(), frozen.iter().flat_map(tuple).collect())
    };
    (count == usize::from(logged_count)).then_some(data)
}

/// Reconstructs the plans and lists of a record since 17.
pub(super) fn prune_and_freeze_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let version = around.record.version;
    let flags = PruneFlags::read(around.record.main_data(), version)?;
    if !flags.has_lists() {
        return Some(Vec::new());
    }
    let pages = Compared::compare(around)?;
    let predicted = if flags.cleanup_lock() {
        pages.predict(version)
    } else {
        PredictedPrune { unused: pages.vacuumed(), ..PredictedPrune::default() }
    };
    let frozen = if flags.has_freeze_plans() { pages.frozen() } else { Vec::new() };
    let lists = [
        (flags.has_freeze_plans(), frozen.is_empty()),
        (flags.has_redirections(), predicted.redirected.is_empty()),
        (flags.has_dead_items(), predicted.dead.is_empty()),
        (flags.has_now_unused_items(), predicted.unused.is_empty()),
    ];
    if lists.iter().any(|&(is_there, is_empty)| is_there == is_empty) {
        return None;
    }
    let PredictedPrune { redirected, dead, unused } = &predicted;
    let (plans, numbers) = freeze_plans(frozen);
    let lists = PruneLists { freeze_plans: &plans, redirected, dead, unused, frozen: &numbers };
    Some(lists.lists_with_lengths())
}

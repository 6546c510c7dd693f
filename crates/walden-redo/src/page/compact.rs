//! Removes gaps between a page's items, as PostgreSQL does when it prunes and deletes.

use std::cell::RefCell;
use std::ops::Range;

use super::line_pointer::{ItemState, LINE_POINTER_BYTES, LinePointer, line_pointer_offset};
use super::{Misfit, PAGE_BYTES, PAGE_HEADER_BYTES, Page, flags};

impl Page {
    /// Closes the gaps between a table's heap tuples, and with `truncate` removes unused line pointers at the
    /// end (`PageRepairFragmentation`, which does that since 15).
    pub fn repair_fragmentation(&mut self, truncate: bool) -> Result<(), Misfit> {
        self.check()?;
        let lower = self.lower();
        let (pointers, _) = self.0[PAGE_HEADER_BYTES..lower].as_chunks_mut::<LINE_POINTER_BYTES>();
        let mut unused = 0;
        // Without branches, so that the compiler can process several line pointers at a time.
        for bytes in pointers.iter_mut() {
            let pointer = u32::from_le_bytes(*bytes);
            let is_unused = u32::from(pointer >> 15 & 3 == ItemState::Unused as u32);
            *bytes = (pointer & is_unused.wrapping_sub(1)).to_le_bytes();
            unused += is_unused;
        }
        let used =
            pointers.iter().rposition(|bytes| *bytes != [0; LINE_POINTER_BYTES]).map_or(0, |last| last + 1);
        self.compact()?;
        if truncate {
            unused -= u32::from(self.items()) - used as u32;
            self.set_lower(PAGE_HEADER_BYTES + used * LINE_POINTER_BYTES);
        }
        let flag = flags::PD_HAS_FREE_LINES;
        if unused > 0 {
            self.change_flags(flag, 0)
        } else {
            self.change_flags(0, flag)
        }
        Ok(())
    }

    /// Removes unused line pointers at the end of the array, but always keeps the first line pointer
    /// (`PageTruncateLinePointerArray`).
    pub fn truncate_line_pointers(&mut self) {
        let is_unused = |page: &Page, number| {
            LinePointer(page.u32_at(line_pointer_offset(number))).state() == ItemState::Unused
        };
        let mut items = self.items();
        while items > 1 && is_unused(self, items) {
            items -= 1;
        }
        if items > 0 {
            self.set_lower(PAGE_HEADER_BYTES + usize::from(items) * LINE_POINTER_BYTES);
        }
        let flag = flags::PD_HAS_FREE_LINES;
        let free = (1..=items).any(|number| is_unused(self, number));
        if free { self.change_flags(flag, 0) } else { self.change_flags(0, flag) }
    }

    /// Moves all items to the end of the page, in the order of their line pointers (`compactify_tuples` since
    /// 14). Returns an error if they are not between `pd_upper` and `pd_special`, or are larger than that
    /// area.
    pub(super) fn compact(&mut self) -> Result<(), Misfit> {
        SCRATCH.with_borrow_mut(|Scratch { bytes, numbers, runs }| {
            let count = self.lay_out(numbers, runs)?;
            let runs = &runs[..count];
            if runs.len() <= FEW_RUNS {
                self.move_few(runs, bytes)
            } else {
                self.move_many(runs, bytes)
            }
            Ok(())
        })
    }

    pub(super) fn check_room(&self, total: usize, lower: usize) -> Result<(), Misfit> {
        if total <= self.special().saturating_sub(lower) {
            Ok(())
        } else {
            Err(Misfit("the page's items are larger than its free space"))
        }
    }

    /// Assigns each item its new offset, and lists the runs of bytes to be moved. Returns the number of runs.
    /// This is the hot loop of replay.
    fn lay_out(
        &mut self,
        numbers: &mut [u16; MAX_LINE_POINTERS],
        runs: &mut [Run; MAX_RUNS],
    ) -> Result<usize, Misfit> {
        let (lower, lowest, special) = (self.lower(), self.upper() as u32, self.special() as u32);
        let (pointers, _) = self.0[PAGE_HEADER_BYTES..lower].as_chunks_mut::<LINE_POINTER_BYTES>();
        // Line pointers with and without items alternate irregularly, so a branch would be mispredicted.
        let mut items = 0;
        for (number, bytes) in (0..).zip(pointers.iter()) {
            numbers[items % MAX_LINE_POINTERS] = number;
            items += usize::from(u32::from_le_bytes(*bytes) >> 17 != 0);
        }
        let (mut count, mut unsound) = (0, false);
        // Start and end of the current run, and the new offset of its last item.
        let (mut start, mut end, mut upper) = (special, special, special);
        let mut close = |start: u32, end: u32, upper: u32| {
            unsound |= start < lowest || end > special;
            if start != upper {
                runs[count % MAX_RUNS] =
                    Run { from: start as u16, to: upper as u16, len: (end - start) as u16 };
                count += 1;
            }
        };
        for &number in &numbers[..items] {
            let bytes = &mut pointers[usize::from(number)];
            let pointer = u32::from_le_bytes(*bytes);
            let (item, size) = (pointer & 0x7FFF, ((pointer >> 17) + 7) & !7);
            if item + size != start {
                close(start, end, upper);
                end = item + size;
            }
            start = item;
            upper = upper.wrapping_sub(size);
            *bytes = (pointer & !0x7FFF | upper & 0x7FFF).to_le_bytes();
        }
        close(start, end, upper);
        if unsound {
            return Err(Misfit("a line pointer is not sound"));
        }
        self.check_room(special.wrapping_sub(upper) as usize, lower)?;
        self.set_upper(upper as usize);
        Ok(count)
    }

    /// Moves runs of items in place. A run that precedes one from a higher offset, mostly the newest item, is
    /// copied to `aside`. The other runs keep their order, so no run overwrites a higher one that moves up,
    /// or a lower one that moves down.
    fn move_few(&mut self, runs: &[Run], aside: &mut [u8; PAGE_BYTES]) {
        let mut waits = [false; FEW_RUNS];
        let mut highest = 0;
        for (run, waits) in runs.iter().zip(&mut waits).rev() {
            *waits = run.from < highest;
            highest = highest.max(run.from);
            if *waits {
                aside[run.source()].copy_from_slice(&self.0[run.source()]);
            }
        }
        for (run, _) in runs.iter().zip(waits).filter(|(run, waits)| !waits && run.to > run.from) {
            self.0.copy_within(run.source(), run.to.into());
        }
        for (run, _) in runs.iter().zip(waits).rev().filter(|(run, waits)| !waits && run.to < run.from) {
            self.0.copy_within(run.source(), run.to.into());
        }
        for (run, _) in runs.iter().zip(waits).filter(|(_, waits)| *waits) {
            self.0[run.target()].copy_from_slice(&aside[run.source()]);
        }
    }

    /// Moves runs of items through a copy of all items.
    fn move_many(&mut self, runs: &[Run], copy: &mut [u8; PAGE_BYTES]) {
        let lowest = runs.iter().map(|run| run.from).min().unwrap_or(0).into();
        copy[lowest..].copy_from_slice(&self.0[lowest..]);
        for run in runs {
            self.0[run.target()].copy_from_slice(&copy[run.source()]);
        }
    }
}

/// Adjacent items that move together.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: u16,
    to: u16,
    len: u16,
}

impl Run {
    fn source(self) -> Range<usize> {
        self.from.into()..usize::from(self.from) + usize::from(self.len)
    }

    fn target(self) -> Range<usize> {
        self.to.into()..usize::from(self.to) + usize::from(self.len)
    }
}

const MAX_LINE_POINTERS: usize = PAGE_BYTES / LINE_POINTER_BYTES;
/// Maximum number of runs that are moved in place, which requires a quadratic comparison.
const FEW_RUNS: usize = 16;
/// An item takes at least 8 bytes.
const MAX_RUNS: usize = PAGE_BYTES / 8;

/// Buffers for items while their order changes.
struct Scratch {
    bytes: [u8; PAGE_BYTES],
    numbers: [u16; MAX_LINE_POINTERS],
    runs: [Run; MAX_RUNS],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            bytes: [0; PAGE_BYTES],
            numbers: [0; MAX_LINE_POINTERS],
            runs: [Run { from: 0, to: 0, len: 0 }; MAX_RUNS],
        })
    };
}

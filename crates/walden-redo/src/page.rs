//! A data page: its header, its line pointers, and the ways PostgreSQL puts items on it and takes them off.
//!
//! ```text
//! offset  width
//!      0      8  pd_lsn            LSN that the log must be flushed to before the page: high word first
//!      8      2  pd_checksum
//!     10      2  pd_flags
//!     12      2  pd_lower          end of the line pointers
//!     14      2  pd_upper          start of the items
//!     16      2  pd_special        start of the access method's own part
//!     18      2  pd_pagesize_version
//!     20      4  pd_prune_xid
//!     24    4 n  line pointers: offset 15 bits, state 2 bits, length 15 bits
//! ```
//!
//! What moves an item mirrors `bufpage.c`: the order of items on a page is part of its state. Offsets and lengths come from
//! pages and records that may be damaged, so each operation checks them all and changes nothing when one is wrong.

use std::cell::RefCell;
use std::ops::Range;

use walden_format::lsn::Lsn;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page (`BLCKSZ`). Other sizes need a PostgreSQL compiled for them and are not replayed.
pub const PAGE_BYTES: usize = 8192;
/// Bytes of a page's header.
pub const PAGE_HEADER: usize = 24;
/// Bytes of a line pointer.
pub const LINE_POINTER: usize = 4;
/// Most line pointers of a table's page (`MaxHeapTuplesPerPage`).
pub const MAX_HEAP_ITEMS: u16 = 291;

/// Why a record can't have been meant for the page as it is: the page's state is unknown from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misfit(pub &'static str);

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Misfit {}

/// Flags of a page's header (`pd_flags`).
#[allow(missing_docs)]
pub mod flags {
    pub const HAS_FREE_LINES: u16 = 0x0001;
    pub const PAGE_FULL: u16 = 0x0002;
    pub const ALL_VISIBLE: u16 = 0x0004;
}

/// What a line pointer's item is (`lp_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemState {
    /// Free for another item.
    Unused,
    /// An item.
    Normal,
    /// Another line pointer takes its place; the offset is that one's number.
    Redirect,
    /// An item that nobody needs; it may still have bytes.
    Dead,
}

/// A line pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinePointer(pub u32);

impl LinePointer {
    /// A free one.
    pub const UNUSED: LinePointer = LinePointer(0);

    /// One with these parts; what does not fit into 15 bits is cut off.
    pub fn new(offset: u16, state: ItemState, len: u16) -> LinePointer {
        LinePointer(u32::from(offset & 0x7FFF) | (state as u32) << 15 | u32::from(len & 0x7FFF) << 17)
    }

    /// A redirection to another line pointer.
    pub fn redirect(to: u16) -> LinePointer {
        LinePointer::new(to, ItemState::Redirect, 0)
    }

    /// A dead one without bytes.
    pub fn dead() -> LinePointer {
        LinePointer::new(0, ItemState::Dead, 0)
    }

    /// Where the item starts on the page; of a redirection, the other line pointer's number.
    pub fn offset(self) -> u16 {
        (self.0 & 0x7FFF) as u16
    }

    /// Bytes of the item, padding not included.
    pub fn len(self) -> u16 {
        (self.0 >> 17) as u16
    }

    /// Whether the item has no bytes (`ItemIdHasStorage`).
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// What it is.
    pub fn state(self) -> ItemState {
        match self.0 >> 15 & 3 {
            0 => ItemState::Unused,
            1 => ItemState::Normal,
            2 => ItemState::Redirect,
            _ => ItemState::Dead,
        }
    }

    /// The same item in another state.
    pub fn with_state(self, state: ItemState) -> LinePointer {
        LinePointer(self.0 & !(3 << 15) | (state as u32) << 15)
    }

    fn with_offset(self, offset: usize) -> LinePointer {
        LinePointer(self.0 & !0x7FFF | offset as u32 & 0x7FFF)
    }

    fn range(self) -> (usize, usize) {
        (usize::from(self.offset()), usize::from(self.len()))
    }
}

/// Rounds up to the alignment of items (`MAXALIGN`).
pub const fn aligned(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// A data page.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(8))]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Default for Page {
    fn default() -> Page {
        Page([0; PAGE_BYTES])
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lower, upper, special) = (self.lower(), self.upper(), self.special());
        write!(f, "Page {{ lsn: {}, lower: {lower}, upper: {upper}, special: {special} }}", self.lsn())
    }
}

/// The header's fields and the access to bytes.
impl Page {
    /// The 16-bit number at an offset, which must be on the page.
    #[inline]
    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    /// The 32-bit number at an offset, which must be on the page.
    #[inline]
    pub fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// Writes a 16-bit number at an offset, which must be on the page.
    #[inline]
    pub fn put_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes a 32-bit number at an offset, which must be on the page.
    #[inline]
    pub fn put_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// The last change's LSN.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        Lsn(u64::from(self.u32_at(0)) << 32 | u64::from(self.u32_at(4)))
    }

    /// Notes a change.
    #[inline]
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.put_u32(0, (lsn.0 >> 32) as u32);
        self.put_u32(4, lsn.0 as u32);
    }

    /// The checksum as stored.
    pub fn checksum(&self) -> u16 {
        self.u16_at(8)
    }

    /// `pd_flags`
    #[inline]
    pub fn flags(&self) -> u16 {
        self.u16_at(10)
    }

    /// Sets and clears flags.
    #[inline]
    pub fn change_flags(&mut self, set: u16, clear: u16) {
        self.put_u16(10, self.flags() & !clear | set);
    }

    /// `pd_lower`
    #[inline]
    pub fn lower(&self) -> usize {
        self.u16_at(12).into()
    }

    /// `pd_upper`
    #[inline]
    pub fn upper(&self) -> usize {
        self.u16_at(14).into()
    }

    /// `pd_special`
    #[inline]
    pub fn special(&self) -> usize {
        self.u16_at(16).into()
    }

    /// Sets `pd_lower`.
    #[inline]
    pub fn set_lower(&mut self, lower: usize) {
        self.put_u16(12, lower as u16);
    }

    /// Sets `pd_upper`.
    #[inline]
    pub fn set_upper(&mut self, upper: usize) {
        self.put_u16(14, upper as u16);
    }

    /// `pd_prune_xid`
    pub fn prune_xid(&self) -> u32 {
        self.u32_at(20)
    }

    /// Sets `pd_prune_xid`.
    #[inline]
    pub fn set_prune_xid(&mut self, xid: u32) {
        self.put_u32(20, xid);
    }

    /// Whether the page was never initialized (`PageIsNew`).
    #[inline]
    pub fn is_new(&self) -> bool {
        self.upper() == 0
    }

    /// Makes the page an empty one with room for the access method's own part (`PageInit`).
    pub fn init(&mut self, special_bytes: usize) {
        self.0.fill(0);
        let special = PAGE_BYTES - aligned(special_bytes).min(PAGE_BYTES - PAGE_HEADER);
        self.set_lower(PAGE_HEADER);
        self.set_upper(special);
        self.put_u16(16, special as u16);
        self.put_u16(18, PAGE_BYTES as u16 | 4);
    }

    /// The access method's own part: empty if the header is damaged.
    pub fn special_area(&self) -> &[u8] {
        self.0.get(self.special()..).unwrap_or(&[])
    }

    /// The access method's own part if it has exactly as many bytes as it should.
    pub fn special_exactly(&self, bytes: usize) -> Result<usize, Misfit> {
        let at = self.special();
        if at + bytes == PAGE_BYTES {
            Ok(at)
        } else {
            Err(Misfit("the page's special area has another size"))
        }
    }

    /// Checks that the header's three offsets are in order.
    #[inline]
    pub fn check(&self) -> Result<(), Misfit> {
        let (lower, upper, special) = (self.lower(), self.upper(), self.special());
        let sound = lower >= PAGE_HEADER && lower <= upper && upper <= special && special <= PAGE_BYTES;
        if sound && special & 7 == 0 { Ok(()) } else { Err(Misfit("the page's header is not sound")) }
    }

    /// Copies the page but for the hole between `pd_lower` and `pd_upper`, which becomes zeros.
    pub fn zero_hole(&mut self) {
        let (lower, upper) = (self.lower(), self.upper());
        if let Some(hole) = self.0.get_mut(lower..upper).filter(|_| lower >= PAGE_HEADER) {
            hole.fill(0);
        }
    }
}

/// Line pointers and items. Numbers of line pointers start at 1.
impl Page {
    /// How many line pointers there are (`PageGetMaxOffsetNumber`): none if the header is damaged.
    #[inline]
    pub fn items(&self) -> u16 {
        let lower = self.lower().min(PAGE_BYTES);
        (lower.saturating_sub(PAGE_HEADER) / LINE_POINTER) as u16
    }

    /// A line pointer, if there is one of this number.
    #[inline]
    pub fn line_pointer(&self, number: u16) -> Option<LinePointer> {
        (number >= 1 && number <= self.items()).then(|| LinePointer(self.u32_at(pointer_at(number))))
    }

    /// A line pointer that must be there.
    #[inline]
    pub fn expect_line_pointer(&self, number: u16) -> Result<LinePointer, Misfit> {
        self.line_pointer(number).ok_or(Misfit("the page has no line pointer of this number"))
    }

    /// Changes a line pointer that must be there.
    #[inline]
    pub fn set_line_pointer(&mut self, number: u16, pointer: LinePointer) -> Result<(), Misfit> {
        self.expect_line_pointer(number)?;
        self.put_u32(pointer_at(number), pointer.0);
        Ok(())
    }

    /// An item's bytes, whatever its line pointer's state is.
    #[inline]
    pub fn item(&self, number: u16) -> Option<&[u8]> {
        let (start, len) = self.line_pointer(number)?.range();
        self.0.get(start..start + len)
    }

    /// An item's bytes; its line pointer must be in the state `Normal` and the bytes behind the line pointers.
    #[inline]
    pub fn normal_item(&self, number: u16) -> Result<&[u8], Misfit> {
        let range = self.normal_range(number)?;
        Ok(&self.0[range])
    }

    /// The same, to change it.
    #[inline]
    pub fn normal_item_mut(&mut self, number: u16) -> Result<&mut [u8], Misfit> {
        let range = self.normal_range(number)?;
        Ok(&mut self.0[range])
    }

    /// Where a normal item's bytes are.
    #[inline]
    pub fn normal_range(&self, number: u16) -> Result<Range<usize>, Misfit> {
        let pointer = self.expect_line_pointer(number)?;
        let (start, len) = pointer.range();
        if pointer.state() != ItemState::Normal || start < PAGE_HEADER || start + len > PAGE_BYTES {
            return Err(Misfit("the line pointer is not that of an item"));
        }
        Ok(start..start + len)
    }

    /// Puts an item at the first free line pointer or behind all others; which one (`PageAddItem` without a number).
    pub fn add_item(&mut self, item: &[u8]) -> Result<u16, Misfit> {
        self.check()?;
        let limit = self.items() + 1;
        let free = self.free_line_pointer();
        if free.is_none() {
            self.change_flags(0, flags::HAS_FREE_LINES);
        }
        self.place(item, free.unwrap_or(limit), limit, false)
    }

    /// Puts an item at exactly this line pointer, which must be the next one (`number` one more than there are, moving
    /// nothing) or, shifting the later ones, any before (`PageAddItem` with a number).
    pub fn insert_item(&mut self, item: &[u8], number: u16) -> Result<(), Misfit> {
        self.check()?;
        if number == 0 {
            return Err(Misfit("an item's line pointer can't be 0"));
        }
        let limit = self.items() + 1;
        self.place(item, number, limit, number < limit).map(drop)
    }

    /// Puts a row version at a line pointer that must be unused or the next one (`PageAddItem` of tables, overwriting).
    pub fn add_heap_item(&mut self, item_bytes: usize, number: u16) -> Result<&mut [u8], Misfit> {
        self.check()?;
        let limit = self.items() + 1;
        if number == 0 || number > MAX_HEAP_ITEMS {
            return Err(Misfit("a table's page has no such line pointer"));
        }
        if let Some(pointer) = self.line_pointer(number)
            && (pointer.state() != ItemState::Unused || !pointer.is_empty())
        {
            return Err(Misfit("the line pointer is in use"));
        }
        let start = self.reserve(item_bytes, number, limit, false)?;
        Ok(&mut self.0[start..start + item_bytes])
    }

    /// Puts an item at a line pointer that must be unused or the next one (`PageAddItem` with a number, overwriting).
    pub fn put_item(&mut self, item: &[u8], number: u16) -> Result<(), Misfit> {
        self.check()?;
        if number == 0 {
            return Err(Misfit("an item's line pointer can't be 0"));
        }
        if let Some(pointer) = self.line_pointer(number)
            && (pointer.state() != ItemState::Unused || !pointer.is_empty())
        {
            return Err(Misfit("the line pointer is in use"));
        }
        let limit = self.items() + 1;
        self.place(item, number, limit, false).map(drop)
    }

    /// The first line pointer free for an item, if the page's flags say that there is one.
    fn free_line_pointer(&self) -> Option<u16> {
        if self.flags() & flags::HAS_FREE_LINES == 0 {
            return None;
        }
        (1..=self.items()).find(|&number| {
            let pointer = LinePointer(self.u32_at(pointer_at(number)));
            pointer.state() == ItemState::Unused && pointer.is_empty()
        })
    }

    fn place(&mut self, item: &[u8], number: u16, limit: u16, shuffle: bool) -> Result<u16, Misfit> {
        let start = self.reserve(item.len(), number, limit, shuffle)?;
        self.0[start..start + item.len()].copy_from_slice(item);
        Ok(number)
    }

    /// Makes a line pointer and room for its item; where the item starts.
    #[inline]
    fn reserve(&mut self, bytes: usize, number: u16, limit: u16, shuffle: bool) -> Result<usize, Misfit> {
        if number > limit {
            return Err(Misfit("the line pointer is beyond the next free one"));
        }
        let lower = self.lower() + if number == limit || shuffle { LINE_POINTER } else { 0 };
        let upper = self.upper().checked_sub(aligned(bytes)).filter(|&upper| lower <= upper);
        let upper = upper.ok_or(Misfit("the page has no room for the item"))?;
        let at = pointer_at(number);
        if shuffle {
            let end = pointer_at(limit);
            self.0.copy_within(at..end, at + LINE_POINTER);
        }
        self.put_u32(at, LinePointer::new(upper as u16, ItemState::Normal, bytes as u16).0);
        self.set_lower(lower);
        self.set_upper(upper);
        Ok(upper)
    }

    /// Takes an item and its line pointer off (`PageIndexTupleDelete`).
    pub fn delete_item(&mut self, number: u16) -> Result<(), Misfit> {
        let (offset, size) = self.checked_item(number)?;
        let lower = self.lower();
        let at = pointer_at(number);
        self.0.copy_within(at + LINE_POINTER..lower, at);
        self.set_lower(lower - LINE_POINTER);
        self.close_gap(offset, size);
        Ok(())
    }

    /// Takes an item off but keeps its line pointer, unless it is the last (`PageIndexTupleDeleteNoCompact`).
    pub fn delete_item_keeping_numbers(&mut self, number: u16) -> Result<(), Misfit> {
        let (offset, size) = self.checked_item(number)?;
        if number < self.items() {
            self.put_u32(pointer_at(number), LinePointer::UNUSED.0);
        } else {
            self.set_lower(self.lower() - LINE_POINTER);
        }
        self.close_gap(offset, size);
        Ok(())
    }

    /// An index item's place and its size with padding, checked against the header.
    fn checked_item(&self, number: u16) -> Result<(usize, usize), Misfit> {
        self.check()?;
        let (offset, len) = self.expect_line_pointer(number)?.range();
        if offset < self.upper() || offset + aligned(len) > self.special() || offset & 7 != 0 {
            return Err(Misfit("a line pointer is not sound"));
        }
        Ok((offset, aligned(len)))
    }

    /// Moves what is before an item's former place up by its size.
    fn close_gap(&mut self, offset: usize, size: usize) {
        let upper = self.upper();
        self.0.copy_within(upper..offset, upper + size);
        self.set_upper(upper + size);
        self.move_items(offset, size as isize);
    }

    /// Corrects the line pointers of items that were at `offset` or before.
    fn move_items(&mut self, offset: usize, by: isize) {
        for number in 1..=self.items() {
            let pointer = LinePointer(self.u32_at(pointer_at(number)));
            let (start, len) = pointer.range();
            if len > 0 && start <= offset {
                let moved = pointer.with_offset(start.wrapping_add_signed(by));
                self.put_u32(pointer_at(number), moved.0);
            }
        }
    }

    /// Takes many items and their line pointers off; `numbers` ascend (`PageIndexMultiDelete`).
    pub fn delete_items(&mut self, numbers: &[u16]) -> Result<(), Misfit> {
        if numbers.len() <= 2 {
            // So few are taken off one by one, which leaves the rest in another order than compacting would.
            let ascending = numbers.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || numbers.iter().any(|&number| self.checked_item(number).is_err()) {
                return Err(Misfit("the items to delete are not on the page"));
            }
            return numbers.iter().rev().try_for_each(|&number| self.delete_item(number));
        }
        self.check()?;
        let mut next = numbers.iter().copied().peekable();
        let mut total = 0;
        for number in 1..=self.items() {
            let (_, size) = self.checked_item(number)?;
            if next.next_if_eq(&number).is_none() {
                total += size;
            }
        }
        if next.peek().is_some() {
            return Err(Misfit("the items to delete are not on the page"));
        }
        let items = self.items() - numbers.len() as u16;
        let lower = PAGE_HEADER + usize::from(items) * LINE_POINTER;
        self.check_room(total, lower)?;
        let mut next = numbers.iter().copied().peekable();
        let mut to = PAGE_HEADER;
        for number in 1..=self.items() {
            if next.next_if_eq(&number).is_none() {
                self.put_u32(to, self.u32_at(pointer_at(number)));
                to += LINE_POINTER;
            }
        }
        self.set_lower(lower);
        self.compact()
    }

    /// Puts an item in the place of another, moving what is before it (`PageIndexTupleOverwrite`).
    pub fn overwrite_item(&mut self, number: u16, item: &[u8]) -> Result<(), Misfit> {
        let (offset, old_size) = self.checked_item(number)?;
        let new_size = aligned(item.len());
        if new_size > old_size + (self.upper() - self.lower()) {
            return Err(Misfit("the page has no room for the item"));
        }
        let by = old_size as isize - new_size as isize;
        let upper = self.upper();
        if by != 0 {
            self.0.copy_within(upper..offset, upper.wrapping_add_signed(by));
            self.set_upper(upper.wrapping_add_signed(by));
            self.move_items(offset, by);
        }
        let start = offset.wrapping_add_signed(by);
        let state = self.expect_line_pointer(number)?.state();
        self.put_u32(pointer_at(number), LinePointer::new(start as u16, state, item.len() as u16).0);
        self.0[start..start + item.len()].copy_from_slice(item);
        Ok(())
    }

    /// Closes the gaps between a table's row versions, and with `truncate` takes unused line pointers off the end
    /// (`PageRepairFragmentation`, which does that since 15).
    pub fn repair_fragmentation(&mut self, truncate: bool) -> Result<(), Misfit> {
        self.check()?;
        let lower = self.lower();
        let (pointers, _) = self.0[PAGE_HEADER..lower].as_chunks_mut::<LINE_POINTER>();
        let mut unused = 0;
        // No branches, so that several line pointers go at a time.
        for bytes in pointers.iter_mut() {
            let pointer = u32::from_le_bytes(*bytes);
            let is_unused = u32::from(pointer >> 15 & 3 == ItemState::Unused as u32);
            *bytes = (pointer & is_unused.wrapping_sub(1)).to_le_bytes();
            unused += is_unused;
        }
        let used = pointers.iter().rposition(|bytes| *bytes != [0; LINE_POINTER]).map_or(0, |last| last + 1);
        self.compact()?;
        if truncate {
            unused -= u32::from(self.items()) - used as u32;
            self.set_lower(PAGE_HEADER + used * LINE_POINTER);
        }
        let flag = flags::HAS_FREE_LINES;
        if unused > 0 {
            self.change_flags(flag, 0)
        } else {
            self.change_flags(0, flag)
        }
        Ok(())
    }

    /// Takes unused line pointers off the end, all but the first (`PageTruncateLinePointerArray`).
    pub fn truncate_line_pointers(&mut self) {
        let is_unused =
            |page: &Page, number| LinePointer(page.u32_at(pointer_at(number))).state() == ItemState::Unused;
        let mut items = self.items();
        while items > 1 && is_unused(self, items) {
            items -= 1;
        }
        if items > 0 {
            self.set_lower(PAGE_HEADER + usize::from(items) * LINE_POINTER);
        }
        let flag = flags::HAS_FREE_LINES;
        let free = (1..=items).any(|number| is_unused(self, number));
        if free { self.change_flags(flag, 0) } else { self.change_flags(0, flag) }
    }

    /// Moves all items to the end of the page, in the order of their line pointers (`compactify_tuples` since 14), unless
    /// they don't lie between `pd_upper` and `pd_special` or have no room.
    fn compact(&mut self) -> Result<(), Misfit> {
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

    fn check_room(&self, total: usize, lower: usize) -> Result<(), Misfit> {
        if total <= self.special().saturating_sub(lower) {
            Ok(())
        } else {
            Err(Misfit("the page's items take more than there is room"))
        }
    }

    /// Gives each item its place, and tells which bytes have to move there; how many runs that are. The hot loop of replay.
    fn lay_out(
        &mut self,
        numbers: &mut [u16; MAX_LINE_POINTERS],
        runs: &mut [Run; MAX_RUNS],
    ) -> Result<usize, Misfit> {
        let (lower, lowest, special) = (self.lower(), self.upper() as u32, self.special() as u32);
        let (pointers, _) = self.0[PAGE_HEADER..lower].as_chunks_mut::<LINE_POINTER>();
        // Line pointers with and without items come in any order, which no branch should have to foresee.
        let mut items = 0;
        for (number, bytes) in (0..).zip(pointers.iter()) {
            numbers[items % MAX_LINE_POINTERS] = number;
            items += usize::from(u32::from_le_bytes(*bytes) >> 17 != 0);
        }
        let (mut count, mut unsound) = (0, false);
        // The run so far, from where to where; where the last item will be.
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

    /// Moves runs of items where they lie. Those that come before one from further up, mostly the newest item, wait in
    /// `aside`; the others keep their order, so none is in the way of one above that moves up, or below that moves down.
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

    /// Moves runs of items by way of a copy of all of them.
    fn move_many(&mut self, runs: &[Run], copy: &mut [u8; PAGE_BYTES]) {
        let lowest = runs.iter().map(|run| run.from).min().unwrap_or(0).into();
        copy[lowest..].copy_from_slice(&self.0[lowest..]);
        for run in runs {
            self.0[run.target()].copy_from_slice(&copy[run.source()]);
        }
    }
}

/// Items that lie beside each other and move.
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

const MAX_LINE_POINTERS: usize = PAGE_BYTES / LINE_POINTER;
/// So many runs can be told apart with little effort.
const FEW_RUNS: usize = 16;
/// An item takes at least 8 bytes.
const MAX_RUNS: usize = PAGE_BYTES / 8;

/// Where items are while they change their order.
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

/// Where a line pointer is.
#[inline]
fn pointer_at(number: u16) -> usize {
    PAGE_HEADER + (usize::from(number) - 1) * LINE_POINTER
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A page of items that lie in any order: each is put before one of those there.
    fn page_of(items: &[(usize, u16)]) -> Page {
        let mut page = Page::default();
        page.init(16);
        for (number, &(len, place)) in (1_u8..).zip(items) {
            let place = place % (page.items() + 1) + 1;
            let _ = page.insert_item(&vec![number; len], place);
        }
        page
    }

    fn contents(page: &Page) -> Vec<Vec<u8>> {
        (1..=page.items()).map(|number| page.item(number).unwrap().to_vec()).collect()
    }

    /// Items follow each other from the page's end, in the order of their line pointers.
    fn assert_laid_out(page: &Page) {
        let mut end = page.special();
        for number in 1..=page.items() {
            let pointer = page.line_pointer(number).unwrap();
            if !pointer.is_empty() {
                assert_eq!(
                    usize::from(pointer.offset()),
                    end - aligned(pointer.len().into()),
                    "item {number}"
                );
                end = pointer.offset().into();
            }
        }
        assert_eq!(page.upper(), end);
    }

    proptest! {
        #[test]
        fn items_keep_their_bytes_when_others_are_deleted(
            items in proptest::collection::vec((1_usize..200, any::<u16>()), 4..120),
            gone in proptest::collection::vec(any::<bool>(), 120),
        ) {
            let mut page = page_of(&items);
            let is_gone = |number: u16| gone[usize::from(number) - 1];
            let numbers: Vec<u16> = (1..=page.items()).filter(|&number| is_gone(number)).collect();
            let kept: Vec<Vec<u8>> =
                contents(&page).into_iter().zip((1..).map(is_gone)).filter(|(_, gone)| !gone).map(|(item, _)| item).collect();
            page.delete_items(&numbers).unwrap();
            prop_assert_eq!(contents(&page), kept);
            if numbers.len() > 2 {
                assert_laid_out(&page);
            }
        }

        #[test]
        fn items_keep_their_bytes_when_fragments_are_joined(
            items in proptest::collection::vec((1_usize..200, any::<u16>()), 1..120),
            states in proptest::collection::vec(0_u8..6, 120),
            truncate: bool,
        ) {
            let mut page = page_of(&items);
            for number in 1..=page.items() {
                match states[usize::from(number)- 1] {
                    0 => page.set_line_pointer(number, LinePointer::UNUSED).unwrap(),
                    1 => page.set_line_pointer(number, LinePointer::dead()).unwrap(),
                    2 => page.set_line_pointer(number, LinePointer::redirect(1)).unwrap(),
                    _ => {}
                }
            }
            let before = page.clone();
            page.repair_fragmentation(truncate).unwrap();
            assert_laid_out(&page);
            prop_assert!(page.items() <= before.items());
            for number in 1..=before.items() {
                let pointer = before.line_pointer(number).unwrap();
                match page.line_pointer(number) {
                    Some(now) if pointer.is_empty() => prop_assert_eq!(now, pointer),
                    Some(_) => prop_assert_eq!(page.item(number), before.item(number)),
                    None => prop_assert!(truncate && pointer.state() == ItemState::Unused),
                }
            }
        }

        /// As a table's page lives: a row version goes, the rest close ranks, another one takes its line pointer.
        #[test]
        fn items_keep_their_bytes_as_others_come_and_go(
            sizes in proptest::collection::vec(1_usize..100, 2..60),
            rounds in proptest::collection::vec(
                (proptest::collection::vec(any::<u16>(), 1..4), 1_usize..100), 1..30
            ),
        ) {
            let mut page = Page::default();
            page.init(0);
            for (byte, &len) in (0_u8..).zip(&sizes) {
                page.add_item(&vec![byte; len]).unwrap();
            }
            let mut model: Vec<Vec<u8>> = contents(&page);
            for (byte, (gone, len)) in (100_u8..).zip(rounds) {
                let gone = gone.iter().map(|number| number % sizes.len() as u16 + 1);
                for number in gone.clone() {
                    page.set_line_pointer(number, LinePointer::UNUSED).unwrap();
                    model[usize::from(number) - 1].clear();
                }
                page.repair_fragmentation(false).unwrap();
                assert_laid_out(&page);
                for number in gone {
                    if page.put_item(&vec![byte; len], number).is_ok() {
                        model[usize::from(number) - 1] = vec![byte; len];
                    }
                }
                for (number, item) in (1..).zip(&model) {
                    prop_assert_eq!(page.item(number).unwrap_or(&[]), item.as_slice());
                }
            }
        }
    }
}

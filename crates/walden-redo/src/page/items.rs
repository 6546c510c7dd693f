//! Line pointers and items of a page, and the ways PostgreSQL adds and removes them.
//!
//! Code that moves items mirrors `bufpage.c`: the order of items on a page is part of its state.

use std::ops::Range;

use super::line_pointer::{ItemState, LINE_POINTER_BYTES, LinePointer, line_pointer_offset};
use super::{MAX_HEAP_ITEMS, Misfit, PAGE_BYTES, PAGE_HEADER_BYTES, Page, max_align};

/// Line pointers and items. Numbers of line pointers start at 1.
impl Page {
    /// Returns the number of line pointers (`PageGetMaxOffsetNumber`), 0 if the header is damaged.
    #[inline]
    pub fn items(&self) -> u16 {
        let lower = self.lower().min(PAGE_BYTES);
        (lower.saturating_sub(PAGE_HEADER_BYTES) / LINE_POINTER_BYTES) as u16
    }

    /// Returns the line pointer with a number, if it exists.
    #[inline]
    pub fn line_pointer(&self, number: u16) -> Option<LinePointer> {
        (number >= 1 && number <= self.items()).then(|| LinePointer(self.u32_at(line_pointer_offset(number))))
    }

    /// Returns the line pointer with a number; an error if it does not exist.
    #[inline]
    pub fn expect_line_pointer(&self, number: u16) -> Result<LinePointer, Misfit> {
        self.line_pointer(number).ok_or(Misfit("the page has no line pointer of this number"))
    }

    /// Changes the line pointer with a number; an error if it does not exist.
    #[inline]
    pub fn set_line_pointer(&mut self, number: u16, pointer: LinePointer) -> Result<(), Misfit> {
        self.expect_line_pointer(number)?;
        self.put_u32(line_pointer_offset(number), pointer.0);
        Ok(())
    }

    /// Returns an item's bytes, in any state of its line pointer.
    #[inline]
    pub fn item(&self, number: u16) -> Option<&[u8]> {
        let (start, len) = self.line_pointer(number)?.place();
        self.0.get(start..start + len)
    }

    /// Returns an item's bytes. Its line pointer must be `Normal`, and the bytes must be after the line
    /// pointers.
    #[inline]
    pub fn normal_item(&self, number: u16) -> Result<&[u8], Misfit> {
        let range = self.normal_range(number)?;
        Ok(&self.0[range])
    }

    /// Returns the bytes of a normal item, mutable.
    #[inline]
    pub fn normal_item_mut(&mut self, number: u16) -> Result<&mut [u8], Misfit> {
        let range = self.normal_range(number)?;
        Ok(&mut self.0[range])
    }

    /// Returns the byte range of a normal item on the page.
    #[inline]
    pub fn normal_range(&self, number: u16) -> Result<Range<usize>, Misfit> {
        let pointer = self.expect_line_pointer(number)?;
        let (start, len) = pointer.place();
        if pointer.state() != ItemState::Normal || start < PAGE_HEADER_BYTES || start + len > PAGE_BYTES {
            return Err(Misfit("the line pointer is not that of an item"));
        }
        Ok(start..start + len)
    }

    /// Inserts an item at a line pointer number and shifts the later line pointers (`PageAddItem` with a
    /// number). `number` may be one more than there are line pointers.
    pub fn insert_item(&mut self, item: &[u8], number: u16) -> Result<(), Misfit> {
        self.check()?;
        if number == 0 {
            return Err(Misfit("an item's line pointer cannot be 0"));
        }
        let limit = self.items() + 1;
        self.place(item, number, limit, number < limit).map(drop)
    }

    /// Allocates a heap tuple at a line pointer that must be unused, or directly after the last line pointer
    /// (`PageAddItem` of tables, overwriting).
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

    /// Puts an item at a line pointer that must be unused, or directly after the last line pointer
    /// (`PageAddItem` with a number, overwriting).
    pub fn put_item(&mut self, item: &[u8], number: u16) -> Result<(), Misfit> {
        self.check()?;
        if number == 0 {
            return Err(Misfit("an item's line pointer cannot be 0"));
        }
        if let Some(pointer) = self.line_pointer(number)
            && (pointer.state() != ItemState::Unused || !pointer.is_empty())
        {
            return Err(Misfit("the line pointer is in use"));
        }
        let limit = self.items() + 1;
        self.place(item, number, limit, false).map(drop)
    }

    fn place(&mut self, item: &[u8], number: u16, limit: u16, shuffle: bool) -> Result<u16, Misfit> {
        let start = self.reserve(item.len(), number, limit, shuffle)?;
        self.0[start..start + item.len()].copy_from_slice(item);
        Ok(number)
    }

    /// Allocates a line pointer and space for its item. Returns the item's offset.
    #[inline]
    fn reserve(&mut self, bytes: usize, number: u16, limit: u16, shuffle: bool) -> Result<usize, Misfit> {
        if number > limit {
            return Err(Misfit("the line pointer is beyond the next free one"));
        }
        let lower = self.lower() + if number == limit || shuffle { LINE_POINTER_BYTES } else { 0 };
        let upper = self.upper().checked_sub(max_align(bytes)).filter(|&upper| lower <= upper);
        let upper = upper.ok_or(Misfit("the page has not enough free space for the item"))?;
        let at = line_pointer_offset(number);
        if shuffle {
            let end = line_pointer_offset(limit);
            self.0.copy_within(at..end, at + LINE_POINTER_BYTES);
        }
        self.put_u32(at, LinePointer::new(upper as u16, ItemState::Normal, bytes as u16).0);
        self.set_lower(lower);
        self.set_upper(upper);
        Ok(upper)
    }

    /// Deletes an item and its line pointer (`PageIndexTupleDelete`).
    pub fn delete_item(&mut self, number: u16) -> Result<(), Misfit> {
        let (offset, size) = self.checked_item(number)?;
        let lower = self.lower();
        let at = line_pointer_offset(number);
        self.0.copy_within(at + LINE_POINTER_BYTES..lower, at);
        self.set_lower(lower - LINE_POINTER_BYTES);
        self.close_gap(offset, size);
        Ok(())
    }

    /// Deletes an item but keeps its line pointer as unused, unless this is the last line pointer
    /// (`PageIndexTupleDeleteNoCompact`).
    pub fn delete_item_keeping_numbers(&mut self, number: u16) -> Result<(), Misfit> {
        let (offset, size) = self.checked_item(number)?;
        if number < self.items() {
            self.put_u32(line_pointer_offset(number), LinePointer::UNUSED.0);
        } else {
            self.set_lower(self.lower() - LINE_POINTER_BYTES);
        }
        self.close_gap(offset, size);
        Ok(())
    }

    /// Returns an index item's offset and its padded size, checked against the header.
    fn checked_item(&self, number: u16) -> Result<(usize, usize), Misfit> {
        self.check()?;
        let (offset, len) = self.expect_line_pointer(number)?.place();
        if offset < self.upper() || offset + max_align(len) > self.special() || offset & 7 != 0 {
            return Err(Misfit("a line pointer is not sound"));
        }
        Ok((offset, max_align(len)))
    }

    /// Moves the bytes between `pd_upper` and an item's former offset up by its size.
    fn close_gap(&mut self, offset: usize, size: usize) {
        let upper = self.upper();
        self.0.copy_within(upper..offset, upper + size);
        self.set_upper(upper + size);
        self.move_items(offset, size as isize);
    }

    /// Corrects the line pointers of items that were at or before `offset`.
    fn move_items(&mut self, offset: usize, by: isize) {
        for number in 1..=self.items() {
            let pointer = LinePointer(self.u32_at(line_pointer_offset(number)));
            let (start, len) = pointer.place();
            if len > 0 && start <= offset {
                let moved = pointer.with_offset(start.wrapping_add_signed(by));
                self.put_u32(line_pointer_offset(number), moved.0);
            }
        }
    }

    /// Deletes many items and their line pointers; `numbers` ascend (`PageIndexMultiDelete`).
    pub fn delete_items(&mut self, numbers: &[u16]) -> Result<(), Misfit> {
        if numbers.len() <= 2 {
            // Up to two items are deleted one by one, which leaves the others in another order than
            // compaction.
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
        let lower = PAGE_HEADER_BYTES + usize::from(items) * LINE_POINTER_BYTES;
        self.check_room(total, lower)?;
        let mut next = numbers.iter().copied().peekable();
        let mut to = PAGE_HEADER_BYTES;
        for number in 1..=self.items() {
            if next.next_if_eq(&number).is_none() {
                self.put_u32(to, self.u32_at(line_pointer_offset(number)));
                to += LINE_POINTER_BYTES;
            }
        }
        self.set_lower(lower);
        self.compact()
    }

    /// Replaces the bytes of an item by `item`, and moves the preceding bytes (`PageIndexTupleOverwrite`).
    pub fn overwrite_item(&mut self, number: u16, item: &[u8]) -> Result<(), Misfit> {
        let (offset, old_size) = self.checked_item(number)?;
        let new_size = max_align(item.len());
        if new_size > old_size + (self.upper() - self.lower()) {
            return Err(Misfit("the page has not enough free space for the item"));
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
        self.put_u32(line_pointer_offset(number), LinePointer::new(start as u16, state, item.len() as u16).0);
        self.0[start..start + item.len()].copy_from_slice(item);
        Ok(())
    }
}

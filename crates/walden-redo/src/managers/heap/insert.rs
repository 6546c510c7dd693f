//! Inserted heap tuples: `INSERT` and `MULTI_INSERT`.

use walden_format::payload::heap::{XlHeapHeader, XlHeapInsert, XlHeapMultiInsert, XlMultiInsertTuple};
use walden_format::payload::offset_numbers;
use walden_format::rmgr::info::heap::INIT_PAGE;
use walden_format::version::Major;

use super::{UNREADABLE, block_number, set_prunable, visibility_map};
use crate::manager::{MAX_BLOCK_DATA_BYTES, PagesAround};
use crate::page::heap_tuple::{
    HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader, HeapTupleHeaderMut, LOGGED_FIELDS, LOGGED_FIELDS_BYTES,
    infomask,
};
use crate::page::maps::VISIBILITYMAP_VALID_BITS;
use crate::page::{Misfit, Page, Tid, flags as page_flags};
use crate::step::Step;

/// The fields that all heap tuples of a record share.
#[derive(Clone, Copy)]
struct Inserter {
    xid: u32,
    block: u32,
}

impl Inserter {
    fn from_step(step: &Step<'_, '_>) -> Inserter {
        Inserter { xid: step.record.header.xid, block: block_number(step, 0) }
    }

    /// Puts a heap tuple on the page. `logged` has three fields of its header, `rest` the bytes after the
    /// header.
    #[inline]
    fn put(
        self,
        page: &mut Page,
        number: u16,
        logged: &[u8; LOGGED_FIELDS_BYTES],
        rest: &[u8],
    ) -> Result<(), Misfit> {
        let item = page.add_heap_item(HEAP_TUPLE_HEADER_BYTES + rest.len(), number)?;
        new_header(item, logged, self.xid, 0, Tid { block: self.block, offset_number: number })?;
        item[HEAP_TUPLE_HEADER_BYTES..].copy_from_slice(rest);
        Ok(())
    }
}

/// Writes the header of a new heap tuple.
#[inline]
pub(super) fn new_header(
    item: &mut [u8],
    logged: &[u8; LOGGED_FIELDS_BYTES],
    xmin: u32,
    xmax: u32,
    ctid: Tid,
) -> Result<(), Misfit> {
    if let Some(fields) = item.get_mut(LOGGED_FIELDS) {
        fields.copy_from_slice(logged);
    }
    let mut header = HeapTupleHeaderMut::parse(item)?;
    header.set_xmin(xmin);
    header.set_xmax(xmax);
    header.set_ctid(ctid);
    header.reset_command();
    Ok(())
}

/// Returns the page that gets the tuples, initialized if the record requests it.
#[inline]
pub(super) fn target<'s>(step: &'s mut Step<'_, '_>, id: u8) -> Option<&'s mut Page> {
    if step.kind() & INIT_PAGE == 0 {
        return step.page(id);
    }
    let page = step.init(id)?;
    page.init(0);
    Some(page)
}

/// Replays `INSERT` (`heap_xlog_insert`).
pub(super) fn insert(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHeapInsert { offset, flags } = XlHeapInsert::read(step.main()).ok_or(UNREADABLE)?;
    if flags.all_visible_cleared() {
        visibility_map::clear(step, 0, VISIBILITYMAP_VALID_BITS);
    }
    let (inserter, version, data) = (Inserter::from_step(step), step.version(), step.data(0));
    let Some(page) = target(step, 0) else { return Ok(()) };
    let (logged, rest) = data.split_first_chunk().ok_or(Misfit("the record has no heap tuple"))?;
    inserter.put(page, offset, logged, rest)?;
    let mut changed = (0, 0);
    if flags.all_visible_cleared() {
        changed.1 = page_flags::PD_ALL_VISIBLE;
    }
    // Until 18, redo applied the flag to a single tuple, too.
    if flags.all_frozen_set() && version >= Major::V14 && version < Major::V19 {
        changed.0 = page_flags::PD_ALL_VISIBLE;
    }
    if changed != (0, 0) {
        page.change_flags(changed.0, changed.1);
    }
    if version >= Major::V19 && inserter.xid >= 3 && !is_frozen(logged) {
        set_prunable(page, inserter.xid);
    }
    Ok(())
}

fn is_frozen(logged: &[u8; LOGGED_FIELDS_BYTES]) -> bool {
    let xmin_frozen = infomask::HEAP_XMIN_FROZEN;
    XlHeapHeader::read(logged).is_some_and(|header| header.infomask & xmin_frozen == xmin_frozen)
}

/// Replays `MULTI_INSERT` (`heap_xlog_multi_insert`).
pub(super) fn multi_insert(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let (XlHeapMultiInsert { flags, count }, numbers) =
        XlHeapMultiInsert::split(step.main()).ok_or(UNREADABLE)?;
    let is_init = step.kind() & INIT_PAGE != 0;
    if flags.all_visible_cleared() {
        visibility_map::clear(step, 0, VISIBILITYMAP_VALID_BITS);
    }
    let (inserter, version, data) = (Inserter::from_step(step), step.version(), step.data(0));
    let frozen = flags.all_frozen_set() && version >= Major::V14;
    if let Some(page) = target(step, 0) {
        let (mut at, mut numbers) = (0, offset_numbers(numbers));
        for index in 0..count {
            let number = if is_init { index.checked_add(1) } else { numbers.next() };
            let number =
                number.ok_or(Misfit("the record's numbers of line pointers and heap tuples differ"))?;
            at += at & 1;
            let (logged, rest) = XlMultiInsertTuple::take(data, &mut at)
                .ok_or(Misfit("the record has not all its heap tuples"))?;
            inserter.put(page, number, logged, rest)?;
        }
        if at != data.len() {
            return Err(Misfit("the record has more than its heap tuples"));
        }
        if flags.all_visible_cleared() {
            page.change_flags(0, page_flags::PD_ALL_VISIBLE);
        }
        if frozen {
            page.change_flags(page_flags::PD_ALL_VISIBLE, 0);
        }
        if version >= Major::V19 {
            if frozen {
                page.set_prune_xid(0);
            } else {
                set_prunable(page, inserter.xid);
            }
        }
    }
    // Before 19, a separate record sets the map's bits.
    if frozen && version >= Major::V19 {
        visibility_map::set(step, 1, 0, VISIBILITYMAP_VALID_BITS)?;
    }
    Ok(())
}

/// Reconstructs the data of an `INSERT`: the heap tuple.
pub(super) fn insert_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let XlHeapInsert { offset, .. } = XlHeapInsert::read(around.record.main_data())?;
    let mut data = Vec::new();
    push_tuple(&mut data, around.after(0)?.normal_item(offset).ok()?)?;
    Some(data)
}

fn push_tuple(data: &mut Vec<u8>, item: &[u8]) -> Option<()> {
    data.extend(HeapTupleHeader::parse(item)?.logged_fields());
    data.extend(&item[HEAP_TUPLE_HEADER_BYTES..]);
    Some(())
}

/// Reconstructs the data of a `MULTI_INSERT`: its heap tuples, if they fit into a block's data. A record that
/// initializes its page has no image.
pub(super) fn multi_insert_data(around: &PagesAround<'_>) -> Option<Vec<u8>> {
    let (XlHeapMultiInsert { count, .. }, numbers) = XlHeapMultiInsert::split(around.record.main_data())?;
    let numbers = numbers.get(..2 * usize::from(count))?;
    let page = around.after(0)?;
    let mut data = Vec::new();
    for number in offset_numbers(numbers) {
        let item = page.normal_item(number).ok()?;
        if data.len() & 1 != 0 {
            data.push(0);
        }
        let header = HeapTupleHeader::parse(item)?;
        let rest = &item[HEAP_TUPLE_HEADER_BYTES..];
        let tuple = XlMultiInsertTuple {
            data_len: rest.len() as u16,
            infomask2: header.infomask2(),
            infomask: header.infomask(),
            header_len: header.hoff(),
        };
        data.extend(tuple.to_bytes());
        data.extend(rest);
        if data.len() > MAX_BLOCK_DATA_BYTES {
            return None;
        }
    }
    Some(data)
}

#[cfg(test)]
mod tests {
    use walden_format::assemble::RecordBuilder;
    use walden_format::lsn::Lsn;
    use walden_format::record::{Fork, RecordHeader, RelFileLocator, decode};
    use walden_format::rmgr::info::heap2::MULTI_INSERT;
    use walden_format::rmgr::rmid;

    use super::*;
    use crate::page::PAGE_BYTES;
    use crate::pool::PageBox;
    use crate::step::touched_with;

    /// Reconstructs the data of a `MULTI_INSERT` that claims to have inserted the page's first tuple `count`
    /// times.
    fn reconstructed(page: &Page, count: u16) -> Option<Vec<u8>> {
        let header = RecordHeader { rmid: rmid::HEAP2, info: MULTI_INSERT, ..RecordHeader::default() };
        let mut builder = RecordBuilder::new(header);
        builder.main_data = [[0, 0], count.to_le_bytes()].concat();
        (0..count).for_each(|_| builder.main_data.extend(1_u16.to_le_bytes()));
        builder.push_block(0, 0, (RelFileLocator::default(), Fork::MAIN, 0), None, &[]);
        let bytes = builder.bytes();
        let header = RecordHeader::parse(&bytes).unwrap();
        let mut blocks = Vec::new();
        let place = (Lsn(8), Lsn(16));
        let record = decode(&bytes, header, place, Major::V18, PAGE_BYTES as u32, &mut blocks).unwrap();
        let touched = touched_with(&record, &mut [(None, Some(PageBox::from(page)))]);
        multi_insert_data(&PagesAround { record: &record, touched: &touched })
    }

    #[test]
    fn tuples_that_exceed_a_blocks_data_are_not_reconstructed() {
        let mut page = Page::default();
        page.init(0);
        page.add_heap_item(4096, 1).unwrap();
        assert!(reconstructed(&page, 15).is_some());
        assert_eq!(reconstructed(&page, 17), None);
        assert_eq!(reconstructed(&page, u16::MAX), None);
    }
}

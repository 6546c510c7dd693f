//! Hash indexes: the resource manager Hash. Mirrors `hash_xlog.c`.

use walden_format::payload::hash::{
    HashBitmapBit, HashFirstFree, HashSplitMasks, HashSplitPoint, XlHashAddOvflPage, XlHashDelete,
    XlHashInitBitmapPage, XlHashInitMetaPage, XlHashInsert, XlHashMovePageContents, XlHashSplitAllocatePage,
    XlHashSplitComplete, XlHashSqueezePage, XlHashUpdateMetaPage, XlHashVacuumOnePage,
};
use walden_format::payload::push_offset_numbers;
use walden_format::reader::Reader;
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::hash::{
    ADD_OVFL_PAGE, DELETE, INIT_BITMAP_PAGE, INIT_META_PAGE, INSERT, MOVE_PAGE_CONTENTS, SPLIT_ALLOCATE_PAGE,
    SPLIT_CLEANUP, SPLIT_COMPLETE, SPLIT_PAGE, SQUEEZE_PAGE, UPDATE_META_PAGE, VACUUM_ONE_PAGE,
};
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::managers::index_items::{
    all_numbers, field, missing_items, new_page, newest_items, numbers, read_padded_index_tuple,
};
use crate::mask;
use crate::page::hash::flags::{
    LH_BITMAP_PAGE, LH_BUCKET_NEEDS_SPLIT_CLEANUP, LH_BUCKET_PAGE, LH_META_PAGE, LH_OVERFLOW_PAGE,
    LH_PAGE_HAS_DEAD_TUPLES, LH_UNUSED_PAGE,
};
use crate::page::hash::{HashPageOpaqueData, INVALID_BUCKET, meta};
use crate::page::tid::INVALID_BLOCK;
use crate::page::{Misfit, PAGE_BYTES, PAGE_CONTENTS, Page, SpecialArea};
use crate::step::Step;
use metapage::at;

pub(crate) static HASH: Manager = Manager { redo, mask: mask_page, block_data };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.kind() {
        INIT_META_PAGE => init_meta_page(step),
        INIT_BITMAP_PAGE => init_bitmap_page(step),
        INSERT => insert(step),
        ADD_OVFL_PAGE => add_overflow_page(step),
        SPLIT_ALLOCATE_PAGE => split_allocate_page(step),
        SPLIT_PAGE => split_page(step),
        SPLIT_COMPLETE => split_complete(step),
        MOVE_PAGE_CONTENTS => move_page_contents(step),
        SQUEEZE_PAGE => squeeze_page(step),
        DELETE => delete(step),
        SPLIT_CLEANUP => split_cleanup(step),
        UPDATE_META_PAGE => update_meta_page(step),
        VACUUM_ONE_PAGE => vacuum_one_page(step),
        _ => Err(Misfit("hash indexes have no such record")),
    }
}

fn init_meta_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHashInitMetaPage { tuples, procedure, fill_factor } = field(XlHashInitMetaPage::read(step.main()))?;
    if let Some(page) = new_page(step, 0)? {
        metapage::init(page, tuples, procedure, fill_factor);
    }
    Ok(())
}

fn init_bitmap_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHashInitBitmapPage { bitmap_bytes: bytes } = field(XlHashInitBitmapPage::read(step.main()))?;
    if let Some(page) = new_page(step, 0)? {
        bitmap::init(page, bytes)?;
    }
    if let Some(page) = step.page(1) {
        metapage::check(page)?;
        // The primary pages of the buckets are blocks 1 and up; the first bitmap follows them.
        let block = page.u32_at(at(meta::MAX_BUCKET)).wrapping_add(2);
        metapage::add_bitmap(page, block)?;
    }
    Ok(())
}

fn insert(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHashInsert { offset: number } = field(XlHashInsert::read(step.main()))?;
    let tuple = step.data(0);
    if let Some(page) = step.page(0) {
        HashPageOpaqueData::from_page(page)?;
        page.insert_item(tuple, number)?;
    }
    if let Some(page) = step.page(1) {
        metapage::check(page)?;
        metapage::change_tuples(page, |tuples| tuples + 1.0);
    }
    Ok(())
}

fn add_overflow_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    const NO_SUCH_BLOCK: Misfit = Misfit("the record lacks a page");
    let XlHashAddOvflPage { bitmap_bytes, is_recycled } = field(XlHashAddOvflPage::read(step.main()))?;
    let overflow_block = step.block(0).ok_or(NO_SUCH_BLOCK)?.block;
    let left_block = step.block(1).ok_or(NO_SUCH_BLOCK)?.block;
    let bucket = field(Reader::new(step.data(0)).u32())?;
    if let Some(page) = new_page(step, 0)? {
        HashPageOpaqueData::new(left_block, bucket, LH_OVERFLOW_PAGE).init(page);
    }
    if let Some(page) = step.page(1) {
        HashPageOpaqueData::change(page, |opaque| opaque.next = overflow_block)?;
    }
    let bit = step.data(2);
    if let Some(page) = step.page(2) {
        bitmap::change(page, bit, |byte, bit| byte | bit)?;
    }
    let new_bitmap = step.block(3).map(|block| block.block);
    if new_bitmap.is_some()
        && let Some(page) = new_page(step, 3)?
    {
        bitmap::init(page, bitmap_bytes)?;
    }
    let first_free = step.data(4);
    if let Some(page) = step.page(4) {
        metapage::check(page)?;
        page.put_u32(at(meta::FIRST_FREE), field(HashFirstFree::read(first_free))?.bit);
        if !is_recycled {
            let spares = metapage::spares(page.u32_at(at(meta::OVERFLOW_POINT)))?;
            if let Some(block) = new_bitmap {
                metapage::add_bitmap(page, block)?;
            }
            let added = 1 + u32::from(new_bitmap.is_some());
            page.put_u32(spares, page.u32_at(spares).wrapping_add(added));
        }
    }
    Ok(())
}

fn split_allocate_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let split = field(XlHashSplitAllocatePage::read(step.main()))?;
    if let Some(page) = step.page(0) {
        HashPageOpaqueData::change(page, |opaque| {
            opaque.flag = split.old_bucket_flag;
            opaque.previous = split.new_bucket;
        })?;
    }
    if let Some(page) = new_page(step, 1)? {
        HashPageOpaqueData::new(split.new_bucket, split.new_bucket, split.new_bucket_flag).init(page);
    }
    let mut data = step.data(2);
    if let Some(page) = step.page(2) {
        metapage::check(page)?;
        page.put_u32(at(meta::MAX_BUCKET), split.new_bucket);
        if split.flags.updates_masks() {
            let (masks, rest) = field(HashSplitMasks::split(data))?;
            page.put_u32(at(meta::LOW_MASK), masks.low);
            page.put_u32(at(meta::HIGH_MASK), masks.high);
            data = rest;
        }
        if split.flags.updates_split_point() {
            let HashSplitPoint { point, spares } = field(HashSplitPoint::read(data))?;
            page.put_u32(at(meta::OVERFLOW_POINT), point);
            page.put_u32(metapage::spares(point)?, spares);
        }
    }
    Ok(())
}

/// Checks that a page that a split filled was restored: it always has an image.
fn split_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.page(0) {
        Some(_) => Err(Misfit("the record lacks the page's image")),
        None => Ok(()),
    }
}

fn split_complete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let split = field(XlHashSplitComplete::read(step.main()))?;
    for (id, flag) in [(0, split.old_bucket_flag), (1, split.new_bucket_flag)] {
        if let Some(page) = step.page(id) {
            HashPageOpaqueData::from_page(page)?;
            HashPageOpaqueData::change(page, |opaque| opaque.flag = flag)?;
        }
    }
    Ok(())
}

fn move_page_contents(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHashMovePageContents { tuples: moved, .. } = field(XlHashMovePageContents::read(step.main()))?;
    let data = step.data(1);
    if let Some(page) = step.page(1) {
        HashPageOpaqueData::from_page(page)?;
        add_moved(page, data, moved)?;
    }
    delete_from(step, 2)?;
    Ok(())
}

/// Adds tuples from another page of the bucket.
fn add_moved(page: &mut Page, data: &[u8], count: u16) -> Result<(), Misfit> {
    if count == 0 {
        return Ok(());
    }
    let mut data = Reader::new(data);
    for number in numbers(&mut data, count)? {
        page.insert_item(read_padded_index_tuple(&mut data)?, number)?;
    }
    if data.left() == 0 { Ok(()) } else { Err(Misfit("the record has more tuples than it says")) }
}

/// Deletes the items that the block's data lists from its page. Returns the page, if it is to be changed.
fn delete_from<'s>(step: &'s mut Step<'_, '_>, id: u8) -> Result<Option<&'s mut Page>, Misfit> {
    let data = step.data(id);
    let Some(page) = step.page(id) else { return Ok(None) };
    HashPageOpaqueData::from_page(page)?;
    page.delete_items(&all_numbers(data)?)?;
    Ok(Some(page))
}

fn squeeze_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let squeeze = field(XlHashSqueezePage::read(step.main()))?;
    let data = step.data(1);
    // Until 16, the page that receives the tuples gets the record's LSN even if the record refers to this
    // page only to lock it.
    let written = squeeze.tuples > 0 || squeeze.is_onto_previous_page || step.version() < Major::V17;
    if written && let Some(page) = step.page(1) {
        HashPageOpaqueData::from_page(page)?;
        add_moved(page, data, squeeze.tuples)?;
        if squeeze.is_onto_previous_page {
            HashPageOpaqueData::change(page, |opaque| opaque.next = squeeze.next_block)?;
        }
    }
    if let Some(page) = step.page(2) {
        HashPageOpaqueData::new(INVALID_BLOCK, INVALID_BUCKET, LH_UNUSED_PAGE).init(page);
    }
    if !squeeze.is_onto_previous_page
        && let Some(page) = step.page(3)
    {
        HashPageOpaqueData::change(page, |opaque| opaque.next = squeeze.next_block)?;
    }
    if let Some(page) = step.page(4) {
        HashPageOpaqueData::change(page, |opaque| opaque.previous = squeeze.previous_block)?;
    }
    let bit = step.data(5);
    if let Some(page) = step.page(5) {
        bitmap::change(page, bit, |byte, bit| byte & !bit)?;
    }
    let first_free = step.data(6);
    if let Some(page) = step.page(6) {
        metapage::check(page)?;
        page.put_u32(at(meta::FIRST_FREE), field(HashFirstFree::read(first_free))?.bit);
    }
    Ok(())
}

fn delete(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHashDelete { clears_dead_marking, .. } = field(XlHashDelete::read(step.main()))?;
    if let Some(page) = delete_from(step, 1)?
        && clears_dead_marking
    {
        HashPageOpaqueData::change(page, |opaque| opaque.flag &= !LH_PAGE_HAS_DEAD_TUPLES)?;
    }
    Ok(())
}

fn split_cleanup(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    if let Some(page) = step.page(0) {
        HashPageOpaqueData::change(page, |opaque| opaque.flag &= !LH_BUCKET_NEEDS_SPLIT_CLEANUP)?;
    }
    Ok(())
}

fn update_meta_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlHashUpdateMetaPage { tuples } = field(XlHashUpdateMetaPage::read(step.main()))?;
    if let Some(page) = step.page(0) {
        metapage::check(page)?;
        metapage::change_tuples(page, |_| tuples);
    }
    Ok(())
}

fn vacuum_one_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let (XlHashVacuumOnePage { tuples: count, .. }, rest) = field(XlHashVacuumOnePage::split(step.main()))?;
    let mut main = Reader::new(rest);
    // Until 15 the count has 32 bits.
    let _is_catalog_and_padding = field(main.u16())?;
    let deleted = numbers(&mut main, count)?;
    if let Some(page) = step.page(0) {
        HashPageOpaqueData::from_page(page)?;
        page.delete_items(&deleted)?;
        HashPageOpaqueData::change(page, |opaque| opaque.flag &= !LH_PAGE_HAS_DEAD_TUPLES)?;
    }
    if let Some(page) = step.page(1) {
        metapage::check(page)?;
        metapage::change_tuples(page, |tuples| tuples - f64::from(count));
    }
    Ok(())
}

/// The metapage's fields.
mod metapage {
    use super::*;

    const MAX_FIRST_BUCKETS: u32 = 0x4000_0000;

    /// Returns the offset of a field on the page.
    pub const fn at(field: usize) -> usize {
        PAGE_CONTENTS + field
    }

    /// Checks that the page is the metapage of a hash index.
    pub fn check(page: &Page) -> Result<(), Misfit> {
        if HashPageOpaqueData::from_page(page)?.page_type() == LH_META_PAGE {
            Ok(())
        } else {
            Err(Misfit("the page is not a hash index's metapage"))
        }
    }

    /// Initializes the metapage (`_hash_init_metabuffer`).
    pub fn init(page: &mut Page, tuples: f64, procedure: u32, fill_factor: u16) {
        let wanted = tuples / f64::from(fill_factor);
        let buckets = if wanted <= 2.0 {
            2
        } else if wanted >= f64::from(MAX_FIRST_BUCKETS) {
            MAX_FIRST_BUCKETS
        } else {
            total_buckets(split_point(wanted as u32))
        };
        let point = split_point(buckets);
        let usable = PAGE_BYTES - PAGE_CONTENTS - HashPageOpaqueData::BYTES;
        let high_mask = (buckets + 1).next_power_of_two() - 1;
        HashPageOpaqueData::new(INVALID_BLOCK, INVALID_BUCKET, LH_META_PAGE).init(page);
        page.put_u32(at(meta::MAGIC), meta::HASH_MAGIC);
        page.put_u32(at(meta::VERSION), meta::HASH_VERSION);
        page.put_u16(at(meta::FILL_FACTOR), fill_factor);
        page.put_u16(at(meta::PAGE_SIZE), usable as u16);
        page.put_u16(at(meta::BITMAP_BYTES), 1 << usable.ilog2());
        page.put_u16(at(meta::BITMAP_SHIFT), usable.ilog2() as u16 + 3);
        page.put_u32(at(meta::MAX_BUCKET), buckets - 1);
        page.put_u32(at(meta::HIGH_MASK), high_mask);
        page.put_u32(at(meta::LOW_MASK), high_mask >> 1);
        page.put_u32(at(meta::OVERFLOW_POINT), point);
        page.put_u32(at(meta::PROCEDURE), procedure);
        page.put_u32(at(meta::SPARES) + 4 * point as usize, 1);
        page.set_lower(at(meta::BYTES));
    }

    /// Returns the split point at which `buckets` buckets are allocated (`_hash_spareindex`).
    fn split_point(buckets: u32) -> u32 {
        let group = buckets.next_power_of_two().ilog2();
        if group < meta::WHOLE_GROUPS {
            return group;
        }
        meta::WHOLE_GROUPS + (group - meta::WHOLE_GROUPS) * 4 + ((buckets - 1) >> (group - 3) & 3)
    }

    /// Returns the number of buckets after the allocation of a split point (`_hash_get_totalbuckets`).
    fn total_buckets(point: u32) -> u32 {
        let Some(beyond) = point.checked_sub(meta::WHOLE_GROUPS) else { return 1 << point };
        let before = 1 << (meta::WHOLE_GROUPS + beyond / 4 - 1);
        before + before / 4 * (beyond % 4 + 1)
    }

    /// Returns the offset of the number of overflow pages before a split point.
    pub fn spares(point: u32) -> Result<usize, Misfit> {
        if point < meta::MAX_SPLIT_POINTS {
            Ok(at(meta::SPARES) + 4 * point as usize)
        } else {
            Err(Misfit("a hash index has no such split point"))
        }
    }

    /// Adds a bitmap page to the metapage.
    pub fn add_bitmap(page: &mut Page, block: u32) -> Result<(), Misfit> {
        let count = page.u32_at(at(meta::BITMAPS));
        if count >= meta::MAX_BITMAPS {
            return Err(Misfit("a hash index has too many bitmap pages for another one"));
        }
        page.put_u32(at(meta::BITMAP_BLOCKS) + 4 * count as usize, block);
        page.put_u32(at(meta::BITMAPS), count + 1);
        Ok(())
    }

    pub fn change_tuples(page: &mut Page, change: impl Fn(f64) -> f64) {
        let low_half = u64::from(page.u32_at(at(meta::TUPLES)));
        let tuples = f64::from_bits(u64::from(page.u32_at(at(meta::TUPLES) + 4)) << 32 | low_half);
        page.0[at(meta::TUPLES)..at(meta::TUPLES) + 8].copy_from_slice(&change(tuples).to_le_bytes());
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn split_points_and_totals_agree() {
            assert_eq!(
                [2, 3, 512, 513, 640, 641, 1024, 1025].map(split_point),
                [1, 2, 9, 10, 10, 11, 13, 14]
            );
            for point in 0..80 {
                assert_eq!(split_point(total_buckets(point)), point);
            }
        }

        #[test]
        fn any_number_of_tuples_makes_a_meta_page() {
            for tuples in [0.0, -1.0, f64::NAN, f64::INFINITY, 3e5, 1e12] {
                for fill_factor in [0, 1, 307] {
                    let mut page = Page::default();
                    init(&mut page, tuples, 450, fill_factor);
                    assert_eq!(check(&page), Ok(()));
                }
            }
        }
    }
}

/// Bitmap pages, which mark the overflow pages in use.
mod bitmap {
    use super::*;

    /// Initializes a bitmap page with all bits set (`_hash_initbitmapbuffer`).
    pub fn init(page: &mut Page, bytes: u16) -> Result<(), Misfit> {
        HashPageOpaqueData::new(INVALID_BLOCK, INVALID_BUCKET, LH_BITMAP_PAGE).init(page);
        let end = PAGE_CONTENTS + usize::from(bytes);
        if end > page.upper() {
            return Err(Misfit("the bitmap does not fit on its page"));
        }
        page.0[PAGE_CONTENTS..end].fill(0xFF);
        page.set_lower(end);
        Ok(())
    }

    /// Changes the bit that the block's data specifies.
    pub fn change(page: &mut Page, data: &[u8], change: fn(u8, u8) -> u8) -> Result<(), Misfit> {
        HashPageOpaqueData::from_page(page)?;
        let HashBitmapBit { bit } = field(HashBitmapBit::read(data))?;
        let at = PAGE_CONTENTS + (bit / 8) as usize;
        if at >= page.lower() || at >= PAGE_BYTES - HashPageOpaqueData::BYTES {
            return Err(Misfit("the page has no such bit"));
        }
        page.0[at] = change(page.0[at], 1 << (bit % 8));
        Ok(())
    }

    /// Returns the number of the bit that differs.
    pub fn changed(before: &Page, after: &Page) -> Option<u32> {
        let at = (PAGE_CONTENTS..PAGE_BYTES - HashPageOpaqueData::BYTES)
            .find(|&at| before.0[at] != after.0[at])?;
        Some((at - PAGE_CONTENTS) as u32 * 8 + (before.0[at] ^ after.0[at]).trailing_zeros())
    }
}

/// Mirrors `hash_mask`.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    mask::unused_space(page);
    let Ok(opaque) = HashPageOpaqueData::from_page(page) else { return };
    HashPageOpaqueData { flag: opaque.flag & !LH_PAGE_HAS_DEAD_TUPLES, ..opaque }.write(page);
    match opaque.page_type() {
        LH_UNUSED_PAGE => mask::content(page),
        LH_BUCKET_PAGE | LH_OVERFLOW_PAGE => mask::line_pointer_states(page),
        _ => {}
    }
}

fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    let main = around.record.main_data();
    let after = around.after(block.id)?;
    match (around.record.rmgr_info(), block.id) {
        // The image is the whole change, not its result.
        (SPLIT_PAGE, _) => None,
        (INSERT, 0) => Some(after.item(XlHashInsert::read(main)?.offset)?.to_vec()),
        (ADD_OVFL_PAGE, 2) | (SQUEEZE_PAGE, 5) => {
            let bit = bitmap::changed(around.before(block.id)?, after)?;
            Some(HashBitmapBit { bit }.to_bytes().to_vec())
        }
        (ADD_OVFL_PAGE, 4) | (SQUEEZE_PAGE, 6) => {
            metapage::check(after).ok()?;
            Some(HashFirstFree { bit: after.u32_at(at(meta::FIRST_FREE)) }.to_bytes().to_vec())
        }
        (SPLIT_ALLOCATE_PAGE, 2) => {
            let changes = XlHashSplitAllocatePage::read(main)?.flags;
            metapage::check(after).ok()?;
            let mut data = Vec::new();
            if changes.updates_masks() {
                let [low, high] = [meta::LOW_MASK, meta::HIGH_MASK].map(|field| after.u32_at(at(field)));
                data.extend(HashSplitMasks { low, high }.to_bytes());
            }
            if changes.updates_split_point() {
                let point = after.u32_at(at(meta::OVERFLOW_POINT));
                let spares = after.u32_at(metapage::spares(point).ok()?);
                data.extend(HashSplitPoint { point, spares }.to_bytes());
            }
            Some(data)
        }
        (MOVE_PAGE_CONTENTS, 1) => moved(after, XlHashMovePageContents::read(main)?.tuples),
        (SQUEEZE_PAGE, 1) => moved(after, XlHashSqueezePage::read(main)?.tuples),
        (MOVE_PAGE_CONTENTS, 2) | (DELETE, 1) => {
            let mut data = Vec::new();
            push_offset_numbers(&mut data, missing_items(around.before(block.id)?, after, after.items())?);
            Some(data)
        }
        _ => Some(Vec::new()),
    }
}

/// Reconstructs the tuples that were moved to a page: their numbers, followed by their bytes.
fn moved(after: &Page, count: u16) -> Option<Vec<u8>> {
    let items = newest_items(after, count)?;
    let mut data = Vec::new();
    push_offset_numbers(&mut data, items.iter().map(|item| item.0));
    items.iter().for_each(|(_, item)| data.extend_from_slice(item));
    Some(data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::rmid;

    use super::*;
    use crate::managers::index_items::hostile;
    use crate::testing::replayed;

    const SPECIALS: &[&[u8]] = &[
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x80, 0xFF],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0x80, 0xFF],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x80, 0xFF],
    ];

    fn metapage_of(tuples: f64) -> Page {
        let mut page = Page::default();
        metapage::init(&mut page, tuples, 400, 300);
        page
    }

    /// `_hash_init` with 4 buckets, in blocks 1 to 4. The first bitmap is block 5.
    #[test]
    fn the_first_bitmap_is_behind_the_buckets() {
        let blocks = [(None, Vec::new()), (Some(metapage_of(1000.0)), Vec::new())];
        let pages = replayed((rmid::HASH, INIT_BITMAP_PAGE), &4096_u16.to_le_bytes(), &blocks).unwrap();
        let page = pages[1].as_ref().unwrap();
        assert_eq!(page.u32_at(at(meta::MAX_BUCKET)), 3);
        assert_eq!(page.u32_at(at(meta::BITMAP_BLOCKS)), 5);
    }

    /// The counter of overflow pages is that of the metapage's split point.
    #[test]
    fn an_overflow_page_and_its_bitmap_are_counted_at_the_split_point() {
        let (mut left, mut map) = (Page::default(), Page::default());
        HashPageOpaqueData::new(INVALID_BLOCK, 0, LH_BUCKET_PAGE).init(&mut left);
        bitmap::init(&mut map, 4096).unwrap();
        let number = |number: u32| number.to_le_bytes().to_vec();
        let metapage = metapage_of(1000.0);
        let point = metapage.u32_at(at(meta::OVERFLOW_POINT)) as usize;
        let spares = at(meta::SPARES) + 4 * point;
        let before = metapage.u32_at(spares);
        let blocks = [
            (None, number(0)),
            (Some(left), Vec::new()),
            (Some(map), number(7)),
            (None, Vec::new()),
            (Some(metapage), number(9)),
        ];
        let pages = replayed((rmid::HASH, ADD_OVFL_PAGE), &[0, 16, 0], &blocks).unwrap();
        let page = pages[4].as_ref().unwrap();
        assert_eq!((page.u32_at(spares), page.u32_at(at(meta::FIRST_FREE))), (before + 2, 9));
        assert_eq!(page.u32_at(at(meta::BITMAP_BLOCKS)), 3);
    }

    proptest! {
        #[test]
        fn no_record_however_wrong_panics(case in hostile::cases(SPECIALS)) {
            hostile::replay(rmid::HASH, &case);
        }
    }
}

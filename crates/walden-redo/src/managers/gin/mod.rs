//! GIN: the resource manager Gin.
//!
//! An index has a tree of keys (entry pages hold index tuples), a tree of TIDs for each frequent key (data
//! pages, see [`posting`]), and a list of pending entries (list pages hold index tuples). Mirrors
//! `ginxlog.c`.

use walden_format::payload::gin::{
    GinInsertEntry, XlGinDeleteListPages, XlGinDeletePage, XlGinInsert, XlGinInsertListPage, XlGinSplit,
    XlGinUpdateMeta,
};
use walden_format::reader::Reader;
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::gin::{
    CREATE_PTREE, DELETE_LISTPAGE, DELETE_PAGE, INSERT, INSERT_LISTPAGE, SPLIT, UPDATE_META_PAGE,
    VACUUM_DATA_LEAF_PAGE, VACUUM_PAGE,
};
use walden_format::version::Major;

use crate::manager::{MAX_BLOCK_DATA_BYTES, Manager, PagesAround};
use crate::managers::index_items::read_index_tuple;
use crate::mask;
use crate::page::gin::{GinPageOpaqueData, flags};
use crate::page::tid::{INVALID_BLOCK, block_from_bytes, block_to_bytes};
use crate::page::{Misfit, PAGE_CONTENTS, PAGE_HEADER_BYTES, Page, SpecialArea};
use crate::step::Step;

mod posting;

pub(crate) static GIN: Manager = Manager { redo, mask: mask_page, block_data };

const SHORT: Misfit = Misfit("the record's fields end too early");
const NO_IMAGE: Misfit = Misfit("the record has no image of a page that it always has one of");

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.kind() {
        CREATE_PTREE => create_posting_tree(step),
        INSERT => insert(step),
        SPLIT => split(step),
        VACUUM_PAGE => {
            expect_image(step, 0);
            Ok(())
        }
        VACUUM_DATA_LEAF_PAGE => {
            let data = step.data(0);
            step.page(0).map_or(Ok(()), |page| posting::recompress(page, data))
        }
        DELETE_PAGE => delete_page(step),
        UPDATE_META_PAGE => update_meta_page(step),
        INSERT_LISTPAGE => insert_list_page(step),
        DELETE_LISTPAGE => delete_list_pages(step),
        _ => Err(Misfit("a kind of record that is not known")),
    }
}

fn create_posting_tree(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let mut main = Reader::new(step.main());
    let size = main.u32().ok_or(SHORT)? as usize;
    let segments = main.take(size).ok_or(SHORT)?;
    let Some(page) = step.init(0) else { return Ok(()) };
    init(page, flags::GIN_DATA | flags::GIN_LEAF | flags::GIN_COMPRESSED);
    posting::fill(page, segments)
}

fn insert(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let (of_data, children) = read_insert(step.main()).ok_or(SHORT)?;
    if children.is_some()
        && let Some(child) = step.page(1)
    {
        clear_incomplete_split(child)?;
    }
    let data = step.data(0);
    let Some(page) = step.page(0) else { return Ok(()) };
    match (of_data, children) {
        (false, children) => insert_entry(page, children, data),
        (true, None) => posting::recompress(page, data),
        (true, Some(children)) => posting::insert_downlink(page, children, data),
    }
}

/// The halves of a split page.
#[derive(Clone, Copy)]
struct Children {
    left: u32,
    right: u32,
}

/// Returns whether an `INSERT` changes a page of a posting tree, and the halves of the child whose split it
/// completes.
fn read_insert(main: &[u8]) -> Option<(bool, Option<Children>)> {
    let (insert, children) = XlGinInsert::read_with_children(main)?;
    let children = children.map(|children| Children { left: children.left.0, right: children.right.0 });
    Some((insert.flags.is_data(), children))
}

fn insert_entry(page: &mut Page, children: Option<Children>, data: &[u8]) -> Result<(), Misfit> {
    let mut data = Reader::new(data);
    let entry = data.take(GinInsertEntry::WIDTH).and_then(GinInsertEntry::read).ok_or(SHORT)?;
    let GinInsertEntry { offset: number, is_delete } = entry;
    let tuple = read_index_tuple(&mut data)?;
    if data.left() != 0 {
        return Err(Misfit("there is more data than the index tuple"));
    }
    if let Some(Children { right, .. }) = children
        && right != INVALID_BLOCK
    {
        let downlink = page.normal_item_mut(number)?.first_chunk_mut::<6>().ok_or(SHORT)?;
        downlink[..4].copy_from_slice(&block_to_bytes(right));
        downlink[4..].fill(0);
    }
    if is_delete {
        page.delete_item(number)?;
    }
    page.insert_item(tuple, number)
}

/// Replays a split, whose pages always have images. Only the child whose split this record completes has
/// none.
fn split(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlGinSplit { flags, .. } = XlGinSplit::read(step.main()).ok_or(SHORT)?;
    for id in 0..3 {
        expect_image(step, id);
    }
    match step.page(3) {
        Some(child) if !flags.is_leaf() => clear_incomplete_split(child),
        _ => Ok(()),
    }
}

/// Makes a page unknown if it should have been restored from an image but was not.
fn expect_image(step: &mut Step<'_, '_>, id: u8) {
    if step.block(id).is_some_and(|block| !block.image.is_some_and(|image| image.apply)) {
        step.lose(id, NO_IMAGE);
    }
}

fn clear_incomplete_split(page: &mut Page) -> Result<(), Misfit> {
    GinPageOpaqueData::change(page, |opaque| opaque.flags &= !flags::GIN_INCOMPLETE_SPLIT)
}

fn delete_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlGinDeletePage { parent_offset, right_link, delete_xid: xid } =
        XlGinDeletePage::read(step.main()).ok_or(SHORT)?;
    if let Some(left) = step.page(2) {
        set_right_link(left, right_link)?;
    }
    if let Some(deleted) = step.page(0) {
        GinPageOpaqueData::change(deleted, |opaque| opaque.flags |= flags::GIN_DELETED)?;
        deleted.set_prune_xid(xid);
    }
    step.page(1).map_or(Ok(()), |parent| posting::delete_downlink(parent, parent_offset))
}

fn update_meta_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let update = XlGinUpdateMeta::read(step.main()).ok_or(SHORT)?;
    let tuples = count(update.tuples)?;
    if let Some(meta) = step.init(0) {
        init_meta(meta, &update.metadata);
    }
    let data = step.data(1);
    match step.page(1) {
        Some(tail) if tuples > 0 => {
            add_tuples(tail, tuples, data)?;
            GinPageOpaqueData::change(tail, |opaque| opaque.max_offset = opaque.max_offset.wrapping_add(1))
        }
        Some(tail) if update.previous_tail != INVALID_BLOCK => set_right_link(tail, update.new_right_link),
        _ => Ok(()),
    }
}

fn insert_list_page(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlGinInsertListPage { right_link, tuples } = XlGinInsertListPage::read(step.main()).ok_or(SHORT)?;
    let tuples = count(tuples)?;
    let data = step.data(0);
    let Some(page) = step.init(0) else { return Ok(()) };
    if right_link == INVALID_BLOCK {
        // The last page of a heap tuple's entries.
        let flags = flags::GIN_LIST | flags::GIN_LIST_FULLROW;
        GinPageOpaqueData { max_offset: 1, ..GinPageOpaqueData::new(flags) }.init(page);
    } else {
        GinPageOpaqueData { right_link, ..GinPageOpaqueData::new(flags::GIN_LIST) }.init(page);
    }
    add_tuples(page, tuples, data)
}

fn delete_list_pages(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlGinDeleteListPages { metadata, deleted } = XlGinDeleteListPages::read(step.main()).ok_or(SHORT)?;
    let deleted = count(deleted)?;
    if let Some(meta) = step.init(0) {
        init_meta(meta, &metadata);
    }
    for id in
        1..=u8::try_from(deleted).map_err(|_| Misfit("more pages are deleted than a record can have"))?
    {
        if let Some(page) = step.init(id) {
            init(page, flags::GIN_DELETED);
        }
    }
    Ok(())
}

fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    let flags = GinPageOpaqueData::from_page(page).map_or(0, |opaque| opaque.flags);
    if flags & flags::GIN_DELETED != 0 {
        mask::content(page);
    } else if page.lower() > PAGE_HEADER_BYTES {
        mask::unused_space(page);
    }
}

fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    match (around.record.rmgr_info(), block.id) {
        (INSERT, 0) => {
            let after = around.after(0)?;
            match read_insert(around.record.main_data())? {
                (false, _) => entry_data(around.before(0), after),
                (true, None) => posting::inserted(around.before(0)?, after),
                (true, Some(children)) => posting::downlink_data(children, after),
            }
        }
        (VACUUM_DATA_LEAF_PAGE, 0) => posting::vacuumed(around.before(0)?, around.after(0)?),
        (UPDATE_META_PAGE, 1) => {
            let after = around.after(1)?;
            last_tuples(after, count(XlGinUpdateMeta::read(around.record.main_data())?.tuples).ok()?)
        }
        (INSERT_LISTPAGE, 0) => {
            let after = around.after(0)?;
            last_tuples(after, after.items().into())
        }
        _ => Some(Vec::new()),
    }
}

/// Mirrors `ginxlogInsertEntry`. The tuple that was added last starts at `pd_upper`.
fn entry_data(before: Option<&Page>, after: &Page) -> Option<Vec<u8>> {
    let is_last = |number: &u16| {
        after.line_pointer(*number).is_some_and(|pointer| usize::from(pointer.offset()) == after.upper())
    };
    let number = (1..=after.items()).find(is_last)?;
    // If the page before the record is unknown, it is also unknown whether the tuple replaced an older tuple.
    // The length of the data is the same in both cases.
    let replaces = before.is_some_and(|before| before.items() == after.items());
    let mut data = GinInsertEntry { offset: number, is_delete: replaces }.to_bytes().to_vec();
    data.extend(after.normal_item(number).ok()?);
    Some(data)
}

/// Returns the last index tuples of a page, concatenated, if they fit into a block's data.
fn last_tuples(page: &Page, count: u32) -> Option<Vec<u8>> {
    let first = page.items().checked_sub(u16::try_from(count).ok()?)? + 1;
    let mut data = Vec::new();
    for number in first..=page.items() {
        data.extend(page.normal_item(number).ok()?);
        if data.len() > MAX_BLOCK_DATA_BYTES {
            return None;
        }
    }
    Some(data)
}

/// Adds index tuples after the existing index tuples of the page.
fn add_tuples(page: &mut Page, count: u32, data: &[u8]) -> Result<(), Misfit> {
    let mut data = Reader::new(data);
    for _ in 0..count {
        page.insert_item(read_index_tuple(&mut data)?, page.items() + 1)?;
    }
    if data.left() == 0 { Ok(()) } else { Err(Misfit("there is more data than index tuples")) }
}

/// Converts a count, which is signed in records but never negative.
fn count(count: i32) -> Result<u32, Misfit> {
    u32::try_from(count).map_err(|_| Misfit("the record has a negative count"))
}

/// Reads a block number in two halves (`BlockIdData`).
fn read_block_id(data: &mut Reader<'_>) -> Option<u32> {
    Some(block_from_bytes(&data.array()?))
}

/// Initializes an empty page (`GinInitPage`).
fn init(page: &mut Page, flags: u16) {
    GinPageOpaqueData::new(flags).init(page);
}

/// Initializes the metapage (`GinInitMetabuffer`).
fn init_meta(page: &mut Page, metadata: &[u8]) {
    init(page, flags::GIN_META);
    let end = PAGE_CONTENTS + metadata.len();
    page.0[PAGE_CONTENTS..end].copy_from_slice(metadata);
    page.set_lower(end);
}

fn set_right_link(page: &mut Page, block: u32) -> Result<(), Misfit> {
    GinPageOpaqueData::change(page, |opaque| opaque.right_link = block)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::rmid;

    use walden_format::payload::gin::GinFlags;

    use super::*;
    use crate::testing::{any_blocks, any_bytes, replayed};

    fn tuple(size: u16, filler: u8) -> Vec<u8> {
        let mut tuple = vec![filler; size.into()];
        tuple[6..8].copy_from_slice(&size.to_le_bytes());
        tuple
    }

    fn entry_page(tuples: &[Vec<u8>]) -> Page {
        let mut page = Page::default();
        init(&mut page, flags::GIN_LEAF);
        for tuple in tuples {
            page.insert_item(tuple, page.items() + 1).unwrap();
        }
        page
    }

    #[test]
    fn an_entry_is_replaced() {
        let before = entry_page(&[tuple(16, 1), tuple(24, 2), tuple(16, 3)]);
        let data = [vec![2, 0, 1, 0], tuple(40, 4)].concat();
        let main = GinFlags::IS_LEAF.to_le_bytes();
        let pages = replayed((rmid::GIN, INSERT), &main, &[(Some(before.clone()), data.clone())]).unwrap();
        let after = pages[0].as_deref().unwrap();
        assert_eq!(after.items(), 3);
        assert_eq!(after.normal_item(2).unwrap(), tuple(40, 4));
        assert_eq!(after.normal_item(3).unwrap(), tuple(16, 3));
        assert_eq!(entry_data(Some(&before), after), Some(data));
    }

    #[test]
    fn a_downlink_is_put_before_its_right_half() {
        let before = entry_page(&[tuple(16, 1), tuple(24, 2)]);
        let data = [vec![1, 0, 0, 0], tuple(16, 9)].concat();
        let main = [0, 0, 0, 0, 5, 0, 1, 0, 6, 0];
        let child = entry_page(&[]);
        let blocks = [(Some(before.clone()), data.clone()), (Some(child), Vec::new())];
        let pages = replayed((rmid::GIN, INSERT), &main, &blocks).unwrap();
        let after = pages[0].as_deref().unwrap();
        assert_eq!(after.normal_item(1).unwrap(), tuple(16, 9));
        assert_eq!(after.normal_item(2).unwrap()[..6], [1, 0, 6, 0, 0, 0]);
        assert_eq!(entry_data(Some(&before), after), Some(data));
    }

    #[test]
    fn a_list_page_takes_all_tuples() {
        let data = [tuple(16, 1), tuple(32, 2)].concat();
        let main = [0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0];
        let pages = replayed((rmid::GIN, INSERT_LISTPAGE), &main, &[(None, data.clone())]).unwrap();
        let page = pages[0].as_deref().unwrap();
        assert_eq!(GinPageOpaqueData::from_page(page).unwrap().max_offset, 1);
        assert_eq!(last_tuples(page, 2), Some(data));
        assert_eq!(last_tuples(page, 3), None);
    }

    #[test]
    fn a_split_page_without_its_image_is_unknown() {
        let main = [0; 28];
        let pages = replayed((rmid::GIN, SPLIT), &main, &[(Some(entry_page(&[])), Vec::new())]).unwrap();
        assert!(pages[0].is_none());
    }

    proptest! {
        #[test]
        fn no_record_panics(kind in 0..16u8, main in any_bytes(100), blocks in any_blocks()) {
            let _ = replayed((rmid::GIN, kind << 4), &main, &blocks);
        }
    }
}

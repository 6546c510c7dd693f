//! Changes of B-tree indexes: the resource manager Btree.
//!
//! Structures: `access/nbtxlog.h`, `access/nbtree.h` until 9.6. Writers: `nbtinsert.c`, `nbtpage.c`,
//! `nbtdedup.c`.

use super::layout::layout;
use super::listing::listing;
use super::{Fields, Item, Items, Parsed, Payload, PayloadError};
use crate::reader::Reader;
use crate::record::{Record, RelFileLocator};
use crate::version::Major;

/// The ids of the blocks whose data is the metapage's.
const META_BLOCK: u8 = 2;
const META_BLOCK_OF_UNLINK: u8 = 4;

fn block_data<'a>(record: &Record<'a>, fields: &Fields<'a>, id: u8) -> Option<Fields<'a>> {
    record.block(id).and_then(|block| fields.for_block(record, block))
}

layout! {
    /// `xl_btree_insert`: the main data of `INSERT_LEAF`, `INSERT_UPPER`, `INSERT_META` and `INSERT_POST`.
    /// Block 0 has the tuple.
    XlBtreeInsert[2] {
        /// The tuple's line pointer.
        0 offset: u16,
    }
}

layout! {
    /// The prefix of block 0's data of an `INSERT_POST`; the tuple follows.
    BtreePostingOffset[2] {
        /// `postingoff`: where the posting list before the tuple is split.
        0 posting_offset: u16,
    }
}

/// `INSERT_LEAF`, `INSERT_UPPER`, `INSERT_META`; since 13 `INSERT_POST`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BtreeInsert<'a> {
    /// `offnum`: offset number of the new tuple.
    pub offset: u16,
    /// The position at which the posting list before the tuple is split (`INSERT_POST`).
    pub posting_offset: Option<u16>,
    /// The index tuple, from block 0's data; `None` if the block has an image.
    pub tuple: Option<&'a [u8]>,
    /// The new metapage, if the tree's fast root changed (`INSERT_META`).
    pub meta: Option<BtreeMeta>,
}

pub(crate) fn insert<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let offset = fields.u16("offnum")?;
    let tuple = block_data(record, fields, 0).map(|mut data| data.rest());
    let meta = meta_of(record, fields, META_BLOCK)?;
    Ok(Payload::BtreeInsert(BtreeInsert { offset, posting_offset: None, tuple, meta }))
}

pub(crate) fn insert_post<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let offset = fields.u16("offnum")?;
    let (mut posting_offset, mut tuple) = (None, None);
    if let Some(mut data) = block_data(record, fields, 0) {
        posting_offset = Some(data.u16("postingoff")?);
        tuple = Some(data.rest());
    }
    Ok(Payload::BtreeInsert(BtreeInsert { offset, posting_offset, tuple, meta: None }))
}

listing!(BtreeInsert<'_>: |it, list| list
    .field("off", it.offset)
    .some("postingoff", it.posting_offset)
    .some("tuple", it.tuple.map(<[u8]>::len))
    .some("meta", it.meta));

/// `SPLIT_L` and `SPLIT_R`, and their other forms until 11: the new tuple is on the left or the right page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeSplit {
    /// The level of the pages; leaves are 0.
    pub level: u32,
    /// The line pointer of the right page's first tuple on the page that was split.
    pub first_right: u16,
    /// `newitemoff`: offset number of the new tuple on the page before the split.
    pub new_item_offset: u16,
    /// The position at which a posting list is split, or 0; since 13.
    pub posting_offset: Option<u16>,
    /// Bytes of the left page's data: the new tuple and the high key.
    pub left_len: u16,
    /// Bytes of the right page's data: all of its tuples.
    pub right_len: u16,
}

pub(crate) fn split<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let data_len = |id| record.block(id).map_or(0, |block| block.data_len);
    Ok(Payload::BtreeSplit(BtreeSplit {
        level: fields.u32("level")?,
        first_right: fields.u16("firstrightoff")?,
        new_item_offset: fields.u16("newitemoff")?,
        posting_offset: if fields.since(Major::V13) { Some(fields.u16("postingoff")?) } else { None },
        left_len: data_len(0),
        right_len: data_len(1),
    }))
}

listing!(BtreeSplit: |it, list| list
    .field("level", it.level)
    .field("firstright", it.first_right)
    .field("newitemoff", it.new_item_offset)
    .some("postingoff", it.posting_offset)
    .count("left", it.left_len.into())
    .count("right", it.right_len.into()));

/// `DEDUP`: equal tuples were merged into posting lists. Since 13.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BtreeDedup<'a> {
    /// `nintervals`: number of intervals.
    pub count: u16,
    /// The intervals, from block 0's data; `None` if the block has an image.
    pub intervals: Option<Items<'a, DedupInterval>>,
}

/// A run of tuples that were merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DedupInterval {
    /// `baseoff`: offset number of the interval's first tuple.
    pub offset: u16,
    /// `nitems`: number of tuples in the interval.
    pub tuples: u16,
}

impl DedupInterval {
    /// Returns the interval as [`BtreeDedup::intervals`] reads it.
    pub fn to_bytes(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.offset.to_le_bytes(), self.tuples.to_le_bytes());
        [a, b, c, d]
    }
}

impl Item for DedupInterval {
    fn width(_: Major) -> usize {
        4
    }

    fn read(reader: &mut Reader<'_>) -> Option<DedupInterval> {
        Some(DedupInterval { offset: reader.u16()?, tuples: reader.u16()? })
    }
}

impl std::fmt::Display for DedupInterval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.offset, self.tuples)
    }
}

pub(crate) fn dedup<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let count = fields.u16("nintervals")?;
    let intervals = match block_data(record, fields, 0) {
        Some(mut data) => {
            let intervals = data.items("intervals", count)?;
            data.end("intervals")?;
            Some(intervals)
        }
        None => None,
    };
    Ok(Payload::BtreeDedup(BtreeDedup { count, intervals }))
}

listing!(BtreeDedup<'_>: |it, list| list.field("nintervals", it.count).some("intervals", it.intervals));

/// `DELETE`: dead tuples were deleted by an insertion, not by vacuum (`xl_btree_delete`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BtreeDelete<'a> {
    /// Standbys cancel queries that need tuples removed by this or an earlier transaction; since 12.
    pub conflict_horizon: Option<u32>,
    /// The table, from whose tuples a standby computes the conflict horizon; until 11.
    pub heap_relation: Option<RelFileLocator>,
    /// `ndeleted`: number of deleted tuples.
    pub deleted: u32,
    /// Number of posting lists that lost TIDs; since 14.
    pub updated: u16,
    /// The table is a catalog, for logical decoding; since 16.
    pub on_catalog: Option<bool>,
    /// The deleted and updated tuples, from block 0's data; `None` if the block has an image.
    pub items: Option<DeletedItems<'a>>,
}

/// The tuples that `DELETE` or `VACUUM` changed on a page.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeletedItems<'a> {
    /// Offset numbers of deleted tuples.
    pub deleted: Items<'a, u16>,
    /// Line pointers of posting lists that lost TIDs.
    pub updated: Items<'a, u16>,
    /// Number of TIDs removed from these posting lists.
    pub removed_from_updated: u32,
}

layout! {
    /// `xl_btree_update`: precedes the TIDs that a posting list loses, stored as their positions in the list,
    /// 2 bytes each. There is one for each element of [`DeletedItems::updated`].
    XlBtreeUpdate[2] {
        /// `ndeletedtids`: number of removed TIDs.
        0 removed: u16,
    }
}

pub(crate) fn delete<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    if fields.since(Major::V13) {
        return delete_of_block(record, fields);
    }
    // The line pointers are in the main data, whether or not there is an image.
    let (mut conflict_horizon, mut heap_relation) = (None, None);
    if fields.since(Major::V12) {
        conflict_horizon = Some(fields.u32("latestRemovedXid")?);
    } else {
        heap_relation = Some(fields.relation("hnode")?);
    }
    let deleted = fields.count("nitems")?;
    let items = DeletedItems {
        deleted: fields.items("itemnos", deleted)?,
        updated: Items::EMPTY,
        removed_from_updated: 0,
    };
    Ok(Payload::BtreeDelete(BtreeDelete {
        conflict_horizon,
        heap_relation,
        deleted,
        updated: 0,
        on_catalog: None,
        items: Some(items),
    }))
}

fn delete_of_block<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let conflict_horizon = Some(fields.u32("snapshotConflictHorizon")?);
    let (deleted, updated) = if fields.since(Major::V14) {
        (fields.u16("ndeleted")?.into(), fields.u16("nupdated")?)
    } else {
        (fields.u32("ndeleted")?, 0)
    };
    let on_catalog = if fields.since(Major::V16) { Some(fields.bool("isCatalogRel")?) } else { None };
    let items = deleted_items(record, fields, deleted, updated)?;
    Ok(Payload::BtreeDelete(BtreeDelete {
        conflict_horizon,
        heap_relation: None,
        deleted,
        updated,
        on_catalog,
        items,
    }))
}

fn deleted_items<'a>(
    record: &Record<'a>,
    fields: &Fields<'a>,
    deleted: u32,
    updated: u16,
) -> Result<Option<DeletedItems<'a>>, PayloadError> {
    let Some(mut data) = block_data(record, fields, 0) else {
        return Ok(None);
    };
    let deleted = data.items("deleted", deleted)?;
    let updated = data.items("updated", updated)?;
    // For each updated tuple, the positions of the removed TIDs follow.
    let mut removed_from_updated = 0;
    for _ in 0..updated.len() {
        let removed = data.u16("ndeletedtids")?;
        data.items::<u16>("deletedtids", removed)?;
        removed_from_updated += u32::from(removed);
    }
    data.end("updates")?;
    Ok(Some(DeletedItems { deleted, updated, removed_from_updated }))
}

listing!(BtreeDelete<'_>: |it, list| list
    .some("conflict horizon", it.conflict_horizon)
    .some("heap", it.heap_relation)
    .field("ndeleted", it.deleted)
    .field("nupdated", it.updated)
    .some("catalog", it.on_catalog)
    .some("deleted", it.items.map(|items| items.deleted))
    .some("updated", it.items.map(|items| items.updated)));

/// `VACUUM`: vacuum deleted tuples of a leaf page (`xl_btree_vacuum`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BtreeVacuum<'a> {
    /// `lastBlockVacuumed`: the previous block of the scan; until 12.
    pub last_block_vacuumed: Option<u32>,
    /// `ndeleted`: number of deleted tuples; since 13.
    pub deleted: Option<u16>,
    /// Number of posting lists that lost TIDs; since 13.
    pub updated: Option<u16>,
    /// The deleted and updated tuples, from block 0's data; `None` if the block has an image.
    pub items: Option<DeletedItems<'a>>,
}

pub(crate) fn vacuum<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    if fields.since(Major::V13) {
        let (deleted, updated) = (fields.u16("ndeleted")?, fields.u16("nupdated")?);
        let items = deleted_items(record, fields, deleted.into(), updated)?;
        return Ok(Payload::BtreeVacuum(BtreeVacuum {
            last_block_vacuumed: None,
            deleted: Some(deleted),
            updated: Some(updated),
            items,
        }));
    }
    let last_block_vacuumed = Some(fields.u32("lastBlockVacuumed")?);
    let items = match block_data(record, fields, 0) {
        Some(mut data) => Some(DeletedItems {
            deleted: data.rest_as_items("itemnos")?,
            updated: Items::EMPTY,
            removed_from_updated: 0,
        }),
        None => None,
    };
    Ok(Payload::BtreeVacuum(BtreeVacuum { last_block_vacuumed, deleted: None, updated: None, items }))
}

listing!(BtreeVacuum<'_>: |it, list| list
    .some("last block vacuumed", it.last_block_vacuumed)
    .some("ndeleted", it.deleted)
    .some("nupdated", it.updated)
    .some("deleted", it.items.map(|items| items.deleted)));

/// `UNLINK_PAGE` and `UNLINK_PAGE_META`: an empty page was removed from the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeUnlinkPage {
    /// `leftsib`: block number of the page's left sibling, or 0.
    pub left_sibling: u32,
    /// `rightsib`: block number of the page's right sibling.
    pub right_sibling: u32,
    /// `level`: the page's level, 0 for a leaf; since 14.
    pub level: Option<u32>,
    /// `safexid`: the page can be recycled when no snapshot needs this transaction; until 13 an xid, since 14
    /// with its epoch.
    pub safe_xid: u64,
    /// The left sibling of the half-dead leaf below, if the page is an internal one.
    pub leaf_left_sibling: u32,
    /// `leafrightsib`: block number of that leaf's right sibling.
    pub leaf_right_sibling: u32,
    /// The next page to unlink above that leaf.
    pub leaf_top_parent: u32,
    /// The new metapage, if the tree's fast root changed.
    pub meta: Option<BtreeMeta>,
}

pub(crate) fn unlink_page<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let (left_sibling, right_sibling) = (fields.u32("leftsib")?, fields.u32("rightsib")?);
    let full_xid = fields.since(Major::V14);
    let level = if full_xid { Some(fields.u32("level")?) } else { None };
    let safe_xid = if full_xid { fields.u64("safexid")? } else { 0 };
    let leaf_left_sibling = fields.u32("leafleftsib")?;
    let leaf_right_sibling = fields.u32("leafrightsib")?;
    let leaf_top_parent = fields.u32("leaftopparent")?;
    let safe_xid = if full_xid { safe_xid } else { fields.u32("btpo_xact")?.into() };
    let meta = meta_of(record, fields, META_BLOCK_OF_UNLINK)?;
    Ok(Payload::BtreeUnlinkPage(BtreeUnlinkPage {
        left_sibling,
        right_sibling,
        level,
        safe_xid,
        leaf_left_sibling,
        leaf_right_sibling,
        leaf_top_parent,
        meta,
    }))
}

listing!(BtreeUnlinkPage: |it, list| list
    .field("left", it.left_sibling)
    .field("right", it.right_sibling)
    .some("level", it.level)
    .field("safexid", it.safe_xid)
    .field("leafleft", it.leaf_left_sibling)
    .field("leafright", it.leaf_right_sibling)
    .field("leaftopparent", it.leaf_top_parent)
    .some("meta", it.meta));

/// `MARK_PAGE_HALFDEAD`: an empty leaf lost its parent's pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeMarkPageHalfDead {
    /// `poffset`: offset number of the deleted downlink in the parent.
    pub parent_offset: u16,
    /// `leafblk`: block number of the leaf page.
    pub leaf: u32,
    /// `leftblk`: block number of the leaf's left sibling.
    pub left: u32,
    /// `rightblk`: block number of the leaf's right sibling.
    pub right: u32,
    /// The topmost page of the subtree to delete.
    pub top_parent: u32,
}

pub(crate) fn mark_page_half_dead<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::BtreeMarkPageHalfDead(BtreeMarkPageHalfDead {
        parent_offset: fields.u16("poffset")?,
        leaf: fields.u32("leafblk")?,
        left: fields.u32("leftblk")?,
        right: fields.u32("rightblk")?,
        top_parent: fields.u32("topparent")?,
    }))
}

listing!(BtreeMarkPageHalfDead: |it, list| list
    .field("topparent", it.top_parent)
    .field("leaf", it.leaf)
    .field("left", it.left)
    .field("right", it.right));

/// `NEWROOT`: the tree has a new root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeNewRoot {
    /// `rootblk`: block number of the new root.
    pub root: u32,
    /// `level`: level of the new root; 0 if it is a leaf.
    pub level: u32,
    /// The new metapage, from block 2's data.
    pub meta: Option<BtreeMeta>,
}

pub(crate) fn new_root<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let (root, level) = (fields.u32("rootblk")?, fields.u32("level")?);
    let meta = meta_of(record, fields, META_BLOCK)?;
    Ok(Payload::BtreeNewRoot(BtreeNewRoot { root, level, meta }))
}

listing!(BtreeNewRoot: |it, list| list.field("root", it.root).field("level", it.level));

/// `REUSE_PAGE`: a page that was removed from the tree is recycled. No block of the record refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeReusePage {
    /// `locator`: the index.
    pub relation: RelFileLocator,
    /// `block`: block number of the page.
    pub block: u32,
    /// Standbys cancel queries that may still visit the page: until 13 an xid, since 14 with its epoch.
    pub conflict_horizon: u64,
    /// The table is a catalog, for logical decoding; since 16.
    pub on_catalog: Option<bool>,
}

pub(crate) fn reuse_page<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let relation = fields.relation("locator")?;
    let block = fields.u32("block")?;
    let conflict_horizon = if fields.since(Major::V14) {
        fields.u64("snapshotConflictHorizon")?
    } else {
        fields.u32("latestRemovedXid")?.into()
    };
    let on_catalog = if fields.since(Major::V16) { Some(fields.bool("isCatalogRel")?) } else { None };
    Ok(Payload::BtreeReusePage(BtreeReusePage { relation, block, conflict_horizon, on_catalog }))
}

listing!(BtreeReusePage: |it, list| list
    .field("rel", it.relation)
    .field("block", it.block)
    .field("conflict horizon", it.conflict_horizon)
    .some("catalog", it.on_catalog));

/// `META_CLEANUP`: vacuum updated its statistics in the metapage. Since 11.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BtreeMetaCleanup {
    /// The new metapage, from block 0's data.
    pub meta: Option<BtreeMeta>,
}

pub(crate) fn meta_cleanup<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::BtreeMetaCleanup(BtreeMetaCleanup { meta: meta_of(record, fields, 0)? }))
}

listing!(BtreeMetaCleanup: |it, list| list.some("meta", it.meta));

/// The contents of a metapage (`xl_btree_metadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeMeta {
    /// `version`: the B-tree format, `btm_version`; since 12.
    pub format: Option<u32>,
    /// `root`: block number of the root page.
    pub root: u32,
    /// `level`: level of the root page.
    pub level: u32,
    /// `fastroot`: block number of the page where searches start.
    pub fast_root: u32,
    /// `fastlevel`: level of that page.
    pub fast_level: u32,
    /// `oldest_btpo_xact`: the oldest `btpo_xact` among deleted pages; 11 to 13.
    pub oldest_deleted_xid: Option<u32>,
    /// Number of pages that the last vacuum left deleted; since 14.
    pub deleted_pages: Option<u32>,
    /// `allequalimage`: whether deduplication is safe for all columns; since 13.
    pub all_equal_image: Option<bool>,
}

fn meta_of<'a>(
    record: &Record<'a>,
    fields: &Fields<'a>,
    block: u8,
) -> Result<Option<BtreeMeta>, PayloadError> {
    block_data(record, fields, block).map(|mut data| meta(&mut data)).transpose()
}

fn meta(data: &mut Fields<'_>) -> Result<BtreeMeta, PayloadError> {
    let format = if data.since(Major::V12) { Some(data.u32("version")?) } else { None };
    let (root, level) = (data.u32("root")?, data.u32("level")?);
    let (fast_root, fast_level) = (data.u32("fastroot")?, data.u32("fastlevel")?);
    let (mut oldest_deleted_xid, mut deleted_pages) = (None, None);
    if data.since(Major::V14) {
        deleted_pages = Some(data.u32("last_cleanup_num_delpages")?);
    } else if data.since(Major::V11) {
        oldest_deleted_xid = Some(data.u32("oldest_btpo_xact")?);
        // The number of the table's tuples, a floating-point number.
        data.u64("last_cleanup_num_heap_tuples")?;
    }
    let all_equal_image = if data.since(Major::V13) { Some(data.bool("allequalimage")?) } else { None };
    // The widest field determines the structure's padding.
    let widest = if oldest_deleted_xid.is_some() { 8 } else { 4 };
    data.padded_to(widest, "xl_btree_metadata")?;
    data.end("xl_btree_metadata")?;
    Ok(BtreeMeta {
        format,
        root,
        level,
        fast_root,
        fast_level,
        oldest_deleted_xid,
        deleted_pages,
        all_equal_image,
    })
}

/// The root and its level.
impl std::fmt::Display for BtreeMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "root {} level {}", self.root, self.level)
    }
}

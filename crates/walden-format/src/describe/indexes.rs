//! Descriptions of the resource managers Gin, Gist, SPGist, Hash, BRIN and Generic.

use super::{FullXid, General, put, t_or_f};
use crate::payload::BlockId;
use crate::payload::brin::{
    XlBrinCreateIndex, XlBrinDesummarize, XlBrinInsert, XlBrinRevmapExtend, XlBrinSamepageUpdate,
    XlBrinUpdate,
};
use crate::payload::gin::{
    GinInsertDataInternal, GinInsertEntry, SegmentAction, XlGinDeleteListPages, XlGinInsert,
    XlGinInsertListPage, XlGinSplit, XlGinUpdateMeta,
};
use crate::payload::gist::{XlGistDelete, XlGistPageDelete, XlGistPageSplit};
use crate::payload::hash::{
    XlHashAddOvflPage, XlHashDelete, XlHashInitBitmapPage, XlHashInitMetaPage, XlHashInsert,
    XlHashMovePageContents, XlHashSplitAllocatePage, XlHashSplitComplete, XlHashSqueezePage,
    XlHashUpdateMetaPage, XlHashVacuumOnePage,
};
use crate::payload::spgist::{
    XlSpgistAddLeaf, XlSpgistAddNode, XlSpgistMoveLeafs, XlSpgistPickSplit, XlSpgistSplitTuple,
    XlSpgistVacuumLeaf, XlSpgistVacuumRedirect, XlSpgistVacuumRoot,
};
use crate::reader::Reader;
use crate::record::{Record, RelFileLocator};
use crate::rmgr::info::{brin, gin, gist, hash, spgist};
use crate::rmgr::rmid;
use crate::version::Major;

/// `InvalidBlockNumber`
const NO_BLOCK: u32 = u32::MAX;

pub(super) fn describe(record: &Record<'_>, out: &mut String) -> Option<()> {
    match record.header.rmid {
        rmid::GIN => gin(record, out),
        rmid::GIST => gist(record, out),
        rmid::SPGIST => spgist(record, out),
        rmid::HASH => hash(record, out),
        rmid::BRIN => brin(record, out),
        _ => generic(record, out),
    }
}

fn flag(out: &mut String, is_set: bool, text: &str) {
    out.push_str(if is_set { text } else { "" });
}

fn block(out: &mut String, name: &str, block: u32) {
    if block != NO_BLOCK {
        put!(out, " {name}: {block}");
    }
}

fn gin(record: &Record<'_>, out: &mut String) -> Option<()> {
    let main = record.main_data();
    let is_19 = record.version >= Major::V19;
    match record.rmgr_info() {
        gin::INSERT => {
            let (insert, children) = XlGinInsert::read_with_children(main)?;
            let flags = insert.flags;
            put!(out, "isdata: {} isleaf: {}", t_or_f(flags.is_data()), t_or_f(flags.is_leaf()));
            if let Some(children) = children {
                put!(out, " children: {}/{}", children.left.0, children.right.0);
            }
            if let Some(data) = data_without_image(record, out, is_19)? {
                match (flags.is_data(), flags.is_leaf()) {
                    (false, _) => {
                        let entry = GinInsertEntry::read(data)?;
                        put!(out, " isdelete: {}", t_or_f(entry.is_delete));
                    }
                    (true, true) => segments(data, out)?,
                    (true, false) => {
                        let item = GinInsertDataInternal::read(data)?.item;
                        let (child, key) = item.split_first_chunk::<4>()?;
                        let (key, offset) = key.split_first_chunk::<4>()?;
                        let offset = u16::from_le_bytes(*offset.first_chunk()?);
                        let [child, key] = [child, key].map(|bytes| BlockId::from_bytes(*bytes).0);
                        put!(out, " pitem: {child}-{key}/{offset}");
                    }
                }
            }
        }
        gin::SPLIT => {
            let split = XlGinSplit::read(main)?;
            let flags = split.flags;
            put!(out, "isrootsplit: {} isdata: {}", t_or_f(flags.is_root_split()), t_or_f(flags.is_data()));
            put!(out, " isleaf: {}", t_or_f(flags.is_leaf()));
            if is_19 && split.left_child != NO_BLOCK {
                put!(out, " children: {}/{}", split.left_child, split.right_child);
            }
        }
        gin::VACUUM_DATA_LEAF_PAGE => {
            if let Some(data) = data_without_image(record, out, is_19)? {
                segments(data, out)?;
            }
        }
        gin::UPDATE_META_PAGE if is_19 => {
            let update = XlGinUpdateMeta::read(main)?;
            put!(out, "ntuples: {}", update.tuples);
            block(out, "prevTail", update.previous_tail);
            block(out, "newRightlink", update.new_right_link);
        }
        gin::INSERT_LISTPAGE if is_19 => {
            let insert = XlGinInsertListPage::read(main)?;
            put!(out, "ntuples: {}", insert.tuples);
            block(out, "rightlink", insert.right_link);
        }
        gin::DELETE_LISTPAGE => put!(out, "ndeleted: {}", XlGinDeleteListPages::read(main)?.deleted),
        _ => {}
    }
    Some(())
}

/// Returns block 0's data, unless the block has an image, which 18 and earlier report.
fn data_without_image<'a>(record: &Record<'a>, out: &mut String, is_19: bool) -> Option<Option<&'a [u8]>> {
    let block = record.block(0)?;
    let Some(image) = block.image else { return Some(Some(record.block_data(block))) };
    if !is_19 {
        let purpose = if image.apply { "" } else { ", for WAL verification" };
        put!(out, " (full page image{purpose})");
    }
    Some(None)
}

/// The actions on the segments of a posting tree's leaf (`desc_recompress_leaf`).
fn segments(data: &[u8], out: &mut String) -> Option<()> {
    let mut data = Reader::new(data);
    let actions = data.u16()?;
    put!(out, " {actions} segments:");
    for _ in 0..actions {
        let (segment, action) = (data.u8()?, data.u8()?);
        match SegmentAction::from_byte(action) {
            Some(SegmentAction::AddItems) => {
                let items = data.u16()?;
                data.take(6 * usize::from(items))?;
                put!(out, " {segment} (add {items} items)");
            }
            Some(SegmentAction::Delete) => put!(out, " {segment} (delete)"),
            Some(action @ (SegmentAction::Insert | SegmentAction::Replace)) => {
                // GinPostingList: a TID, the number of bytes, and the bytes, padded to two.
                data.take(6)?;
                let bytes = usize::from(data.u16()?);
                data.take(bytes.next_multiple_of(2))?;
                let name = if action == SegmentAction::Insert { "insert" } else { "replace" };
                put!(out, " {segment} ({name})");
            }
            _ => {
                put!(out, " {segment} unknown action {action} ???");
                break;
            }
        }
    }
    Some(())
}

/// The name of the transaction whose tuples were removed.
fn horizon(record: &Record<'_>) -> &'static str {
    if record.version >= Major::V16 { "snapshotConflictHorizon" } else { "latestRemovedXid" }
}

/// Whether descriptions contain `isCatalogRel`, which records have since 16.
fn has_catalog(record: &Record<'_>) -> bool {
    record.version >= Major::V17
}

fn gist(record: &Record<'_>, out: &mut String) -> Option<()> {
    let main = record.main_data();
    let horizon = horizon(record);
    match record.rmgr_info() {
        gist::PAGE_REUSE => {
            let mut fields = Reader::new(main);
            let relation = RelFileLocator::from_bytes(fields.array()?);
            let (block, xid) = (fields.u32()?, fields.u64()?);
            put!(out, "rel {relation}; blk {block}; {horizon} {}", FullXid(xid));
            if has_catalog(record) {
                put!(out, ", isCatalogRel {}", t_or_f(fields.u8()? != 0));
            }
        }
        gist::DELETE => {
            let delete = XlGistDelete::read(main)?;
            put!(out, "delete: {horizon} {}, nitems: {}", delete.conflict_horizon, delete.deleted);
            if has_catalog(record) {
                put!(out, ", isCatalogRel {}", t_or_f(*main.get(6)? != 0));
            }
        }
        gist::PAGE_SPLIT => {
            put!(out, "page_split: splits to {} pages", XlGistPageSplit::read(main)?.pages);
        }
        gist::PAGE_DELETE => {
            let delete = XlGistPageDelete::read(main)?;
            put!(out, "deleteXid {}; downlink {}", FullXid(delete.delete_xid), delete.downlink_offset);
        }
        _ => {}
    }
    Some(())
}

fn spgist(record: &Record<'_>, out: &mut String) -> Option<()> {
    let main = record.main_data();
    match record.rmgr_info() {
        spgist::ADD_LEAF => {
            let it = XlSpgistAddLeaf::read(main)?;
            put!(out, "off: {}, headoff: {}, ", it.leaf_offset, it.head_offset);
            put!(out, "parentoff: {}, nodeI: {}", it.parent_offset, it.parent_node);
            flag(out, it.is_new_page, " (newpage)");
            flag(out, it.stores_nulls, " (nulls)");
        }
        spgist::MOVE_LEAFS => {
            let it = XlSpgistMoveLeafs::read(main)?;
            put!(out, "nmoves: {}, parentoff: {}, nodeI: {}", it.moves, it.parent_offset, it.parent_node);
            flag(out, it.is_new_page, " (newpage)");
            flag(out, it.replaces_dead, " (replacedead)");
            flag(out, it.stores_nulls, " (nulls)");
        }
        spgist::ADD_NODE => {
            let it = XlSpgistAddNode::read(main)?;
            put!(out, "off: {}, newoff: {}, ", it.old_offset, it.new_offset);
            put!(out, "parentBlk: {}, parentoff: {}, ", it.parent_block.cast_signed(), it.parent_offset);
            put!(out, "nodeI: {}", it.parent_node);
            flag(out, it.is_new_page, " (newpage)");
        }
        spgist::SPLIT_TUPLE => {
            let it = XlSpgistSplitTuple::read(main)?;
            put!(out, "prefixoff: {}, postfixoff: {}", it.prefix_offset, it.postfix_offset);
            flag(out, it.is_new_page, " (newpage)");
            flag(out, it.is_on_same_page, " (same)");
        }
        spgist::PICKSPLIT => {
            let it = XlSpgistPickSplit::read(main)?;
            put!(out, "ndelete: {}, ninsert: {}, inneroff: {}, ", it.deletes, it.inserts, it.inner_offset);
            put!(out, "parentoff: {}, nodeI: {}", it.parent_offset, it.parent_node);
            flag(out, it.is_inner_on_parent_page, " (innerIsParent)");
            flag(out, it.stores_nulls, " (nulls)");
            flag(out, it.is_root_split, " (isRootSplit)");
        }
        spgist::VACUUM_LEAF => {
            let it = XlSpgistVacuumLeaf::read(main)?;
            put!(out, "ndead: {}, nplaceholder: {}, ", it.dead, it.placeholders);
            put!(out, "nmove: {}, nchain: {}", it.moves, it.chains);
        }
        spgist::VACUUM_ROOT => put!(out, "ndelete: {}", XlSpgistVacuumRoot::read(main)?.deletes),
        spgist::VACUUM_REDIRECT => {
            let it = XlSpgistVacuumRedirect::read(main)?;
            let name = if record.version >= Major::V16 { horizon(record) } else { "newestredirectxid" };
            put!(out, "ntoplaceholder: {}, firstplaceholder: {}, ", it.to_placeholder, it.first_placeholder);
            put!(out, "{name}: {}", it.conflict_horizon);
            if has_catalog(record) {
                put!(out, ", isCatalogRel: {}", t_or_f(*main.get(XlSpgistVacuumRedirect::WIDTH)? != 0));
            }
        }
        _ => {}
    }
    Some(())
}

fn hash(record: &Record<'_>, out: &mut String) -> Option<()> {
    let main = record.main_data();
    let is_19 = record.version >= Major::V19;
    match record.rmgr_info() {
        hash::INIT_META_PAGE => {
            let it = XlHashInitMetaPage::read(main)?;
            put!(out, "num_tuples {}", General(it.tuples));
            if is_19 {
                put!(out, ", procid {}", it.procedure);
            }
            put!(out, ", fillfactor {}", it.fill_factor);
        }
        hash::INIT_BITMAP_PAGE => put!(out, "bmsize {}", XlHashInitBitmapPage::read(main)?.bitmap_bytes),
        hash::INSERT => put!(out, "off {}", XlHashInsert::read(main)?.offset),
        hash::ADD_OVFL_PAGE => {
            let it = XlHashAddOvflPage::read(main)?;
            put!(out, "bmsize {}, bmpage_found {}", it.bitmap_bytes, t_or_f(it.is_recycled));
        }
        hash::SPLIT_ALLOCATE_PAGE => {
            let it = XlHashSplitAllocatePage::read(main)?;
            put!(out, "new_bucket {}, ", it.new_bucket);
            if is_19 {
                put!(out, "old_bucket_flag {}, new_bucket_flag {}, ", it.old_bucket_flag, it.new_bucket_flag);
            }
            put!(out, "meta_page_masks_updated {}, ", t_or_f(it.flags.updates_masks()));
            put!(out, "issplitpoint_changed {}", t_or_f(it.flags.updates_split_point()));
        }
        hash::SPLIT_COMPLETE => {
            let it = XlHashSplitComplete::read(main)?;
            put!(out, "old_bucket_flag {}, new_bucket_flag {}", it.old_bucket_flag, it.new_bucket_flag);
        }
        hash::MOVE_PAGE_CONTENTS => {
            let it = XlHashMovePageContents::read(main)?;
            put!(out, "ntups {}, is_primary {}", it.tuples, t_or_f(it.is_onto_first_page));
        }
        hash::SQUEEZE_PAGE => {
            let it = XlHashSqueezePage::read(main)?;
            put!(out, "prevblkno {}, nextblkno {}, ", it.previous_block, it.next_block);
            put!(out, "ntups {}, is_primary {}", it.tuples, t_or_f(it.is_onto_first_page));
            if is_19 {
                put!(out, ", is_previous {}", t_or_f(it.is_onto_previous_page));
            }
        }
        hash::DELETE => {
            let it = XlHashDelete::read(main)?;
            put!(out, "clear_dead_marking {}, ", t_or_f(it.clears_dead_marking));
            put!(out, "is_primary {}", t_or_f(it.is_first_page));
        }
        hash::UPDATE_META_PAGE => {
            put!(out, "ntuples {}", General(XlHashUpdateMetaPage::read(main)?.tuples));
        }
        hash::VACUUM_ONE_PAGE => {
            let it = XlHashVacuumOnePage::read(main)?;
            put!(out, "ntuples {}, {} {}", it.tuples, horizon(record), it.conflict_horizon);
            if has_catalog(record) {
                put!(out, ", isCatalogRel {}", t_or_f(*main.get(XlHashVacuumOnePage::WIDTH)? != 0));
            }
        }
        _ => {}
    }
    Some(())
}

fn brin(record: &Record<'_>, out: &mut String) -> Option<()> {
    let main = record.main_data();
    match record.rmgr_info() & brin::OPMASK {
        brin::CREATE_INDEX => {
            let it = XlBrinCreateIndex::read(main)?;
            put!(out, "v{} pagesPerRange {}", it.version, it.pages_per_range);
        }
        brin::INSERT => {
            let it = XlBrinInsert::read(main)?;
            put!(out, "heapBlk {} pagesPerRange {} offnum {}", it.heap_block, it.pages_per_range, it.offset);
        }
        brin::UPDATE => {
            let it = XlBrinUpdate::read(main)?;
            put!(out, "heapBlk {} pagesPerRange {} ", it.heap_block, it.pages_per_range);
            put!(out, "old offnum {}, new offnum {}", it.old_offset, it.offset);
        }
        brin::SAMEPAGE_UPDATE => put!(out, "offnum {}", XlBrinSamepageUpdate::read(main)?.offset),
        brin::REVMAP_EXTEND => put!(out, "targetBlk {}", XlBrinRevmapExtend::read(main)?.target_block),
        brin::DESUMMARIZE => {
            let it = XlBrinDesummarize::read(main)?;
            put!(out, "pagesPerRange {}, heapBlk {}, ", it.pages_per_range, it.heap_block);
            put!(out, "page offset {}", it.offset);
        }
        _ => {}
    }
    Some(())
}

/// Describes the fragments in the main data. Most generic records have none there: their fragments are in the
/// data of the blocks.
fn generic(record: &Record<'_>, out: &mut String) -> Option<()> {
    let mut data = Reader::new(record.main_data());
    while data.left() > 0 {
        let (offset, length) = (data.u16()?, data.u16()?);
        data.take(length.into())?;
        put!(out, "offset {offset}, length {length}{}", if data.left() > 0 { "; " } else { "" });
    }
    Some(())
}

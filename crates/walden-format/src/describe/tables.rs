//! Descriptions of the resource managers Heap, Heap2 and Btree.

use super::{FullXid, elements, list, put, t_or_f};
use crate::payload::Payload;
use crate::payload::heap::{
    FreezePlan, Frozen, HeapTruncateFlags, InfoBits, InsertFlags, Lock, Prune, PruneItems, Update,
    VisibleFlags,
};
use crate::payload::offset_numbers;
use crate::reader::Reader;
use crate::record::Record;
use crate::rmgr::info::heap2::INIT_PAGE;
use crate::version::Major;

pub(super) fn describe(record: &Record<'_>, payload: &Payload<'_>, out: &mut String) -> Option<()> {
    // PostgreSQL 16 renamed the fields, and separates all fields by commas.
    let is_new = record.version >= Major::V16;
    match *payload {
        Payload::Opaque => return None,
        Payload::Insert(it) if is_new => put!(out, "off: {}, flags: {}", it.offset, it.flags),
        Payload::Insert(it) => put!(out, "off {} flags {}", it.offset, it.flags),
        Payload::Delete(it) if is_new => {
            put!(out, "xmax: {}, off: {}, ", it.xmax, it.offset);
            bits(out, "infobits", it.infobits);
            put!(out, ", flags: {}", it.flags);
        }
        Payload::Delete(it) => {
            put!(out, "off {} flags {} ", it.offset, it.flags);
            old_bits(out, it.infobits);
        }
        Payload::Update(it) => update(out, &it, is_new),
        Payload::HeapTruncate(it) if is_new => {
            let names = [
                (HeapTruncateFlags::CASCADE, "CASCADE"),
                (HeapTruncateFlags::RESTART_SEQUENCES, "RESTART_SEQS"),
            ];
            named_bits(out, "flags", it.flags.0, &names);
            put!(out, ", nrelids: {}, relids:", it.relations.len());
            list(out, it.relations);
        }
        Payload::HeapTruncate(it) => {
            out.push_str(if it.flags.cascade() { "cascade " } else { "" });
            out.push_str(if it.flags.restart_sequences() { "restart_seqs " } else { "" });
            put!(out, "nrelids {} relids", it.relations.len());
            it.relations.for_each(|relation| put!(out, " {relation}"));
        }
        Payload::Confirm(it) => put!(out, "off{} {}", if is_new { ":" } else { "" }, it.offset),
        Payload::Lock(it) => lock(out, &it, is_new, "xid"),
        Payload::LockUpdated(it) => lock(out, &it, is_new, "xmax"),
        Payload::Inplace(it) => {
            put!(out, "off{} {}", if is_new { ":" } else { "" }, it.offset);
            if let Some(it) = it.invalidations {
                let database = (it.database, it.tablespace);
                super::system::invalidations(
                    out,
                    record.version,
                    it.messages,
                    database,
                    it.update_relcache_file,
                );
            }
        }
        Payload::MultiInsert(it) => {
            match is_new {
                true => put!(out, "ntuples: {}, flags: {}", it.count, it.flags),
                false => put!(out, "{} tuples flags {}", it.count, it.flags),
            }
            if record.version >= Major::V19 && it.flags.0 & InsertFlags::ALL_FROZEN_SET != 0 {
                let flags = VisibleFlags(VisibleFlags::ALL_VISIBLE | VisibleFlags::ALL_FROZEN);
                put!(out, ", vm_flags: {flags}");
            }
            if is_new && has_data(record) && record.header.info & INIT_PAGE == 0 {
                out.push_str(", offsets:");
                list(out, it.offsets?);
            }
        }
        Payload::Prune(it) if record.version >= Major::V17 => prune(out, record, &it)?,
        Payload::Prune(it) => prune_until_16(out, record, &it)?,
        Payload::FreezePage(it) if is_new => {
            put!(out, "snapshotConflictHorizon: {}, nplans: {}", it.cutoff_xid, it.count);
            if let Some(Frozen::Plans { plans: all, offsets }) = it.frozen {
                out.push_str(", plans:");
                plans(out, all, offsets);
            }
        }
        Payload::FreezePage(it) => put!(out, "cutoff xid {} ntuples {}", it.cutoff_xid, it.count),
        Payload::Visible(it) => match is_new {
            true => put!(out, "snapshotConflictHorizon: {}, flags: {}", it.cutoff_xid, it.flags?),
            false => put!(out, "cutoff xid {} flags {}", it.cutoff_xid, it.flags?),
        },
        Payload::NewCid(it) => {
            let (colon, comma) = if is_new { (":", ",") } else { ("", ";") };
            put!(out, "rel{colon} {}{comma} tid{colon} {}/{}", it.relation, it.block, it.offset);
            put!(out, "{comma} cmin: {}, cmax: {}, combo: {}", it.cmin, it.cmax, it.combo_cid);
        }
        Payload::BtreeInsert(it) => put!(out, "off{} {}", if is_new { ":" } else { "" }, it.offset),
        _ => btree(record, payload, out, is_new)?,
    }
    Some(())
}

fn btree(record: &Record<'_>, payload: &Payload<'_>, out: &mut String, is_new: bool) -> Option<()> {
    let (colon, comma) = if is_new { (":", ",") } else { ("", ";") };
    let has_catalog = record.version >= Major::V17;
    let horizon = if is_new { "snapshotConflictHorizon:" } else { "latestRemovedXid" };
    match *payload {
        Payload::BtreeSplit(it) => put!(
            out,
            "level{colon} {}, firstrightoff{colon} {}, newitemoff{colon} {}, postingoff{colon} {}",
            it.level,
            it.first_right,
            it.new_item_offset,
            it.posting_offset?
        ),
        Payload::BtreeDedup(it) => put!(out, "nintervals{colon} {}", it.count),
        Payload::BtreeVacuum(it) => {
            put!(out, "ndeleted{colon} {}{comma} nupdated{colon} {}", it.deleted?, it.updated?);
            if is_new {
                deleted_items(record, out, it.deleted?.into(), it.updated?)?;
            }
        }
        Payload::BtreeDelete(it) => {
            put!(out, "{horizon} {}{comma} ", it.conflict_horizon?);
            put!(out, "ndeleted{colon} {}{comma} nupdated{colon} {}", it.deleted, it.updated);
            if has_catalog {
                put!(out, ", isCatalogRel: {}", t_or_f(it.on_catalog?));
            }
            if is_new {
                deleted_items(record, out, it.deleted as usize, it.updated)?;
            }
        }
        Payload::BtreeMarkPageHalfDead(it) => put!(
            out,
            "topparent{colon} {}{comma} leaf{colon} {}{comma} left{colon} {}{comma} right{colon} {}",
            it.top_parent,
            it.leaf,
            it.left,
            it.right
        ),
        Payload::BtreeUnlinkPage(it) => {
            put!(out, "left{colon} {}{comma} right{colon} {}{comma} ", it.left_sibling, it.right_sibling);
            put!(out, "level{colon} {}{comma} safexid{colon} {}{comma} ", it.level?, FullXid(it.safe_xid));
            put!(out, "leafleft{colon} {}{comma} ", it.leaf_left_sibling);
            put!(out, "leafright{colon} {}{comma} ", it.leaf_right_sibling);
            put!(out, "leaftopparent{colon} {}", it.leaf_top_parent);
        }
        Payload::BtreeNewRoot(it) if is_new => put!(out, "level: {}", it.level),
        Payload::BtreeNewRoot(it) => put!(out, "lev {}", it.level),
        Payload::BtreeReusePage(it) => {
            put!(out, "rel{colon} {}{comma} {horizon} {}", it.relation, FullXid(it.conflict_horizon));
            if has_catalog {
                put!(out, ", isCatalogRel: {}", t_or_f(it.on_catalog?));
            }
        }
        Payload::BtreeMetaCleanup(it) => {
            put!(out, "last_cleanup_num_delpages{colon} {}", it.meta?.deleted_pages?);
        }
        // Rewrites have no description.
        _ => {}
    }
    Some(())
}

fn update(out: &mut String, it: &Update<'_>, is_new: bool) {
    if is_new {
        put!(out, "old_xmax: {}, old_off: {}, ", it.old_xmax, it.old_offset);
        bits(out, "old_infobits", it.old_infobits);
        put!(out, ", flags: {}, new_xmax: {}, new_off: {}", it.flags, it.new_xmax, it.new_offset);
    } else {
        put!(out, "off {} xmax {} flags {} ", it.old_offset, it.old_xmax, it.flags);
        old_bits(out, it.old_infobits);
        put!(out, "; new off {} xmax {}", it.new_offset, it.new_xmax);
    }
}

fn lock(out: &mut String, it: &Lock, is_new: bool, xmax: &str) {
    if is_new {
        put!(out, "xmax: {}, off: {}, ", it.xmax, it.offset);
        bits(out, "infobits", it.infobits);
        put!(out, ", flags: {}", it.flags);
    } else {
        put!(out, "off {}: {xmax} {}: flags {} ", it.offset, it.xmax, it.flags);
        old_bits(out, it.infobits);
    }
}

const INFO_BITS: [(u8, &str); 5] = [
    (InfoBits::XMAX_IS_MULTI, "IS_MULTI"),
    (InfoBits::XMAX_LOCK_ONLY, "LOCK_ONLY"),
    (InfoBits::XMAX_EXCL_LOCK, "EXCL_LOCK"),
    (InfoBits::XMAX_KEYSHR_LOCK, "KEYSHR_LOCK"),
    (InfoBits::KEYS_UPDATED, "KEYS_UPDATED"),
];

fn bits(out: &mut String, key: &str, bits: InfoBits) {
    named_bits(out, key, bits.0, &INFO_BITS);
}

fn named_bits(out: &mut String, key: &str, bits: u8, names: &[(u8, &str)]) {
    put!(out, "{key}:");
    elements(out, names.iter().filter(|(bit, _)| bits & bit != 0), |out, (_, name)| out.push_str(name));
}

fn old_bits(out: &mut String, bits: InfoBits) {
    let set = INFO_BITS.iter().filter(|(bit, _)| bits.0 & bit != 0);
    set.for_each(|(_, name)| put!(out, "{name} "));
}

fn has_data(record: &Record<'_>) -> bool {
    record.block(0).is_some_and(|block| block.data_len > 0)
}

fn prune(out: &mut String, record: &Record<'_>, it: &Prune<'_>) -> Option<()> {
    let flags = it.flags?;
    if let Some(horizon) = it.conflict_horizon.filter(|_| flags.has_conflict_horizon()) {
        put!(out, "snapshotConflictHorizon: {horizon}");
    }
    put!(out, ", isCatalogRel: {}", t_or_f(flags.is_catalog_relation()));
    if record.version >= Major::V19 && flags.sets_all_visible() {
        let frozen = if flags.sets_all_frozen() { VisibleFlags::ALL_FROZEN } else { 0 };
        put!(out, ", vm_flags: {}", VisibleFlags(VisibleFlags::ALL_VISIBLE | frozen));
    }
    let Some(PruneItems { freeze_plans, redirected, dead, unused, frozen }) =
        it.items.filter(|_| has_data(record))
    else {
        return Some(());
    };
    put!(out, ", nplans: {}, nredirected: {}", freeze_plans.len(), redirected.len());
    put!(out, ", ndead: {}, nunused: {}", dead.len(), unused.len());
    if !freeze_plans.is_empty() {
        out.push_str(", plans:");
        plans(out, freeze_plans, frozen);
    }
    if !redirected.is_empty() {
        out.push_str(", redirected:");
        list(out, redirected);
    }
    for (name, items) in [("dead", dead), ("unused", unused)] {
        if !items.is_empty() {
            put!(out, ", {name}:");
            list(out, items);
        }
    }
    Some(())
}

/// `PRUNE` and `VACUUM` of 14 to 16.
fn prune_until_16(out: &mut String, record: &Record<'_>, it: &Prune<'_>) -> Option<()> {
    let is_new = record.version >= Major::V16;
    let mut main = Reader::new(record.main_data());
    let Some(horizon) = it.conflict_horizon else {
        put!(out, "nunused{} {}", if is_new { ":" } else { "" }, main.u16()?);
        if let Some(items) = it.items.filter(|_| is_new) {
            out.push_str(", unused:");
            list(out, items.unused);
        }
        return Some(());
    };
    main.u32()?;
    let (redirected, dead) = (main.u16()?, main.u16()?);
    if !is_new {
        put!(out, "latestRemovedXid {horizon} nredirected {redirected} ndead {dead}");
        return Some(());
    }
    put!(out, "snapshotConflictHorizon: {horizon}, nredirected: {redirected}, ndead: {dead}");
    if let Some(items) = it.items {
        put!(out, ", nunused: {}, redirected:", items.unused.len());
        list(out, items.redirected);
        out.push_str(", dead:");
        list(out, items.dead);
        out.push_str(", unused:");
        list(out, items.unused);
    }
    Some(())
}

fn plans(out: &mut String, plans: impl Iterator<Item = FreezePlan>, mut offsets: impl Iterator<Item = u16>) {
    elements(out, plans, |out, plan| {
        put!(out, "{{ xmax: {}, infomask: {}, ", plan.xmax, plan.infomask);
        put!(out, "infomask2: {}, ntuples: {}, offsets:", plan.infomask2, plan.tuples);
        let own = offsets.by_ref().take(plan.tuples.into());
        elements(out, own, |out, offset| put!(out, "{offset}"));
        out.push_str(" }");
    });
}

/// The lists of block 0's data of a `DELETE` or `VACUUM` of a B-tree (`delvacuum_desc`).
fn deleted_items(record: &Record<'_>, out: &mut String, deleted: usize, updated: u16) -> Option<()> {
    let Some(block) = record.block(0).filter(|block| block.data_len > 0) else { return Some(()) };
    let mut data = Reader::new(record.block_data(block));
    out.push_str(", deleted:");
    elements(out, offset_numbers(data.take(2 * deleted)?), |out, offset| put!(out, "{offset}"));
    out.push_str(", updated:");
    let offsets = offset_numbers(data.take(2 * usize::from(updated))?);
    let mut is_whole = true;
    elements(out, offsets, |out, offset| {
        let removed = data.u16().unwrap_or(0);
        put!(out, "{{ off: {offset}, nptids: {removed}, ptids:");
        let positions = data.take(2 * usize::from(removed));
        is_whole &= positions.is_some();
        elements(out, offset_numbers(positions.unwrap_or(&[])), |out, position| put!(out, "{position}"));
        out.push_str(" }");
    });
    is_whole.then_some(())
}

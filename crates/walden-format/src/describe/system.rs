//! Descriptions of the other resource managers.

use super::{FullXid, Path, Position, put};
use crate::payload::standby::InvalidationMessage;
use crate::payload::xact::{DroppedStats, Origin, Prepare, TransactionEnd};
use crate::payload::xlog::Checkpoint;
use crate::payload::{Item, Items, Payload};
use crate::reader::Reader;
use crate::record::{Fork, Record, RelFileLocator};
use crate::version::Major;

pub(super) fn describe(record: &Record<'_>, payload: &Payload<'_>, out: &mut String) -> Option<()> {
    let version = record.version;
    match *payload {
        Payload::Opaque => return None,
        Payload::Checkpoint(it) => checkpoint(out, version, &it)?,
        // Until 17, the level has no description.
        Payload::CheckpointRedo(it) if version >= Major::V18 => put!(out, "wal_level {}", it.wal_level),
        Payload::NextOid(it) => put!(out, "{}", it.oid),
        Payload::BackupEnd(it) => put!(out, "{}", Position(version, it.start)),
        Payload::ParameterChange(it) => {
            let on_or_off = |is_on| if is_on { "on" } else { "off" };
            put!(out, "max_connections={} ", it.max_connections);
            put!(out, "max_worker_processes={} ", it.max_worker_processes);
            put!(out, "max_wal_senders={} ", it.max_wal_senders?);
            put!(out, "max_prepared_xacts={} ", it.max_prepared_transactions);
            put!(out, "max_locks_per_xact={} ", it.max_locks_per_transaction);
            put!(out, "wal_level={} wal_log_hints={} ", it.wal_level, on_or_off(it.wal_log_hints));
            put!(out, "track_commit_timestamp={}", on_or_off(it.track_commit_timestamp));
        }
        Payload::RestorePoint(it) => put!(out, "{}", it.name),
        Payload::FullPageWritesChange(it) => put!(out, "{}", it.enabled),
        Payload::EndOfRecovery(it) => {
            put!(out, "tli {}; prev tli {}; time {}", it.timeline, it.previous_timeline, it.time);
            if version >= Major::V18 {
                put!(out, "; wal_level {}", it.wal_level?);
            }
        }
        Payload::OverwriteContrecord(it) => {
            put!(out, "lsn {}; time {}", Position(version, it.overwritten), it.time);
        }
        Payload::LogicalDecodingStatusChange(it) => put!(out, "{}", it.enabled),
        Payload::Commit(it) => end(out, record, &it, true),
        Payload::Abort(it) => end(out, record, &it, false),
        Payload::Prepare(it) => prepare(out, record, &it)?,
        Payload::Assignment(it) => {
            put!(out, "xtop {}: subxacts:", it.top_xid);
            it.subxacts.for_each(|xid| put!(out, " {xid}"));
        }
        Payload::CommandInvalidations(it) => invalidations(out, version, it.messages, (0, 0), false),
        Payload::StorageCreate(it) => put!(out, "{}", Path(version, it.relation, it.fork)),
        Payload::StorageTruncate(it) => {
            let path = Path(version, it.relation, Fork::MAIN);
            put!(out, "{path} to {} blocks flags {}", it.blocks, it.flags?.0);
        }
        Payload::DatabaseCreate(it) => match it.source {
            Some((database, tablespace)) => {
                put!(out, "copy dir {tablespace}/{database} to {}/{}", it.tablespace, it.database);
            }
            None => put!(out, "create dir {}/{}", it.tablespace, it.database),
        },
        Payload::DatabaseDrop(it) => {
            out.push_str("dir");
            it.tablespaces.for_each(|tablespace| put!(out, " {tablespace}/{}", it.database));
        }
        Payload::TablespaceCreate(it) => put!(out, "{} \"{}\"", it.tablespace, it.path),
        Payload::TablespaceDrop(it) => put!(out, "{}", it.tablespace),
        Payload::ZeroPage(it) => {
            let name = if record.header.rmid == crate::rmgr::rmid::CLOG { "page " } else { "" };
            put!(out, "{name}{}", it.page);
        }
        Payload::CommitLogTruncate(it) => put!(out, "page {}; oldestXact {}", it.page, it.oldest_xid?),
        Payload::CommitTsTruncate(it) => put!(out, "pageno {}, oldestXid {}", it.page, it.oldest_xid?),
        Payload::MultiXactCreate(it) => {
            put!(out, "{} offset {} nmembers {}: ", it.multi, it.offset, it.members.len());
            for member in it.members {
                // MultiXactStatus
                const NAMES: [&str; 6] = ["keysh", "sh", "fornokeyupd", "forupd", "nokeyupd", "upd"];
                let name = NAMES.get(member.status as usize).unwrap_or(&"unk");
                put!(out, "{} ({name}) ", member.xid);
            }
        }
        Payload::MultiXactTruncate(it) => match version >= Major::V19 {
            true => put!(out, "oldestMulti {}, oldestOffset {}", it.oldest_multi, it.oldest_offset),
            false => {
                put!(out, "offsets [{}, {}), ", it.start_multi?, it.oldest_multi);
                put!(out, "members [{}, {})", it.start_offset?, it.oldest_offset);
            }
        },
        Payload::RelationMapUpdate(it) => {
            put!(out, "database {} tablespace {} size {}", it.database, it.tablespace, it.map.len());
        }
        Payload::StandbyLock(it) => it.locks.for_each(|lock| {
            put!(out, "xid {} db {} rel {} ", lock.xid, lock.database, lock.relation);
        }),
        Payload::RunningXacts(it) => {
            put!(out, "nextXid {} latestCompletedXid {} ", it.next_xid, it.latest_completed_xid);
            put!(out, "oldestRunningXid {}", it.oldest_running_xid);
            xids(out, "xacts", it.xids);
            if it.subxid_overflow {
                out.push_str(if version >= Major::V16 { "; subxid overflowed" } else { "; subxid ovf" });
            }
            if version >= Major::V16 {
                xids(out, "subxacts", it.subxids);
            }
        }
        Payload::Invalidations(it) => {
            let database = (it.database, it.tablespace);
            invalidations(out, version, it.messages, database, it.update_relcache_file);
        }
        Payload::SequenceLog(it) => put!(out, "rel {}", it.relation),
        Payload::OriginSet(it) => {
            let position = Position(version, it.remote_lsn);
            put!(out, "set {}; lsn {position}; force: {}", it.origin, u8::from(it.force));
        }
        Payload::OriginDrop(it) => put!(out, "drop {}", it.origin),
        Payload::LogicalMessage(it) => {
            if it.message.len() as u64 != it.len {
                return None;
            }
            let kind = if it.transactional { "transactional" } else { "non-transactional" };
            put!(out, "{kind}, prefix \"{}\"; payload ({} bytes): ", it.prefix, it.len);
            for (at, byte) in it.message.iter().enumerate() {
                put!(out, "{}{byte:02X}", if at > 0 { " " } else { "" });
            }
        }
        _ => {}
    }
    Some(())
}

fn checkpoint(out: &mut String, version: Major, it: &Checkpoint) -> Option<()> {
    put!(out, "redo {}; tli {}; ", Position(version, it.redo), it.timeline);
    put!(out, "prev tli {}; fpw {}; ", it.previous_timeline, it.full_page_writes);
    if version >= Major::V18 {
        put!(out, "wal_level {}; ", it.wal_level?);
    }
    if version >= Major::V19 {
        put!(out, "logical decoding {}; ", it.logical_decoding?);
    }
    put!(out, "xid {}; oid {}; multi {}; ", FullXid(it.next_xid), it.next_oid, it.next_multi);
    put!(out, "offset {}; oldest xid {} ", it.next_multi_offset, it.oldest_xid);
    put!(out, "in DB {}; oldest multi {} ", it.oldest_xid_database, it.oldest_multi);
    put!(out, "in DB {}; oldest/newest commit timestamp ", it.oldest_multi_database);
    put!(out, "xid: {}/{}; ", it.oldest_commit_ts_xid, it.newest_commit_ts_xid);
    put!(out, "oldest running xid {}; ", it.oldest_active_xid);
    out.push_str(if it.shutdown { "shutdown" } else { "online" });
    Some(())
}

fn end(out: &mut String, record: &Record<'_>, it: &TransactionEnd<'_>, is_commit: bool) {
    let version = record.version;
    if let Some(xid) = it.twophase_xid.filter(|xid| *xid != 0) {
        put!(out, "{xid}: ");
    }
    put!(out, "{}", it.time);
    relations(out, version, "rels", it.dropped_relations);
    subxacts(out, it.subxacts);
    let origin = |out: &mut String| {
        if let Some(origin) = it.origin {
            put_origin(out, record, origin);
        }
    };
    if is_commit {
        stats(out, "", it.dropped_stats);
        let database = (it.database.unwrap_or(0), it.tablespace.unwrap_or(0));
        invalidations(out, version, it.invalidations, database, it.flags.update_relcache_file());
        if version >= Major::V15 && it.flags.apply_feedback() {
            out.push_str("; apply_feedback");
        }
        out.push_str(if it.flags.force_sync_commit() { "; sync" } else { "" });
        origin(out);
    } else if version >= Major::V15 {
        origin(out);
        stats(out, "", it.dropped_stats);
    }
}

fn put_origin(out: &mut String, record: &Record<'_>, origin: Origin) {
    let node = record.origin.unwrap_or(0);
    put!(out, "; origin: node {node}, lsn {}, at {}", Position(record.version, origin.lsn), origin.time);
}

fn prepare(out: &mut String, record: &Record<'_>, it: &Prepare<'_>) -> Option<()> {
    let version = record.version;
    // Each list is padded to 8 bytes (`ParsePrepareRecord`).
    let mut state = Reader::new(it.state);
    let subxids = padded(&mut state, 4, it.subxacts)?;
    let commit_relations = padded(&mut state, RelFileLocator::WIDTH, it.commit_relations)?;
    let abort_relations = padded(&mut state, RelFileLocator::WIDTH, it.abort_relations)?;
    let stats_width = DroppedStats::width(version);
    let commit_stats = padded(&mut state, stats_width, it.commit_stats)?;
    let abort_stats = padded(&mut state, stats_width, it.abort_stats)?;
    let messages = padded(&mut state, InvalidationMessage::width(version), it.invalidations)?;
    put!(out, "gid {}: {}", it.gid, it.time);
    relations(out, version, "rels(commit)", read(commit_relations, RelFileLocator::WIDTH));
    relations(out, version, "rels(abort)", read(abort_relations, RelFileLocator::WIDTH));
    stats(out, "commit ", read(commit_stats, stats_width));
    stats(out, "abort ", read(abort_stats, stats_width));
    subxacts(out, read(subxids, 4));
    let database = (it.database, 0);
    let messages = read(messages, InvalidationMessage::width(version));
    invalidations(out, version, messages, database, it.update_relcache_file);
    if version >= Major::V15
        && let (Some(_), Some(origin)) = (record.origin.filter(|origin| *origin != 0), it.origin)
    {
        put_origin(out, record, origin);
    }
    Some(())
}

fn padded<'a>(state: &mut Reader<'a>, width: usize, count: u32) -> Option<&'a [u8]> {
    let bytes = width.checked_mul(count as usize)?;
    let list = state.take(bytes)?;
    state.take(bytes.next_multiple_of(8) - bytes)?;
    Some(list)
}

fn read<T: Item>(bytes: &[u8], width: usize) -> impl Iterator<Item = T> {
    bytes.chunks_exact(width).filter_map(|item| T::read(&mut Reader::new(item)))
}

fn relations(out: &mut String, version: Major, label: &str, relations: impl Iterator<Item = RelFileLocator>) {
    each(out, &format!("; {label}:"), relations, |out, relation| {
        put!(out, " {}", Path(version, relation, Fork::MAIN));
    });
}

fn subxacts(out: &mut String, subxacts: impl Iterator<Item = u32>) {
    each(out, "; subxacts:", subxacts, |out, xid| put!(out, " {xid}"));
}

fn stats(out: &mut String, label: &str, stats: impl Iterator<Item = DroppedStats>) {
    each(out, &format!("; {label}dropped stats:"), stats, |out, it| {
        put!(out, " {}/{}/{}", it.kind, it.database, it.object);
    });
}

fn xids(out: &mut String, label: &str, xids: Items<'_, u32>) {
    each(out, &format!("; {} {label}:", xids.len()), xids, |out, xid| put!(out, " {xid}"));
}

/// Appends a list after its title; nothing if it is empty.
fn each<T>(
    out: &mut String,
    title: &str,
    items: impl Iterator<Item = T>,
    mut one: impl FnMut(&mut String, T),
) {
    for (at, item) in items.enumerate() {
        out.push_str(if at == 0 { title } else { "" });
        one(out, item);
    }
}

/// `standby_desc_invalidations`
pub(super) fn invalidations(
    out: &mut String,
    version: Major,
    messages: impl Iterator<Item = InvalidationMessage>,
    (database, tablespace): (u32, u32),
    update_relcache_file: bool,
) {
    let title = match update_relcache_file {
        true => format!("; relcache init file inval dbid {database} tsid {tablespace}; inval msgs:"),
        false => "; inval msgs:".to_owned(),
    };
    each(out, &title, messages, |out, message| {
        let word = |at: usize| message.0.as_chunks().0.get(at).map_or(0, |word| u32::from_le_bytes(*word));
        match message.id() {
            id @ 0.. => put!(out, " catcache {id}"),
            -1 => put!(out, " catalog {}", word(2)),
            -2 => put!(out, " relcache {}", word(2)),
            -3 => out.push_str(" smgr"),
            -4 => put!(out, " relmap db {}", word(1)),
            -5 => put!(out, " snapshot {}", word(2)),
            -6 if version >= Major::V18 => put!(out, " relsync {}", word(2)),
            id => put!(out, " unrecognized id {id}"),
        }
    });
}

//! Ends of transactions: the resource manager Transaction.
//!
//! `ParseCommitRecord`, `ParseAbortRecord` and `ParsePrepareRecord` in `xactdesc.c` define the layout; the
//! structures are in `access/xact.h`. Until 12, the header of a prepared transaction is `TwoPhaseFileHeader`
//! in `twophase.c`.

use std::ops::Range;

use super::fields::has_info;
use super::listing::{flags, listing};
use super::standby::InvalidationMessage;
use super::{Fields, Item, Items, Parsed, Payload, PayloadError, Text, Timestamp};
use crate::lsn::Lsn;
use crate::reader::Reader;
use crate::record::{Record, RecordHeader, RelFileLocator};
use crate::rmgr::info::xact::{ABORT, ABORT_PREPARED, ASSIGNMENT, COMMIT, COMMIT_PREPARED, HAS_INFO, OPMASK};
use crate::rmgr::rmid;
use crate::simple::SimpleRecord;
use crate::version::Major;

/// Bytes of `xact_time`, the first field of a transaction's end.
const TIME_BYTES: usize = 8;
/// Bytes of `xl_xact_xinfo`, which is present with `XLOG_XACT_HAS_INFO`, that is, if the transaction's end
/// has other parts.
pub const XINFO_BYTES: usize = 4;
/// Bytes of `xl_xact_dbinfo`, which is present with [`TransactionFlags::HAS_DATABASE`].
pub const DBINFO_BYTES: usize = 8;
/// The longest name of a prepared transaction, in the fixed header of 9.5.
const GID_BYTES: usize = 200;

flags! {
    /// The parts and options of a [`TransactionEnd`] (`xinfo`).
    TransactionFlags(u32) {
        /// The record contains the database and its tablespace.
        has_database HAS_DATABASE = 1 << 0;
        /// The record contains subtransactions.
        has_subxacts HAS_SUBXACTS = 1 << 1;
        /// The record contains dropped relations.
        has_relations HAS_RELATIONS = 1 << 2;
        /// The record contains invalidation messages.
        has_invalidations HAS_INVALIDATIONS = 1 << 3;
        /// The transaction was prepared: the record contains its own xid.
        has_twophase HAS_TWOPHASE = 1 << 4;
        /// The record contains the position in the origin's WAL.
        has_origin HAS_ORIGIN = 1 << 5;
        /// The transaction held `AccessExclusiveLock`s, which a standby must release; since 10.
        has_access_exclusive_locks HAS_ACCESS_EXCLUSIVE_LOCKS = 1 << 6;
        /// The transaction was prepared: the record contains its identifier; since 11.
        has_gid HAS_GID = 1 << 7;
        /// The record contains dropped statistics; since 15.
        has_dropped_stats HAS_DROPPED_STATS = 1 << 8;
        /// The commit waits until a standby has applied it; since 9.6.
        apply_feedback APPLY_FEEDBACK = 1 << 29;
        /// The relation cache's init file must be removed.
        update_relcache_file UPDATE_RELCACHE_FILE = 1 << 30;
        /// The commit was flushed regardless of `synchronous_commit`.
        force_sync_commit FORCE_SYNC_COMMIT = 1 << 31;
    }
}

/// All flags that any version of PostgreSQL sets.
const KNOWN_FLAGS: u32 = 0xE000_01FF;

/// `COMMIT`, `ABORT` and their forms for prepared transactions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TransactionEnd<'a> {
    /// `xact_time`: time of commit or abort.
    pub time: Timestamp,
    /// `xinfo`: which of the following fields the record has (`XACT_XINFO_*`), and options.
    pub flags: TransactionFlags,
    /// OID of the database, if invalidations, locks or logical decoding need it.
    pub database: Option<u32>,
    /// OID of that database's tablespace.
    pub tablespace: Option<u32>,
    /// `subxacts`: committed or aborted subtransactions.
    pub subxacts: Items<'a, u32>,
    /// `xlocators`: relations whose files are removed.
    pub dropped_relations: Items<'a, RelFileLocator>,
    /// `xl_xact_stats_items`: statistics entries that are dropped; since 15.
    pub dropped_stats: Items<'a, DroppedStats>,
    /// Messages for the caches of other sessions; commits only.
    pub invalidations: Items<'a, InvalidationMessage>,
    /// The prepared transaction's xid; the record itself has the xid of the transaction that commits or
    /// aborts it.
    pub twophase_xid: Option<u32>,
    /// The prepared transaction's identifier (`twophase_gid`); since 11, if logical decoding needs it.
    pub gid: Option<Text<'a>>,
    /// The replication origin, if the transaction replays another cluster's changes.
    pub origin: Option<Origin>,
}

/// The replication origin of a transaction that replays another cluster's changes (`xl_xact_origin`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The LSN of the transaction's commit in the origin's WAL.
    pub lsn: Lsn,
    /// `origin_timestamp`: commit time at the origin.
    pub time: Timestamp,
}

/// Statistics of an object that was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DroppedStats {
    /// The type of the object.
    pub kind: i32,
    /// OID of its database.
    pub database: u32,
    /// OID of the object; 64 bits wide since 18.
    pub object: u64,
}

impl Item for DroppedStats {
    fn width(version: Major) -> usize {
        if version >= Major::V18 { 16 } else { 12 }
    }

    fn read(reader: &mut Reader<'_>) -> Option<DroppedStats> {
        let (kind, database, low) = (reader.u32()?.cast_signed(), reader.u32()?, reader.u32()?);
        let high = if reader.left() > 0 { reader.u32()? } else { 0 };
        Some(DroppedStats { kind, database, object: u64::from(high) << 32 | u64::from(low) })
    }
}

pub(crate) fn commit<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    transaction_end(record, fields).map(Payload::Commit)
}

pub(crate) fn abort<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    transaction_end(record, fields).map(Payload::Abort)
}

/// Returns whether a record commits (`true`) or aborts a transaction, and when. `None` for all other records,
/// including ends of transactions with more fields, which are rarer: [`super::parse`] reads those.
#[inline]
pub fn plain_end(record: &Record<'_>) -> Option<(bool, Timestamp)> {
    plain_end_of(&record.header, record.main_data())
}

/// Returns [`plain_end`] of a record of the simple layout.
#[inline(always)]
pub fn plain_simple_end(record: &SimpleRecord<'_>) -> Option<(bool, Timestamp)> {
    plain_end_of(&record.header(), record.main_data())
}

#[inline(always)]
fn plain_end_of(header: &RecordHeader, main_data: &[u8]) -> Option<(bool, Timestamp)> {
    let kind = header.info & (OPMASK | HAS_INFO);
    // Combined into one branch, because the kind of the next record is not predictable.
    let is_end =
        (header.rmid == rmid::XACT) & ((kind == COMMIT) | (kind == ABORT)) & (main_data.len() == TIME_BYTES);
    let time = main_data.first_chunk().filter(|_| is_end)?;
    Some((kind == COMMIT, Timestamp(i64::from_le_bytes(*time))))
}

/// Returns the range of bytes in the main data of an `ASSIGNMENT` or of a transaction's end that lists
/// subtransactions, 4 bytes each. `main_data` may be a prefix, as during decoding; the range does not exceed
/// it. Empty for other records.
#[inline]
pub fn subtransactions_range(rmid: u8, info: u8, main_data: &[u8]) -> Range<usize> {
    let word = |at: usize| {
        main_data.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
    };
    // xl_xact_commit: the time; then xl_xact_xinfo, xl_xact_dbinfo and xl_xact_subxacts, if present.
    let count_at = match (rmid, info & OPMASK) {
        // xl_xact_assignment: the toplevel transaction comes first.
        (rmid::XACT, ASSIGNMENT) => 4,
        (rmid::XACT, COMMIT | ABORT | COMMIT_PREPARED | ABORT_PREPARED) if info & HAS_INFO != 0 => {
            let flags = TransactionFlags(word(TIME_BYTES));
            match (flags.has_subxacts(), flags.has_database()) {
                (true, true) => TIME_BYTES + XINFO_BYTES + DBINFO_BYTES,
                (true, false) => TIME_BYTES + XINFO_BYTES,
                (false, _) => return 0..0,
            }
        }
        _ => return 0..0,
    };
    let start = (count_at + 4).min(main_data.len());
    let most = (main_data.len() - start) / 4;
    start..start + 4 * most.min(word(count_at) as usize)
}

/// Reads a commit or an abort. An abort has the same parts in the same order, but never invalidations.
fn transaction_end<'a>(
    record: &Record<'a>,
    fields: &mut Fields<'a>,
) -> Result<TransactionEnd<'a>, PayloadError> {
    let time = fields.timestamp("xact_time")?;
    let flags = if has_info(&record.header, HAS_INFO) { fields.u32("xinfo")? } else { 0 };
    if flags & !KNOWN_FLAGS != 0 {
        return Err(fields.value("xinfo", flags.into()));
    }
    let flags = TransactionFlags(flags);
    let mut end = TransactionEnd {
        time,
        flags,
        database: None,
        tablespace: None,
        subxacts: Items::EMPTY,
        dropped_relations: Items::EMPTY,
        dropped_stats: Items::EMPTY,
        invalidations: Items::EMPTY,
        twophase_xid: None,
        gid: None,
        origin: None,
    };
    if flags.has_database() {
        end.database = Some(fields.u32("dbId")?);
        end.tablespace = Some(fields.u32("tsId")?);
    }
    if flags.has_subxacts() {
        let count = fields.count("nsubxacts")?;
        end.subxacts = fields.items("subxacts", count)?;
    }
    if flags.has_relations() {
        let count = fields.count("nrels")?;
        end.dropped_relations = fields.items("xlocators", count)?;
    }
    if flags.has_dropped_stats() {
        let count = fields.count("nitems")?;
        end.dropped_stats = fields.items("items", count)?;
    }
    if flags.has_invalidations() {
        let count = fields.count("nmsgs")?;
        end.invalidations = fields.items("msgs", count)?;
    }
    if flags.has_twophase() {
        end.twophase_xid = Some(fields.u32("twophase_xid")?);
        if flags.has_gid() {
            end.gid = Some(fields.c_string("twophase_gid")?);
        }
    }
    if flags.has_origin() {
        // The origin follows the name without padding.
        fields.new_structure();
        end.origin = Some(origin(fields)?);
    }
    Ok(end)
}

fn origin(fields: &mut Fields<'_>) -> Result<Origin, PayloadError> {
    Ok(Origin { lsn: fields.lsn("origin_lsn")?, time: fields.timestamp("origin_timestamp")? })
}

listing!(TransactionEnd<'_>: |it, list| list
    .some("gid", it.gid)
    .some("prepared xid", it.twophase_xid)
    .field("time", it.time)
    .field("flags", it.flags)
    .some("db", it.database)
    .some("tablespace", it.tablespace)
    .items("subxacts", it.subxacts)
    .items("dropped rels", it.dropped_relations)
    .count("dropped stats", it.dropped_stats.len())
    .count("invalidations", it.invalidations.len())
    .some("origin lsn", it.origin.map(|origin| origin.lsn))
    .some("origin time", it.origin.map(|origin| origin.time)));

/// `PREPARE`: the header of a prepared transaction's state.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prepare<'a> {
    /// The transaction.
    pub xid: u32,
    /// OID of its database.
    pub database: u32,
    /// `prepared_at`: time of `PREPARE TRANSACTION`.
    pub time: Timestamp,
    /// `owner`: OID of the role that prepared it.
    pub owner: u32,
    /// `gid`: the identifier given to `PREPARE TRANSACTION`.
    pub gid: Text<'a>,
    /// Number of subtransactions.
    pub subxacts: u32,
    /// Number of relations that are removed when it commits.
    pub commit_relations: u32,
    /// Number of relations that are removed when it aborts.
    pub abort_relations: u32,
    /// Number of statistics entries that are dropped when it commits; since 15.
    pub commit_stats: u32,
    /// Number of statistics entries that are dropped when it aborts; since 15.
    pub abort_stats: u32,
    /// Number of messages for other sessions' caches.
    pub invalidations: u32,
    /// Whether the relation cache's init file must be removed.
    pub update_relcache_file: bool,
    /// The replication origin, if the transaction replays another cluster's changes; since 11.
    pub origin: Option<Origin>,
    /// The lists that the counts refer to, then data of other modules such as locks.
    pub state: &'a [u8],
}

impl Prepare<'_> {
    /// Returns its subtransactions.
    pub fn subxids(&self) -> impl Iterator<Item = u32> {
        let words = self.state.as_chunks().0.iter().copied().map(u32::from_le_bytes);
        words.take(self.subxacts as usize)
    }
}

pub(crate) fn prepare<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    // The number of the format, and the length of the state file that the record may become.
    fields.u32("magic")?;
    fields.u32("total_len")?;
    let xid = fields.u32("xid")?;
    let database = fields.u32("database")?;
    let time = fields.timestamp("prepared_at")?;
    let owner = fields.u32("owner")?;
    let subxacts = fields.count("nsubxacts")?;
    let commit_relations = fields.count("ncommitrels")?;
    let abort_relations = fields.count("nabortrels")?;
    let stats = fields.since(Major::V15);
    let commit_stats = if stats { fields.count("ncommitstats")? } else { 0 };
    let abort_stats = if stats { fields.count("nabortstats")? } else { 0 };
    let invalidations = fields.count("ninvalmsgs")?;
    let update_relcache_file = fields.bool("initfileinval")?;
    // Since 9.6 the name follows the header; in 9.5 it is an array in the header.
    let (gid, origin) = if fields.since(Major::V9_6) {
        let gid_len = fields.u16("gidlen")?;
        let origin = if fields.since(Major::V11) { Some(origin(fields)?) } else { None };
        fields.padded_to(8, "xl_xact_prepare")?;
        (fields.char_array("gid", gid_len.into())?, origin.filter(|origin| origin.lsn != Lsn::INVALID))
    } else {
        (fields.char_array("gid", GID_BYTES)?, None)
    };
    fields.padded_to(8, "gid")?;
    let state = fields.rest();
    Ok(Payload::Prepare(Prepare {
        xid,
        database,
        time,
        owner,
        gid,
        subxacts,
        commit_relations,
        abort_relations,
        commit_stats,
        abort_stats,
        invalidations,
        update_relcache_file,
        origin,
        state,
    }))
}

listing!(Prepare<'_>: |it, list| list
    .field("gid", it.gid)
    .field("xid", it.xid)
    .field("db", it.database)
    .field("time", it.time)
    .count("subxacts", it.subxacts as usize)
    .count("rels (commit)", it.commit_relations as usize)
    .count("rels (abort)", it.abort_relations as usize)
    .count("stats (commit)", it.commit_stats as usize)
    .count("stats (abort)", it.abort_stats as usize)
    .count("invalidations", it.invalidations as usize)
    .field("state", format_args!("{} bytes", it.state.len())));

/// `ASSIGNMENT`: assigns subtransactions to their top-level transaction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Assignment<'a> {
    /// The toplevel transaction.
    pub top_xid: u32,
    /// Subtransactions of `top_xid`.
    pub subxacts: Items<'a, u32>,
}

pub(crate) fn assignment<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let top_xid = fields.u32("xtop")?;
    let count = fields.count("nsubxacts")?;
    Ok(Payload::Assignment(Assignment { top_xid, subxacts: fields.items("xsub", count)? }))
}

listing!(Assignment<'_>: |it, list| list.field("xtop", it.top_xid).field("subxacts", it.subxacts));

/// `INVALIDATION`: messages for caches at the end of a command, for logical decoding. Since 14.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CommandInvalidations<'a> {
    /// The messages.
    pub messages: Items<'a, InvalidationMessage>,
}

pub(crate) fn invalidations<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let count = fields.count("nmsgs")?;
    Ok(Payload::CommandInvalidations(CommandInvalidations { messages: fields.items("msgs", count)? }))
}

listing!(CommandInvalidations<'_>: |it, list| list.field("invalidations", it.messages.len()));

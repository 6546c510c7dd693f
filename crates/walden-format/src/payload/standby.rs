//! Records that only standbys and logical decoding need: the resource manager Standby.
//!
//! Structures: `storage/standbydefs.h`, in `storage/standby.h` in 9.5; messages: `storage/sinval.h`.

use super::listing::listing;
use super::{Fields, Item, Items, Parsed, Payload, PayloadError};
use crate::reader::Reader;
use crate::record::Record;
use crate::version::Major;

/// `LOCK`: `AccessExclusiveLock`s that transactions hold (`xl_standby_locks`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StandbyLock<'a> {
    /// The locks.
    pub locks: Items<'a, AccessExclusiveLock>,
}

/// An `AccessExclusiveLock` on a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessExclusiveLock {
    /// `xid`: the transaction that holds the lock.
    pub xid: u32,
    /// OID of the relation's database.
    pub database: u32,
    /// OID of the relation: not its file number.
    pub relation: u32,
}

impl Item for AccessExclusiveLock {
    fn width(_: Major) -> usize {
        12
    }

    fn read(reader: &mut Reader<'_>) -> Option<AccessExclusiveLock> {
        let (xid, database, relation) = (reader.u32()?, reader.u32()?, reader.u32()?);
        Some(AccessExclusiveLock { xid, database, relation })
    }
}

impl std::fmt::Display for AccessExclusiveLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "xid {} db {} rel {}", self.xid, self.database, self.relation)
    }
}

pub(crate) fn lock<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let count = fields.count("nlocks")?;
    Ok(Payload::StandbyLock(StandbyLock { locks: fields.items("locks", count)? }))
}

listing!(StandbyLock<'_>: |it, list| list.field("locks", it.locks));

/// `RUNNING_XACTS`: a snapshot of the running transactions (`xl_running_xacts`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RunningXacts<'a> {
    /// `subxid_overflow`: whether some subtransactions are missing from `subxids`.
    pub subxid_overflow: bool,
    /// `nextXid`: the next transaction ID to be assigned.
    pub next_xid: u32,
    /// `oldestRunningXid`: the oldest running transaction, not the oldest xmin.
    pub oldest_running_xid: u32,
    /// `latestCompletedXid`: the newest transaction that has ended.
    pub latest_completed_xid: u32,
    /// `xids`: IDs of running top-level transactions.
    pub xids: Items<'a, u32>,
    /// IDs of running subtransactions, which follow the top-level transactions of `xids` in the record.
    pub subxids: Items<'a, u32>,
}

pub(crate) fn running_xacts<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let count = fields.count("xcnt")?;
    let subxact_count = fields.count("subxcnt")?;
    Ok(Payload::RunningXacts(RunningXacts {
        subxid_overflow: fields.bool("subxid_overflow")?,
        next_xid: fields.u32("nextXid")?,
        oldest_running_xid: fields.u32("oldestRunningXid")?,
        latest_completed_xid: fields.u32("latestCompletedXid")?,
        xids: fields.items("xids", count)?,
        subxids: fields.items("xids", subxact_count)?,
    }))
}

listing!(RunningXacts<'_>: |it, list| list
    .field("next xid", it.next_xid)
    .field("latest completed xid", it.latest_completed_xid)
    .field("oldest running xid", it.oldest_running_xid)
    .items("xacts", it.xids)
    .items("subxacts", it.subxids)
    .some("subxid overflow", it.subxid_overflow.then_some(true)));

/// `INVALIDATIONS`: cache invalidation messages of a transaction without an xid. Since 9.6.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Invalidations<'a> {
    /// OID of the database.
    pub database: u32,
    /// OID of its tablespace.
    pub tablespace: u32,
    /// Whether the relation cache's init file must be removed.
    pub update_relcache_file: bool,
    /// The messages.
    pub messages: Items<'a, InvalidationMessage>,
}

pub(crate) fn invalidations<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    message_list(fields).map(Payload::Invalidations)
}

/// Reads the fields that `xl_heap_inplace` also contains since 18.
pub(crate) fn message_list<'a>(fields: &mut Fields<'a>) -> Result<Invalidations<'a>, PayloadError> {
    let database = fields.u32("dbId")?;
    let tablespace = fields.u32("tsId")?;
    let update_relcache_file = fields.bool("relcacheInitFileInval")?;
    let count = fields.count("nmsgs")?;
    let messages = fields.items("msgs", count)?;
    Ok(Invalidations { database, tablespace, update_relcache_file, messages })
}

listing!(Invalidations<'_>: |it, list| list
    .field("db", it.database)
    .field("tablespace", it.tablespace)
    .some("relcache init file inval", it.update_relcache_file.then_some(true))
    .field("invalidations", it.messages.len()));

/// A message for the caches of other sessions (`SharedInvalidationMessage`), as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidationMessage(pub [u8; 16]);

impl InvalidationMessage {
    /// The message type: the id of a catalog cache, or a negative number for other types.
    pub fn id(&self) -> i8 {
        self.0[0].cast_signed()
    }
}

impl InvalidationMessage {
    /// Bytes of a message.
    pub const WIDTH: usize = 16;
}

impl Item for InvalidationMessage {
    fn width(_: Major) -> usize {
        16
    }

    fn read(reader: &mut Reader<'_>) -> Option<InvalidationMessage> {
        reader.array().map(InvalidationMessage)
    }
}

//! The fields of records: their main data, and their blocks' data if it has fields of its own.
//!
//! [`parse`] reads the kinds of [`crate::rmgr`] that have a row in the table of `decoders`. The structures
//! correspond to PostgreSQL's headers; where a field changed between versions, the decoder checks the version
//! as it reads the field. Nothing is copied: lists are read from the record's bytes during iteration.
//!
//! A block with an image omits its data, so the fields that come from the data are then absent.
//!
//! The structures whose names start with `Xl`, such as [`heap::XlHeapUpdate`], are only the fixed part of a
//! kind's main data. These structures can be read in a few instructions, and can also be written.

use std::fmt;

use crate::record::Record;
use crate::rmgr::{self, Kind};
use crate::version::Major;

pub mod brin;
pub mod btree;
pub mod dbase;
mod decoders;
mod fields;
pub mod generic;
pub mod gin;
pub mod gist;
pub mod hash;
pub mod heap;
mod layout;
mod listing;
pub mod multixact;
pub mod origin;
pub mod relmap;
pub mod seq;
pub mod slru;
pub mod smgr;
pub mod spgist;
pub mod standby;
pub mod timestamp;
pub mod xact;
pub mod xlog;

#[cfg(test)]
mod tests;

pub(crate) use fields::Fields;
pub use fields::{Item, Items, Text, offset_numbers, push_offset_numbers};
pub use layout::BlockId;
pub use timestamp::Timestamp;

/// The result of a decoder.
pub(crate) type Parsed<'a> = Result<Payload<'a>, PayloadError>;

/// The fields of a record.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Payload<'a> {
    /// No decoder for this kind: it belongs to an extension, is unknown, or is not supported yet.
    Opaque,
    /// The kind has no fields.
    Nothing,

    Checkpoint(xlog::Checkpoint),
    CheckpointRedo(xlog::CheckpointRedo),
    NextOid(xlog::NextOid),
    BackupEnd(xlog::BackupEnd),
    ParameterChange(xlog::ParameterChange),
    RestorePoint(xlog::RestorePoint<'a>),
    FullPageWritesChange(xlog::FullPageWritesChange),
    EndOfRecovery(xlog::EndOfRecovery),
    OverwriteContrecord(xlog::OverwriteContrecord),
    LogicalDecodingStatusChange(xlog::LogicalDecodingStatusChange),

    /// `COMMIT` and `COMMIT_PREPARED`.
    Commit(xact::TransactionEnd<'a>),
    /// `ABORT` and `ABORT_PREPARED`.
    Abort(xact::TransactionEnd<'a>),
    Prepare(xact::Prepare<'a>),
    Assignment(xact::Assignment<'a>),
    /// The invalidations of a command, with `wal_level=logical`.
    CommandInvalidations(xact::CommandInvalidations<'a>),

    StorageCreate(smgr::StorageCreate),
    StorageTruncate(smgr::StorageTruncate),

    DatabaseCreate(dbase::DatabaseCreate),
    DatabaseDrop(dbase::DatabaseDrop<'a>),
    TablespaceCreate(dbase::TablespaceCreate<'a>),
    TablespaceDrop(dbase::TablespaceDrop),

    /// A page was added to the commit log, to commit timestamps or to multixacts.
    ZeroPage(slru::ZeroPage),
    CommitLogTruncate(slru::CommitLogTruncate),
    CommitTsTruncate(slru::CommitTsTruncate),
    CommitTsSet(slru::CommitTsSet<'a>),
    MultiXactCreate(multixact::MultiXactCreate<'a>),
    MultiXactTruncate(multixact::MultiXactTruncate),

    RelationMapUpdate(relmap::RelationMapUpdate<'a>),

    StandbyLock(standby::StandbyLock<'a>),
    RunningXacts(standby::RunningXacts<'a>),
    Invalidations(standby::Invalidations<'a>),

    Insert(heap::Insert<'a>),
    Delete(heap::Delete<'a>),
    Update(heap::Update<'a>),
    HeapTruncate(heap::HeapTruncate<'a>),
    Confirm(heap::Confirm),
    Lock(heap::Lock),
    LockUpdated(heap::Lock),
    Inplace(heap::Inplace<'a>),
    MultiInsert(heap::MultiInsert<'a>),
    /// `CLEAN`, `PRUNE`, heap's `VACUUM` and the `PRUNE_*` kinds of 17.
    Prune(heap::Prune<'a>),
    FreezePage(heap::FreezePage<'a>),
    CleanupInfo(heap::CleanupInfo),
    Visible(heap::Visible),
    NewCid(heap::NewCid),
    Rewrite(heap::Rewrite<'a>),

    BtreeInsert(btree::BtreeInsert<'a>),
    BtreeSplit(btree::BtreeSplit),
    BtreeDedup(btree::BtreeDedup<'a>),
    BtreeDelete(btree::BtreeDelete<'a>),
    BtreeVacuum(btree::BtreeVacuum<'a>),
    BtreeUnlinkPage(btree::BtreeUnlinkPage),
    BtreeMarkPageHalfDead(btree::BtreeMarkPageHalfDead),
    BtreeNewRoot(btree::BtreeNewRoot),
    BtreeReusePage(btree::BtreeReusePage),
    BtreeMetaCleanup(btree::BtreeMetaCleanup),

    SequenceLog(seq::SequenceLog<'a>),

    OriginSet(origin::OriginSet),
    OriginDrop(origin::OriginDrop),
    LogicalMessage(origin::LogicalMessage<'a>),
}

/// Decodes the fields of a record.
///
/// Bytes after the kind's structure are an error, as are missing bytes.
pub fn parse<'a>(record: &Record<'a>) -> Result<Payload<'a>, PayloadError> {
    let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
    let Some(decode) = decoders::decoder(kind, record.version) else {
        return Ok(Payload::Opaque);
    };
    let mut fields = Fields::from_main_data(record, kind);
    let payload = decode(record, &mut fields)?;
    fields.end("main data")?;
    Ok(payload)
}

/// A field that is invalid in a record of this kind and version, although the record's checksum is right.
///
/// Either a fork of PostgreSQL or an extension changed the format, or this crate has a bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PayloadError {
    /// The record's kind.
    pub kind: Kind,
    /// The major version that wrote the record.
    pub version: Major,
    /// The field, named as in PostgreSQL's structures.
    pub field: &'static str,
    /// The error in the field.
    pub cause: PayloadFault,
}

/// An error in a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum PayloadFault {
    /// The field needs more bytes than remain.
    Short { expected: u64, found: u64 },
    /// Bytes remain after the last field.
    Trailing { bytes: u64 },
    /// An invalid value: a negative count, unknown flags.
    Value(u64),
    /// The stream kept only the first bytes of this long record in memory, and the field is after them.
    NotHeld,
}

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (manager, kind) = (self.kind.resource_manager(self.version), self.kind.name(self.version));
        write!(f, "{manager} {kind} of PostgreSQL {}, {}: ", self.version, self.field)?;
        match self.cause {
            PayloadFault::Short { expected, found } => {
                write!(f, "expected {expected} bytes, found {found}")
            }
            PayloadFault::Trailing { bytes } => write!(f, "expected the end, found {bytes} more bytes"),
            PayloadFault::Value(value) => write!(f, "{value:#X} is not valid"),
            PayloadFault::NotHeld => {
                f.write_str("cannot read it, as the record is too long to be held whole")
            }
        }
    }
}

impl std::error::Error for PayloadError {}

/// Prints the fields in short form, `off: 3, flags: 0x00`; nothing for a payload without fields.
impl fmt::Display for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Payload::Opaque | Payload::Nothing => Ok(()),
            Payload::Checkpoint(fields) => fields.fmt(f),
            Payload::CheckpointRedo(fields) => fields.fmt(f),
            Payload::NextOid(fields) => fields.fmt(f),
            Payload::BackupEnd(fields) => fields.fmt(f),
            Payload::ParameterChange(fields) => fields.fmt(f),
            Payload::RestorePoint(fields) => fields.fmt(f),
            Payload::FullPageWritesChange(fields) => fields.fmt(f),
            Payload::EndOfRecovery(fields) => fields.fmt(f),
            Payload::OverwriteContrecord(fields) => fields.fmt(f),
            Payload::LogicalDecodingStatusChange(fields) => fields.fmt(f),
            Payload::Commit(fields) | Payload::Abort(fields) => fields.fmt(f),
            Payload::Prepare(fields) => fields.fmt(f),
            Payload::Assignment(fields) => fields.fmt(f),
            Payload::CommandInvalidations(fields) => fields.fmt(f),
            Payload::StorageCreate(fields) => fields.fmt(f),
            Payload::StorageTruncate(fields) => fields.fmt(f),
            Payload::DatabaseCreate(fields) => fields.fmt(f),
            Payload::DatabaseDrop(fields) => fields.fmt(f),
            Payload::TablespaceCreate(fields) => fields.fmt(f),
            Payload::TablespaceDrop(fields) => fields.fmt(f),
            Payload::ZeroPage(fields) => fields.fmt(f),
            Payload::CommitLogTruncate(fields) => fields.fmt(f),
            Payload::CommitTsTruncate(fields) => fields.fmt(f),
            Payload::CommitTsSet(fields) => fields.fmt(f),
            Payload::MultiXactCreate(fields) => fields.fmt(f),
            Payload::MultiXactTruncate(fields) => fields.fmt(f),
            Payload::RelationMapUpdate(fields) => fields.fmt(f),
            Payload::StandbyLock(fields) => fields.fmt(f),
            Payload::RunningXacts(fields) => fields.fmt(f),
            Payload::Invalidations(fields) => fields.fmt(f),
            Payload::Insert(fields) => fields.fmt(f),
            Payload::Delete(fields) => fields.fmt(f),
            Payload::Update(fields) => fields.fmt(f),
            Payload::HeapTruncate(fields) => fields.fmt(f),
            Payload::Confirm(fields) => fields.fmt(f),
            Payload::Lock(fields) | Payload::LockUpdated(fields) => fields.fmt(f),
            Payload::Inplace(fields) => fields.fmt(f),
            Payload::MultiInsert(fields) => fields.fmt(f),
            Payload::Prune(fields) => fields.fmt(f),
            Payload::FreezePage(fields) => fields.fmt(f),
            Payload::CleanupInfo(fields) => fields.fmt(f),
            Payload::Visible(fields) => fields.fmt(f),
            Payload::NewCid(fields) => fields.fmt(f),
            Payload::Rewrite(fields) => fields.fmt(f),
            Payload::BtreeInsert(fields) => fields.fmt(f),
            Payload::BtreeSplit(fields) => fields.fmt(f),
            Payload::BtreeDedup(fields) => fields.fmt(f),
            Payload::BtreeDelete(fields) => fields.fmt(f),
            Payload::BtreeVacuum(fields) => fields.fmt(f),
            Payload::BtreeUnlinkPage(fields) => fields.fmt(f),
            Payload::BtreeMarkPageHalfDead(fields) => fields.fmt(f),
            Payload::BtreeNewRoot(fields) => fields.fmt(f),
            Payload::BtreeReusePage(fields) => fields.fmt(f),
            Payload::BtreeMetaCleanup(fields) => fields.fmt(f),
            Payload::SequenceLog(fields) => fields.fmt(f),
            Payload::OriginSet(fields) => fields.fmt(f),
            Payload::OriginDrop(fields) => fields.fmt(f),
            Payload::LogicalMessage(fields) => fields.fmt(f),
        }
    }
}

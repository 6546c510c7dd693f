//! Which records are replayed. The first one that is not ends the range: PostgreSQL replays it.

use std::fmt;

use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record};
use walden_format::rmgr::info::xlog;
use walden_format::rmgr::{self, Kind, rmid};
use walden_format::version::Major;

/// A record that is left to PostgreSQL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsupported {
    /// Start of the record.
    pub lsn: Lsn,
    /// Kind of the record.
    pub kind: Kind,
    version: Major,
    /// Why it is not replayed.
    pub reason: Reason,
}

/// Why a record is not replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Reason {
    /// A resource manager of an extension, or of a later minor or major release.
    ResourceManager,
    /// A kind that this version does not have.
    Kind,
    /// The fields cannot be read.
    Fields,
    /// A tablespace in a folder outside of the data directory without a new folder.
    Tablespace,
    /// `track_commit_timestamp` was turned on or off.
    CommitTimestamps,
    /// A fork that no file has.
    Fork,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (manager, kind) = (self.kind.resource_manager(self.version), self.kind.name(self.version));
        write!(f, "{manager} {kind} at {}: {}", self.lsn, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::ResourceManager => "Walden does not replay this resource manager",
            Reason::Kind => "Walden does not know this kind of record",
            Reason::Fields => "its fields cannot be read",
            Reason::Tablespace => {
                "it creates a tablespace outside of the data directory, without --tablespace-mapping"
            }
            Reason::CommitTimestamps => "it changes track_commit_timestamp",
            Reason::Fork => "it names an unknown fork",
        })
    }
}

/// Why a record is not replayed; `None` if it is. `commit_timestamps` is the setting of the base backup.
/// `is_mapped` returns whether a tablespace's folder has a new folder.
pub(crate) fn unsupported(
    record: &Record<'_>,
    commit_timestamps: bool,
    is_mapped: &dyn Fn(&[u8]) -> bool,
) -> Option<Unsupported> {
    let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
    let reason = reason(record, kind, commit_timestamps, is_mapped)?;
    Some(Unsupported { lsn: record.lsn, kind, version: record.version, reason })
}

/// Returns whether [`unsupported`] reads the fields of a record.
pub(crate) fn reads_fields(record: &Record<'_>) -> bool {
    match record.header.rmid {
        rmid::XACT | rmid::SMGR | rmid::CLOG | rmid::DBASE | rmid::TBLSPC => true,
        rmid::MULTIXACT | rmid::RELMAP | rmid::COMMIT_TS | rmid::REPLORIGIN => true,
        rmid::XLOG => {
            let kinds = [xlog::CHECKPOINT_SHUTDOWN, xlog::CHECKPOINT_ONLINE, xlog::PARAMETER_CHANGE];
            kinds.contains(&record.rmgr_info())
        }
        _ => false,
    }
}

fn reason(
    record: &Record<'_>,
    kind: Kind,
    commit_timestamps: bool,
    is_mapped: &dyn Fn(&[u8]) -> bool,
) -> Option<Reason> {
    let number = record.header.rmid;
    if number > rmid::LOGICALMSG {
        return Some(Reason::ResourceManager);
    }
    if kind.row(record.version).is_none() {
        return Some(Reason::Kind);
    }
    if record.blocks.iter().any(|block| block.fork.0 > Fork::INIT.0) {
        return Some(Reason::Fork);
    }
    if !reads_fields(record) {
        return None;
    }
    match payload::parse(record) {
        Err(_) | Ok(Payload::Opaque) => Some(Reason::Fields),
        // An empty path is a folder in pg_tblspc (allow_in_place_tablespaces).
        Ok(Payload::TablespaceCreate(created)) if !created.path.0.is_empty() => {
            (!is_mapped(created.path.0)).then_some(Reason::Tablespace)
        }
        Ok(Payload::ParameterChange(change)) if change.track_commit_timestamp != commit_timestamps => {
            Some(Reason::CommitTimestamps)
        }
        Ok(Payload::StorageCreate(created)) if created.fork.0 > Fork::INIT.0 => Some(Reason::Fork),
        Ok(_) => None,
    }
}

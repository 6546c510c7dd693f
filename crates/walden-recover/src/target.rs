//! Recovery targets, as `recovery_target_*` has them.

use std::fmt;

use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::Record;
use walden_format::rmgr::info::xlog::RESTORE_POINT;
use walden_format::rmgr::rmid;

/// Where recovery stops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The end of the WAL.
    Latest,
    /// Before the first commit or abort after this time, in microseconds since 1970-01-01 00:00:00 UTC.
    Time(i64),
    /// After the first record at this position or later.
    Lsn(Lsn),
    /// After the end of this transaction.
    Xid(u32),
    /// After the restore point of this name.
    Name(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Latest => f.write_str("the end of the WAL"),
            Target::Time(time) => write!(f, "{}", Timestamp::from_unix_micros(*time)),
            Target::Lsn(lsn) => write!(f, "{lsn}"),
            Target::Xid(xid) => write!(f, "transaction {xid}"),
            Target::Name(name) => write!(f, "restore point {name:?}"),
        }
    }
}

impl Target {
    /// Whether recovery stops at a record: before it for a time, after it for the others
    /// (`recoveryStopsBefore` and `recoveryStopsAfter` in `xlogrecovery.c`).
    pub(crate) fn stops_at(&self, record: &Record<'_>) -> bool {
        match self {
            Target::Latest => false,
            Target::Lsn(lsn) => record.lsn >= *lsn,
            Target::Time(time) => end_of_transaction(record).is_some_and(|(_, at)| at > *time),
            Target::Xid(xid) => end_of_transaction(record).is_some_and(|(of, _)| of == *xid),
            Target::Name(name) => {
                record.header.rmid == rmid::XLOG
                    && record.rmgr_info() == RESTORE_POINT
                    && matches!(payload::parse(record), Ok(Payload::RestorePoint(point)) if point.name.0 == name.as_bytes())
            }
        }
    }

    /// The setting that names the target in `postgresql.conf`, and its value.
    pub(crate) fn setting(&self) -> Option<(&'static str, String)> {
        Some(match self {
            Target::Latest => return None,
            Target::Time(time) => ("recovery_target_time", Timestamp::from_unix_micros(*time).to_string()),
            Target::Lsn(lsn) => ("recovery_target_lsn", lsn.to_string()),
            Target::Xid(xid) => ("recovery_target_xid", xid.to_string()),
            Target::Name(name) => ("recovery_target_name", name.clone()),
        })
    }
}

/// The transaction that a record commits or aborts, and the time in microseconds since 1970-01-01 00:00:00
/// UTC.
pub(crate) fn end_of_transaction(record: &Record<'_>) -> Option<(u32, i64)> {
    if record.header.rmid != rmid::XACT {
        return None;
    }
    match payload::parse(record) {
        Ok(Payload::Commit(end) | Payload::Abort(end)) => {
            Some((end.twophase_xid.unwrap_or(record.header.xid), end.time.unix_micros()))
        }
        _ => None,
    }
}

//! A log that is still being written, record by record: from the folder of a running server, or over a replication connection.
//!
//! A [`Follower`] decodes each record once, as soon as it is whole. What it reports to the [`Visitor`] adds up to the bytes from where
//! it began to [`Follower::position`], across segments, restarts and timelines, except where it says that bytes are missing
//! ([`News::Gap`]).

mod arrivals;
mod files;
mod stream;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use walden_format::fault::Fault;
use walden_format::lsn::{Lsn, Timeline};
use walden_format::stream::{StreamInfo, Visitor};
use walden_format::version::UnreadableMagic;

pub use self::files::{CheckpointSearch, FolderFollower};
pub use self::stream::ConnectionFollower;
use crate::replication::ReplicationError;

/// Bytes that one call decodes at most, so that sums of 32 bits do not overflow and a caller that fell behind can look up.
pub(crate) const MAX_POLL_BYTES: u64 = 256 << 20;

/// What follows a log.
pub trait Follower {
    /// Version, timeline and sizes of the log at the position.
    fn info(&self) -> StreamInfo;

    /// The end of what was decoded.
    fn position(&self) -> Lsn;

    /// Decodes what was written since the last call, at most a few hundred MB. Of a connection, waits for at most `patience`.
    ///
    /// # Errors
    /// The folder or the connection cannot be read. Calling again tries again.
    fn poll(&mut self, visitor: &mut impl Visitor, patience: Duration) -> Result<Polled, FollowError>;
}

/// What a call of [`Follower::poll`] found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Polled {
    /// Whether more is there already.
    pub has_more: bool,
    /// Whether a connection that was lost is still being made again, so that what was wrong still is.
    pub is_connecting: bool,
    /// What happened at the position, behind all that was reported.
    pub news: Option<News>,
}

/// A place where the log does not simply go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// Another timeline goes on here. `discarded` bytes that were reported before are not part of it: the server that wrote them
    /// was ahead when another one was promoted.
    Timeline {
        /// The timeline that goes on.
        timeline: Timeline,
        /// Where.
        start: Lsn,
        /// Bytes behind `start` that were reported.
        discarded: u64,
    },
    /// The log from `from` to `to` was not decoded.
    Gap {
        /// The end of what was decoded.
        from: Lsn,
        /// The first record behind the gap.
        to: Lsn,
        /// Why.
        reason: GapReason,
    },
}

/// Why a part of the log was not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapReason {
    /// The server has removed or recycled it: the follower was too slow, or stopped.
    Removed,
    /// It cannot be decoded, and the log goes on behind it.
    Damaged(Fault),
    /// The connection was lost, and the server does not have it any more.
    Reconnected,
    /// It is the end of a record that began before the log was followed.
    Begun,
}

/// Why a log cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// A folder without a valid segment.
    #[error("{}: expected the pg_wal folder of a server, found no segment with valid WAL", path.display())]
    NoWal {
        /// The folder.
        path: PathBuf,
    },
    /// The log is of a version of PostgreSQL that is not read here.
    #[error("cannot read {page} (magic {magic:04X}): it was {reason}")]
    UnknownVersion {
        /// The page: its file and offset, or its position.
        page: String,
        /// Its magic.
        magic: u16,
        /// The version that writes it.
        reason: UnreadableMagic,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The connection.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
    /// What the server sends is not valid.
    #[error("what the server sends is no valid WAL")]
    Stream(#[source] Fault),
    /// A server that is not the one of before.
    #[error("expected the cluster with the system identifier {expected}, found {found}")]
    OtherCluster {
        /// Of the cluster that was followed so far.
        expected: u64,
        /// Of the server that answers.
        found: u64,
    },
}

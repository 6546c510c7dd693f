//! Follows WAL while it is written, record by record: from the folder of a running server, or over a
//! replication connection.
//!
//! A [`Follower`] decodes each record once, as soon as it is complete. The records that it reports to the
//! [`Visitor`] cover all bytes from its first position to [`Follower::position`], across segments, restarts
//! and timelines, except for reported gaps ([`News::Gap`]).

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

/// Maximum number of bytes that one call decodes, so that 32-bit sums do not overflow and a lagging caller
/// gets control regularly.
pub(crate) const MAX_POLL_BYTES: u64 = 256 << 20;

/// Follows WAL.
pub trait Follower {
    /// Returns version, timeline and sizes of the WAL at the position.
    fn info(&self) -> StreamInfo;

    /// Returns the end of the decoded WAL.
    fn position(&self) -> Lsn;

    /// Decodes WAL written since the last call, at most a few hundred MB. On a connection, waits for at most
    /// `patience`.
    ///
    /// # Errors
    /// The folder or the connection cannot be read. The next call tries again.
    fn poll(&mut self, visitor: &mut impl Visitor, patience: Duration) -> Result<Polled, FollowError>;
}

/// The result of [`Follower::poll`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Polled {
    /// Whether more WAL is available already.
    pub has_more: bool,
    /// Whether a lost connection is still being restored, so that the last error still applies.
    pub is_connecting: bool,
    /// An event at the position, after all reported records.
    pub news: Option<News>,
}

/// A discontinuity in the WAL: another timeline, or a gap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// Another timeline continues here. `discarded` bytes of the reported WAL are not part of it: the server
    /// that wrote them was ahead of the server that was promoted.
    Timeline {
        /// The timeline that continues.
        timeline: Timeline,
        /// The first LSN of the new timeline.
        start: Lsn,
        /// Reported bytes after `start`.
        discarded: u64,
    },
    /// The WAL from `from` to `to` was not decoded.
    Gap {
        /// The end of the decoded WAL.
        from: Lsn,
        /// The first record after the gap.
        to: Lsn,
        /// The cause.
        reason: GapReason,
    },
}

/// Why some WAL was not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapReason {
    /// The server has removed or recycled the WAL: the follower was too slow, or was stopped.
    Removed,
    /// The WAL cannot be decoded, and valid WAL follows.
    Damaged(Fault),
    /// The connection was lost, and the server does not have this WAL any more.
    Reconnected,
    /// The WAL is the rest of a record that started before the first position.
    Begun,
}

/// Why WAL cannot be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// A folder without a valid segment.
    #[error("{}: expected the pg_wal folder of a server, found no segment with valid WAL", path.display())]
    NoWal {
        /// The folder.
        path: PathBuf,
    },
    /// The WAL is of a PostgreSQL version that Walden does not read.
    #[error("cannot read the WAL page {page}: by its magic {magic:04X}, the page was {reason}")]
    UnknownVersion {
        /// The page: its file and offset, or its position.
        page: String,
        /// Magic number of the page.
        magic: u16,
        /// The version that writes it.
        reason: UnreadableMagic,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The connection.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
    /// The server sends invalid WAL.
    #[error("the server sends invalid WAL")]
    Stream(#[source] Fault),
    /// The server belongs to another cluster than before.
    #[error(
        "the server belongs to another cluster than before: expected the system identifier {expected}, found {found}"
    )]
    OtherCluster {
        /// System identifier of the cluster that was followed.
        expected: u64,
        /// System identifier of the server.
        found: u64,
    },
}

walden_format::diagnostics! { FollowError {
    Self::NoWal { .. } => "follow-no-wal": "name the data directory of the server or its pg_wal; walden explain without a source lists the servers of this machine",
    Self::UnknownVersion { .. } => "follow-unknown-version": "only a Walden that knows this version can read it; walden compress keeps it as bytes",
    Self::Io { .. } => none,
    Self::Replication(error) => of(error),
    Self::Stream(_) => "follow-damaged",
    Self::OtherCluster { .. } => "follow-other-cluster",
} }

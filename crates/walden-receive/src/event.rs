//! Events of a receiver, for messages and logs.

use std::time::Duration;

use walden_archive::catch_up::Round;
use walden_archive::push::{PushError, Pushed};
use walden_format::lsn::{Lsn, Timeline};
use walden_postgres::replication::SlotError;

use crate::error::ReceiveError;
use crate::spool::Position;
use crate::uploading::UploadError;

/// An event, for messages and logs.
#[derive(Debug)]
pub enum Event<'e> {
    /// The server has started to send WAL from this position.
    Streaming {
        /// The server.
        server: &'e str,
        /// The server's version.
        version: &'e str,
        /// The first position that the server sends.
        position: Position,
        /// Whether the connection is encrypted.
        is_encrypted: bool,
    },
    /// The slot's restart position could not be read. Receiving starts at the server's current position, and
    /// any WAL before it is missing.
    SlotUnread {
        /// The slot.
        slot: &'e str,
        /// The cause.
        error: &'e SlotError,
    },
    /// The server had invalidated the slot, which therefore kept no WAL. The slot was dropped and created
    /// again.
    SlotReplaced {
        /// The slot.
        slot: &'e str,
    },
    /// The timeline ended, and receiving continues on another timeline.
    Switched {
        /// The timeline that ended.
        from: Timeline,
        /// Where receiving continues on the other timeline.
        position: Position,
    },
    /// The server had removed WAL. Receiving continues after the gap, which the archive records.
    Skipped {
        /// LSN of the first missing WAL.
        from: Lsn,
        /// Where receiving continues.
        position: Position,
    },
    /// Receiving is interrupted and is tried again after the pause.
    Interrupted {
        /// The cause.
        error: &'e ReceiveError,
        /// Time until the next attempt.
        pause: Duration,
    },
    /// Received WAL could not be archived in parts in one copy of the archive. Archiving is tried again after
    /// the pause.
    NotStored {
        /// The cause.
        error: &'e UploadError,
        /// Whether too few other copies get the WAL, so that no further WAL is acknowledged.
        is_blocking: bool,
        /// Time until the next attempt.
        pause: Duration,
    },
    /// A copy of the archive that was away was brought up to date from other copies, or this failed for a new
    /// reason.
    CaughtUp(&'e Round<'e>),
    /// A file was archived, or archiving it failed.
    Archived {
        /// Name of the file.
        name: &'e str,
        /// The result of archiving it.
        result: &'e Result<Pushed, PushError>,
        /// Number of files that waited to be archived, including this file.
        waiting: usize,
    },
}

/// A function that receives the events.
pub type Observer<'o> = &'o (dyn Fn(Event<'_>) + Sync);

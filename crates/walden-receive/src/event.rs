//! What happens while a log is received, for logs.

use std::time::Duration;

use walden_archive::push::{PushError, Pushed};
use walden_format::lsn::{Lsn, Timeline};
use walden_postgres::replication::SlotError;

use crate::error::ReceiveError;
use crate::spool::Position;
use crate::uploading::UploadError;

/// What happened, for logs.
#[derive(Debug)]
pub enum Event<'e> {
    /// The log comes from this position.
    Streaming {
        /// The server.
        server: &'e str,
        /// Its version.
        version: &'e str,
        /// From where.
        position: Position,
        /// The connection is encrypted.
        is_encrypted: bool,
    },
    /// It could not be found out from where on the server keeps its log for the slot: it is received from the server's position on, and
    /// what is before is missing.
    SlotUnread {
        /// The slot.
        slot: &'e str,
        /// Why.
        error: &'e SlotError,
    },
    /// The timeline ended, and another one goes on.
    Switched {
        /// The timeline that ended.
        from: Timeline,
        /// From where the other one is received.
        position: Position,
    },
    /// The server had removed WAL, and the log continues after the gap, which the archive records.
    Skipped {
        /// The first position that is missing.
        from: Lsn,
        /// Where the log continues.
        position: Position,
    },
    /// Nothing comes; it is tried again after this time.
    Interrupted {
        /// Why.
        error: &'e ReceiveError,
        /// After which time.
        pause: Duration,
    },
    /// The log could not be archived as it came, so that nothing is acknowledged; it is tried again after this time.
    NotStored {
        /// Why.
        error: &'e UploadError,
        /// After which time.
        pause: Duration,
    },
    /// A file was archived or not.
    Archived {
        /// Its name.
        name: &'e str,
        /// What became of it.
        result: &'e Result<Pushed, PushError>,
        /// Files that waited.
        waiting: usize,
    },
}

/// Takes what happened.
pub type Observer<'o> = &'o (dyn Fn(Event<'_>) + Sync);

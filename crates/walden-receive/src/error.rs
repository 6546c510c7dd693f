//! Errors of receiving WAL, and their remedies.

use std::io;

use walden_archive::ArchiveError;
use walden_archive::push::PushError;
use walden_format::fault::Fault;
use walden_format::lsn::{Lsn, Timeline};
use walden_format::version::UnreadableMagic;
use walden_postgres::replication::ReplicationError;

use crate::spool::SpoolError;

/// The cause as one word if the server has removed WAL that was not received yet.
pub(crate) const WAL_REMOVED: &str = "wal_removed";

/// Why no WAL is received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The server or the connection.
    #[error(transparent)]
    Server(#[from] ReplicationError),
    /// The server refuses the user, and has started no stream for this process before.
    #[error(transparent)]
    NotAllowed(ReplicationError),
    /// The slot that this process used before is still in use on the server.
    #[error(transparent)]
    StillInUse(ReplicationError),
    /// The server has removed WAL although a slot is used.
    #[error(transparent)]
    RemovedDespiteSlot(ReplicationError),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// A partial segment before an accepted gap.
    #[error("cannot archive a partial segment before the gap")]
    Partial(#[source] PushError),
    /// The archive.
    #[error("cannot use the archive")]
    Archive(#[from] ArchiveError),
    /// The spool is empty, and only copies of the archive that cannot be reached may have the newest
    /// acknowledged WAL.
    #[error(
        "cannot find out where the archived WAL ends: expected {needed} of {count} repositories, as one of so many has all acknowledged WAL, reached {reachable}; {}",
        problems.join("; ")
    )]
    Unreachable {
        /// Number of copies that were reached.
        reachable: usize,
        /// Number of copies.
        count: usize,
        /// Any so many copies include one with each acknowledged byte.
        needed: usize,
        /// The location and the problem of each other copy.
        problems: Vec<String>,
    },
    /// The server belongs to another cluster.
    #[error("the server belongs to another cluster: expected system identifier {expected}, found {found}")]
    OtherCluster {
        /// The archive's system identifier.
        expected: String,
        /// The server's.
        found: String,
    },
    /// The server's segment size differs from the archive's.
    #[error("the archive has segments of {}, the server has segments of {}", mb(*expected), mb(*found))]
    OtherSegmentSize {
        /// Bytes of the archive's segments.
        expected: u64,
        /// Bytes of the server's.
        found: u64,
    },
    /// The server's history forked from the received WAL before the end of that WAL.
    #[error(
        "the server's WAL does not continue the received WAL: expected timeline {timeline} or a descendant of it, found timeline {found}"
    )]
    OtherHistory {
        /// The timeline that was received.
        timeline: Timeline,
        /// The server's.
        found: Timeline,
    },
    /// The server's WAL ends before the received WAL.
    #[error(
        "the server's WAL ends at {server}, before the WAL that was received already, which ends at {received}"
    )]
    Behind {
        /// The end of the server's WAL.
        server: Lsn,
        /// The end of the received WAL, as far as it is requested again.
        received: Lsn,
    },
    /// The WAL is of a PostgreSQL version that Walden does not read.
    #[error("cannot receive the server's WAL: by its magic {magic:04X}, the page at {at} was {reason}")]
    UnknownVersion {
        /// The start of the page.
        at: Lsn,
        /// The page's magic.
        magic: u16,
        /// The version that writes it.
        reason: UnreadableMagic,
    },
    /// The received WAL is damaged.
    #[error("the received WAL is damaged at {}: expected {}, found {}", .0.at, .0.expected(), .0.found())]
    Damaged(Fault),
    /// The slot does not exist.
    #[error("the replication slot \"{0}\" does not exist")]
    NoSlot(String),
    /// The server has invalidated the slot, which therefore keeps no WAL.
    #[error("the server has invalidated the replication slot \"{0}\", which therefore keeps no WAL")]
    SlotLost(String),
    /// The server has sent nothing for too long.
    #[error("the server has sent nothing for {0} s")]
    Silent(u64),
    /// The operating system's.
    #[error("cannot start synchronising the spool")]
    System(#[from] io::Error),
}

/// Formats a segment size, which is a multiple of 1 MB.
fn mb(bytes: u64) -> String {
    format!("{} MB", bytes >> 20)
}

/// Remedy for a slot that keeps no WAL.
const SLOT_LOST: &str = "the slot was invalidated (max_slot_wal_keep_size, idle_replication_slot_timeout) or serves something else: see wal_status \
                         and invalidation_reason in pg_replication_slots. Restart walden receive with --create-slot, which replaces an invalidated \
                         slot. Then fill the gap with walden archive import, or continue after it with --accept-gap";

impl ReceiveError {
    /// Converts a fault in received WAL. After a page of a known version, a page of another version is
    /// damage.
    pub(crate) fn from_fault(fault: Fault, is_version_known: bool) -> ReceiveError {
        match fault.kind.unknown_version().filter(|_| !is_version_known) {
            Some((magic, reason)) => ReceiveError::UnknownVersion { at: fault.at, magic, reason },
            None => ReceiveError::Damaged(fault),
        }
    }

    /// Classifies a server's error by its context: whether a slot is used, and whether this process has
    /// received WAL before.
    pub(crate) fn in_context(self, has_slot: bool, has_streamed: bool) -> ReceiveError {
        let ReceiveError::Server(error) = self else { return self };
        match error.server_error().map(|error| error.code.as_str()) {
            // insufficient_privilege
            Some("42501") if !has_streamed => ReceiveError::NotAllowed(error),
            // object_in_use
            Some("55006") if has_streamed => ReceiveError::StillInUse(error),
            // undefined_file
            Some("58P01") if has_slot => ReceiveError::RemovedDespiteSlot(error),
            _ => ReceiveError::Server(error),
        }
    }

    /// Returns whether receiving could not start at all, for example because of wrong settings.
    pub fn is_of_beginning(&self) -> bool {
        matches!(self, ReceiveError::NotAllowed(_))
    }

    /// Returns whether another attempt cannot help, or could do harm.
    pub fn is_final(&self) -> bool {
        use ReceiveError::{
            NotAllowed, OtherCluster, OtherHistory, OtherSegmentSize, Server, UnknownVersion,
        };
        matches!(
            self,
            Server(ReplicationError::Parameters(_))
                | NotAllowed(_)
                | OtherCluster { .. }
                | OtherSegmentSize { .. }
                | OtherHistory { .. }
                | UnknownVersion { .. }
        )
    }
}

walden_format::diagnostics! { ReceiveError {
    // undefined_file
    Self::Server(ReplicationError::Server(error)) if error.code == "58P01" => "receive-wal-removed" as "wal_removed": "the server has removed WAL that is missing here. Import it from another copy (walden archive import, or push from the old server's pg_wal). If no copy exists, restart walden receive with --accept-gap, which continues with the oldest WAL that the server has and records the gap, and take a new base backup. A replication slot (--slot) keeps the server from removing WAL before it is received",
    // object_not_in_prerequisite_state
    Self::Server(ReplicationError::Server(error)) if error.code == "55000" => "receive-slot-lost" as "slot_lost": SLOT_LOST,
    // object_in_use
    Self::Server(ReplicationError::Server(error)) if error.code == "55006" => "receive-slot-in-use" as "slot_in_use": "another program receives with this slot; each needs one of its own",
    // undefined_object
    Self::Server(ReplicationError::Server(error)) if error.code == "42704" => "receive-no-slot" as "no_slot": "make the slot with --create-slot",
    // insufficient_privilege, invalid_authorization_specification, invalid_password
    Self::Server(ReplicationError::Server(error)) if ["42501", "28000", "28P01"].contains(&error.code.as_str()) => "receive-not-admitted" as "not_admitted": "the user needs the attribute REPLICATION and a line \"host replication USER ADDRESS scram-sha-256\" in pg_hba.conf",
    // too_many_connections
    Self::Server(ReplicationError::Server(error)) if error.code == "53300" => "receive-too-many-connections" as "too_many_connections": "raise max_wal_senders or end another receiver",
    // cannot_connect_now
    Self::Server(ReplicationError::Server(error)) if error.code == "57P03" => "receive-starting" as "starting": "the server starts or shuts down",
    Self::Server(error @ ReplicationError::Server(_)) => "receive-server" as "server": error.hint(),
    Self::Server(ReplicationError::Closed) => "receive-closed" as "closed",
    Self::Server(ReplicationError::Parameters(_)) => "receive-parameters" as "parameters": "see walden receive --help",
    Self::Server(ReplicationError::Tls { .. } | ReplicationError::Authentication { .. }) => "receive-not-admitted" as "not_admitted": "see \"Connections to servers\" in docs/archive-operations.md for passwords and certificates",
    Self::Server(_) => "receive-connection" as "connection",
    Self::NotAllowed(_) => "receive-not-admitted" as "not_admitted": "the user needs the attribute REPLICATION: ALTER ROLE ... REPLICATION",
    Self::StillInUse(_) => "receive-slot-in-use" as "slot_in_use": "this process used the slot before: if no other program uses it, the slot belongs to its own last connection, which the server ends after wal_sender_timeout without a message",
    Self::RemovedDespiteSlot(_) => "receive-wal-removed" as "wal_removed": "the server has removed WAL that is missing here, as the slot was made later or was lost (wal_status in pg_replication_slots, max_slot_wal_keep_size). Import it from another copy (walden archive import, or push from the old server's pg_wal). If no copy exists, restart walden receive with --accept-gap, which continues with the oldest WAL that the server has and records the gap, and take a new base backup",
    Self::Spool(error) => of(error),
    Self::Partial(_) => "receive-partial" as "partial": "the gap is not skipped before the archive has what the spool has of the segment in which it starts. If the archive has \
         another file of this name, move the partial segment out of the spool, where its WAL is kept",
    Self::Archive(error) => of(error),
    Self::Unreachable { .. } => "receive-unreachable" as "unreachable": "mount or connect one of these repositories: receiving then starts. If they are lost for good, restart walden receive once with --ignore-unreachable, which continues with the WAL of the others: WAL that only the lost ones had is requested from the server, and is missing if the server has removed it",
    Self::OtherCluster { .. } | Self::OtherSegmentSize { .. } => "receive-other-cluster" as "other_cluster": "give each cluster an archive and a spool of its own",
    Self::OtherHistory { .. } => "receive-other-history" as "other_history": "nothing was overwritten. This is an old primary that returned, or a standby that was promoted before it had all WAL: connect to the server that continues the received timeline",
    Self::NoSlot(_) => "receive-no-slot" as "no_slot": "make the slot with --create-slot",
    Self::SlotLost(_) => "receive-slot-lost" as "slot_lost": SLOT_LOST,
    Self::Behind { .. } => "receive-behind" as "behind": "a standby catches up on its own; a primary that was restored from an older state has lost the WAL that was received here: compare both before you continue, nothing was overwritten",
    Self::UnknownVersion { .. } => "receive-unknown-version" as "unknown_version": "nothing of it was acknowledged. Install a Walden that reads this version; until then, accept_unknown_versions = true in walden.toml (--accept-unknown-versions) receives and archives the WAL of a newer version as bytes, which are verified by their hash alone",
    Self::Damaged(_) => "receive-damaged" as "damaged": "it was not acknowledged and is requested again. If the error returns at the same place, the server's own WAL is damaged there (check with walden explain); else check the network and this machine's memory",
    Self::Silent(_) => "receive-silent" as "silent": "check the network and the server",
    Self::System(_) => "receive-system" as "system",
} }

#[cfg(test)]
mod tests {
    use walden_format::stream::StreamInfo;
    use walden_postgres::replication::ServerError;

    use super::*;

    #[test]
    fn another_size_of_segments_is_said_in_megabytes() {
        let error = ReceiveError::OtherSegmentSize { expected: 16 << 20, found: 64 << 20 };
        assert_eq!(error.to_string(), "the archive has segments of 16 MB, the server has segments of 64 MB");
        assert!(error.is_final() && error.cause() == "other_cluster");
    }

    #[test]
    fn a_servers_error_is_explained_by_what_was_before() {
        let of = |code: &str, has_slot, has_streamed| {
            let error = ServerError::with_code(code);
            ReceiveError::from(ReplicationError::Server(error)).in_context(has_slot, has_streamed)
        };
        let hint = |error: ReceiveError| error.hint().unwrap().into_owned();
        assert!(hint(of("55006", true, false)).contains("another program"));
        assert!(hint(of("55006", true, true)).contains("wal_sender_timeout"));
        assert!(hint(of("58P01", false, true)).contains("--slot"));
        assert!(!hint(of("58P01", true, true)).contains("--slot"));
        assert!(hint(of("08P01", true, false)).contains("pooler"));
        let refused = of("42501", true, false);
        assert!(refused.is_final() && refused.is_of_beginning());
        // An administrator has revoked the attribute, and may grant it again.
        let revoked = of("42501", true, true);
        assert!(!revoked.is_final() && !revoked.is_of_beginning());
    }

    #[test]
    fn a_version_that_is_not_read_is_named_and_ends_the_receiver() {
        for (magic, expected) in [
            (0xD1F0, "newer than 19"),
            (0xD115, "a development snapshot, a beta or a fork of PostgreSQL 17"),
            (0xD075, "PostgreSQL 9.3, which is too old"),
            (0x18D1, "PostgreSQL 18 on a big-endian machine"),
        ] {
            let page = [&u16::to_le_bytes(magic)[..], &[0; 8190]].concat();
            let kind = StreamInfo::from_first_page(&page).unwrap_err();
            let fault = Fault { lsn: Lsn(1 << 20), at: Lsn(1 << 20), kind };
            let error = ReceiveError::from_fault(fault, false);
            let text = error.to_string();
            assert!(text.contains("page at 0/00100000") && text.contains(expected), "{text}");
            assert!(error.is_final() && error.cause() == "unknown_version", "{text}");
            // After a page of a known version it is damage, which may be gone when the WAL is requested
            // again.
            let later = ReceiveError::from_fault(fault, true);
            assert!(!later.is_final() && later.cause() == "damaged", "{later}");
        }
    }

    #[test]
    fn a_log_in_another_order_has_a_hint() {
        let error = ReceiveError::from(SpoolError::Order { expected: Lsn(2), found: Lsn(1) });
        assert!(!error.is_final() && error.hint().is_some());
    }
}

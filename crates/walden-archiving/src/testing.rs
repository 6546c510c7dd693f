//! Helpers for tests of this module.

use walden_format::lsn::Lsn;
use walden_source::datadir::{ControlFile, DatabaseState, SharedSizes};

/// Returns a `pg_control` of a PostgreSQL 18 cluster on its first timeline, in the given state.
pub fn control_file(state: DatabaseState) -> ControlFile {
    ControlFile {
        system_identifier: 7,
        catalog_version: 202_506_291,
        state,
        checkpoint: Lsn(0x200_0060),
        redo: Lsn(0x200_0028),
        timeline: 1,
        checkpoint_time: 1_795_000_000,
        blocks_per_segment: 131_072,
        wal_segment_bytes: 16 << 20,
        data_checksum_version: 1,
        wal_log_hints: false,
        min_recovery_point: Lsn(0),
        track_commit_timestamp: false,
        sizes: SharedSizes {
            max_connections: 100,
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_transactions: 0,
            max_locks_per_transaction: 64,
        },
    }
}

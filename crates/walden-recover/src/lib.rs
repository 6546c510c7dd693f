//! Rolls a base backup of PostgreSQL forward without a server.
//!
//! [`Plan::make`] reads the WAL once, in parallel. It finds where recovery stops, chooses the last checkpoint
//! before that, and names the first record that Walden does not replay. [`Recovery::restore`] then copies the
//! backup, replays the WAL up to that checkpoint's redo pointer, and leaves the new data directory in the
//! state of a standby that was shut down at a restart point. PostgreSQL starts from it with
//! `recovery.signal` and `restore_command`, replays the remaining WAL, and stops at the target.
//!
//! # Up to which record
//!
//! Replay ends at the checkpoint's *redo pointer*, not at the checkpoint record. PostgreSQL starts to replay
//! at the redo pointer. Each record before it was replayed by Walden and each record from it on by
//! PostgreSQL, so no record is replayed twice: files that records after the redo pointer create, truncate or
//! drop are not in the state of a later moment. A restart point of PostgreSQL may contain later pages as
//! well; that is allowed but not required.
//!
//! The state is consistent at the redo pointer, as the end of the base backup is before it.
//! `minRecoveryPoint` is nevertheless the end of the checkpoint record, the least value that PostgreSQL
//! itself writes (`CreateRestartPoint`): it makes sure that the WAL with the checkpoint record is there
//! before the server accepts connections.
//!
//! # State that is replayed
//!
//! | State | How |
//! |---|---|
//! | pages of main, visibility map and init forks | exactly, by `walden-redo`; read from the base backup, and written in file order at the end |
//! | free space maps | full-page images are applied; a truncated relation loses its map. Wrong entries are corrected when they are used (`freespace.c`), and a missing map is built by the next vacuum |
//! | `pg_xact`, `pg_commit_ts`, `pg_multixact` | as `clog.c`, `commit_ts.c` and `multixact.c` replay them |
//! | `pg_subtrans`, `pg_notify`, `pg_serial`, `pg_snapshots` | empty: PostgreSQL initializes them when it starts |
//! | `pg_twophase` | state files of transactions that are prepared at the redo pointer, as a restart point writes them |
//! | `pg_logical` | progress of replication origins; mappings and snapshots are removed, as a restart point does without replication slots |
//! | files | created, truncated and dropped when their record is replayed |
//! | databases | created with both strategies, and dropped; for a copy, the source's pages are written first |
//! | relation maps, `pg_control` | as their records say |
//!
//! Several threads replay, each of them a share of the pages, with bounded memory: see `engine`.
#![forbid(unsafe_code)]

mod backup_folder;
mod base;
mod copy;
mod delta;
mod destination;
mod document;
mod duration;
mod early_drops;
mod engine;
mod error;
mod existing;
mod files;
mod folder_lock;
mod gate;
mod keep;
mod kept_tablespaces;
pub mod manifest;
mod originals;
mod overwritten;
mod plan;
mod private;
mod restore;
mod sample;
mod server_state;
mod settings;
mod slru;
mod support;
mod tablespaces;
pub mod tar_backup;
mod target;
mod transactions;
mod work_folder;

pub use backup_folder::{
    BackupFolder, ListedBackup, name_of as backup_name, parse_name as parse_backup_name,
};
pub use base::{BaseBackup, StreamedBackup, Tablespace};
pub use copy::{EMPTIED, LOGS};
pub use delta::DeltaAmounts;
pub use document::{CheckpointDocument, PartialDocument, PlanDocument, RestoredDocument};
pub use duration::{COPY_BYTES_PER_SECOND, ExpectedDuration};
pub use early_drops::{DropEvents, EarlyDrop};
pub use error::RecoverError;
pub use existing::ExistingDirectory;
pub use folder_lock::FolderLock;
pub use keep::{BackupDecision, KeepRule};
pub use plan::{CheckpointRecord, ChosenRun, LaterWal, Plan, UnreadPartial, choose_run, last_record};
pub use restore::{Purpose, Recovery, RestoreOptions, Restored, Step, keep_decoded};
pub use settings::{NewSettings, RaisedSetting};
pub use support::{Reason, Unsupported};
pub use tablespaces::{MappedTablespace, map_tablespaces, tablespaces_in};
pub use tar_backup::TarStreams;
pub use target::Target;
pub use work_folder::{
    MARK, WorkFolder, expect_free_target, is_unfinished_rename, partial_of, remove_leftover,
};

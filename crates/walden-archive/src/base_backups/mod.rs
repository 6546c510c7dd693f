//! Base backups in the archive.
//!
//! A base backup is stored as the tar archives that the server sends, cut into *pieces* (`cutter`). A piece
//! is an object with the BLAKE3 hash of its content in its key. A piece that the newest backup already has is
//! not stored again: the list of pieces names the backup in whose folder it is. So each backup is complete,
//! and stores only changed pieces.
//!
//! ```text
//! base/20261124T030000Z_2-3A000028/started.json      the backup is being made
//! base/20261124T030000Z_2-3A000028/HASH.zst          a piece
//! base/20261124T030000Z_2-3A000028/progress-000001.json.zst   stored pieces, until the backup exists
//! base/20261124T030000Z_2-3A000028/pieces.json.zst   the pieces of all tar archives in order
//! base/20261124T030000Z_2-3A000028/manifest.zst      backup_manifest
//! base/20261124T030000Z_2-3A000028/backup.json       written last: the backup exists
//! ```
//!
//! Pieces are removed only while no backup is being made, and after `backup.json` of all backups to which
//! they belong (`removal`). So a piece that a writer finds in an existing backup after it has stored
//! `started.json` stays until the writer has finished.

mod copying;
mod cutter;
mod documents;
mod error;
mod files;
mod folder;
mod in_progress;
mod inventory;
mod layout;
mod name;
mod pages;
mod progress;
mod reader;
mod removal;
mod started;
mod verify;
mod writer;

pub use copying::{CopiedBackups, copy, replace_damaged};
pub use cutter::cut_for_fuzzing;
pub use documents::{PieceList, StoredBackup};
pub use error::BaseBackupError;
pub use files::{BackupEnd, FileWriter, RangeContent, SmallFile, StoredPart};
pub use folder::store_folder;
pub use in_progress::NewBackup;
pub use inventory::{Inventory, Leftover, LeftoverState, Totals, find, names};
pub use layout::{FileRange, Layout, ListedArchive, ListedFile};
pub use name::BASE;
pub use pages::{FoundPages, PageRules};
pub use reader::{open, open_start};
pub use removal::{Removed, remove};
pub use verify::{VerifiedBackups, verify};
pub use walden_redo::PAGE_BYTES;
pub use writer::{Writer, WriterOptions, first_missing_segment};

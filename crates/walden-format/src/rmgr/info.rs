//! The contents of the info byte of a record's header, by resource manager.
//!
//! The upper four bits belong to the resource manager and contain the kind of record; the lower four belong
//! to record assembly (`XLR_*` in `access/xlogrecord.h`). The constants have PostgreSQL's names without their
//! prefix: `XLOG_HEAP_HOT_UPDATE` is [`heap::HOT_UPDATE`]. A number whose meaning differs between versions
//! has a name for each meaning; [`super::rows`] lists the versions of each kind.
//!
//! ```
//! use walden_format::rmgr::{info, rmid};
//!
//! /// Whether a record with this resource manager and info byte updates a heap tuple.
//! fn is_heap_update(rmid: u8, info: u8) -> bool {
//!     use info::heap::{HOT_UPDATE, OPMASK, UPDATE};
//!     rmid == rmid::HEAP && matches!(info & OPMASK, UPDATE | HOT_UPDATE)
//! }
//! assert!(is_heap_update(rmid::HEAP, info::heap::UPDATE | info::heap::INIT_PAGE));
//! ```
#![allow(missing_docs)]

/// The bits of the info byte that belong to the resource manager (`XLR_RMGR_INFO_MASK`).
pub const RMGR_MASK: u8 = 0xF0;

/// `XLOG_*` of `catalog/pg_control.h`.
pub mod xlog {
    pub const CHECKPOINT_SHUTDOWN: u8 = 0x00;
    pub const CHECKPOINT_ONLINE: u8 = 0x10;
    pub const NOOP: u8 = 0x20;
    pub const NEXTOID: u8 = 0x30;
    pub const SWITCH: u8 = 0x40;
    pub const BACKUP_END: u8 = 0x50;
    pub const PARAMETER_CHANGE: u8 = 0x60;
    pub const RESTORE_POINT: u8 = 0x70;
    pub const FPW_CHANGE: u8 = 0x80;
    pub const END_OF_RECOVERY: u8 = 0x90;
    pub const FPI_FOR_HINT: u8 = 0xA0;
    pub const FPI: u8 = 0xB0;
    /// Since 19.
    pub const ASSIGN_LSN: u8 = 0xC0;
    /// Since 9.6.
    pub const OVERWRITE_CONTRECORD: u8 = 0xD0;
    /// Since 17.
    pub const CHECKPOINT_REDO: u8 = 0xE0;
    /// Since 19.
    pub const LOGICAL_DECODING_STATUS_CHANGE: u8 = 0xF0;
}

/// `XLOG_XACT_*` of `access/xact.h`.
pub mod xact {
    /// The bits that hold the kind.
    pub const OPMASK: u8 = 0x70;
    /// The end of a transaction with a field `xinfo`, whose flags determine the fields that follow.
    pub const HAS_INFO: u8 = 0x80;
    pub const COMMIT: u8 = 0x00;
    pub const PREPARE: u8 = 0x10;
    pub const ABORT: u8 = 0x20;
    pub const COMMIT_PREPARED: u8 = 0x30;
    pub const ABORT_PREPARED: u8 = 0x40;
    pub const ASSIGNMENT: u8 = 0x50;
    /// Since 14.
    pub const INVALIDATION: u8 = 0x60;
}

/// `XLOG_SMGR_*` of `catalog/storage_xlog.h`.
pub mod smgr {
    pub const CREATE: u8 = 0x10;
    pub const TRUNCATE: u8 = 0x20;
}

/// `CLOG_*` of `access/clog.h`.
pub mod clog {
    pub const ZEROPAGE: u8 = 0x00;
    pub const TRUNCATE: u8 = 0x10;
}

/// `XLOG_DBASE_*` of `commands/dbcommands_xlog.h`.
pub mod dbase {
    /// Until 14.
    pub const CREATE: u8 = 0x00;
    /// Until 14.
    pub const DROP_UNTIL_14: u8 = 0x10;
    /// Since 15.
    pub const CREATE_FILE_COPY: u8 = 0x00;
    /// Since 15.
    pub const CREATE_WAL_LOG: u8 = 0x10;
    /// Since 15.
    pub const DROP: u8 = 0x20;
}

/// `XLOG_TBLSPC_*` of `commands/tablespace.h`.
pub mod tblspc {
    pub const CREATE: u8 = 0x00;
    pub const DROP: u8 = 0x10;
}

/// `XLOG_MULTIXACT_*` of `access/multixact.h`.
pub mod multixact {
    pub const ZERO_OFF_PAGE: u8 = 0x00;
    pub const ZERO_MEM_PAGE: u8 = 0x10;
    pub const CREATE_ID: u8 = 0x20;
    pub const TRUNCATE_ID: u8 = 0x30;
}

/// `XLOG_RELMAP_*` of `utils/relmapper.h`.
pub mod relmap {
    pub const UPDATE: u8 = 0x00;
}

/// `XLOG_*` of `storage/standbydefs.h`.
pub mod standby {
    pub const LOCK: u8 = 0x00;
    pub const RUNNING_XACTS: u8 = 0x10;
    /// Since 9.6.
    pub const INVALIDATIONS: u8 = 0x20;
}

/// `XLOG_HEAP2_*` of `access/heapam_xlog.h`.
pub mod heap2 {
    /// The bits that hold the kind, apart from [`INIT_PAGE`].
    pub const OPMASK: u8 = 0x70;
    /// Redo initializes the page of block 0 instead of reading it.
    pub const INIT_PAGE: u8 = 0x80;
    pub const REWRITE: u8 = 0x00;
    /// Until 13.
    pub const CLEAN: u8 = 0x10;
    /// Until 13.
    pub const FREEZE_PAGE_UNTIL_13: u8 = 0x20;
    /// Until 13.
    pub const CLEANUP_INFO: u8 = 0x30;
    /// From 14 to 16.
    pub const PRUNE: u8 = 0x10;
    /// From 14 to 16.
    pub const VACUUM: u8 = 0x20;
    /// From 14 to 16.
    pub const FREEZE_PAGE: u8 = 0x30;
    /// Since 17.
    pub const PRUNE_ON_ACCESS: u8 = 0x10;
    /// Since 17.
    pub const PRUNE_VACUUM_SCAN: u8 = 0x20;
    /// Since 17.
    pub const PRUNE_VACUUM_CLEANUP: u8 = 0x30;
    /// Until 18.
    pub const VISIBLE: u8 = 0x40;
    pub const MULTI_INSERT: u8 = 0x50;
    pub const LOCK_UPDATED: u8 = 0x60;
    pub const NEW_CID: u8 = 0x70;
}

/// `XLOG_HEAP_*` of `access/heapam_xlog.h`.
pub mod heap {
    /// The bits that hold the kind, apart from [`INIT_PAGE`].
    pub const OPMASK: u8 = 0x70;
    /// Redo initializes the page of block 0 instead of reading it.
    pub const INIT_PAGE: u8 = 0x80;
    pub const INSERT: u8 = 0x00;
    pub const DELETE: u8 = 0x10;
    pub const UPDATE: u8 = 0x20;
    /// Since 11.
    pub const TRUNCATE: u8 = 0x30;
    pub const HOT_UPDATE: u8 = 0x40;
    pub const CONFIRM: u8 = 0x50;
    pub const LOCK: u8 = 0x60;
    pub const INPLACE: u8 = 0x70;
}

/// `XLOG_BTREE_*` of `access/nbtxlog.h`.
pub mod btree {
    pub const INSERT_LEAF: u8 = 0x00;
    pub const INSERT_UPPER: u8 = 0x10;
    pub const INSERT_META: u8 = 0x20;
    pub const SPLIT_L: u8 = 0x30;
    pub const SPLIT_R: u8 = 0x40;
    /// Until 10.
    pub const SPLIT_L_ROOT: u8 = 0x50;
    /// Until 10.
    pub const SPLIT_R_ROOT: u8 = 0x60;
    /// Only in 11.
    pub const SPLIT_L_HIGHKEY: u8 = 0x50;
    /// Only in 11.
    pub const SPLIT_R_HIGHKEY: u8 = 0x60;
    /// Since 13.
    pub const INSERT_POST: u8 = 0x50;
    /// Since 13.
    pub const DEDUP: u8 = 0x60;
    pub const DELETE: u8 = 0x70;
    pub const UNLINK_PAGE: u8 = 0x80;
    pub const UNLINK_PAGE_META: u8 = 0x90;
    pub const NEWROOT: u8 = 0xA0;
    pub const MARK_PAGE_HALFDEAD: u8 = 0xB0;
    pub const VACUUM: u8 = 0xC0;
    pub const REUSE_PAGE: u8 = 0xD0;
    /// Since 11.
    pub const META_CLEANUP: u8 = 0xE0;
}

/// `XLOG_HASH_*` of `access/hash_xlog.h`.
pub mod hash {
    /// Since 10.
    pub const INIT_META_PAGE: u8 = 0x00;
    /// Since 10.
    pub const INIT_BITMAP_PAGE: u8 = 0x10;
    /// Since 10.
    pub const INSERT: u8 = 0x20;
    /// Since 10.
    pub const ADD_OVFL_PAGE: u8 = 0x30;
    /// Since 10.
    pub const SPLIT_ALLOCATE_PAGE: u8 = 0x40;
    /// Since 10.
    pub const SPLIT_PAGE: u8 = 0x50;
    /// Since 10.
    pub const SPLIT_COMPLETE: u8 = 0x60;
    /// Since 10.
    pub const MOVE_PAGE_CONTENTS: u8 = 0x70;
    /// Since 10.
    pub const SQUEEZE_PAGE: u8 = 0x80;
    /// Since 10.
    pub const DELETE: u8 = 0x90;
    /// Since 10.
    pub const SPLIT_CLEANUP: u8 = 0xA0;
    /// Since 10.
    pub const UPDATE_META_PAGE: u8 = 0xB0;
    /// Since 10.
    pub const VACUUM_ONE_PAGE: u8 = 0xC0;
}

/// `XLOG_GIN_*` of `access/ginxlog.h`.
pub mod gin {
    /// Until 11.
    pub const CREATE_INDEX: u8 = 0x00;
    pub const CREATE_PTREE: u8 = 0x10;
    pub const INSERT: u8 = 0x20;
    pub const SPLIT: u8 = 0x30;
    pub const VACUUM_PAGE: u8 = 0x40;
    pub const DELETE_PAGE: u8 = 0x50;
    pub const UPDATE_META_PAGE: u8 = 0x60;
    pub const INSERT_LISTPAGE: u8 = 0x70;
    pub const DELETE_LISTPAGE: u8 = 0x80;
    pub const VACUUM_DATA_LEAF_PAGE: u8 = 0x90;
}

/// `XLOG_GIST_*` of `access/gistxlog.h`.
pub mod gist {
    pub const PAGE_UPDATE: u8 = 0x00;
    /// Since 12.
    pub const DELETE: u8 = 0x10;
    /// Since 12.
    pub const PAGE_REUSE: u8 = 0x20;
    pub const PAGE_SPLIT: u8 = 0x30;
    /// Until 11.
    pub const CREATE_INDEX: u8 = 0x50;
    /// Since 12.
    pub const PAGE_DELETE: u8 = 0x60;
    /// From 13 to 18.
    pub const ASSIGN_LSN: u8 = 0x70;
}

/// `XLOG_SEQ_*` of `commands/sequence.h`, since 19 of `commands/sequence_xlog.h`.
pub mod seq {
    pub const LOG: u8 = 0x00;
}

/// `XLOG_SPGIST_*` of `access/spgxlog.h`.
pub mod spgist {
    /// Until 11.
    pub const CREATE_INDEX: u8 = 0x00;
    pub const ADD_LEAF: u8 = 0x10;
    pub const MOVE_LEAFS: u8 = 0x20;
    pub const ADD_NODE: u8 = 0x30;
    pub const SPLIT_TUPLE: u8 = 0x40;
    pub const PICKSPLIT: u8 = 0x50;
    pub const VACUUM_LEAF: u8 = 0x60;
    pub const VACUUM_ROOT: u8 = 0x70;
    pub const VACUUM_REDIRECT: u8 = 0x80;
}

/// `XLOG_BRIN_*` of `access/brin_xlog.h`.
pub mod brin {
    /// The bits that hold the kind, apart from [`INIT_PAGE`].
    pub const OPMASK: u8 = 0x70;
    /// Redo initializes the page of block 0 instead of reading it.
    pub const INIT_PAGE: u8 = 0x80;
    pub const CREATE_INDEX: u8 = 0x00;
    pub const INSERT: u8 = 0x10;
    pub const UPDATE: u8 = 0x20;
    pub const SAMEPAGE_UPDATE: u8 = 0x30;
    pub const REVMAP_EXTEND: u8 = 0x40;
    /// Since 10.
    pub const DESUMMARIZE: u8 = 0x50;
}

/// `COMMIT_TS_*` of `access/commit_ts.h`.
pub mod commit_ts {
    pub const ZEROPAGE: u8 = 0x00;
    pub const TRUNCATE: u8 = 0x10;
    /// Until 13.
    pub const SETTS: u8 = 0x20;
}

/// `XLOG_REPLORIGIN_*` of `replication/origin.h`.
pub mod replorigin {
    pub const SET: u8 = 0x00;
    pub const DROP: u8 = 0x10;
}

/// `XLOG_LOGICAL_*` of `replication/message.h`.
pub mod logicalmsg {
    /// Since 9.6.
    pub const MESSAGE: u8 = 0x00;
}

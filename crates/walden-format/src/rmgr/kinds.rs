//! The table of record kinds.

use super::{Images, KindRow, info, rmid};
use crate::version::Major::{self, V9_6, V10, V11, V12, V13, V14, V15, V16, V17, V18, V19};

/// All kinds of all versions, by resource manager.
#[rustfmt::skip]
pub(crate) const KINDS: &[KindRow] = &[
    kind(rmid::XLOG, info::xlog::CHECKPOINT_SHUTDOWN, "CHECKPOINT_SHUTDOWN"),
    kind(rmid::XLOG, info::xlog::CHECKPOINT_ONLINE, "CHECKPOINT_ONLINE"),
    kind(rmid::XLOG, info::xlog::NOOP, "NOOP"),
    kind(rmid::XLOG, info::xlog::NEXTOID, "NEXTOID"),
    kind(rmid::XLOG, info::xlog::SWITCH, "SWITCH"),
    kind(rmid::XLOG, info::xlog::BACKUP_END, "BACKUP_END"),
    kind(rmid::XLOG, info::xlog::PARAMETER_CHANGE, "PARAMETER_CHANGE"),
    kind(rmid::XLOG, info::xlog::RESTORE_POINT, "RESTORE_POINT"),
    kind(rmid::XLOG, info::xlog::FPW_CHANGE, "FPW_CHANGE"),
    kind(rmid::XLOG, info::xlog::END_OF_RECOVERY, "END_OF_RECOVERY"),
    // Until 14, XLogSaveBufferForHint() writes an image even with full_page_writes off.
    kind(rmid::XLOG, info::xlog::FPI_FOR_HINT, "FPI_FOR_HINT").images(Images::Hint),
    // log_newpage() and related functions.
    kind(rmid::XLOG, info::xlog::FPI, "FPI").images(Images::Forced(ALL_BLOCKS)),
    kind(rmid::XLOG, info::xlog::ASSIGN_LSN, "ASSIGN_LSN").since(V19),
    // Introduced by minor releases in 2021.
    kind(rmid::XLOG, info::xlog::OVERWRITE_CONTRECORD, "OVERWRITE_CONTRECORD").since(V9_6),
    kind(rmid::XLOG, info::xlog::CHECKPOINT_REDO, "CHECKPOINT_REDO").since(V17),
    kind(rmid::XLOG, info::xlog::LOGICAL_DECODING_STATUS_CHANGE, "LOGICAL_DECODING_STATUS_CHANGE").since(V19),

    kind(rmid::XACT, info::xact::COMMIT, "COMMIT"),
    kind(rmid::XACT, info::xact::PREPARE, "PREPARE"),
    kind(rmid::XACT, info::xact::ABORT, "ABORT"),
    kind(rmid::XACT, info::xact::COMMIT_PREPARED, "COMMIT_PREPARED"),
    kind(rmid::XACT, info::xact::ABORT_PREPARED, "ABORT_PREPARED"),
    kind(rmid::XACT, info::xact::ASSIGNMENT, "ASSIGNMENT"),
    kind(rmid::XACT, info::xact::INVALIDATION, "INVALIDATION").since(V14),

    kind(rmid::SMGR, info::smgr::CREATE, "CREATE"),
    kind(rmid::SMGR, info::smgr::TRUNCATE, "TRUNCATE"),

    kind(rmid::CLOG, info::clog::ZEROPAGE, "ZEROPAGE"),
    kind(rmid::CLOG, info::clog::TRUNCATE, "TRUNCATE"),

    kind(rmid::DBASE, info::dbase::CREATE, "CREATE").until(V14),
    kind(rmid::DBASE, info::dbase::DROP_UNTIL_14, "DROP").until(V14),
    kind(rmid::DBASE, info::dbase::CREATE_FILE_COPY, "CREATE_FILE_COPY").since(V15),
    kind(rmid::DBASE, info::dbase::CREATE_WAL_LOG, "CREATE_WAL_LOG").since(V15),
    kind(rmid::DBASE, info::dbase::DROP, "DROP").since(V15),

    kind(rmid::TBLSPC, info::tblspc::CREATE, "CREATE"),
    kind(rmid::TBLSPC, info::tblspc::DROP, "DROP"),

    kind(rmid::MULTIXACT, info::multixact::ZERO_OFF_PAGE, "ZERO_OFF_PAGE"),
    kind(rmid::MULTIXACT, info::multixact::ZERO_MEM_PAGE, "ZERO_MEM_PAGE"),
    kind(rmid::MULTIXACT, info::multixact::CREATE_ID, "CREATE_ID"),
    kind(rmid::MULTIXACT, info::multixact::TRUNCATE_ID, "TRUNCATE_ID"),

    kind(rmid::RELMAP, info::relmap::UPDATE, "UPDATE"),

    kind(rmid::STANDBY, info::standby::LOCK, "LOCK"),
    kind(rmid::STANDBY, info::standby::RUNNING_XACTS, "RUNNING_XACTS"),
    kind(rmid::STANDBY, info::standby::INVALIDATIONS, "INVALIDATIONS").since(V9_6),

    kind(rmid::HEAP2, info::heap2::REWRITE, "REWRITE"),
    kind(rmid::HEAP2, info::heap2::CLEAN, "CLEAN").until(V13),
    kind(rmid::HEAP2, info::heap2::FREEZE_PAGE_UNTIL_13, "FREEZE_PAGE").until(V13),
    kind(rmid::HEAP2, info::heap2::CLEANUP_INFO, "CLEANUP_INFO").until(V13),
    kind(rmid::HEAP2, info::heap2::PRUNE, "PRUNE").since(V14).until(V16),
    kind(rmid::HEAP2, info::heap2::VACUUM, "VACUUM").since(V14).until(V16),
    kind(rmid::HEAP2, info::heap2::FREEZE_PAGE, "FREEZE_PAGE").since(V14).until(V16),
    kind(rmid::HEAP2, info::heap2::PRUNE_ON_ACCESS, "PRUNE_ON_ACCESS").since(V17),
    kind(rmid::HEAP2, info::heap2::PRUNE_VACUUM_SCAN, "PRUNE_VACUUM_SCAN").since(V17),
    kind(rmid::HEAP2, info::heap2::PRUNE_VACUUM_CLEANUP, "PRUNE_VACUUM_CLEANUP").since(V17),
    kind(rmid::HEAP2, info::heap2::VISIBLE, "VISIBLE").until(V18),
    kind(rmid::HEAP2, info::heap2::MULTI_INSERT, "MULTI_INSERT"),
    kind(rmid::HEAP2, info::heap2::MULTI_INSERT | info::heap2::INIT_PAGE, "MULTI_INSERT+INIT"),
    kind(rmid::HEAP2, info::heap2::LOCK_UPDATED, "LOCK_UPDATED"),
    kind(rmid::HEAP2, info::heap2::NEW_CID, "NEW_CID"),

    kind(rmid::HEAP, info::heap::INSERT, "INSERT"),
    kind(rmid::HEAP, info::heap::INSERT | info::heap::INIT_PAGE, "INSERT+INIT"),
    kind(rmid::HEAP, info::heap::DELETE, "DELETE"),
    kind(rmid::HEAP, info::heap::UPDATE, "UPDATE"),
    kind(rmid::HEAP, info::heap::UPDATE | info::heap::INIT_PAGE, "UPDATE+INIT"),
    kind(rmid::HEAP, info::heap::TRUNCATE, "TRUNCATE").since(V11),
    kind(rmid::HEAP, info::heap::HOT_UPDATE, "HOT_UPDATE"),
    kind(rmid::HEAP, info::heap::HOT_UPDATE | info::heap::INIT_PAGE, "HOT_UPDATE+INIT"),
    kind(rmid::HEAP, info::heap::CONFIRM, "HEAP_CONFIRM"),
    kind(rmid::HEAP, info::heap::LOCK, "LOCK"),
    kind(rmid::HEAP, info::heap::INPLACE, "INPLACE"),

    kind(rmid::BTREE, info::btree::INSERT_LEAF, "INSERT_LEAF"),
    kind(rmid::BTREE, info::btree::INSERT_UPPER, "INSERT_UPPER"),
    kind(rmid::BTREE, info::btree::INSERT_META, "INSERT_META"),
    kind(rmid::BTREE, info::btree::SPLIT_L, "SPLIT_L"),
    kind(rmid::BTREE, info::btree::SPLIT_R, "SPLIT_R"),
    kind(rmid::BTREE, info::btree::SPLIT_L_ROOT, "SPLIT_L_ROOT").until(V10),
    kind(rmid::BTREE, info::btree::SPLIT_R_ROOT, "SPLIT_R_ROOT").until(V10),
    kind(rmid::BTREE, info::btree::SPLIT_L_HIGHKEY, "SPLIT_L_HIGHKEY").since(V11).until(V11),
    kind(rmid::BTREE, info::btree::SPLIT_R_HIGHKEY, "SPLIT_R_HIGHKEY").since(V11).until(V11),
    kind(rmid::BTREE, info::btree::INSERT_POST, "INSERT_POST").since(V13),
    kind(rmid::BTREE, info::btree::DEDUP, "DEDUP").since(V13),
    kind(rmid::BTREE, info::btree::DELETE, "DELETE"),
    kind(rmid::BTREE, info::btree::UNLINK_PAGE, "UNLINK_PAGE"),
    kind(rmid::BTREE, info::btree::UNLINK_PAGE_META, "UNLINK_PAGE_META"),
    kind(rmid::BTREE, info::btree::NEWROOT, "NEWROOT"),
    kind(rmid::BTREE, info::btree::MARK_PAGE_HALFDEAD, "MARK_PAGE_HALFDEAD"),
    kind(rmid::BTREE, info::btree::VACUUM, "VACUUM"),
    kind(rmid::BTREE, info::btree::REUSE_PAGE, "REUSE_PAGE"),
    kind(rmid::BTREE, info::btree::META_CLEANUP, "META_CLEANUP").since(V11),

    kind(rmid::HASH, info::hash::INIT_META_PAGE, "INIT_META_PAGE").since(V10),
    kind(rmid::HASH, info::hash::INIT_BITMAP_PAGE, "INIT_BITMAP_PAGE").since(V10),
    kind(rmid::HASH, info::hash::INSERT, "INSERT").since(V10),
    kind(rmid::HASH, info::hash::ADD_OVFL_PAGE, "ADD_OVFL_PAGE").since(V10),
    kind(rmid::HASH, info::hash::SPLIT_ALLOCATE_PAGE, "SPLIT_ALLOCATE_PAGE").since(V10),
    // log_split_page()
    kind(rmid::HASH, info::hash::SPLIT_PAGE, "SPLIT_PAGE").since(V10).images(Images::Forced(0b1)),
    kind(rmid::HASH, info::hash::SPLIT_COMPLETE, "SPLIT_COMPLETE").since(V10),
    kind(rmid::HASH, info::hash::MOVE_PAGE_CONTENTS, "MOVE_PAGE_CONTENTS").since(V10),
    kind(rmid::HASH, info::hash::SQUEEZE_PAGE, "SQUEEZE_PAGE").since(V10),
    kind(rmid::HASH, info::hash::DELETE, "DELETE").since(V10),
    kind(rmid::HASH, info::hash::SPLIT_CLEANUP, "SPLIT_CLEANUP").since(V10),
    kind(rmid::HASH, info::hash::UPDATE_META_PAGE, "UPDATE_META_PAGE").since(V10),
    kind(rmid::HASH, info::hash::VACUUM_ONE_PAGE, "VACUUM_ONE_PAGE").since(V10),

    kind(rmid::GIN, info::gin::CREATE_INDEX, "CREATE_INDEX").until(V11),
    kind(rmid::GIN, info::gin::CREATE_PTREE, "CREATE_PTREE"),
    kind(rmid::GIN, info::gin::INSERT, "INSERT"),
    // ginPlaceToPage() forces the two or three split pages; block 3 is the child whose flag is cleared.
    kind(rmid::GIN, info::gin::SPLIT, "SPLIT").images(Images::Forced(0b111)),
    // xlogVacuumPage()
    kind(rmid::GIN, info::gin::VACUUM_PAGE, "VACUUM_PAGE").images(Images::Forced(0b1)),
    kind(rmid::GIN, info::gin::DELETE_PAGE, "DELETE_PAGE"),
    kind(rmid::GIN, info::gin::UPDATE_META_PAGE, "UPDATE_META_PAGE"),
    kind(rmid::GIN, info::gin::INSERT_LISTPAGE, "INSERT_LISTPAGE"),
    kind(rmid::GIN, info::gin::DELETE_LISTPAGE, "DELETE_LISTPAGE"),
    kind(rmid::GIN, info::gin::VACUUM_DATA_LEAF_PAGE, "VACUUM_DATA_LEAF_PAGE"),

    kind(rmid::GIST, info::gist::PAGE_UPDATE, "PAGE_UPDATE"),
    kind(rmid::GIST, info::gist::DELETE, "DELETE").since(V12),
    kind(rmid::GIST, info::gist::PAGE_REUSE, "PAGE_REUSE").since(V12),
    kind(rmid::GIST, info::gist::PAGE_SPLIT, "PAGE_SPLIT"),
    kind(rmid::GIST, info::gist::CREATE_INDEX, "CREATE_INDEX").until(V11),
    kind(rmid::GIST, info::gist::PAGE_DELETE, "PAGE_DELETE").since(V12),
    kind(rmid::GIST, info::gist::ASSIGN_LSN, "ASSIGN_LSN").since(V13).until(V18),

    kind(rmid::SEQ, info::seq::LOG, "LOG"),

    kind(rmid::SPGIST, info::spgist::CREATE_INDEX, "CREATE_INDEX").until(V11),
    kind(rmid::SPGIST, info::spgist::ADD_LEAF, "ADD_LEAF"),
    kind(rmid::SPGIST, info::spgist::MOVE_LEAFS, "MOVE_LEAFS"),
    kind(rmid::SPGIST, info::spgist::ADD_NODE, "ADD_NODE"),
    kind(rmid::SPGIST, info::spgist::SPLIT_TUPLE, "SPLIT_TUPLE"),
    kind(rmid::SPGIST, info::spgist::PICKSPLIT, "PICKSPLIT"),
    kind(rmid::SPGIST, info::spgist::VACUUM_LEAF, "VACUUM_LEAF"),
    kind(rmid::SPGIST, info::spgist::VACUUM_ROOT, "VACUUM_ROOT"),
    kind(rmid::SPGIST, info::spgist::VACUUM_REDIRECT, "VACUUM_REDIRECT"),

    kind(rmid::BRIN, info::brin::CREATE_INDEX, "CREATE_INDEX"),
    kind(rmid::BRIN, info::brin::INSERT, "INSERT"),
    kind(rmid::BRIN, info::brin::INSERT | info::brin::INIT_PAGE, "INSERT+INIT"),
    kind(rmid::BRIN, info::brin::UPDATE, "UPDATE"),
    kind(rmid::BRIN, info::brin::UPDATE | info::brin::INIT_PAGE, "UPDATE+INIT"),
    kind(rmid::BRIN, info::brin::SAMEPAGE_UPDATE, "SAMEPAGE_UPDATE"),
    kind(rmid::BRIN, info::brin::REVMAP_EXTEND, "REVMAP_EXTEND"),
    kind(rmid::BRIN, info::brin::DESUMMARIZE, "DESUMMARIZE").since(V10),

    kind(rmid::COMMIT_TS, info::commit_ts::ZEROPAGE, "ZEROPAGE"),
    kind(rmid::COMMIT_TS, info::commit_ts::TRUNCATE, "TRUNCATE"),
    kind(rmid::COMMIT_TS, info::commit_ts::SETTS, "SETTS").until(V13),

    kind(rmid::REPLORIGIN, info::replorigin::SET, "SET"),
    kind(rmid::REPLORIGIN, info::replorigin::DROP, "DROP"),

    kind(rmid::GENERIC, 0x00, "Generic").since(V9_6),

    kind(rmid::LOGICALMSG, info::logicalmsg::MESSAGE, "MESSAGE").since(V9_6),

];

/// Blocks 0 to 32.
const ALL_BLOCKS: u64 = (1 << 33) - 1;

const fn kind(rmid: u8, info: u8, name: &'static str) -> KindRow {
    KindRow { rmid, info, name, since: Major::V9_5, until: None, images: Images::Ordinary }
}

//! The table of record kinds.

use super::{Images, KindRow, info, rmid};
use crate::payload::{
    Decode, btree, dbase, heap, multixact, origin, relmap, seq, slru, smgr, standby, xact, xlog,
};
use crate::version::Major::{self, V9_6, V10, V11, V12, V13, V14, V15, V16, V17, V18, V19};

/// Every kind of every version, by resource manager.
#[rustfmt::skip]
pub(super) const KINDS: &[KindRow] = &[
    read(rmid::XLOG, info::xlog::CHECKPOINT_SHUTDOWN, "CHECKPOINT_SHUTDOWN", xlog::checkpoint),
    read(rmid::XLOG, info::xlog::CHECKPOINT_ONLINE, "CHECKPOINT_ONLINE", xlog::checkpoint),
    opaque(rmid::XLOG, info::xlog::NOOP, "NOOP"),
    read(rmid::XLOG, info::xlog::NEXTOID, "NEXTOID", xlog::next_oid),
    read(rmid::XLOG, info::xlog::SWITCH, "SWITCH", xlog::nothing),
    read(rmid::XLOG, info::xlog::BACKUP_END, "BACKUP_END", xlog::backup_end),
    read(rmid::XLOG, info::xlog::PARAMETER_CHANGE, "PARAMETER_CHANGE", xlog::parameter_change),
    read(rmid::XLOG, info::xlog::RESTORE_POINT, "RESTORE_POINT", xlog::restore_point),
    read(rmid::XLOG, info::xlog::FPW_CHANGE, "FPW_CHANGE", xlog::full_page_writes_change),
    read(rmid::XLOG, info::xlog::END_OF_RECOVERY, "END_OF_RECOVERY", xlog::end_of_recovery),
    // Until 14 full_page_writes did not keep XLogSaveBufferForHint() from writing an image.
    read(rmid::XLOG, info::xlog::FPI_FOR_HINT, "FPI_FOR_HINT", xlog::nothing).images(Images::Hint),
    // log_newpage() and its like.
    read(rmid::XLOG, info::xlog::FPI, "FPI", xlog::nothing).images(Images::Forced(ALL_BLOCKS)),
    read(rmid::XLOG, info::xlog::ASSIGN_LSN, "ASSIGN_LSN", xlog::dummy).since(V19),
    // Came with minor releases of 2021.
    read(rmid::XLOG, info::xlog::OVERWRITE_CONTRECORD, "OVERWRITE_CONTRECORD", xlog::overwrite_contrecord).since(V9_6),
    read(rmid::XLOG, info::xlog::CHECKPOINT_REDO, "CHECKPOINT_REDO", xlog::checkpoint_redo).since(V17),
    read(rmid::XLOG, info::xlog::LOGICAL_DECODING_STATUS_CHANGE, "LOGICAL_DECODING_STATUS_CHANGE", xlog::logical_decoding_status_change).since(V19),

    read(rmid::XACT, info::xact::COMMIT, "COMMIT", xact::commit),
    read(rmid::XACT, info::xact::PREPARE, "PREPARE", xact::prepare),
    read(rmid::XACT, info::xact::ABORT, "ABORT", xact::abort),
    read(rmid::XACT, info::xact::COMMIT_PREPARED, "COMMIT_PREPARED", xact::commit),
    read(rmid::XACT, info::xact::ABORT_PREPARED, "ABORT_PREPARED", xact::abort),
    read(rmid::XACT, info::xact::ASSIGNMENT, "ASSIGNMENT", xact::assignment),
    read(rmid::XACT, info::xact::INVALIDATION, "INVALIDATION", xact::invalidations).since(V14),

    read(rmid::SMGR, info::smgr::CREATE, "CREATE", smgr::create),
    read(rmid::SMGR, info::smgr::TRUNCATE, "TRUNCATE", smgr::truncate),

    read(rmid::CLOG, info::clog::ZEROPAGE, "ZEROPAGE", slru::zero_page),
    read(rmid::CLOG, info::clog::TRUNCATE, "TRUNCATE", slru::clog_truncate),

    read(rmid::DBASE, info::dbase::CREATE, "CREATE", dbase::create).until(V14),
    read(rmid::DBASE, info::dbase::DROP_UNTIL_14, "DROP", dbase::drop).until(V14),
    read(rmid::DBASE, info::dbase::CREATE_FILE_COPY, "CREATE_FILE_COPY", dbase::create).since(V15),
    read(rmid::DBASE, info::dbase::CREATE_WAL_LOG, "CREATE_WAL_LOG", dbase::create_wal_log).since(V15),
    read(rmid::DBASE, info::dbase::DROP, "DROP", dbase::drop).since(V15),

    read(rmid::TBLSPC, info::tblspc::CREATE, "CREATE", dbase::tablespace_create),
    read(rmid::TBLSPC, info::tblspc::DROP, "DROP", dbase::tablespace_drop),

    read(rmid::MULTIXACT, info::multixact::ZERO_OFF_PAGE, "ZERO_OFF_PAGE", slru::zero_page),
    read(rmid::MULTIXACT, info::multixact::ZERO_MEM_PAGE, "ZERO_MEM_PAGE", slru::zero_page),
    read(rmid::MULTIXACT, info::multixact::CREATE_ID, "CREATE_ID", multixact::create),
    read(rmid::MULTIXACT, info::multixact::TRUNCATE_ID, "TRUNCATE_ID", multixact::truncate),

    read(rmid::RELMAP, info::relmap::UPDATE, "UPDATE", relmap::update),

    read(rmid::STANDBY, info::standby::LOCK, "LOCK", standby::lock),
    read(rmid::STANDBY, info::standby::RUNNING_XACTS, "RUNNING_XACTS", standby::running_xacts),
    read(rmid::STANDBY, info::standby::INVALIDATIONS, "INVALIDATIONS", standby::invalidations).since(V9_6),

    read(rmid::HEAP2, info::heap2::REWRITE, "REWRITE", heap::rewrite),
    read(rmid::HEAP2, info::heap2::CLEAN, "CLEAN", heap::clean).until(V13),
    read(rmid::HEAP2, info::heap2::FREEZE_PAGE_UNTIL_13, "FREEZE_PAGE", heap::freeze_page).until(V13),
    read(rmid::HEAP2, info::heap2::CLEANUP_INFO, "CLEANUP_INFO", heap::cleanup_info).until(V13),
    read(rmid::HEAP2, info::heap2::PRUNE, "PRUNE", heap::clean).since(V14).until(V16),
    read(rmid::HEAP2, info::heap2::VACUUM, "VACUUM", heap::vacuum).since(V14).until(V16),
    read(rmid::HEAP2, info::heap2::FREEZE_PAGE, "FREEZE_PAGE", heap::freeze_page).since(V14).until(V16),
    read(rmid::HEAP2, info::heap2::PRUNE_ON_ACCESS, "PRUNE_ON_ACCESS", heap::prune).since(V17),
    read(rmid::HEAP2, info::heap2::PRUNE_VACUUM_SCAN, "PRUNE_VACUUM_SCAN", heap::prune).since(V17),
    read(rmid::HEAP2, info::heap2::PRUNE_VACUUM_CLEANUP, "PRUNE_VACUUM_CLEANUP", heap::prune).since(V17),
    read(rmid::HEAP2, info::heap2::VISIBLE, "VISIBLE", heap::visible).until(V18),
    read(rmid::HEAP2, info::heap2::MULTI_INSERT, "MULTI_INSERT", heap::multi_insert),
    read(rmid::HEAP2, info::heap2::MULTI_INSERT | info::heap2::INIT_PAGE, "MULTI_INSERT+INIT", heap::multi_insert),
    read(rmid::HEAP2, info::heap2::LOCK_UPDATED, "LOCK_UPDATED", heap::lock_updated),
    read(rmid::HEAP2, info::heap2::NEW_CID, "NEW_CID", heap::new_cid),

    read(rmid::HEAP, info::heap::INSERT, "INSERT", heap::insert),
    read(rmid::HEAP, info::heap::INSERT | info::heap::INIT_PAGE, "INSERT+INIT", heap::insert),
    read(rmid::HEAP, info::heap::DELETE, "DELETE", heap::delete),
    read(rmid::HEAP, info::heap::UPDATE, "UPDATE", heap::update),
    read(rmid::HEAP, info::heap::UPDATE | info::heap::INIT_PAGE, "UPDATE+INIT", heap::update),
    read(rmid::HEAP, info::heap::TRUNCATE, "TRUNCATE", heap::truncate).since(V11),
    read(rmid::HEAP, info::heap::HOT_UPDATE, "HOT_UPDATE", heap::hot_update),
    read(rmid::HEAP, info::heap::HOT_UPDATE | info::heap::INIT_PAGE, "HOT_UPDATE+INIT", heap::hot_update),
    read(rmid::HEAP, info::heap::CONFIRM, "HEAP_CONFIRM", heap::confirm),
    read(rmid::HEAP, info::heap::LOCK, "LOCK", heap::lock),
    read(rmid::HEAP, info::heap::INPLACE, "INPLACE", heap::inplace),

    read(rmid::BTREE, info::btree::INSERT_LEAF, "INSERT_LEAF", btree::insert),
    read(rmid::BTREE, info::btree::INSERT_UPPER, "INSERT_UPPER", btree::insert),
    read(rmid::BTREE, info::btree::INSERT_META, "INSERT_META", btree::insert),
    read(rmid::BTREE, info::btree::SPLIT_L, "SPLIT_L", btree::split),
    read(rmid::BTREE, info::btree::SPLIT_R, "SPLIT_R", btree::split),
    read(rmid::BTREE, info::btree::SPLIT_L_ROOT, "SPLIT_L_ROOT", btree::split).until(V10),
    read(rmid::BTREE, info::btree::SPLIT_R_ROOT, "SPLIT_R_ROOT", btree::split).until(V10),
    read(rmid::BTREE, info::btree::SPLIT_L_HIGHKEY, "SPLIT_L_HIGHKEY", btree::split).since(V11).until(V11),
    read(rmid::BTREE, info::btree::SPLIT_R_HIGHKEY, "SPLIT_R_HIGHKEY", btree::split).since(V11).until(V11),
    read(rmid::BTREE, info::btree::INSERT_POST, "INSERT_POST", btree::insert_post).since(V13),
    read(rmid::BTREE, info::btree::DEDUP, "DEDUP", btree::dedup).since(V13),
    read(rmid::BTREE, info::btree::DELETE, "DELETE", btree::delete),
    read(rmid::BTREE, info::btree::UNLINK_PAGE, "UNLINK_PAGE", btree::unlink_page),
    read(rmid::BTREE, info::btree::UNLINK_PAGE_META, "UNLINK_PAGE_META", btree::unlink_page),
    read(rmid::BTREE, info::btree::NEWROOT, "NEWROOT", btree::new_root),
    read(rmid::BTREE, info::btree::MARK_PAGE_HALFDEAD, "MARK_PAGE_HALFDEAD", btree::mark_page_half_dead),
    read(rmid::BTREE, info::btree::VACUUM, "VACUUM", btree::vacuum),
    read(rmid::BTREE, info::btree::REUSE_PAGE, "REUSE_PAGE", btree::reuse_page),
    read(rmid::BTREE, info::btree::META_CLEANUP, "META_CLEANUP", btree::meta_cleanup).since(V11),

    opaque(rmid::HASH, info::hash::INIT_META_PAGE, "INIT_META_PAGE").since(V10),
    opaque(rmid::HASH, info::hash::INIT_BITMAP_PAGE, "INIT_BITMAP_PAGE").since(V10),
    opaque(rmid::HASH, info::hash::INSERT, "INSERT").since(V10),
    opaque(rmid::HASH, info::hash::ADD_OVFL_PAGE, "ADD_OVFL_PAGE").since(V10),
    opaque(rmid::HASH, info::hash::SPLIT_ALLOCATE_PAGE, "SPLIT_ALLOCATE_PAGE").since(V10),
    // log_split_page()
    opaque(rmid::HASH, info::hash::SPLIT_PAGE, "SPLIT_PAGE").since(V10).images(Images::Forced(0b1)),
    opaque(rmid::HASH, info::hash::SPLIT_COMPLETE, "SPLIT_COMPLETE").since(V10),
    opaque(rmid::HASH, info::hash::MOVE_PAGE_CONTENTS, "MOVE_PAGE_CONTENTS").since(V10),
    opaque(rmid::HASH, info::hash::SQUEEZE_PAGE, "SQUEEZE_PAGE").since(V10),
    opaque(rmid::HASH, info::hash::DELETE, "DELETE").since(V10),
    opaque(rmid::HASH, info::hash::SPLIT_CLEANUP, "SPLIT_CLEANUP").since(V10),
    opaque(rmid::HASH, info::hash::UPDATE_META_PAGE, "UPDATE_META_PAGE").since(V10),
    opaque(rmid::HASH, info::hash::VACUUM_ONE_PAGE, "VACUUM_ONE_PAGE").since(V10),

    opaque(rmid::GIN, info::gin::CREATE_INDEX, "CREATE_INDEX").until(V11),
    opaque(rmid::GIN, info::gin::CREATE_PTREE, "CREATE_PTREE"),
    opaque(rmid::GIN, info::gin::INSERT, "INSERT"),
    // ginPlaceToPage() forces the two or three split pages; block 3 is the child whose flag is cleared.
    opaque(rmid::GIN, info::gin::SPLIT, "SPLIT").images(Images::Forced(0b111)),
    // xlogVacuumPage()
    opaque(rmid::GIN, info::gin::VACUUM_PAGE, "VACUUM_PAGE").images(Images::Forced(0b1)),
    opaque(rmid::GIN, info::gin::DELETE_PAGE, "DELETE_PAGE"),
    opaque(rmid::GIN, info::gin::UPDATE_META_PAGE, "UPDATE_META_PAGE"),
    opaque(rmid::GIN, info::gin::INSERT_LISTPAGE, "INSERT_LISTPAGE"),
    opaque(rmid::GIN, info::gin::DELETE_LISTPAGE, "DELETE_LISTPAGE"),
    opaque(rmid::GIN, info::gin::VACUUM_DATA_LEAF_PAGE, "VACUUM_DATA_LEAF_PAGE"),

    opaque(rmid::GIST, info::gist::PAGE_UPDATE, "PAGE_UPDATE"),
    opaque(rmid::GIST, info::gist::DELETE, "DELETE").since(V12),
    opaque(rmid::GIST, info::gist::PAGE_REUSE, "PAGE_REUSE").since(V12),
    opaque(rmid::GIST, info::gist::PAGE_SPLIT, "PAGE_SPLIT"),
    opaque(rmid::GIST, info::gist::CREATE_INDEX, "CREATE_INDEX").until(V11),
    opaque(rmid::GIST, info::gist::PAGE_DELETE, "PAGE_DELETE").since(V12),
    opaque(rmid::GIST, info::gist::ASSIGN_LSN, "ASSIGN_LSN").since(V13).until(V18),

    read(rmid::SEQ, info::seq::LOG, "LOG", seq::log),

    opaque(rmid::SPGIST, info::spgist::CREATE_INDEX, "CREATE_INDEX").until(V11),
    opaque(rmid::SPGIST, info::spgist::ADD_LEAF, "ADD_LEAF"),
    opaque(rmid::SPGIST, info::spgist::MOVE_LEAFS, "MOVE_LEAFS"),
    opaque(rmid::SPGIST, info::spgist::ADD_NODE, "ADD_NODE"),
    opaque(rmid::SPGIST, info::spgist::SPLIT_TUPLE, "SPLIT_TUPLE"),
    opaque(rmid::SPGIST, info::spgist::PICKSPLIT, "PICKSPLIT"),
    opaque(rmid::SPGIST, info::spgist::VACUUM_LEAF, "VACUUM_LEAF"),
    opaque(rmid::SPGIST, info::spgist::VACUUM_ROOT, "VACUUM_ROOT"),
    opaque(rmid::SPGIST, info::spgist::VACUUM_REDIRECT, "VACUUM_REDIRECT"),

    opaque(rmid::BRIN, info::brin::CREATE_INDEX, "CREATE_INDEX"),
    opaque(rmid::BRIN, info::brin::INSERT, "INSERT"),
    opaque(rmid::BRIN, info::brin::INSERT | info::brin::INIT_PAGE, "INSERT+INIT"),
    opaque(rmid::BRIN, info::brin::UPDATE, "UPDATE"),
    opaque(rmid::BRIN, info::brin::UPDATE | info::brin::INIT_PAGE, "UPDATE+INIT"),
    opaque(rmid::BRIN, info::brin::SAMEPAGE_UPDATE, "SAMEPAGE_UPDATE"),
    opaque(rmid::BRIN, info::brin::REVMAP_EXTEND, "REVMAP_EXTEND"),
    opaque(rmid::BRIN, info::brin::DESUMMARIZE, "DESUMMARIZE").since(V10),

    read(rmid::COMMIT_TS, info::commit_ts::ZEROPAGE, "ZEROPAGE", slru::zero_page),
    read(rmid::COMMIT_TS, info::commit_ts::TRUNCATE, "TRUNCATE", slru::commit_ts_truncate),
    read(rmid::COMMIT_TS, info::commit_ts::SETTS, "SETTS", slru::commit_ts_set).until(V13),

    read(rmid::REPLORIGIN, info::replorigin::SET, "SET", origin::set),
    read(rmid::REPLORIGIN, info::replorigin::DROP, "DROP", origin::drop),

    // Its blocks' data is all there is of it.
    read(rmid::GENERIC, 0x00, "Generic", xlog::nothing).since(V9_6),

    read(rmid::LOGICALMSG, info::logicalmsg::MESSAGE, "MESSAGE", origin::message).since(V9_6),

    read(rmid::XLOG2, info::xlog2::CHECKSUMS, "CHECKSUMS", xlog::checksums).since(V19),
];

/// Blocks 0 to 32.
const ALL_BLOCKS: u64 = (1 << 33) - 1;

const fn read(rmid: u8, info: u8, name: &'static str, decode: Decode) -> KindRow {
    KindRow { decode: Some(decode), ..opaque(rmid, info, name) }
}

const fn opaque(rmid: u8, info: u8, name: &'static str) -> KindRow {
    KindRow { rmid, info, name, since: Major::V9_5, until: None, images: Images::Ordinary, decode: None }
}

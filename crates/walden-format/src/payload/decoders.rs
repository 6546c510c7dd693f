//! The table of record kinds and their decoder functions.

use super::{Fields, Payload, PayloadError};
use super::{btree, dbase, heap, multixact, origin, relmap, seq, slru, smgr, standby, xact, xlog};
use crate::record::Record;
use crate::rmgr::{KINDS, Kind, KindRow, info, rmid};
use crate::version::Major::{self, V11, V13, V14, V15, V17};

/// Decodes the fields of a kind's records.
pub(super) type Decode = for<'a> fn(&Record<'a>, &mut Fields<'a>) -> Result<Payload<'a>, PayloadError>;

/// Returns the decoder of this kind; `None` means that the fields are [`Payload::Opaque`].
#[inline]
pub(super) fn decoder(kind: Kind, version: Major) -> Option<Decode> {
    *DECODERS.get(kind.row_index(version)?)?
}

/// The decoder of each row of [`KINDS`].
static DECODERS: [Option<Decode>; KINDS.len()] = {
    let mut decoders = [None; KINDS.len()];
    let mut at = 0;
    while at < ROWS.len() {
        let mut has_kind = false;
        let mut kind = 0;
        while kind < KINDS.len() {
            if ROWS[at].is_of(&KINDS[kind]) {
                decoders[kind] = Some(ROWS[at].decode);
                has_kind = true;
            }
            kind += 1;
        }
        assert!(has_kind, "a decoder of no kind");
        at += 1;
    }
    decoders
};

/// The decoder of a kind. Kinds without a row have no decoder.
struct DecoderRow {
    rmid: u8,
    info: u8,
    since: Major,
    decode: Decode,
}

impl DecoderRow {
    /// Whether the row applies to `kind`. A later row of the same kind replaces an earlier one.
    const fn is_of(&self, kind: &KindRow) -> bool {
        self.rmid == kind.rmid && self.info == kind.info && self.since as u8 <= kind.since as u8
    }

    const fn since(mut self, version: Major) -> DecoderRow {
        self.since = version;
        self
    }
}

const fn row(rmid: u8, info: u8, decode: Decode) -> DecoderRow {
    DecoderRow { rmid, info, since: Major::V9_5, decode }
}

/// In the order of [`KINDS`]. Rows have a version if the number belonged to another kind before.
#[rustfmt::skip]
const ROWS: &[DecoderRow] = &[
    row(rmid::XLOG, info::xlog::CHECKPOINT_SHUTDOWN, xlog::checkpoint),
    row(rmid::XLOG, info::xlog::CHECKPOINT_ONLINE, xlog::checkpoint),
    row(rmid::XLOG, info::xlog::NEXTOID, xlog::next_oid),
    row(rmid::XLOG, info::xlog::SWITCH, xlog::nothing),
    row(rmid::XLOG, info::xlog::BACKUP_END, xlog::backup_end),
    row(rmid::XLOG, info::xlog::PARAMETER_CHANGE, xlog::parameter_change),
    row(rmid::XLOG, info::xlog::RESTORE_POINT, xlog::restore_point),
    row(rmid::XLOG, info::xlog::FPW_CHANGE, xlog::full_page_writes_change),
    row(rmid::XLOG, info::xlog::END_OF_RECOVERY, xlog::end_of_recovery),
    row(rmid::XLOG, info::xlog::FPI_FOR_HINT, xlog::nothing),
    row(rmid::XLOG, info::xlog::FPI, xlog::nothing),
    row(rmid::XLOG, info::xlog::ASSIGN_LSN, xlog::dummy),
    row(rmid::XLOG, info::xlog::OVERWRITE_CONTRECORD, xlog::overwrite_contrecord),
    row(rmid::XLOG, info::xlog::CHECKPOINT_REDO, xlog::checkpoint_redo),
    row(rmid::XLOG, info::xlog::LOGICAL_DECODING_STATUS_CHANGE, xlog::logical_decoding_status_change),

    row(rmid::XACT, info::xact::COMMIT, xact::commit),
    row(rmid::XACT, info::xact::PREPARE, xact::prepare),
    row(rmid::XACT, info::xact::ABORT, xact::abort),
    row(rmid::XACT, info::xact::COMMIT_PREPARED, xact::commit),
    row(rmid::XACT, info::xact::ABORT_PREPARED, xact::abort),
    row(rmid::XACT, info::xact::ASSIGNMENT, xact::assignment),
    row(rmid::XACT, info::xact::INVALIDATION, xact::invalidations),

    row(rmid::SMGR, info::smgr::CREATE, smgr::create),
    row(rmid::SMGR, info::smgr::TRUNCATE, smgr::truncate),

    row(rmid::CLOG, info::clog::ZEROPAGE, slru::zero_page),
    row(rmid::CLOG, info::clog::TRUNCATE, slru::clog_truncate),

    row(rmid::DBASE, info::dbase::CREATE, dbase::create),
    row(rmid::DBASE, info::dbase::DROP_UNTIL_14, dbase::drop),
    row(rmid::DBASE, info::dbase::CREATE_FILE_COPY, dbase::create).since(V15),
    row(rmid::DBASE, info::dbase::CREATE_WAL_LOG, dbase::create_wal_log).since(V15),
    row(rmid::DBASE, info::dbase::DROP, dbase::drop),

    row(rmid::TBLSPC, info::tblspc::CREATE, dbase::tablespace_create),
    row(rmid::TBLSPC, info::tblspc::DROP, dbase::tablespace_drop),

    row(rmid::MULTIXACT, info::multixact::ZERO_OFF_PAGE, slru::zero_page),
    row(rmid::MULTIXACT, info::multixact::ZERO_MEM_PAGE, slru::zero_page),
    row(rmid::MULTIXACT, info::multixact::CREATE_ID, multixact::create),
    row(rmid::MULTIXACT, info::multixact::TRUNCATE_ID, multixact::truncate),

    row(rmid::RELMAP, info::relmap::UPDATE, relmap::update),

    row(rmid::STANDBY, info::standby::LOCK, standby::lock),
    row(rmid::STANDBY, info::standby::RUNNING_XACTS, standby::running_xacts),
    row(rmid::STANDBY, info::standby::INVALIDATIONS, standby::invalidations),

    row(rmid::HEAP2, info::heap2::REWRITE, heap::rewrite),
    row(rmid::HEAP2, info::heap2::CLEAN, heap::clean),
    row(rmid::HEAP2, info::heap2::FREEZE_PAGE_UNTIL_13, heap::freeze_page),
    row(rmid::HEAP2, info::heap2::CLEANUP_INFO, heap::cleanup_info),
    row(rmid::HEAP2, info::heap2::PRUNE, heap::clean).since(V14),
    row(rmid::HEAP2, info::heap2::VACUUM, heap::vacuum).since(V14),
    row(rmid::HEAP2, info::heap2::FREEZE_PAGE, heap::freeze_page).since(V14),
    row(rmid::HEAP2, info::heap2::PRUNE_ON_ACCESS, heap::prune).since(V17),
    row(rmid::HEAP2, info::heap2::PRUNE_VACUUM_SCAN, heap::prune).since(V17),
    row(rmid::HEAP2, info::heap2::PRUNE_VACUUM_CLEANUP, heap::prune).since(V17),
    row(rmid::HEAP2, info::heap2::VISIBLE, heap::visible),
    row(rmid::HEAP2, info::heap2::MULTI_INSERT, heap::multi_insert),
    row(rmid::HEAP2, info::heap2::MULTI_INSERT | info::heap2::INIT_PAGE, heap::multi_insert),
    row(rmid::HEAP2, info::heap2::LOCK_UPDATED, heap::lock_updated),
    row(rmid::HEAP2, info::heap2::NEW_CID, heap::new_cid),

    row(rmid::HEAP, info::heap::INSERT, heap::insert),
    row(rmid::HEAP, info::heap::INSERT | info::heap::INIT_PAGE, heap::insert),
    row(rmid::HEAP, info::heap::DELETE, heap::delete),
    row(rmid::HEAP, info::heap::UPDATE, heap::update),
    row(rmid::HEAP, info::heap::UPDATE | info::heap::INIT_PAGE, heap::update),
    row(rmid::HEAP, info::heap::TRUNCATE, heap::truncate),
    row(rmid::HEAP, info::heap::HOT_UPDATE, heap::hot_update),
    row(rmid::HEAP, info::heap::HOT_UPDATE | info::heap::INIT_PAGE, heap::hot_update),
    row(rmid::HEAP, info::heap::CONFIRM, heap::confirm),
    row(rmid::HEAP, info::heap::LOCK, heap::lock),
    row(rmid::HEAP, info::heap::INPLACE, heap::inplace),

    row(rmid::BTREE, info::btree::INSERT_LEAF, btree::insert),
    row(rmid::BTREE, info::btree::INSERT_UPPER, btree::insert),
    row(rmid::BTREE, info::btree::INSERT_META, btree::insert),
    row(rmid::BTREE, info::btree::SPLIT_L, btree::split),
    row(rmid::BTREE, info::btree::SPLIT_R, btree::split),
    row(rmid::BTREE, info::btree::SPLIT_L_ROOT, btree::split),
    row(rmid::BTREE, info::btree::SPLIT_R_ROOT, btree::split),
    row(rmid::BTREE, info::btree::SPLIT_L_HIGHKEY, btree::split).since(V11),
    row(rmid::BTREE, info::btree::SPLIT_R_HIGHKEY, btree::split).since(V11),
    row(rmid::BTREE, info::btree::INSERT_POST, btree::insert_post).since(V13),
    row(rmid::BTREE, info::btree::DEDUP, btree::dedup).since(V13),
    row(rmid::BTREE, info::btree::DELETE, btree::delete),
    row(rmid::BTREE, info::btree::UNLINK_PAGE, btree::unlink_page),
    row(rmid::BTREE, info::btree::UNLINK_PAGE_META, btree::unlink_page),
    row(rmid::BTREE, info::btree::NEWROOT, btree::new_root),
    row(rmid::BTREE, info::btree::MARK_PAGE_HALFDEAD, btree::mark_page_half_dead),
    row(rmid::BTREE, info::btree::VACUUM, btree::vacuum),
    row(rmid::BTREE, info::btree::REUSE_PAGE, btree::reuse_page),
    row(rmid::BTREE, info::btree::META_CLEANUP, btree::meta_cleanup),

    row(rmid::SEQ, info::seq::LOG, seq::log),

    row(rmid::COMMIT_TS, info::commit_ts::ZEROPAGE, slru::zero_page),
    row(rmid::COMMIT_TS, info::commit_ts::TRUNCATE, slru::commit_ts_truncate),
    row(rmid::COMMIT_TS, info::commit_ts::SETTS, slru::commit_ts_set),

    row(rmid::REPLORIGIN, info::replorigin::SET, origin::set),
    row(rmid::REPLORIGIN, info::replorigin::DROP, origin::drop),

    // A generic record consists only of its blocks' data.
    row(rmid::GENERIC, 0x00, xlog::nothing),

    row(rmid::LOGICALMSG, info::logicalmsg::MESSAGE, origin::message),

];

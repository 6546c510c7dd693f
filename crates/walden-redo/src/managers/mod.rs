//! Redo by resource manager, one module each.

use walden_format::record::Record;
use walden_format::rmgr::{info, rmid};

use crate::manager::Manager;

mod brin;
mod btree;
pub(crate) mod generic;
mod gin;
mod gist;
mod hash;
pub(crate) mod heap;
mod index_items;
mod sequence;
mod spgist;
pub(crate) mod storage;
mod xlog;

/// Returns the resource manager with a number, if its records can be replayed.
pub(crate) fn manager(number: u8) -> Option<&'static Manager> {
    Some(match number {
        rmid::XLOG => &xlog::XLOG,
        rmid::HEAP => &heap::HEAP,
        rmid::HEAP2 => &heap::HEAP2,
        rmid::SEQ => &sequence::SEQUENCE,
        rmid::GENERIC => &generic::GENERIC,
        rmid::BTREE => &btree::BTREE,
        rmid::GIN => &gin::GIN,
        rmid::BRIN => &brin::BRIN,
        rmid::HASH => &hash::HASH,
        rmid::GIST => &gist::GIST,
        rmid::SPGIST => &spgist::SPGIST,
        _ => return None,
    })
}

/// Returns whether a resource manager's records change only the pages of their blocks. Records of tables may
/// also change the visibility map, and XLOG records may show whether hints are logged.
pub(crate) fn changes_its_pages_alone(number: u8) -> bool {
    !matches!(number, rmid::XLOG | rmid::HEAP | rmid::HEAP2)
}

/// Returns whether a record shows that hint bits are logged (checksums or `wal_log_hints`), so that setting a
/// page's all-visible bit changes its LSN.
pub(crate) fn shows_logged_hints(record: &Record<'_>) -> bool {
    match (record.header.rmid, record.rmgr_info()) {
        (rmid::XLOG, info::xlog::FPI_FOR_HINT) => true,
        (rmid::HEAP2, _) => heap::visibility_map::shows_logged_hints(record),
        _ => false,
    }
}

//! Creation, truncation and removal of files: relations created, truncated and dropped, databases copied and
//! dropped.

use walden_format::payload::xact;
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record};
use walden_format::rmgr::info::xlog::PARAMETER_CHANGE;
use walden_format::rmgr::rmid;

use crate::store::PageStore;

/// Replays the effects of a record without block references on files.
pub(crate) fn replay(record: &Record<'_>, store: &mut PageStore) {
    let may_matter = match record.header.rmid {
        // Most commit and abort records drop nothing, which is visible from their form.
        rmid::XACT => xact::plain_end(record).is_none(),
        rmid::SMGR | rmid::DBASE => true,
        rmid::XLOG => record.rmgr_info() == PARAMETER_CHANGE,
        _ => false,
    };
    if !may_matter {
        return;
    }
    match payload::parse(record) {
        Ok(Payload::Commit(end) | Payload::Abort(end)) => {
            end.dropped_relations.into_iter().for_each(|relation| store.drop_relation(relation));
        }
        Ok(Payload::StorageCreate(created)) => store.drop_fork(created.relation, created.fork),
        Ok(Payload::StorageTruncate(cut)) => {
            // Without flags, as until 9.5, all forks are truncated.
            let flags = cut.flags;
            if flags.is_none_or(|flags| flags.heap()) {
                store.truncate(cut.relation, Fork::MAIN, cut.blocks);
            }
            if flags.is_none_or(|flags| flags.visibility_map()) {
                crate::managers::heap::visibility_map::truncate(store, cut.relation, cut.blocks);
            }
        }
        Ok(Payload::DatabaseCreate(created)) => match created.source {
            Some(_) => store.copy_database(created.database, created.tablespace),
            None => store.drop_database(created.database, Some(created.tablespace)),
        },
        Ok(Payload::DatabaseDrop(dropped)) => {
            store.drop_database_in(dropped.database, dropped.tablespaces);
        }
        Ok(Payload::ParameterChange(change)) => store.hint_logging().note_setting(change.wal_log_hints),
        // A record that cannot be read changes nothing: PostgreSQL could not replay it either.
        _ => {}
    }
}

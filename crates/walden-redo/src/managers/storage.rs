//! Files that come and go: relations created, truncated and dropped, databases copied and dropped.

use walden_format::payload::xact;
use walden_format::payload::xlog::ChecksumState;
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record};
use walden_format::rmgr::info::xlog::{
    CHECKPOINT_ONLINE, CHECKPOINT_REDO, CHECKPOINT_SHUTDOWN, PARAMETER_CHANGE,
};
use walden_format::rmgr::rmid;
use walden_format::version::Major;

use crate::store::PageStore;

/// What a record without blocks of its own does to files.
pub(crate) fn replay(record: &Record<'_>, store: &mut PageStore) {
    let may_matter = match record.header.rmid {
        // Most ends of transactions drop nothing, and their form shows it.
        rmid::XACT => xact::plain_end(record).is_none(),
        rmid::SMGR | rmid::DBASE => true,
        rmid::XLOG => match record.rmgr_info() {
            // These say what settings the server has; checkpoints since 19.
            PARAMETER_CHANGE => true,
            CHECKPOINT_SHUTDOWN | CHECKPOINT_ONLINE | CHECKPOINT_REDO => record.version >= Major::V19,
            _ => false,
        },
        rmid::XLOG2 => true,
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
            // Without flags, as until 9.5, all forks are cut.
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
        Ok(Payload::Checkpoint(checkpoint)) => {
            let hints = store.hint_logging();
            match checkpoint.checksums.map(ChecksumState::is_written) {
                Some(are_written) if checkpoint.shutdown => hints.note_checksums(are_written),
                Some(are_written) => hints.note_checksums_before(are_written),
                None => {}
            }
        }
        Ok(Payload::CheckpointRedo(redo)) => {
            if let Some(checksums) = redo.checksums {
                store.hint_logging().note_checksums(checksums.is_written());
            }
        }
        Ok(Payload::Checksums(checksums)) => {
            store.hint_logging().switch_checksums(checksums.state.is_written());
        }
        // A record that cannot be read changes nothing that is known here: PostgreSQL could not replay it either.
        _ => {}
    }
}

//! The state of a server outside of pages: transactions, files, databases, relation maps and origins.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use walden_format::payload::dbase::DatabaseCreate;
use walden_format::payload::smgr::StorageTruncate;
use walden_format::payload::xact::{TransactionEnd, plain_end};
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record};
use walden_format::rmgr::info::{clog, commit_ts, multixact, xact};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_redo::page::maps::HEAP_BLOCKS_PER_PAGE;

use crate::base::BaseBackup;
use crate::error::{RecoverError, invalid};
use crate::files::RelationFiles;
use crate::originals::Originals;
use crate::private;
use crate::tablespaces::{MappedTablespace, new_folder_of};
use crate::transactions::{CommitLog, CommitTimestamps, MultiXacts, Origins, PreparedTransactions};

/// Everything that replay changes except for pages, in files of the new data directory.
pub(crate) struct ServerState {
    files: RelationFiles,
    commit_log: CommitLog,
    commit_timestamps: Option<CommitTimestamps>,
    multixacts: MultiXacts,
    prepared: PreparedTransactions,
    origins: Origins,
    /// The new folders of tablespaces.
    tablespaces: Vec<MappedTablespace>,
}

impl ServerState {
    /// Opens the state in the copy of `base` in `data`.
    pub(crate) fn open(
        base: &BaseBackup,
        data: &Path,
        version: Major,
        tablespaces: &[MappedTablespace],
        originals: &Arc<Originals>,
    ) -> io::Result<ServerState> {
        let commit_timestamps = base.control.track_commit_timestamp.then(|| CommitTimestamps::new(data));
        Ok(ServerState {
            files: RelationFiles::new(base, data, originals),
            commit_log: CommitLog::new(data),
            commit_timestamps,
            multixacts: MultiXacts::new(data, version),
            prepared: PreparedTransactions::open(data, version)?,
            origins: Origins::open(data)?,
            tablespaces: tablespaces.to_vec(),
        })
    }

    /// Applies the effects of a record outside of pages.
    pub(crate) fn apply(&mut self, record: &Record<'_>) -> io::Result<()> {
        match plain_end(record) {
            // Most ends of transactions have a time alone.
            Some((is_commit, _)) if self.commit_timestamps.is_none() => {
                self.commit_log.end_alone(record.header.xid, is_commit)
            }
            _ => self.apply_parsed(record),
        }
    }

    fn apply_parsed(&mut self, record: &Record<'_>) -> io::Result<()> {
        let has_effect = matches!(
            record.header.rmid,
            rmid::XACT
                | rmid::SMGR
                | rmid::CLOG
                | rmid::DBASE
                | rmid::TBLSPC
                | rmid::MULTIXACT
                | rmid::RELMAP
                | rmid::COMMIT_TS
                | rmid::REPLORIGIN
        );
        if !has_effect {
            return Ok(());
        }
        match payload::parse(record).map_err(invalid)? {
            Payload::Commit(end) => self.end_transaction(record, &end, true),
            Payload::Abort(end) => self.end_transaction(record, &end, false),
            Payload::Prepare(prepare) => {
                if let Some(origin) = prepare.origin {
                    self.origins.advance(record.origin.unwrap_or_default(), origin.lsn, false);
                }
                self.prepared.prepare(prepare.xid, record.main_data())
            }
            Payload::StorageCreate(created) => self.files.create(created.relation, created.fork),
            Payload::StorageTruncate(cut) => self.truncate(&cut),
            Payload::DatabaseCreate(created) => self.create_database(&created),
            Payload::DatabaseDrop(dropped) => {
                let mut tablespaces = dropped.tablespaces.into_iter();
                tablespaces.try_for_each(|within| self.files.drop_database(dropped.database, within))
            }
            Payload::TablespaceCreate(created) => {
                let folder = self.files.tablespace_folder(created.tablespace);
                // The path in the record may be that of the original server's files.
                if let (Some(new), Some(link)) =
                    (new_folder_of(&self.tablespaces, created.path.0), folder.parent())
                {
                    private::remove_folder(link)?;
                    symlink(new, link)?;
                }
                private::create_folders(&folder)
            }
            Payload::TablespaceDrop(dropped) => {
                let folder = self.files.tablespace_folder(dropped.tablespace);
                self.files.remove_folder(&folder)?;
                // A folder, or the link to one outside of the data directory.
                folder.parent().map_or(Ok(()), private::remove_folder)
            }
            Payload::ZeroPage(zero) => {
                let page =
                    u64::try_from(zero.page).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                match (record.header.rmid, record.rmgr_info()) {
                    (rmid::CLOG, clog::ZEROPAGE) => self.commit_log.0.zero_page(page),
                    (rmid::COMMIT_TS, commit_ts::ZEROPAGE) => {
                        self.commit_timestamps.as_mut().map_or(Ok(()), |log| log.0.zero_page(page))
                    }
                    (rmid::MULTIXACT, multixact::ZERO_OFF_PAGE) => self.multixacts.add_offsets_page(page),
                    (rmid::MULTIXACT, multixact::ZERO_MEM_PAGE) => self.multixacts.members.zero_page(page),
                    _ => Ok(()),
                }
            }
            Payload::CommitLogTruncate(cut) => self.commit_log.truncate(cut.page.max(0).cast_unsigned()),
            Payload::CommitTsTruncate(cut) => {
                let page = cut.page.max(0).cast_unsigned();
                self.commit_timestamps.as_mut().map_or(Ok(()), |log| log.truncate(page))
            }
            Payload::MultiXactCreate(created) => self.multixacts.create(&created),
            Payload::MultiXactTruncate(cut) => self.multixacts.truncate(&cut),
            Payload::RelationMapUpdate(update) => {
                let tablespace = update.tablespace;
                let folder = self.files.database_folder(update.database, tablespace);
                private::write(&folder.join("pg_filenode.map"), update.map)
            }
            Payload::OriginSet(set) => {
                self.origins.advance(set.origin, set.remote_lsn, set.force);
                Ok(())
            }
            Payload::OriginDrop(dropped) => {
                self.origins.drop(dropped.origin);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The end of a transaction (`xact_redo_commit`, `xact_redo_abort`).
    fn end_transaction(
        &mut self,
        record: &Record<'_>,
        end: &TransactionEnd<'_>,
        is_commit: bool,
    ) -> io::Result<()> {
        let is_prepared =
            matches!(record.rmgr_info() & xact::OPMASK, xact::COMMIT_PREPARED | xact::ABORT_PREPARED);
        let xid = end.twophase_xid.filter(|_| is_prepared).unwrap_or(record.header.xid);
        self.commit_log.end(xid, end, is_commit)?;
        let origin = record.origin.unwrap_or_default();
        if is_commit && let Some(log) = &mut self.commit_timestamps {
            log.commit(xid, end, origin)?;
        }
        if let Some(of_origin) = end.origin {
            self.origins.advance(origin, of_origin.lsn, false);
        }
        let mut dropped = end.dropped_relations.into_iter();
        dropped.try_for_each(|relation| self.files.drop_relation(relation))?;
        if is_prepared { self.prepared.end(xid) } else { Ok(()) }
    }

    /// Cuts a relation's files (`smgr_redo`). The free space map is removed: it may name blocks that no
    /// longer exist, and PostgreSQL builds it again.
    fn truncate(&mut self, cut: &StorageTruncate) -> io::Result<()> {
        let (relation, flags) = (cut.relation, cut.flags);
        let files = &mut self.files;
        files.create(relation, Fork::MAIN)?;
        if flags.is_none_or(|flags| flags.heap()) {
            files.truncate(relation, Fork::MAIN, cut.blocks)?;
        }
        if flags.is_none_or(|flags| flags.visibility_map()) {
            files.truncate(relation, Fork::VISIBILITY_MAP, cut.blocks.div_ceil(HEAP_BLOCKS_PER_PAGE))?;
        }
        if flags.is_none_or(|flags| flags.free_space_map()) {
            files.drop_fork(relation, Fork::FREE_SPACE_MAP)?;
        }
        Ok(())
    }

    /// Creates a database (`dbase_redo`). Pages of a source that is copied are in its files already.
    fn create_database(&mut self, created: &DatabaseCreate) -> io::Result<()> {
        let target = (created.database, created.tablespace);
        match created.source {
            Some(source) => self.files.copy_database(source, target),
            None => self.files.create_database(target.0, target.1),
        }
    }

    /// Writes everything that is not in files yet. `next_xid` is that of the checkpoint. Returns the number
    /// of prepared transactions.
    pub(crate) fn finish(mut self, data: &Path, next_xid: u64) -> Result<usize, RecoverError> {
        let write =
            |log: io::Result<()>, folder: &str| log.map_err(RecoverError::io("write", &data.join(folder)));
        write(self.commit_log.0.flush(), "pg_xact")?;
        if let Some(log) = &mut self.commit_timestamps {
            write(log.0.flush(), "pg_commit_ts")?;
        }
        write(self.multixacts.flush(), "pg_multixact")?;
        write(self.prepared.write(next_xid), "pg_twophase")?;
        write(self.origins.write(), "pg_logical/replorigin_checkpoint")?;
        Ok(self.prepared.count())
    }
}

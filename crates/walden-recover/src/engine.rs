//! Replay into the files of the new data directory.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use walden_format::lsn::Lsn;
use walden_format::payload::dbase::DatabaseCreate;
use walden_format::payload::smgr::StorageTruncate;
use walden_format::payload::xact::{TransactionEnd, plain_end};
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record};
use walden_format::rmgr::info::{clog, commit_ts, multixact, xact};
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_redo::page::maps::HEAP_BLOCKS_PER_PAGE;
use walden_redo::{BlockKey, PageBox, PageStore, Replay, State, StoreOptions};

use crate::base::BaseBackup;
use crate::error::RecoverError;
use crate::files::SharedFiles;
use crate::private;
use crate::transactions::{CommitLog, CommitTimestamps, MultiXacts, Origins, PreparedTransactions};

/// The state that replay changes: pages in the store, and everything else in files of the new data directory.
pub(crate) struct Engine {
    start: Lsn,
    redo: Lsn,
    replay: Replay,
    files: SharedFiles,
    commit_log: CommitLog,
    commit_timestamps: Option<CommitTimestamps>,
    multixacts: MultiXacts,
    prepared: PreparedTransactions,
    origins: Origins,
    pub(crate) records: u64,
    failure: Option<RecoverError>,
}

/// Pages and prepared transactions that replay has written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub pages: u64,
    pub prepared_transactions: usize,
}

impl Engine {
    /// Replays records from `base`'s start up to `redo` into the copy in `data`.
    pub(crate) fn new(
        base: &BaseBackup,
        data: &Path,
        files: SharedFiles,
        redo: Lsn,
        version: Major,
        memory_bytes: usize,
    ) -> io::Result<Engine> {
        let pages = Some(Box::new(files.clone()) as Box<dyn walden_redo::BasePages>);
        let mut store = PageStore::new(StoreOptions { memory_bytes, base: pages, ..StoreOptions::default() });
        store.hint_logging().note_settings(base.control.hint_settings());
        let commit_timestamps = base.control.track_commit_timestamp.then(|| CommitTimestamps::new(data));
        Ok(Engine {
            start: base.label.start,
            redo,
            replay: Replay::new(store),
            files,
            commit_log: CommitLog::new(data),
            commit_timestamps,
            multixacts: MultiXacts::new(data, version),
            prepared: PreparedTransactions::open(data, version)?,
            origins: Origins::open(data)?,
            records: 0,
            failure: None,
        })
    }

    /// Applies the effects of a record outside of pages.
    fn apply(&mut self, record: &Record<'_>) -> io::Result<()> {
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
        let unreadable = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        match payload::parse(record).map_err(unreadable)? {
            Payload::Commit(end) => self.end_transaction(record, &end, true),
            Payload::Abort(end) => self.end_transaction(record, &end, false),
            Payload::Prepare(prepare) => {
                if let Some(origin) = prepare.origin {
                    self.origins.advance(record.origin.unwrap_or_default(), origin.lsn, false);
                }
                self.prepared.prepare(prepare.xid, record.main_data())
            }
            Payload::StorageCreate(created) => self.files.lock().create(created.relation, created.fork),
            Payload::StorageTruncate(cut) => self.truncate(&cut),
            Payload::DatabaseCreate(created) => self.create_database(&created),
            Payload::DatabaseDrop(dropped) => {
                let mut files = self.files.lock();
                dropped
                    .tablespaces
                    .into_iter()
                    .try_for_each(|within| files.drop_database(dropped.database, within))
            }
            Payload::TablespaceCreate(created) => {
                private::create_folders(&self.files.lock().tablespace_folder(created.tablespace))
            }
            Payload::TablespaceDrop(dropped) => {
                let folder = self.files.lock().tablespace_folder(dropped.tablespace);
                folder.parent().map_or(Ok(()), crate::files::remove_folder)
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
                let folder = self.files.lock().database_folder(update.database, tablespace);
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
        if !end.dropped_relations.is_empty() {
            let mut files = self.files.lock();
            end.dropped_relations.into_iter().try_for_each(|relation| files.drop_relation(relation))?;
        }
        if is_prepared { self.prepared.end(xid) } else { Ok(()) }
    }

    /// Cuts a relation's files (`smgr_redo`). The free space map is removed: it may name blocks that no
    /// longer exist, and PostgreSQL builds it again.
    fn truncate(&mut self, cut: &StorageTruncate) -> io::Result<()> {
        let (relation, flags) = (cut.relation, cut.flags);
        let mut files = self.files.lock();
        files.create(relation, Fork::MAIN)?;
        if flags.is_none_or(|flags| flags.heap()) {
            files.truncate(relation, Fork::MAIN, cut.blocks)?;
        }
        if flags.is_none_or(|flags| flags.visibility_map()) {
            files.truncate(relation, Fork::VISIBILITY_MAP, cut.blocks.div_ceil(HEAP_BLOCKS_PER_PAGE))?;
        }
        if flags.is_none_or(|flags| flags.free_space_map()) {
            files.drop_fork(relation, Fork::FREE_SPACE_MAP)?;
            drop(files);
            self.replay.store.drop_fork(relation, Fork::FREE_SPACE_MAP);
        }
        Ok(())
    }

    /// Creates a database (`dbase_redo`). To copy files, the pages of the source are written first, as
    /// PostgreSQL does.
    fn create_database(&mut self, created: &DatabaseCreate) -> io::Result<()> {
        let target = (created.database, created.tablespace);
        let Some(source) = created.source else {
            return self.files.lock().create_database(target.0, target.1);
        };
        let is_source = |key: &BlockKey| (key.relation.database, key.relation.tablespace) == source;
        self.write_pages(is_source)?;
        self.files.lock().copy_database(source, target)?;
        self.replay.store.read_database_from_base(target.0, target.1);
        Ok(())
    }

    /// Writes the changed pages that are wanted, in the order of the files. Returns how many.
    fn write_pages(&mut self, is_wanted: impl Fn(&BlockKey) -> bool) -> io::Result<u64> {
        let (mut page, mut written) = (PageBox::default(), 0);
        for (relation, fork) in self.replay.store.forks() {
            if !is_wanted(&BlockKey { relation, fork, block: 0 }) {
                continue;
            }
            for (block, slot) in self.replay.store.blocks_of(relation, fork) {
                if self.replay.store.is_changed(slot) && self.replay.store.read(slot, &mut page) {
                    self.files.lock().write(BlockKey { relation, fork, block }, &mut page)?;
                    written += 1;
                }
            }
        }
        Ok(written)
    }

    /// The first failure of replay.
    pub(crate) fn take_failure(&mut self) -> Option<RecoverError> {
        let of_store = || self.replay.store.failure().map(|failure| RecoverError::Pages(failure.to_string()));
        self.failure.take().or_else(of_store)
    }

    /// Writes everything. `next_xid` is that of the checkpoint.
    pub(crate) fn finish(mut self, data: &Path, next_xid: u64) -> Result<Written, RecoverError> {
        self.expect_known_pages()?;
        let pages = self.write_pages(|_| true).map_err(RecoverError::io("write", data))?;
        if let Some(failure) = self.take_failure() {
            return Err(failure);
        }
        let write =
            |log: io::Result<()>, folder: &str| log.map_err(RecoverError::io("write", &data.join(folder)));
        write(self.commit_log.0.flush(), "pg_xact")?;
        if let Some(log) = &mut self.commit_timestamps {
            write(log.0.flush(), "pg_commit_ts")?;
        }
        write(self.multixacts.flush(), "pg_multixact")?;
        write(self.prepared.write(next_xid), "pg_twophase")?;
        write(self.origins.write(), "pg_logical/replorigin_checkpoint")?;
        Ok(Written { pages, prepared_transactions: self.prepared.count() })
    }

    /// PostgreSQL ends recovery, too, if WAL refers to pages that do not exist (`XLogCheckInvalidPages`).
    fn expect_known_pages(&self) -> Result<(), RecoverError> {
        let store = &self.replay.store;
        for (relation, fork) in store.forks() {
            for (block, slot) in store.blocks_of(relation, fork) {
                let state = store.state(slot);
                if state != State::Exact && fork != Fork::FREE_SPACE_MAP && !store.is_fresh(slot) {
                    let page = BlockKey { relation, fork, block };
                    return Err(RecoverError::UnknownPage { page, redo: self.redo, state });
                }
            }
        }
        Ok(())
    }
}

impl Visitor for Engine {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        if record.lsn >= self.redo {
            return ControlFlow::Break(());
        }
        self.records += 1;
        self.replay.apply(record, &mut ());
        let outcome = match plain_end(record) {
            // Most ends of transactions have a time alone.
            Some((is_commit, _)) if self.commit_timestamps.is_none() => {
                self.commit_log.end_alone(record.header.xid, is_commit)
            }
            _ => self.apply(record),
        };
        if let Err(error) = outcome {
            self.failure = Some(RecoverError::Record { lsn: record.lsn, reason: error.to_string() });
            return ControlFlow::Break(());
        }
        if self.replay.store.failure().is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

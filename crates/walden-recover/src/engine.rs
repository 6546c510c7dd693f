//! Replay into the files of the new data directory, by several threads.
//!
//! Pages are independent of each other, so each thread replays a share of them ([`PageShare`]). All threads
//! decode all records, which takes a small part of the time of replay: this is simpler than passing records
//! between threads, and no thread can become the one that the others wait for. The first thread also replays
//! everything else ([`ServerState`]).
//!
//! A record that truncates or removes files, or copies a database, changes what other threads still read from
//! the base backup's files. At such a record all threads wait for each other.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::payload::xact::plain_end;
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record, RelFileLocator};
use walden_format::rmgr::rmid;
use walden_format::stream::{NeededPart, Visitor};
use walden_format::version::Major;
use walden_redo::{BasePages, BlockKey, Overwrites, Page, PageShare, PageStore, Replay, State, StoreOptions};

use crate::base::BaseBackup;
use crate::error::{RecoverError, invalid};
use crate::files::{RelationFiles, SharedFiles};
use crate::gate::Gate;
use crate::originals::Originals;
use crate::server_state::ServerState;
use crate::tablespaces::MappedTablespace;

/// End, version and limits of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineOptions<'o> {
    /// The position after the last record that is replayed.
    pub redo: Lsn,
    pub version: Major,
    /// Memory for the pages of all threads.
    pub memory_bytes: usize,
    pub threads: usize,
    /// The new folders of tablespaces.
    pub tablespaces: &'o [MappedTablespace],
    /// Files of the base backup that are not copied yet.
    pub originals: &'o Arc<Originals>,
    /// Pages that the WAL overwrites.
    pub overwrites: &'o Arc<Overwrites>,
}

/// Pages and prepared transactions that replay has written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub pages: u64,
    pub prepared_transactions: usize,
}

/// Replay by one thread.
pub(crate) struct Engine {
    start: Lsn,
    redo: Lsn,
    part: Part,
    /// The thread's share of the pages.
    replay: Replay,
    files: SharedFiles,
    /// Everything else; only the first engine has it.
    state: Option<ServerState>,
    gate: Arc<Gate>,
    pub(crate) records: u64,
    failure: Option<RecoverError>,
}

/// The place of an engine among all engines.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: usize,
    count: usize,
}

impl Part {
    /// Returns the index of the item with which this engine starts, if each engine handles all items, of
    /// these sizes, in a circle.
    fn first_of(self, sizes: impl Iterator<Item = usize> + Clone) -> usize {
        let wanted = sizes.clone().sum::<usize>() / self.count * self.index;
        let starts = sizes.scan(0_usize, |end, size| {
            let start = *end;
            *end += size;
            Some(start)
        });
        starts.enumerate().min_by_key(|(_, start)| start.abs_diff(wanted)).map_or(0, |(index, _)| index)
    }
}

/// A change to files that other threads read.
enum FileChange {
    /// Files are removed.
    Removal,
    /// A relation is truncated.
    Truncation { relation: RelFileLocator, drops_free_space_map: bool },
    /// A database is copied; both are `(database, tablespace)`.
    Copy { source: (u32, u32), target: (u32, u32) },
}

impl FileChange {
    fn read(record: &Record<'_>) -> io::Result<Option<FileChange>> {
        let may_be = match record.header.rmid {
            rmid::XACT => plain_end(record).is_none(),
            rmid::SMGR | rmid::DBASE => true,
            _ => false,
        };
        if !may_be {
            return Ok(None);
        }
        Ok(match payload::parse(record).map_err(invalid)? {
            Payload::Commit(end) | Payload::Abort(end) => {
                (!end.dropped_relations.is_empty()).then_some(FileChange::Removal)
            }
            Payload::DatabaseDrop(_) => Some(FileChange::Removal),
            Payload::StorageTruncate(cut) => Some(FileChange::Truncation {
                relation: cut.relation,
                drops_free_space_map: cut.flags.is_none_or(|flags| flags.free_space_map()),
            }),
            Payload::DatabaseCreate(created) => {
                let target = (created.database, created.tablespace);
                created.source.map(|source| FileChange::Copy { source, target })
            }
            _ => None,
        })
    }
}

impl Engine {
    /// Creates an engine for each thread. Together they replay records from `base`'s start into the copy in
    /// `data`.
    pub(crate) fn create_all(
        base: &BaseBackup,
        data: &Path,
        options: EngineOptions<'_>,
    ) -> io::Result<Vec<Engine>> {
        let threads = u32::try_from(options.threads).unwrap_or(u32::MAX).max(1);
        let gate = Arc::new(Gate::new(threads as usize));
        let mut state =
            Some(ServerState::open(base, data, options.version, options.tablespaces, options.originals)?);
        let create = |index| {
            let files = SharedFiles::new(RelationFiles::new(base, data, options.originals));
            let mut store = PageStore::new(
                StoreOptions::default()
                    .memory_bytes(options.memory_bytes / threads as usize)
                    .base(Some(Box::new(files.clone()) as Box<dyn BasePages>))
                    .share(PageShare::new(index, threads))
                    .overwrites(Arc::clone(options.overwrites)),
            );
            store.hint_logging().note_settings(base.control.hint_settings());
            Engine {
                start: base.label.start,
                redo: options.redo,
                part: Part { index: index as usize, count: threads as usize },
                replay: Replay::new(store),
                files,
                state: state.take(),
                gate: Arc::clone(&gate),
                records: 0,
                failure: None,
            }
        };
        Ok((0..threads).map(create).collect())
    }

    /// Ends the waiting of other engines for this one.
    pub(crate) fn leave(&mut self) {
        self.gate.close();
    }

    /// Replays a record. Returns false if another engine has ended.
    fn apply(&mut self, record: &Record<'_>) -> io::Result<bool> {
        let Some(change) = FileChange::read(record)? else {
            self.apply_alone(record)?;
            return Ok(true);
        };
        if let FileChange::Copy { source, .. } = change {
            // PostgreSQL, too, writes the pages of the source before it copies the files.
            self.write_pages(|key| (key.relation.database, key.relation.tablespace) == source)?;
        }
        if !self.gate.meet() {
            return Ok(false);
        }
        self.apply_alone(record)?;
        self.files.lock().close_all();
        match change {
            FileChange::Removal => {}
            FileChange::Truncation { relation, drops_free_space_map } => {
                if drops_free_space_map {
                    self.replay.store.drop_fork(relation, Fork::FREE_SPACE_MAP);
                }
            }
            FileChange::Copy { target, .. } => self.replay.store.read_database_from_base(target.0, target.1),
        }
        Ok(self.gate.meet())
    }

    fn apply_alone(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.replay.apply(record, &mut ());
        self.state.as_mut().map_or(Ok(()), |state| state.apply(record))
    }

    /// Adds the numbers of changed pages in each file.
    pub(crate) fn list_changed(&self, changed: &mut FxHashMap<PathBuf, Vec<u32>>) {
        let (store, files) = (&self.replay.store, self.files.lock());
        for (relation, fork) in store.forks() {
            let blocks = store.blocks_of(relation, fork).into_iter();
            let blocks: Vec<u32> =
                blocks.filter(|(_, slot)| store.is_changed(*slot)).map(|(block, _)| block).collect();
            for of_file in blocks.chunk_by(|one, other| files.segment_of(*one) == files.segment_of(*other)) {
                let Some(&block) = of_file.first() else { continue };
                let path = files.path_of(BlockKey { relation, fork, block });
                let start = files.segment_of(block) * files.blocks_per_segment();
                changed.entry(path).or_default().extend(of_file.iter().map(|block| block - start));
            }
        }
    }

    /// Writes the changed pages that are wanted, in the order of the files. Returns how many.
    ///
    /// Each engine starts at another file: the system lets one thread write to a file at a time.
    fn write_pages(&mut self, is_wanted: impl Fn(&BlockKey) -> bool) -> io::Result<u64> {
        let (mut run, mut written) = (PageRun::default(), 0);
        let store = &self.replay.store;
        let mut forks: Vec<_> = store
            .forks()
            .into_iter()
            .filter(|&(relation, fork)| is_wanted(&BlockKey { relation, fork, block: 0 }))
            .map(|(relation, fork)| (relation, fork, store.blocks_of(relation, fork)))
            .collect();
        let first = self.part.first_of(forks.iter().map(|(.., blocks)| blocks.len()));
        forks.rotate_left(first);
        for (relation, fork, blocks) in forks {
            for (block, slot) in blocks {
                if self.replay.store.is_changed(slot) {
                    let key = BlockKey { relation, fork, block };
                    let page = run.add(key, &self.files)?;
                    match self.replay.store.read(slot, page) {
                        true => written += 1,
                        false => run.remove_last(),
                    }
                }
            }
        }
        run.write(&self.files)?;
        Ok(written)
    }

    /// The first failure of replay.
    pub(crate) fn take_failure(&mut self) -> Option<RecoverError> {
        let of_store = || self.replay.store.failure().map(|failure| RecoverError::Pages(failure.to_string()));
        self.failure.take().or_else(of_store)
    }

    /// Writes all pages, and everything else if the engine has it. `next_xid` is that of the checkpoint.
    pub(crate) fn finish(mut self, data: &Path, next_xid: u64) -> Result<Written, RecoverError> {
        self.expect_known_pages()?;
        let pages = self.write_pages(|_| true).map_err(RecoverError::io("write", data))?;
        if let Some(failure) = self.take_failure() {
            return Err(failure);
        }
        let prepared_transactions = self.state.map_or(Ok(0), |state| state.finish(data, next_xid))?;
        Ok(Written { pages, prepared_transactions })
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

/// Consecutive pages of a file, which are written together.
#[derive(Default)]
struct PageRun {
    first: Option<BlockKey>,
    /// The pages; those from `count` on are not used.
    pages: Vec<Page>,
    count: usize,
}

impl PageRun {
    /// Maximum number of pages: as many as one share has in sequence.
    const MAX: usize = 64;

    /// Returns the memory for the page after the last one. Writes the run before if it does not continue it.
    fn add(&mut self, key: BlockKey, files: &SharedFiles) -> io::Result<&mut Page> {
        let follows = |first: BlockKey| {
            let next = BlockKey { block: first.block.wrapping_add(self.count as u32), ..first };
            let files = files.lock();
            next == key && files.segment_of(first.block) == files.segment_of(key.block)
        };
        if self.count == PageRun::MAX || !self.first.is_some_and(follows) {
            self.write(files)?;
            self.first = Some(key);
        }
        if self.count == self.pages.len() {
            self.pages.push(Page::default());
        }
        self.count += 1;
        Ok(&mut self.pages[self.count - 1])
    }

    fn remove_last(&mut self) {
        self.count -= 1;
    }

    fn write(&mut self, files: &SharedFiles) -> io::Result<()> {
        let count = std::mem::take(&mut self.count);
        match self.first.take().filter(|_| count > 0) {
            Some(first) => files.lock().write(first, &mut self.pages[..count]),
            None => Ok(()),
        }
    }
}

impl Visitor for Engine {
    fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        self.replay.needed_part(record)
    }

    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        if record.lsn >= self.redo {
            return ControlFlow::Break(());
        }
        self.records += 1;
        match self.apply(record) {
            Ok(true) if self.replay.store.failure().is_none() => ControlFlow::Continue(()),
            Ok(_) => ControlFlow::Break(()),
            Err(error) => {
                self.failure = Some(RecoverError::Record { lsn: record.lsn, reason: error.to_string() });
                ControlFlow::Break(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_starts_at_another_file_if_there_are_enough() {
        let first = |count, sizes: &[usize]| -> Vec<usize> {
            (0..count).map(|index| Part { index, count }.first_of(sizes.iter().copied())).collect()
        };
        assert_eq!(first(1, &[5, 5]), [0]);
        assert_eq!(first(2, &[5, 5]), [0, 1]);
        assert_eq!(first(3, &[2, 2, 2, 2, 2, 2]), [0, 2, 4]);
        // The first engine is at a small file while the second engine is at the large file.
        assert_eq!((first(2, &[8, 1, 1]), first(2, &[1, 1, 8])), (vec![0, 1], vec![0, 2]));
        assert_eq!((first(2, &[]), first(2, &[7])), (vec![0, 0], vec![0, 0]));
    }
}

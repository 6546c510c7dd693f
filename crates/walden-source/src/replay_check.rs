//! Checks replay: replayed pages against PostgreSQL's full-page images, and against its files.

use std::path::Path;

use walden_format::lsn::Lsn;
use walden_format::version::Major;
use walden_redo::check::{Check, Difference, files};
use walden_redo::{BlockKey, HintSettings, Observer, Page};

use crate::base::{Base, BaseError, open_base, open_stopped};
use crate::datadir::DataDir;
use crate::inventory::Run;
use crate::replay::{ReplayOptions, Replayed, replay_run};
use crate::scan::Damage;
use crate::timelines::{Lineage, lineages};

/// The results of the check.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Comparison with full-page images.
    pub images: Check,
    /// Comparison with the pages of a stopped server.
    pub pages: Check,
    /// Where the WAL ends.
    pub end: Lsn,
    /// The version of PostgreSQL that wrote the last run; `None` without WAL.
    pub version: Option<Major>,
    /// Damage at which replay of a run ended.
    pub damages: Vec<Damage>,
}

impl Outcome {
    /// Returns the number of full-page images and data pages that differ from the replayed pages.
    pub fn different(&self) -> u64 {
        self.images.total().different + self.pages.total().different
    }

    /// Returns the first differences.
    pub fn differences(&self) -> impl Iterator<Item = &Difference> {
        self.images.differences.iter().chain(&self.pages.differences)
    }
}

/// WAL to replay, and the pages with which replay starts.
#[derive(Debug)]
pub struct Material {
    /// The runs, each preceded by the segments of its ancestors.
    lineages: Vec<Lineage>,
    base: Option<Base>,
    memory_bytes: usize,
    threads: usize,
}

impl Material {
    /// Joins runs to lineages, and finds the lineage that continues the base, if a base is given.
    /// `memory_bytes` is the memory for pages; further pages go to a temporary file.
    ///
    /// # Errors
    /// The base is no base backup, or no run continues it.
    pub fn new(
        runs: Vec<Run>,
        base: Option<&Path>,
        memory_bytes: usize,
        threads: usize,
    ) -> Result<Material, BaseError> {
        let base = match base {
            Some(path) => Some(Base::new(path.to_owned(), &open_base(path, &runs)?.1)),
            None => None,
        };
        Ok(Material { lineages: lineages(runs), base, memory_bytes, threads })
    }

    /// Returns the size of all segments in bytes.
    pub fn bytes(&self) -> u64 {
        let bytes = |lineage: &Lineage| lineage.run.segments.len() as u64 * lineage.run.segment_size.bytes();
        self.lineages.iter().map(bytes).sum()
    }

    /// Returns the number of lineages.
    pub fn lineages(&self) -> usize {
        self.lineages.len()
    }

    /// Replays a lineage, up to the record at `last` if given. `done` receives the bytes of each segment that
    /// was read.
    ///
    /// # Errors
    /// The base cannot be read, or pages cannot be kept.
    pub fn replay<O: Observer>(
        &self,
        index: usize,
        hints: Option<HintSettings>,
        last: Option<Lsn>,
        observer: &mut O,
        done: impl FnMut(u64),
    ) -> Result<Replayed, BaseError> {
        let lineage @ Lineage { run, new_from } = &self.lineages[index];
        let base = self.base.as_ref().filter(|base| base.is_of(lineage));
        let base = base.map(|base| DataDir::open(&base.path)).transpose()?;
        let (memory_bytes, threads) = (self.memory_bytes, self.threads);
        let observed_from = new_from.unwrap_or(Lsn(0));
        let options = ReplayOptions::new(observed_from, memory_bytes)
            .base(base)
            .hints(hints)
            .last(last)
            .threads(threads);
        let replayed = replay_run(run, options, observer, done);
        if let Some(failure) = replayed.store.failure() {
            return Err(BaseError::Store(failure.to_string()));
        }
        Ok(replayed)
    }

    /// Replays everything, and compares the pages with every full-page image, and at the end with the
    /// files of `stopped`, the data directory of the server that wrote the WAL.
    ///
    /// # Errors
    /// The server was not stopped, its last checkpoint is not in the WAL, or pages cannot be read or kept.
    pub fn check(&self, stopped: Option<&Path>, mut done: impl FnMut(u64)) -> Result<Outcome, BaseError> {
        let mut pgdata = stopped.map(|path| open_stopped(path, &self.lineages)).transpose()?;
        let mut outcome = Outcome::default();
        for (index, lineage) in self.lineages.iter().enumerate() {
            let pgdata = pgdata.as_mut().filter(|(at, _)| *at == index).map(|(_, data)| data);
            let hints = pgdata.as_ref().map(|data| data.control().hint_settings());
            let last = pgdata.as_ref().map(|data| data.control().checkpoint);
            let run = self.replay(index, hints, last, &mut outcome.images, &mut done)?;
            outcome.images.finish();
            outcome.version = Some(lineage.run.version);
            outcome.end = run.reached;
            let is_damaged = run.damage.is_some();
            outcome.damages.extend(run.damage);
            let Some(data) = pgdata else { continue };
            if !run.has_last && !is_damaged {
                let (path, checkpoint) = (data.path().to_owned(), data.control().checkpoint);
                return Err(BaseError::EndsBefore { path, checkpoint, reached: run.reached });
            }
            if run.has_last {
                let mut store = run.store;
                let read = |key: BlockKey, page: &mut Page| {
                    data.read_page(key.relation, key.fork, key.block, &mut page.0)
                };
                let pages = &mut outcome.pages;
                files::compare(&mut store, lineage.run.version, pages, read).map_err(BaseError::Page)?;
                if let Some(failure) = store.failure() {
                    return Err(BaseError::Store(failure.to_string()));
                }
            }
        }
        Ok(outcome)
    }
}

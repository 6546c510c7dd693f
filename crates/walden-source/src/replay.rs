//! Replays a run into pages, one record after another.

use std::ops::ControlFlow;

use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_redo::{BasePages, HintSettings, Observer, PageStore, Replay, StoreOptions};

use crate::datadir::DataDir;
use crate::inventory::Run;
use crate::scan::{Damage, ScanOptions, SegmentEnd, scan_in_order};

/// Options of a replay.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// The base backup or stopped data directory with the pages from which replay continues.
    pub base: Option<DataDir>,
    /// For a run without a base: the settings of the server that wrote the WAL, as far as they concern hint
    /// bits.
    pub hints: Option<HintSettings>,
    /// Start LSN of the last record to replay.
    pub last: Option<Lsn>,
    /// Records before this LSN are replayed, but not reported to the observer.
    pub observed_from: Lsn,
    /// Bytes of memory for pages; further pages go to a temporary file.
    pub memory_bytes: usize,
    /// Number of threads; with two or more, one thread reads and decodes ahead.
    pub threads: usize,
}

impl ReplayOptions {
    /// Creates options with the defaults of the other fields.
    pub fn new(observed_from: Lsn, memory_bytes: usize) -> ReplayOptions {
        ReplayOptions { base: None, hints: None, last: None, observed_from, memory_bytes, threads: 1 }
    }
}

walden_format::setters!(ReplayOptions {
    base: Option<DataDir>,
    hints: Option<HintSettings>,
    last: Option<Lsn>,
    threads: usize,
});

/// The result of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// The pages. If the store has failed ([`PageStore::failure`]), replay ended there.
    pub store: PageStore,
    /// Where replay started.
    pub from: Lsn,
    /// The LSN up to which the WAL was replayed.
    pub reached: Lsn,
    /// Whether [`ReplayOptions::last`] was replayed.
    pub has_last: bool,
    /// Damage that ended the replay.
    pub damage: Option<Damage>,
}

/// Replays a run. Calls `done` with the bytes of each segment that was read.
///
/// A run starts after a gap, or where the WAL of its ancestors is missing ([`crate::timelines::lineages`]):
/// earlier information about pages is not valid there.
pub fn replay_run<O: Observer>(
    run: &Run,
    options: ReplayOptions,
    observer: &mut O,
    done: impl FnMut(u64),
) -> Replayed {
    let ReplayOptions { base, hints, last, observed_from, memory_bytes, threads } = options;
    let hints = base.as_ref().map(|data| data.control().hint_settings()).or(hints);
    // WAL that the base's files already contain is not replayed again.
    let from = base.as_ref().map(DataDir::redo_from);
    let base = base.map(|data| Box::new(data) as Box<dyn BasePages>);
    let mut store = PageStore::new(StoreOptions::default().memory_bytes(memory_bytes).base(base));
    if let Some(settings) = hints {
        store.hint_logging().note_settings(settings);
    }
    let mut replayer =
        Replayer { replay: Replay::new(store), observer, observed_from, last, has_last: false };
    let options = ScanOptions::new(threads).from(from);
    let (reached, end) = scan_in_order(run, options, &mut replayer, done);
    let Replayer { replay: Replay { store, .. }, has_last, .. } = replayer;
    let damage = match end {
        SegmentEnd::Damaged(damage) => Some(damage),
        _ => None,
    };
    Replayed { store, from: from.unwrap_or(run.start()), reached, has_last, damage }
}

/// Replays each record of a run.
struct Replayer<'o, O> {
    replay: Replay,
    observer: &'o mut O,
    observed_from: Lsn,
    last: Option<Lsn>,
    has_last: bool,
}

impl<O: Observer> Visitor for Replayer<'_, O> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if self.last.is_some_and(|last| record.lsn > last) {
            return ControlFlow::Break(());
        }
        if record.lsn >= self.observed_from {
            self.replay.apply(record, self.observer);
        } else {
            self.replay.apply(record, &mut ());
        }
        self.has_last |= self.last == Some(record.lsn);
        if self.has_last || self.replay.store.failure().is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

//! A run replayed into pages, one record after the other.

use std::ops::ControlFlow;

use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_redo::{BasePages, HintSettings, Observer, PageStore, Replay, StoreOptions};

use crate::datadir::DataDir;
use crate::inventory::Run;
use crate::scan::{Damage, ScanOptions, SegmentEnd, scan_in_order};

/// How a run is replayed.
#[derive(Debug)]
pub struct ReplayOptions {
    /// The base backup or stopped data directory whose pages the log goes on from.
    pub base: Option<DataDir>,
    /// The settings of hints of a server whose log it is, for a run without a base.
    pub hints: Option<HintSettings>,
    /// The last record to replay.
    pub last: Option<Lsn>,
    /// Records before this LSN are replayed, but the observer does not see them.
    pub observed_from: Lsn,
    /// Bytes of memory for pages; more go to a temporary file.
    pub memory_bytes: usize,
    /// Threads; with more than one, another one reads and decodes ahead.
    pub threads: usize,
}

/// A run that was replayed.
#[derive(Debug)]
pub struct Replayed {
    /// The pages. If it has failed ([`PageStore::failure`]), replay ended there.
    pub store: PageStore,
    /// Where replay began.
    pub from: Lsn,
    /// How far it got.
    pub reached: Lsn,
    /// [`ReplayOptions::last`] was replayed.
    pub has_last: bool,
    /// Damage that ended it.
    pub damage: Option<Damage>,
}

/// Replays a run. `done` gets the bytes of each segment that was read.
///
/// A run starts behind a gap, or where the log of its ancestors is not at hand ([`crate::timelines::lineages`]): what was known
/// of the pages before does not hold there.
pub fn replay_run<O: Observer>(
    run: &Run,
    options: ReplayOptions,
    observer: &mut O,
    done: impl FnMut(u64),
) -> Replayed {
    let ReplayOptions { base, hints, last, observed_from, memory_bytes, threads } = options;
    let hints = base.as_ref().map(|data| data.control().hint_settings()).or(hints);
    // What the base's files already have is not replayed a second time.
    let from = base.as_ref().map(DataDir::redo_from);
    let base = base.map(|data| Box::new(data) as Box<dyn BasePages>);
    let mut store = PageStore::new(StoreOptions { memory_bytes, base, ..StoreOptions::default() });
    if let Some(settings) = hints {
        store.hint_logging().note_settings(settings);
    }
    let mut replayer =
        Replayer { replay: Replay::new(store), observer, observed_from, last, has_last: false };
    let options = ScanOptions { threads, from, to: None };
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

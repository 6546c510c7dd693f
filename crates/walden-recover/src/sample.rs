//! A short replay that is discarded: it measures the speed of this machine.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::{NeededPart, Visitor};
use walden_redo::{BasePages, PageShare, PageStore, Replay, StoreOptions};
use walden_source::datadir::DataDir;
use walden_source::inventory::Run;
use walden_source::scan::{ScanOptions, scan_shared};

use crate::base::BaseBackup;
use crate::plan::Plan;

/// Duration of the sample.
const LIMIT: Duration = Duration::from_millis(500);
/// Shorter WAL takes about as long as the sample.
const MIN_BYTES: u64 = 64 << 20;
/// Records between looks at the clock.
const RECORDS: u64 = 256;

impl Plan {
    /// Replays the first part of the WAL in memory. Returns the bytes of WAL a second, or `None` if there is
    /// too little WAL to replay, or if the backup's pages cannot be read yet (in tar format).
    pub fn measure_replay(
        &self,
        run: &Run,
        base: &BaseBackup,
        threads: usize,
        memory_bytes: usize,
    ) -> Option<f64> {
        let redo = self.checkpoint.as_ref()?.fields.redo;
        if self.replayed_bytes() < MIN_BYTES || base.tar.is_some() {
            return None;
        }
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
        let started = Instant::now();
        let create = |index| {
            let pages: Box<dyn BasePages> = Box::new(DataDir::open(&base.path).ok()?);
            let options =
                StoreOptions::default().memory_bytes(memory_bytes / threads as usize).base(Some(pages));
            // Without the plan's overwritten pages, of which the first part of the WAL has the most.
            let mut store = PageStore::new(options.share(PageShare::new(index, threads)));
            store.hint_logging().note_settings(base.control.hint_settings());
            let position = self.start;
            Some(Sample { replay: Replay::new(store), start: self.start, position, started, records: 0 })
        };
        let mut samples: Vec<Sample> = (0..threads).map(create).collect::<Option<_>>()?;
        let range = ScanOptions::new(threads as usize).from(Some(self.start)).to(Some(redo));
        scan_shared(run, range, redo, &mut samples, |_| (), |_| ());
        let reached = samples.iter().map(|sample| sample.position).min()?;
        Some(reached.bytes_since(self.start) as f64 / started.elapsed().as_secs_f64())
    }
}

/// Replay by one thread until the time is over.
struct Sample {
    replay: Replay,
    start: Lsn,
    position: Lsn,
    started: Instant,
    records: u64,
}

impl Visitor for Sample {
    fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        self.replay.needed_part(record)
    }

    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        self.replay.apply(record, &mut ());
        self.position = record.end;
        self.records += 1;
        match self.records.is_multiple_of(RECORDS) && self.started.elapsed() > LIMIT {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

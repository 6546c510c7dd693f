//! A process that serves metrics of archiving for Prometheus over HTTP.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walden_archive::Archive;
use walden_archive::status::Holdings;
use walden_source::error_text;
use walden_source::workers::end_on_panic;
use walden_watch::http;

use crate::activity::ActivityReader;
use crate::configuration::ArchiveSection;
use crate::error::PlaceError;
use crate::metrics;
use crate::place::Place;
use crate::queue::QueueOptions;
use crate::receiving::ReceivingOptions;
use crate::report::{Report, STORE_ANSWERS_WITHIN, holdings, log_reader};
use crate::repositories::Comparing;

/// Time limit for a scrape, less than scrapers wait. When it expires, the answer has the previous values.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time limit for reading the archive, after which it counts as unresponsive, for example on a network file
/// system whose server is down. Listing the largest archives takes minutes.
const MAX_READING: Duration = Duration::from_secs(300);
/// Time limit for reading several repositories, after which they count as unresponsive.
const COMPARED_WITHIN: Duration = Duration::from_secs(120);

/// Reads the state of archiving when it is asked for metrics.
pub struct Exporter {
    place: Place,
    queue: QueueOptions,
    receiving: ReceivingOptions,
    log: Mutex<Option<ActivityReader>>,
    section: ArchiveSection,
    refresh: Duration,
    /// Contents of the archive, and when they were read.
    holdings: Mutex<Option<(Instant, Result<Holdings, String>)>>,
    /// Compares several repositories.
    comparing: Comparing,
    state: Mutex<State>,
    /// Signals that a report was requested or completed.
    changed: Condvar,
}

/// Requests for reports, which one thread computes in sequence.
#[derive(Default)]
struct State {
    /// Number of requests.
    asked: u64,
    /// Number of requests that existed when the last completed report was started.
    answered: u64,
    /// Start of the report in progress.
    since: Option<Instant>,
    last: Option<Report>,
}

impl Exporter {
    /// Creates an exporter, which lists the archive at most once per `refresh`, and for each request reads
    /// the queue and the activity log, which `log` or the configuration names.
    ///
    /// # Errors
    /// The archive cannot be chosen or opened.
    pub fn new(
        place: Place,
        queue: QueueOptions,
        receiving: ReceivingOptions,
        log: Option<&Path>,
        refresh: Duration,
    ) -> Result<Exporter, PlaceError> {
        let (_, section) = place.open()?;
        Ok(Exporter {
            comparing: Comparing::new(place.clone(), refresh),
            place,
            queue,
            receiving,
            log: Mutex::new(log_reader(log, &section)),
            section,
            refresh,
            holdings: Mutex::new(None),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        })
    }

    /// Serves `/metrics` until the process ends.
    pub fn serve(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            scope.spawn(|| end_on_panic(|| self.keep_reading()));
            http::serve(listener, &|| self.metrics());
        });
    }

    fn metrics(&self) -> String {
        let mut state = self.state();
        state.asked += 1;
        let asked = state.asked;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, ANSWER_WITHIN, |state| state.answered < asked);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (is_current, since, last) = (state.answered >= asked, state.since, state.last.clone());
        drop(state);
        let is_late = since.is_some_and(|since| since.elapsed() > MAX_READING);
        let report = match last {
            Some(report) if is_current || (report.holdings.is_some() && !is_late) => report,
            last => self.report_without_archive(last),
        };
        metrics::render(&report)
    }

    /// Computes a report whenever one is requested.
    fn keep_reading(&self) {
        let mut state = self.state();
        loop {
            let asked_for = self.changed.wait_while(state, |state| state.asked == state.answered);
            state = asked_for.unwrap_or_else(PoisonError::into_inner);
            let asked = state.asked;
            state.since = Some(Instant::now());
            drop(state);
            let report = self.report();
            state = self.state();
            state.since = None;
            state.answered = asked;
            state.last = Some(report);
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self) -> Report {
        // Opened for each report: an open archive caches its identity, and the archive may be gone.
        let opened = self.place.open_to_answer_within(STORE_ANSWERS_WITHIN);
        let opened = opened.map_err(|error| error_text(&error));
        let archive = opened.as_ref().map(|(archive, _)| archive);
        let holdings = archive.map_err(Clone::clone).and_then(|archive| self.holdings(archive));
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report =
            Report::new(archive.ok(), holdings, &self.queue, &self.receiving, log.as_mut(), &self.section);
        match self.comparing.compare_within(Some(COMPARED_WITHIN)) {
            Ok(comparison) => report.add_comparison(comparison),
            Err(error) => report.problems.push(error_text(&error)),
        }
        report
    }

    /// Reports the state without the archive: the queue, if it is in a folder, and the log's contents.
    fn report_without_archive(&self, last: Option<Report>) -> Report {
        // The server may not answer either.
        let queue = QueueOptions { dsn: None, ..self.queue.clone() };
        let error = Err("the archive does not answer".to_owned());
        let report = Report::new(None, error, &queue, &self.receiving, None, &self.section);
        let (lag, activity) = last.map(|last| (last.lag, last.activity)).unwrap_or_default();
        Report { lag: report.lag.or(lag), activity, ..report }
    }

    fn holdings(&self, archive: &Archive) -> Result<Holdings, String> {
        let mut last = self.holdings.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, found)) if at.elapsed() < self.refresh => found.clone(),
            _ => {
                let found = holdings(archive, &self.queue, &self.receiving);
                *last = Some((Instant::now(), found.clone()));
                found
            }
        }
    }
}

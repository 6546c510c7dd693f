//! `walden archive exporter`: serves metrics for Prometheus over HTTP.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::Archive;
use walden_archive::status::Holdings;

use super::activity::ActivityReader;
use super::metrics;
use super::queue::QueueOptions;
use super::receiving::ReceivingOptions;
use super::report::{Report, STORE_ANSWERS_WITHIN, holdings, log_reader};
use super::repositories::Comparing;
use crate::configuration::ArchiveSection;
use crate::place::Place;
use crate::threads::end_on_panic;
use crate::{http, output};

const EXAMPLES: &str = "\
Examples:
  walden archive exporter --data /var/lib/postgresql/18/main
      serve http://127.0.0.1:9719/metrics until it is stopped
  walden archive exporter --dsn 'host=db1 user=monitor' --listen 0.0.0.0:9719 --refresh 300

The endpoint has neither encryption nor a password: listen where only the scraper can connect.";

/// Serve metrics for Prometheus over HTTP
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExporterArgs {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    queue: QueueOptions,

    #[command(flatten)]
    receiving: ReceivingOptions,

    /// Log that push and get append to [default: the one in walden.toml]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9719")]
    listen: SocketAddr,

    /// Seconds between listings of the archive; each request reads the queue and the log
    #[arg(long, value_name = "N", default_value_t = 60)]
    refresh: u64,
}

/// Runs `walden archive exporter` until the process is terminated.
pub fn run(args: &ExporterArgs) -> Result<ExitCode> {
    let place = args.place.for_server(args.queue.pgdata.as_deref());
    let (_, section) = place.open()?;
    let queue = args.queue.clone().or_beside_configuration(&place);
    let refresh = Duration::from_secs(args.refresh);
    let exporter = Exporter {
        comparing: Comparing::new(place.clone(), refresh),
        place,
        queue,
        receiving: args.receiving.clone(),
        log: Mutex::new(log_reader(args.log.as_deref(), &section)),
        section,
        refresh,
        holdings: Mutex::new(None),
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
    };
    let listener =
        TcpListener::bind(args.listen).with_context(|| format!("cannot listen on {}", args.listen))?;
    output::tell(&format!("serving http://{}/metrics", listener.local_addr()?));
    std::thread::scope(|scope| {
        scope.spawn(|| end_on_panic(|| exporter.keep_reading()));
        http::serve(&listener, &|| exporter.metrics());
    });
    Ok(ExitCode::SUCCESS)
}

/// Time limit for a scrape, less than scrapers wait. When it expires, the answer has the previous values.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time limit for reading the archive, after which it counts as unresponsive, for example on a network file
/// system whose server is down. Listing the largest archives takes minutes.
const MAX_READING: Duration = Duration::from_secs(300);
/// Time limit for reading several repositories, after which they count as unresponsive.
const COMPARED_WITHIN: Duration = Duration::from_secs(120);

struct Exporter {
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
        let opened = opened.map_err(|error| crate::output::chain_text(&error));
        let archive = opened.as_ref().map(|(archive, _)| archive);
        let holdings = archive.map_err(Clone::clone).and_then(|archive| self.holdings(archive));
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report =
            Report::new(archive.ok(), holdings, &self.queue, &self.receiving, log.as_mut(), &self.section);
        match self.comparing.compare_within(Some(COMPARED_WITHIN)) {
            Ok(comparison) => report.add_comparison(comparison),
            Err(error) => report.problems.push(output::chain_text(&error)),
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

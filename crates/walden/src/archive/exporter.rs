//! `walden archive exporter`: metrics for Prometheus over HTTP.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::Archive;
use walden_archive::status::Holdings;

use super::activity::ActivityReader;
use super::metrics;
use super::queue::QueueOptions;
use super::receiving::ReceivingOptions;
use super::report::{Report, holdings, log_reader};
use crate::configuration::ArchiveSection;
use crate::place::Place;
use crate::{http, output};

const EXAMPLES: &str = "\
Examples:
  walden archive exporter --pgdata /var/lib/postgresql/18/main
      serve http://127.0.0.1:9719/metrics until it is stopped
  walden archive exporter --dsn 'host=db1 user=monitor' --listen 0.0.0.0:9719 --refresh 300

There is neither encryption nor a password: listen where only the scraper can connect.";

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

    /// The log that push and get append to [default: that of walden.toml]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9719")]
    listen: SocketAddr,

    /// Seconds after which the archive is listed again; the queue and the log are read at each request
    #[arg(long, value_name = "N", default_value_t = 60)]
    refresh: u64,
}

/// Runs `walden archive exporter`, until the process is ended.
pub fn run(args: &ExporterArgs) -> Result<ExitCode> {
    let (_, section) = args.place.open()?;
    let exporter = Exporter {
        place: args.place.clone(),
        queue: args.queue.clone(),
        receiving: args.receiving.clone(),
        log: Mutex::new(log_reader(args.log.as_deref(), &section)),
        section,
        refresh: Duration::from_secs(args.refresh),
        holdings: Mutex::new(None),
    };
    let listener =
        TcpListener::bind(args.listen).with_context(|| format!("cannot listen on {}", args.listen))?;
    output::tell(&format!("serving http://{}/metrics", listener.local_addr()?));
    http::serve(&listener, &|| exporter.metrics());
    Ok(ExitCode::SUCCESS)
}

struct Exporter {
    place: Place,
    queue: QueueOptions,
    receiving: ReceivingOptions,
    log: Mutex<Option<ActivityReader>>,
    section: ArchiveSection,
    refresh: Duration,
    /// What the archive held, and when that was.
    holdings: Mutex<Option<(Instant, Result<Holdings, String>)>>,
}

impl Exporter {
    fn metrics(&self) -> String {
        // Opened each time: what an archive that was read once says of itself is remembered, and this one may be gone since.
        let opened = self.place.open().map_err(|error| format!("{error:#}"));
        let archive = opened.as_ref().map(|(archive, _)| archive);
        let holdings = archive.map_err(Clone::clone).and_then(|archive| self.holdings(archive));
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let archive = archive.ok();
        let report =
            Report::new(archive, holdings, &self.queue, &self.receiving, log.as_mut(), &self.section);
        metrics::render(&report)
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

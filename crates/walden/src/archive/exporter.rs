//! `walden archive exporter`: metrics for Prometheus over HTTP.
//!
//! What it serves is one page to one or two scrapers, so it is a few lines over the standard library: a request is a few kilobytes at
//! most, a connection takes a few seconds at most, and two are served at a time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::Archive;
use walden_archive::status::{self, Holdings};
use walden_source::error_text;

use super::activity::ActivityReader;
use super::metrics;
use super::place::{ArchiveSection, Place};
use super::queue::QueueOptions;
use super::status::{ReceivingOptions, Report, log_reader};
use crate::output;

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

/// Connections that are served at the same time.
const THREADS: usize = 2;
/// More than any scraper's request has.
const MAX_REQUEST: usize = 8 << 10;
/// How long a connection may take.
const MAX_TIME: Duration = Duration::from_secs(5);

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
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    match listener.accept() {
                        // A scraper that went away is no error of ours.
                        Ok((stream, _)) => drop(exporter.serve(stream)),
                        // Out of file descriptors, for example: not at full speed.
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            });
        }
    });
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
        let mut holdings = self.holdings.lock().unwrap_or_else(PoisonError::into_inner);
        match &*holdings {
            Some((at, found)) if at.elapsed() < self.refresh => found.clone(),
            _ => {
                let found = status::holdings(archive).map_err(|error| error_text(&error));
                *holdings = Some((Instant::now(), found.clone()));
                found
            }
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let Some(request) = read_request(&mut stream)? else {
            return respond(&mut stream, "400 Bad Request", "expected a request of HTTP/1\n");
        };
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/metrics") => respond(&mut stream, "200 OK", &self.metrics()),
            ("GET", "/") => respond(&mut stream, "200 OK", "Walden's metrics are at /metrics.\n"),
            ("GET", _) => respond(&mut stream, "404 Not Found", "expected /metrics\n"),
            _ => respond(&mut stream, "405 Method Not Allowed", "expected GET\n"),
        }
    }
}

/// The first line of a request.
struct Request {
    method: String,
    path: String,
}

/// Reads a request up to the end of its headers; nothing if it is none.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    let began = Instant::now();
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        // Bytes that trickle in do not lengthen a connection's time.
        let left = MAX_TIME.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            more => request.extend(&buffer[..more]),
        }
        if request.len() > MAX_REQUEST {
            return Ok(None);
        }
    }
    let text = String::from_utf8_lossy(&request);
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    let path = target.split('?').next().unwrap_or_default();
    let is_http = version.starts_with("HTTP/1.");
    Ok(is_http.then(|| Request { method: method.to_owned(), path: path.to_owned() }))
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(MAX_TIME))?;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

//! `walden watch`: shows the WAL that is being written.

use std::io::{IsTerminal, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use postgres::error::SqlState;
use regex::Regex;
use walden_output::Inputs;
use walden_postgres::connection::ConnectionError;
use walden_postgres::names::NamesError;
use walden_server::signals::{self, SIGINT, SIGTERM};
use walden_source::names::Names;
use walden_watch::document::{Grouping, WatchDocument};
use walden_watch::http;
use walden_watch::session::{Followed, Session, SessionOptions, is_connection};
use walden_watch::windows::Window;
use walden_watch::{metrics, table};

use crate::arguments::{parse_pattern, parse_span};
use crate::output::Overwrite;
use crate::terminal::{self, Format};
use crate::{DAMAGED, names, output};

const EXAMPLES: &str = "\
Examples:
  walden watch /var/lib/postgresql/18/main
      what writes WAL now: a full-screen view that reads the files of a running server, without a connection
  walden watch /var/lib/postgresql/18/main --names 'host=/run/postgresql user=postgres'
      the same with the names of tables and indexes, and the state of the server's slots
  walden watch 'host=db1 user=replicator dbname=postgres'
      of a server elsewhere, over the replication protocol; it needs a role with REPLICATION
  walden watch --once --interval 30s PGDATA
      one table of the next 30 seconds
  walden watch --by schema --group 'tenant_(\\d+)' --names 'host=/run/postgresql user=postgres' PGDATA
      by schema, and by the text that a pattern matches in table names
  walden watch --interval 10s --format json PGDATA >> wal.jsonl
      a line of JSON every ten seconds, until it is stopped
  walden watch --listen 127.0.0.1:9187 PGDATA
      metrics for Prometheus at /metrics; docs/grafana/walden-watch.json is a dashboard of them

In the view: Tab changes the list, s the order, / filters, Enter shows a row's details, p pauses, w saves, q quits, ? helps.

Exit status: 0 done or stopped, 2 wrong usage, 3 the WAL cannot be read.";

/// Show the WAL that is being written: by relation, kind of record and database, with the next checkpoint
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WatchArgs {
    /// A server's data directory or its pg_wal folder, or a connection string for replication
    #[arg(value_name = "PGDATA|PG_WAL|DSN", env = "PGDATA", value_parser = NonEmptyStringValueParser::new())]
    source: String,

    /// Where to read the names of tables and indexes: a connection string, read again when files are created
    /// or dropped, or a file written by explain --save-names [default: the server itself, if DSN is given]
    #[arg(long, value_name = "DSN|FILE")]
    names: Vec<String>,

    /// Print one interval and exit
    #[arg(long, conflicts_with = "listen")]
    once: bool,

    /// Length of each printed interval, such as 10s, 5m [default: 10s]
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with = "listen")]
    interval: Option<i64>,

    /// Output format of intervals; without it and --once, a terminal gets a full-screen view
    #[arg(long, value_enum, conflicts_with = "listen")]
    format: Option<Format>,

    /// Serve metrics for Prometheus over HTTP, without encryption or a password: listen where only the
    /// scraper can connect
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Also group by schema, partition (partitioned tables with all their partitions) or tablespace; needs
    /// names
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',', conflicts_with = "listen")]
    by: Vec<By>,

    /// Also group by the text that a regular expression matches in DATABASE.SCHEMA.TABLE: its capture group,
    /// as in 'tenant_(\d+)'
    #[arg(long, value_name = "REGEX", value_parser = parse_pattern, conflicts_with = "listen")]
    group: Option<Regex>,

    /// Rows per list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Number of largest relations that get metrics of their own and keep them, up to ten times this number
    /// over time; the others share one
    #[arg(long, value_name = "N", default_value_t = 20, requires = "listen")]
    relations: usize,

    /// A setting of the server that differs from the one in its files: max_wal_size, checkpoint_timeout,
    /// checkpoint_completion_target
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,

    /// Exit after this time
    #[arg(long = "for", value_name = "SPAN", value_parser = parse_span)]
    duration: Option<i64>,

    /// At the end, save the totals of all observed WAL, as the JSON of explain
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

/// A grouping by names of relations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum By {
    Schema,
    Partition,
    Tablespace,
}

const DEFAULT_INTERVAL: i64 = 10;
/// Settings that --set accepts.
const SETTINGS: [&str; 3] = ["max_wal_size", "checkpoint_timeout", "checkpoint_completion_target"];

/// Runs `walden watch`.
pub fn run(args: &WatchArgs) -> Result<ExitCode> {
    output::can_write(&[("--save", args.save.as_deref())], args.overwrite, &Inputs::new([&args.source]))?;
    let mut session = start(args)?;
    match args.listen {
        Some(address) => listen(args, session, address),
        None if args.wants_screen() => view(args, session),
        None => {
            let printed = print_intervals(args, &mut session);
            end(args, &session)?;
            printed?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl WatchArgs {
    fn wants_screen(&self) -> bool {
        let is_plain = !self.once && self.format.is_none() && self.interval.is_none();
        cfg!(feature = "watch") && is_plain && std::io::stdout().is_terminal()
    }

    fn groupings(&self) -> Vec<Grouping> {
        let by = self.by.iter().map(|by| match by {
            By::Schema => Grouping::Schema,
            By::Partition => Grouping::Partition,
            By::Tablespace => Grouping::Tablespace,
        });
        by.chain(self.group.clone().map(|pattern| Grouping::Pattern(Box::new(pattern)))).collect()
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.unwrap_or(DEFAULT_INTERVAL).unsigned_abs())
    }
}

#[cfg(feature = "watch")]
fn view(args: &WatchArgs, mut session: Session) -> Result<ExitCode> {
    let save_as = |session: &Session, path: &Path| {
        save(args, session, path, Overwrite::default()).map_err(|error| output::chain_text(&error))
    };
    let shown = walden_watch::screen::run(&mut session, &save_as);
    end(args, &session)?;
    shown?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(not(feature = "watch"))]
fn view(_: &WatchArgs, _: Session) -> Result<ExitCode> {
    anyhow::bail!("this walden was built without the feature watch: use --once, --interval or --listen")
}

/// Starts to follow the WAL.
fn start(args: &WatchArgs) -> Result<Session> {
    let mut name_sources = args.names.clone();
    if is_connection(&args.source) && name_sources.is_empty() {
        name_sources.push(args.source.clone());
    }
    if name_sources.is_empty() && !(args.by.is_empty() && args.group.is_none()) {
        crate::wrong_usage("--by and --group group by names: --names says where they are");
    }
    let followed = Followed::open(&args.source)?;
    let mut are_missing = false;
    let names = match names::load(&name_sources) {
        Ok(names) => names,
        // A replication role may lack permission to connect to a database.
        Err(error) if args.names.is_empty() => {
            output::print_line(&format!("warning: no names: {}", output::chain_text(&error)));
            Names::default()
        }
        // The WAL can be read although the server does not run at the moment.
        Err(error) if !is_connection(&args.source) && is_unreachable(&error) => {
            output::print_line(&format!("warning: no names: {}; trying again", output::chain_text(&error)));
            are_missing = true;
            Names::default()
        }
        Err(error) => return Err(error),
    };
    let until = args.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds.unsigned_abs()));
    let options = SessionOptions::default()
        .name_sources(name_sources)
        .settings(args.set.clone())
        .relations(args.relations)
        .groupings(args.groupings())
        .until(until);
    let mut session = Session::start(followed, names, options)?;
    if are_missing {
        session.retry_names();
    }
    // Until here, a signal ends the process immediately: connecting may take minutes, and there is nothing to
    // save yet.
    session.stop_on(signals::stop_on(&[SIGTERM, SIGINT])?);
    Ok(session)
}

/// Returns whether a server with names cannot be reached, or is starting.
fn is_unreachable(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(NamesError::Connection(ConnectionError::Silent { .. })) => true,
        Some(NamesError::Connection(ConnectionError::Server { source, .. })) => {
            source.code().is_none_or(|code| *code == SqlState::CANNOT_CONNECT_NOW)
        }
        _ => false,
    }
}

/// Prints intervals until stopped. The last one may be shorter.
fn print_intervals(args: &WatchArgs, session: &mut Session) -> Result<()> {
    let interval = args.interval();
    session.watch_mut().take_interval();
    loop {
        let began = Instant::now();
        let mut goes_on = true;
        while goes_on && began.elapsed() < interval {
            goes_on = session.follow();
            session.news().iter().for_each(|line| output::print_line(line));
        }
        let window = session.watch_mut().take_interval();
        print(args, session, &window)?;
        if !goes_on || args.once {
            return Ok(());
        }
    }
}

fn print(args: &WatchArgs, session: &Session, window: &Window) -> Result<()> {
    let document = WatchDocument::new(session.watch(), window, session.groupings(), args.top);
    match args.format.unwrap_or_default() {
        Format::Json => {
            terminal::print(&(serde_json::to_string(&document)? + "\n"))?;
            terminal::Stdout.flush().context("cannot write to standard output")
        }
        Format::Table => terminal::print(&table::table(&document, session.groupings(), terminal::look())),
    }
}

fn end(args: &WatchArgs, session: &Session) -> Result<()> {
    if let Some(path) = &args.save {
        save(args, session, path, args.overwrite)?;
    }
    Ok(session.check()?)
}

/// Saves the sums.
fn save(args: &WatchArgs, session: &Session, path: &Path, overwrite: Overwrite) -> Result<()> {
    output::expect_no_input(path, &Inputs::new([&args.source]))?;
    output::write(path, terminal::json(&session.document())?, overwrite)
        .with_context(|| format!("cannot save to {}", path.display()))
}

/// Serves metrics until stopped.
fn listen(args: &WatchArgs, mut session: Session, address: SocketAddr) -> Result<ExitCode> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    output::print_line(&format!("serving http://{}/metrics", listener.local_addr()?));
    let page = Arc::new(Mutex::new(metrics::render(session.watch())));
    let served = page.clone();
    // This thread ends with the process, without losing anything.
    std::thread::spawn(move || http::serve(&listener, &|| lock(&served).clone()));
    let mut goes_on = true;
    while goes_on {
        goes_on = session.follow();
        session.news().iter().for_each(|line| output::print_line(line));
        *lock(&page) = metrics::render(session.watch());
    }
    end(args, &session)?;
    Ok(match session.watch().problem() {
        Some(_) => ExitCode::from(DAMAGED),
        None => ExitCode::SUCCESS,
    })
}

fn lock(page: &Mutex<String>) -> MutexGuard<'_, String> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| "expected NAME=VALUE, as max_wal_size=4GB".to_owned())?;
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
    if !SETTINGS.contains(&name.as_str()) {
        return Err(format!("\"{name}\" is none of {}", SETTINGS.join(", ")));
    }
    match walden_watch::settings::Settings::default().set(&name, &value) {
        true => Ok((name, value)),
        false => Err(format!("\"{value}\" is no value of {name}")),
    }
}

//! `walden watch`: shows the WAL that is being written.

mod metrics;
mod refresh;
#[cfg(feature = "watch")]
mod screen;
mod table;

use std::io::{IsTerminal, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use regex::Regex;
use walden_explain::document::{Context, Document};
use walden_postgres::connection::Parameters;
use walden_postgres::follow::{ConnectionFollower, FolderFollower};
use walden_server::signals::{self, SIGINT, SIGTERM};
use walden_watch::document::{self, Grouping, WatchDocument};
use walden_watch::server::{self, Folders};
use walden_watch::watch::{Source, Watch};
use walden_watch::windows::Window;

use self::refresh::{Answer, HasEnded, Refresher, Subject};
use crate::arguments::{parse_pattern, parse_span};
use crate::output::Overwrite;
use crate::protect::Inputs;
use crate::terminal::{self, Format};
use crate::{DAMAGED, http, names, output};

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

    /// Names of tables and indexes: a connection string, read again when files are created or dropped, or a
    /// file written by explain --save-names [default: the server itself, if DSN is given]
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

    /// At the end, save the sums of everything observed, as the JSON of explain
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

/// How often a folder is polled, and the maximum wait for a server.
const TICK: Duration = Duration::from_millis(200);
/// How often a folder is polled under heavy writes: a checkpoint may remove segments before they are read.
const BUSY_TICK: Duration = Duration::from_millis(40);
/// Bytes between two polls that count as heavy writes. Unused bytes after a segment switch count, too: a
/// checkpoint removes segments.
const BUSY_BYTES: u64 = 1 << 20;
/// How long frequent polling continues: between segment switches, a poll may find nothing.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Pause after an error.
const RETRY: Duration = Duration::from_secs(1);
const DEFAULT_INTERVAL: i64 = 10;
/// Settings that --set accepts.
const SETTINGS: [&str; 3] = ["max_wal_size", "checkpoint_timeout", "checkpoint_completion_target"];

/// Runs `walden watch`.
pub fn run(args: &WatchArgs) -> Result<ExitCode> {
    output::can_write(&[("--save", args.save.as_deref())], args.overwrite, &Inputs::new([&args.source]))?;
    let mut session = Session::start(args)?;
    match args.listen {
        Some(address) => listen(session, address),
        None if args.wants_screen() => view(session),
        None => {
            let printed = session.print_intervals();
            session.end()?;
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
fn view(mut session: Session<'_>) -> Result<ExitCode> {
    let shown = screen::run(&mut session);
    session.end()?;
    shown?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(not(feature = "watch"))]
fn view(_: Session<'_>) -> Result<ExitCode> {
    bail!("this walden was built without the feature watch: use --once, --interval or --listen")
}

/// The followed WAL, and the state that is read in addition.
struct Session<'a> {
    args: &'a WatchArgs,
    watch: Watch,
    groupings: Vec<Grouping>,
    refresher: Refresher,
    stop: Arc<AtomicBool>,
    until: Option<Instant>,
    is_folder: bool,
    /// End of frequent polling.
    busy_until: Instant,
    /// Number of notes already printed.
    told: usize,
    problem: Option<String>,
    server_problem: Option<String>,
    /// Whether a thread has ended by a panic, so that the server's state would stay at its last value.
    has_failed: bool,
}

impl<'a> Session<'a> {
    fn start(args: &'a WatchArgs) -> Result<Session<'a>> {
        let is_connection = args.source.contains("://") || args.source.contains('=');
        let mut name_sources = args.names.clone();
        if is_connection && name_sources.is_empty() {
            name_sources.push(args.source.clone());
        }
        if name_sources.is_empty() && !(args.by.is_empty() && args.group.is_none()) {
            crate::wrong_usage("--by and --group group by names: --names says where they are");
        }
        let is_dsn = |source: &&String| !Path::new(source.as_str()).is_file();
        let dsn = name_sources.iter().find(is_dsn).cloned();
        let (source, folders) = match is_connection {
            true => {
                let parameters = Parameters::parse(&args.source)?;
                let follower =
                    ConnectionFollower::connect(&parameters).context("cannot follow the server's log")?;
                (Source::Connection(Box::new(follower)), None)
            }
            false => {
                let folders = Folders::find(Path::new(&args.source));
                (Source::Folder(FolderFollower::at_end(&folders.wal)?), Some(folders))
            }
        };
        let names = match names::load(&name_sources) {
            Ok(names) => names,
            // A replication role may lack permission to connect to a database.
            Err(error) if args.names.is_empty() => {
                output::tell(&format!("warning: no names: {}", output::chain_text(&error)));
                walden_source::names::Names::default()
            }
            Err(error) => return Err(error),
        };
        let mut watch = Watch::new(source, names, args.relations);
        if let Some(named) = watch.names().origin.system_id
            && named != watch.info().system_id
        {
            bail!(
                "the names are of the cluster with the system identifier {named}, the WAL is of {}",
                watch.info().system_id
            );
        }
        let subject = Subject { folders, dsn, name_sources, settings: watch.names().settings.clone() };
        if let Some(folders) = &subject.folders {
            watch.set_server(server::from_files(folders), &args.set);
            watch.search_checkpoint();
        }
        let refresher = Refresher::start(subject);
        // Until here, a signal ends the process immediately: connecting may take minutes, and there is
        // nothing to save yet.
        let stop = signals::stop_on(&[SIGTERM, SIGINT])?;
        let until = args.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds.unsigned_abs()));
        Ok(Session {
            args,
            watch,
            groupings: args.groupings(),
            refresher,
            stop,
            until,
            is_folder: !is_connection,
            busy_until: Instant::now(),
            told: 0,
            problem: None,
            server_problem: None,
            has_failed: false,
        })
    }

    /// Waits, then counts new WAL. Returns whether to continue.
    fn follow(&mut self) -> bool {
        let result = match self.is_folder {
            true => {
                let is_busy = Instant::now() < self.busy_until;
                std::thread::sleep(if is_busy { BUSY_TICK } else { TICK });
                let before = self.watch.position();
                let result = self.watch.follow(Duration::ZERO);
                if self.watch.position().bytes_since(before) > BUSY_BYTES {
                    self.busy_until = Instant::now() + BUSY_FOR;
                }
                result
            }
            false => self.watch.follow(TICK),
        };
        if result.is_err() {
            std::thread::sleep(RETRY);
        }
        self.refresh();
        !self.is_over()
    }

    /// Applies the server's state and the names that were read meanwhile.
    fn refresh(&mut self) {
        if self.watch.takes_names() {
            self.refresher.ask_for_names();
        }
        loop {
            match self.refresher.answer() {
                Ok(Some(Answer::Server(state, queried))) => {
                    self.watch.set_server(*state, &self.args.set);
                    self.watch.set_queried(queried);
                }
                Ok(Some(Answer::Names(names))) => self.watch.set_names(*names),
                Ok(Some(Answer::Problem(problem))) => self.watch.note(problem),
                Ok(None) => return,
                Err(HasEnded) => {
                    self.has_failed = true;
                    return;
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.has_failed
            || self.stop.load(Ordering::SeqCst)
            || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Prints intervals until stopped. The last one may be shorter.
    fn print_intervals(&mut self) -> Result<()> {
        let interval = self.args.interval();
        self.watch.take_interval();
        loop {
            let began = Instant::now();
            let mut goes_on = true;
            while goes_on && began.elapsed() < interval {
                goes_on = self.follow();
                self.tell_news();
            }
            let window = self.watch.take_interval();
            self.print(&window)?;
            if !goes_on || self.args.once {
                return Ok(());
            }
        }
    }

    fn print(&self, window: &Window) -> Result<()> {
        let document = WatchDocument::new(&self.watch, window, &self.groupings, self.args.top);
        match self.args.format.unwrap_or_default() {
            Format::Json => {
                terminal::print(&(serde_json::to_string(&document)? + "\n"))?;
                terminal::Stdout.flush().context("cannot write to standard output")
            }
            Format::Table => terminal::print(&table::table(&document, &self.groupings, terminal::look())),
        }
    }

    /// Prints new notes and problems on standard error.
    fn tell_news(&mut self) {
        let notes = self.watch.notes();
        self.told = self.told.min(notes.len());
        notes[self.told..].iter().for_each(|note| output::tell(&format!("note: {}", note.text)));
        self.told = notes.len();
        let problem = self.watch.problem().map(str::to_owned);
        if problem != self.problem
            && let Some(problem) = &problem
        {
            output::tell(&format!("warning: {problem}; trying again"));
        }
        self.problem = problem;
        let problem = self.watch.server_problem().map(str::to_owned);
        if problem.is_some() != self.server_problem.is_some() {
            output::tell(&match &problem {
                Some(problem) => format!("warning: {}; trying again", document::unqueried_text(problem)),
                None => "note: the server answers again".to_owned(),
            });
        }
        self.server_problem = problem;
    }

    /// Returns the sums of everything observed, in the form of `walden explain`.
    fn document(&self) -> Document {
        let context = Context {
            names: self.watch.names(),
            checkpoint_settings: self.watch.checkpoint_settings(),
            top: None,
            pattern: None,
            writers: None,
        };
        Document::new(&self.watch.explanation(), &context)
    }

    fn end(&self) -> Result<()> {
        if let Some(path) = &self.args.save {
            self.save(path, self.args.overwrite)?;
        }
        match self.has_failed {
            true => bail!("cannot continue: a thread of this program has ended by a panic"),
            false => Ok(()),
        }
    }

    /// Saves the sums.
    fn save(&self, path: &Path, overwrite: Overwrite) -> Result<()> {
        output::expect_no_input(path, &Inputs::new([&self.args.source]))?;
        output::write(path, terminal::json(&self.document())?, overwrite)
            .with_context(|| format!("cannot save to {}", path.display()))
    }
}

/// Serves metrics until stopped.
fn listen(session: Session<'_>, address: SocketAddr) -> Result<ExitCode> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    output::tell(&format!("serving http://{}/metrics", listener.local_addr()?));
    let page = Arc::new(Mutex::new(metrics::render(&session.watch)));
    let served = page.clone();
    // This thread ends with the process, without losing anything.
    std::thread::spawn(move || http::serve(&listener, &|| lock(&served).clone()));
    let mut session = session;
    let mut goes_on = true;
    while goes_on {
        goes_on = session.follow();
        session.tell_news();
        *lock(&page) = metrics::render(&session.watch);
    }
    session.end()?;
    Ok(match session.watch.problem() {
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

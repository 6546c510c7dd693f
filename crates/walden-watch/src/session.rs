//! Follows a server's WAL, and reads its state and names meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walden_explain::document::{Context, Document};
use walden_postgres::connection::{ConnectionError, Parameters};
use walden_postgres::follow::{ConnectionFollower, FolderFollower, FollowError};
use walden_source::names::Names;

use crate::document::{Grouping, unqueried_text};
use crate::refresh::{Answer, HasEnded, Refresher, Subject};
use crate::server::{self, Folders};
use crate::watch::{Source, Watch};

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

/// Why WAL cannot be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The connection string is wrong.
    #[error("{0}")]
    Parameters(#[from] ConnectionError),
    /// The server's WAL cannot be followed over a connection.
    #[error("cannot follow the server's log")]
    Connection(#[source] FollowError),
    /// The WAL of a folder cannot be followed.
    #[error("{0}")]
    Folder(#[from] FollowError),
    /// The names are of another cluster than the WAL.
    #[error("the names belong to the cluster with the system identifier {names}, the WAL to {wal}")]
    OtherCluster {
        /// System identifier of the names.
        names: u64,
        /// System identifier of the WAL.
        wal: u64,
    },
    /// A thread has ended by a panic, so that the server's state would stay at its last value.
    #[error("cannot continue: a thread of this program has ended by a panic")]
    HasFailed,
}

/// WAL that can be followed: of a folder, or over a connection.
pub struct Followed {
    source: Source,
    folders: Option<Folders>,
}

impl Followed {
    /// Opens a data directory, its `pg_wal` folder, or a connection.
    ///
    /// # Errors
    /// There is no WAL, or no connection.
    pub fn open(source: &str) -> Result<Followed, SessionError> {
        if is_connection(source) {
            let parameters = Parameters::parse(source)?;
            let follower = ConnectionFollower::connect(&parameters).map_err(SessionError::Connection)?;
            return Ok(Followed { source: Source::Connection(Box::new(follower)), folders: None });
        }
        let folders = Folders::find(Path::new(source));
        let source = Source::Folder(FolderFollower::at_end(&folders.wal)?);
        Ok(Followed { source, folders: Some(folders) })
    }
}

/// Returns whether a source is a connection string, not a folder.
pub fn is_connection(source: &str) -> bool {
    source.contains("://") || source.contains('=')
}

/// The state that is read in addition to the WAL.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Files and connection strings with names. The first connection string is also asked for the server's
    /// state.
    pub name_sources: Vec<String>,
    /// Settings that differ from the settings in the server's files.
    pub settings: Vec<(String, String)>,
    /// Number of largest relations with totals of their own.
    pub relations: usize,
    /// Groupings by names of relations.
    pub groupings: Vec<Grouping>,
    /// When to end.
    pub until: Option<Instant>,
}

walden_format::setters!(SessionOptions {
    name_sources: Vec<String>,
    settings: Vec<(String, String)>,
    relations: usize,
    groupings: Vec<Grouping>,
    until: Option<Instant>,
});

/// The followed WAL, and the state that is read in addition.
pub struct Session {
    watch: Watch,
    options: SessionOptions,
    refresher: Refresher,
    stop: Option<Arc<AtomicBool>>,
    is_folder: bool,
    /// End of frequent polling.
    busy_until: Instant,
    /// Number of notes already reported.
    told: usize,
    problem: Option<String>,
    server_problem: Option<String>,
    has_failed: bool,
}

impl Session {
    /// Starts to follow the WAL. `names` are the names from the sources in the options.
    ///
    /// # Errors
    /// The names are of another cluster.
    pub fn start(followed: Followed, names: Names, options: SessionOptions) -> Result<Session, SessionError> {
        let is_folder = followed.folders.is_some();
        let mut watch = Watch::new(followed.source, names, options.relations);
        let wal = watch.info().system_id;
        if let Some(names) = watch.names().origin.system_id.filter(|names| *names != wal) {
            return Err(SessionError::OtherCluster { names, wal });
        }
        let is_dsn = |source: &&String| !Path::new(source.as_str()).is_file();
        let subject = Subject {
            folders: followed.folders,
            dsn: options.name_sources.iter().find(is_dsn).cloned(),
            name_sources: options.name_sources.clone(),
            settings: watch.names().settings.clone(),
        };
        if let Some(folders) = &subject.folders {
            let is_unknown = subject.dsn.is_none() && options.settings.is_empty();
            if let Some(note) = is_unknown.then(|| folders.settings_note()).flatten() {
                watch.note(format!("{note}; --names or --set has others"));
            }
            watch.set_server(server::from_files(folders), &options.settings);
            watch.search_checkpoint();
        }
        Ok(Session {
            watch,
            options,
            refresher: Refresher::start(subject),
            stop: None,
            is_folder,
            busy_until: Instant::now(),
            told: 0,
            problem: None,
            server_problem: None,
            has_failed: false,
        })
    }

    /// Reads the names again until their sources can be read.
    pub fn retry_names(&mut self) {
        self.refresher.ask_for_names();
    }

    /// Ends [`Session::follow`] when this becomes true.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Returns the sums so far.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns the sums so far, to take an interval of them.
    pub fn watch_mut(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Returns the groupings by names.
    pub fn groupings(&self) -> &[Grouping] {
        &self.options.groupings
    }

    /// Waits, then counts new WAL. Returns whether to continue.
    pub fn follow(&mut self) -> bool {
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
                    self.watch.set_server(*state, &self.options.settings);
                    self.watch.set_queried(queried);
                }
                Ok(Some(Answer::Names(names))) => {
                    let (wal, of) = (self.watch.info().system_id, names.origin.system_id);
                    match of.filter(|of| *of != wal) {
                        Some(names) => self.watch.note(SessionError::OtherCluster { names, wal }.to_string()),
                        None => self.watch.set_names(*names),
                    }
                }
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
            || self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::SeqCst))
            || self.options.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Returns new notes and problems, a line each.
    pub fn news(&mut self) -> Vec<String> {
        let notes = self.watch.notes();
        self.told = self.told.min(notes.len());
        let mut news: Vec<String> =
            notes[self.told..].iter().map(|note| format!("note: {}", note.text)).collect();
        self.told = notes.len();
        let problem = self.watch.problem().map(str::to_owned);
        if problem != self.problem
            && let Some(problem) = &problem
        {
            news.push(format!("warning: {problem}; trying again"));
        }
        self.problem = problem;
        let problem = self.watch.server_problem().map(str::to_owned);
        if problem.is_some() != self.server_problem.is_some() {
            news.push(match &problem {
                Some(problem) => format!("warning: {}; trying again", unqueried_text(problem)),
                None => "note: the server answers again".to_owned(),
            });
        }
        self.server_problem = problem;
        news
    }

    /// Returns the document of `walden explain` for all WAL observed.
    pub fn document(&self) -> Document {
        let context = Context {
            names: self.watch.names(),
            checkpoint_settings: self.watch.checkpoint_settings(),
            top: None,
            pattern: None,
            writers: None,
        };
        Document::new(&self.watch.explanation(), &context)
    }

    /// Checks that all threads still run.
    ///
    /// # Errors
    /// A thread has ended by a panic.
    pub fn check(&self) -> Result<(), SessionError> {
        match self.has_failed {
            true => Err(SessionError::HasFailed),
            false => Ok(()),
        }
    }
}

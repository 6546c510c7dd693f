//! Reads the server's state and the names of relations in a separate thread, while the main thread follows
//! the WAL.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use walden_postgres::connection::Client;
use walden_postgres::names::{self, NamesError};
use walden_source::names::Names;
use walden_watch::server::{self, Folders, ServerState};
use walden_watch::settings::Settings;

/// How often the server's state is read.
const STATE_EVERY: Duration = Duration::from_secs(5);
/// Reading the state takes at most 1/`STATE_SHARE` of the time.
const STATE_SHARE: u32 = 50;
/// Minimum time between two readings of names.
const NAMES_EVERY: Duration = Duration::from_secs(15);

/// The sources to read.
pub struct Subject {
    pub folders: Option<Folders>,
    /// The server to query for the state and the names.
    pub dsn: Option<String>,
    pub name_sources: Vec<String>,
    /// Settings that were saved with the names.
    pub settings: BTreeMap<String, String>,
}

/// A result of reading.
pub enum Answer {
    Server(Box<ServerState>),
    Names(Box<Names>),
    Problem(String),
}

/// The reading thread, which ends with the process.
pub struct Refresher {
    answers: Receiver<Answer>,
    requests: SyncSender<()>,
}

impl Refresher {
    pub fn start(subject: Subject) -> Refresher {
        let (requests, asked) = sync_channel(1);
        let (to, answers) = channel();
        std::thread::spawn(move || {
            let mut reader = Reader { subject, client: None, problem: None };
            let (mut names_read, mut wants_names) = (Instant::now(), false);
            loop {
                let began = Instant::now();
                if to.send(Answer::Server(Box::new(reader.state()))).is_err() {
                    return;
                }
                if let Some(problem) = reader.problem.take()
                    && to.send(Answer::Problem(problem)).is_err()
                {
                    return;
                }
                let pause = STATE_EVERY.max(began.elapsed() * STATE_SHARE);
                match asked.recv_timeout(pause) {
                    Ok(()) => wants_names = true,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                if wants_names && names_read.elapsed() >= NAMES_EVERY {
                    (names_read, wants_names) = (Instant::now(), false);
                    if let Some(names) = reader.names()
                        && to.send(Answer::Names(Box::new(names))).is_err()
                    {
                        return;
                    }
                }
            }
        });
        Refresher { answers, requests }
    }

    /// Requests that names be read again.
    pub fn ask_for_names(&self) {
        // A full channel means that a request is already pending, which suffices.
        let _ = self.requests.try_send(());
    }

    /// Returns the next result, if any.
    pub fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

struct Reader {
    subject: Subject,
    client: Option<Client>,
    problem: Option<String>,
}

impl Reader {
    fn state(&mut self) -> ServerState {
        let of_files = self.subject.folders.as_ref().map(server::from_files).unwrap_or_default();
        let Some(dsn) = &self.subject.dsn else { return of_files };
        if self.client.is_none() {
            self.client = walden_postgres::connection::connect(dsn).ok();
        }
        let Some(client) = &mut self.client else { return of_files };
        match server::by_sql(client, &Settings::from_server(&self.subject.settings)) {
            // Uses the files for values that the server does not report.
            Ok(state) => ServerState {
                settings: if state.settings.all().is_empty() { of_files.settings } else { state.settings },
                checkpoint: state.checkpoint.or(of_files.checkpoint),
                process: state.process,
                archiver: state.archiver.or(of_files.archiver),
                slots: state.slots,
                is_standby: state.is_standby,
            },
            Err(_) => {
                // The next reading connects again.
                self.client = None;
                of_files
            }
        }
    }

    /// Reads all names again. Returns `None` if no source can change.
    fn names(&mut self) -> Option<Names> {
        self.subject.dsn.as_ref()?;
        let mut all = Names::default();
        for source in &self.subject.name_sources {
            let more = match Path::new(source).is_file() {
                true => Names::load(Path::new(source)).map_err(NamesError::from),
                false => names::from_server(source),
            };
            if let Err(error) = more.and_then(|more| Ok(all.merge(more)?)) {
                self.problem = Some(format!("names: {}", walden_source::error_text(&error)));
                return None;
            }
        }
        self.subject.settings = all.settings.clone();
        Some(all)
    }
}

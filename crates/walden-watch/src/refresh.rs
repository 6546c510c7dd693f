//! Reads the server's state and the names of relations in a separate thread, while the main thread follows
//! the WAL.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel};
use std::time::{Duration, Instant};

use walden_postgres::connection::Client;
use walden_postgres::names::{self, NamesError};
use walden_source::names::Names;

use crate::server::{self, Folders, ServerState};
use crate::settings::Settings;

/// How often the server's state is read.
const STATE_EVERY: Duration = Duration::from_secs(5);
/// Longest time without an answer to a query of the state. Later, its values are no longer current.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
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
    /// The state, and whether the server was queried; `None` without a connection string.
    Server(Box<ServerState>, Option<Result<(), String>>),
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
            let mut reader = Reader { subject, client: None };
            let mut problem = None;
            let (mut names_read, mut wants_names) = (Instant::now(), false);
            loop {
                let began = Instant::now();
                let (state, queried) = reader.state();
                let has_failed = matches!(queried, Some(Err(_)));
                if to.send(Answer::Server(Box::new(state), queried)).is_err() {
                    return;
                }
                let pause = match has_failed {
                    true => STATE_EVERY,
                    false => STATE_EVERY.max(began.elapsed() * STATE_SHARE),
                };
                match asked.recv_timeout(pause) {
                    Ok(()) => wants_names = true,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                if wants_names && names_read.elapsed() >= NAMES_EVERY {
                    names_read = Instant::now();
                    let names = reader.names();
                    // Names that could not be read are read again.
                    wants_names = names.is_err();
                    let answer = match names {
                        Ok(names) => {
                            problem = None;
                            names.map(|names| Answer::Names(Box::new(names)))
                        }
                        Err(error) if problem.as_ref() == Some(&error) => None,
                        Err(error) => Some(Answer::Problem(problem.insert(error).clone())),
                    };
                    if let Some(answer) = answer
                        && to.send(answer).is_err()
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
    ///
    /// # Errors
    /// The thread has ended by a panic, and no result will follow.
    pub fn answer(&self) -> Result<Option<Answer>, HasEnded> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(HasEnded),
        }
    }
}

/// The reading thread has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct HasEnded;

struct Reader {
    subject: Subject,
    client: Option<Client>,
}

impl Reader {
    /// Reads the state. Without an answer of the server, returns what its files have.
    fn state(&mut self) -> (ServerState, Option<Result<(), String>>) {
        let of_files = self.subject.folders.as_ref().map(server::from_files).unwrap_or_default();
        let Some(dsn) = self.subject.dsn.clone() else { return (of_files, None) };
        let was_connected = self.client.is_some();
        let mut state = self.query(&dsn);
        if state.is_err() && was_connected {
            // The server may only have ended the session.
            self.client = None;
            state = self.query(&dsn);
        }
        match state {
            // Uses the files for values that the server does not report.
            Ok(state) => {
                let settings =
                    if state.settings.all().is_empty() { of_files.settings } else { state.settings };
                let checkpoint = state.checkpoint.or(of_files.checkpoint);
                let archiver = state.archiver.or(of_files.archiver);
                (ServerState { settings, checkpoint, archiver, ..state }, Some(Ok(())))
            }
            Err(problem) => {
                // The next reading connects again.
                self.client = None;
                (of_files, Some(Err(problem)))
            }
        }
    }

    fn query(&mut self, dsn: &str) -> Result<ServerState, String> {
        let client = match &mut self.client {
            Some(client) => client,
            none => {
                let mut client = walden_postgres::connection::connect(dsn)
                    .map_err(|error| walden_source::error_text(&error))?;
                client.set_limit(ANSWER_WITHIN);
                none.insert(client)
            }
        };
        // A reload may have changed the settings since the names were read.
        let settings = server::settings_by_sql(client, Settings::from_server(&self.subject.settings));
        settings
            .and_then(|settings| server::by_sql(client, &settings))
            .map_err(|error| walden_source::error_text(&error))
    }

    /// Reads all names again. Returns `None` if no source can change.
    fn names(&mut self) -> Result<Option<Names>, String> {
        if self.subject.dsn.is_none() {
            return Ok(None);
        }
        let mut all = Names::default();
        for source in &self.subject.name_sources {
            let more = match Path::new(source).is_file() {
                true => Names::load(Path::new(source)).map_err(NamesError::from),
                false => names::from_server(source),
            };
            more.and_then(|more| Ok(all.merge(more)?))
                .map_err(|error| format!("names: {}", walden_source::error_text(&error)))?;
        }
        self.subject.settings = all.settings.clone();
        Ok(Some(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_thread_is_noticed() {
        let (to, answers) = channel();
        let (requests, _asked) = sync_channel(1);
        let refresher = Refresher { answers, requests };
        assert!(matches!(refresher.answer(), Ok(None)));
        // A panic drops the sender.
        drop(to);
        assert!(matches!(refresher.answer(), Err(HasEnded)));
    }
}

//! Follows WAL and sums up its bytes, records and images by owner: since the start, over the last minutes,
//! and per checkpoint.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use walden_explain::checkpoints::{
    Begin, Cause, Checkpoint, CheckpointRecord, CheckpointSettings, explain_checkpoints,
};
use walden_explain::group::Owner;
use walden_explain::live::{Live, Piece};
use walden_explain::{Explanation, Labels, rewrites};
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::stream::{StreamInfo, Visitor};
use walden_postgres::follow::{
    CheckpointSearch, ConnectionFollower, FolderFollower, FollowError, Follower, GapReason, News, Polled,
};
use walden_source::names::Names;

use crate::forecast::{Cycle, Forecast, forecast};
use crate::process::ServerProcess;
use crate::server::ServerState;
use crate::totals::Totals;
use crate::windows::{Sums, Window, Windows};

/// Most checkpoints that are kept.
const MAX_CHECKPOINTS: usize = 100;
/// The window whose rate predicts the next checkpoint, in seconds.
const RATE_WINDOW: f64 = 60.0;
/// The first major version whose WAL shows the start of a checkpoint (`CHECKPOINT_REDO`).
const CHECKPOINT_REDO_SINCE: u32 = 17;
/// How long one call continues while more WAL is available.
const MAX_CATCH_UP: Duration = Duration::from_millis(500);

/// The source of followed WAL: a folder or a connection.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Source {
    Folder(FolderFollower),
    Connection(Box<ConnectionFollower>),
}

impl Follower for Source {
    fn info(&self) -> StreamInfo {
        match self {
            Source::Folder(follower) => follower.info(),
            Source::Connection(follower) => follower.info(),
        }
    }

    fn position(&self) -> Lsn {
        match self {
            Source::Folder(follower) => follower.position(),
            Source::Connection(follower) => follower.position(),
        }
    }

    fn poll(&mut self, visitor: &mut impl Visitor, patience: Duration) -> Result<Polled, FollowError> {
        match self {
            Source::Folder(follower) => follower.poll(visitor, patience),
            Source::Connection(follower) => follower.poll(visitor, patience),
        }
    }
}

/// Follows WAL and computes sums.
#[non_exhaustive]
pub struct Watch {
    source: Source,
    live: Live,
    began: Instant,
    started_at: Lsn,
    windows: Windows,
    interval: Option<(f64, Sums)>,
    totals: Totals,
    names: Names,
    known_rewrites: usize,
    wants_names: bool,
    server: ServerState,
    /// Whether the server was last queried with success, and why not; `None` if it is not queried.
    queried: Option<Result<(), String>>,
    /// The end of WAL, read completely after the process in `postmaster.pid` was found missing. If more WAL
    /// follows, the server runs elsewhere.
    end_without_process: Option<Lsn>,
    /// The state of the server in the last note about it.
    noted_process: ServerProcess,
    checkpoint_settings: Option<CheckpointSettings>,
    checkpoints: Vec<Checkpoint>,
    /// The redo pointer of a checkpoint in progress, and when it was seen.
    running: Option<Cycle>,
    /// Whether a checkpoint may be in progress that started before the first record that was seen.
    may_be_running: bool,
    last_record: Option<SystemTime>,
    notes: Vec<Note>,
    problem: Option<String>,
}

/// An event, described for the user.
#[derive(Clone, Debug)]
pub struct Note {
    /// Time of the event.
    pub time: SystemTime,
    /// Description of the event.
    pub text: String,
}

/// Most notes that are kept.
const MAX_NOTES: usize = 20;

impl Watch {
    /// Starts at the follower's position. Totals have separate sums for the `max_relations` largest relations
    /// and for relations that were among them before, and one sum for all others.
    pub fn new(source: Source, names: Names, max_relations: usize) -> Watch {
        let (info, position) = (source.info(), source.position());
        let mut names = names;
        names.set_version(info.version);
        Watch {
            live: Live::new(&info, position),
            source,
            began: Instant::now(),
            started_at: position,
            windows: Windows::new(0.0),
            interval: None,
            totals: Totals { max_relations, ..Totals::default() },
            names,
            known_rewrites: 0,
            wants_names: false,
            server: ServerState::default(),
            queried: None,
            end_without_process: None,
            noted_process: ServerProcess::Unknown,
            checkpoint_settings: None,
            checkpoints: Vec::new(),
            running: None,
            may_be_running: info.version.number() >= CHECKPOINT_REDO_SINCE,
            last_record: None,
            notes: Vec::new(),
            problem: None,
        }
    }

    /// Counts WAL written since the last call. On a connection, waits for at most `patience`. Returns whether
    /// there is more.
    ///
    /// # Errors
    /// The folder or the connection cannot be read. The next call tries again.
    pub fn follow(&mut self, patience: Duration) -> Result<bool, FollowError> {
        let began = Instant::now();
        let mut patience = patience;
        loop {
            let before = self.source.position();
            let polled = self.source.poll(&mut self.live, patience);
            let (info, position) = (self.source.info(), self.source.position());
            match &polled {
                Ok(Polled { news: Some(news), .. }) => {
                    self.live.begin(&info, position);
                    self.note_news(news);
                }
                // Also counts WAL that was decoded before an error.
                _ => {
                    let piece = self.live.settle(&info, position);
                    if position > before {
                        self.count(&piece);
                    }
                }
            }
            match polled {
                Ok(Polled { has_more: false, is_connecting, .. }) => {
                    if !is_connecting {
                        self.problem = None;
                    }
                    if let ServerProcess::ProcessMissing(_) = self.server.process {
                        self.end_without_process.get_or_insert(position);
                    }
                    return Ok(false);
                }
                Ok(_) if began.elapsed() > MAX_CATCH_UP => return Ok(true),
                Ok(_) => patience = Duration::ZERO,
                Err(error) => {
                    self.problem = Some(walden_source::error_text(&error));
                    return Err(error);
                }
            }
        }
    }

    fn count(&mut self, piece: &Piece) {
        let now = self.now();
        self.last_record = Some(SystemTime::now());
        self.windows.add(now, piece);
        if let Some((_, sums)) = &mut self.interval {
            sums.add(piece);
        }
        self.totals.add(piece, now);
        self.end_relations();
        self.wants_names |= piece.has_new_files;
        for begun in &piece.begun {
            self.running = Some(Cycle { redo: *begun, began: Some(unix_now()), server_started: None });
            self.may_be_running = false;
        }
        for record in &piece.checkpoints {
            self.add_checkpoint(*record);
        }
        if self.live.rewrites() > self.known_rewrites {
            self.known_rewrites = self.live.rewrites();
            rewrites::learn(&self.live.explanation(), &mut self.names);
        }
    }

    /// Returns the names of a relation in metrics: its database's and its own.
    pub fn relation_labels(&self, relation: RelFileLocator) -> (String, String) {
        let labels = Labels::from_names(self.names(), false);
        let label = labels.owner(Owner::Relation(relation, Fork::MAIN));
        (label.database.unwrap_or_default(), label.name.unwrap_or(label.text))
    }

    /// Adds ended sums of rewritten relations to the sum of another file of the same relation: both have the
    /// same name, and sums by name must not decrease.
    fn end_relations(&mut self) {
        for (relation, tally) in std::mem::take(&mut self.totals.ended) {
            let labels = self.relation_labels(relation);
            let same =
                self.totals.relations.keys().find(|key| self.relation_labels(**key) == labels).copied();
            match same.and_then(|key| self.totals.relations.get_mut(&key)) {
                Some(total) => total.tally.merge(&tally),
                None => self.totals.left_relations.merge(&tally),
            }
        }
    }

    fn add_checkpoint(&mut self, record: CheckpointRecord) {
        let last = self.checkpoints.last().map(|checkpoint| checkpoint.record);
        // The checkpoint of `pg_control` precedes the first one that was seen.
        let last = last.or_else(|| {
            let (redo, time) = self.server.checkpoint.filter(|(redo, _)| *redo < record.redo)?;
            let begin = Begin::Unmarked;
            Some(CheckpointRecord { lsn: redo, redo, time, shutdown: false, is_finished: true, begin })
        });
        let records: Vec<CheckpointRecord> = last.into_iter().chain([record]).collect();
        let size = self.source.info().segment_size;
        let explained = explain_checkpoints(&records, size, self.checkpoint_settings);
        if let Some(checkpoint) = explained.last() {
            self.totals.add_checkpoint(checkpoint.cause);
            self.checkpoints.push(*checkpoint);
            if self.checkpoints.len() > MAX_CHECKPOINTS {
                self.checkpoints.remove(0);
            }
        }
        self.finish_checkpoint(record.redo);
    }

    /// Records that the checkpoint with this redo pointer is complete. There is only one at a time.
    fn finish_checkpoint(&mut self, redo: Lsn) {
        if self.running.is_some_and(|running| running.redo <= redo) {
            self.running = None;
        }
        self.may_be_running = false;
    }

    /// Searches for a checkpoint that was in progress when the watch started; `pg_control` has the last
    /// complete one. On a connection, earlier WAL is not read.
    pub fn search_checkpoint(&mut self) {
        let Source::Folder(follower) = &mut self.source else { return };
        let Some((redo, _)) = self.server.checkpoint.filter(|_| self.may_be_running) else { return };
        match follower.search_checkpoint(redo) {
            Ok(CheckpointSearch::Begun { redo, time }) => {
                self.running =
                    Some(Cycle { redo, began: time.map(|time| time as f64), server_started: None });
                self.may_be_running = false;
            }
            Ok(CheckpointSearch::None) => self.may_be_running = false,
            // The document reports that there may be one.
            Ok(CheckpointSearch::Unknown) | Err(_) => {}
        }
    }

    fn note_news(&mut self, news: &News) {
        let text = match news {
            News::Timeline { timeline, start, discarded: 0 } => {
                format!("timeline {timeline} continues at {start}")
            }
            News::Timeline { timeline, start, discarded } => format!(
                "timeline {timeline} continues at {start}; {discarded} bytes after it were counted and do not belong to it"
            ),
            News::Gap { from, to, reason } => {
                self.totals.missed_bytes += to.bytes_since(*from);
                let why = match reason {
                    GapReason::Removed => "the server has removed it".to_owned(),
                    GapReason::Damaged(fault) => format!("it is damaged: {fault}"),
                    GapReason::Reconnected => "the server does not have it any more".to_owned(),
                    GapReason::Begun => "it is the end of a record that started earlier".to_owned(),
                };
                format!("the WAL from {from} to {to} is not counted: {why}")
            }
        };
        self.note(text);
    }

    /// Keeps a note for the user.
    pub fn note(&mut self, text: String) {
        self.notes.push(Note { time: SystemTime::now(), text });
        if self.notes.len() > MAX_NOTES {
            self.notes.remove(0);
        }
    }

    /// Sets the server's state. `overrides` are settings that the user has given, which take precedence.
    pub fn set_server(&mut self, server: ServerState, overrides: &[(String, String)]) {
        let before = std::mem::replace(&mut self.server, server);
        self.note_process(before.process);
        if let (Some((before, _)), Some((redo, _))) = (before.checkpoint, self.server.checkpoint)
            && before < redo
        {
            self.finish_checkpoint(redo);
        }
        for (name, value) in overrides {
            self.server.settings.set(name, value);
        }
        let version = self.source.info().version;
        self.checkpoint_settings = CheckpointSettings::from_settings(self.server.settings.all(), version);
    }

    /// Sets whether the server was last queried with success.
    pub fn set_queried(&mut self, queried: Option<Result<(), String>>) {
        self.queried = queried;
    }

    /// Returns whether the server was last queried with success; `None` if it is not queried.
    pub fn is_queried(&self) -> Option<bool> {
        self.queried.as_ref().map(Result::is_ok)
    }

    /// Returns why the server cannot be queried at present.
    pub fn server_problem(&self) -> Option<&str> {
        self.queried.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Notes that the server does not run although it was not stopped, or that it runs again. Two consecutive
    /// readings must agree: the first one uses only the files, even if the server is queried afterwards.
    fn note_process(&mut self, before: ServerProcess) {
        if self.server.process != before {
            self.end_without_process = None;
            return;
        }
        let process = self.server_process();
        if process == self.noted_process {
            return;
        }
        let is_unclean = |process: ServerProcess| {
            matches!(process, ServerProcess::Crashed | ServerProcess::ProcessMissing(_))
        };
        let was_unclean = is_unclean(self.noted_process);
        self.noted_process = process;
        match process.stopped_text() {
            Some(text) if is_unclean(process) => self.note(text),
            None if was_unclean => self.note("the server runs".to_owned()),
            _ => {}
        }
    }

    /// Sets names that were read again.
    pub fn set_names(&mut self, names: Names) {
        self.names = names;
        self.names.set_version(self.source.info().version);
        if self.known_rewrites > 0 {
            rewrites::learn(&self.live.explanation(), &mut self.names);
        }
    }

    /// Returns whether files of relations were created or dropped since the last call, so that names may have
    /// changed.
    pub fn takes_names(&mut self) -> bool {
        std::mem::take(&mut self.wants_names)
    }

    /// Returns the seconds since the start.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Returns the sums of the last seconds.
    pub fn window(&self, seconds: f64) -> Window {
        self.windows.last(self.now(), seconds)
    }

    /// Starts a new interval, and returns the window of the previous interval.
    pub fn take_interval(&mut self) -> Window {
        let now = self.now();
        match self.interval.replace((now, Sums::default())) {
            Some((since, sums)) => Window { seconds: now - since, sums },
            None => Window::default(),
        }
    }

    /// Returns the current checkpoint cycle: it starts at the checkpoint in progress, or else at the last
    /// checkpoint in the WAL or in `pg_control`.
    pub fn cycle(&self) -> Option<Cycle> {
        let server_started = self.server.started.map(|started| started as f64);
        let of = |redo, time: i64| Cycle { redo, began: Some(time as f64), server_started };
        let seen = self.checkpoints.last().map(|last| of(last.record.redo, last.record.time));
        let said = self.server.checkpoint.map(|(redo, time)| of(redo, time));
        let running = self.running.filter(|_| self.is_checkpoint_running());
        let all = [running, seen, said].into_iter().flatten();
        all.max_by_key(|cycle| cycle.redo).filter(|cycle| cycle.redo <= self.position())
    }

    /// Predicts the next checkpoint at the rate of the last minute. For a stopped server, returns only the
    /// WAL since the last checkpoint.
    pub fn forecast(&self) -> Option<Forecast> {
        let window = self.window(RATE_WINDOW);
        let rate = window.per_second(window.sums.total().bytes());
        let size = self.source.info().segment_size;
        let cycle = self.cycle()?;
        let settings = self.checkpoint_settings.filter(|_| !self.server_process().is_stopped());
        Some(forecast(cycle, self.position(), size, settings, rate, unix_now()))
    }

    /// Returns the end of the counted WAL.
    pub fn position(&self) -> Lsn {
        self.source.position()
    }

    /// Returns where counting started.
    pub fn started_at(&self) -> Lsn {
        self.started_at
    }

    /// Returns version, timeline and sizes of the followed WAL.
    pub fn info(&self) -> StreamInfo {
        self.source.info()
    }

    /// Returns the sums since the start.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the server's state, as last read.
    pub fn server(&self) -> &ServerState {
        &self.server
    }

    /// Returns the settings that trigger checkpoints, if they are known.
    pub fn checkpoint_settings(&self) -> Option<CheckpointSettings> {
        self.checkpoint_settings
    }

    /// Returns the checkpoints seen, in WAL order.
    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// Returns whether the server runs. If the process in `postmaster.pid` does not exist here, new WAL shows
    /// that the server runs elsewhere.
    pub fn server_process(&self) -> ServerProcess {
        let has_log_come = self.end_without_process.is_some_and(|end| self.position() > end);
        match self.server.process {
            ServerProcess::ProcessMissing(_) if has_log_come => ServerProcess::Running,
            process => process,
        }
    }

    /// Returns whether a checkpoint in progress was seen (17 and later).
    pub fn is_checkpoint_running(&self) -> bool {
        self.running.is_some() && !self.server_process().is_stopped()
    }

    /// Returns whether a checkpoint may be in progress that started before the watch (17 and later).
    pub fn may_checkpoint_be_running(&self) -> bool {
        self.may_be_running && !self.server_process().is_stopped()
    }

    /// Returns the names of relations.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the events.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Returns why the WAL cannot be read at present.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns when WAL was last counted.
    pub fn last_record(&self) -> Option<SystemTime> {
        self.last_record
    }

    /// Returns the sums since the start in the form of `walden explain`.
    pub fn explanation(&self) -> Explanation {
        self.live.explanation()
    }
}

/// Every cause of a checkpoint that can be distinguished while WAL is followed.
pub const CAUSES: [Cause; 5] = Cause::ALL;

pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

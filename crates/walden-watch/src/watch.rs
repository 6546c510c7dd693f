//! What a log's follower finds, summed up: in total, over the last minutes, by checkpoint.

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

/// Checkpoints that are remembered.
const MAX_CHECKPOINTS: usize = 100;
/// The window whose rate predicts the next checkpoint, in seconds.
const RATE_WINDOW: f64 = 60.0;
/// The first major version whose log says that a checkpoint has begun (`CHECKPOINT_REDO`).
const CHECKPOINT_REDO_SINCE: u32 = 17;
/// How long one call goes on while more is there.
const MAX_CATCH_UP: Duration = Duration::from_millis(500);

/// A log that is followed: a folder or a connection.
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

/// Follows a log and sums up.
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
    /// Where the log ended once all of it was read after the process of `postmaster.pid` was found missing. What comes behind it, a
    /// server wrote that runs elsewhere.
    end_without_process: Option<Lsn>,
    /// What was noted last of whether the server runs.
    noted_process: ServerProcess,
    checkpoint_settings: Option<CheckpointSettings>,
    checkpoints: Vec<Checkpoint>,
    /// The redo pointer of a checkpoint in progress, and when it was seen.
    running: Option<Cycle>,
    /// Whether a checkpoint may have begun before the first record that was seen, and not be finished.
    may_be_running: bool,
    last_record: Option<SystemTime>,
    notes: Vec<Note>,
    problem: Option<String>,
}

/// Something that happened, for people.
#[derive(Clone, Debug)]
pub struct Note {
    /// When.
    pub time: SystemTime,
    /// What.
    pub text: String,
}

/// Notes that are kept.
const MAX_NOTES: usize = 20;

impl Watch {
    /// Begins where the follower is. Totals have the `max_relations` largest relations apart, those that were among them once, and the
    /// others as one.
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

    /// Counts what was written since the last call; of a connection, waits for at most `patience`. Returns whether there is more.
    ///
    /// # Errors
    /// The folder or the connection cannot be read; the next call tries again.
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
                // Also what came before an error.
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
                    if let ServerProcess::NotHere(_) = self.server.process {
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
            self.running = Some(Cycle { redo: *begun, began: Some(unix_now()) });
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

    /// The names of a relation in metrics: its database's and its own.
    pub fn relation_labels(&self, relation: RelFileLocator) -> (String, String) {
        let labels = Labels::of_names(self.names(), false);
        let label = labels.owner(Owner::Relation(relation, Fork::MAIN));
        (label.database.unwrap_or_default(), label.name.unwrap_or(label.text))
    }

    /// Of a relation that was rewritten, the sum of the file that ended goes on in that of another one: they have one name, and sums by
    /// name do not fall.
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
        // Before the first one that was seen, that of pg_control.
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

    /// Notes that the checkpoint with this redo pointer is finished: there is one at a time.
    fn finish_checkpoint(&mut self, redo: Lsn) {
        if self.running.is_some_and(|running| running.redo <= redo) {
            self.running = None;
        }
        self.may_be_running = false;
    }

    /// Looks for a checkpoint that had begun when this did, and is in progress: `pg_control` has the last one that was finished. Of a
    /// connection, the log before is not read.
    pub fn search_checkpoint(&mut self) {
        let Source::Folder(follower) = &mut self.source else { return };
        let Some((redo, _)) = self.server.checkpoint.filter(|_| self.may_be_running) else { return };
        match follower.search_checkpoint(redo) {
            Ok(CheckpointSearch::Begun { redo, time }) => {
                self.running = Some(Cycle { redo, began: time.map(|time| time as f64) });
                self.may_be_running = false;
            }
            Ok(CheckpointSearch::None) => self.may_be_running = false,
            // It is said that there may be one.
            Ok(CheckpointSearch::Unknown) | Err(_) => {}
        }
    }

    fn note_news(&mut self, news: &News) {
        let text = match news {
            News::Timeline { timeline, start, discarded: 0 } => {
                format!("timeline {timeline} goes on at {start}")
            }
            News::Timeline { timeline, start, discarded } => format!(
                "timeline {timeline} goes on at {start}; {discarded} bytes behind it were counted and are not part of it"
            ),
            News::Gap { from, to, reason } => {
                self.totals.missed_bytes += to.bytes_since(*from);
                let why = match reason {
                    GapReason::Removed => "the server has removed it".to_owned(),
                    GapReason::Damaged(fault) => format!("it is damaged: {fault}"),
                    GapReason::Reconnected => "the server does not have it any more".to_owned(),
                    GapReason::Begun => "it is the end of a record that began before".to_owned(),
                };
                format!("the log from {from} to {to} is not counted: {why}")
            }
        };
        self.note(text);
    }

    /// Keeps a note for people.
    pub fn note(&mut self, text: String) {
        self.notes.push(Note { time: SystemTime::now(), text });
        if self.notes.len() > MAX_NOTES {
            self.notes.remove(0);
        }
    }

    /// Takes over what the server says of itself, with settings that a user gave over its own.
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

    /// Notes that the server does not run although nobody stopped it, or that it does again, once two readings in a row agree: the first
    /// one is from the files alone also where the server is asked afterwards.
    fn note_process(&mut self, before: ServerProcess) {
        if self.server.process != before {
            self.end_without_process = None;
            return;
        }
        let process = self.server_process();
        if process == self.noted_process {
            return;
        }
        let is_unclean =
            |process: ServerProcess| matches!(process, ServerProcess::Crashed | ServerProcess::NotHere(_));
        let was_unclean = is_unclean(self.noted_process);
        self.noted_process = process;
        match process.stopped_text() {
            Some(text) if is_unclean(process) => self.note(text),
            None if was_unclean => self.note("the server runs".to_owned()),
            _ => {}
        }
    }

    /// Takes over names that were read anew.
    pub fn set_names(&mut self, names: Names) {
        self.names = names;
        self.names.set_version(self.source.info().version);
        if self.known_rewrites > 0 {
            rewrites::learn(&self.live.explanation(), &mut self.names);
        }
    }

    /// Whether files of relations were created or dropped since the last call, so that names may have changed.
    pub fn takes_names(&mut self) -> bool {
        std::mem::take(&mut self.wants_names)
    }

    /// Seconds since it began.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The sums of the last seconds.
    pub fn window(&self, seconds: f64) -> Window {
        self.windows.last(self.now(), seconds)
    }

    /// Begins an interval of its own, and returns the one before.
    pub fn take_interval(&mut self) -> Window {
        let now = self.now();
        match self.interval.replace((now, Sums::default())) {
            Some((since, sums)) => Window { seconds: now - since, sums },
            None => Window::default(),
        }
    }

    /// The present checkpoint cycle: of the one in progress, of the last one in the log, or of the last one in `pg_control`.
    pub fn cycle(&self) -> Option<Cycle> {
        let seen = self
            .checkpoints
            .last()
            .map(|last| Cycle { redo: last.record.redo, began: Some(last.record.time as f64) });
        let said = self.server.checkpoint.map(|(redo, time)| Cycle { redo, began: Some(time as f64) });
        let running = self.running.filter(|_| self.is_checkpoint_running());
        let all = [running, seen, said].into_iter().flatten();
        all.max_by_key(|cycle| cycle.redo).filter(|cycle| cycle.redo <= self.position())
    }

    /// The next checkpoint, at the rate of the last minute; of a server that does not run, what there is since the last one.
    pub fn forecast(&self) -> Option<Forecast> {
        let window = self.window(RATE_WINDOW);
        let rate = window.per_second(window.sums.total().bytes());
        let size = self.source.info().segment_size;
        let cycle = self.cycle()?;
        let settings = self.checkpoint_settings.filter(|_| !self.server_process().is_stopped());
        Some(forecast(cycle, self.position(), size, settings, rate, unix_now()))
    }

    /// The end of what was counted.
    pub fn position(&self) -> Lsn {
        self.source.position()
    }

    /// Where counting began.
    pub fn started_at(&self) -> Lsn {
        self.started_at
    }

    /// What is followed.
    pub fn info(&self) -> StreamInfo {
        self.source.info()
    }

    /// The sums since it began.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The server's state, as it was read last.
    pub fn server(&self) -> &ServerState {
        &self.server
    }

    /// The settings that trigger checkpoints, if they are known.
    pub fn checkpoint_settings(&self) -> Option<CheckpointSettings> {
        self.checkpoint_settings
    }

    /// The checkpoints seen, the last one last.
    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// Whether the server runs. Where the process of `postmaster.pid` is not here, log that comes shows that it runs elsewhere.
    pub fn server_process(&self) -> ServerProcess {
        let has_log_come = self.end_without_process.is_some_and(|end| self.position() > end);
        match self.server.process {
            ServerProcess::NotHere(_) if has_log_come => ServerProcess::Running,
            process => process,
        }
    }

    /// Whether a checkpoint is seen to be in progress (17 and later).
    pub fn is_checkpoint_running(&self) -> bool {
        self.running.is_some() && !self.server_process().is_stopped()
    }

    /// Whether a checkpoint may be in progress that began before this did (17 and later).
    pub fn may_checkpoint_be_running(&self) -> bool {
        self.may_be_running && !self.server_process().is_stopped()
    }

    /// The names of relations.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What happened.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Why the log cannot be read at present.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// When something was counted last.
    pub fn last_record(&self) -> Option<SystemTime> {
        self.last_record
    }

    /// The sums since it began as `walden explain` has them.
    pub fn explanation(&self) -> Explanation {
        self.live.explanation()
    }
}

/// Every cause of a checkpoint that can be told apart while the log is followed.
pub const CAUSES: [Cause; 5] = Cause::ALL;

pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

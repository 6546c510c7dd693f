//! The state of a receiver, for users and programs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use walden_format::lsn::{Lsn, SegmentName, Timeline};

/// The file in the spool that has the status as JSON.
pub const FILE: &str = "status.json";

/// The state of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Connecting to the server.
    #[default]
    Connecting,
    /// Receiving WAL.
    Streaming,
    /// Waiting to try again, for the reason given.
    Waiting,
    /// Ended.
    Stopped,
}

/// The status of a receiver; the content of [`FILE`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The receiver's state.
    pub state: State,
    /// Why the receiver waits or has stopped. If it was stopped during an interruption, the reason for the
    /// interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The problem as one word, for metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The stable code of the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How the user can solve the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Why archiving waits, although receiving continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_problem: Option<String>,
    /// The server: host and port, or the folder of its socket.
    pub server: String,
    /// The system identifier, as text: JSON numbers are not exact at this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_identifier: Option<String>,
    /// The replication slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// The timeline that is received.
    pub timeline: Timeline,
    /// End LSN of the received WAL.
    pub received_lsn: String,
    /// End LSN of the durable WAL: on this machine, and also in the archive if acknowledgement waits for the
    /// archive.
    pub flushed_lsn: String,
    /// End LSN of the archived segments; absent before the first archived segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_lsn: Option<String>,
    /// The server's WAL position, as last reported.
    pub server_lsn: String,
    /// When the server last sent anything, in microseconds since 1970; missing before the first connection,
    /// and in files of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_time: Option<i64>,
    /// Number of bytes of the server's WAL that are not durable yet.
    pub lag_bytes: u64,
    /// For how many seconds some of the server's WAL has not been durable.
    pub lag_seconds: f64,
    /// Number of files that wait to be archived.
    pub waiting_files: u64,
    /// The copies of the archive, if there are several, in the configured order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyState>,
    /// Number of connections that were lost or failed since the process started.
    pub interruptions: u64,
    /// When this status was written, in microseconds since 1970.
    pub time: i64,
}

/// The state of one copy of the archive.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CopyState {
    /// Location of the archive.
    pub location: String,
    /// End LSN of the WAL in this copy, if WAL is acknowledged only once it is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_lsn: Option<String>,
    /// Whether this copy lacks files that other copies have, and is brought up to date in the background.
    #[serde(default)]
    pub is_behind: bool,
    /// Why this copy does not get WAL or is not brought up to date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A status that several threads change.
#[derive(Default)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub status: Status,
    pub received: Lsn,
    pub flushed: Lsn,
    pub server_end: Lsn,
    /// When the server last sent anything.
    pub heard: Option<Instant>,
    /// Whether the server has accepted START_REPLICATION since the process started.
    pub has_streamed: bool,
    /// The last segment that this process has archived.
    pub archived: Option<SegmentName>,
    /// The copies of the archive, in the configured order.
    pub copies: Vec<Copy>,
    /// Number of copies that must have WAL before it is acknowledged.
    pub acknowledge: usize,
    /// Since when some of the server's WAL is not durable.
    behind_since: Option<Instant>,
    /// When the receiving thread last made progress.
    got_on: Option<Instant>,
}

/// A copy of the archive.
#[derive(Default)]
pub(crate) struct Copy {
    location: String,
    /// End LSN of the WAL in this copy, with parts of the incomplete segment.
    stored: Lsn,
    /// Why parts of the incomplete segment cannot be stored.
    upload_problem: Option<String>,
    /// Whether this copy lacks files that other copies have.
    is_behind: bool,
    /// Why this copy is not brought up to date.
    copy_problem: Option<String>,
}

impl Copy {
    pub fn new(location: String) -> Copy {
        Copy { location, ..Copy::default() }
    }
}

impl Inner {
    /// Records how far a copy has WAL, and why it has no more.
    pub fn note_stored(&mut self, copy: usize, stored: Lsn, problem: Option<String>) {
        if let Some(copy) = self.copies.get_mut(copy) {
            (copy.stored, copy.upload_problem) = (stored, problem);
        }
    }

    /// Records whether a copy lacks files, and why it still does.
    pub fn note_behind(&mut self, copy: usize, is_behind: bool, problem: Option<String>) {
        if let Some(copy) = self.copies.get_mut(copy) {
            (copy.is_behind, copy.copy_problem) = (is_behind, problem);
        }
    }

    /// Returns why WAL is not acknowledged: too few copies store parts of the incomplete segment.
    pub fn upload_problem(&self) -> Option<String> {
        let problems: Vec<&String> =
            self.copies.iter().filter_map(|copy| copy.upload_problem.as_ref()).collect();
        let is_short = self.copies.len() - problems.len() < self.acknowledge;
        problems.first().filter(|_| is_short).map(|problem| (*problem).clone())
    }

    fn copy_states(&self) -> Vec<CopyState> {
        if self.copies.len() < 2 {
            return Vec::new();
        }
        let state = |copy: &Copy| CopyState {
            location: copy.location.clone(),
            stored_lsn: Some(copy.stored).filter(|&stored| stored != Lsn::INVALID).map(|lsn| lsn.to_string()),
            is_behind: copy.is_behind,
            problem: copy.upload_problem.clone().or_else(|| copy.copy_problem.clone()),
        };
        self.copies.iter().map(state).collect()
    }

    /// Records a new state, which is progress of the receiving thread.
    pub fn set(&mut self, state: State) {
        self.status.state = state;
        self.note_alive();
    }

    /// Records that the receiving thread makes progress, or waits with a time limit.
    pub fn note_alive(&mut self) {
        self.got_on = Some(Instant::now());
    }

    /// Records the position of a server after connecting, so that the status is right even if the server then
    /// sends no WAL.
    pub fn note_server(&mut self, server_end: Lsn, heard: Instant) {
        self.heard = Some(heard);
        self.note(self.received, self.flushed, server_end);
    }

    /// Records the positions of the server and the receiver.
    pub fn note(&mut self, received: Lsn, flushed: Lsn, server_end: Lsn) {
        self.note_alive();
        (self.received, self.flushed, self.server_end) = (received, flushed, server_end);
        // Before the local position is known, nothing counts as missing.
        match flushed != Lsn::INVALID && flushed < server_end {
            true => drop(self.behind_since.get_or_insert_with(Instant::now)),
            false => self.behind_since = None,
        }
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the receiving thread has made no progress.
    pub fn idle(&self) -> Duration {
        self.lock().got_on.map_or(Duration::ZERO, |got_on| got_on.elapsed())
    }

    /// Returns the current status.
    pub fn now(&self) -> Status {
        let inner = self.lock();
        let mut status = inner.status.clone();
        status.archive_problem = inner.upload_problem().or(status.archive_problem);
        status.copies = inner.copy_states();
        status.received_lsn = inner.received.to_string();
        status.flushed_lsn = inner.flushed.to_string();
        status.server_lsn = inner.server_end.to_string();
        status.lag_bytes = match inner.flushed {
            Lsn::INVALID => 0,
            flushed => inner.server_end.bytes_since(flushed),
        };
        status.lag_seconds = inner.behind_since.map_or(Duration::ZERO, |since| since.elapsed()).as_secs_f64();
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        status.time = micros(time);
        status.heard_time = inner.heard.map(|heard| micros(time.saturating_sub(heard.elapsed())));
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_only_says_where_it_is_counts() {
        let shared = Shared::default();
        shared.lock().note_server(Lsn(700), Instant::now());
        let status = shared.now();
        assert_eq!((status.server_lsn.as_str(), status.lag_bytes), ("0/000002BC", 0));
        assert!(status.heard_time.is_some());
        shared.lock().note(Lsn(500), Lsn(400), Lsn(700));
        assert_eq!(shared.now().lag_bytes, 300);
        shared.lock().note_server(Lsn(900), Instant::now());
        let status = shared.now();
        assert_eq!((status.received_lsn.as_str(), status.lag_bytes), ("0/000001F4", 500));
        assert!(shared.lock().behind_since.is_some());
    }

    #[test]
    fn when_the_server_was_heard_of_is_in_the_status() {
        let shared = Shared::default();
        assert_eq!(shared.now().heard_time, None);
        shared.lock().heard = Some(Instant::now());
        let status = shared.now();
        let heard = status.heard_time.unwrap();
        assert!((status.time - 60_000_000..=status.time).contains(&heard), "{status:?}");
        // As written by an earlier version.
        let mut json = serde_json::to_value(&status).unwrap();
        json.as_object_mut().unwrap().remove("heard_time");
        let read: Status = serde_json::from_value(json).unwrap();
        assert_eq!(read, Status { heard_time: None, ..status });
    }
}

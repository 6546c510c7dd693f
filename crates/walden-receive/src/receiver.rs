//! A server's log into an archive, for as long as both are there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use walden_archive::push::{PushError, PushOptions, Pushed};
use walden_archive::{Archive, ArchiveError, list, parts};
use walden_format::fault::Fault;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::connection::Parameters;
use walden_source::error_text;
use walden_source::replication::{Replication, ReplicationError, System};

use crate::archiving::Archiving;
use crate::disk::Disk;
use crate::session::Session;
use crate::spool::{Position, Spool, SpoolError};
use crate::status::{self, State, Status};
use crate::uploading::{UploadError, Uploading};

/// How a log is received.
#[derive(Clone, Debug)]
pub struct Options {
    /// The replication slot, so that the server keeps what is not received yet.
    pub slot: Option<String>,
    /// Make the slot if it is not there.
    pub is_slot_created: bool,
    /// Synchronise as soon as something has come, and say so at once: commits wait for it.
    pub is_synchronous: bool,
    /// Where the log must be durable before it is acknowledged.
    pub ack_after: AckAfter,
    /// How often the server is told how far we are, at least.
    pub status_interval: Duration,
    /// A server that says nothing for so long is gone.
    pub server_timeout: Duration,
    /// How files are archived.
    pub push: PushOptions,
}

/// Where the log must be durable before it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AckAfter {
    /// In the spool.
    #[default]
    Spool,
    /// In the archive as well: the segment that is being written, in parts.
    Archive,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slot: None,
            is_slot_created: false,
            is_synchronous: false,
            ack_after: AckAfter::default(),
            status_interval: Duration::from_secs(10),
            server_timeout: Duration::from_secs(60),
            push: PushOptions::default(),
        }
    }
}

/// Why no log is received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The server or the connection.
    #[error(transparent)]
    Server(#[from] ReplicationError),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The archive.
    #[error("cannot use the archive")]
    Archive(#[from] ArchiveError),
    /// The server is another cluster's.
    #[error("the server is another cluster's: expected {what} {expected}, found {found}")]
    OtherCluster {
        /// What was compared.
        what: &'static str,
        /// The archive's.
        expected: String,
        /// The server's.
        found: String,
    },
    /// The server's log left ours before the end of what was received.
    #[error(
        "the server's log is not a continuation of ours: expected timeline {timeline} or one that descends from it, found timeline {found}"
    )]
    OtherHistory {
        /// The timeline that was received.
        timeline: Timeline,
        /// The server's.
        found: Timeline,
    },
    /// The server's log ends before what was received.
    #[error("the server's log ends at {server}: expected at least {received}, which was received before")]
    Behind {
        /// The end of the server's log.
        server: Lsn,
        /// The end of what is here, as far as it is asked for again.
        received: Lsn,
    },
    /// What has come is damaged.
    #[error("what has come is damaged at {}: expected {}, found {}", .0.at, .0.expected(), .0.found())]
    Damaged(Fault),
    /// The slot is not there.
    #[error("the replication slot \"{0}\" does not exist")]
    NoSlot(String),
    /// The server has said nothing for too long.
    #[error("the server has said nothing for {0} s")]
    Silent(u64),
    /// The system's.
    #[error("cannot begin")]
    System(#[from] std::io::Error),
}

impl From<Fault> for ReceiveError {
    fn from(fault: Fault) -> ReceiveError {
        ReceiveError::Damaged(fault)
    }
}

/// What is done about an error.
struct Remedy {
    cause: &'static str,
    hint: Option<&'static str>,
    /// To try again could not help, or could do harm.
    is_final: bool,
}

impl ReceiveError {
    /// The cause in a word, for logs and metrics.
    pub fn cause(&self) -> &'static str {
        self.remedy().cause
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        self.remedy().hint
    }

    /// Whether to try again could not help, or could do harm.
    pub fn is_final(&self) -> bool {
        self.remedy().is_final
    }

    fn remedy(&self) -> Remedy {
        let remedy = |cause, hint| Remedy { cause, hint: Some(hint), is_final: false };
        let last = |cause, hint| Remedy { cause, hint: Some(hint), is_final: true };
        match self {
            ReceiveError::Server(error) => match error.server_error().map(|error| error.code.as_str()) {
                // undefined_file
                Some("58P01") => remedy(
                    "wal_removed",
                    "the server has removed WAL that is missing here. Import it from another copy (walden archive import, or push from the old server's pg_wal), or take a new base backup and begin anew with an empty spool and a new archive; a replication slot (--slot) keeps the server from removing what is not received",
                ),
                // object_not_in_prerequisite_state
                Some("55000") => remedy(
                    "slot_lost",
                    "the slot was invalidated or serves something else: see pg_replication_slots (wal_status, invalidation_reason) and max_slot_wal_keep_size; drop it, make it again with --create-slot, and fill the hole with walden archive import",
                ),
                // object_in_use
                Some("55006") => remedy(
                    "slot_in_use",
                    "another program receives with this slot; each needs one of its own",
                ),
                // undefined_object
                Some("42704") => remedy("no_slot", "make the slot with --create-slot"),
                // insufficient_privilege, invalid_authorization_specification, invalid_password
                Some("42501" | "28000" | "28P01") => remedy(
                    "not_admitted",
                    "the user needs the attribute REPLICATION and a line \"host replication USER ADDRESS scram-sha-256\" in pg_hba.conf",
                ),
                // too_many_connections
                Some("53300") => {
                    remedy("too_many_connections", "raise max_wal_senders or end another receiver")
                }
                // cannot_connect_now
                Some("57P03") => remedy("starting", "the server starts or shuts down"),
                Some(_) => Remedy { cause: "server", hint: None, is_final: false },
                None => match error {
                    ReplicationError::Closed => Remedy { cause: "closed", hint: None, is_final: false },
                    ReplicationError::Parameters(_) => last("parameters", "see walden receive --help"),
                    ReplicationError::Tls { .. } | ReplicationError::Authentication { .. } => remedy(
                        "not_admitted",
                        "see \"Connections to servers\" in docs/archive.md for passwords and certificates",
                    ),
                    _ => Remedy { cause: "connection", hint: None, is_final: false },
                },
            },
            ReceiveError::Spool(SpoolError::Disk { source, .. }) => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => remedy(
                    "disk_full",
                    "make room for the spool: until then nothing more is acknowledged, and the server keeps its WAL",
                ),
                _ => remedy("disk", "check the spool's disk: until it works nothing more is acknowledged"),
            },
            ReceiveError::Spool(SpoolError::Different { .. }) => remedy(
                "different",
                "nothing was overwritten. The server has another history than the one received: it was restored, or another server answers. Look at both; to go on with the server's log, move the spool away and use a new archive",
            ),
            ReceiveError::Spool(SpoolError::Order { .. }) => {
                Remedy { cause: "order", hint: None, is_final: false }
            }
            ReceiveError::Archive(error) => {
                Remedy { cause: error.cause(), hint: error.hint(), is_final: false }
            }
            ReceiveError::OtherCluster { .. } => {
                last("other_cluster", "give each cluster an archive and a spool of its own")
            }
            ReceiveError::OtherHistory { .. } => last(
                "other_history",
                "nothing was overwritten. An old primary that came back, or a standby that was promoted before it had all: connect to the server that goes on with the received timeline",
            ),
            ReceiveError::NoSlot(_) => remedy("no_slot", "make the slot with --create-slot"),
            ReceiveError::Behind { .. } => remedy(
                "behind",
                "a standby catches up by itself; a primary that was restored from an older state has lost what is here: look before you go on, nothing was overwritten",
            ),
            ReceiveError::Damaged(_) => remedy(
                "damaged",
                "it was not acknowledged and is asked for again. If it comes again at the same place, the server's own WAL is damaged there (check with walden explain); else look at the network and this machine's memory",
            ),
            ReceiveError::Silent(_) => remedy("silent", "check the network and the server"),
            ReceiveError::System(_) => Remedy { cause: "system", hint: None, is_final: false },
        }
    }
}

/// How long it is waited after an interruption: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// After so many connections in a row whose log is not the one received before, it is another history.
const MAX_DIFFERENCES: u32 = 3;
/// For how long the thread that receives may do nothing.
const MAX_IDLE: Duration = Duration::from_secs(180);
/// A connection that was kept for so long was a good one.
const GOOD: Duration = Duration::from_secs(10);

/// A server's log into an archive.
pub struct Receiver<'a> {
    archive: &'a Archive,
    disk: &'a dyn Disk,
    parameters: Parameters,
    options: Options,
    status: status::Shared,
}

/// What happened, for logs.
#[derive(Debug)]
pub enum Event<'e> {
    /// The log comes from this position.
    Streaming {
        /// The server.
        server: &'e str,
        /// Its version.
        version: &'e str,
        /// From where.
        position: Position,
        /// The connection is encrypted.
        is_encrypted: bool,
    },
    /// The timeline ended, and another one goes on.
    Switched {
        /// The timeline that ended.
        from: Timeline,
        /// From where the other one is received.
        position: Position,
    },
    /// Nothing comes; it is tried again after this time.
    Interrupted {
        /// Why.
        error: &'e ReceiveError,
        /// After which time.
        pause: Duration,
    },
    /// The log could not be archived as it came, so that nothing is acknowledged; it is tried again after this time.
    NotStored {
        /// Why.
        error: &'e UploadError,
        /// After which time.
        pause: Duration,
    },
    /// A file was archived or not.
    Archived {
        /// Its name.
        name: &'e str,
        /// What became of it.
        result: &'e Result<Pushed, PushError>,
        /// Files that waited.
        waiting: usize,
    },
}

/// Takes what happened.
pub type Observer<'o> = &'o (dyn Fn(Event<'_>) + Sync);

impl<'a> Receiver<'a> {
    /// Prepares to receive; nothing is connected to yet.
    pub fn new(
        archive: &'a Archive,
        disk: &'a dyn Disk,
        parameters: Parameters,
        options: Options,
    ) -> Receiver<'a> {
        let status = status::Shared::default();
        status.lock().status.slot = options.slot.clone();
        Receiver { archive, disk, parameters, options, status }
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        self.status.now()
    }

    /// Whether the thread that receives gets on: connects, receives, or waits to try again. No step of it takes longer than a minute.
    pub fn is_alive(&self) -> bool {
        self.status.idle() < MAX_IDLE
    }

    /// Receives and archives until `stop` is set, which takes effect within a fraction of a second.
    ///
    /// # Errors
    /// What to try again could not mend. Other errors interrupt, and are seen in [`Receiver::status`].
    pub fn run(&self, stop: &AtomicBool) -> Result<(), ReceiveError> {
        self.run_observed(stop, &|_| {})
    }

    /// The same, with everything that happens told.
    ///
    /// # Errors
    /// As [`Receiver::run`].
    pub fn run_observed(&self, stop: &AtomicBool, observer: Observer<'_>) -> Result<(), ReceiveError> {
        let connected = self.ended(self.retry(stop, observer, || self.connect()))?;
        let Some((replication, system, size)) = connected else { return Ok(()) };
        let mut first = Some((replication, system, size));
        let spool = self.ended(Spool::open(self.disk, size).map_err(ReceiveError::from))?;
        let uploading = (self.options.ack_after == AckAfter::Archive).then(|| {
            let report = |error: &UploadError, pause| observer(Event::NotStored { error, pause });
            Uploading::new(self.archive, &spool, size, &self.status, report)
        });
        let uploading = uploading.as_ref();
        let archiving = Archiving {
            archive: self.archive,
            spool: &spool,
            size,
            options: &self.options.push,
            status: &self.status,
            report: &|name, result, waiting| observer(Event::Archived { name, result, waiting }),
            archived: &|file| uploading.into_iter().for_each(|uploading| uploading.note_archived(file)),
            is_due: Mutex::new(false),
            due: Condvar::new(),
            is_over: AtomicBool::new(false),
        };
        let result = std::thread::scope(|scope| {
            scope.spawn(|| archiving.run());
            scope.spawn(|| uploading.into_iter().for_each(Uploading::run));
            let session = Session {
                archive: self.archive,
                spool: &spool,
                size,
                options: &self.options,
                status: &self.status,
                archiving: &archiving,
                uploading,
                observer,
            };
            let result = self.retry(stop, observer, || {
                let (mut replication, system, _) = first.take().map_or_else(|| self.connect(), Ok)?;
                session.run(&mut replication, system, stop)
            });
            archiving.stop();
            uploading.into_iter().for_each(Uploading::stop);
            result
        });
        self.ended(result).map(drop)
    }

    /// Tries until it is done or must stop; nothing if it was to stop before.
    fn retry<T>(
        &self,
        stop: &AtomicBool,
        observer: Observer<'_>,
        mut attempt: impl FnMut() -> Result<T, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        let (mut pause, mut differences, mut furthest) = (PAUSE.0, 0, Lsn::INVALID);
        while !stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            self.set(State::Connecting, None);
            let error = match attempt() {
                Ok(done) => return Ok(Some(done)),
                Err(error) => error,
            };
            // A flipped bit of the network looks like another history once.
            let is_different = matches!(error, ReceiveError::Spool(SpoolError::Different { .. }));
            differences = if is_different { differences + 1 } else { 0 };
            if error.is_final() || differences == MAX_DIFFERENCES {
                return Err(error);
            }
            // Commits may wait for what is left of the log, so a connection that got on is made again at once.
            let flushed = self.status.lock().flushed;
            if began.elapsed() > GOOD || flushed > furthest {
                pause = PAUSE.0;
            }
            furthest = furthest.max(flushed);
            self.status.lock().status.interruptions += 1;
            self.set(State::Waiting, Some(&error));
            observer(Event::Interrupted { error: &error, pause });
            let until = Instant::now() + pause;
            while Instant::now() < until && !stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20).min(pause));
            }
            pause = (2 * pause).min(PAUSE.1);
        }
        Ok(None)
    }

    /// Connects, and makes sure that it is the archive's cluster.
    fn connect(&self) -> Result<(Replication, System, SegmentSize), ReceiveError> {
        let mut replication = Replication::connect(&self.parameters)?;
        let system = replication.identify()?;
        let size = replication.segment_size()?;
        let other =
            |what, expected: String, found: String| Err(ReceiveError::OtherCluster { what, expected, found });
        match self.archive.claim(system.system_id, size) {
            Ok(()) => {}
            Err(ArchiveError::OtherCluster { expected, found, .. }) => {
                return other("system identifier", expected, found);
            }
            Err(ArchiveError::OtherSegmentSize { expected, found, .. }) => {
                return other("segments of bytes", expected.to_string(), found.to_string());
            }
            // What is received goes into the spool meanwhile; the archive checks it once it answers.
            Err(error) => self.status.lock().status.archive_problem = Some(error_text(&error)),
        }
        if let Some(slot) = self.options.slot.as_ref().filter(|_| self.options.is_slot_created) {
            match replication.create_slot(slot) {
                // duplicate_object
                Err(error) if error.server_error().is_some_and(|error| error.code == "42710") => {}
                other => other?,
            }
        }
        let mut inner = self.status.lock();
        inner.status.server = replication.place().to_owned();
        inner.status.system_identifier = Some(system.system_id.to_string());
        drop(inner);
        Ok((replication, system, size))
    }

    fn ended<T>(&self, result: Result<T, ReceiveError>) -> Result<T, ReceiveError> {
        self.set(State::Stopped, result.as_ref().err());
        result
    }

    fn set(&self, state: State, error: Option<&ReceiveError>) {
        let mut inner = self.status.lock();
        inner.set(state);
        if error.is_some() || state != State::Connecting {
            inner.status.problem = error.map(|error| error_text(error));
            inner.status.cause = error.map(|error| error.cause().to_owned());
            inner.status.hint = error.and_then(ReceiveError::hint).map(str::to_owned);
        }
    }
}

/// Where an archive's log goes on.
///
/// # Errors
/// The archive's.
pub(crate) fn position_of(archive: &Archive, size: SegmentSize) -> Result<Option<Position>, ArchiveError> {
    let position = |name: SegmentName, past: u64| {
        Some(Position { timeline: name.timeline, start: name.start(size)?.plus(past), info: None })
    };
    Ok(match list::newest_segment(archive)? {
        Some(newest) => position(newest, size.bytes()),
        // The first one was not complete yet.
        None => parts::segments(archive)?.first().and_then(|&first| position(first, 0)),
    })
}

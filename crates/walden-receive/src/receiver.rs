//! A server's log into an archive, for as long as both are there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use walden_archive::{Archive, ArchiveError};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_postgres::connection::Parameters;
use walden_postgres::replication::{Replication, System};
use walden_source::error_text;

use crate::archiving::Archiving;
use crate::backoff::Backoff;
use crate::disk::Disk;
use crate::error::{ReceiveError, WAL_REMOVED};
use crate::event::{Event, Observer};
use crate::options::{AckAfter, Options};
use crate::session::Session;
use crate::spool::{Spool, SpoolError};
use crate::status::{self, State, Status};
use crate::uploading::{UploadError, Uploading};

/// How long it is waited after an interruption.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(10) };
/// While the server has not got what is missing, its log need not say so every ten seconds: somebody has to import it.
const SLOW_BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(60) };
/// After so many connections in a row whose log is not the one received before, it is another history.
const MAX_DIFFERENCES: u32 = 3;
/// For how long the thread that receives may do nothing.
const MAX_IDLE: Duration = Duration::from_secs(180);
/// After a connection that was kept for longer, the next attempts begin with the shortest wait again.
const STABLE_CONNECTION: Duration = Duration::from_secs(10);

/// A server's log into an archive.
pub struct Receiver<'a> {
    archive: &'a Archive,
    disk: &'a dyn Disk,
    parameters: Parameters,
    options: Options,
    status: status::Shared,
}

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

    /// Whether the thread that receives gets on: connects, receives, or waits, to try again or for the disk. It does not get on while a
    /// call of the operating system does not return for three minutes, or a request to the archive. Of several hosts, each has these three
    /// minutes for itself: `connect_timeout` (10 seconds if nothing is said) has to be a good deal shorter.
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

    /// Receives and archives as [`Receiver::run`] does, and tells `observer` everything that happens.
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
                parameters: &self.parameters,
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
        let (mut pause, mut differences, mut furthest) = (BACKOFF.first, 0, Lsn::INVALID);
        while !stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            self.set(State::Connecting, None);
            let error = match attempt() {
                Ok(done) => return Ok(Some(done)),
                Err(error) => {
                    let has_streamed = self.status.lock().has_streamed;
                    error.in_context(self.options.slot.is_some(), has_streamed)
                }
            };
            // A flipped bit of the network looks like another history once.
            let is_different = matches!(error, ReceiveError::Spool(SpoolError::Different { .. }));
            differences = if is_different { differences + 1 } else { 0 };
            if error.is_final() || differences == MAX_DIFFERENCES {
                return Err(error);
            }
            // Commits may wait for what is left of the log, so a connection that got on is made again at once.
            let flushed = self.status.lock().flushed;
            if began.elapsed() > STABLE_CONNECTION || flushed > furthest {
                pause = BACKOFF.first;
            }
            furthest = furthest.max(flushed);
            self.status.lock().status.interruptions += 1;
            self.set(State::Waiting, Some(&error));
            observer(Event::Interrupted { error: &error, pause });
            let until = Instant::now() + pause;
            while Instant::now() < until && !stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20).min(pause));
            }
            let backoff = if error.cause() == WAL_REMOVED { SLOW_BACKOFF } else { BACKOFF };
            pause = backoff.after(pause);
        }
        Ok(None)
    }

    /// Connects, and makes sure that it is the archive's cluster.
    fn connect(&self) -> Result<(Replication, System, SegmentSize), ReceiveError> {
        // Each of several hosts has its own time, and none of them is a standstill.
        let note_alive = &mut || self.status.lock().note_alive();
        let mut replication = Replication::connect_observed(&self.parameters, note_alive)?;
        let system = replication.identify()?;
        let size = replication.segment_size()?;
        match self.archive.claim(system.system_id, size) {
            Ok(()) => {}
            Err(ArchiveError::OtherCluster { expected, found, .. }) => {
                return Err(ReceiveError::OtherCluster { expected, found });
            }
            Err(ArchiveError::OtherSegmentSize { expected, found, .. }) => {
                return Err(ReceiveError::OtherSegmentSize { expected, found });
            }
            // What is received goes into the spool meanwhile; the archive checks it once it answers.
            Err(error) => self.status.lock().status.archive_problem = Some(error_text(&error)),
        }
        if let Some(slot) = self.options.slot.as_ref().filter(|_| self.options.is_slot_created) {
            // An attempt to make it once more would leave an error in the server's log at each start.
            let is_there = replication.can_read_slots() && replication.read_slot(slot)?.is_some();
            if !is_there {
                match replication.create_slot(slot) {
                    // duplicate_object
                    Err(error) if error.server_error().is_some_and(|error| error.code == "42710") => {}
                    other => other?,
                }
            }
        }
        let mut inner = self.status.lock();
        inner.note_server(system.flushed, replication.heard());
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
        // Only log that comes ends a trouble: until then it is said, also of a process that was stopped meanwhile.
        if let Some(error) = error {
            inner.status.problem = Some(error_text(error));
            inner.status.cause = Some(error.cause().to_owned());
            inner.status.hint = error.hint().map(str::to_owned);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use walden_archive::store;
    use walden_postgres::replication::{ReplicationError, ServerError};

    use super::*;
    use crate::disk::Folder;

    #[test]
    fn a_trouble_is_said_after_the_end_too() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(Box::new(store::Folder::new(folder.path().join("repo"))));
        let disk = Folder::open(&folder.path().join("spool")).unwrap();
        let parameters = Parameters::parse("host=127.0.0.1").unwrap();
        let receiver = Receiver::new(&archive, &disk, parameters, Options::default());
        receiver.ended(Ok(())).unwrap();
        assert_eq!((receiver.status().state, receiver.status().cause), (State::Stopped, None));
        let removed = ServerError { code: "58P01".to_owned(), ..ServerError::default() };
        let removed = ReceiveError::from(ReplicationError::Server(removed));
        receiver.set(State::Waiting, Some(&removed));
        receiver.set(State::Connecting, None);
        receiver.ended(Ok(())).unwrap();
        let status = receiver.status();
        assert_eq!((status.state, status.cause.as_deref()), (State::Stopped, Some("wal_removed")));
        assert!(status.problem.is_some() && status.hint.is_some(), "{status:?}");
    }

    /// Many hosts that do not answer take longer than the watchdog waits.
    #[test]
    fn the_next_of_several_hosts_is_no_standstill() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(Box::new(store::Folder::new(folder.path().join("repo"))));
        let disk = Folder::open(&folder.path().join("spool")).unwrap();
        // They let everybody connect, and say nothing.
        let hosts = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] = [0, 1].map(|at: usize| hosts[at].local_addr().unwrap().port());
        let dsn = format!(
            "host=127.0.0.1,127.0.0.1 port={first},{second} user=walden sslmode=disable connect_timeout=2"
        );
        let parameters = Parameters::parse(&dsn).unwrap();
        let receiver = Receiver::new(&archive, &disk, parameters, Options::default());
        receiver.set(State::Connecting, None);
        let began = Instant::now();
        let (idle, elapsed) = std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let _connection = hosts[1].accept().unwrap();
                let idle = receiver.status.idle();
                (idle, began.elapsed())
            });
            assert!(receiver.connect().is_err());
            second.join().unwrap()
        });
        assert!(elapsed.saturating_sub(idle) > Duration::from_secs(1), "{idle:?} of {elapsed:?}");
    }
}

//! Receives a server's WAL into an archive until it is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use walden_archive::ArchiveError;
use walden_archive::catch_up::{CatchUp, Round};
use walden_archive::copies::{self, Copies};
use walden_format::diagnostic::Hint;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_postgres::connection::Parameters;
use walden_postgres::replication::{Replication, System, slot_is_lost_by_sql};
use walden_source::error_text;

use crate::archiving::{Archiving, give_way};
use crate::backoff::Backoff;
use crate::disk::Disk;
use crate::error::{ReceiveError, WAL_REMOVED};
use crate::event::{Event, Observer};
use crate::options::{AckAfter, Options};
use crate::session::Session;
use crate::spool::{Spool, SpoolError};
use crate::status::{self, State, Status};
use crate::uploading::{UploadError, Uploading};
use crate::uploads::Uploads;

/// Wait after an interruption.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(10) };
/// Waits while the server lacks the next WAL. A user has to import it, so the server's log need not report
/// that every ten seconds.
const SLOW_BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(60) };
/// After this number of consecutive connections whose WAL differs from the received WAL, the server has
/// another history.
const MAX_DIFFERENCES: u32 = 3;
/// How long the receiving thread may make no progress.
const MAX_IDLE: Duration = Duration::from_secs(180);
/// After a connection that lasted longer than this, waiting starts again with the shortest time.
const STABLE_CONNECTION: Duration = Duration::from_secs(10);

/// Receives a server's WAL into an archive.
pub struct Receiver<'a> {
    copies: Copies,
    disk: &'a dyn Disk,
    parameters: Parameters,
    options: Options,
    status: status::Shared,
}

impl<'a> Receiver<'a> {
    /// Creates a receiver into an archive, or into several copies of an archive, without connecting.
    pub fn new(
        copies: impl Into<Copies>,
        disk: &'a dyn Disk,
        parameters: Parameters,
        options: Options,
    ) -> Receiver<'a> {
        let (status, copies) = (status::Shared::default(), copies.into());
        let mut inner = status.lock();
        inner.status.slot = options.slot.clone();
        inner.acknowledge = copies.acknowledge();
        let location = |copy: &copies::Copy| copy.archive.store().location().to_owned();
        inner.copies = copies.iter().map(|copy| status::Copy::new(location(copy))).collect();
        drop(inner);
        Receiver { copies, disk, parameters, options, status }
    }

    /// Returns the current status.
    pub fn status(&self) -> Status {
        self.status.now()
    }

    /// Returns whether the receiving thread makes progress: it connects, receives, or waits for the next
    /// attempt or for the disk. Returns false once a system call or a request to the archive has not returned
    /// for three minutes. Each of several hosts has three minutes of its own, so `connect_timeout` (10
    /// seconds by default) has to be considerably shorter.
    pub fn is_alive(&self) -> bool {
        self.status.idle() < MAX_IDLE
    }

    /// Receives and archives until `stop` is set, which takes effect within a fraction of a second.
    ///
    /// # Errors
    /// Errors that another attempt cannot solve. Other errors interrupt receiving and appear in
    /// [`Receiver::status`].
    pub fn run(&self, stop: &AtomicBool) -> Result<(), ReceiveError> {
        self.run_observed(stop, &|_| {})
    }

    /// Receives and archives as [`Receiver::run`] does, and reports every event to `observer`.
    ///
    /// # Errors
    /// The errors of [`Receiver::run`].
    pub fn run_observed(&self, stop: &AtomicBool, observer: Observer<'_>) -> Result<(), ReceiveError> {
        let connected = self.ended(self.retry(stop, observer, || self.connect(observer)))?;
        let Some((replication, system, size)) = connected else { return Ok(()) };
        let mut first = Some((replication, system, size));
        let spool = self.ended(Spool::open(self.disk, size).map_err(ReceiveError::from))?;
        let uploading = (self.options.ack_after == AckAfter::Archive).then(|| {
            let report = |error: &UploadError, pause| {
                let is_blocking = self.status.lock().upload_problem().is_some();
                observer(Event::NotStored { error, is_blocking, pause });
            };
            let archives = self.copies.iter().map(|copy| &copy.archive).enumerate();
            let copies = archives.map(|copy| Uploading::new(copy, &spool, size, &self.status, report));
            Uploads::new(copies.collect(), self.copies.acknowledge(), &spool)
        });
        let uploading = uploading.as_ref();
        let count = self.copies.iter().count();
        let catch_up = CatchUp::new(self.copies.clone(), self.options.push.level);
        let problems = Mutex::new(vec![None; count]);
        let archiving = Archiving {
            copies: &self.copies,
            spool: &spool,
            size,
            options: &self.options.push,
            status: &self.status,
            report: &|name, result, waiting| {
                if result.as_ref().is_ok_and(|pushed| pushed.copies < count) {
                    catch_up.note_behind();
                }
                observer(Event::Archived { name, result, waiting });
            },
            archived: &|file| uploading.into_iter().for_each(|uploading| uploading.note_archived(file)),
            is_due: Mutex::new(false),
            due: Condvar::new(),
            is_over: AtomicBool::new(false),
        };
        let result = std::thread::scope(|scope| {
            scope.spawn(|| archiving.run());
            scope.spawn(|| {
                give_way();
                catch_up.run(&|round| self.note_round(&round, &problems, observer));
            });
            for upload in uploading.into_iter().flat_map(Uploads::iter) {
                scope.spawn(|| upload.run());
            }
            let session = Session {
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
                let (mut replication, system, _) = first.take().map_or_else(|| self.connect(observer), Ok)?;
                session.run(&mut replication, system, stop)
            });
            archiving.stop();
            catch_up.stop();
            uploading.into_iter().for_each(Uploads::stop);
            result
        });
        self.ended(result).map(drop)
    }

    /// Records whether a copy of the archive is up to date, and reports changes.
    fn note_round(&self, round: &Round<'_>, problems: &Mutex<Vec<Option<String>>>, observer: Observer<'_>) {
        let problem = round.problem().map(|(problem, _)| problem);
        self.status.lock().note_behind(round.copy, round.is_behind(), problem.clone());
        let has_copied = round.result.as_ref().is_ok_and(|copied| copied.copied > 0);
        let mut problems = problems.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = problems.get_mut(round.copy) else { return };
        let is_new = problem.is_some() && *before != problem;
        *before = problem;
        if has_copied || is_new {
            observer(Event::CaughtUp(round));
        }
    }

    /// Repeats an attempt until it succeeds, fails finally, or `stop` is set. Returns `None` if `stop` was
    /// set first.
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
            // A single flipped bit on the network looks like another history.
            let is_different = matches!(error, ReceiveError::Spool(SpoolError::Different { .. }));
            differences = if is_different { differences + 1 } else { 0 };
            if error.is_final() || differences == MAX_DIFFERENCES {
                return Err(error);
            }
            // Commits may wait for the remaining WAL, so a connection that made progress is made again
            // immediately.
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

    /// Connects, and checks that the server belongs to the archive's cluster.
    fn connect(&self, observer: Observer<'_>) -> Result<(Replication, System, SegmentSize), ReceiveError> {
        // Each of several hosts has a time limit of its own, so trying the next one counts as progress.
        let note_alive = &mut || self.status.lock().note_alive();
        let mut replication = Replication::connect_observed(&self.parameters, note_alive)?;
        let system = replication.identify()?;
        let size = replication.segment_size()?;
        let mut problems = Vec::new();
        for copy in self.copies.iter() {
            self.status.lock().note_alive();
            match copy.archive.claim(system.system_id, size) {
                Ok(()) => {}
                Err(ArchiveError::OtherCluster { expected, found, .. }) => {
                    return Err(ReceiveError::OtherCluster { expected, found });
                }
                Err(ArchiveError::OtherSegmentSize { expected, found, .. }) => {
                    return Err(ReceiveError::OtherSegmentSize { expected, found });
                }
                Err(error) => problems.push(error_text(&error)),
            }
        }
        // Meanwhile, received WAL goes into the spool. The archive checks the cluster when it is reachable
        // again.
        if self.copies.iter().count() - problems.len() < self.copies.acknowledge() {
            self.status.lock().status.archive_problem = problems.into_iter().next();
        }
        if let Some(slot) = &self.options.slot {
            self.prepare_slot(&mut replication, slot, observer)?;
        }
        let mut inner = self.status.lock();
        inner.note_server(system.flushed, replication.heard());
        inner.status.server = replication.place().to_owned();
        inner.status.system_identifier = Some(system.system_id.to_string());
        drop(inner);
        Ok((replication, system, size))
    }

    /// Creates a slot, or replaces one that the server has invalidated, if this is requested.
    ///
    /// # Errors
    /// [`ReceiveError::SlotLost`] if the slot is invalidated and must not be replaced: PostgreSQL 16 and 17
    /// would stream with the slot and remove WAL that is not received.
    fn prepare_slot(
        &self,
        replication: &mut Replication,
        slot: &str,
        observer: Observer<'_>,
    ) -> Result<(), ReceiveError> {
        let mut create = self.options.create_slot;
        // Trying to create an existing slot would leave an error in the server's log at each start.
        if replication.can_read_slots()
            && let Some(found) = replication.read_slot(slot)?
        {
            // A slot without a position is invalidated or was never used. With PostgreSQL 16 and 17, another
            // client may have given an invalidated one a position.
            let is_first = matches!(replication.major(), Some(16 | 17)) && !self.status.lock().has_streamed;
            let is_lost = (found.restart.is_none() || is_first)
                && slot_is_lost_by_sql(&self.parameters, slot).unwrap_or(false);
            if is_lost && !create {
                return Err(ReceiveError::SlotLost(slot.to_owned()));
            }
            if is_lost {
                replication.drop_slot(slot)?;
                observer(Event::SlotReplaced { slot });
            }
            create &= is_lost;
        }
        match create.then(|| replication.create_slot(slot)) {
            // duplicate_object
            Some(Err(error)) if error.server_error().is_some_and(|error| error.code == "42710") => Ok(()),
            created => Ok(created.transpose().map(|_| ())?),
        }
    }

    fn ended<T>(&self, result: Result<T, ReceiveError>) -> Result<T, ReceiveError> {
        self.set(State::Stopped, result.as_ref().err());
        result
    }

    fn set(&self, state: State, error: Option<&ReceiveError>) {
        let mut inner = self.status.lock();
        inner.set(state);
        // Only a started stream clears the problem (`Session::note_streaming`). Until then the status keeps
        // it, even after the process has stopped.
        if let Some(error) = error {
            inner.status.problem = Some(error_text(error));
            inner.status.cause = Some(error.cause().to_owned());
            inner.status.code = error.code().map(str::to_owned);
            inner.status.hint = error.hint().map(Hint::into_owned);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use walden_archive::{Archive, store};
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
        let removed = ServerError::with_code("58P01");
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
        // Both accept connections and send nothing.
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
            assert!(receiver.connect(&|_| {}).is_err());
            second.join().unwrap()
        });
        assert!(elapsed.saturating_sub(idle) > Duration::from_secs(1), "{idle:?} of {elapsed:?}");
    }
}

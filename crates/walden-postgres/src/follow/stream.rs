//! Follows a server's WAL over a replication connection without a slot, so that the server keeps no WAL for
//! it.
//!
//! The follower never reports WAL as durable, so the server does not treat it as a synchronous standby.

use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use walden_format::fault::{Fault, FaultKind};
use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::stream::{Decoder, Place, StreamInfo, Visitor};
use walden_format::version::Major;

use super::{FollowError, Follower, GapReason, News, Polled};
use crate::connection::Parameters;
use crate::replication::{
    NextTimeline, Progress, Received, Replication, ReplicationError, ServerError, Started, System,
};
use walden_source::scan::Nothing;

/// Bytes before the present end of WAL in which the last record is searched for.
const BYTES_BACK: u64 = 1 << 20;
/// Bytes that are decoded at a time.
const BATCH: usize = 4 << 20;
/// The bytes of a longer record are not held until the record is complete: the decoder keeps the necessary
/// bytes.
const LONG_RECORD: usize = 8 << 20;
/// How often the follower reports to the server.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// How long a server may take to send the WAL up to its present end.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(60);
/// How often WAL is requested again from a position after invalid WAL. After that, the server's own files
/// count as damaged.
const MAX_FAULTS: u32 = 3;
/// SQLSTATE `undefined_file`: the server does not have a segment any more. The server reports this after the
/// stream has started (`WalSndSegmentOpen` and `CheckXLogRemoved` in `walsender.c` and `xlog.c`).
const NO_SEGMENT: &str = "58P01";
/// Class of the SQLSTATEs of a server that is starting or stopping: it may have the WAL later.
const OPERATOR_INTERVENTION: &str = "57";

/// Follows the WAL of a server from its present end.
pub struct ConnectionFollower {
    parameters: Parameters,
    /// `None` after an error, until the connection is restored.
    replication: Option<Replication>,
    /// Receives the result while a thread reconnects, which may take minutes: `poll` returns meanwhile.
    connecting: Option<Receiver<Result<Resumed, FollowError>>>,
    log: Log,
    /// The next timeline, used once all earlier WAL is decoded.
    next: Option<NextTimeline>,
    /// Why WAL cannot be followed from the position, so that the next connection starts at the present end.
    gap: Option<GapReason>,
    /// The position of invalid WAL, and how often it was received.
    faults: (Lsn, u32),
    reported: Instant,
    /// Never readable, so that only the server ends a wait.
    idle: (UnixStream, UnixStream),
}

impl fmt::Debug for ConnectionFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionFollower").field("log", &self.log).finish_non_exhaustive()
    }
}

/// Received WAL that is not decoded yet.
#[derive(Debug)]
struct Log {
    info: StreamInfo,
    place: Place,
    /// Whether a record is known to end or start at the place. If not, it may be the start of a segment in
    /// the middle of a record.
    is_located: bool,
    /// The WAL from the page of the position, or from the position up to which `long` has decoded it.
    tail: Vec<u8>,
    tail_start: Lsn,
    /// The decoder inside a long record.
    long: Option<Decoder>,
}

/// The state needed to reconnect where the last connection ended.
struct Resume {
    parameters: Parameters,
    log: Log,
    gap: Option<GapReason>,
}

/// A new connection, and any event meanwhile.
struct Resumed {
    replication: Replication,
    log: Log,
    news: Option<News>,
}

impl Resume {
    fn connect(mut self) -> Result<Resumed, FollowError> {
        let mut replication = Replication::connect(&self.parameters)?;
        let system = replication.identify()?;
        let (expected, found) = (self.log.info.system_id, system.system_id);
        if expected != found {
            return Err(FollowError::OtherCluster { expected, found });
        }
        if let Some(reason) = self.gap {
            return self.begin_anew(replication, system, reason);
        }
        let started = replication.start(None, self.log.info.timeline, self.log.restart());
        let news = match started {
            Ok(Started::Streaming) => None,
            Ok(Started::Ended(next)) => Some(self.log.turn_to(&mut replication, next)?),
            // The missing WAL was removed, or the server has lost it.
            Err(ReplicationError::Server(error)) if !error.code.starts_with(OPERATOR_INTERVENTION) => {
                replication = Replication::connect(&self.parameters)?;
                return self.begin_anew(replication, system, GapReason::Reconnected);
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Resumed { replication, log: self.log, news })
    }

    /// Continues at the present end, after a gap.
    fn begin_anew(
        self,
        replication: Replication,
        system: System,
        reason: GapReason,
    ) -> Result<Resumed, FollowError> {
        let from = self.log.place.position;
        let (replication, log) = Log::at_end(&self.parameters, replication, system)?;
        let news = Some(News::Gap { from, to: log.place.position, reason });
        Ok(Resumed { replication, log, news })
    }
}

impl ConnectionFollower {
    /// Connects, and starts at the present end of WAL.
    ///
    /// # Errors
    /// The server cannot be reached, refuses replication, or sends invalid WAL.
    pub fn connect(parameters: &Parameters) -> Result<ConnectionFollower, FollowError> {
        let parameters = match parameters.get("application_name") {
            Some(_) => parameters.clone(),
            None => parameters.with("application_name", "walden watch"),
        };
        let idle = UnixStream::pair().map_err(ReplicationError::Lost)?;
        let mut replication = Replication::connect(&parameters)?;
        let system = replication.identify()?;
        let (replication, log) = Log::at_end(&parameters, replication, system)?;
        Ok(ConnectionFollower {
            parameters,
            replication: Some(replication),
            connecting: None,
            log,
            next: None,
            gap: None,
            faults: (Lsn::INVALID, 0),
            reported: Instant::now(),
            idle,
        })
    }

    /// Reconnects where the last connection ended. Returns `None` once connected, unless there is an event to
    /// report.
    fn reconnect(&mut self, patience: Duration) -> Result<Option<Polled>, FollowError> {
        let connecting = self.connecting.take().unwrap_or_else(|| {
            let Log { info, place, is_located, .. } = self.log;
            let mut log = Log::new(info, place.position, Vec::new());
            (log.place, log.is_located) = (place, is_located);
            let resume = Resume { parameters: self.parameters.clone(), log, gap: self.gap };
            let (sender, receiver) = sync_channel(1);
            // Sending fails only if the follower was dropped.
            thread::spawn(move || drop(sender.send(resume.connect())));
            receiver
        });
        let resumed = match connecting.recv_timeout(patience) {
            Ok(resumed) => resumed?,
            Err(RecvTimeoutError::Timeout) => {
                self.connecting = Some(connecting);
                return Ok(Some(Polled { is_connecting: true, ..Polled::default() }));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(ReplicationError::Closed.into()),
        };
        (self.replication, self.log, self.gap) = (Some(resumed.replication), resumed.log, None);
        let news = resumed.news;
        Ok(news.map(|news| Polled { has_more: true, news: Some(news), ..Polled::default() }))
    }

    fn receive_and_decode(
        &mut self,
        visitor: &mut impl Visitor,
        patience: Duration,
    ) -> Result<Polled, FollowError> {
        let of_news = |news| Polled { has_more: true, news: Some(news), ..Polled::default() };
        match (&mut self.replication, self.next.take()) {
            (None, _) => {
                if let Some(polled) = self.reconnect(patience)? {
                    return Ok(polled);
                }
            }
            (Some(replication), Some(next)) => return self.log.turn_to(replication, next).map(of_news),
            (Some(_), None) => {}
        }
        let received = self.receive(patience);
        if let Some(gap) = self.log.locate_begin().map_err(FollowError::Stream)? {
            // Any error of `receive` occurs again on the next call, because the connection is broken.
            return Ok(of_news(gap));
        }
        // WAL received before an error is decoded first.
        self.log.decode(visitor).map_err(FollowError::Stream)?;
        Ok(Polled { has_more: received?, ..Polled::default() })
    }

    /// Records where to continue after an error: at the same position, or after a gap.
    fn note_error(&mut self, error: &FollowError) {
        match error {
            FollowError::Replication(ReplicationError::Server(ServerError { code, .. }))
                if code == NO_SEGMENT =>
            {
                self.gap = Some(GapReason::Removed);
            }
            FollowError::Stream(fault) => {
                let position = self.log.place.position;
                let count = if self.faults.0 == position { self.faults.1 + 1 } else { 1 };
                self.faults = (position, count);
                if count > MAX_FAULTS {
                    self.gap = Some(GapReason::Damaged(*fault));
                }
            }
            _ => {}
        }
    }

    /// Receives the available WAL. Returns whether there is more.
    fn receive(&mut self, patience: Duration) -> Result<bool, FollowError> {
        let Some(replication) = &mut self.replication else { return Ok(false) };
        let log = &mut self.log;
        let (until, mut has_come) = (Instant::now() + patience, false);
        loop {
            let mut wants_reply = false;
            match replication.receive()? {
                Received::Wal { start, bytes, .. } => {
                    log.append(start, bytes)?;
                    has_come = true;
                    if log.tail.len() >= BATCH + LONG_HEADER {
                        return Ok(true);
                    }
                }
                Received::Keepalive { wants_reply: wants, .. } => wants_reply = wants,
                Received::EndOfTimeline(next) => {
                    self.next = Some(next);
                    return Ok(true);
                }
                Received::Nothing => {
                    let left = until.saturating_duration_since(Instant::now());
                    if has_come || left.is_zero() {
                        return Ok(false);
                    }
                    replication.wait(left, self.idle.0.as_fd())?;
                }
            }
            if wants_reply || self.reported.elapsed() > REPORT_EVERY {
                self.reported = Instant::now();
                replication.report(Progress { received: log.end(), flushed: Lsn::INVALID }, false)?;
            }
        }
    }
}

impl Follower for ConnectionFollower {
    fn info(&self) -> StreamInfo {
        self.log.info
    }

    fn position(&self) -> Lsn {
        self.log.place.position
    }

    fn poll(&mut self, visitor: &mut impl Visitor, patience: Duration) -> Result<Polled, FollowError> {
        let result = self.receive_and_decode(visitor, patience);
        if let Err(error) = &result {
            // WAL that is not decoded is requested again.
            (self.replication, self.next) = (None, None);
            self.note_error(error);
        }
        result
    }
}

/// Returns why WAL cannot be followed from a page, by its header.
fn unusable(page: Lsn, kind: FaultKind) -> FollowError {
    match kind.unknown_version() {
        Some((magic, reason)) => FollowError::UnknownVersion {
            page: format!("the page at {page}, which the server sends"),
            magic,
            reason,
        },
        None => FollowError::Stream(Fault { lsn: page, at: page, kind }),
    }
}

impl Log {
    /// Starts streaming a little before the server's present end, and finds the last record before that.
    fn at_end(
        parameters: &Parameters,
        mut replication: Replication,
        system: System,
    ) -> Result<(Replication, Log), FollowError> {
        let size = replication.segment_size()?;
        // The server may have removed the previous segment.
        let segment = size.start_of(size.segment_of(system.flushed));
        let near = page_of(Lsn(system.flushed.0.saturating_sub(BYTES_BACK))).max(segment);
        match Log::ending_behind(&mut replication, system, size, near) {
            // Only a decoder that starts before a switch record can read the pages after it.
            Err(FollowError::Stream(_)) if near > segment => {
                let mut replication = Replication::connect(parameters)?;
                let log = Log::ending_behind(&mut replication, system, size, segment)?;
                Ok((replication, log))
            }
            log => Ok((replication, log?)),
        }
    }

    /// Starts streaming at a page, and finds the last record before the server's present end.
    fn ending_behind(
        replication: &mut Replication,
        system: System,
        segment_size: SegmentSize,
        mut start: Lsn,
    ) -> Result<Log, FollowError> {
        let (idle, _other) = UnixStream::pair().map_err(ReplicationError::Lost)?;
        let mut timeline = system.timeline;
        while let Started::Ended(next) = replication.start(None, timeline, start)? {
            (timeline, start) = (next.timeline, page_of(next.start));
        }
        let info_of = |version| StreamInfo {
            version,
            timeline,
            system_id: system.system_id,
            segment_size,
            page_bytes: Geometry::DEFAULT_PAGE_BYTES,
            data_page_bytes: 8192,
        };
        let major = replication.major();
        let version = Major::all().find(|version| Some(version.number()) == major);
        if let Some(version) = version.filter(|_| start >= system.flushed) {
            // After a switch, the server sends no bytes of the new segment before it writes WAL to this
            // segment.
            return Ok(Log::new(info_of(version), start, Vec::new()));
        }
        let (mut head, mut log) = (Vec::new(), None::<Log>);
        let until = Instant::now() + FIRST_BYTES_WITHIN;
        loop {
            match replication.receive()? {
                Received::Wal { start: at, bytes, .. } => match &mut log {
                    Some(log) => log.append(at, bytes)?,
                    None => head.extend_from_slice(bytes),
                },
                Received::Nothing => replication.wait(Duration::from_millis(100), idle.as_fd())?,
                Received::EndOfTimeline(_) => return Err(ReplicationError::Closed.into()),
                Received::Keepalive { .. } => {}
            }
            if log.is_none() && head.len() >= LONG_HEADER {
                let header = PageHeader::parse(&head)
                    .map_err(|error| unusable(start, FaultKind::PageHeader(error)))?;
                log = Some(Log::new(info_of(header.version), start, std::mem::take(&mut head)));
            }
            if let Some(mut found) = log.take() {
                if found.end() >= system.flushed && found.locate_end().map_err(FollowError::Stream)? {
                    return Ok(found);
                }
                log = Some(found);
            }
            if Instant::now() > until {
                let found = format!("none within {} s", FIRST_BYTES_WITHIN.as_secs());
                return Err(ReplicationError::Protocol { expected: "the log up to its end", found }.into());
            }
        }
    }

    /// Creates the buffer at a position. `tail` is the received WAL from the start of its page. Whether a
    /// record starts at the position is not known.
    fn new(info: StreamInfo, position: Lsn, tail: Vec<u8>) -> Log {
        let place = Place { position, previous: None, is_switched: false };
        Log { info, place, is_located: false, tail, tail_start: page_of(position), long: None }
    }

    /// Moves to the end of the received WAL. Returns false if no record starts or ends in that WAL.
    fn locate_end(&mut self) -> Result<bool, Fault> {
        let mut decoder = Decoder::new(self.info, self.tail_start, Lsn(u64::MAX));
        decoder.push(&self.tail[..self.decodable()], &mut Nothing)?;
        let Some(place) = decoder.place() else { return Ok(false) };
        (self.place, self.is_located) = (place, true);
        // If the last record fills its page, the position is on the next one.
        self.trim();
        Ok(true)
    }

    /// Finds the first record of a segment, if it is not known yet. The rest of a record that started before
    /// is reported as a gap.
    fn locate_begin(&mut self) -> Result<Option<News>, Fault> {
        let decodable = self.decodable();
        if self.is_located || decodable == 0 {
            return Ok(None);
        }
        let from = self.place.position;
        // The decoder is done at the first record after the page's start.
        let mut decoder = Decoder::new(self.info, self.tail_start, self.tail_start.plus(1));
        if decoder.push(&self.tail[..decodable], &mut Nothing)? != walden_format::stream::Progress::Done {
            return Ok(None);
        }
        self.is_located = true;
        let to = decoder.position();
        if to == from.plus(self.info.geometry().header_bytes(from) as u64) {
            return Ok(None);
        }
        self.place = Place { position: to, previous: None, is_switched: false };
        self.trim();
        Ok(Some(News::Gap { from, to, reason: GapReason::Begun }))
    }

    /// Returns the number of received bytes that can be decoded: records and page headers are aligned to 8
    /// bytes, and headers must be complete.
    fn decodable(&self) -> usize {
        let end = self.tail_start.plus(self.tail.len() as u64 & !7);
        self.info.geometry().decodable_end(end).bytes_since(self.tail_start) as usize
    }

    fn end(&self) -> Lsn {
        self.tail_start.plus(self.tail.len() as u64)
    }

    fn append(&mut self, start: Lsn, bytes: &[u8]) -> Result<(), FollowError> {
        if start != self.end() {
            let found = start.to_string();
            return Err(ReplicationError::Protocol { expected: "the log without a gap", found }.into());
        }
        self.tail.extend_from_slice(bytes);
        Ok(())
    }

    /// Drops the received WAL that is not decoded, and returns where it has to be requested again: the start
    /// of a page.
    fn restart(&mut self) -> Lsn {
        let position = self.place.position;
        self.tail.clear();
        self.long = None;
        self.tail_start = page_of(position);
        self.tail_start
    }

    /// Continues on another timeline.
    fn turn_to(&mut self, replication: &mut Replication, next: NextTimeline) -> Result<News, FollowError> {
        let (mut next, position) = (next, self.place.position);
        let start = position.min(next.start);
        while let Started::Ended(later) = replication.start(None, next.timeline, page_of(start))? {
            next = later;
        }
        self.info.timeline = next.timeline;
        if start < position {
            // Records do not cross the end of a timeline.
            self.place = Place { position: start, previous: None, is_switched: false };
            self.is_located = true;
        }
        self.restart();
        Ok(News::Timeline { timeline: next.timeline, start, discarded: position.0 - start.0 })
    }

    /// Decodes the received WAL, once the start of a record is known.
    fn decode(&mut self, visitor: &mut impl Visitor) -> Result<(), Fault> {
        if !self.is_located {
            return Ok(());
        }
        let page_bytes = self.info.page_bytes as usize;
        if let Some(decoder) = &mut self.long {
            while self.tail.len() >= page_bytes {
                decoder.push(&self.tail[..page_bytes], visitor)?;
                if decoder.unfinished().is_some_and(|record| record.lsn == self.place.position) {
                    self.tail.drain(..page_bytes);
                    self.tail_start = self.tail_start.plus(page_bytes as u64);
                    continue;
                }
                self.place = decoder.place().unwrap_or(self.place);
                self.long = None;
                break;
            }
            if self.long.is_some() {
                return Ok(());
            }
            self.trim();
        }
        let decodable = self.decodable();
        let mut decoder = Decoder::resume_at(self.info, self.place, Lsn(u64::MAX));
        let decoded = decoder.push(&self.tail[..decodable], visitor);
        self.place = decoder.place().unwrap_or(self.place);
        decoded?;
        self.trim();
        if decoder.unfinished().is_some() && self.tail.len() > LONG_RECORD {
            let whole = self.tail.len() - self.tail.len() % page_bytes;
            let mut decoder = Decoder::resume_at(self.info, self.place, Lsn(u64::MAX));
            // The record is incomplete, so nothing is reported.
            decoder.push(&self.tail[..whole], &mut Nothing)?;
            self.tail.drain(..whole);
            self.tail_start = self.tail_start.plus(whole as u64);
            self.long = Some(decoder);
        }
        Ok(())
    }

    /// Drops the pages before the one with the position.
    fn trim(&mut self) {
        let page = page_of(self.place.position);
        let done = (page.0.saturating_sub(self.tail_start.0) as usize).min(self.tail.len());
        self.tail.drain(..done);
        self.tail_start = self.tail_start.plus(done as u64);
    }
}

/// Returns the page of a position. If a server has another page size, its WAL is never valid here.
fn page_of(lsn: Lsn) -> Lsn {
    Lsn(lsn.0 - lsn.0 % u64::from(Geometry::DEFAULT_PAGE_BYTES))
}

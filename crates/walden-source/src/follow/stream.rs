//! Follows a server's log over a replication connection, without a slot: nothing is kept on the server for it.
//!
//! The server is never told that anything is durable here, so the connection cannot be taken for a synchronous standby.

use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use walden_format::fault::Fault;
use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::stream::{Decoder, Place, StreamInfo, Visitor};

use super::files::Nothing;
use super::{FollowError, Follower, GapReason, News, Polled};
use crate::connection::Parameters;
use crate::replication::{NextTimeline, Progress, Received, Replication, ReplicationError, Started, System};

/// Log before the present end in which the last record is looked for.
const BYTES_BACK: u64 = 1 << 20;
/// Bytes that are decoded in one go.
const BATCH: usize = 4 << 20;
/// A longer record is not kept here while it comes: the decoder keeps what it needs of it.
const LONG_RECORD: usize = 8 << 20;
/// How often the server hears of us.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// How long a server may take to send the log up to its present end.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(60);

/// Follows the log of a server, from its present end on.
pub struct ConnectionFollower {
    parameters: Parameters,
    /// None after an error, until the next call.
    replication: Option<Replication>,
    log: Log,
    /// Where another timeline goes on, once all that came before is decoded.
    next: Option<NextTimeline>,
    reported: Instant,
    /// Never readable, so that nothing but the server ends a wait.
    idle: (UnixStream, UnixStream),
}

impl fmt::Debug for ConnectionFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionFollower").field("log", &self.log).finish_non_exhaustive()
    }
}

/// What came and is not decoded yet.
#[derive(Debug)]
struct Log {
    info: StreamInfo,
    place: Place,
    /// The log from the page with the position on, or from where `long` is.
    tail: Vec<u8>,
    tail_start: Lsn,
    /// The decoder within a long record.
    long: Option<Decoder>,
}

impl ConnectionFollower {
    /// Connects, and begins at the present end of the log.
    ///
    /// # Errors
    /// The server cannot be reached, does not let us replicate, or sends no valid log.
    pub fn connect(parameters: &Parameters) -> Result<ConnectionFollower, FollowError> {
        let parameters = match parameters.get("application_name") {
            Some(_) => parameters.clone(),
            None => parameters.with("application_name", "walden watch"),
        };
        let idle = UnixStream::pair().map_err(ReplicationError::Lost)?;
        let mut replication = Replication::connect(&parameters)?;
        let system = replication.identify()?;
        let log = Log::at_end(&mut replication, system, &idle.0)?;
        let (replication, reported) = (Some(replication), Instant::now());
        Ok(ConnectionFollower { parameters, replication, log, next: None, reported, idle })
    }

    /// Connects again where the last connection ended.
    fn reconnect(&mut self) -> Result<Option<News>, FollowError> {
        let mut replication = Replication::connect(&self.parameters)?;
        let system = replication.identify()?;
        let (expected, found) = (self.log.info.system_id, system.system_id);
        if expected != found {
            return Err(FollowError::OtherCluster { expected, found });
        }
        let (timeline, from) = (self.log.info.timeline, self.log.place.position);
        let started = replication.start(None, timeline, self.log.restart());
        let news = match started {
            Ok(Started::Streaming) => None,
            Ok(Started::Ended(next)) => Some(self.log.turn_to(&mut replication, next)?),
            // What is missing was removed, or the server has lost it.
            Err(ReplicationError::Server(_)) => {
                replication = Replication::connect(&self.parameters)?;
                self.log = Log::at_end(&mut replication, system, &self.idle.0)?;
                Some(News::Gap { from, to: self.log.place.position, reason: GapReason::Reconnected })
            }
            Err(error) => return Err(error.into()),
        };
        self.replication = Some(replication);
        Ok(news)
    }

    fn receive_and_decode(
        &mut self,
        visitor: &mut impl Visitor,
        patience: Duration,
    ) -> Result<Polled, FollowError> {
        let news = match (&mut self.replication, self.next.take()) {
            (None, _) => self.reconnect()?,
            (Some(replication), Some(next)) => Some(self.log.turn_to(replication, next)?),
            (Some(_), None) => None,
        };
        if news.is_some() {
            return Ok(Polled { has_more: true, news });
        }
        let received = self.receive(patience);
        // What came before an error counts.
        self.log.decode(visitor).map_err(FollowError::Stream)?;
        Ok(Polled { has_more: received?, news: None })
    }

    /// Receives what is there; whether there is more.
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
        if result.is_err() {
            // What is not decoded is asked for again.
            (self.replication, self.next) = (None, None);
        }
        result
    }
}

impl Log {
    /// Starts to stream a little before the server's present end, and finds the last record before it.
    fn at_end(replication: &mut Replication, system: System, idle: &UnixStream) -> Result<Log, FollowError> {
        let size = replication.segment_size()?;
        let page_bytes = Geometry::DEFAULT_PAGE_BYTES;
        let page_of = |lsn: u64| lsn - lsn % u64::from(page_bytes);
        let segment = size.start_of(size.segment_of(system.flushed));
        let mut start = Lsn(page_of(system.flushed.0.saturating_sub(BYTES_BACK)).max(segment.0));
        let mut timeline = system.timeline;
        while let Started::Ended(next) = replication.start(None, timeline, start)? {
            (timeline, start) = (next.timeline, Lsn(page_of(next.start.0)));
        }
        let mut log: Option<Log> = None;
        let (mut head, mut locator) = (Vec::new(), None::<Decoder>);
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
                log = Some(Log::begin(system, size, timeline, start, std::mem::take(&mut head))?);
            }
            if let Some(log) = &mut log {
                let decoder = locator.get_or_insert_with(|| Decoder::new(log.info, start, Lsn(u64::MAX)));
                if log.locate(decoder).map_err(FollowError::Stream)? && log.end() >= system.flushed {
                    break;
                }
            }
            if Instant::now() > until {
                let found = format!("none within {} s", FIRST_BYTES_WITHIN.as_secs());
                return Err(ReplicationError::Protocol { expected: "the log up to its end", found }.into());
            }
        }
        let mut log = log.ok_or(ReplicationError::Closed)?;
        log.decode(&mut Nothing).map_err(FollowError::Stream)?;
        Ok(log)
    }

    fn begin(
        system: System,
        segment_size: SegmentSize,
        timeline: Timeline,
        start: Lsn,
        tail: Vec<u8>,
    ) -> Result<Log, FollowError> {
        let kind = |kind| FollowError::Stream(Fault { lsn: start, at: start, kind });
        let header = PageHeader::parse(&tail)
            .map_err(|error| kind(walden_format::fault::FaultKind::PageHeader(error)))?;
        let info = StreamInfo {
            version: header.version,
            timeline,
            system_id: system.system_id,
            segment_size,
            page_bytes: Geometry::DEFAULT_PAGE_BYTES,
            data_page_bytes: 8192,
        };
        let place = Place { position: start, previous: None, is_switched: false };
        Ok(Log { info, place, tail, tail_start: start, long: None })
    }

    /// Decodes whole pages until a record has ended in them; whether one has.
    fn locate(&mut self, decoder: &mut Decoder) -> Result<bool, Fault> {
        if self.place.previous.is_some() {
            return Ok(true);
        }
        let page_bytes = self.info.page_bytes as usize;
        while self.tail.len() >= page_bytes {
            decoder.push(&self.tail[..page_bytes], &mut Nothing)?;
            if let Some(place) = decoder.place().filter(|place| place.previous.is_some()) {
                // The position is in this page, as the record before it ended here.
                self.place = place;
                return Ok(true);
            }
            self.tail.drain(..page_bytes);
            self.tail_start = self.tail_start.plus(page_bytes as u64);
        }
        Ok(false)
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

    /// Forgets what is not decoded, and says from where it has to be sent again: a page's start.
    fn restart(&mut self) -> Lsn {
        let position = self.place.position;
        self.tail.clear();
        self.long = None;
        self.tail_start = Lsn(position.0 - position.0 % u64::from(self.info.page_bytes));
        self.tail_start
    }

    /// Goes on with another timeline.
    fn turn_to(&mut self, replication: &mut Replication, next: NextTimeline) -> Result<News, FollowError> {
        let (mut next, position) = (next, self.place.position);
        let start = position.min(next.start);
        let page = Lsn(start.0 - start.0 % u64::from(self.info.page_bytes));
        while let Started::Ended(later) = replication.start(None, next.timeline, page)? {
            next = later;
        }
        self.info.timeline = next.timeline;
        if start < position {
            self.place = Place { position: start, previous: None, is_switched: false };
        }
        self.restart();
        Ok(News::Timeline { timeline: next.timeline, start, discarded: position.0 - start.0 })
    }

    /// Decodes what has come.
    fn decode(&mut self, visitor: &mut impl Visitor) -> Result<(), Fault> {
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
        // Records and headers of pages are aligned to 8 bytes.
        let end = self.tail_start.plus(self.tail.len() as u64 & !7);
        let decodable = self.info.geometry().decodable_end(end).bytes_since(self.tail_start) as usize;
        let mut decoder = Decoder::resume_at(self.info, self.place, Lsn(u64::MAX));
        let decoded = decoder.push(&self.tail[..decodable], visitor);
        self.place = decoder.place().unwrap_or(self.place);
        decoded?;
        self.trim();
        if decoder.unfinished().is_some() && self.tail.len() > LONG_RECORD {
            let whole = self.tail.len() - self.tail.len() % page_bytes;
            let mut decoder = Decoder::resume_at(self.info, self.place, Lsn(u64::MAX));
            // The record is not complete, so nothing is reported.
            decoder.push(&self.tail[..whole], &mut Nothing)?;
            self.tail.drain(..whole);
            self.tail_start = self.tail_start.plus(whole as u64);
            self.long = Some(decoder);
        }
        Ok(())
    }

    /// Drops the pages before the one with the position.
    fn trim(&mut self) {
        let position = self.place.position;
        let page = Lsn(position.0 - position.0 % u64::from(self.info.page_bytes));
        let done = (page.0.saturating_sub(self.tail_start.0) as usize).min(self.tail.len());
        self.tail.drain(..done);
        self.tail_start = self.tail_start.plus(done as u64);
    }
}

//! One connection to the server: where it starts, and how its messages are handled.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walden_archive::archive::LogListing;
use walden_archive::history::History;
use walden_archive::name::{ArchivedFile, Object};
use walden_archive::{Archive, ArchiveError, acknowledge, get, list, parts, push};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_postgres::connection::Parameters;
use walden_postgres::replication::{
    self, NextTimeline, Progress, Received, Replication, ReplicationError, Started, System,
};
use walden_source::error_text;

use crate::archiving::Archiving;
use crate::error::{ReceiveError, WAL_REMOVED};
use crate::event::{Event, Observer};
use crate::options::Options;
use crate::spool::{Position, Spool, SpoolError};
use crate::status::{self, State};
use crate::syncing::Syncing;
use crate::uploads::Uploads;
use crate::verifier::Verifier;

/// Longest wait for the server at a time. A request to stop is noticed only afterwards.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// How often an asynchronous receiver makes WAL durable.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// If commits wait for the receiver, more unsynchronised bytes than this are synchronised while more WAL is
/// received. Otherwise, [`SYNC_INTERVAL`] decides.
const MAX_UNSYNCED: u64 = 512 << 10;
/// How long to wait for the disk at the end of a timeline or of the process.
const FINAL_SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for the archive at the end with `--ack-after archive`. The archive gets any remaining WAL
/// after the next start.
const FINAL_UPLOAD_TIMEOUT: Duration = Duration::from_millis(500);

/// Time in which a server reports, after it has accepted START_REPLICATION, that it has removed the requested
/// WAL.
const MAX_REFUSAL: Duration = Duration::from_secs(1);

/// The reason that the archive records for a skipped gap.
const GAP_REASON: &str = "the server had removed this WAL before it was received";

pub(crate) struct Session<'s> {
    pub parameters: &'s Parameters,
    pub spool: &'s Spool<'s>,
    pub size: SegmentSize,
    pub options: &'s Options,
    pub status: &'s status::Shared,
    pub archiving: &'s Archiving<'s>,
    /// Set if WAL is acknowledged only once it is in the archive.
    pub uploading: Option<&'s Uploads<'s>>,
    pub observer: Observer<'s>,
}

impl Session<'_> {
    /// Receives until `stop` is set.
    pub fn run(
        &self,
        replication: &mut Replication,
        system: System,
        stop: &AtomicBool,
    ) -> Result<(), ReceiveError> {
        let syncing = Syncing::new(self.spool)?;
        if let Some(uploading) = self.uploading {
            uploading.wake_by(&syncing.waker()?)?;
        }
        let result = std::thread::scope(|scope| {
            scope.spawn(|| syncing.run());
            let result = self.follow(replication, &syncing, system, stop);
            syncing.stop();
            result
        });
        // Received WAL is kept, however the connection ended, unless it is damaged or of an unknown version.
        let is_unusable =
            matches!(result, Err(ReceiveError::Damaged(_) | ReceiveError::UnknownVersion { .. }));
        let is_kept = !is_unusable && self.spool.sync().is_ok();
        // Files that could not be written or synchronised, or whose bytes differ, are not trusted any more.
        if !is_kept || matches!(result, Err(ReceiveError::Spool(_))) {
            self.spool.forget_open_files();
        }
        self.spool.end_connection();
        self.archiving.notify();
        result
    }

    /// Follows the WAL from timeline to timeline.
    fn follow(
        &self,
        replication: &mut Replication,
        syncing: &Syncing<'_>,
        system: System,
        stop: &AtomicBool,
    ) -> Result<(), ReceiveError> {
        let mut position = self.first_position(replication, system)?;
        if let Some(uploading) = self.uploading
            && let Some(base) = self.segment_before(position)?
        {
            uploading.expect_base(base);
        }
        position = self.skip_to_server(replication, system, position)?;
        // The previous attempt found that the server no longer has the next WAL.
        let is_removed = self.status.lock().status.cause.as_deref() == Some(WAL_REMOVED);
        if self.options.accept_gap && is_removed {
            position = self.skip_removed(replication, system, position)?;
        }
        self.keep_histories(replication, system.timeline)?;
        loop {
            // The server may refuse to send the missing WAL. It has not reported a position on a later
            // timeline.
            let server_end = match position.timeline <= system.timeline {
                true => system.flushed.max(position.start),
                false => position.start,
            };
            let mut inner = self.status.lock();
            // Only `uploading` finds out, later, whether the archive has the WAL of the spool.
            let flushed = if self.uploading.is_some() { inner.flushed } else { position.start };
            inner.note(position.start, flushed, server_end);
            drop(inner);
            syncing.restart(position.start);
            if let Some(uploading) = self.uploading {
                uploading.restart(position.timeline, position.start)?;
            }
            let slot = self.options.slot.as_deref();
            let next = match replication.start(slot, position.timeline, position.start)? {
                Started::Ended(next) => next,
                Started::Streaming => {
                    self.status.lock().has_streamed = true;
                    match self.stream(replication, syncing, position, server_end, stop)? {
                        Some(next) => next,
                        None => return Ok(()),
                    }
                }
            };
            let from = position.timeline;
            position = self.turn_to(next);
            self.keep_histories(replication, next.timeline)?;
            (self.observer)(Event::Switched { from, position });
        }
    }

    /// Returns the first position to receive. Uses the first of these that exists:
    ///
    /// 1. The spool's position, or the end of the segments and parts that other processes have archived from
    ///    there on.
    /// 2. The end of the last segment that this process has archived.
    /// 3. The end of the newest segment in the archive, and of the parts that follow it, if the spool is new.
    /// 4. The position from which the server keeps WAL for the slot.
    /// 5. The end of the server's WAL.
    ///
    /// The last two are rounded down to the start of their segment.
    ///
    /// # Errors
    /// [`ReceiveError::Unreachable`] if only copies that cannot be reached may have the newest acknowledged
    /// WAL.
    fn first_position(
        &self,
        replication: &mut Replication,
        system: System,
    ) -> Result<Position, ReceiveError> {
        if let Some(position) = self.spool.position()? {
            let position = self.skip_archived(position)?;
            return self.restore_parts(position);
        }
        let archived = self.status.lock().archived;
        if let Some(end) = archived.and_then(|name| Some(name.start(self.size)?.plus(self.size.bytes()))) {
            let timeline = archived.map_or(system.timeline, |name| name.timeline);
            let position = Position { timeline, start: end, info: None };
            return self.restore_parts(self.skip_archived(position)?);
        }
        if let Some(position) = self.position_of_copies()? {
            return self.restore_parts(position);
        }
        let kept = match &self.options.slot {
            Some(slot) => self.slot_restart(replication, system, slot)?,
            None => None,
        };
        let (start, timeline) = kept.unwrap_or((system.flushed, system.timeline));
        Ok(Position { timeline, start: self.size.start_of(self.size.segment_of(start)), info: None })
    }

    /// Returns the position from which the server keeps WAL for a slot, or `None` if it is unknown.
    fn slot_restart(
        &self,
        replication: &mut Replication,
        system: System,
        slot: &str,
    ) -> Result<Option<(Lsn, Timeline)>, ReceiveError> {
        if replication.can_read_slots() {
            let found = replication.read_slot(slot)?.ok_or_else(|| ReceiveError::NoSlot(slot.to_owned()))?;
            return Ok(found.restart);
        }
        // The next call connects to the hosts again.
        self.status.lock().note_alive();
        let start = match replication::slot_restart_by_sql(self.parameters, slot) {
            Ok(Some(start)) => start,
            // The server itself reports a missing slot.
            Ok(None) => return Ok(None),
            Err(error) => {
                (self.observer)(Event::SlotUnread { slot, error: &error });
                return Ok(None);
            }
        };
        if system.timeline <= 1 {
            return Ok(Some((start, system.timeline)));
        }
        let (history, _) = history(replication, system.timeline)?;
        Ok(Some((start, history.timeline_at(start))))
    }

    /// Moves the position past the segments that follow without a gap in as many copies as have to
    /// acknowledge them. These segments came from another spool or from `archive_command`, and the server may
    /// have removed them. A partial segment in the spool is compared with the archived segment.
    ///
    /// If they differ or the archived one cannot be read, for example without a private key or while the
    /// archive is unreachable, the position stays. The server's WAL is then compared with the spool.
    fn skip_archived(&self, mut position: Position) -> Result<Position, ReceiveError> {
        let copies = self.archiving.copies;
        let mut logs: Vec<Option<(SegmentName, LogListing)>> = copies.iter().map(|_| None).collect();
        loop {
            // Many segments may have to be read.
            self.status.lock().note_alive();
            let name = SegmentName::new(position.timeline, self.size.segment_of(position.start), self.size);
            let mut found = Vec::new();
            for (copy, log) in copies.iter().zip(&mut logs) {
                if log.as_ref().is_none_or(|(first, _)| first.log != name.log) {
                    // One that cannot be listed has nothing to skip.
                    let listing = copy.archive.segments_beside(name).unwrap_or_default();
                    *log = Some((name, listing));
                }
                let object = log.as_ref().and_then(|(_, listing)| listing.find(ArchivedFile::Segment(name)));
                found.extend(object.map(|(object, _)| (&copy.archive, object)));
            }
            let Some(start) = name.start(self.size).filter(|_| found.len() >= copies.acknowledge()) else {
                return Ok(position);
            };
            if self.spool.has_partial(name)? {
                let read = |&(archive, object): &(&Archive, Object)| {
                    self.read_archived(archive, name, object).ok().flatten()
                };
                let Some(archived) = found.iter().find_map(read) else { return Ok(position) };
                if !self.spool.remove_archived_partial(name, &archived)? {
                    return Ok(position);
                }
            }
            position = Position { start: start.plus(self.size.bytes()), info: None, ..position };
        }
    }

    /// Restores the following segments to the spool from their parts in the archive, and returns the position
    /// after them. The server may have removed these segments, because their parts were acknowledged, while
    /// the spool that had them was lost. If several copies have a part of a segment, the largest part is
    /// used.
    ///
    /// Complete segments of earlier timelines are restored too: nothing else archives them. If parts are
    /// damaged, differ from the spool, or cannot be read, the position stays.
    fn restore_parts(&self, position: Position) -> Result<Position, ReceiveError> {
        let mut found = Vec::new();
        for copy in self.archiving.copies.iter() {
            let extents = parts::extents(&copy.archive).unwrap_or_default();
            found.extend(extents.into_iter().map(|extent| (&copy.archive, extent)));
        }
        found.sort_by_key(|(_, extent)| (extent.segment, std::cmp::Reverse(extent.end)));
        let mut restored = position;
        for (archive, extent) in found {
            let (name, end) = (extent.segment, u64::from(extent.end));
            let Some(start) = name.start(self.size) else { continue };
            let is_next = name.timeline == position.timeline
                && self.size.segment_of(start) == self.size.segment_of(restored.start);
            let is_earlier = name.timeline < position.timeline && end == self.size.bytes();
            if extent.goes_on_at.is_some() || end > self.size.bytes() || !(is_next || is_earlier) {
                continue;
            }
            if self.spool.waiting()?.contains(&ArchivedFile::Segment(name))
                || self.spool.partial_end(name)? >= start.plus(end)
            {
                continue;
            }
            self.status.lock().note_alive();
            let Ok(Some(bytes)) = parts::assemble(archive, name) else { continue };
            if self.spool.has_partial(name)? && !self.spool.has_records_of_partial(name, &bytes)? {
                continue;
            }
            self.spool.restore(name, &bytes)?;
            self.archiving.notify();
            if is_next {
                let after = Position { start: start.plus(self.size.bytes()), info: None, ..position };
                restored = match bytes.len() as u64 == self.size.bytes() {
                    true => after,
                    false => self.spool.position()?.unwrap_or(restored),
                };
            }
        }
        Ok(restored)
    }

    /// Returns the segment before all WAL in the spool, or before a position if the spool has none.
    fn segment_before(&self, position: Position) -> Result<Option<SegmentName>, ReceiveError> {
        let partials = self.spool.partials()?.into_iter();
        let names = self.spool.waiting()?.into_iter().chain(partials).filter_map(|file| match file {
            ArchivedFile::Segment(name) | ArchivedFile::Partial(name) => Some(name),
            ArchivedFile::History(_) | ArchivedFile::Backup(..) => None,
        });
        let at = SegmentName::new(position.timeline, self.size.segment_of(position.start), self.size);
        let first = names.min().map_or(at, |first| first.min(at));
        let before = first.number(self.size).and_then(|number| number.checked_sub(1));
        Ok(before.map(|before| SegmentName::new(first.timeline, before, self.size)))
    }

    /// Reads an archived segment after making it durable: the process that archived it may have been
    /// interrupted before that.
    fn read_archived(
        &self,
        archive: &Archive,
        name: SegmentName,
        object: Object,
    ) -> Result<Option<Vec<u8>>, ArchiveError> {
        archive.store().make_durable(&object.key())?;
        let file = ArchivedFile::Segment(name);
        get::with_object(archive, file, |object, bytes| {
            let mut content = Vec::new();
            get::decode(archive, file, object, bytes, &mut content)?;
            Ok(content)
        })
    }

    /// Handles a server on a later timeline that forked before the end of the received WAL: returns the
    /// position of the fork.
    fn skip_to_server(
        &self,
        replication: &mut Replication,
        system: System,
        position: Position,
    ) -> Result<Position, ReceiveError> {
        let Position { timeline, start, .. } = position;
        let other_history = ReceiveError::OtherHistory { timeline, found: system.timeline };
        if system.timeline < timeline {
            return Err(other_history);
        }
        if system.timeline == timeline {
            return match system.flushed < start {
                true => Err(ReceiveError::Behind { server: system.flushed, received: start }),
                false => Ok(position),
            };
        }
        let (history, _) = history(replication, system.timeline)?;
        let Some(end) = history.end_of(timeline) else { return Err(other_history) };
        if start <= end {
            // At the end of the timeline, the server itself names the next one.
            return Ok(position);
        }
        let later =
            history.ancestors.iter().map(|ancestor| ancestor.timeline).find(|&other| other > timeline);
        let next = NextTimeline { timeline: later.unwrap_or(system.timeline), start: end };
        let position = self.turn_to(next);
        (self.observer)(Event::Switched { from: timeline, position });
        Ok(position)
    }

    /// Continues with the oldest WAL that the server has, and records the gap before it in the archive. The
    /// received part of the segment in which the gap starts is archived under the name `.partial`, which
    /// recovery does not read.
    fn skip_removed(
        &self,
        replication: &mut Replication,
        system: System,
        position: Position,
    ) -> Result<Position, ReceiveError> {
        let history = match system.timeline {
            0 | 1 => None,
            timeline => Some(history(replication, timeline)?.0),
        };
        let timeline_at =
            |lsn: Lsn| history.as_ref().map_or(system.timeline, |history| history.timeline_at(lsn));
        let oldest = self.oldest_on_server(system, &timeline_at);
        let start = self.size.start_of(oldest);
        let from = position.start;
        if start <= from {
            return Ok(position);
        }
        self.status.lock().note_alive();
        // Not into a place without the archive, such as an unmounted file system, and not while a copy that
        // cannot be reached may have the WAL.
        let reachable = self.reach(|_| Ok(()))?;
        self.archive_partials(start)?;
        // A missing segment is recorded on the timeline to which it belongs in the server's history.
        let mut first = self.size.segment_of(from);
        while first < oldest {
            let timeline = timeline_at(self.size.start_of(first)).max(position.timeline);
            let is_same =
                |&number: &u64| timeline_at(self.size.start_of(number)).max(position.timeline) == timeline;
            let last = (first..oldest).take_while(is_same).last().unwrap_or(first);
            let [from, to] = [first, last].map(|number| SegmentName::new(timeline, number, self.size));
            for (archive, ()) in &reachable {
                acknowledge::record(archive, from, to, "walden receive --accept-gap", GAP_REASON)?;
            }
            first = last + 1;
        }
        self.spool.leave(start);
        let position = Position { timeline: timeline_at(start), start, info: None };
        (self.observer)(Event::Skipped { from, position });
        Ok(position)
    }

    /// Returns the number of the first segment from which the server has all segments up to its current one,
    /// read over an ordinary connection. If that fails, returns the segment from which the server keeps WAL
    /// for the slot, or else its current one.
    fn oldest_on_server(&self, system: System, timeline_at: &dyn Fn(Lsn) -> Timeline) -> u64 {
        let current = self.size.segment_of(system.flushed);
        // The next call connects to the hosts again.
        self.status.lock().note_alive();
        let Ok(names) = replication::wal_files_by_sql(self.parameters) else {
            let slot = self.options.slot.as_deref();
            let restart =
                slot.and_then(|slot| replication::slot_restart_by_sql(self.parameters, slot).ok().flatten());
            return restart.map_or(current, |restart| self.size.segment_of(restart).min(current));
        };
        let names: BTreeSet<SegmentName> = names.iter().filter_map(|name| SegmentName::parse(name)).collect();
        let has = |number: &u64| {
            let timeline = timeline_at(self.size.start_of(*number));
            names.contains(&SegmentName::new(timeline, *number, self.size))
        };
        (0..current).rev().take_while(has).last().unwrap_or(current)
    }

    /// Archives the partial segments before a position and removes them from the spool. No more WAL completes
    /// them.
    fn archive_partials(&self, end: Lsn) -> Result<(), ReceiveError> {
        for file in self.spool.partials()? {
            let ArchivedFile::Partial(name) = file else { continue };
            if name.start(self.size).is_none_or(|start| start >= end) {
                continue;
            }
            // A segment without a complete record has no WAL to keep.
            if name
                .start(self.size)
                .is_some_and(|start| self.spool.partial_end(name).is_ok_and(|end| end > start))
            {
                let path = self.spool.folder().join(file.to_string());
                let options = self.options.push.clone().look_ahead(0);
                push::push_copies(self.archiving.copies, &path, &options)
                    .asked
                    .map_err(ReceiveError::Partial)?;
            }
            self.spool.remove(file)?;
        }
        Ok(())
    }

    /// Writes the histories of a timeline and of its ancestors to the spool, unless the histories are already
    /// archived or in the spool. The server may not have the ancestors' histories: if it was restored from a
    /// backup without `pg_wal`, it has only the history of the timeline to which it recovered, which names
    /// all ancestors.
    fn keep_histories(&self, replication: &mut Replication, timeline: Timeline) -> Result<(), ReceiveError> {
        if timeline <= 1 {
            return Ok(());
        }
        let (history, content) = history(replication, timeline)?;
        let waiting = self.spool.waiting()?;
        let mut own = Some(content);
        let ancestors = history.ancestors.iter().map(|ancestor| ancestor.timeline).filter(|&other| other > 1);
        for timeline in std::iter::once(timeline).chain(ancestors) {
            let content = own.take();
            let file = ArchivedFile::History(timeline);
            // If the archive is unreachable, it gets the history later.
            let mut copies = self.archiving.copies.iter();
            let is_archived = copies.all(|copy| matches!(copy.archive.find(file), Ok(Some(_))));
            if !is_archived && !waiting.contains(&file) {
                match content.map_or_else(|| replication.timeline_history(timeline), Ok) {
                    Ok(content) => self.spool.keep_history(timeline, &content)?,
                    // undefined_file
                    Err(error) if error.server_error().is_some_and(|error| error.code == "58P01") => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.archiving.notify();
        Ok(())
    }

    fn turn_to(&self, next: NextTimeline) -> Position {
        let start = self.size.start_of(self.size.segment_of(next.start));
        self.spool.leave(start);
        Position { timeline: next.timeline, start, info: None }
    }

    fn note_streaming(&self, replication: &Replication, position: Position) {
        let mut inner = self.status.lock();
        inner.set(State::Streaming);
        inner.status.timeline = position.timeline;
        (inner.status.problem, inner.status.cause) = (None, None);
        (inner.status.code, inner.status.hint) = (None, None);
        drop(inner);
        (self.observer)(Event::Streaming {
            server: replication.place(),
            version: replication.version(),
            position,
            is_encrypted: replication.is_encrypted(),
        });
    }

    /// Receives the WAL of one timeline, until the timeline ends or `stop` is set.
    fn stream(
        &self,
        replication: &mut Replication,
        syncing: &Syncing<'_>,
        position: Position,
        server_end: Lsn,
        stop: &AtomicBool,
    ) -> Result<Option<NextTimeline>, ReceiveError> {
        let state = &mut StreamState::new(position.start, server_end);
        let mut verifier = Verifier::new(
            position.timeline,
            self.size,
            position.start,
            position.info,
            self.options.push.accept_unknown_versions,
        );
        loop {
            if stop.load(Ordering::SeqCst) {
                self.finish(replication, syncing, state)?;
                return Ok(None);
            }
            let received = replication.receive()?;
            state.has_come |= !matches!(received, Received::Nothing);
            match received {
                Received::Wal { start, server_end, bytes } => {
                    if start != state.progress.received {
                        let (expected, found) = (state.progress.received, start);
                        return Err(SpoolError::Order { expected, found }.into());
                    }
                    self.spool.write(position.timeline, start, bytes)?;
                    let end = start.plus(bytes.len() as u64);
                    state.server_end = state.server_end.max(server_end).max(end);
                    let verified = verifier.push(start, bytes);
                    state.verified = verified
                        .map_err(|fault| ReceiveError::from_fault(fault, verifier.is_version_known()))?;
                    self.spool.note_verified(state.verified);
                    let is_segment_done = self.size.segment_of(start) != self.size.segment_of(end);
                    state.progress.received = end;
                    state.asked = None;
                    // Synchronises while more WAL arrives. The rest is synchronised below once no more WAL
                    // arrives.
                    let is_much = end.bytes_since(state.wanted) > MAX_UNSYNCED;
                    if is_segment_done || is_much && self.options.synchronous {
                        syncing.want(end);
                        state.wanted = end;
                    }
                }
                Received::Keepalive { server_end, wants_reply } => {
                    state.server_end = state.server_end.max(server_end);
                    if wants_reply {
                        // At shutdown, a server waits until all its WAL is durable.
                        syncing.want(state.progress.received);
                        state.must_report = true;
                    }
                    state.asked = None;
                }
                Received::EndOfTimeline(next) => {
                    // Without a time limit: positions of the next timeline start below the end of this
                    // timeline.
                    while !self.finish_timeline(syncing, state)? {
                        if stop.load(Ordering::SeqCst) {
                            return Ok(None);
                        }
                    }
                    // A segment that was verified after it was synchronised has to be renamed before its
                    // timeline is left.
                    self.spool.sync()?;
                    return Ok(Some(next));
                }
                Received::Nothing => {
                    if self.options.synchronous && state.wanted < state.progress.received {
                        state.wanted = state.progress.received;
                        syncing.sync_here(state.wanted);
                    } else {
                        replication.wait(state.max_wait(self.options), syncing.news())?;
                        syncing.take_news();
                    }
                }
            }
            if !state.is_noted && (state.has_come || state.began.elapsed() > MAX_REFUSAL) {
                state.is_noted = true;
                self.note_streaming(replication, position);
            }
            self.report_progress(replication, syncing, state)?;
            self.check_silence(replication, state)?;
        }
    }

    /// Asks a server that has sent nothing for half the timeout for a reply, and fails if none arrives within
    /// the other half. While the disk is slow, the server's messages wait to be read, so silence alone is not
    /// enough.
    fn check_silence(
        &self,
        replication: &mut Replication,
        state: &mut StreamState,
    ) -> Result<(), ReceiveError> {
        let timeout = self.options.server_timeout;
        let silence = replication.heard().elapsed();
        if timeout.is_zero() || silence <= timeout / 2 {
            return Ok(());
        }
        match state.asked {
            None => {
                replication.report(state.progress, true)?;
                state.asked = Some(Instant::now());
            }
            Some(asked) if silence > timeout && asked.elapsed() > timeout / 2 => {
                return Err(ReceiveError::Silent(silence.as_secs()));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Reports the receiver's positions to the server if there is news or the status interval has passed.
    fn report_progress(
        &self,
        replication: &mut Replication,
        syncing: &Syncing<'_>,
        state: &mut StreamState,
    ) -> Result<(), ReceiveError> {
        let durable = syncing.durable()?;
        if !self.options.synchronous && state.synced.elapsed() > SYNC_INTERVAL {
            state.synced = Instant::now();
            syncing.want(state.progress.received);
        }
        // WAL that was in the spool before does not count for this server until the server has sent it too.
        let here = durable.min(state.verified);
        if self.size.segment_of(here) != self.size.segment_of(state.here) {
            self.archiving.notify();
        }
        state.here = here;
        let flushed = self.uploading.map_or(here, |uploading| uploading.store_to(here));
        let has_news = flushed > state.progress.flushed;
        let is_time = state.reported.elapsed() > self.options.status_interval;
        if has_news || state.must_report || is_time {
            state.progress.flushed = state.progress.flushed.max(flushed);
            replication.report(state.progress, false)?;
            (state.reported, state.must_report) = (Instant::now(), false);
        }
        let mut inner = self.status.lock();
        // Until it is known which WAL the archive has, the last known position stays.
        let flushed = match state.progress.flushed {
            Lsn::INVALID => inner.flushed,
            flushed => flushed,
        };
        inner.note(state.progress.received, flushed, state.server_end);
        inner.heard = Some(replication.heard());
        drop(inner);
        Ok(())
    }

    /// Makes received WAL durable and reports the durable position to the server.
    fn finish(
        &self,
        replication: &mut Replication,
        syncing: &Syncing<'_>,
        state: &mut StreamState,
    ) -> Result<(), ReceiveError> {
        self.finish_timeline(syncing, state)?;
        let here = syncing.durable()?.min(state.verified);
        let until = Instant::now() + FINAL_UPLOAD_TIMEOUT;
        while self.uploading.is_some_and(|uploading| uploading.store_to(here) < here)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        state.must_report = true;
        self.report_progress(replication, syncing, state)
    }

    /// Makes received WAL durable. Returns false if the disk takes too long.
    fn finish_timeline(&self, syncing: &Syncing<'_>, state: &mut StreamState) -> Result<bool, ReceiveError> {
        syncing.want(state.progress.received);
        let until = Instant::now() + FINAL_SYNC_TIMEOUT;
        while syncing.durable()? < state.progress.received {
            if Instant::now() > until {
                return Ok(false);
            }
            self.status.lock().note_alive();
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }
}

impl Session<'_> {
    /// Returns the position at which the WAL of the copies continues: the newest position up to which as many
    /// copies as have to acknowledge WAL have all WAL. WAL after this position is requested from the server
    /// again. Copies that have no WAL yet are ignored if another copy has WAL.
    ///
    /// If fewer copies can be reached than have to acknowledge WAL, no WAL is acknowledged before another
    /// copy is back, and the oldest position is used.
    fn position_of_copies(&self) -> Result<Option<Position>, ReceiveError> {
        let copies = self.archiving.copies;
        if copies.iter().count() == 1 {
            // A missing single archive may be mounted or created later.
            return Ok(position_of(copies.first(), self.size)?);
        }
        let found = self.reach(|archive| position_of(archive, self.size))?;
        let mut positions: Vec<Position> = found.into_iter().filter_map(|(_, position)| position).collect();
        positions.sort_by_key(|position| (position.timeline, position.start));
        let acknowledge = copies.acknowledge().min(positions.len());
        Ok(positions.len().checked_sub(acknowledge).and_then(|at| positions.get(at)).copied())
    }

    /// Calls `read` with each copy, and returns the reachable copies with the results of `read`. Each
    /// acknowledged byte is in at least one returned copy.
    ///
    /// # Errors
    /// [`ReceiveError::Unreachable`] if too few copies are reachable, unless the options accept this. For a
    /// single archive, the archive's own error.
    fn reach<T>(
        &self,
        read: impl Fn(&Archive) -> Result<T, ArchiveError>,
    ) -> Result<Vec<(Archive, T)>, ReceiveError> {
        let copies = self.archiving.copies;
        let (mut reachable, mut problems, mut first) = (Vec::new(), Vec::new(), None);
        for copy in copies.iter() {
            // An unreachable store takes its time.
            self.status.lock().note_alive();
            // A place that was unmounted has no archive any more.
            let archive = copy.archive.afresh();
            match archive.expect_archive().and_then(|()| read(&archive)) {
                Ok(found) => reachable.push((archive, found)),
                Err(error) => {
                    problems.push(format!("{}: {}", archive.store().location(), error_text(&error)));
                    first = first.or(Some(error));
                }
            }
        }
        let count = reachable.len() + problems.len();
        let needed = count - copies.acknowledge() + 1;
        let is_accepted = self.options.ignore_unreachable && !reachable.is_empty();
        match first {
            Some(error) if reachable.is_empty() && count == 1 => Err(error.into()),
            Some(_) if reachable.len() < needed && !is_accepted => {
                Err(ReceiveError::Unreachable { reachable: reachable.len(), count, needed, problems })
            }
            _ => Ok(reachable),
        }
    }
}

/// Returns where an archive's WAL continues: after the newest segment, or at the first parts of a newer
/// timeline.
///
/// # Errors
/// Errors of the archive.
fn position_of(archive: &Archive, size: SegmentSize) -> Result<Option<Position>, ArchiveError> {
    let newest = list::newest_segment(archive)?;
    let live = parts::segments(archive)?;
    let live_timeline = live.last().map(|segment| segment.timeline);
    let position = |name: SegmentName, past: u64| {
        Some(Position { timeline: name.timeline, start: name.start(size)?.plus(past), info: None })
    };
    Ok(match newest {
        Some(newest) if live_timeline <= Some(newest.timeline) => position(newest, size.bytes()),
        // The first segment of the timeline was not complete, or not archived as a whole.
        _ => live
            .iter()
            .find(|segment| Some(segment.timeline) == live_timeline)
            .and_then(|&first| position(first, 0)),
    })
}

/// Returns the history of a timeline and the content of its file.
fn history(replication: &mut Replication, timeline: Timeline) -> Result<(History, Vec<u8>), ReceiveError> {
    let content = replication.timeline_history(timeline)?;
    let history = History::parse(timeline, &content).map_err(|error| ReplicationError::Protocol {
        expected: "the history of a timeline",
        found: error.to_string(),
    })?;
    Ok((history, content))
}

/// The progress of a stream of one timeline's WAL.
struct StreamState {
    /// End of the records that were received with the right checksums.
    verified: Lsn,
    progress: Progress,
    /// End of the WAL that is durable and verified on this machine.
    here: Lsn,
    /// End of the WAL that should become durable.
    wanted: Lsn,
    /// The server's WAL position.
    server_end: Lsn,
    /// When the receiver's positions were last reported to the server.
    reported: Instant,
    /// When synchronising was last requested by [`SYNC_INTERVAL`].
    synced: Instant,
    must_report: bool,
    /// When the stream started.
    began: Instant,
    /// Whether the server has sent anything.
    has_come: bool,
    /// Whether the stream was reported to the observer.
    is_noted: bool,
    /// When the server was asked for a reply, if it has sent nothing since.
    asked: Option<Instant>,
}

impl StreamState {
    fn new(start: Lsn, server_end: Lsn) -> StreamState {
        StreamState {
            verified: start,
            progress: Progress { received: start, flushed: Lsn::INVALID },
            here: start,
            wanted: start,
            server_end,
            reported: Instant::now(),
            synced: Instant::now(),
            must_report: false,
            began: Instant::now(),
            has_come: false,
            is_noted: false,
            asked: None,
        }
    }

    /// Returns how long to wait for the server before the next status message is due.
    fn max_wait(&self, options: &Options) -> Duration {
        let until_report = options.status_interval.saturating_sub(self.reported.elapsed());
        MAX_WAIT.min(until_report.max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::{Condvar, Mutex};

    use walden_archive::copies::Copies;
    use walden_archive::store;

    use super::*;
    use crate::disk::Folder;

    /// Runs a test with a session that has an empty spool and an empty archive.
    fn with_session(options: &Options, test: impl FnOnce(&Session<'_>)) {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(Box::new(store::Folder::new(folder.path().join("repo"))));
        let disk = Folder::open(&folder.path().join("spool")).unwrap();
        let size = SegmentSize::MIN;
        let spool = Spool::open(&disk, size).unwrap();
        let status = status::Shared::default();
        let parameters = Parameters::parse("host=127.0.0.1").unwrap();
        let copies = Copies::from(&archive);
        let archiving = Archiving {
            copies: &copies,
            spool: &spool,
            size,
            options: &options.push,
            status: &status,
            report: &|_, _, _| {},
            archived: &|_| {},
            is_due: Mutex::new(false),
            due: Condvar::new(),
            is_over: AtomicBool::new(false),
        };
        test(&Session {
            parameters: &parameters,
            spool: &spool,
            size,
            options,
            status: &status,
            archiving: &archiving,
            uploading: None,
            observer: &|_| {},
        });
    }

    /// Encodes a message of a server.
    fn message(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32 + 4).to_be_bytes();
        [&[kind][..], &length, content].concat()
    }

    /// Connects to a server that answers the commands with these messages and then stays silent.
    fn connect(answers: Vec<Vec<u8>>) -> Replication {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let welcome = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
            for answer in std::iter::once(welcome).chain(answers) {
                let mut command = [0; 1024];
                assert!(stream.read(&mut command).unwrap() > 0);
                stream.write_all(&answer).unwrap();
            }
            // Until the client has closed the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let dsn = format!("host=127.0.0.1 port={port} user=walden sslmode=disable");
        Replication::connect(&Parameters::parse(&dsn).unwrap()).unwrap()
    }

    /// As after `pgbackrest restore`, which does not restore files of `pg_wal`.
    #[test]
    fn a_server_without_the_histories_of_earlier_timelines_is_received() {
        let value = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
        let content = "1\t0/308000\tbefore\n2\t0/400000\tbefore\n";
        let row = [vec![0, 2], value("00000003.history"), value(content)].concat();
        let ready = message(b'Z', b"I");
        let found = [message(b'D', &row), message(b'C', b"TIMELINE_HISTORY\0"), ready.clone()].concat();
        let missing = [message(b'E', b"SERROR\0C58P01\0Mcould not open file\0\0"), ready].concat();
        with_session(&Options::default(), |session| {
            session.keep_histories(&mut connect(vec![found, missing]), 3).unwrap();
            assert_eq!(session.spool.waiting().unwrap(), [ArchivedFile::History(3)]);
        });
    }

    #[test]
    fn a_server_is_silent_once_it_was_asked_and_has_not_answered() {
        let options = Options { server_timeout: Duration::from_millis(100), ..Options::default() };
        with_session(&options, |session| {
            let (mut replication, mut state) = (connect(Vec::new()), StreamState::new(Lsn(0), Lsn(0)));
            // As long as a slow disk may take, while the server's messages are not read.
            std::thread::sleep(Duration::from_millis(150));
            session.check_silence(&mut replication, &mut state).unwrap();
            assert!(state.asked.is_some());
            std::thread::sleep(Duration::from_millis(100));
            let error = session.check_silence(&mut replication, &mut state).unwrap_err();
            assert!(matches!(error, ReceiveError::Silent(_)), "{error}");
        });
    }

    #[test]
    fn waiting_for_a_slow_disk_is_no_standstill() {
        with_session(&Options::default(), |session| {
            let start = session.size.start_of(3);
            let syncing = Syncing::new(session.spool).unwrap();
            syncing.restart(start);
            session.spool.write(1, start, &[1; 8192]).unwrap();
            let mut state = StreamState::new(start, start);
            state.progress.received = start.plus(8192);
            session.status.lock().set(State::Streaming);
            std::thread::sleep(Duration::from_millis(200));
            let idle = session.status.idle();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| session.finish_timeline(&syncing, &mut state));
                // Synchronising has not started yet.
                let began = Instant::now();
                let mut is_noted = false;
                while !is_noted && began.elapsed() < Duration::from_secs(20) {
                    std::thread::sleep(Duration::from_millis(1));
                    is_noted = session.status.idle() < idle;
                }
                syncing.stop();
                scope.spawn(|| syncing.run());
                assert!(waiting.join().unwrap().unwrap());
                assert!(is_noted, "the thread that receives seems to stand still");
            });
        });
    }
}

//! Predicts which segments recovery will request.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError, LogListing};
use crate::history::History;
use crate::objects::name::{ArchivedFile, Object};

/// A segment, and the object that contains it with its stored size.
pub(super) type Ahead = (SegmentName, (Object, u64));

/// Minimum age of a listing before it is read again because of a missing segment.
const MAX_AGE: Duration = Duration::from_millis(500);

/// Determines the order of segments across timelines.
pub(super) struct NextSegments<'a> {
    archive: &'a Archive,
    histories: BTreeMap<Timeline, History>,
    size: SegmentSize,
    /// The last listing, with its timeline and `log` number, and the time when it was read.
    listing: Option<((Timeline, u32), LogListing, Instant)>,
}

impl<'a> NextSegments<'a> {
    /// Reads the histories, which state where timelines ended.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn new(archive: &'a Archive, size: SegmentSize) -> Result<NextSegments<'a>, ArchiveError> {
        Ok(NextSegments { archive, histories: archive.histories()?, size, listing: None })
    }

    /// Discards the listing because objects have moved.
    pub fn forget_listing(&mut self) {
        self.listing = None;
    }

    /// Returns the archived segments after a position, with their objects, up to the first missing one.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn following(&mut self, position: SegmentName, count: usize) -> Result<Vec<Ahead>, ArchiveError> {
        let mut found = Vec::new();
        let mut at = position;
        while found.len() < count
            && let Some(number) = at.number(self.size)
        {
            // Another timeline may continue this timeline.
            let child = self.child_timeline_at(at.timeline, number + 1);
            let mut hit = None;
            for timeline in child.into_iter().chain([at.timeline]) {
                let candidate = SegmentName::new(timeline, number + 1, self.size);
                if let Some(object) = self.find(candidate)? {
                    hit = Some((candidate, object));
                    break;
                }
            }
            let Some(hit) = hit else { break };
            at = hit.0;
            found.push(hit);
        }
        Ok(found)
    }

    fn find(&mut self, segment: SegmentName) -> Result<Option<(Object, u64)>, ArchiveError> {
        let key = (segment.timeline, segment.log);
        if let Some((known, listing, read)) = &self.listing
            && *known == key
        {
            let found = listing.find(ArchivedFile::Segment(segment));
            if found.is_some() || read.elapsed() < MAX_AGE {
                return Ok(found);
            }
        }
        let listing = self.archive.segments_beside(segment)?;
        let found = listing.find(ArchivedFile::Segment(segment));
        self.listing = Some((key, listing, Instant::now()));
        Ok(found)
    }

    /// Returns the latest timeline that branched off from `timeline` in segment `number`. Recovery switches
    /// to another timeline only in the segment in which it branched off.
    fn child_timeline_at(&self, timeline: Timeline, number: u64) -> Option<Timeline> {
        let left = |history: &&History| {
            let switch: Option<Lsn> = history.end_of(timeline);
            switch.is_some_and(|switch| self.size.segment_of(switch) == number)
        };
        self.histories.values().filter(left).map(|history| history.timeline).max()
    }
}

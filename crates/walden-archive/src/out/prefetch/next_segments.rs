//! Which segments recovery is going to ask for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError, LogListing};
use crate::history::History;
use crate::stored::name::{ArchivedFile, Object};

/// A segment that is wanted, and the object that holds it with its bytes.
pub(super) type Ahead = (SegmentName, (Object, u64));

/// A listing is used for so long before it is read again for a segment that it does not have.
const MAX_AGE: Duration = Duration::from_millis(500);

/// Which segments follow each other.
pub(super) struct NextSegments<'a> {
    archive: &'a Archive,
    histories: BTreeMap<Timeline, History>,
    size: SegmentSize,
    /// The listing that was used last, of which timeline and log, and when it was read.
    listing: Option<((Timeline, u32), LogListing, Instant)>,
}

impl<'a> NextSegments<'a> {
    /// Reads where timelines were left.
    ///
    /// # Errors
    /// The store's.
    pub fn new(archive: &'a Archive, size: SegmentSize) -> Result<NextSegments<'a>, ArchiveError> {
        Ok(NextSegments { archive, histories: archive.histories()?, size, listing: None })
    }

    /// Objects are not any more where they were.
    pub fn forget_listing(&mut self) {
        self.listing = None;
    }

    /// The archived segments after a position, with their objects, up to the first that is missing.
    ///
    /// # Errors
    /// The store's.
    pub fn following(&mut self, position: SegmentName, count: usize) -> Result<Vec<Ahead>, ArchiveError> {
        let mut found = Vec::new();
        let mut at = position;
        while found.len() < count
            && let Some(number) = at.number(self.size)
        {
            // A timeline that was left goes on in the one that left it.
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

    /// The latest timeline that left this one in a segment. Recovery that has come further stays on this one.
    fn child_timeline_at(&self, timeline: Timeline, number: u64) -> Option<Timeline> {
        let left = |history: &&History| {
            let switch: Option<Lsn> = history.end_of(timeline);
            switch.is_some_and(|switch| self.size.segment_of(switch) == number)
        };
        self.histories.values().filter(left).map(|history| history.timeline).max()
    }
}

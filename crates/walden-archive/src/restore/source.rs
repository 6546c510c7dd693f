//! Provides an archive as a source of segments for WAL readers.
//!
//! A listing determines the segments. Objects are read in order as their segments are needed, and the next
//! objects are prefetched. A segment is decoded once even if two threads need it: the thread that scans it,
//! and the thread that needs the end of a record.

mod ahead;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use walden_codec::container::{Entry, FileForm, Reader};
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_format::stream::StreamInfo;
use walden_source::inventory::SegmentFile;
use walden_source::open::Compression;
use walden_source::store::{SegmentContents, SegmentStore, SharedStore, segment_buffer};
use walden_source::timelines::Stretch;
use walden_source::workers::map_in_order;
use walden_source::{FindSegment, error_text};

use self::ahead::ReadAhead;
use crate::archive::{Archive, ArchiveError, Extent};
use crate::objects::name::{ArchivedFile, Object, PackName};
use crate::objects::object::{self, ObjectError, ObjectReader};
use crate::restore::get::{self, PackMembers};
use crate::restore::log::{Ends, Log, LogSegment};
use crate::store::Store;

/// A bound of the range to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// An LSN.
    Lsn(Lsn),
    /// A time, in microseconds since 1970-01-01 00:00:00 UTC.
    Time(i64),
}

/// Options for reading an archive.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SourceOptions {
    /// The last timeline to follow. The default is the newest one that has segments.
    pub timeline: Option<Timeline>,
    /// Start of the range.
    pub from: Option<Bound>,
    /// End of the range.
    pub to: Option<Bound>,
    /// Number of packs whose indexes are read concurrently.
    pub threads: usize,
}

impl SourceOptions {
    /// Creates options with the defaults of the other fields.
    pub fn new(threads: usize) -> SourceOptions {
        SourceOptions { timeline: None, from: None, to: None, threads }
    }
}

walden_format::setters!(SourceOptions {
    timeline: Option<Timeline>,
    from: Option<Bound>,
    to: Option<Bound>,
});

/// The WAL of an archive, ready for reading.
#[derive(Clone, Debug)]
pub struct Source {
    /// System identifier of the cluster.
    pub system_id: u64,
    /// The followed timelines in WAL order.
    pub stretches: Vec<Stretch>,
    /// The segments in WAL order.
    pub segments: Vec<SegmentFile>,
}

/// Returns the extent of the WAL along a timeline, or along the newest timeline that has segments. Reads only
/// the summaries of the first and the last segments, and some between them: if the server's clock was set
/// back, the extent has no times. Returns `None` if there are no segments.
///
/// # Errors
/// An archive that cannot be listed.
pub fn extent(archive: &Archive, timeline: Option<Timeline>) -> Result<Option<Extent>, ArchiveError> {
    let log = Log::find(archive, timeline, 0..=u64::MAX)?;
    let Some((first, last)) = log.segments.first().zip(log.segments.last()) else { return Ok(None) };
    let Some(start) = first.name.start(log.size) else { return Ok(None) };
    let end = last.name.start(log.size).unwrap_or(start).plus(log.size.bytes());
    let mut ends = Ends::new(archive, &log.segments);
    let mut times = || -> Result<Option<(i64, i64)>, ArchiveError> {
        if ends.go_back()? {
            return Ok(None);
        }
        let Some(last) = ends.last_known(log.segments.len())? else { return Ok(None) };
        let Some((_, last_end)) = ends.find(last)? else { return Ok(None) };
        for index in 0..=last {
            if let Some((first_end, _)) = ends.find(index)? {
                return Ok(Some((first_end, last_end)));
            }
        }
        Ok(None)
    };
    let times = times().unwrap_or_default();
    Ok(Some(Extent { start, end, times }))
}

/// Finds the segments of a log in an archive, and reads at most the first segment.
///
/// # Errors
/// The archive cannot be listed or has none of the segments, or the first segment is unreadable.
pub fn open(archive: &Archive, options: &SourceOptions) -> Result<Source, ArchiveError> {
    let size = archive.segment_size()?;
    let number = |bound| match bound {
        Some(Bound::Lsn(lsn)) => Some(size.segment_of(lsn)),
        _ => None,
    };
    // Includes the next segment, in which the last record may end.
    let last = number(options.to).map_or(u64::MAX, |number| number.saturating_add(1));
    let mut log = Log::find(archive, options.timeline, number(options.from).unwrap_or(0)..=last)?;
    let time = |bound| match bound {
        Some(Bound::Time(time)) => Some(time),
        _ => None,
    };
    log.narrow(archive, time(options.from), time(options.to))?;
    let Some(&first) = log.segments.first() else {
        return Err(ArchiveError::NoSegments {
            location: archive.store().location().to_owned(),
            timeline: log.timeline(),
            extent: extent(archive, options.timeline)?,
        });
    };
    let files = Files {
        location: archive.store().location().trim_end_matches('/').to_owned(),
        members: pack_members(archive, &log.segments, options.threads),
        restarts: find_restarts(archive, &log.segments, options.threads),
    };
    let entries: Vec<LogSegment> = log.segments.clone();
    let inner = Arc::new(Inner {
        archive: archive.clone(),
        ahead: ReadAhead::new(archive.shared_store(), entries),
        decoded: Mutex::new(BTreeMap::new()),
        first: Mutex::new(None),
    });
    let content = Contents { inner: Arc::clone(&inner), pack: None }.decode(0)?;
    let info = StreamInfo::from_first_page(&content).map_err(|kind| {
        let fault = walden_format::fault::Fault { lsn: Lsn(0), at: Lsn(0), kind };
        let (expected, found) = (fault.expected(), fault.found());
        ObjectError::Mismatch { key: first.object.key(), expected, found }
    })?;
    *lock(&inner.first) = Some(content);
    let store = SharedStore::new(ArchiveSegments(inner));
    let file = |(index, segment): (usize, &LogSegment)| files.segment(index, segment, &info, &store);
    let segments = log.segments.iter().enumerate().filter_map(file).collect();
    Ok(Source { system_id: info.system_id, stretches: log.stretches, segments })
}

/// Returns a search for segments that an archive gets after it was opened as a source.
pub(crate) fn finder(archive: &Archive) -> Arc<dyn FindSegment> {
    Arc::new(Finder(archive.clone()))
}

struct Finder(Archive);

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder").field("location", &self.0.store().location()).finish()
    }
}

impl FindSegment for Finder {
    fn find(&self, segment: &SegmentFile) -> io::Result<Option<Vec<u8>>> {
        let file = ArchivedFile::Segment(segment.name);
        let content = get::with_object(&self.0, file, |object, bytes| {
            let mut content = Vec::new();
            get::decode(&self.0, file, object, bytes, &mut content)?;
            Ok(content)
        });
        content.map_err(|error| {
            let text =
                format!("{}: segment {}: {}", self.0.store().location(), segment.name, error_text(&error));
            io::Error::new(io_kind(&error), text)
        })
    }
}

/// Location of the archive and indexes of its packs.
struct Files {
    location: String,
    members: BTreeMap<PackName, Vec<Entry>>,
    /// Where `pg_resetwal` restarted the WAL.
    restarts: BTreeSet<Lsn>,
}

impl Files {
    /// Describes a segment for `walden-source`. All segments of a cluster have the same version and sizes.
    fn segment(
        &self,
        index: usize,
        segment: &LogSegment,
        info: &StreamInfo,
        store: &SharedStore,
    ) -> Option<SegmentFile> {
        let mut path = format!("{}/{}", self.location, segment.object.key());
        let (mut size_on_disk, mut needs_previous) = (segment.bytes, false);
        if let Object::Pack(pack) = segment.object {
            path = format!("{path}: {}", segment.name);
            let entry = self.members.get(&pack).and_then(|entries| member(entries, segment.name));
            size_on_disk = entry.map_or(segment.bytes / pack.segments(), |entry| entry.stored);
            needs_previous = entry.map_or(segment.name != pack.first, |entry| !entry.head.keyframe);
        }
        let start = segment.name.start(info.segment_size)?;
        Some(SegmentFile {
            path: PathBuf::from(path),
            name: segment.name,
            partial: segment.is_partial,
            compression: Compression::Walden,
            member: Some(index as u64),
            store: Some(store.clone()),
            needs_previous,
            size_on_disk,
            start,
            version: info.version,
            system_id: info.system_id,
            segment_size: info.segment_size,
            page_bytes: info.page_bytes,
            is_restarted: self.restarts.contains(&start),
        })
    }
}

fn member(entries: &[Entry], name: SegmentName) -> Option<&Entry> {
    let name = name.to_string();
    entries.iter().find(|entry| entry.head.meta.name == name.as_bytes())
}

/// Returns the starts of segments at which `pg_resetwal` restarted the WAL, according to their summaries. A
/// summary that cannot be read has none, and reading its segment reports the damage.
///
/// A server does not archive the incomplete segment in which its WAL ended, so the segments before a restart
/// are usually missing. In an object store, only the summaries after a gap are read, and the summaries of
/// packs.
fn find_restarts(archive: &Archive, segments: &[LogSegment], threads: usize) -> BTreeSet<Lsn> {
    let is_local = archive.encrypted().inner().folder().is_some();
    let is_after = |pair: &&[LogSegment]| {
        let [left, right] = pair else { return false };
        is_local || left.number + 1 < right.number || matches!(right.object, Object::Pack(_))
    };
    let mut objects: Vec<(Object, u64)> = Vec::new();
    for segment in segments.windows(2).filter(is_after).map(|pair| &pair[1]) {
        if objects.last().is_none_or(|(last, _)| *last != segment.object) {
            objects.push((segment.object, segment.bytes));
        }
    }
    let restarts = |&(object, bytes): &(Object, u64)| -> Vec<Lsn> {
        let contents = get::read_contents(archive, object, bytes).unwrap_or_default();
        let starts =
            contents.iter().filter_map(|it| Some(it.reset_at()?.0 / it.segment_bytes * it.segment_bytes));
        starts.map(Lsn).collect()
    };
    map_in_order(&objects, threads, restarts).into_iter().flatten().collect()
}

/// Reads the indexes of packs, which state where decoding can start. A pack with an unreadable index is
/// decoded from its start, and its reader gets the error.
fn pack_members(
    archive: &Archive,
    segments: &[LogSegment],
    threads: usize,
) -> BTreeMap<PackName, Vec<Entry>> {
    let mut packs: Vec<(PackName, u64)> = Vec::new();
    for segment in segments {
        if let Object::Pack(pack) = segment.object
            && packs.last().is_none_or(|(last, _)| *last != pack)
        {
            packs.push((pack, segment.bytes));
        }
    }
    let limits = object::read_limits(FileForm::Pack, archive.known_segment_bytes());
    let index = |&(pack, bytes): &(PackName, u64)| {
        let input = ObjectReader::new(archive.store(), pack.key(), bytes);
        Reader::open(input, limits).and_then(|mut reader| reader.index()).unwrap_or_default()
    };
    let indexes = map_in_order(&packs, threads, index);
    packs.into_iter().map(|(pack, _)| pack).zip(indexes).collect()
}

/// The segments of an archive, for readers in several threads.
struct ArchiveSegments(Arc<Inner>);

struct Inner {
    archive: Archive,
    ahead: ReadAhead,
    /// Segments that a reader holds or is decoding.
    decoded: Mutex<BTreeMap<usize, Arc<Mutex<Decoded>>>>,
    /// The first segment, which was decoded for the common properties. Kept until it is read.
    first: Mutex<Option<Arc<Vec<u8>>>>,
}

type Decoded = Weak<Vec<u8>>;

impl fmt::Debug for ArchiveSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveSegments").field("segments", &self.0.ahead.segments().len()).finish()
    }
}

impl SegmentStore for ArchiveSegments {
    fn reader(&self) -> Box<dyn SegmentContents> {
        Box::new(Contents { inner: Arc::clone(&self.0), pack: None })
    }
}

/// Returns the kind of an error for readers of files. A segment can be removed while it is read.
fn io_kind(error: &ArchiveError) -> io::ErrorKind {
    match error.is_not_found() {
        true => io::ErrorKind::NotFound,
        false => io::ErrorKind::InvalidData,
    }
}

/// Decodes segments for one thread.
struct Contents {
    inner: Arc<Inner>,
    pack: Option<PackMembers<Arc<dyn Store>>>,
}

impl SegmentContents for Contents {
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        self.content(index).map_err(|error| {
            // A pack contains many segments, and a reader that continues to the end of a record reports only
            // the segment in which the record starts.
            let named = self.inner.ahead.segment(index).map(|it| format!("segment {}: ", it.name));
            let text = format!("{}{}", named.unwrap_or_default(), error_text(&error));
            io::Error::new(io_kind(&error), text)
        })
    }
}

impl Contents {
    /// Returns a segment's content, and decodes it unless another thread has it.
    fn content(&mut self, index: usize) -> Result<Arc<Vec<u8>>, ArchiveError> {
        let inner = Arc::clone(&self.inner);
        let slot = inner.slot(index);
        // Held while decoding, so that a thread that needs the same segment waits for it.
        let mut decoded = lock(&slot);
        if let Some(content) = decoded.upgrade() {
            return Ok(content);
        }
        let first = lock(&inner.first).take_if(|_| index == 0);
        let content = first.map_or_else(|| self.decode(index), Ok)?;
        *decoded = Arc::downgrade(&content);
        Ok(content)
    }

    fn decode(&mut self, index: usize) -> Result<Arc<Vec<u8>>, ArchiveError> {
        let inner = Arc::clone(&self.inner);
        let segment = inner.ahead.segment(index)?;
        let listed = (segment.object, segment.bytes);
        let content = get::with_listed_object(&inner.archive, segment.file(), listed, |object, bytes| {
            self.decode_from(object, bytes, &segment, index)
        });
        Ok(Arc::new(content?))
    }

    /// Decodes a segment from its listed object, or from the object that contains it now.
    fn decode_from(
        &mut self,
        object: Object,
        bytes: u64,
        segment: &LogSegment,
        index: usize,
    ) -> Result<Vec<u8>, ArchiveError> {
        let inner = Arc::clone(&self.inner);
        let segment_bytes = inner.archive.known_segment_bytes();
        let mut content = segment_buffer(segment_bytes.unwrap_or_default());
        match object {
            Object::File(file) if object == segment.object => {
                let stored = inner.ahead.read(index)?;
                get::decode_object(&inner.archive, file, object, &stored, &mut content)?;
            }
            Object::File(file) => get::decode(&inner.archive, file, object, bytes, &mut content)?,
            Object::Pack(pack) => {
                // A pack is reopened after a decoding error, because the position of its reader is undefined.
                let mut members = match self.pack.take().filter(|members| members.pack() == pack) {
                    Some(members) => members,
                    None => PackMembers::open_in(inner.archive.shared_store(), pack, bytes, segment_bytes)?,
                };
                members.go_to(segment.name)?;
                members.decode_next(&mut content)?;
                self.pack = Some(members);
            }
        }
        Ok(content)
    }
}

/// Number of slots above which those without a holder are removed. Exceeds the number of segments that
/// threads can hold.
const MAX_SLOTS: usize = 256;

impl Inner {
    fn slot(&self, index: usize) -> Arc<Mutex<Decoded>> {
        let mut slots = lock(&self.decoded);
        if slots.len() > MAX_SLOTS {
            slots.retain(|_, slot| {
                // With two or more references, a thread is decoding the segment.
                Arc::strong_count(slot) > 1 || lock(slot).strong_count() > 0
            });
        }
        Arc::clone(slots.entry(index).or_default())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

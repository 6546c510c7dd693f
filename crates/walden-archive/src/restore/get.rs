//! Fetches the files that `restore_command` requests from the archive.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use walden_codec::container::{Entry, FileForm, Head, Reader};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::inventory::gaps;
use crate::inventory::parts;
use crate::inventory::pruned::FirstKept;
use crate::inventory::verified;
use crate::objects::contents::Contents;
use crate::objects::first_page::FirstPage;
use crate::objects::name::{ArchivedFile, BACKUP, Object, PackName, timeline_prefix};
use crate::objects::object::{self, ObjectError, ObjectReader, Summary};
use crate::pending::Incoming;
use crate::store::Store;

/// Reasons for not restoring a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// The archive does not contain the file. Recovery continues without it.
    #[error("{name} is not in the archive at {location}")]
    NotThere {
        /// Name of the file.
        name: String,
        /// Location of the archive.
        location: String,
    },
    /// A timeline's history is missing although its WAL is archived. Recovery must stop instead of ending on
    /// an earlier timeline.
    #[error(
        "cannot get {name} from {location}: expected the history of a timeline whose segments are in the archive, found none"
    )]
    NoHistory {
        /// Name of the file.
        name: String,
        /// Location of the archive.
        location: String,
    },
    /// The segment is missing, but the archive contains or contained later WAL of the same timeline. Recovery
    /// must stop instead of ending in the middle of the WAL.
    #[error("cannot get {name} from {location}: expected it before {later}, found a gap")]
    Gap {
        /// Name of the file.
        name: String,
        /// Location of the archive.
        location: String,
        /// A later file on the timeline, the history of a timeline that branched off later, or evidence of a
        /// lost end.
        later: String,
    },
    /// The archive cannot be read. Recovery must stop.
    #[error("cannot get {name}")]
    Archive {
        /// Name of the file.
        name: String,
        /// The error of the archive.
        #[source]
        source: ArchiveError,
    },
    /// The archive belongs to another cluster. Recovery must stop instead of ending because a file is
    /// elsewhere.
    #[error(
        "cannot get {name} from {location}: the archive belongs to another cluster: expected system identifier {expected}, as in {}, found {found}",
        control.display()
    )]
    OtherCluster {
        /// Name of the file.
        name: String,
        /// Location of the archive.
        location: String,
        /// Path of the server's control file.
        control: PathBuf,
        /// System identifier of the server.
        expected: u64,
        /// System identifier of the archive.
        found: String,
    },
    /// The server has segments of another size than the archive: recovery must stop, as the names mean
    /// other positions.
    #[error(
        "cannot get {name} from {location}: expected segments of {} MB, as in {}, found segments of {} MB", expected >> 20,
        control.display(), found >> 20
    )]
    OtherSegmentSize {
        /// The file's name.
        name: String,
        /// Where the archive is.
        location: String,
        /// The server's control file.
        control: PathBuf,
        /// Bytes of the server's segments.
        expected: u64,
        /// Bytes of the archive's.
        found: u64,
    },
    /// The file cannot be written: recovery must stop.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the requested file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
}

impl GetError {
    /// Returns whether the target's file system is full.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, GetError::Write { source, .. } if [StorageFull, QuotaExceeded].contains(&source.kind()))
    }
}

walden_format::diagnostics! { GetError {
    Self::Archive { source, .. } => of(source),
    Self::OtherCluster { .. } => "get-other-cluster" as "other_cluster": "restore_command must name the archive of the server's own cluster, and pg_upgrade creates a new cluster; to fetch files of another cluster manually, write them outside of any data directory",
    Self::OtherSegmentSize { .. } => "get-other-segment-size" as "other_segment_size": "pg_resetwal --wal-segsize changed the size, and WAL from before cannot be replayed after it: restore a base backup from before the change, or name the archive with this server's segments in restore_command; to fetch segments of another size manually, write them outside of any data directory",
    Self::NoHistory { .. } => "get-no-history" as "no_history": gaps::HISTORY_HINT,
    Self::Gap { .. } => "get-gap" as "gap": "if the server that wrote the segment still has it, walden archive check --against DSN --repair archives it; else --ignore-gaps \
         makes recovery end before the gap, and all later changes are lost",
    Self::NotThere { .. } => "get-not-archived" as "not_there",
    Self::Write { .. } => "get-write" as "write",
} }

/// Maximum number of searches for a file whose object disappears before it is read, because the file was
/// moved to a pack, then to a larger pack, or pruned.
const ATTEMPTS: usize = 4;

/// Finds a file's object and passes it to `read`. Searches again if the object has disappeared in the
/// meantime.
///
/// # Errors
/// Errors of the store and of `read`.
pub fn with_object<T>(
    archive: &Archive,
    file: ArchivedFile,
    read: impl FnMut(Object, u64) -> Result<T, ArchiveError>,
) -> Result<Option<T>, ArchiveError> {
    with_found_object(|| archive.find(file), read)
}

fn with_found_object<T>(
    mut find: impl FnMut() -> Result<Option<(Object, u64)>, ArchiveError>,
    mut read: impl FnMut(Object, u64) -> Result<T, ArchiveError>,
) -> Result<Option<T>, ArchiveError> {
    let mut attempt = 1;
    loop {
        let Some((object, bytes)) = find()? else { return Ok(None) };
        match read(object, bytes) {
            Err(error) if error.is_not_found() && attempt < ATTEMPTS => attempt += 1,
            other => return other.map(Some),
        }
    }
}

/// Passes a file's listed object to `read`. If it has disappeared, finds the file as [`with_object`] does.
///
/// # Errors
/// The errors of [`with_object`], and the error of `read` if no object contains the file any more.
pub fn with_listed_object<T>(
    archive: &Archive,
    file: ArchivedFile,
    listed: (Object, u64),
    mut read: impl FnMut(Object, u64) -> Result<T, ArchiveError>,
) -> Result<T, ArchiveError> {
    match read(listed.0, listed.1) {
        Err(error) if error.is_not_found() => with_object(archive, file, read)?.ok_or(error),
        other => other,
    }
}

/// Reads the contents of a listed object's segments from its summaries. If the object has disappeared, reads
/// the summaries of the objects that now contain the segments. Segments that are in no object are omitted.
///
/// # Errors
/// Errors of the store, and unreadable summaries.
pub fn read_contents(archive: &Archive, object: Object, bytes: u64) -> Result<Vec<Contents>, ArchiveError> {
    let names: Vec<SegmentName> = match object::read_contents(archive.store(), object, bytes) {
        Err(error) if error.is_not_found() => match object {
            Object::File(ArchivedFile::Segment(name)) => vec![name],
            Object::Pack(pack) => pack.names().collect(),
            // Other files are never packed.
            Object::File(_) => Vec::new(),
        },
        other => return Ok(other?),
    };
    let mut known: BTreeMap<String, Summary> = BTreeMap::new();
    let mut found = Vec::new();
    for name in names {
        let file = ArchivedFile::Segment(name);
        if !known.contains_key(&name.to_string()) {
            let read = |object, bytes| Ok(object::read_summaries(archive.store(), object, bytes)?);
            let summaries = with_object(archive, file, read)?.unwrap_or_default();
            known.extend(summaries.into_iter().map(|summary| (summary.name.clone(), summary)));
        }
        found.extend(known.remove(&name.to_string()).and_then(|summary| summary.contents));
    }
    Ok(found)
}

/// Writes a file to a path, either completely or not at all.
///
/// A single listing finds the file. The listing may miss a segment that is being packed; [`get_begun`]
/// searches again.
///
/// # Errors
/// [`GetError::NotThere`] if the listing does not contain the file. Any other error means that the archive
/// contains or may contain the file, but cannot provide it.
pub fn get(archive: &Archive, file: ArchivedFile, target: &Path) -> Result<(), GetError> {
    get_after(archive, file, target, || {})
}

/// Writes a file like [`get`]. Calls `found` after finding the file's object and before reading it.
///
/// # Errors
/// The errors of [`get`].
pub fn get_after(
    archive: &Archive,
    file: ArchivedFile,
    target: &Path,
    found: impl FnOnce(),
) -> Result<(), GetError> {
    let name = || file.to_string();
    let write = |source| GetError::Write { path: target.to_owned(), source };
    let mut found = Some(found);
    let mut read = |object, bytes| {
        if let Some(found) = found.take() {
            found();
        }
        // A failure to write the file must not be reported as an error of the archive.
        let mut output = match Incoming::create(target) {
            Ok(file) => Output { file, failure: None },
            Err(error) => return Ok(Err(error)),
        };
        match (decode(archive, file, object, bytes, &mut output), output.failure) {
            (_, Some(failure)) => Ok(Err(failure)),
            (decoded, None) => decoded.map(|()| Ok(output.file)),
        }
    };
    let mut content = with_found_object(|| archive.find_in_one_listing(file), &mut read);
    if let Err(error) = &content
        && error.is_damage()
        && let Some((pack, bytes)) = pack_beside(archive, file)
        && let Ok(output) = read(pack, bytes)
    {
        content = Ok(Some(output));
    }
    match (content.map_err(|source| GetError::Archive { name: name(), source })?, file) {
        (None, ArchivedFile::History(timeline)) => {
            archive.expect_archive().map_err(|source| GetError::Archive { name: name(), source })?;
            look_again_for_history(archive, timeline, target)
        }
        (None, _) => {
            archive.expect_archive().map_err(|source| GetError::Archive { name: name(), source })?;
            Err(GetError::NotThere { name: name(), location: archive.store().location().to_owned() })
        }
        (Some(output), _) => output.map_err(write)?.publish().map_err(write),
    }
}

/// Writes the archived parts of a segment that the server is still writing (`live/`), filled up with zeros.
/// Recovery ends there.
///
/// If WAL after the segment is or was archived, the server can no longer complete the segment, and recovery
/// would end in the middle of the WAL. The parts are then written only with `may_end_at_gap`.
///
/// # Errors
/// [`GetError::NotThere`] if the archive contains no part of the segment, if the timeline ended before the
/// segment, or if later WAL is or was archived; also the errors of [`get`].
pub fn get_begun(
    archive: &Archive,
    segment: SegmentName,
    target: &Path,
    may_end_at_gap: bool,
) -> Result<(), GetError> {
    let file = ArchivedFile::Segment(segment);
    let name = || segment.to_string();
    let not_there = || GetError::NotThere { name: name(), location: archive.store().location().to_owned() };
    let failed = |source| GetError::Archive { name: name(), source };
    let Some(mut bytes) = parts::assemble(archive, segment).map_err(failed)? else {
        // The parts of a segment are removed once it is archived. This is also the second search for a
        // segment that was being packed during the first search.
        return match archive.find_in_one_listing(file).map_err(failed)? {
            Some(_) => get(archive, file, target),
            None => Err(not_there()),
        };
    };
    let size = archive.segment_size().map_err(failed)?;
    let histories = archive.histories().map_err(failed)?;
    match parts::left_at(segment, size, &histories) {
        Some(0) => return Err(not_there()),
        Some(offset) => bytes.truncate(offset as usize),
        None => {
            let is_whole = bytes.len() as u64 == size.bytes();
            if !may_end_at_gap && !is_whole && find_later(archive, segment).map_err(failed)?.is_some() {
                return Err(not_there());
            }
        }
    }
    let write = |source| GetError::Write { path: target.to_owned(), source };
    let mut output = Incoming::create(target).map_err(write)?;
    write_begun(&bytes, size, &mut output).and_then(|()| output.publish()).map_err(write)
}

/// Returns the pack that contains a segment whose own object also exists but is damaged. The pack is
/// sufficient: it was compared with the segment before it was stored, and contains the segment's hash. A
/// readable summary of the own object must not contradict the pack's summary.
fn pack_beside(archive: &Archive, file: ArchivedFile) -> Option<(Object, u64)> {
    let [own, pack] = archive.find_duplicate(file)?;
    let summary = |(object, bytes)| object::read_summary_of(archive.store(), file, object, bytes).ok();
    let packed = summary(pack)?;
    summary(own).is_none_or(|own| own.blake3 == packed.blake3).then_some(pack)
}

/// Searches again for a history that was not found. It must not be reported as missing if the archive has
/// segments of its timeline, because recovery would end on an earlier timeline.
fn look_again_for_history(archive: &Archive, timeline: Timeline, target: &Path) -> Result<(), GetError> {
    let file = ArchivedFile::History(timeline);
    let (name, location) = (file.to_string(), archive.store().location().to_owned());
    let failed = |source| GetError::Archive { name: file.to_string(), source };
    if !gaps::needs_history(archive, timeline).map_err(failed)? {
        return Err(GetError::NotThere { name, location });
    }
    match archive.find(file).map_err(failed)? {
        // The history and its timeline's segments were archived after the first search.
        Some(_) => get(archive, file, target),
        None => Err(GetError::NoHistory { name, location }),
    }
}

/// Distinguishes a segment that is missing in the middle of the archive from one after its end.
///
/// PostgreSQL treats a missing segment as the end of the WAL and promotes. A file that is archived in the
/// meantime is written to `target`.
///
/// # Errors
/// [`GetError::Gap`] if the archive has a later segment of the timeline, a timeline that branched off in a
/// later segment, or evidence that the segment existed (a backup history file, a run of `verify`, an
/// acknowledged gap); otherwise
/// [`GetError::NotThere`], and the errors of [`get`].
pub fn report_gap(archive: &Archive, segment: SegmentName, target: &Path) -> Result<(), GetError> {
    let file = ArchivedFile::Segment(segment);
    let (name, location) = (segment.to_string(), archive.store().location().to_owned());
    let failed = |source| GetError::Archive { name: segment.to_string(), source };
    let Some(later) = find_later(archive, segment).map_err(failed)? else {
        return Err(GetError::NotThere { name, location });
    };
    match archive.find(file).map_err(failed)? {
        Some(_) => get(archive, file, target),
        None => Err(GetError::Gap { name, location, later }),
    }
}

/// Returns the first segment that `prune` kept on a segment's timeline, if it removed the segment.
///
/// # Errors
/// Errors of the store.
pub fn first_kept_after(
    archive: &Archive,
    segment: SegmentName,
) -> Result<Option<SegmentName>, ArchiveError> {
    Ok(FirstKept::read(archive)?.first_after(segment))
}

/// Finds a file which shows that a timeline continued after a segment.
fn find_later(archive: &Archive, segment: SegmentName) -> Result<Option<String>, ArchiveError> {
    let size = archive.segment_size()?;
    let Some(number) = segment.number(size) else { return Ok(None) };
    let mut nearest: Option<u64> = None;
    archive.store().list(&timeline_prefix(segment.timeline), &mut |listed| {
        let first = Object::parse_key(&listed.key).and_then(|object| gaps::first_number(object, size));
        if let Some(first) = first.filter(|&first| first > number) {
            nearest = Some(nearest.map_or(first, |nearest| nearest.min(first)));
        }
    })?;
    // `receive --ack-after archive` stores parts of an incomplete segment.
    let live = parts::segments(archive)?.into_iter().filter(|live| live.timeline == segment.timeline);
    let live = live.filter_map(|live| live.number(size)).filter(|&live| live > number);
    if let Some(nearest) = nearest.into_iter().chain(live).min() {
        return Ok(Some(SegmentName::new(segment.timeline, nearest, size).to_string()));
    }
    let (histories, _) = archive.undamaged_histories()?;
    let branched_later = |history: &History| {
        let ancestor = history.ancestors.iter().find(|ancestor| ancestor.timeline == segment.timeline);
        ancestor.is_some_and(|ancestor| size.segment_of(ancestor.end) > number)
    };
    if let Some((&timeline, _)) = histories.iter().find(|(_, history)| branched_later(history)) {
        return Ok(Some(ArchivedFile::History(timeline).to_string()));
    }
    let is_left_there = |end: Lsn| size.segment_of(end) == number;
    let is_left =
        histories.values().any(|history| history.end_of(segment.timeline).is_some_and(is_left_there));
    if is_left { Ok(None) } else { find_lost(archive, segment) }
}

/// Finds evidence that a segment, or a later segment on its timeline, existed: a base backup that starts
/// there, a run of `verify`, or an acknowledged gap.
fn find_lost(archive: &Archive, segment: SegmentName) -> Result<Option<String>, ArchiveError> {
    let is_lost = |name: SegmentName| name.timeline == segment.timeline && name >= segment;
    let mut backup = None;
    archive.store().list(BACKUP, &mut |listed| {
        if let Some(Object::File(file @ ArchivedFile::Backup(start, _))) = Object::parse_key(&listed.key)
            && is_lost(start)
        {
            backup = Some(file.to_string());
        }
    })?;
    if backup.is_some() {
        return Ok(backup);
    }
    if let Some(name) = verified::newest_segments(archive)?.into_values().find(|&name| is_lost(name)) {
        return Ok(Some(format!("{name}, which walden archive verify has found")));
    }
    let acknowledged = gaps::last_acknowledged(archive, segment.timeline)?.filter(|&name| is_lost(name));
    Ok(acknowledged.map(|name| format!("{name}, the end of an acknowledged gap")))
}

/// Finds the segment after `last`, if the archive had it and lacks it now, and the evidence for this.
pub(crate) fn find_lost_end(
    archive: &Archive,
    last: SegmentName,
) -> Result<Option<(SegmentName, String)>, ArchiveError> {
    let size = archive.segment_size()?;
    let Some(number) = last.number(size) else { return Ok(None) };
    let next = SegmentName::new(last.timeline, number + 1, size);
    // The next segment may have been archived since the search for `last`.
    if !parts::list(archive, next)?.is_empty() || archive.find(ArchivedFile::Segment(next))?.is_some() {
        return Ok(None);
    }
    Ok(find_later(archive, next)?.map(|later| (next, later)))
}

/// Keeps the error of a failed write, because decoders pass on only a copy without its details.
pub(crate) struct Output<W> {
    pub file: W,
    pub failure: Option<io::Error>,
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.failure = Some(error);
            }
            kind.into()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes an incomplete segment, filled up with zeros. Recovery ends there.
pub(crate) fn write_begun(bytes: &[u8], size: SegmentSize, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(bytes)?;
    let missing = size.bytes().saturating_sub(bytes.len() as u64);
    io::copy(&mut io::repeat(0).take(missing), out)?;
    Ok(())
}

/// Decodes the file in an object of `bytes` bytes. If this fails, the output is invalid.
///
/// # Errors
/// Errors of the store, a damaged object, and a segment of another cluster, timeline or position.
pub fn decode(
    archive: &Archive,
    file: ArchivedFile,
    object: Object,
    bytes: u64,
    out: &mut dyn Write,
) -> Result<(), ArchiveError> {
    match (object, file) {
        (Object::Pack(pack), ArchivedFile::Segment(segment)) => {
            let mut members = PackMembers::open(archive, pack, bytes)?;
            members.go_to(segment)?;
            members.decode_next(out)
        }
        _ => {
            let content = archive.store().read(&object.key())?;
            decode_object(archive, file, object, &content, out)
        }
    }
}

/// Decodes a file's own object, as [`decode`].
///
/// # Errors
/// A damaged object, and a segment of another cluster, timeline or position.
pub(crate) fn decode_object(
    archive: &Archive,
    file: ArchivedFile,
    object: Object,
    content: &[u8],
    out: &mut dyn Write,
) -> Result<(), ArchiveError> {
    let key = object.key();
    let mut first_page = FirstPage::new(out);
    object::decode_within(file, archive.known_segment_bytes(), content, &mut first_page)?;
    if matches!(file, ArchivedFile::Segment(_) | ArchivedFile::Partial(_)) {
        first_page.expect_cluster(&key, archive.known_system_id())?;
        if let Err(error) = first_page.expect_name(&key, file) {
            // The segment may have had this damage when it was archived.
            let summary = object::summary_at_end(&key, content);
            if !summary.is_ok_and(|summary| summary.has_accepted_damage()) {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Decodes consecutive segments of a pack, each only once. `S` is a plain or reference-counted reference to
/// the store.
pub struct PackMembers<S> {
    key: String,
    reader: Reader<ObjectReader<S>>,
    index: Vec<Entry>,
    /// Header of the next member, if it was already read.
    head: Option<Head>,
    next: SegmentName,
    pack: PackName,
    /// Maximum size of a segment in bytes.
    max_bytes: u64,
    /// System identifier of the archive's cluster, if known.
    system_id: Option<u64>,
}

impl<'a> PackMembers<&'a dyn Store> {
    /// Opens a pack of `bytes` bytes at its first segment.
    ///
    /// # Errors
    /// The pack is damaged or contains other segments than its key names.
    pub fn open(archive: &'a Archive, pack: PackName, bytes: u64) -> Result<Self, ArchiveError> {
        let members = PackMembers::open_in(archive.store(), pack, bytes, archive.known_segment_bytes())?;
        Ok(PackMembers { system_id: archive.known_system_id(), ..members })
    }
}

impl<S: Deref<Target: Store>> PackMembers<S> {
    /// Opens a pack of `bytes` bytes at its first segment. `segment_bytes` is the segment size, if known.
    ///
    /// # Errors
    /// The errors of [`PackMembers::open`].
    pub(crate) fn open_in(
        store: S,
        pack: PackName,
        bytes: u64,
        segment_bytes: Option<u64>,
    ) -> Result<PackMembers<S>, ArchiveError> {
        let key = pack.key();
        let failed = |source| ObjectError::from_container(&key, source);
        let input = ObjectReader::new(store, key.clone(), bytes);
        let limits = object::read_limits(FileForm::Pack, segment_bytes);
        let mut reader = Reader::open(input, limits).map_err(failed)?;
        let index = reader.index().map_err(failed)?;
        let has_own = index.len() as u64 == pack.segments()
            && pack
                .names()
                .zip(&index)
                .all(|(name, entry)| entry.head.meta.name == name.to_string().as_bytes());
        if !has_own {
            let (expected, found) = ("the segments that its key names".to_owned(), "others".to_owned());
            return Err(ObjectError::Mismatch { key, expected, found }.into());
        }
        let head = reader.seek(&index[0]).map_err(failed)?;
        let max_bytes = object::max_bytes(ArchivedFile::Segment(pack.first), segment_bytes);
        Ok(PackMembers {
            key,
            reader,
            index,
            head: Some(head),
            next: pack.first,
            pack,
            max_bytes,
            system_id: None,
        })
    }

    /// Returns the name of the pack.
    pub fn pack(&self) -> PackName {
        self.pack
    }

    /// Returns the last segment at or before `segment` that can be decoded without its predecessors.
    pub fn keyframe_of(&self, segment: SegmentName) -> SegmentName {
        let at = (segment.segment.saturating_sub(self.pack.first.segment) as usize).min(self.index.len() - 1);
        let keyframe = self.index[..=at].iter().rposition(|entry| entry.head.keyframe).unwrap_or(0);
        SegmentName { segment: self.pack.first.segment + keyframe as u32, ..self.pack.first }
    }

    /// Seeks to a segment, and decodes the segments since its keyframe.
    ///
    /// # Errors
    /// The pack is damaged or does not contain the segment.
    pub fn go_to(&mut self, segment: SegmentName) -> Result<(), ArchiveError> {
        if !self.pack.contains(segment) {
            let (key, expected) = (self.key.clone(), segment.to_string());
            return Err(ObjectError::Mismatch { key, expected, found: "other segments".to_owned() }.into());
        }
        let keyframe = self.keyframe_of(segment);
        if self.next < keyframe || segment < self.next {
            let entry = &self.index[(keyframe.segment - self.pack.first.segment) as usize];
            let head = self.reader.seek(entry);
            let head = head.map_err(|source| ObjectError::Container { key: self.key.clone(), source })?;
            (self.head, self.next) = (Some(head), keyframe);
        }
        while self.next < segment {
            self.decode_next(&mut io::sink())?;
        }
        Ok(())
    }

    /// Returns the segment that [`PackMembers::decode_next`] will decode, or `None` at the end.
    pub fn next_segment(&self) -> Option<SegmentName> {
        self.pack.contains(self.next).then_some(self.next)
    }

    /// Decodes the next segment.
    ///
    /// # Errors
    /// The pack is damaged, or has a segment of another cluster.
    pub fn decode_next(&mut self, out: &mut dyn Write) -> Result<(), ArchiveError> {
        let key = &self.key;
        let failed = |source| ObjectError::Container { key: key.clone(), source };
        let wanted = self.next.to_string();
        let head = match self.head.take() {
            None => self.reader.next().map_err(failed)?,
            head => head,
        };
        let found = head.as_ref().map(|head| String::from_utf8_lossy(&head.meta.name).into_owned());
        let Some(head) = head.filter(|_| found.as_ref() == Some(&wanted)) else {
            let found = found.unwrap_or_else(|| "the pack's end".to_owned());
            return Err(ObjectError::Mismatch { key: key.clone(), expected: wanted, found }.into());
        };
        let reader = &mut self.reader;
        let mut first_page = FirstPage::new(out);
        object::bounded(key, self.max_bytes, &mut first_page, |out| {
            reader.decode(&head, out).map_err(failed)
        })?;
        first_page.expect_cluster(key, self.system_id)?;
        self.next.segment += 1;
        Ok(())
    }
}

//! Stores the segment that the server is writing in parts, so that its WAL is archived before the segment is
//! complete.
//!
//! ```text
//! live/00000001/000000010000000000000007/00000000-000013F8.wlz    bytes 0 to 0x13F8 of the segment
//! live/00000001/000000010000000000000007/000013F8-00001C20.wlz
//! ```
//!
//! A part is an object like any other object: compressed, encrypted if the archive is encrypted, and never
//! replaced. Parts may overlap if another process starts again from an earlier position, but they never
//! contradict each other. They are removed once the segment itself is archived.

use std::collections::BTreeMap;
use std::io::Cursor;

use walden_codec::container::{FileForm, Meta, Needs, WriteOptions, Writer};
use walden_format::lsn::{SegmentName, SegmentSize, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::objects::name::{ArchivedFile, Object};
use crate::objects::object::{self, ObjectError};
use crate::store::{Created, FileHash};

/// Key prefix of parts.
pub const LIVE: &str = "live/";
const ENDING: &str = ".wlz";
/// Compression level. Parts are small and short-lived, and commits wait for them.
const LEVEL: u8 = 1;

/// A range of bytes in a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Part {
    /// The segment.
    pub segment: SegmentName,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Part {
    /// Returns the key of the part's object.
    pub fn key(self) -> String {
        format!("{}{}{ENDING}", folder_of(self.segment), self.range())
    }

    /// Parses the key of a part.
    pub fn parse_key(key: &str) -> Option<Part> {
        let (folder, range) = key.rsplit_once('/')?;
        let segment = SegmentName::parse(folder.rsplit('/').next()?)?;
        let (start, end) = range.strip_suffix(ENDING)?.split_once('-')?;
        let offset = |digits| u32::from_str_radix(digits, 16).ok();
        let part = Part { segment, start: offset(start)?, end: offset(end)? };
        (part.start < part.end && part.key() == key).then_some(part)
    }

    fn range(self) -> String {
        format!("{:08X}-{:08X}", self.start, self.end)
    }

    /// Returns the name stored with the content, which identifies the part without its key.
    fn name(self) -> String {
        format!("{}.{}", self.segment, self.range())
    }
}

/// Returns the key prefix of a segment's parts.
pub fn folder_of(segment: SegmentName) -> String {
    format!("{LIVE}{:08X}/{segment}/", segment.timeline)
}

/// Stores a part, which is durable when this function returns.
///
/// # Errors
/// Errors of the store, [`ArchiveError::Conflict`] if the part exists with different bytes, and
/// [`ArchiveError::Missing`].
pub fn store(archive: &Archive, part: Part, bytes: &[u8]) -> Result<(), ArchiveError> {
    let key = part.key();
    let failed = |source| ObjectError::Container { key: key.clone(), source };
    let mut options = WriteOptions::with_level(FileForm::Segment, LEVEL);
    options.needs = Needs::for_segments(FileForm::Segment, LEVEL, bytes.len() as u64);
    let mut writer = Writer::new(Vec::new(), options);
    let meta = Meta { name: part.name().into_bytes(), ..Meta::default() };
    writer.add(meta, false, &mut Cursor::new(bytes)).map_err(failed)?;
    let object = writer.finish().map_err(failed)?;
    let hash = *blake3::hash(bytes).as_bytes();
    let offered = object::to_hex(&hash);
    object::expect_hash(&key, &decode(part, &object)?.1, &offered)?;
    let (store, name) = (archive.store(), part.name());
    let file = || FileHash { name: &name, hash: &hash };
    if store.create_with(&key, &object, &[file()])? == Created::New {
        return Ok(());
    }
    store.make_durable(&key)?;
    let archived = match store.holds(&key, file())? {
        Some(true) => return Ok(()),
        Some(false) => None,
        None => Some(object::to_hex(&decode(part, &store.read(&key)?)?.1)),
    };
    if archived.as_ref() == Some(&offered) {
        return Ok(());
    }
    Err(ArchiveError::Conflict { name, location: store.location().to_owned(), archived, offered })
}

/// Lists the parts of a segment, ordered by position.
///
/// # Errors
/// Errors of the store.
pub fn list(archive: &Archive, segment: SegmentName) -> Result<Vec<Part>, ArchiveError> {
    list_below(archive, &folder_of(segment))
}

/// Lists the segments that have parts, in WAL order.
///
/// # Errors
/// Errors of the store.
pub fn segments(archive: &Archive) -> Result<Vec<SegmentName>, ArchiveError> {
    let mut segments: Vec<SegmentName> =
        list_below(archive, LIVE)?.into_iter().map(|part| part.segment).collect();
    segments.dedup();
    Ok(segments)
}

fn list_below(archive: &Archive, prefix: &str) -> Result<Vec<Part>, ArchiveError> {
    let mut parts = Vec::new();
    archive.store().list(prefix, &mut |listed| parts.extend(Part::parse_key(&listed.key)))?;
    parts.sort_unstable();
    Ok(parts)
}

/// Assembles the parts of a segment from its start. Returns `None` if there are no parts, or if the segment
/// itself is archived and its parts may have been removed.
///
/// # Errors
/// Errors of the store; damaged, contradictory or missing parts.
pub fn assemble(archive: &Archive, segment: SegmentName) -> Result<Option<Vec<u8>>, ArchiveError> {
    let parts = list(archive, segment)?;
    if parts.is_empty() {
        return Ok(None);
    }
    let assembled = join(archive, &parts);
    // Parts that are removed concurrently look like missing parts or like an earlier end of the WAL.
    match archived_as(archive, segment)? {
        Some(_) => Ok(None),
        None => assembled.map(Some),
    }
}

/// Returns the offset in a segment at which a later timeline left its timeline. Returns `None` if no timeline
/// left it, or only after this segment. The newest of several later timelines counts, because recovery
/// follows it.
///
/// WAL after this offset must not be used from an incomplete segment. The older timeline may have records
/// there that the later one lacks, which is why PostgreSQL archives its last segment under another name
/// (`.partial`).
pub fn left_at(
    segment: SegmentName,
    size: SegmentSize,
    histories: &BTreeMap<Timeline, History>,
) -> Option<u64> {
    let switch = histories.values().rev().find_map(|history| history.end_of(segment.timeline))?;
    let offset = switch.0.saturating_sub(segment.start(size)?.0);
    (offset < size.bytes()).then_some(offset)
}

fn join(archive: &Archive, parts: &[Part]) -> Result<Vec<u8>, ArchiveError> {
    let mut joined: Vec<u8> = Vec::new();
    for &part in parts {
        let bytes = read(archive, part)?;
        let differs = |expected, found| ObjectError::Mismatch { key: part.key(), expected, found };
        let start = part.start as usize;
        if start > joined.len() {
            let expected = format!("a part that continues at offset {:#X}", joined.len());
            return Err(differs(expected, format!("none before offset {start:#X}")).into());
        }
        let known = &joined[start..joined.len().min(part.end as usize)];
        if let Some(at) = known.iter().zip(&bytes).position(|(known, own)| known != own) {
            let expected = "the bytes of the part before".to_owned();
            return Err(differs(expected, format!("others from offset {:#X}", start + at)).into());
        }
        joined.extend_from_slice(&bytes[known.len()..]);
    }
    Ok(joined)
}

/// Removes the parts of an archived segment. Parts that the store keeps, for example because they are locked,
/// stay: the archived segment has precedence.
///
/// # Errors
/// Errors of the store.
pub fn remove(archive: &Archive, segment: SegmentName) -> Result<(), ArchiveError> {
    let discard = |part: Part| Ok(archive.store().discard(&part.key()).map(drop)?);
    list(archive, segment)?.into_iter().try_for_each(discard)
}

/// Removes the parts of a segment as [`remove`] does, if the archive has the segment itself. Returns whether
/// it has.
///
/// # Errors
/// Errors of the store.
pub fn remove_if_archived(archive: &Archive, segment: SegmentName) -> Result<bool, ArchiveError> {
    let is_archived = archived_as(archive, segment)?.is_some();
    if is_archived {
        remove(archive, segment)?;
    }
    Ok(is_archived)
}

/// Removes the parts of archived segments that a killed process left behind. Returns the segments that still
/// have parts.
///
/// # Errors
/// Errors of the store.
pub fn remove_archived(archive: &Archive) -> Result<Vec<SegmentName>, ArchiveError> {
    let mut live = Vec::new();
    for segment in segments(archive)? {
        if !remove_if_archived(archive, segment)? {
            live.push(segment);
        }
    }
    Ok(live)
}

/// Finds the object of a segment, complete or partial.
fn archived_as(archive: &Archive, segment: SegmentName) -> Result<Option<Object>, ArchiveError> {
    for file in [ArchivedFile::Segment(segment), ArchivedFile::Partial(segment)] {
        if let Some((object, _)) = archive.find(file)? {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

/// The range of a segment that its parts cover, according to their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The segment.
    pub segment: SegmentName,
    /// Offset after the bytes that are available from the start without a gap.
    pub end: u32,
    /// Offset of the first part after a gap, if any.
    pub goes_on_at: Option<u32>,
}

impl Extent {
    fn new(segment: SegmentName, parts: &[Part]) -> Extent {
        let mut end = 0;
        for part in parts {
            if part.start > end {
                return Extent { segment, end, goes_on_at: Some(part.start) };
            }
            end = end.max(part.end);
        }
        Extent { segment, end, goes_on_at: None }
    }
}

/// Returns the extent of a segment's parts. Without parts, it is empty.
///
/// # Errors
/// Errors of the store.
pub fn extent(archive: &Archive, segment: SegmentName) -> Result<Extent, ArchiveError> {
    Ok(Extent::new(segment, &list(archive, segment)?))
}

/// Returns the extent of each segment that has parts, in WAL order.
///
/// # Errors
/// Errors of the store.
pub fn extents(archive: &Archive) -> Result<Vec<Extent>, ArchiveError> {
    let parts = list_below(archive, LIVE)?;
    let by_segment = parts.chunk_by(|one, other| one.segment == other.segment);
    Ok(by_segment.map(|parts| Extent::new(parts[0].segment, parts)).collect())
}

fn read(archive: &Archive, part: Part) -> Result<Vec<u8>, ArchiveError> {
    let object = archive.store().read(&part.key())?;
    Ok(decode(part, &object)?.0)
}

/// Decodes a part. Returns its bytes and their BLAKE3.
fn decode(part: Part, object: &[u8]) -> Result<(Vec<u8>, [u8; 32]), ObjectError> {
    let mut bytes = Vec::new();
    let hash = object::decode_named(&part.key(), &part.name(), object, &mut bytes)?;
    let expected = u64::from(part.end - part.start);
    if bytes.len() as u64 != expected {
        let (expected, found) = (format!("{expected} bytes"), format!("{} bytes", bytes.len()));
        return Err(ObjectError::Mismatch { key: part.key(), expected, found });
    }
    Ok((bytes, hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Folder;

    const SEGMENT: SegmentName = SegmentName { timeline: 1, log: 2, segment: 7 };

    fn archive(folder: &std::path::Path) -> Archive {
        let archive = Archive::new(Box::new(Folder::new(folder)));
        archive.create().unwrap();
        archive
    }

    fn part(start: u32, end: u32) -> Part {
        Part { segment: SEGMENT, start, end }
    }

    fn bytes(part: Part) -> Vec<u8> {
        (part.start..part.end).map(|offset| (offset / 3) as u8).collect()
    }

    #[test]
    fn keys_say_which_part_it_is() {
        let one = part(0x2000, 0x1_0000);
        assert_eq!(one.key(), "live/00000001/000000010000000200000007/00002000-00010000.wlz");
        assert_eq!(Part::parse_key(&one.key()), Some(one));
        for key in [
            "live/00000002/000000010000000200000007/00002000-00010000.wlz",
            "live/00000001/000000010000000200000007/00010000-00002000.wlz",
            "live/00000001/000000010000000200000007/2000-00010000.wlz",
            "wal/00000001/00000002/000000010000000200000007.wlz",
            "",
        ] {
            assert_eq!(Part::parse_key(key), None, "{key}");
        }
    }

    #[test]
    fn parts_are_joined_and_overlaps_compared() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path());
        assert_eq!(assemble(&archive, SEGMENT).unwrap(), None);
        for part in [part(0, 100), part(100, 5000), part(0, 64), part(64, 4000), part(4000, 9000)] {
            store(&archive, part, &bytes(part)).unwrap();
            store(&archive, part, &bytes(part)).unwrap();
        }
        assert_eq!(assemble(&archive, SEGMENT).unwrap(), Some(bytes(part(0, 9000))));
        assert_eq!(segments(&archive).unwrap(), [SEGMENT]);
        assert_eq!(remove_archived(&archive).unwrap(), [SEGMENT]);
        let extent = Extent { segment: SEGMENT, end: 9000, goes_on_at: None };
        assert_eq!(extents(&archive).unwrap(), [extent]);
        let other = part(8000, 9500);
        store(&archive, other, &vec![1; 1500]).unwrap();
        let error = assemble(&archive, SEGMENT).unwrap_err();
        assert!(walden_source::error_text(&error).contains("others from offset 0x1F40"), "{error}");
        assert!(matches!(store(&archive, other, &vec![2; 1500]).unwrap_err(), ArchiveError::Conflict { .. }));
        remove(&archive, SEGMENT).unwrap();
        assert_eq!(assemble(&archive, SEGMENT).unwrap(), None);
    }

    #[test]
    fn a_timeline_that_was_left_goes_no_further() {
        let size = SegmentSize::DEFAULT;
        let histories = |of: &[(Timeline, &str)]| {
            of.iter()
                .map(|&(timeline, text)| (timeline, History::parse(timeline, text.as_bytes()).unwrap()))
                .collect::<BTreeMap<_, _>>()
        };
        let left = |segment: u32, of: &[(Timeline, &str)]| {
            left_at(SegmentName { segment, ..SEGMENT }, size, &histories(of))
        };
        let second = (2, "1\t2/7000090\tx\n");
        assert_eq!((left(7, &[]), left(6, &[second]), left(7, &[second])), (None, None, Some(0x90)));
        assert_eq!(left(8, &[second]), Some(0));
        // Timeline 3 left timeline 1 at a later position.
        let third = (3, "1\t2/7000200\tx\n");
        assert_eq!(left(7, &[second, third]), Some(0x200));
    }

    #[test]
    fn a_missing_or_damaged_part_is_no_shorter_log() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path());
        let parts = [part(0, 100), part(100, 200), part(200, 300)];
        parts.iter().for_each(|&part| store(&archive, part, &bytes(part)).unwrap());
        archive.store().remove(&parts[1].key()).unwrap();
        let error = assemble(&archive, SEGMENT).unwrap_err();
        assert!(error.to_string().contains("continues at offset 0x64"), "{error}");
        let extent = Extent { segment: SEGMENT, end: 100, goes_on_at: Some(200) };
        assert_eq!(extents(&archive).unwrap(), [extent]);
        // The content of another part under this key.
        let content = archive.store().read(&parts[0].key()).unwrap();
        archive.store().create(&parts[1].key(), &content).unwrap();
        let error = assemble(&archive, SEGMENT).unwrap_err();
        assert!(error.to_string().contains("expected 000000010000000200000007.00000064-000000C8"), "{error}");
    }
}

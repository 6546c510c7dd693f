//! Builds one pack: encodes it, compares it, stores it, compares it again, and then removes the segments' own
//! objects.

use std::io::{Cursor, Read, Seek};

use walden_codec::container::{FileForm, KEYFRAME_BYTES, Meta, Needs, Reader, WriteOptions, Writer};
use walden_format::lsn::SegmentName;
use walden_source::error_text;

use super::{PackOptions, Stored};
use crate::archive::{Archive, ArchiveError};
use crate::objects::name::{ArchivedFile, PackName};
use crate::objects::object::{
    self, ObjectError, ObjectReader, READ_LIMITS, SUMMARY_FRAME, Summary, frame_content, to_hex,
};
use crate::store::{Created, FileHash, MAX_OBJECT_BYTES};

/// Result of packing a run of segments.
pub(super) enum Outcome {
    /// The segments are in a pack of `bytes` bytes. The store keeps `kept` of their own objects.
    Packed { pack: PackName, bytes: u64, kept: u64 },
    /// The pack would be larger than the separate objects.
    Larger(PackName),
    /// Only one segment remains, because the rest of its run fills a pack to its maximum size.
    Single,
    /// Nothing remains to be packed: another process packed or pruned some of the segments.
    Left,
    /// A pack of this name exists with different content.
    Differs { pack: PackName, problem: String },
}

/// Writes packs.
pub(super) struct Builder<'a> {
    pub archive: &'a Archive,
    pub options: &'a PackOptions,
    /// Called with the number of packed segments.
    pub advance: &'a (dyn Fn(u64) + Sync),
}

/// A pack that is not stored yet.
struct Built {
    pack: PackName,
    object: Vec<u8>,
    /// The segments' own objects.
    originals: Vec<Original>,
}

/// The separate object of a segment.
struct Original {
    name: SegmentName,
    bytes: u64,
    hash: [u8; 32],
}

/// Maximum number of segments between keyframes. Segments after a keyframe are decoded in sequence. The
/// number is small so that two threads can restore WAL in parallel, and that reading a single segment decodes
/// few others.
const KEYFRAME_SEGMENTS: u64 = 8;
/// A pack may exceed the total size of its segments' own objects by 1/16: having fewer objects justifies this
/// if the WAL consists mostly of random values.
const MAX_GROWTH: u64 = 16;
/// Maximum size of a pack, so that the pack can be read back in full even if the store adds bytes to it.
const MAX_STORED_BYTES: u64 = MAX_OBJECT_BYTES / 16 * 15;

impl Builder<'_> {
    /// Packs a run of segments into one pack, or into several if it becomes too large.
    pub fn pack_run(&self, run: PackName) -> Vec<Result<Outcome, ArchiveError>> {
        let mut outcomes = Vec::new();
        let mut first = Some(run.first);
        while let Some(from) = first {
            let outcome = self.pack_from(PackName { first: from, ..run });
            first = match &outcome {
                Ok(Outcome::Packed { pack, .. } | Outcome::Larger(pack) | Outcome::Differs { pack, .. })
                    if pack.last < run.last =>
                {
                    (self.advance)(pack.segments());
                    Some(SegmentName { segment: pack.last.segment + 1, ..from })
                }
                _ => {
                    (self.advance)(PackName { first: from, ..run }.segments());
                    None
                }
            };
            outcomes.push(outcome);
        }
        outcomes
    }

    fn pack_from(&self, run: PackName) -> Result<Outcome, ArchiveError> {
        let built = match self.build(run) {
            Ok(Some(built)) => built,
            Ok(None) => return Ok(Outcome::Single),
            Err(error) if error.is_not_found() => return Ok(Outcome::Left),
            Err(error) => return Err(error),
        };
        match self.publish(&built) {
            // If the store lost the pack, the segments' own objects are the only copy and must stay.
            Err(error) if error.is_not_found() && self.is_superseded(&built)? => Ok(Outcome::Left),
            outcome => outcome,
        }
    }

    /// Returns whether another process removed the pack because a larger one replaced it or its segments were
    /// pruned.
    fn is_superseded(&self, built: &Built) -> Result<bool, ArchiveError> {
        let now = Stored::list(self.archive)?;
        let is_pruned = || built.originals.iter().all(|original| !now.singles.contains_key(&original.name));
        Ok(now.packs.keys().any(|pack| pack.replaces(built.pack)) || is_pruned())
    }

    /// Encodes a pack in memory with all segments of a run or as many as fit, or returns `None` if fewer than
    /// two fit.
    fn build(&self, run: PackName) -> Result<Option<Built>, ArchiveError> {
        let store = self.archive.store();
        let segment_bytes = self.archive.identity()?.segment_bytes;
        let mut writer = Writer::new(Vec::new(), self.write_options(segment_bytes));
        let (mut originals, mut summaries): (Vec<Original>, Vec<Summary>) = Default::default();
        let (mut end, mut last) = (0, run.first);
        for name in run.names() {
            let file = ArchivedFile::Segment(name);
            let key = file.key();
            // A segment can be larger in the pack than on its own if its records are encoded as bytes.
            if end + segment_bytes > self.options.max_bytes && originals.len() > 1 {
                break;
            }
            let content = store.read(&key)?;
            let mut segment = Vec::new();
            let hash = object::decode(file, &content, &mut segment)?;
            let summary = object::summary_at_end(&key, &content)?;
            object::expect_hash(&key, &hash, &summary.blake3)?;
            let meta = Meta { name: name.to_string().into_bytes(), ..Meta::default() };
            let added = writer.add(meta, summary.has_records_as_bytes(), &mut Cursor::new(segment));
            let added = added.map_err(|source| ObjectError::Container { key, source })?;
            (end, last) = (added.file_end, name);
            originals.push(Original { name, bytes: content.len() as u64, hash });
            summaries.push(summary);
        }
        if originals.len() < 2 {
            return Ok(None);
        }
        let pack = PackName { first: run.first, last };
        let failed = |source| ObjectError::Container { key: pack.key(), source };
        for summary in &summaries {
            writer.add_extra(SUMMARY_FRAME, &frame_content(summary)).map_err(failed)?;
        }
        let object = writer.finish().map_err(failed)?;
        let built = Built { pack, object, originals };
        built.expect_members(Cursor::new(&built.object))?;
        let found = object::summaries_of_pack(pack, Cursor::new(&built.object))?;
        if found != summaries {
            let (expected, found) = ("the segments' summaries".to_owned(), "others".to_owned());
            return Err(ObjectError::Mismatch { key: pack.key(), expected, found }.into());
        }
        Ok(Some(built))
    }

    fn write_options(&self, segment_bytes: u64) -> WriteOptions {
        let (form, level) = (FileForm::Pack, self.options.level);
        let needs = Needs::for_segments(form, level, segment_bytes);
        let needs = match self.options.memory.map(|memory| Needs::within(memory, READ_LIMITS.spill)) {
            Some(given) if !given.covers(needs) => given,
            _ => needs,
        };
        let keyframe = KEYFRAME_BYTES.min(KEYFRAME_SEGMENTS * segment_bytes);
        let default = WriteOptions::with_level(form, level);
        let page_memory = self.options.memory.map_or(READ_LIMITS.page_memory, |_| default.page_memory);
        default.needs(needs).keyframe(keyframe).page_memory(page_memory)
    }

    /// Stores a pack, and removes the segments' own objects after verifying that the stored pack contains the
    /// same segments.
    fn publish(&self, built: &Built) -> Result<Outcome, ArchiveError> {
        let (store, pack) = (self.archive.store(), built.pack);
        let (key, bytes) = (pack.key(), built.object.len() as u64);
        let bytes_before: u64 = built.originals.iter().map(|original| original.bytes).sum();
        if bytes > bytes_before + bytes_before / MAX_GROWTH || bytes > MAX_STORED_BYTES {
            return Ok(Outcome::Larger(pack));
        }
        let names: Vec<String> = built.originals.iter().map(|original| original.name.to_string()).collect();
        let files: Vec<FileHash<'_>> = names
            .iter()
            .zip(&built.originals)
            .map(|(name, original)| FileHash { name, hash: &original.hash })
            .collect();
        let bytes = match store.create_with(&key, &built.object, &files)? {
            Created::New => {
                if store.read(&key)? != built.object {
                    let (expected, found) = ("what was written".to_owned(), "something else".to_owned());
                    return Err(ObjectError::Mismatch { key, expected, found }.into());
                }
                bytes
            }
            // Another process was faster or was interrupted.
            Created::Exists => {
                let bytes = store.size(&key)?;
                let input = ObjectReader::new(store, key.clone(), bytes);
                match built.expect_members(input) {
                    Err(
                        error @ (ObjectError::Mismatch { .. }
                        | ObjectError::Container { .. }
                        | ObjectError::Empty { .. }),
                    ) if !error.is_not_found() => {
                        let problem = error_text(&error);
                        return Ok(Outcome::Differs { pack, problem });
                    }
                    other => other?,
                }
                store.make_durable(&key)?;
                bytes
            }
        };
        if store.can_be_unmounted() {
            // Another folder may have been mounted while the pack was stored. The pack must be in the same
            // archive as the objects it replaces.
            self.archive.expect_still_there()?;
            store.size(&key)?;
        }
        let mut kept = 0;
        for original in &built.originals {
            kept += u64::from(store.discard(&ArchivedFile::Segment(original.name).key())?.is_some());
        }
        Ok(Outcome::Packed { pack, bytes, kept })
    }
}

impl Built {
    /// Decodes a pack and compares it with the segments' own objects.
    fn expect_members(&self, input: impl Read + Seek) -> Result<(), ObjectError> {
        let key = self.pack.key();
        let hashes = decode_members(self.pack, input)?;
        for (original, hash) in self.originals.iter().zip(hashes) {
            object::expect_hash(&key, &hash, &to_hex(&original.hash))?;
        }
        Ok(())
    }
}

/// Decodes all segments of a pack. Returns the BLAKE3 of each, which the pack confirmed.
pub(super) fn decode_members(pack: PackName, input: impl Read + Seek) -> Result<Vec<[u8; 32]>, ObjectError> {
    let key = pack.key();
    let failed = |source| ObjectError::from_container(&key, source);
    let mut reader = Reader::open(input, *READ_LIMITS).map_err(failed)?;
    let mut hashes = Vec::new();
    let mut names = pack.names();
    while let Some(head) = reader.next().map_err(failed)? {
        let (expected, found) = (names.next(), String::from_utf8_lossy(&head.meta.name).into_owned());
        if expected.is_none_or(|name| name.to_string() != found) {
            let expected = expected.map_or("no more segments".to_owned(), |name| name.to_string());
            return Err(ObjectError::Mismatch { key, expected, found });
        }
        hashes.push(reader.decode(&head, &mut std::io::sink()).map_err(failed)?.end.hash);
    }
    match names.next() {
        None => Ok(hashes),
        Some(name) => {
            let (expected, found) = (name.to_string(), "the pack's end".to_owned());
            Err(ObjectError::Mismatch { key, expected, found })
        }
    }
}

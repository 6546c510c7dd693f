//! Encodes and decodes objects: an archived file in compressed form, followed by a summary that can be read
//! separately.
//!
//! The summary is a frame of kind 128, which other readers skip (see `docs/format.md`). It contains JSON, the
//! length of the JSON in bytes (u32, little-endian), and `wsum`. In an object with one file, the summary is
//! the last frame, so the object's last bytes state where it starts. A pack has one summary for each segment,
//! in order, between the last member and the index.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use walden_codec::coder::Input;
use walden_codec::container::Error as ContainerError;
use walden_codec::container::{
    FileForm, Head, Meta, Needs, ReadLimits, Reader, Summary as Member, WriteOptions, Writer,
};
use walden_format::diagnostic::Diagnostic;
use walden_source::machine;

pub use crate::hash::to_hex;
use crate::objects::check::{ACCEPTED, Checked, MAX_TEXT_BYTES};
use crate::objects::contents::Contents;
use crate::objects::name::{ArchivedFile, Object, PackName};
use crate::store::{Cause, Store, StoreError};

/// Frame kind of a summary.
pub(crate) const SUMMARY_FRAME: u8 = 128;
const SUMMARY_MAGIC: &[u8; 4] = b"wsum";
/// Number of bytes after the JSON.
const SUMMARY_END: u64 = 8;
/// Number of bytes read from an object's end, enough for most summaries.
const SUMMARY_READ: u64 = 8 << 10;
/// Largest accepted summary, in bytes of JSON.
const MAX_SUMMARY: u64 = 1 << 20;

/// Limits for decoding, sufficient for PostgreSQL's largest segments (1 GB) at the highest level.
///
/// An object states its requirements, and decoding uses no more than these.
pub static READ_LIMITS: LazyLock<ReadLimits> = LazyLock::new(|| {
    ReadLimits::default().memory(32 << 30).spill(64 << 30).page_memory(machine::page_memory())
});

/// Highest compression level.
const MAX_LEVEL: u8 = 9;
/// Size of PostgreSQL's largest segments in bytes.
pub(crate) const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Returns limits for decoding an object whose segments have `segment_bytes` bytes, if known. The limit is
/// needed because anyone who can write to the store controls the stated requirements.
pub(crate) fn read_limits(form: FileForm, segment_bytes: Option<u64>) -> ReadLimits {
    let Some(bytes) = segment_bytes else { return *READ_LIMITS };
    // Twice the requirements of this version's encoder, because other versions may calculate them
    // differently.
    let memory = 2 * Needs::for_segments(form, MAX_LEVEL, bytes).memory() + READ_LIMITS.page_memory;
    (*READ_LIMITS).memory(memory.min(READ_LIMITS.memory))
}

/// A problem or notice about an object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Finding {
    /// The object's key.
    pub object: String,
    /// The problem or notice.
    pub problem: String,
}

/// Summary of an archived file, stored in its object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The archived file's name.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file, in hexadecimal digits.
    pub blake3: String,
    /// Warnings from archiving the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The file is damaged but was archived anyway: see [`Summary::has_accepted_damage`].
    #[serde(rename = "damage_accepted", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_damage_accepted: bool,
    /// The file was compressed as bytes because its records did not decode identically: see
    /// [`Summary::has_records_as_bytes`].
    #[serde(rename = "stored_as_bytes", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_as_bytes: bool,
    /// Contents of a segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Contents>,
}

impl Summary {
    /// Returns whether the file is damaged but was archived anyway. Summaries of the first versions indicate
    /// this only by a warning.
    pub fn has_accepted_damage(&self) -> bool {
        self.is_damage_accepted || self.warnings.iter().any(|warning| warning.starts_with(ACCEPTED))
    }

    /// Returns whether the file was compressed as bytes because its records did not decode identically.
    /// Summaries of the first versions indicate this only by a warning.
    pub fn has_records_as_bytes(&self) -> bool {
        self.is_as_bytes || self.warnings.iter().any(|warning| warning.starts_with(AS_BYTES))
    }

    /// Returns whether the file is a segment of a PostgreSQL version that Walden could not read when
    /// archiving it.
    pub fn is_of_unknown_version(&self) -> bool {
        self.contents.as_ref().is_some_and(|contents| contents.unknown_magic.is_some())
    }

    /// Creates the summary of a checked file.
    pub fn new(file: ArchivedFile, checked: &Checked) -> Summary {
        Summary {
            name: file.to_string(),
            bytes: checked.bytes,
            blake3: to_hex(&checked.hash),
            warnings: checked.warnings.clone(),
            is_damage_accepted: checked.is_damage_accepted,
            is_as_bytes: checked.is_as_bytes,
            contents: checked.contents.clone(),
        }
    }
}

/// Text for an empty object, including the remedy, because a list of findings has no separate hint.
pub(crate) const EMPTY: &str = "an empty object of 0 bytes, as a crash of its file system or an interrupted copy leaves it: restore it \
                                from another copy, or move it out of the archive and archive its files again";

/// Reasons for failing to encode a file as an object or to decode it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// An operation on the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The compressed object could not be encoded or decoded.
    #[error("cannot use {key}")]
    Container {
        /// Key of the object.
        key: String,
        /// The error of encoding or decoding.
        #[source]
        source: ContainerError,
    },
    /// The object is empty.
    #[error("cannot use {key}: expected a compressed file, found {EMPTY}")]
    Empty {
        /// Key of the object.
        key: String,
    },
    /// The object contradicts its key.
    #[error("cannot use {key}: expected {expected}, found {found}")]
    Mismatch {
        /// Key of the object.
        key: String,
        /// The value that its key or summary requires.
        expected: String,
        /// The value in the object.
        found: String,
    },
}

walden_format::diagnostics! { ObjectError {
    error if error.store_error().is_some() => is(error.store_error().map(Diagnostic::diagnose).unwrap_or_default()),
    _ => "archive-object-damaged" as "damaged_object": "walden archive verify lists all other damage",
} }

impl ObjectError {
    /// Returns the error for an object whose compressed bytes are invalid.
    pub(crate) fn from_container(key: &str, source: ContainerError) -> ObjectError {
        let key = key.to_owned();
        match source {
            ContainerError::Empty => ObjectError::Empty { key },
            source => ObjectError::Container { key, source },
        }
    }

    /// Returns whether the object is missing.
    pub fn is_not_found(&self) -> bool {
        self.store_error().is_some_and(|error| error.cause == Cause::NotFound)
    }

    /// Returns the store's error, if the store caused this error.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            ObjectError::Store(error) => Some(error),
            ObjectError::Mismatch { .. } | ObjectError::Empty { .. } => None,
            ObjectError::Container { source, .. } => {
                // A store's error that passes through a reader is wrapped in an `io::Error`.
                let mut causes =
                    std::iter::successors(Some(source as &(dyn std::error::Error + 'static)), |cause| {
                        cause.source()
                    });
                causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref())
            }
        }
    }
}

/// The content of a file to archive.
pub enum Content<'a> {
    /// The file's bytes.
    Held(&'a [u8]),
    /// A file too large for memory, which each step reads again.
    Read(&'a mut dyn Input),
}

/// Start of the warning about a segment that is compressed as bytes although its records are valid.
const AS_BYTES: &str = "its records are compressed as bytes, which takes more space, because decoding them did not reproduce the segment; please report this:";

/// Compresses a checked file, decodes the result, and compares it with the original. If the records do not
/// decode identically, the file is compressed as bytes and `checked` gets a warning, because archiving must
/// not stall.
///
/// # Errors
/// The file cannot be read or differs from the checked one.
pub fn encode(
    file: ArchivedFile,
    checked: &mut Checked,
    content: &mut Content<'_>,
    level: u8,
) -> Result<Vec<u8>, ObjectError> {
    use ContainerError::{Damage, Needs};
    let failure = match encode_by(file, checked, content, level, false) {
        Err(error @ ObjectError::Mismatch { .. }) => error,
        Err(error @ ObjectError::Container { source: Damage(_) | Needs(_), .. }) => error,
        other => return other,
    };
    checked.is_as_bytes = true;
    checked.warnings.push(format!("{AS_BYTES} {}", walden_source::error_text(&failure)));
    encode_by(file, checked, content, level, true)
}

fn encode_by(
    file: ArchivedFile,
    checked: &Checked,
    content: &mut Content<'_>,
    level: u8,
    as_bytes: bool,
) -> Result<Vec<u8>, ObjectError> {
    let key = file.key();
    let failed = |source| ObjectError::Container { key: key.clone(), source };
    let mut options = WriteOptions::with_level(FileForm::Segment, level);
    options.needs = Needs::for_segments(FileForm::Segment, level, checked.bytes);
    let mut writer = Writer::new(Vec::new(), options);
    let meta = Meta { name: file.to_string().into_bytes(), ..Meta::default() };
    let added = match content {
        // The checked bytes are in memory, so they need no second check.
        Content::Held(bytes) if checked.is_sound && !as_bytes => {
            writer.add_checked(meta, bytes, checked.hash)
        }
        Content::Held(bytes) => writer.add(meta, as_bytes, &mut Cursor::new(*bytes)),
        Content::Read(input) => {
            let rewound = input.rewind().map_err(ContainerError::Original);
            rewound.and_then(|()| writer.add(meta, as_bytes, input))
        }
    };
    added.map_err(failed)?;
    let summary = frame_content(&Summary::new(file, checked));
    writer.add_extra(SUMMARY_FRAME, &summary).map_err(failed)?;
    let object = writer.finish().map_err(failed)?;
    match content {
        Content::Held(bytes) => compare(file, &object, bytes, &checked.hash)?,
        Content::Read(_) => decode(file, &object, &mut io::sink())
            .and_then(|hash| expect_hash(&key, &hash, &to_hex(&checked.hash)))?,
    }
    Ok(object)
}

/// Decodes the file in an object and compares it with the original, whose hash is `hash`.
fn compare(file: ArchivedFile, object: &[u8], original: &[u8], hash: &[u8; 32]) -> Result<(), ObjectError> {
    let key = file.key();
    let compare = |reader: &mut Reader<Cursor<&[u8]>>, head: &Head| {
        reader.compare(head, original, hash).map_err(failed_in(&key))
    };
    one_file(&key, &file.to_string(), object, *READ_LIMITS, compare).map(drop)
}

/// Decodes the file in an object to `out`. Returns the BLAKE3 of the file, which the object confirmed.
///
/// # Errors
/// The object is damaged or contains another file. Then the output is invalid.
pub fn decode(file: ArchivedFile, object: &[u8], out: &mut dyn Write) -> Result<[u8; 32], ObjectError> {
    decode_within(file, None, object, out)
}

/// Decodes the file in an object of an archive whose segment size is `segment_bytes`, if known. A larger file
/// is an error.
pub(crate) fn decode_within(
    file: ArchivedFile,
    segment_bytes: Option<u64>,
    object: &[u8],
    out: &mut dyn Write,
) -> Result<[u8; 32], ObjectError> {
    let (key, max_bytes) = (file.key(), max_bytes(file, segment_bytes));
    let limits = read_limits(FileForm::Segment, segment_bytes);
    let member = one_file(&key, &file.to_string(), object, limits, |reader, head| {
        bounded(&key, max_bytes, out, |out| reader.decode(head, out).map_err(failed_in(&key)))
    })?;
    Ok(member.end.hash)
}

/// Decodes the file in an object under any name.
pub(crate) fn decode_named(
    key: &str,
    name: &str,
    object: &[u8],
    out: &mut dyn Write,
) -> Result<[u8; 32], ObjectError> {
    let member = one_file(key, name, object, *READ_LIMITS, |reader, head| {
        bounded(key, MAX_SEGMENT_BYTES, out, |out| reader.decode(head, out).map_err(failed_in(key)))
    })?;
    Ok(member.end.hash)
}

/// Returns the maximum size of a file in bytes.
pub(crate) fn max_bytes(file: ArchivedFile, segment_bytes: Option<u64>) -> u64 {
    match file {
        ArchivedFile::Segment(_) | ArchivedFile::Partial(_) => segment_bytes.unwrap_or(MAX_SEGMENT_BYTES),
        ArchivedFile::History(_) | ArchivedFile::Backup(..) => MAX_TEXT_BYTES,
    }
}

/// Decodes at most `max_bytes` bytes, regardless of the size that the object states.
pub(crate) fn bounded<T>(
    key: &str,
    max_bytes: u64,
    out: &mut dyn Write,
    decode: impl FnOnce(&mut dyn Write) -> Result<T, ObjectError>,
) -> Result<T, ObjectError> {
    let mut out = Bounded { out, written: 0, max_bytes };
    let decoded = decode(&mut out);
    if out.written > max_bytes {
        let (expected, found) = (format!("at most {max_bytes} bytes"), format!("{} or more", out.written));
        return Err(ObjectError::Mismatch { key: key.to_owned(), expected, found });
    }
    decoded
}

/// Writes at most `max_bytes` bytes.
struct Bounded<'a> {
    out: &'a mut dyn Write,
    /// Number of bytes written, including those refused.
    written: u64,
    max_bytes: u64,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > self.max_bytes {
            self.written += bytes.len() as u64;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Adds the object's key to an error.
fn failed_in(key: &str) -> impl Fn(ContainerError) -> ObjectError {
    move |source| ObjectError::from_container(key, source)
}

/// Reads an object to its end. The object must contain exactly the file of this name, which `read` consumes.
fn one_file(
    key: &str,
    name: &str,
    object: &[u8],
    limits: ReadLimits,
    read: impl FnOnce(&mut Reader<Cursor<&[u8]>>, &Head) -> Result<Member, ObjectError>,
) -> Result<Member, ObjectError> {
    let failed = failed_in(key);
    let mismatch = |expected: &str, found: &str| ObjectError::Mismatch {
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    };
    let mut reader = Reader::open(Cursor::new(object), limits).map_err(&failed)?;
    if reader.header().map(|header| header.form) != Some(FileForm::Segment) {
        return Err(mismatch("one file", "a pack"));
    }
    let head = reader.next().map_err(&failed)?;
    let found = head.as_ref().map(|head| String::from_utf8_lossy(&head.meta.name).into_owned());
    let Some(head) = head.filter(|_| found.as_deref() == Some(name)) else {
        return Err(mismatch(name, found.as_deref().unwrap_or("nothing")));
    };
    let member = read(&mut reader, &head)?;
    // Checks that no other file follows.
    match reader.next().map_err(&failed)? {
        None => Ok(member),
        Some(_) => Err(mismatch("one file", "more than one")),
    }
}

/// Reads the summary of an object with one file, from its last bytes.
///
/// # Errors
/// The object has no summary, or the store failed.
pub fn read_summary(store: &dyn Store, key: &str, stored_bytes: u64) -> Result<Summary, ObjectError> {
    let object_bytes = store.content_bytes(key, stored_bytes)?;
    if object_bytes == 0 {
        return Err(ObjectError::Empty { key: key.to_owned() });
    }
    let mut tail = store.read_range(key, object_bytes.saturating_sub(SUMMARY_READ)..object_bytes)?;
    if let Some(bytes) = json_bytes(&tail).filter(|&bytes| bytes <= MAX_SUMMARY)
        && bytes + SUMMARY_END > tail.len() as u64
    {
        tail = store.read_range(key, object_bytes.saturating_sub(bytes + SUMMARY_END)..object_bytes)?;
    }
    summary_at_end(key, &tail)
}

/// Parses the summary at an object's end.
///
/// # Errors
/// The bytes do not end with a summary.
pub fn summary_at_end(key: &str, tail: &[u8]) -> Result<Summary, ObjectError> {
    let json = json_bytes(tail).and_then(|bytes| {
        let end = tail.len().checked_sub(SUMMARY_END as usize)?;
        tail.get(end.checked_sub(usize::try_from(bytes).ok()?)?..end)
    });
    let summary = json.and_then(|json| serde_json::from_slice(json).ok());
    summary.ok_or_else(|| ObjectError::Mismatch {
        key: key.to_owned(),
        expected: "a summary at its end".to_owned(),
        found: "none".to_owned(),
    })
}

/// Verifies every checksum in an object with one file, and returns its summary. Nothing is decoded, because
/// the writer compared the decoded file with the original.
///
/// # Errors
/// The object is damaged or contains another file.
pub(crate) fn check_one_file(file: ArchivedFile, object: &[u8]) -> Result<Summary, ObjectError> {
    let (key, name) = (file.key(), file.to_string());
    let mut reader = Reader::open(Cursor::new(object), *READ_LIMITS).map_err(failed_in(&key))?;
    reader.check_frames().map_err(failed_in(&key))?;
    let member = one_file(&key, &name, object, *READ_LIMITS, |reader, head| {
        reader.skip(head).map_err(failed_in(&key))
    })?;
    let summary = summary_at_end(&key, object)?;
    expect_hash(&key, &member.end.hash, &summary.blake3)?;
    match summary.name == name {
        true => Ok(summary),
        false => Err(ObjectError::Mismatch {
            key,
            expected: name,
            found: format!("a summary of {}", summary.name),
        }),
    }
}

/// Reads the summaries of a pack's segments, in order, and compares them with its index.
///
/// # Errors
/// The pack is damaged or lacks summaries, or the store failed.
pub fn read_pack_summaries(
    store: &dyn Store,
    pack: PackName,
    object_bytes: u64,
) -> Result<Vec<Summary>, ObjectError> {
    summaries_of_pack(pack, ObjectReader::new(store, pack.key(), object_bytes))
}

/// Like [`read_pack_summaries`].
pub(crate) fn summaries_of_pack(
    pack: PackName,
    input: impl Read + Seek,
) -> Result<Vec<Summary>, ObjectError> {
    let key = pack.key();
    let failed = |source| ObjectError::from_container(&key, source);
    let mut reader = Reader::open(input, *READ_LIMITS).map_err(failed)?;
    let index = reader.index().map_err(failed)?;
    let frames = reader.extras(&index, SUMMARY_FRAME).map_err(failed)?;
    let mismatch =
        |expected: String, found: String| Err(ObjectError::Mismatch { key: key.clone(), expected, found });
    if frames.len() != index.len() || index.len() as u64 != pack.segments() {
        let expected = format!("{} segments, each with a summary", pack.segments());
        return mismatch(expected, format!("{} with {} summaries", index.len(), frames.len()));
    }
    let mut summaries = Vec::with_capacity(frames.len());
    for ((name, entry), frame) in pack.names().zip(&index).zip(frames) {
        let summary = summary_at_end(&key, &frame)?;
        let is_own = entry.head.meta.name == name.to_string().as_bytes() && summary.name == name.to_string();
        if !is_own || summary.blake3 != to_hex(&entry.end.hash) {
            let found = String::from_utf8_lossy(&entry.head.meta.name);
            return mismatch(
                format!("{name} and its summary"),
                format!("{found} and a summary of {}", summary.name),
            );
        }
        summaries.push(summary);
    }
    Ok(summaries)
}

/// Reads the summary of a file in an object.
///
/// # Errors
/// Like [`read_summary`] and [`read_pack_summaries`]; also an object without the file.
pub fn read_summary_of(
    store: &dyn Store,
    file: ArchivedFile,
    object: Object,
    object_bytes: u64,
) -> Result<Summary, ObjectError> {
    let (key, name) = (object.key(), file.to_string());
    let summaries = read_summaries(store, object, object_bytes)?;
    let found = summaries.into_iter().find(|summary| summary.name == name);
    found.ok_or_else(|| ObjectError::Mismatch { key, expected: name, found: "other files".to_owned() })
}

/// Reads all summaries of an object.
///
/// # Errors
/// Like [`read_summary`] and [`read_pack_summaries`].
pub fn read_summaries(
    store: &dyn Store,
    object: Object,
    object_bytes: u64,
) -> Result<Vec<Summary>, ObjectError> {
    match object {
        Object::File(_) => Ok(vec![read_summary(store, &object.key(), object_bytes)?]),
        Object::Pack(pack) => read_pack_summaries(store, pack, object_bytes),
    }
}

/// Reads the contents of the segments in an object. The result is empty for other files.
///
/// # Errors
/// Like [`read_summary`] and [`read_pack_summaries`].
pub fn read_contents(store: &dyn Store, object: Object, bytes: u64) -> Result<Vec<Contents>, ObjectError> {
    if let Object::File(ArchivedFile::History(_) | ArchivedFile::Backup(..)) = object {
        return Ok(Vec::new());
    }
    let summaries = read_summaries(store, object, bytes)?;
    Ok(summaries.into_iter().filter_map(|summary| summary.contents).collect())
}

/// Verifies an object's checksums, and lists its files with their sizes and hashes.
///
/// # Errors
/// The object is damaged.
pub fn check_stored(
    store: &dyn Store,
    object: Object,
    bytes: u64,
) -> Result<Vec<(ArchivedFile, u64, [u8; 32])>, ObjectError> {
    let key = object.key();
    let failed = |source| ObjectError::from_container(&key, source);
    let input = ObjectReader::new(store, key.clone(), bytes);
    let mut reader = Reader::open(input, *READ_LIMITS).map_err(failed)?;
    reader.check_frames().map_err(failed)?;
    let mut files = Vec::new();
    while let Some(head) = reader.next().map_err(failed)? {
        let end = reader.skip(&head).map_err(failed)?.end;
        let name = String::from_utf8_lossy(&head.meta.name).into_owned();
        let file = ArchivedFile::parse(&name).filter(|file| match object {
            Object::File(own) => *file == own,
            Object::Pack(pack) => matches!(file, ArchivedFile::Segment(name) if pack.contains(*name)),
        });
        let mismatch = || ObjectError::Mismatch {
            key: key.clone(),
            expected: "files that the key names".to_owned(),
            found: name.clone(),
        };
        files.push((file.ok_or_else(mismatch)?, end.bytes, end.hash));
    }
    Ok(files)
}

/// Encodes a summary as its frame's content.
pub(crate) fn frame_content(summary: &Summary) -> Vec<u8> {
    // The structure contains only text and numbers, so serialization cannot fail.
    let mut content = serde_json::to_vec(summary).unwrap_or_default();
    let bytes = content.len() as u32;
    content.extend(bytes.to_le_bytes());
    content.extend(SUMMARY_MAGIC);
    content
}

/// Returns the length of the JSON before the last eight bytes.
fn json_bytes(tail: &[u8]) -> Option<u64> {
    let (rest, magic) = tail.split_last_chunk::<4>()?;
    let bytes = rest.last_chunk::<4>().filter(|_| magic == SUMMARY_MAGIC)?;
    Some(u32::from_le_bytes(*bytes).into())
}

/// Compares a file's BLAKE3 with the expected one, in hexadecimal digits.
pub(crate) fn expect_hash(key: &str, found: &[u8; 32], expected: &str) -> Result<(), ObjectError> {
    let found = to_hex(found);
    if found == expected {
        return Ok(());
    }
    Err(ObjectError::Mismatch { key: key.to_owned(), expected: format!("content {expected}"), found })
}

/// Reads an object in windows, because a pack may not fit into memory.
///
/// Windows grow while reads are sequential. So the index and summaries at a pack's end need little data, and
/// decoding needs few requests.
pub struct ObjectReader<S> {
    store: S,
    key: String,
    stored_bytes: u64,
    /// Size of the plaintext, determined on demand.
    bytes: Option<u64>,
    at: u64,
    window: Vec<u8>,
    window_start: u64,
    /// Size of the next window if reads continue sequentially.
    next_window: u64,
}

/// Size of the first window, and of the window at the object's end.
const MIN_WINDOW: u64 = 64 << 10;
/// Maximum size of a window.
const MAX_WINDOW: u64 = 4 << 20;

impl<S> ObjectReader<S> {
    /// Creates a reader for an object of `stored_bytes` bytes. `store` is a plain or reference-counted
    /// reference.
    pub fn new(store: S, key: String, stored_bytes: u64) -> ObjectReader<S> {
        ObjectReader {
            store,
            key,
            stored_bytes,
            bytes: None,
            at: 0,
            window: Vec::new(),
            window_start: 0,
            next_window: MIN_WINDOW,
        }
    }

    /// Returns the range to read for the current position in an object of `bytes` bytes.
    fn choose_window(&mut self, bytes: u64) -> std::ops::Range<u64> {
        let end_start = bytes.saturating_sub(MIN_WINDOW);
        let is_next = self.at == self.window_start + self.window.len() as u64;
        self.next_window = match is_next {
            true => (2 * self.next_window).min(MAX_WINDOW),
            false => MIN_WINDOW,
        };
        let start = if is_next { self.at } else { self.at.min(end_start) };
        start..bytes.min(self.at.saturating_add(self.next_window))
    }
}

impl<S: Deref<Target: Store>> ObjectReader<S> {
    fn bytes(&mut self) -> io::Result<u64> {
        if let Some(bytes) = self.bytes {
            return Ok(bytes);
        }
        let bytes = self.store.content_bytes(&self.key, self.stored_bytes).map_err(io_error)?;
        self.bytes = Some(bytes);
        Ok(bytes)
    }
}

impl<S: Deref<Target: Store>> Read for ObjectReader<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let window = self.window_start..self.window_start + self.window.len() as u64;
        if !window.contains(&self.at) {
            let bytes = self.bytes()?;
            if self.at >= bytes || buffer.is_empty() {
                return Ok(0);
            }
            let range = self.choose_window(bytes);
            self.window_start = range.start;
            self.window = self.store.read_range(&self.key, range).map_err(io_error)?;
        }
        let from = (self.at - self.window_start) as usize;
        let available = self.window.get(from..).unwrap_or_default();
        let taken = available.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&available[..taken]);
        self.at += taken as u64;
        Ok(taken)
    }
}

fn io_error(error: StoreError) -> io::Error {
    match error.cause {
        Cause::NotFound => io::Error::new(io::ErrorKind::NotFound, error),
        _ => io::Error::other(error),
    }
}

impl<S: Deref<Target: Store>> Seek for ObjectReader<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.bytes()?.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_the_first_versions_say_by_a_warning_that_damage_was_accepted() {
        let summary = |more: &str| -> Summary {
            let json = format!(r#"{{"name": "000000010000000000000007", "bytes": 1, "blake3": "00"{more}}}"#);
            serde_json::from_str(&json).unwrap()
        };
        let old = summary(r#", "warnings": ["archived although it is damaged at 0/7000028"]"#);
        assert!(old.has_accepted_damage() && !old.has_records_as_bytes());
        assert!(summary(r#", "damage_accepted": true"#).has_accepted_damage());
        assert!(!summary("").has_accepted_damage());
        assert!(!serde_json::to_string(&summary("")).unwrap().contains("is_"));
    }

    #[test]
    fn what_is_written_at_any_level_may_be_read_and_far_more_may_not_be_stated() {
        for form in [FileForm::Segment, FileForm::Pack] {
            for bytes in [1 << 20, 16 << 20, MAX_SEGMENT_BYTES] {
                let limits = read_limits(form, Some(bytes));
                for level in 0..=MAX_LEVEL {
                    let needs = Needs::for_segments(form, level, bytes);
                    let page_memory = limits.admit(needs).expect("admitted");
                    assert_eq!(page_memory, READ_LIMITS.page_memory, "as without a limit");
                }
            }
            let absurd = Needs { memory_mib: 4 << 10, blocks: 0 };
            assert!(read_limits(form, Some(16 << 20)).admit(absurd).is_err());
            assert!(read_limits(form, None).admit(absurd).is_ok());
        }
    }
}

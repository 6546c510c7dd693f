//! Writes a container sequentially.

use std::io::{self, Read, Seek, SeekFrom, Write};

use walden_format::crc::crc32c_append;
use walden_format::lsn::Lsn;
use walden_format::stream::StreamInfo;

use super::Error;
use super::file_form::FileForm;
use super::layout::{
    End, Entry, FileHeader, Footer, FrameHeader, Hash, Head, Kind, MAX_HEAD, Meta, Place, header_binding,
};
use super::limits::Needs;
use crate::coder::{COPIES_READER, Encoded, Encoder, Form, MIN_READER, Original, start_of};

/// Options of a [`Writer`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Whether to write one member, or a pack.
    pub form: FileForm,
    /// Compression level, from 1 (fastest) to 9 (smallest). Level 0 does not decode records: it compresses
    /// the bytes with zstd at a fast level.
    pub level: u8,
    /// Bytes of WAL between keyframes of a pack: the first segment after that many bytes is a keyframe.
    pub keyframe: u64,
    /// Upper bound of the resources that a reader needs. A segment that would exceed it is coded as bytes.
    /// The header of a file with one member states the member's actual needs.
    pub needs: Needs,
    /// Bytes of memory for pages. Further pages go to a temporary file.
    pub page_memory: u64,
}

walden_format::setters!(WriteOptions { keyframe: u64, needs: Needs, page_memory: u64 });

/// Default for [`WriteOptions::keyframe`].
pub const KEYFRAME_BYTES: u64 = 512 << 20;

impl WriteOptions {
    /// Returns options with the form's default level, for segments of up to 64 MB.
    pub fn new(form: FileForm) -> WriteOptions {
        WriteOptions::with_level(form, form.default_level())
    }

    /// Returns options with a level from 0 to 9, for segments of up to 64 MB.
    pub fn with_level(form: FileForm, level: u8) -> WriteOptions {
        let needs = Needs::for_segments(form, level, 64 << 20);
        WriteOptions { form, level, keyframe: KEYFRAME_BYTES, needs, page_memory: 64 << 20 }
    }
}

/// Writes a container.
///
/// Takes memory for the columns of one segment, the segment's coded form, and a pack's index of about 200
/// bytes per member.
pub struct Writer<W> {
    out: W,
    options: WriteOptions,
    encoder: Encoder,
    /// ID of the file, set when the first member is added: a hash of this member, so that equal input yields
    /// an equal file.
    id: Option<u64>,
    at: u64,
    frames: u64,
    members: u64,
    index: Vec<u8>,
    /// Binding of the last member, or of the file header if there is no member yet.
    binding: Hash,
    last: Option<Continuation>,
    /// Bytes of WAL since the last keyframe.
    since_keyframe: u64,
    /// Oldest reader version that can decode the last segment.
    least_reader: u16,
}

/// Position and stream parameters that the next segment must have to continue without a keyframe.
#[derive(PartialEq)]
struct Continuation {
    info: StreamInfo,
    start: Lsn,
}

/// A segment in its coded form.
struct Segment {
    encoded: Encoded,
    place: Place,
    bytes: u64,
    hash: Hash,
    needs: Needs,
    least_reader: u16,
}

/// Source of a segment.
enum Source<'s, I> {
    /// An input and the position to read it from.
    Read(&'s mut I, u64),
    /// Content in memory and its hash.
    Checked(&'s [u8], Hash),
}

impl<I: Read + Seek> Source<'_, I> {
    fn original(&mut self) -> Result<Original<'_>, Error> {
        match self {
            Source::Read(input, _) => Original::from_input(*input).map_err(Error::Original),
            Source::Checked(content, hash) => Ok(Original::checked(content, *hash)),
        }
    }

    fn rewind(&mut self) -> Result<(), Error> {
        match self {
            Source::Read(input, from) => {
                input.seek(SeekFrom::Start(*from)).map(drop).map_err(Error::Original)
            }
            Source::Checked(..) => Ok(()),
        }
    }
}

/// A member that is being written.
struct OpenMember {
    offset: u64,
    frame: u64,
    head: Head,
    head_bytes: Vec<u8>,
}

/// The result of adding a member.
#[derive(Clone, Debug)]
pub struct Added {
    /// The member's entry in the index.
    pub entry: Entry,
    /// Length of the file after the member.
    pub file_end: u64,
    /// Temporary-file error that caused a segment to be stored as bytes. `None` if its content is the
    /// reason.
    pub failure: Option<String>,
}

/// Maximum number of original bytes in a piece of a member coded as bytes.
const PIECE: usize = 16 << 20;

impl<W: Write> Writer<W> {
    /// Creates a writer. Nothing is written before the first member.
    pub fn new(out: W, options: WriteOptions) -> Writer<W> {
        let limits = options.needs.limits(options.form, options.level, options.page_memory);
        let encoder = Encoder::new(options.level, limits);
        let encoder = if options.form == FileForm::Segment { encoder.alone() } else { encoder };
        Writer {
            out,
            options,
            encoder,
            id: None,
            at: 0,
            frames: 0,
            members: 0,
            index: Vec::new(),
            binding: [0; 32],
            last: None,
            since_keyframe: 0,
            least_reader: MIN_READER,
        }
    }

    /// Adds a member from `input`, starting at its current position. With `as_bytes`, its records are not
    /// decoded.
    ///
    /// The input is read a second time if its records cannot be coded.
    ///
    /// # Errors
    /// Returns errors of the file system, and a limit that the member exceeds. After an error the output is
    /// unusable.
    pub fn add(
        &mut self,
        meta: Meta,
        as_bytes: bool,
        input: &mut (impl Read + Seek),
    ) -> Result<Added, Error> {
        check_name(&meta)?;
        let from = input.stream_position().map_err(Error::Original)?;
        if !as_bytes && let Some(segment) = self.segment(&mut Source::Read(input, from))? {
            return self.add_segment(meta, segment);
        }
        input.seek(SeekFrom::Start(from)).map_err(Error::Original)?;
        let failure = self.encoder.take_failure();
        Ok(Added { failure, ..self.add_bytes(meta, input)? })
    }

    /// Adds a segment as [`Writer::add`] does, without repeating checks of the caller: `hash` is the hash of
    /// `content`, and all its records have correct checksums. If either is untrue, the member cannot be
    /// decoded.
    pub fn add_checked(&mut self, meta: Meta, content: &[u8], hash: Hash) -> Result<Added, Error> {
        check_name(&meta)?;
        if let Some(segment) = self.segment(&mut Source::<io::Empty>::Checked(content, hash))? {
            return self.add_segment(meta, segment);
        }
        let failure = self.encoder.take_failure();
        self.last = None;
        let piece_bytes = self.piece_bytes()?;
        let first = content.len().min(piece_bytes) as u64;
        let needs = Needs::for_member(self.options.form, self.options.level, first, 0);
        let member = self.begin(meta, (Form::Bytes, true), None, &hash, needs)?;
        // Encodes slices of `content`. `add_bytes` would copy the whole segment, at level 0 for every queued
        // one.
        for piece in content.chunks(piece_bytes) {
            let encoded = self.encoder.encode_bytes(piece);
            self.piece(piece.len(), &encoded)?;
        }
        self.encoder.begin_keyframe();
        Ok(Added { failure, ..self.end(member, content.len() as u64, hash)? })
    }

    fn add_segment(&mut self, meta: Meta, segment: Segment) -> Result<Added, Error> {
        let form = (Form::Records, segment.encoded.keyframe);
        self.least_reader = segment.least_reader;
        let member = self.begin(meta, form, Some(segment.place), &segment.hash, segment.needs)?;
        self.piece(segment.bytes as usize, &segment.encoded)?;
        self.end(member, segment.bytes, segment.hash)
    }

    /// Adds a member from `input` without decoding its records. The input is read once.
    ///
    /// # Errors
    /// The errors of [`Writer::add`].
    pub fn add_bytes(&mut self, meta: Meta, input: &mut impl Read) -> Result<Added, Error> {
        check_name(&meta)?;
        self.last = None;
        let mut buffer = Vec::new();
        let piece_bytes = self.piece_bytes()?;
        take(input, piece_bytes, &mut buffer)?;
        let needs = Needs::for_member(self.options.form, self.options.level, buffer.len() as u64, 0);
        let member = self.begin(meta, (Form::Bytes, true), None, &buffer, needs)?;
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        while !buffer.is_empty() {
            hasher.update(&buffer);
            bytes += buffer.len() as u64;
            let encoded = self.encoder.encode_bytes(&buffer);
            self.piece(buffer.len(), &encoded)?;
            buffer.clear();
            take(input, piece_bytes, &mut buffer)?;
        }
        // The next segment is a keyframe, even if no piece was encoded.
        self.encoder.begin_keyframe();
        self.end(member, bytes, *hasher.finalize().as_bytes())
    }

    /// Returns the maximum number of original bytes in a piece of a member coded as bytes.
    fn piece_bytes(&self) -> Result<usize, Error> {
        let WriteOptions { form, level, needs, page_memory, .. } = self.options;
        let allowed = needs.limits(form, level, page_memory).columns.min(PIECE);
        match allowed {
            0 => {
                let what = "compress for a reader of so little memory";
                Err(Error::Limit { what, allowed: needs.memory(), found: Needs::least_memory(form, level) })
            }
            bytes => Ok(bytes),
        }
    }

    /// Writes the index and the footer of a pack, flushes the output and returns it.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn finish(mut self) -> Result<W, Error> {
        self.identify(&[], &[], self.options.needs)?;
        if self.options.form == FileForm::Pack {
            let mut index = self.members.to_le_bytes().to_vec();
            index.append(&mut self.index);
            let footer = Footer {
                index: self.at,
                members: self.members,
                binding: self.binding,
                index_hash: *blake3::hash(&index).as_bytes(),
            };
            self.frame(Kind::INDEX, &[&index])?;
            self.frame(Kind::FOOTER, &[&footer.to_bytes()])?;
        }
        self.flush()?;
        Ok(self.out)
    }

    /// Adds a frame of kind 128 or above, which readers skip if they do not know the kind.
    ///
    /// # Errors
    /// Returns errors of the file system, and [`Error::ExtraKind`] if the kind is below 128.
    pub fn add_extra(&mut self, kind: u8, content: &[u8]) -> Result<(), Error> {
        if !Kind(kind).may_be_skipped() {
            return Err(Error::ExtraKind(kind));
        }
        self.identify(&[], &[], self.options.needs)?;
        self.frame(Kind(kind), &[content])
    }

    /// Flushes the output, so that other processes can read all members added so far.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Io)
    }

    /// Encodes a segment. Returns `None` if the input is not a WAL segment or its records cannot be coded.
    fn segment(&mut self, source: &mut Source<'_, impl Read + Seek>) -> Result<Option<Segment>, Error> {
        let segment = self.segment_once(source.original()?)?;
        if segment.is_some() || !self.encoder.has_exceeded_limits() || self.encoder.was_keyframe() {
            return Ok(segment);
        }
        // The state inherited from earlier members exceeds the limits. As a keyframe, the segment may fit.
        source.rewind()?;
        self.segment_once(source.original()?)
    }

    fn segment_once(&mut self, original: Original<'_>) -> Result<Option<Segment>, Error> {
        if self.options.level == 0 {
            return Ok(None);
        }
        let Some(start) = original.start() else { return Ok(None) };
        let Ok(info) = StreamInfo::from_first_page(&start) else { return Ok(None) };
        let place = Place { timeline: info.timeline, start: start_of(&start), size: info.segment_size };
        let here = Continuation { info, start: place.start };
        let bytes = info.segment_size.bytes();
        if original.bytes() as u64 != bytes {
            return Ok(None);
        }
        // A restart of the WAL starts at a keyframe, so that readers find the restart without decoding the
        // previous members.
        let must_start = self.last.as_ref() != Some(&here) || original.is_restarted();
        if must_start || self.since_keyframe >= self.options.keyframe {
            self.encoder.begin_keyframe();
        }
        let Some(columns) = self.encoder.fill_columns(original) else { return Ok(None) };
        let hash = columns.hash;
        let WriteOptions { form, level, .. } = self.options;
        let needs = Needs::for_member(form, level, columns.column_weight() as u64, columns.blocks() as u64);
        let least_reader = columns.least_reader();
        let encoded = columns.pack();
        self.since_keyframe = if encoded.keyframe { bytes } else { self.since_keyframe + bytes };
        self.last = Some(Continuation { info, start: place.end() });
        Ok(Some(Segment { encoded, place, bytes, hash, needs, least_reader }))
    }

    fn begin(
        &mut self,
        meta: Meta,
        (form, keyframe): (Form, bool),
        place: Option<Place>,
        content: &[u8],
        needs: Needs,
    ) -> Result<OpenMember, Error> {
        self.identify(&meta.name, content, needs)?;
        let head = Head { number: self.members, form, keyframe, place, meta };
        let (offset, frame, head_bytes) = (self.at, self.frames, head.to_bytes());
        self.frame(Kind::HEAD, &[&head_bytes])?;
        Ok(OpenMember { offset, frame, head, head_bytes })
    }

    fn piece(&mut self, original: usize, encoded: &Encoded) -> Result<(), Error> {
        self.frame(Kind::PIECE, &[&(original as u64).to_le_bytes(), &encoded.content])
    }

    fn end(&mut self, member: OpenMember, bytes: u64, hash: Hash) -> Result<Added, Error> {
        let OpenMember { offset, frame, head, head_bytes } = member;
        let end = End::bound(bytes, hash, &self.binding, &head_bytes);
        self.frame(Kind::END, &[&end.to_bytes()])?;
        self.members += 1;
        self.binding = end.binding;
        let entry = Entry { offset, frame, stored: self.at - offset, head, head_bytes, end };
        if self.options.form == FileForm::Pack {
            entry.put(&mut self.index);
        }
        Ok(Added { entry, file_end: self.at, failure: None })
    }

    /// Writes the file header before the first member. `needs` are the needs of that member.
    fn identify(&mut self, name: &[u8], content: &[u8], needs: Needs) -> Result<(), Error> {
        if self.id.is_some() {
            return Ok(());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name).update(content);
        let id = u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().unwrap_or(&[0; 8]));
        self.id = Some(id);
        let WriteOptions { form, level, needs: limit, .. } = self.options;
        // The header of a pack precedes its members, which may use version 2.
        let (needs, least_reader) = match form {
            FileForm::Segment => (needs, self.least_reader),
            FileForm::Pack => (limit, if level == 0 { MIN_READER } else { COPIES_READER }),
        };
        let header = FileHeader { version: least_reader, least_reader, form, level, id, needs };
        let bytes = header.to_bytes();
        self.binding = header_binding(&bytes);
        self.write(&bytes)
    }

    fn frame(&mut self, kind: Kind, parts: &[&[u8]]) -> Result<(), Error> {
        let header = FrameHeader {
            kind,
            id: self.id.unwrap_or(0),
            number: self.frames,
            bytes: parts.iter().map(|part| part.len() as u64).sum(),
            checksum: parts.iter().fold(0, |checksum, part| crc32c_append(checksum, part)),
        };
        self.frames += 1;
        self.write(&header.to_bytes())?;
        parts.iter().try_for_each(|part| self.write(part))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(Error::Io)
    }
}

fn check_name(meta: &Meta) -> Result<(), Error> {
    let bytes = meta.name.len() as u64;
    if bytes > MAX_HEAD / 2 {
        return Err(Error::Limit { what: "write a member's name", allowed: MAX_HEAD / 2, found: bytes });
    }
    Ok(())
}

/// Reads until `buffer` holds `bytes` bytes or the input ends.
fn take(input: &mut impl Read, bytes: usize, buffer: &mut Vec<u8>) -> Result<(), Error> {
    let missing = bytes.saturating_sub(buffer.len()) as u64;
    input.take(missing).read_to_end(buffer).map(|_| ()).map_err(Error::Original)
}

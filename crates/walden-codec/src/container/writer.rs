//! Writing a container, front to back.

use std::io::{Read, Seek, SeekFrom, Write};

use walden_format::crc::crc32c_append;
use walden_format::lsn::Lsn;
use walden_format::stream::StreamInfo;

use super::Error;
use super::layout::{
    End, Entry, FORMAT_VERSION, FileForm, FileHeader, FrameHeader, Head, Kind, MAX_HEAD, MIN_READER, Meta,
    Place,
};
use crate::coder::{Encoded, Encoder, Form, Limits, Original, start_of};

/// How a container is written.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// One member or many.
    pub form: FileForm,
    /// From 1, fast, to 9, small.
    pub level: u8,
    /// A pack's keyframes are at most so many members apart.
    pub keyframe: u32,
    /// What encoding may use.
    pub limits: Limits,
}

/// Writes a container.
///
/// Memory: what the segment at hand says, in columns, its coded form, and a pack's index of some 150 bytes per member.
pub struct Writer<W> {
    out: W,
    options: WriteOptions,
    encoder: Encoder,
    /// Known with the first member: it is told from its content, so that the same input gives the same file.
    id: Option<u64>,
    at: u64,
    frames: u64,
    members: u64,
    index: Vec<u8>,
    last: Option<Continuation>,
    since_keyframe: u32,
}

/// What the next segment must be to need no keyframe.
#[derive(PartialEq)]
struct Continuation {
    info: StreamInfo,
    start: Lsn,
}

/// What became of a member.
#[derive(Clone, Debug)]
pub struct Added {
    /// As the index has it.
    pub entry: Entry,
    /// Where the file ends now.
    pub file_end: u64,
    /// Why a segment is kept as bytes, if not for what is in it: a temporary file could not be written or read.
    pub failure: Option<String>,
}

/// Bytes of a piece of a file that is coded as bytes.
const PIECE: usize = 16 << 20;

impl<W: Write> Writer<W> {
    /// Nothing is written before the first member.
    pub fn new(out: W, options: WriteOptions) -> Writer<W> {
        let encoder = Encoder::new(options.level, options.limits);
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
            last: None,
            since_keyframe: 0,
        }
    }

    /// Adds a member, what `input` has from where it is on; `as_bytes` keeps it from being understood.
    ///
    /// What turns out not to be understood is read again.
    ///
    /// # Errors
    /// The file system's; after one, the file is worth nothing.
    pub fn add(
        &mut self,
        meta: Meta,
        as_bytes: bool,
        input: &mut (impl Read + Seek),
    ) -> Result<Added, Error> {
        if meta.name.len() as u64 > MAX_HEAD / 2 {
            return Err(Error::Limit("bytes of a name", MAX_HEAD / 2, meta.name.len() as u64));
        }
        let from = input.stream_position().map_err(Error::Original)?;
        if !as_bytes && let Some((encoded, place, end)) = self.segment(input)? {
            let begun = self.begin(meta, Form::Records, encoded.restart, Some(place), &end.hash)?;
            self.piece(end.bytes as usize, &encoded)?;
            return self.end(begun, end);
        }
        self.last = None;
        input.seek(SeekFrom::Start(from)).map_err(Error::Original)?;
        let failure = self.encoder.take_failure();
        Ok(Added { failure, ..self.add_bytes(meta, input)? })
    }

    /// Writes what comes after the last member, and gives the target back, flushed.
    ///
    /// # Errors
    /// The file system's.
    pub fn finish(mut self) -> Result<W, Error> {
        self.identify(&[], &[])?;
        if self.options.form == FileForm::Pack {
            let offset = self.at;
            let mut index = self.members.to_le_bytes().to_vec();
            index.append(&mut self.index);
            self.frame(Kind::INDEX, &[&index])?;
            self.frame(Kind::FOOTER, &[&offset.to_le_bytes(), &self.members.to_le_bytes()])?;
        }
        self.flush()?;
        Ok(self.out)
    }

    /// Makes everything so far readable by others.
    ///
    /// # Errors
    /// The file system's.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Io)
    }

    /// Encodes a segment; nothing if it is none or is not understood.
    fn segment(&mut self, input: &mut (impl Read + Seek)) -> Result<Option<(Encoded, Place, End)>, Error> {
        let original = Original::of(input).map_err(Error::Original)?;
        let Some(start) = original.start() else { return Ok(None) };
        let Ok(info) = StreamInfo::of_segment(&start) else { return Ok(None) };
        let place = Place { timeline: info.timeline, start: start_of(&start), size: info.segment_size };
        let here = Continuation { info, start: place.start };
        let bytes = info.segment_size.bytes();
        if original.bytes() as u64 != bytes {
            return Ok(None);
        }
        if self.last.as_ref() != Some(&here) || self.since_keyframe >= self.options.keyframe {
            self.encoder.restart();
        }
        let Some(understood) = self.encoder.understand(original) else { return Ok(None) };
        let hash = understood.hash;
        let encoded = understood.pack();
        self.since_keyframe = if encoded.restart { 1 } else { self.since_keyframe + 1 };
        self.last = Some(Continuation { info, start: place.end() });
        Ok(Some((encoded, place, End { bytes, hash })))
    }

    fn add_bytes(&mut self, meta: Meta, input: &mut impl Read) -> Result<Added, Error> {
        let mut buffer = Vec::new();
        take(input, PIECE, &mut buffer)?;
        let begun = self.begin(meta, Form::Bytes, true, None, &buffer)?;
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        while !buffer.is_empty() {
            hasher.update(&buffer);
            bytes += buffer.len() as u64;
            let encoded = self.encoder.encode_bytes(&buffer);
            self.piece(buffer.len(), &encoded)?;
            buffer.clear();
            take(input, PIECE, &mut buffer)?;
        }
        // The next segment starts anew even if no piece has told the encoder so.
        self.encoder.restart();
        self.end(begun, End { bytes, hash: *hasher.finalize().as_bytes() })
    }

    fn begin(
        &mut self,
        meta: Meta,
        form: Form,
        keyframe: bool,
        place: Option<Place>,
        content: &[u8],
    ) -> Result<Entry, Error> {
        self.identify(&meta.name, content)?;
        let head = Head { number: self.members, form, keyframe, place, meta };
        let (offset, frame) = (self.at, self.frames);
        self.frame(Kind::HEAD, &[&head.to_bytes()])?;
        Ok(Entry { offset, frame, stored: 0, head, end: End { bytes: 0, hash: [0; 32] } })
    }

    fn piece(&mut self, original: usize, encoded: &Encoded) -> Result<(), Error> {
        self.frame(Kind::PIECE, &[&(original as u64).to_le_bytes(), &encoded.content])
    }

    fn end(&mut self, begun: Entry, end: End) -> Result<Added, Error> {
        self.frame(Kind::END, &[&end.to_bytes()])?;
        self.members += 1;
        let entry = Entry { stored: self.at - begun.offset, end, ..begun };
        if self.options.form == FileForm::Pack {
            entry.put(&mut self.index);
        }
        Ok(Added { entry, file_end: self.at, failure: None })
    }

    /// Writes the file's header before the first member.
    fn identify(&mut self, name: &[u8], content: &[u8]) -> Result<(), Error> {
        if self.id.is_some() {
            return Ok(());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name).update(content);
        let id = u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().unwrap_or(&[0; 8]));
        self.id = Some(id);
        let WriteOptions { form, level, .. } = self.options;
        let header = FileHeader { version: FORMAT_VERSION, least_reader: MIN_READER, form, level, id };
        self.write(&header.to_bytes())
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

/// Reads until `buffer` has so many bytes, or to the end.
fn take(input: &mut impl Read, bytes: usize, buffer: &mut Vec<u8>) -> Result<(), Error> {
    let missing = bytes.saturating_sub(buffer.len()) as u64;
    input.take(missing).read_to_end(buffer).map(|_| ()).map_err(Error::Original)
}

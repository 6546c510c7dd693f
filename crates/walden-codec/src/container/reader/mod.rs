//! Reads a container member by member.
//!
//! The submodules read frames, the pieces of a member and the index of a pack, and search for the next member
//! after damage.

mod forward;
mod frames;
mod index;
mod output;
mod pieces;
mod search;

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

pub use self::forward::Forward;
use self::output::Output;
use self::pieces::add_member;
pub(super) use self::pieces::broken;
use super::file_form::FileForm;
use super::layout::{
    End, Entry, FILE_HEADER, FileHeader, FrameHeader, Hash, Head, HeaderFault, Kind, MAGIC, header_binding,
};
use super::limits::Needs;
use super::{Error, ReadLimits};
use crate::coder::{self, Breakdown, COPIES_READER, Decoder, Encoder, Fallback, Form, Original};

/// Reads a container member by member.
///
/// [`Reader::next`] returns a member's head. Call [`Reader::decode`] or [`Reader::skip`] before the next
/// call.
///
/// A file states its needs in its header. If they exceed [`ReadLimits`], the reader rejects the file before
/// decoding anything.
pub struct Reader<R> {
    input: R,
    limits: ReadLimits,
    /// Limits of the decoder, derived from the needs that the file states.
    coder_limits: coder::Limits,
    decoder: Decoder,
    /// Byte counts of the members decoded since the last [`Reader::take_breakdown`], if counting is enabled.
    breakdown: Option<Breakdown>,
    header: Option<FileHeader>,
    /// Binding of the first member.
    header_binding: Option<Hash>,
    /// Size of the file in bytes; `u64::MAX` for a stream.
    bytes: u64,
    at: u64,
    /// Number of the next frame.
    frame: u64,
    /// ID of the file, once known.
    id: Option<u64>,
    /// Number of the next member.
    member: u64,
    /// The last head that was read.
    last: LastHead,
    /// Binding of the member before the next member, if known.
    binding: Option<Hash>,
    /// Encoded entries of the members read so far, to compare with the index. `None` if reading did not
    /// proceed from the start of the file without a gap.
    walked: Option<Vec<u8>>,
    /// Offset and hash of the index, once it was read.
    index_passed: Option<(u64, Hash)>,
    /// Entries of a verified index.
    index: Option<Arc<Vec<Entry>>>,
    /// Whether members are decoded even if their position or name is not verified.
    is_salvaging: bool,
    /// Number of bytes of frame contents read. Contents that were read twice count twice.
    content_bytes: u64,
    /// Number of the member after the last decoded member. Decoding any other member has to start at a
    /// keyframe.
    ready_for: Option<u64>,
    ended: bool,
}

/// The last head that was read, as stored in the file.
#[derive(Default)]
struct LastHead {
    offset: u64,
    frame: u64,
    bytes: Vec<u8>,
}

/// Whether a member has the position and the name it was written with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    /// Position and name are verified.
    Verified,
    /// Unverifiable, because earlier members or the index are damaged.
    Unknown,
    /// The member was moved or renamed.
    Broken,
}

/// Summary of a member that was read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Length of the member's frames in bytes.
    pub stored: u64,
    /// The member's end, with length, hash and binding of the content.
    pub end: End,
    /// Whether the member's name and position are verified. Always [`Binding::Verified`], except from
    /// [`super::walk`].
    pub binding: Binding,
}

impl<R: Read> Reader<Forward<R>> {
    /// Opens a stream and reads the file header. Members can be decoded in order, but not searched for.
    ///
    /// # Errors
    /// Returns errors of the file system, a header that cannot be used, and needs beyond the limits.
    pub fn open_stream(input: R, limits: ReadLimits) -> Result<Reader<Forward<R>>, Error> {
        Reader::unopened(Forward { input, at: 0 }, u64::MAX, limits).opened()
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// Returns errors of the file system, a header that cannot be used, and needs beyond the limits.
    pub fn open(input: R, limits: ReadLimits) -> Result<Reader<R>, Error> {
        Reader::open_damaged(input, limits)?.opened()
    }

    /// Opens a file without reading its header. [`Reader::find_next`] finds the first member. `limits`
    /// replace the needs that the header would state.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn open_damaged(mut input: R, limits: ReadLimits) -> Result<Reader<R>, Error> {
        let bytes = input.seek(SeekFrom::End(0)).map_err(Error::Io)?;
        input.seek(SeekFrom::Start(0)).map_err(Error::Io)?;
        Ok(Reader::unopened(input, bytes, limits))
    }

    fn unopened(input: R, bytes: u64, limits: ReadLimits) -> Reader<R> {
        let needs = Needs::within(limits.memory, limits.spill);
        let page_memory = limits.admit(needs).unwrap_or(0);
        // At level 9, parts may use context mixing.
        let coder_limits = needs.limits(FileForm::Pack, 9, page_memory);
        Reader {
            input,
            limits,
            coder_limits,
            decoder: Decoder::new(coder_limits),
            breakdown: None,
            header: None,
            header_binding: None,
            bytes,
            at: 0,
            frame: 0,
            id: None,
            member: 0,
            last: LastHead::default(),
            binding: None,
            walked: None,
            index_passed: None,
            index: None,
            is_salvaging: false,
            content_bytes: 0,
            ready_for: None,
            ended: false,
        }
    }

    fn opened(mut self) -> Result<Reader<R>, Error> {
        const PART: &str = "the file's header";
        let mut bytes = [0; FILE_HEADER];
        let got = self.fill(&mut bytes)?;
        if got == 0 {
            return Err(Error::Empty);
        }
        if !bytes[..got].starts_with(&MAGIC) {
            return Err(Error::Foreign);
        }
        if got < FILE_HEADER {
            return Err(self.damage(PART, 0, format!("{FILE_HEADER} bytes"), format!("{got} bytes")));
        }
        let header = FileHeader::parse(&bytes).map_err(|fault| match fault {
            HeaderFault::Magic => Error::Foreign,
            HeaderFault::Newer(version) => Error::Newer(version),
            HeaderFault::Checksum { stored, computed } => {
                self.damage(PART, 0, format!("CRC-32C {stored:08X}"), format!("{computed:08X}"))
            }
            HeaderFault::Form(form) => {
                self.damage(PART, 12, "a form of files that this version knows", format!("form {form}"))
            }
        })?;
        let page_memory = self.limits.admit(header.needs).map_err(Error::Needs)?;
        self.coder_limits = coder::Limits {
            may_copy: header.least_reader >= COPIES_READER,
            ..header.needs.limits(header.form, header.level, page_memory)
        };
        self.decoder = Decoder::new(self.coder_limits);
        if header.form == FileForm::Segment {
            self.decoder = self.decoder.alone();
        }
        self.id = Some(header.id);
        self.header = Some(header);
        self.header_binding = Some(header_binding(&bytes));
        self.go_to_start();
        Ok(self)
    }

    /// Enables [`Reader::take_breakdown`], from the next keyframe on. Decoding becomes slower.
    pub fn count_bytes(&mut self) {
        if self.breakdown.is_none() {
            self.decoder.meter();
            self.breakdown = Some(Breakdown::default());
        }
    }

    /// Returns the byte counts of the members decoded since the last call, if [`Reader::count_bytes`] was
    /// called.
    pub fn take_breakdown(&mut self) -> Option<Breakdown> {
        self.breakdown.as_mut().map(std::mem::take)
    }

    /// Returns the reason why a member with this original is coded as bytes, found by coding its records
    /// again within the usual limits. Returns `None` if this version can code them.
    pub fn fallback_of(&self, original: &[u8]) -> Option<Fallback> {
        let (form, level) =
            self.header.map_or((FileForm::Segment, 1), |header| (header.form, header.level.max(1)));
        let needs = Needs::for_segments(form, level, original.len() as u64);
        let mut encoder = Encoder::new(level, needs.limits(form, level, self.limits.page_memory)).alone();
        let mut input = std::io::Cursor::new(original);
        let is_coded =
            Original::from_input(&mut input).is_ok_and(|original| encoder.fill_columns(original).is_some());
        encoder.fallback().filter(|_| !is_coded).cloned()
    }

    /// Returns the file header; `None` if the file was opened without reading it.
    pub fn header(&self) -> Option<FileHeader> {
        self.header
    }

    /// Returns the size of the file in bytes; `u64::MAX` for a stream.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the offset of the next read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns whether the whole file was read, including the mark at its end.
    pub fn is_at_end(&self) -> bool {
        self.ended
    }

    /// Returns the number of the next member.
    pub fn next_member(&self) -> u64 {
        self.member
    }

    /// Updates the size of a file that is still being written.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn look_again(&mut self) -> Result<(), Error> {
        self.bytes = self.input.seek(SeekFrom::End(0)).map_err(Error::Io)?;
        Ok(())
    }

    /// Returns the next member's head, or `None` at the end.
    ///
    /// # Errors
    /// Returns errors of the file system, and damage: [`Reader::find_next`] searches for the next member
    /// after the damage.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Head>, Error> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let segment = self.header.is_some_and(|header| header.form == FileForm::Segment);
            let is_complete = segment && self.member == 1;
            let offset = self.at;
            let frame = match self.frame_header_or_end()? {
                None if is_complete => {
                    self.ended = true;
                    continue;
                }
                None => return Err(self.cut_frame_header(0)),
                Some(frame) => frame,
            };
            let unexpected = match frame.kind {
                kind if kind.may_be_skipped() => None,
                _ if is_complete => Some(("the file's end", "nothing more")),
                Kind::INDEX | Kind::FOOTER if segment => Some(("a frame", "a member")),
                Kind::HEAD | Kind::INDEX if self.index_passed.is_some() => {
                    Some(("a frame", "the footer, as the index was there"))
                }
                Kind::HEAD | Kind::INDEX | Kind::FOOTER => None,
                _ => Some(("a frame", "a member, the index or the footer")),
            };
            if let Some((part, expected)) = unexpected {
                return Err(self.damage(part, offset, expected, format!("a frame of kind {}", frame.kind.0)));
            }
            match frame.kind {
                Kind::HEAD => return self.next_head(frame, offset).map(Some),
                Kind::INDEX => self.pass_index(frame, offset)?,
                Kind::FOOTER => {
                    self.check_footer(frame, offset)?;
                    self.expect_end()?;
                }
                _ => self.pass(frame),
            }
        }
    }

    /// Reads the head of the next member and compares it with the index, if there is one.
    fn next_head(&mut self, frame: FrameHeader, offset: u64) -> Result<Head, Error> {
        const PART: &str = "a member's head";
        let (head, bytes) = self.head(frame, offset)?;
        if head.number != self.member {
            let expected = format!("member {}", self.member.saturating_add(1));
            return Err(self.damage(
                PART,
                offset,
                expected,
                format!("member {}", head.number.saturating_add(1)),
            ));
        }
        let last = LastHead { offset, frame: frame.number, bytes };
        if let Some(index) = self.index.as_ref().filter(|_| !self.is_salvaging) {
            let entry = usize::try_from(head.number).ok().and_then(|number| index.get(number));
            let fits = |entry: &&Entry| {
                (entry.offset, entry.frame, &entry.head_bytes) == (last.offset, last.frame, &last.bytes)
            };
            if entry.filter(fits).is_none() {
                let expected = entry.map_or("no further member".to_owned(), |entry| {
                    format!("{} at offset {}, as the index has it", name_of(&entry.head), entry.offset)
                });
                return Err(self.damage(PART, offset, expected, name_of(&head)));
            }
        }
        self.last = last;
        Ok(head)
    }

    /// Returns whether the member is a keyframe or the previous member was just decoded.
    pub fn can_decode(&self, head: &Head) -> bool {
        head.keyframe || self.ready_for == Some(head.number)
    }

    /// Decodes the member whose head was read last, verifies it, and writes the original to `out`.
    ///
    /// Bytes written to `out` are verified only if this function succeeds.
    ///
    /// # Errors
    /// Returns errors of the file system, damage, and [`Error::NeedsKeyframe`] if the previous member was not
    /// decoded.
    pub fn decode(&mut self, head: &Head, out: &mut dyn Write) -> Result<Summary, Error> {
        self.decode_to(head, Output::Hashed(out))
    }

    /// Decodes the member whose head was read last and compares it with its original byte by byte. `hash` is
    /// the hash of `original` and is compared with the stored hash.
    ///
    /// # Errors
    /// The errors of [`Reader::decode`], and damage if the content or the hash differs.
    pub fn compare(&mut self, head: &Head, original: &[u8], hash: &Hash) -> Result<Summary, Error> {
        self.decode_to(head, Output::Compared { original, hash })
    }

    fn decode_to(&mut self, head: &Head, out: Output<'_>) -> Result<Summary, Error> {
        if !self.can_decode(head) {
            return Err(Error::NeedsKeyframe(name_of(head)));
        }
        self.ready_for = None;
        let summary = self.pieces(head, Some(out)).map_err(|error| add_member(error, head))?;
        self.ready_for = (head.form == Form::Records).then_some(head.number.saturating_add(1));
        Ok(summary)
    }

    /// Skips the member whose head was read last.
    ///
    /// # Errors
    /// Returns errors of the file system, and damage to the member's frames.
    pub fn skip(&mut self, head: &Head) -> Result<Summary, Error> {
        self.pieces(head, None).map_err(|error| add_member(error, head))
    }

    fn go_to(&mut self, at: u64, frame: u64, member: u64) {
        (self.at, self.frame, self.member, self.ended) = (at, frame, member, false);
    }

    /// Moves to the first member.
    fn go_to_start(&mut self) {
        self.go_to(FILE_HEADER as u64, 0, 0);
        self.binding = self.header_binding;
        (self.walked, self.index_passed) = (Some(Vec::new()), None);
    }
}

fn name_of(head: &Head) -> String {
    String::from_utf8_lossy(&head.meta.name).into_owned()
}

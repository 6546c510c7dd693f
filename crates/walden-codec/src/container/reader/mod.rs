//! Reading a container, member by member.
//!
//! What is in a file is in the modules: frames, the pieces of a member, the index of a pack, and the search for the next member
//! past damage.

mod forward;
mod frames;
mod index;
mod output;
mod pieces;
mod search;

use std::io::{Read, Seek, SeekFrom, Write};

pub use self::forward::Forward;
use self::output::Output;
pub(super) use self::pieces::broken;
use self::pieces::of_member;
use super::file_form::FileForm;
use super::layout::{
    End, Entry, FILE_HEADER, FileHeader, FrameHeader, Hash, Head, HeaderFault, Kind, MAGIC, header_binding,
};
use super::limits::Needs;
use super::{Error, ReadLimits};
use crate::coder::{self, Breakdown, Decoder, Encoder, Fallback, Form, Original};

/// Reads a container, member by member.
///
/// [`Reader::next`] gives a member's head, after which [`Reader::decode`] or [`Reader::skip`] take what follows.
///
/// A file states in its header what it needs; more than [`ReadLimits`] allow is refused before anything is decoded.
pub struct Reader<R> {
    input: R,
    limits: ReadLimits,
    /// What decoding may use: what the file states.
    coder_limits: coder::Limits,
    decoder: Decoder,
    /// Where the bytes of members are that were decoded since it was taken last, if that is counted.
    breakdown: Option<Breakdown>,
    header: Option<FileHeader>,
    /// What the first member is bound to.
    header_binding: Option<Hash>,
    /// Bytes of the file; `u64::MAX` of a stream.
    bytes: u64,
    at: u64,
    /// The frame that comes next.
    frame: u64,
    /// The file's number, once known.
    id: Option<u64>,
    /// The member that comes next.
    member: u64,
    /// The head that came last.
    last: LastHead,
    /// The binding of the member before the one that comes next, if it is known.
    binding: Option<Hash>,
    /// What the index must have if reading came here from the file's start without a gap: the entries so far.
    walked: Option<Vec<u8>>,
    /// Where the index came by, and its hash.
    index_passed: Option<(u64, Hash)>,
    /// What a good index says.
    index: Option<Vec<Entry>>,
    /// Whether members are decoded that are not where they belong.
    is_salvaging: bool,
    /// Bytes of contents of frames that were read, those that were read twice twice.
    content_bytes: u64,
    /// The member that the decoder's state fits.
    ready_for: Option<u64>,
    ended: bool,
}

/// The head that came last, as it is in the file.
#[derive(Default)]
struct LastHead {
    offset: u64,
    frame: u64,
    bytes: Vec<u8>,
}

/// Whether a member is where it was written, under the name that it was written with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    /// It is.
    Verified,
    /// It cannot be said, as the members before it or the index are damaged.
    Unknown,
    /// It is not.
    Broken,
}

/// What was read of a member.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Bytes that it takes in the file.
    pub stored: u64,
    /// Its end.
    pub end: End,
    /// Whether its name and its place among the others are as they were written: always, unless by [`super::walk`].
    pub binding: Binding,
}

impl<R: Read> Reader<Forward<R>> {
    /// Reads the header of a file that comes as a stream: members can be decoded in their order, but not searched for.
    ///
    /// # Errors
    /// The file system's, a header that cannot be used, and needs beyond the limits.
    pub fn open_stream(input: R, limits: ReadLimits) -> Result<Reader<Forward<R>>, Error> {
        Reader::unopened(Forward { input, at: 0 }, u64::MAX, limits).opened()
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// The file system's, a header that cannot be used, and needs beyond the limits.
    pub fn open(input: R, limits: ReadLimits) -> Result<Reader<R>, Error> {
        Reader::open_damaged(input, limits)?.opened()
    }

    /// Does without the file's header: what comes next is found by [`Reader::find_next`]. The limits stand for the needs that
    /// the header would state.
    ///
    /// # Errors
    /// The file system's.
    pub fn open_damaged(mut input: R, limits: ReadLimits) -> Result<Reader<R>, Error> {
        let bytes = input.seek(SeekFrom::End(0)).map_err(Error::Io)?;
        input.seek(SeekFrom::Start(0)).map_err(Error::Io)?;
        Ok(Reader::unopened(input, bytes, limits))
    }

    fn unopened(input: R, bytes: u64, limits: ReadLimits) -> Reader<R> {
        let needs = Needs::within(limits.memory, limits.spill);
        let page_memory = limits.admit(needs).unwrap_or(0);
        // Level 9: parts may be modelled.
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
        self.coder_limits = header.needs.limits(header.form, header.level, page_memory);
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

    /// Counts where the bytes of members are that are decoded, from the next keyframe on. Decoding takes longer then.
    pub fn count_bytes(&mut self) {
        if self.breakdown.is_none() {
            self.decoder.meter();
            self.breakdown = Some(Breakdown::default());
        }
    }

    /// Where the bytes of members are that were decoded since the last call, if [`Reader::count_bytes`] was called.
    pub fn take_breakdown(&mut self) -> Option<Breakdown> {
        self.breakdown.as_mut().map(std::mem::take)
    }

    /// Why a member with this original is coded as bytes: found by coding its records again, within the usual limits. `None` if this
    /// version can code them.
    pub fn fallback_of(&self, original: &[u8]) -> Option<Fallback> {
        let (form, level) =
            self.header.map_or((FileForm::Segment, 1), |header| (header.form, header.level.max(1)));
        let needs = Needs::of_segments(form, level, original.len() as u64);
        let mut encoder = Encoder::new(level, needs.limits(form, level, self.limits.page_memory)).alone();
        let mut input = std::io::Cursor::new(original);
        let is_coded =
            Original::of(&mut input).is_ok_and(|original| encoder.fill_columns(original).is_some());
        encoder.fallback().filter(|_| !is_coded).cloned()
    }

    /// What the file's header says.
    pub fn header(&self) -> Option<FileHeader> {
        self.header
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Where reading goes on.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Whether all was read, to the mark that says so.
    pub fn is_at_end(&self) -> bool {
        self.ended
    }

    /// The number of the member that comes next.
    pub fn next_member(&self) -> u64 {
        self.member
    }

    /// Looks how far a file goes that is being written.
    ///
    /// # Errors
    /// The file system's.
    pub fn look_again(&mut self) -> Result<(), Error> {
        self.bytes = self.input.seek(SeekFrom::End(0)).map_err(Error::Io)?;
        Ok(())
    }

    /// The next member's head, or nothing at the end.
    ///
    /// # Errors
    /// The file system's, and damage: then [`Reader::find_next`] may help.
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

    /// The head of the next member, which must be the one that the index has there.
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

    /// Whether all that the member needs was decoded.
    pub fn can_decode(&self, head: &Head) -> bool {
        head.keyframe || self.ready_for == Some(head.number)
    }

    /// Decodes the member whose head came last, and checks it; `out` gets the original.
    ///
    /// What `out` has been given is right only if this succeeds.
    ///
    /// # Errors
    /// The file system's, damage, and a member that needs another one.
    pub fn decode(&mut self, head: &Head, out: &mut dyn Write) -> Result<Summary, Error> {
        self.decode_to(head, Output::Hashed(out))
    }

    /// Decodes the member whose head came last, and compares it with its original byte for byte; the hash that is stated is
    /// compared with the original's, which is `hash`.
    ///
    /// # Errors
    /// As [`Reader::decode`], and any difference.
    pub fn compare(&mut self, head: &Head, original: &[u8], hash: &Hash) -> Result<Summary, Error> {
        self.decode_to(head, Output::Compared { original, hash })
    }

    fn decode_to(&mut self, head: &Head, out: Output<'_>) -> Result<Summary, Error> {
        if !self.can_decode(head) {
            return Err(Error::NeedsKeyframe(name_of(head)));
        }
        self.ready_for = None;
        let summary = self.pieces(head, Some(out)).map_err(|error| of_member(error, head))?;
        self.ready_for = (head.form == Form::Records).then_some(head.number.saturating_add(1));
        Ok(summary)
    }

    /// Leaves out the member whose head came last.
    ///
    /// # Errors
    /// The file system's, and damage of what holds the member together.
    pub fn skip(&mut self, head: &Head) -> Result<Summary, Error> {
        self.pieces(head, None).map_err(|error| of_member(error, head))
    }

    fn go_to(&mut self, at: u64, frame: u64, member: u64) {
        (self.at, self.frame, self.member, self.ended) = (at, frame, member, false);
    }

    /// To the first member.
    fn go_to_start(&mut self) {
        self.go_to(FILE_HEADER as u64, 0, 0);
        self.binding = self.header_binding;
        (self.walked, self.index_passed) = (Some(Vec::new()), None);
    }
}

fn name_of(head: &Head) -> String {
    String::from_utf8_lossy(&head.meta.name).into_owned()
}

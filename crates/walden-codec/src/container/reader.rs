//! Reading a container: walking it, by its index, and past damage.

use std::io::{self, Read, Seek, SeekFrom, Write};

use walden_format::crc::crc32c_append;
use walden_format::reader::Reader as Cursor;

use super::layout::{
    End, Entry, FILE_HEADER, FOOTER, FOOTER_FRAME, FRAME_HEADER, FRAME_MAGIC, FileForm, FileHeader, Footer,
    FrameHeader, Hash, Head, HeaderFault, Kind, MAGIC, MAX_HEAD, MAX_PIECE, hex,
};
use super::limits::Needs;
use super::{Damage, Error, ReadLimits};
use crate::coder::{self, Breakdown, Decoder, Encoded, Form};

/// Bytes that are allocated at once, before they are read.
const MAX_AT_ONCE: u64 = 16 << 20;
/// Bytes that a piece may have more than what it decodes to.
const MAX_OVERHEAD: u64 = 2 << 20;

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

/// A stream, in which reading goes on at a later place only.
pub struct Forward<R> {
    input: R,
    at: u64,
}

impl<R: Read> Read for Forward<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.input.read(buffer)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl<R: Read> Seek for Forward<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(to) = to else { return Err(io::ErrorKind::Unsupported.into()) };
        let skipped = to.checked_sub(self.at).ok_or(io::ErrorKind::Unsupported)?;
        io::copy(&mut (&mut self.input).take(skipped), &mut io::sink())?;
        // Beyond the end, nothing is read.
        self.at = to;
        Ok(to)
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
            ready_for: None,
            ended: false,
        }
    }

    fn opened(mut self) -> Result<Reader<R>, Error> {
        const PART: &str = "the file's header";
        let mut bytes = [0; FILE_HEADER];
        let got = self.fill(&mut bytes)?;
        if !bytes[..got].starts_with(&MAGIC) {
            return Err(Error::Foreign);
        }
        if got < FILE_HEADER {
            return Err(self.damage(PART, 0, format!("{FILE_HEADER} bytes"), format!("{got} bytes")));
        }
        let header = FileHeader::parse(&bytes).map_err(|fault| match fault {
            HeaderFault::Magic => Error::Foreign,
            HeaderFault::Newer(version) => Error::Newer(version),
            HeaderFault::Checksum(stored, computed) => {
                self.damage(PART, 0, format!("CRC-32C {stored:08X}"), format!("{computed:08X}"))
            }
            HeaderFault::Form(form) => {
                self.damage(PART, 12, "a form of files that this version knows", form.to_string())
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
            if is_complete && !frame.kind.may_be_skipped() {
                let found = format!("a frame of kind {}", frame.kind.0);
                return Err(self.damage("the file's end", offset, "nothing more", found));
            }
            match frame.kind {
                Kind::HEAD => return self.next_head(frame, offset).map(Some),
                Kind::INDEX => self.pass_index(frame, offset)?,
                Kind::FOOTER => {
                    self.check_footer(frame, offset)?;
                    self.expect_end()?;
                }
                kind if kind.may_be_skipped() => self.pass(frame),
                kind => {
                    let found = format!("a frame of kind {}", kind.0);
                    return Err(self.damage("a frame", offset, "a member, the index or the footer", found));
                }
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

    /// The index after the last member, which must have all members.
    fn pass_index(&mut self, frame: FrameHeader, offset: u64) -> Result<(), Error> {
        const PART: &str = "the index";
        let content = self.content(frame, offset, self.bytes, PART)?;
        if let Some(walked) = &self.walked {
            let (count, entries) = content.split_at_checked(8).unwrap_or_default();
            if count != self.member.to_le_bytes() || entries != walked {
                let expected = format!("the {} members before it", self.member);
                return Err(self.damage(PART, offset, expected, "other members".to_owned()));
            }
        }
        self.index_passed = Some((offset, *blake3::hash(&content).as_bytes()));
        Ok(())
    }

    /// The footer, which must be that of this index and these members.
    fn check_footer(&mut self, frame: FrameHeader, offset: u64) -> Result<(), Error> {
        const PART: &str = "the footer";
        let footer = self.footer(frame, offset)?;
        if footer.members != self.member {
            let expected = format!("{} members", self.member);
            return Err(self.damage(PART, offset, expected, format!("{} members", footer.members)));
        }
        let Some((index, hash)) = self.index_passed else {
            return Err(self.damage(PART, offset, "the index before it", "none".to_owned()));
        };
        if index != footer.index {
            let expected = format!("the index at offset {index}");
            return Err(self.damage(PART, offset, expected, format!("offset {}", footer.index)));
        }
        let hashes = [("index", hash, footer.index_hash)];
        let binding = self.binding.map(|binding| ("last member's binding", binding, footer.binding));
        for (what, expected, found) in hashes.into_iter().chain(binding) {
            if expected != found {
                let expected = format!("BLAKE3 {} of the {what}", hex(&expected));
                return Err(self.damage(PART, offset, expected, hex(&found)));
            }
        }
        Ok(())
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
        if !self.can_decode(head) {
            return Err(Error::NeedsKeyframe(name_of(head)));
        }
        self.ready_for = None;
        let summary = self.pieces(head, Some(out)).map_err(|error| of_member(error, head))?;
        self.ready_for = (head.form == Form::Records).then_some(head.number.saturating_add(1));
        Ok(summary)
    }

    /// The pieces of the member whose head came last as they are coded, each with the bytes of its original.
    ///
    /// # Errors
    /// The file system's, and damage of what holds the member together.
    pub fn coded_pieces(&mut self, head: &Head) -> Result<Vec<(u64, Encoded)>, Error> {
        let mut pieces = Vec::new();
        loop {
            let offset = self.at;
            let frame = self.frame_header()?;
            match frame.kind {
                Kind::PIECE => {
                    let mut content = self.content(frame, offset, self.bytes, "a piece")?;
                    let original = Cursor::new(&content).u64().unwrap_or(0);
                    content.drain(..content.len().min(8));
                    pieces.push((original, Encoded { form: head.form, restart: head.keyframe, content }));
                }
                _ => self.pass(frame),
            }
            if frame.kind == Kind::END {
                // Not compared with anything, so nothing is known of it.
                (self.binding, self.walked) = (None, None);
                self.member = head.number.saturating_add(1);
                return Ok(pieces);
            }
        }
    }

    /// Leaves out the member whose head came last.
    ///
    /// # Errors
    /// The file system's, and damage of what holds the member together.
    pub fn skip(&mut self, head: &Head) -> Result<Summary, Error> {
        self.pieces(head, None).map_err(|error| of_member(error, head))
    }

    /// All members of the file, by its index or else by walking it; and what is wrong with the file, as far as that shows.
    /// Reading is at the file's start after it.
    pub fn entries(&mut self) -> (Vec<Entry>, Option<Error>) {
        let index = match self.header {
            Some(FileHeader { form: FileForm::Pack, .. }) => self.index().ok(),
            _ => None,
        };
        let entries = index.map_or_else(|| self.walk(), |entries| (entries, None));
        self.go_to_start();
        entries
    }

    /// Looks how far a file goes that is being written.
    ///
    /// # Errors
    /// The file system's.
    pub fn look_again(&mut self) -> Result<(), Error> {
        self.bytes = self.input.seek(SeekFrom::End(0)).map_err(Error::Io)?;
        Ok(())
    }

    /// What a pack's index says, which is compared with its footer; from then on, members are compared with it. Reading has
    /// to be placed by [`Reader::seek`] after it.
    ///
    /// # Errors
    /// The file system's, and damage: a pack that was cut short has no index.
    pub fn index(&mut self) -> Result<Vec<Entry>, Error> {
        const PART: &str = "the index";
        let place = self.bytes.saturating_sub(FOOTER_FRAME).max(FILE_HEADER as u64);
        self.at = place;
        let footer = self.any_frame_header().and_then(|frame| self.footer(frame, place));
        let footer = match footer {
            Ok(footer) => footer,
            Err(Error::Damage(damage)) => {
                let found = format!("{} (the pack was cut short or its end is damaged)", damage.found);
                return Err(Error::Damage(Box::new(Damage { part: "the footer", found, ..*damage })));
            }
            Err(error) => return Err(error),
        };
        let offset = footer.index;
        self.at = offset;
        let frame = self.any_frame_header()?;
        if frame.kind != Kind::INDEX {
            return Err(self.damage(PART, offset, "the index", format!("a frame of kind {}", frame.kind.0)));
        }
        let content = self.content(frame, offset, self.bytes, PART)?;
        let hash = *blake3::hash(&content).as_bytes();
        if hash != footer.index_hash {
            let expected = format!("BLAKE3 {}", hex(&footer.index_hash));
            return Err(self.damage(PART, offset, expected, hex(&hash)));
        }
        let mut cursor = Cursor::new(&content);
        let count = cursor.u64().unwrap_or(0);
        let mut entries: Vec<Entry> = Vec::new();
        while cursor.left() > 0 {
            let number = entries.len() as u64;
            let entry =
                Entry::take(&mut cursor).filter(|entry| entry.offset < offset && entry.head.number == number);
            let Some(entry) = entry else {
                return Err(self.damage(
                    PART,
                    offset,
                    format!("an entry of member {}", number + 1),
                    "none".to_owned(),
                ));
            };
            entries.push(entry);
        }
        if entries.len() as u64 != count || count != footer.members {
            let expected = format!("{} entries", footer.members);
            return Err(self.damage(PART, offset, expected, format!("{} entries", entries.len())));
        }
        self.check_bindings(&entries, &footer, offset)?;
        self.index = Some(entries.clone());
        Ok(entries)
    }

    /// The contents of the frames of a kind, 128 or above, that lie between a pack's last member and its index, which is what
    /// [`Reader::index`] returned. Reading has to be placed by [`Reader::seek`] after it.
    ///
    /// # Errors
    /// The file system's, and damage.
    pub fn extras(&mut self, index: &[Entry], kind: u8) -> Result<Vec<Vec<u8>>, Error> {
        self.at = index.last().map_or(FILE_HEADER as u64, |last| last.offset.saturating_add(last.stored));
        let mut found = Vec::new();
        loop {
            let offset = self.at;
            let frame = self.any_frame_header()?;
            match frame.kind {
                Kind::INDEX => return Ok(found),
                Kind(own) if own == kind && frame.kind.may_be_skipped() => {
                    found.push(self.content(frame, offset, self.bytes, "an extra frame")?);
                }
                kind if kind.may_be_skipped() => self.pass(frame),
                kind => {
                    let found = format!("a frame of kind {}", kind.0);
                    return Err(self.damage("a frame", offset, "the index", found));
                }
            }
        }
    }

    /// Whether members that follow each other are bound to each other, from the file's header to the footer.
    fn check_bindings(&self, entries: &[Entry], footer: &Footer, offset: u64) -> Result<(), Error> {
        let mut before = self.header.map(FileHeader::binding);
        for entry in entries {
            let End { bytes, hash, binding } = entry.end;
            let expected = before.map(|before| End::bound(bytes, hash, &before, &entry.head_bytes).binding);
            if expected.is_some_and(|expected| expected != binding) {
                let expected = format!("a binding of {} to the member before", name_of(&entry.head));
                return Err(self.damage("the index", offset, expected, "another".to_owned()));
            }
            before = Some(binding);
        }
        if before.is_some_and(|last| last != footer.binding) {
            let found = hex(&footer.binding);
            return Err(self.damage("the footer", offset, "the last member's binding", found));
        }
        Ok(())
    }

    /// Goes to a member of the index: what is decoded next is this one.
    ///
    /// # Errors
    /// The file system's, damage, and an index that does not fit the member.
    pub fn seek(&mut self, entry: &Entry) -> Result<Head, Error> {
        self.go_to(entry.offset, entry.frame, entry.head.number);
        (self.binding, self.walked) = (self.binding_before(entry.head.number), None);
        let head = self.next()?;
        match head {
            Some(head) if self.last.bytes == entry.head_bytes => Ok(head),
            _ => {
                let expected = format!("{} where it says", name_of(&entry.head));
                Err(self.damage("the index", entry.offset, expected, "another member".to_owned()))
            }
        }
    }

    /// What a member is bound to, by the index.
    fn binding_before(&self, number: u64) -> Option<Hash> {
        match number.checked_sub(1) {
            None => self.header.map(FileHeader::binding),
            Some(before) => {
                let index = self.index.as_ref()?;
                Some(index.get(usize::try_from(before).ok()?)?.end.binding)
            }
        }
    }

    /// Searches for the next member or the index from `from` on, and goes there; nothing if there is none.
    ///
    /// # Errors
    /// The file system's.
    pub fn find_next(&mut self, from: u64) -> Result<Option<u64>, Error> {
        const WINDOW: usize = 64 << 10;
        let mut window_start = from;
        let mut window = vec![0; WINDOW + FRAME_HEADER];
        while window_start < self.bytes {
            self.at = window_start;
            let got = self.fill(&mut window)?;
            for start in 0..got.min(WINDOW) {
                if window[start..got].starts_with(&FRAME_MAGIC)
                    && let Some(bytes) = window[start..got].first_chunk::<FRAME_HEADER>()
                    && let Ok(frame) = FrameHeader::parse(bytes)
                    && self.starts_anew(window_start + start as u64, frame)
                {
                    return Ok(Some(window_start + start as u64));
                }
            }
            window_start += WINDOW as u64;
        }
        self.at = self.bytes;
        Ok(None)
    }
}

/// Where reading stands.
pub(super) type Standing = (u64, u64, u64, Option<Hash>);

impl<R: Read + Seek> Reader<R> {
    pub(super) fn place(&self) -> Standing {
        (self.at, self.frame, self.member, self.binding)
    }

    pub(super) fn go_back(&mut self, (at, frame, member, binding): Standing) {
        self.go_to(at, frame, member);
        self.binding = binding;
    }

    /// Whether a frame that was searched for is one to go on with; then reading is placed before it.
    fn starts_anew(&mut self, offset: u64, frame: FrameHeader) -> bool {
        if self.id.is_some_and(|id| id != frame.id)
            || ![Kind::HEAD, Kind::INDEX, Kind::FOOTER].contains(&frame.kind)
        {
            return false;
        }
        let id = self.id.replace(frame.id);
        self.go_to(offset, frame.number, self.member);
        let sound = match self.frame_header() {
            Ok(header) if header.kind == Kind::HEAD => {
                self.head(header, offset).ok().map(|(head, _)| head.number)
            }
            // Both say how many members there are: the index first, the footer after the index's offset.
            Ok(header) => self.content(header, offset, self.bytes, "a frame").ok().and_then(|content| {
                let skipped = if header.kind == Kind::FOOTER { 8 } else { 0 };
                Cursor::new(content.get(skipped..)?).u64()
            }),
            Err(_) => None,
        };
        match sound {
            Some(member) => {
                self.go_to(offset, frame.number, member);
                (self.binding, self.walked) = (self.binding_before(member), None);
            }
            None => self.id = id,
        }
        sound.is_some()
    }

    fn footer(&mut self, frame: FrameHeader, offset: u64) -> Result<Footer, Error> {
        const PART: &str = "the footer";
        if frame.kind != Kind::FOOTER {
            return Err(self.damage(PART, offset, "the footer", "another frame".to_owned()));
        }
        let content = self.content(frame, offset, FOOTER_FRAME, PART)?;
        let found = format!("{} bytes", content.len());
        Footer::parse(&content).ok_or_else(|| self.damage(PART, offset, format!("{FOOTER} bytes"), found))
    }

    pub(super) fn salvage(&mut self) {
        self.is_salvaging = true;
    }

    fn walk(&mut self) -> (Vec<Entry>, Option<Error>) {
        self.go_to_start();
        let mut entries = Vec::new();
        loop {
            let head = match self.next() {
                Ok(Some(head)) => head,
                Ok(None) => return (entries, None),
                Err(error) => return (entries, Some(error)),
            };
            match self.skip(&head) {
                Ok(Summary { stored, end, .. }) => {
                    let LastHead { offset, frame, bytes } = std::mem::take(&mut self.last);
                    entries.push(Entry { offset, frame, stored, head, head_bytes: bytes, end });
                }
                Err(error) => return (entries, Some(error)),
            }
        }
    }

    fn go_to(&mut self, at: u64, frame: u64, member: u64) {
        (self.at, self.frame, self.member, self.ended) = (at, frame, member, false);
    }

    /// To the first member.
    fn go_to_start(&mut self) {
        self.go_to(FILE_HEADER as u64, 0, 0);
        self.binding = self.header.map(FileHeader::binding);
        (self.walked, self.index_passed) = (Some(Vec::new()), None);
    }

    fn expect_end(&mut self) -> Result<(), Error> {
        let is_stream = self.bytes == u64::MAX;
        let found = match is_stream {
            true => self.fill(&mut [0])? as u64,
            false => self.bytes.saturating_sub(self.at),
        };
        if found > 0 {
            let found = if is_stream { "more".to_owned() } else { format!("{found} bytes") };
            return Err(self.damage("the file's end", self.at, "nothing more", found));
        }
        self.ended = true;
        Ok(())
    }

    /// The header of the next frame, which must be the next of this file.
    fn frame_header(&mut self) -> Result<FrameHeader, Error> {
        self.frame_header_or_end()?.ok_or_else(|| self.cut_frame_header(0))
    }

    /// The same, or nothing at the end of the file.
    fn frame_header_or_end(&mut self) -> Result<Option<FrameHeader>, Error> {
        let offset = self.at;
        let Some(frame) = self.any_frame_header_or_end()? else { return Ok(None) };
        if frame.number != self.frame {
            let (expected, found) = (format!("frame {}", self.frame), format!("frame {}", frame.number));
            return Err(self.damage("a frame's header", offset, expected, found));
        }
        self.frame = self.frame.saturating_add(1);
        Ok(Some(frame))
    }

    fn any_frame_header(&mut self) -> Result<FrameHeader, Error> {
        self.any_frame_header_or_end()?.ok_or_else(|| self.cut_frame_header(0))
    }

    fn any_frame_header_or_end(&mut self) -> Result<Option<FrameHeader>, Error> {
        const PART: &str = "a frame's header";
        let offset = self.at;
        let mut bytes = [0; FRAME_HEADER];
        match self.fill(&mut bytes)? {
            0 => return Ok(None),
            FRAME_HEADER => {}
            got => return Err(self.cut_frame_header(got)),
        }
        let frame = FrameHeader::parse(&bytes)
            .map_err(|(expected, found)| self.damage(PART, offset, expected, found))?;
        if let Some(id) = self.id.filter(|id| *id != frame.id) {
            let (expected, found) = (format!("file {id:016X}"), format!("file {:016X}", frame.id));
            return Err(self.damage(PART, offset, expected, found));
        }
        self.at += FRAME_HEADER as u64;
        let left = self.bytes.saturating_sub(self.at);
        if frame.bytes > left {
            let expected = format!("{} bytes after it", frame.bytes);
            return Err(self.damage(PART, offset, expected, format!("{left} bytes")));
        }
        Ok(Some(frame))
    }

    /// A frame's header of which the file has only so many bytes.
    fn cut_frame_header(&self, got: usize) -> Error {
        let found = if got == 0 { "the end of the file".to_owned() } else { format!("{got} bytes") };
        self.damage("a frame's header", self.at, format!("{FRAME_HEADER} bytes"), found)
    }

    /// What the file has from here on, as far as it goes.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.input.seek(SeekFrom::Start(self.at)).map_err(Error::Io)?;
        let mut got = 0;
        while got < buffer.len() {
            match self.input.read(&mut buffer[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Io(error)),
            }
        }
        Ok(got)
    }

    /// The content of the frame whose header came last.
    fn content(
        &mut self,
        frame: FrameHeader,
        offset: u64,
        most: u64,
        part: &'static str,
    ) -> Result<Vec<u8>, Error> {
        if frame.bytes > most {
            let found = format!("{} bytes", frame.bytes);
            return Err(self.damage(part, offset, format!("at most {most} bytes"), found));
        }
        // The file is that long, by what the system says; where it has holes, that means little.
        let expected = frame.bytes.min(self.bytes.saturating_sub(self.at)).min(MAX_AT_ONCE);
        let mut content = Vec::with_capacity(expected as usize);
        (&mut self.input).take(frame.bytes).read_to_end(&mut content).map_err(Error::Io)?;
        self.at += content.len() as u64;
        let checksum = crc32c_append(0, &content);
        if content.len() as u64 != frame.bytes {
            let (expected, found) = (format!("{} bytes", frame.bytes), format!("{} bytes", content.len()));
            return Err(self.damage(part, offset, expected, found));
        }
        if checksum != frame.checksum {
            let (expected, found) = (format!("CRC-32C {:08X}", frame.checksum), format!("{checksum:08X}"));
            return Err(self.damage(part, offset, expected, found));
        }
        Ok(content)
    }

    /// Leaves the content of a frame out.
    fn pass(&mut self, frame: FrameHeader) {
        // Not beyond the end: the header was checked against it.
        self.at = self.at.saturating_add(frame.bytes);
    }

    fn head(&mut self, frame: FrameHeader, offset: u64) -> Result<(Head, Vec<u8>), Error> {
        let content = self.content(frame, offset, MAX_HEAD, "a member's head")?;
        match Head::parse(&content) {
            Ok(head) => Ok((head, content)),
            Err((expected, found)) => Err(self.damage("a member's head", offset, expected, found)),
        }
    }

    /// What follows a member's head; without `out`, nothing is decoded.
    fn pieces(&mut self, head: &Head, mut out: Option<&mut dyn Write>) -> Result<Summary, Error> {
        let start = self.last.offset;
        let mut hasher = blake3::Hasher::new();
        let (mut pieces, mut bytes) = (0, 0_u64);
        let end = loop {
            let offset = self.at;
            let frame = self.frame_header()?;
            match frame.kind {
                Kind::END => break self.end(frame, offset)?,
                Kind::PIECE if head.form == Form::Records && pieces == 1 => {
                    return Err(self.damage(
                        "a piece",
                        offset,
                        "the member's end",
                        "another piece".to_owned(),
                    ));
                }
                Kind::PIECE => {
                    pieces += 1;
                    let Some(out) = &mut out else {
                        self.pass(frame);
                        continue;
                    };
                    let mut written = Ok(());
                    self.piece(head, frame, offset, &mut |original| {
                        hasher.update(original);
                        bytes = bytes.saturating_add(original.len() as u64);
                        if written.is_ok() {
                            written = out.write_all(original);
                        }
                    })?;
                    written.map_err(Error::Original)?;
                }
                kind if kind.may_be_skipped() => self.pass(frame),
                kind => {
                    let found = format!("a frame of kind {}", kind.0);
                    return Err(self.damage("a frame", offset, "a piece or the member's end", found));
                }
            }
        };
        self.member = head.number.saturating_add(1);
        if out.is_some() {
            let hash = *hasher.finalize().as_bytes();
            if bytes != end.bytes {
                let found = format!("{bytes} bytes");
                return Err(self.damage("the original", start, format!("{} bytes", end.bytes), found));
            }
            if hash != end.hash {
                let expected = format!("BLAKE3 {}", hex(&end.hash));
                return Err(self.damage("the original", start, expected, hex(&hash)));
            }
        }
        let stored = self.at - start;
        let binding = self.bind(head, stored, end)?;
        Ok(Summary { stored, end, binding })
    }

    /// Compares the member that came last with what it is bound to.
    fn bind(&mut self, head: &Head, stored: u64, end: End) -> Result<Binding, Error> {
        let LastHead { offset, frame, bytes: head_bytes } = &self.last;
        let bound = self.binding.map(|before| End::bound(end.bytes, end.hash, &before, head_bytes) == end);
        let index = self.index.as_ref();
        let in_index = index.map(|index| {
            let entry = usize::try_from(head.number).ok().and_then(|number| index.get(number));
            entry.is_some_and(|entry| entry.head_bytes == *head_bytes && entry.end == end)
        });
        let binding = match (bound, in_index) {
            (Some(false), _) | (_, Some(false)) => Binding::Broken,
            (Some(true), _) | (None, Some(true)) => Binding::Verified,
            (None, None) => Binding::Unknown,
        };
        if !self.is_salvaging && binding == Binding::Broken {
            return Err(broken(head, *offset));
        }
        if let Some(walked) = &mut self.walked {
            let (offset, frame, head_bytes) = (*offset, *frame, head_bytes.clone());
            Entry { offset, frame, stored, head: head.clone(), head_bytes, end }.put(walked);
        }
        self.binding = Some(end.binding);
        Ok(binding)
    }

    fn piece(
        &mut self,
        head: &Head,
        frame: FrameHeader,
        offset: u64,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let limit = self.coder_limits.columns as u64;
        let mut content = self.content(frame, offset, limit.saturating_add(MAX_OVERHEAD), "a piece")?;
        let Some(original) = Cursor::new(&content).u64() else {
            let found = format!("{} bytes", content.len());
            return Err(self.damage("a piece", offset, "8 bytes or more", found));
        };
        let allowed = limit.min(MAX_PIECE);
        if head.form == Form::Bytes && original > allowed {
            let what = "bytes of a piece's original";
            return Err(Error::Limit { what, allowed, found: original });
        }
        if head.place.is_some_and(|place| place.size.bytes() != original) {
            return Err(self.damage("a piece", offset, "a whole segment", format!("{original} bytes")));
        }
        content.drain(..8);
        let encoded = Encoded { form: head.form, restart: head.keyframe, content };
        let decoded = self.decoder.decode(&encoded, original as usize, out);
        if let Some(breakdown) = self.breakdown.as_mut().filter(|_| decoded.is_ok()) {
            breakdown.add(&encoded, original, self.decoder.take_metered().as_ref());
        }
        if let Some(failure) = self.decoder.failure() {
            return Err(Error::Temporary(failure.to_owned()));
        }
        decoded.map_err(|corrupt| {
            self.damage("a piece's content", offset, "what was coded", corrupt.0.to_owned())
        })
    }

    fn end(&mut self, frame: FrameHeader, offset: u64) -> Result<End, Error> {
        let content = self.content(frame, offset, MAX_HEAD, "a member's end")?;
        let found = format!("{} bytes", content.len());
        End::parse(&content).ok_or_else(|| self.damage("a member's end", offset, "72 bytes or more", found))
    }

    fn damage(&self, part: &'static str, offset: u64, expected: impl Into<String>, found: String) -> Error {
        Error::Damage(Box::new(Damage { member: None, part, offset, expected: expected.into(), found }))
    }
}

/// A member that is not where it was written, or not under its name.
pub(super) fn broken(head: &Head, offset: u64) -> Error {
    Error::Damage(Box::new(Damage {
        member: Some((head.number, Some(name_of(head)))),
        part: "a member",
        offset,
        expected: "one that is bound to its name and to the members before it".to_owned(),
        found: "one of another place or name".to_owned(),
    }))
}

/// Says which member an error is about.
fn of_member(error: Error, head: &Head) -> Error {
    match error {
        Error::Damage(damage) => {
            Error::Damage(Box::new(Damage { member: Some((head.number, Some(name_of(head)))), ..*damage }))
        }
        error => error,
    }
}

fn name_of(head: &Head) -> String {
    String::from_utf8_lossy(&head.meta.name).into_owned()
}

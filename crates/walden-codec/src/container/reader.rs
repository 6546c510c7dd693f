//! Reading a container: walking it, by its index, and past damage.

use std::io::{self, Read, Seek, SeekFrom, Write};

use walden_format::crc::crc32c_append;
use walden_format::reader::Reader as Cursor;

use super::layout::{
    End, Entry, FILE_HEADER, FOOTER, FRAME_HEADER, FRAME_MAGIC, FileForm, FileHeader, FrameHeader, Head,
    HeaderFault, Kind, MAX_HEAD, MAX_PIECE, hex,
};
use super::{Damage, Error, ReadLimits};
use crate::coder::{Decoder, Encoded, Form};

/// Bytes that room is made for at once, before they are read.
const MAX_AT_ONCE: u64 = 16 << 20;

/// Reads a container, member by member.
///
/// [`Reader::next`] gives a member's head, after which [`Reader::decode`] or [`Reader::skip`] take what follows.
///
/// Memory: a member's coded form and, for records, the original; never more than the file has or the limits allow.
pub struct Reader<R> {
    input: R,
    limits: ReadLimits,
    decoder: Decoder,
    header: Option<FileHeader>,
    /// Bytes of the file.
    bytes: u64,
    at: u64,
    /// The frame that comes next.
    frame: u64,
    /// The file's number, once known.
    id: Option<u64>,
    /// The member that comes next.
    member: u64,
    /// Where the last member that came starts.
    member_offset: u64,
    /// The member that the decoder's state fits.
    ready_for: Option<u64>,
    ended: bool,
}

/// What was read of a member.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Bytes that it takes in the file.
    pub stored: u64,
    /// Its end.
    pub end: End,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// The file system's, and a header that can't be used.
    pub fn open(input: R, limits: ReadLimits) -> Result<Reader<R>, Error> {
        let mut reader = Reader::open_damaged(input, limits)?;
        let mut bytes = [0; FILE_HEADER];
        if reader.bytes < FILE_HEADER as u64 {
            let mut start = Vec::new();
            (&mut reader.input).take(8).read_to_end(&mut start).map_err(Error::Io)?;
            if start != super::layout::MAGIC {
                return Err(Error::Foreign);
            }
            return Err(reader.damage("the file's header", 0, "32 bytes", format!("{} bytes", reader.bytes)));
        }
        reader.input.read_exact(&mut bytes).map_err(Error::Io)?;
        let header = FileHeader::parse(&bytes).map_err(|fault| match fault {
            HeaderFault::Magic => Error::Foreign,
            HeaderFault::Newer(version) => Error::Newer(version),
            HeaderFault::Checksum(stored, computed) => {
                let expected = format!("CRC-32C {stored:08X}");
                reader.damage("the file's header", 0, expected, format!("{computed:08X}"))
            }
            HeaderFault::Form(form) => reader.damage(
                "the file's header",
                12,
                "a form of files that this version knows",
                form.to_string(),
            ),
        })?;
        reader.at = FILE_HEADER as u64;
        reader.id = Some(header.id);
        reader.header = Some(header);
        if header.form == FileForm::Segment {
            reader.decoder = Decoder::new(limits.coder).alone();
        }
        Ok(reader)
    }

    /// Does without the file's header: what comes next is found by [`Reader::find_next`].
    ///
    /// # Errors
    /// The file system's.
    pub fn open_damaged(mut input: R, limits: ReadLimits) -> Result<Reader<R>, Error> {
        let bytes = input.seek(SeekFrom::End(0)).map_err(Error::Io)?;
        input.seek(SeekFrom::Start(0)).map_err(Error::Io)?;
        let decoder = Decoder::new(limits.coder);
        Ok(Reader {
            input,
            limits,
            decoder,
            header: None,
            bytes,
            at: 0,
            frame: 0,
            id: None,
            member: 0,
            member_offset: 0,
            ready_for: None,
            ended: false,
        })
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
            if segment && self.member == 1 {
                self.expect_end()?;
                continue;
            }
            let offset = self.at;
            let frame = self.frame_header()?;
            match frame.kind {
                Kind::HEAD => {
                    let head = self.head(frame, offset)?;
                    if head.number != self.member {
                        let (expected, found) = (
                            format!("member {}", self.member.saturating_add(1)),
                            head.number.saturating_add(1),
                        );
                        return Err(self.damage(
                            "a member's head",
                            offset,
                            expected,
                            format!("member {found}"),
                        ));
                    }
                    self.member_offset = offset;
                    return Ok(Some(head));
                }
                Kind::INDEX => {
                    self.content(frame, offset, self.bytes, "the index")?;
                }
                Kind::FOOTER => {
                    let content = self.content(frame, offset, FOOTER, "the footer")?;
                    let members = Cursor::new(content.get(8..).unwrap_or(&[])).u64();
                    if members != Some(self.member) {
                        let found = members.map_or("none".to_owned(), |members| format!("{members} members"));
                        return Err(self.damage(
                            "the footer",
                            offset,
                            format!("{} members", self.member),
                            found,
                        ));
                    }
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
    /// Reading starts anew after it.
    pub fn entries(&mut self) -> (Vec<Entry>, Option<Error>) {
        let index = match self.header {
            Some(FileHeader { form: FileForm::Pack, .. }) => self.index().ok(),
            _ => None,
        };
        let entries = index.map_or_else(|| self.walk(), |entries| (entries, None));
        self.go_to(FILE_HEADER as u64, 0, 0);
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

    /// What a pack's index says. Reading has to be placed anew after it.
    ///
    /// # Errors
    /// The file system's, and damage: a pack that was cut short has no index.
    pub fn index(&mut self) -> Result<Vec<Entry>, Error> {
        let place = self.bytes.saturating_sub(FOOTER).max(FILE_HEADER as u64);
        let found = self.footer_at(place);
        let (index, members, frame) = match found {
            Ok(found) => found,
            Err(Error::Damage(damage)) => {
                let found = format!("{} (the pack was cut short or its end is damaged)", damage.found);
                return Err(Error::Damage(Box::new(Damage { part: "the footer", found, ..*damage })));
            }
            Err(error) => return Err(error),
        };
        self.go_to(index, frame, members);
        let header = self.frame_header()?;
        if header.kind != Kind::INDEX {
            let found = format!("a frame of kind {}", header.kind.0);
            return Err(self.damage("the index", index, "the index", found));
        }
        let content = self.content(header, index, self.bytes, "the index")?;
        let mut cursor = Cursor::new(&content);
        let count = cursor.u64().unwrap_or(0);
        let mut entries = Vec::new();
        while cursor.left() > 0 {
            let entry = Entry::take(&mut cursor).filter(|entry| entry.offset < index);
            let Some(entry) = entry else {
                let found = format!("none after {}", entries.len());
                return Err(self.damage("the index", index, "an entry", found));
            };
            entries.push(entry);
        }
        if entries.len() as u64 != count || count != members {
            let found = format!("{} entries", entries.len());
            return Err(self.damage("the index", index, format!("{members} entries"), found));
        }
        Ok(entries)
    }

    /// Goes to a member of which the index told: what is decoded next is this one.
    ///
    /// # Errors
    /// The file system's, damage, and an index that does not fit the member.
    pub fn seek(&mut self, entry: &Entry) -> Result<Head, Error> {
        self.go_to(entry.offset, entry.frame, entry.head.number);
        let head = self.next()?;
        match head {
            Some(head) if head == entry.head => Ok(head),
            _ => Err(self.damage(
                "the index",
                entry.offset,
                "the member that it tells of",
                "another".to_owned(),
            )),
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
            self.input.seek(SeekFrom::Start(window_start)).map_err(Error::Io)?;
            let mut got = 0;
            while got < window.len() {
                match self.input.read(&mut window[got..]) {
                    Ok(0) => break,
                    Ok(more) => got += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Error::Io(error)),
                }
            }
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
pub(super) type Standing = (u64, u64, u64);

impl<R: Read + Seek> Reader<R> {
    pub(super) fn place(&self) -> Standing {
        (self.at, self.frame, self.member)
    }

    pub(super) fn go_back(&mut self, (at, frame, member): Standing) {
        self.go_to(at, frame, member);
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
            Ok(header) if header.kind == Kind::HEAD => self.head(header, offset).ok().map(|head| head.number),
            // Both say how many members there are: the index first, the footer after the index's offset.
            Ok(header) => self.content(header, offset, self.bytes, "a frame").ok().and_then(|content| {
                let skipped = if header.kind == Kind::FOOTER { 8 } else { 0 };
                Cursor::new(content.get(skipped..)?).u64()
            }),
            Err(_) => None,
        };
        match sound {
            Some(member) => self.go_to(offset, frame.number, member),
            None => self.id = id,
        }
        sound.is_some()
    }

    /// The footer at a place: the index's offset, the number of members, the number of the index's frame.
    fn footer_at(&mut self, offset: u64) -> Result<(u64, u64, u64), Error> {
        self.at = offset;
        let frame = self.any_frame_header()?;
        if frame.kind != Kind::FOOTER {
            return Err(self.damage("the footer", offset, "the footer", "another frame".to_owned()));
        }
        let content = self.content(frame, offset, FOOTER, "the footer")?;
        let mut cursor = Cursor::new(&content);
        let (Some(index), Some(members)) = (cursor.u64(), cursor.u64()) else {
            return Err(self.damage("the footer", offset, "16 bytes", format!("{} bytes", content.len())));
        };
        Ok((index, members, frame.number.wrapping_sub(1)))
    }

    fn walk(&mut self) -> (Vec<Entry>, Option<Error>) {
        self.go_to(FILE_HEADER as u64, 0, 0);
        let mut entries = Vec::new();
        loop {
            let frame = self.frame;
            let head = match self.next() {
                Ok(Some(head)) => head,
                Ok(None) => return (entries, None),
                Err(error) => return (entries, Some(error)),
            };
            let offset = self.member_offset;
            match self.skip(&head) {
                Ok(Summary { stored, end }) => entries.push(Entry { offset, frame, stored, head, end }),
                Err(error) => return (entries, Some(error)),
            }
        }
    }

    fn go_to(&mut self, at: u64, frame: u64, member: u64) {
        (self.at, self.frame, self.member, self.ended) = (at, frame, member, false);
    }

    fn expect_end(&mut self) -> Result<(), Error> {
        if self.at < self.bytes {
            let found = format!("{} bytes", self.bytes - self.at);
            return Err(self.damage("the file's end", self.at, "nothing more", found));
        }
        self.ended = true;
        Ok(())
    }

    /// The header of the next frame, which must be the next of this file.
    fn frame_header(&mut self) -> Result<FrameHeader, Error> {
        let offset = self.at;
        let frame = self.any_frame_header()?;
        if frame.number != self.frame {
            let (expected, found) = (format!("frame {}", self.frame), format!("frame {}", frame.number));
            return Err(self.damage("a frame's header", offset, expected, found));
        }
        self.frame = self.frame.saturating_add(1);
        Ok(frame)
    }

    fn any_frame_header(&mut self) -> Result<FrameHeader, Error> {
        const PART: &str = "a frame's header";
        let offset = self.at;
        let left = self.bytes.saturating_sub(offset);
        if left < FRAME_HEADER as u64 {
            let found = if left == 0 { "the end of the file".to_owned() } else { format!("{left} bytes") };
            return Err(self.damage(PART, offset, "40 bytes", found));
        }
        let mut bytes = [0; FRAME_HEADER];
        self.input.seek(SeekFrom::Start(offset)).map_err(Error::Io)?;
        self.input.read_exact(&mut bytes).map_err(Error::Io)?;
        let frame = FrameHeader::parse(&bytes)
            .map_err(|(expected, found)| self.damage(PART, offset, expected, found))?;
        if let Some(id) = self.id.filter(|id| *id != frame.id) {
            let (expected, found) = (format!("file {id:016X}"), format!("file {:016X}", frame.id));
            return Err(self.damage(PART, offset, expected, found));
        }
        self.at += FRAME_HEADER as u64;
        let left = self.bytes - self.at;
        if frame.bytes > left {
            let expected = format!("{} bytes after it", frame.bytes);
            return Err(self.damage(PART, offset, expected, format!("{left} bytes")));
        }
        Ok(frame)
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

    fn head(&mut self, frame: FrameHeader, offset: u64) -> Result<Head, Error> {
        let content = self.content(frame, offset, MAX_HEAD, "a member's head")?;
        Head::parse(&content)
            .map_err(|(expected, found)| self.damage("a member's head", offset, expected, found))
    }

    /// The rest of a member; without `out`, nothing is decoded.
    fn pieces(&mut self, head: &Head, mut out: Option<&mut dyn Write>) -> Result<Summary, Error> {
        let start = self.member_offset;
        let most = match head.form {
            Form::Bytes => MAX_PIECE,
            Form::Records => self.limits.segment_bytes,
        };
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
                    self.piece(head, frame, offset, most, &mut |original| {
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
        Ok(Summary { stored: self.at - start, end })
    }

    fn piece(
        &mut self,
        head: &Head,
        frame: FrameHeader,
        offset: u64,
        most: u64,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut content = self.content(frame, offset, self.bytes, "a piece")?;
        let Some(original) = Cursor::new(&content).u64() else {
            return Err(self.damage(
                "a piece",
                offset,
                "8 bytes or more",
                format!("{} bytes", content.len()),
            ));
        };
        if original > most {
            return Err(Error::Limit("bytes of a piece's original", most, original));
        }
        if head.place.is_some_and(|place| place.size.bytes() != original) {
            return Err(self.damage("a piece", offset, "a whole segment", format!("{original} bytes")));
        }
        content.drain(..8);
        let encoded = Encoded { form: head.form, restart: head.keyframe, content };
        let decoded = self.decoder.decode(&encoded, original as usize, out);
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
        End::parse(&content).ok_or_else(|| self.damage("a member's end", offset, "40 bytes or more", found))
    }

    fn damage(&self, part: &'static str, offset: u64, expected: impl Into<String>, found: String) -> Error {
        Error::Damage(Box::new(Damage { member: None, part, offset, expected: expected.into(), found }))
    }
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

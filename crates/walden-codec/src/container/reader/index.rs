//! Index and footer of a pack.

use std::io::{self, Read, Seek};
use std::sync::Arc;

use walden_format::reader::Reader as Cursor;

use super::super::file_form::FileForm;
use super::super::layout::{
    End, Entry, FILE_HEADER, FOOTER_FRAME, FileHeader, FrameHeader, Hash, Head, Kind, hex,
};
use super::super::{Damage, Error};
use super::{LastHead, Reader, Summary, name_of};

impl<R: Read + Seek> Reader<R> {
    /// Reads the index of a pack and verifies it against the footer. Members read afterwards are compared
    /// with it. Call
    /// [`Reader::seek`] before reading on.
    ///
    /// The index must be no longer than the preceding part of the file, because an entry is smaller than its
    /// member's frames.
    ///
    /// # Errors
    /// Returns errors of the file system, and damage: a truncated pack has no index.
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
        if offset >= place {
            let found = format!("one at offset {offset}");
            return Err(self.damage("the footer", place, "an index before it", found));
        }
        self.at = offset;
        let frame = self.any_frame_header()?;
        if frame.kind != Kind::INDEX {
            let found = format!("a frame of kind {}", frame.kind.0);
            return Err(self.damage(PART, offset, "the index's frame", found));
        }
        let content = self.content(frame, offset, offset, PART)?;
        let hash = *blake3::hash(&content).as_bytes();
        if hash != footer.index_hash {
            let expected = format!("BLAKE3 {}", hex(&footer.index_hash));
            return Err(self.damage(PART, offset, expected, hex(&hash)));
        }
        let mut cursor = Cursor::new(&content);
        let count = cursor.u64().unwrap_or(0);
        let mut entries: Vec<Entry> = Vec::new();
        let mut free = FILE_HEADER as u64;
        while cursor.left() > 0 {
            let number = entries.len() as u64;
            let entry = Entry::take(&mut cursor).filter(|entry| entry.head.number == number);
            let end = entry.as_ref().and_then(|entry| entry.offset.checked_add(entry.stored));
            let (Some(entry), Some(end)) = (entry, end) else {
                let expected = format!("an entry of member {}", number + 1);
                return Err(self.damage(PART, offset, expected, "none".to_owned()));
            };
            if entry.offset < free || end > offset {
                let expected = format!("member {} between offsets {free} and {offset}", number + 1);
                return Err(self.damage(PART, offset, expected, format!("{} to {end}", entry.offset)));
            }
            free = end;
            entries.push(entry);
        }
        if entries.len() as u64 != count || count != footer.members {
            let expected = format!("{} entries", footer.members);
            return Err(self.damage(PART, offset, expected, format!("{} entries", entries.len())));
        }
        if self.last_binding(&entries, offset)?.is_some_and(|last| last != footer.binding) {
            let found = hex(&footer.binding);
            return Err(self.damage("the footer", place, "the last member's binding", found));
        }
        self.index = Some(Arc::new(entries.clone()));
        Ok(entries)
    }

    /// Returns the last member's binding, if known. Verifies that each member is bound to the previous one,
    /// and the first to the file header.
    fn last_binding(&self, entries: &[Entry], offset: u64) -> Result<Option<Hash>, Error> {
        let mut before = self.header_binding;
        for entry in entries {
            let End { bytes, hash, binding } = entry.end;
            let expected = before.map(|before| End::bound(bytes, hash, &before, &entry.head_bytes).binding);
            if expected.is_some_and(|expected| expected != binding) {
                let expected = format!("a binding of {} to the member before", name_of(&entry.head));
                return Err(self.damage("the index", offset, expected, "another".to_owned()));
            }
            before = Some(binding);
        }
        Ok(before)
    }

    /// Returns the contents of the frames of a kind, 128 or above, between a pack's last member and its
    /// index. `index` is the result of [`Reader::index`]. Call [`Reader::seek`] before reading on.
    ///
    /// # Errors
    /// Returns errors of the file system, and damage.
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

    /// Moves to a member of the index and returns its head, so that the member can be decoded next.
    ///
    /// # Errors
    /// Returns errors of the file system, damage, and an entry that does not match the member.
    pub fn seek(&mut self, entry: &Entry) -> Result<Head, Error> {
        self.go_to(entry.offset, entry.frame, entry.head.number);
        self.binding = self.binding_before(entry.head.number);
        (self.walked, self.index_passed) = (None, None);
        let head = self.next()?;
        match head {
            Some(head) if self.last.bytes == entry.head_bytes => Ok(head),
            _ => {
                let expected = format!("{}, as the index has it", name_of(&entry.head));
                Err(self.damage("a member's head", entry.offset, expected, "another member".to_owned()))
            }
        }
    }

    /// Moves to a member of `entries` as [`Reader::seek`] does, and first decodes the members that the wanted
    /// member needs: all members from its keyframe on, or none if the previous member was just decoded.
    /// `entries` is the result of [`Reader::index`] or [`Reader::entries`].
    ///
    /// # Errors
    /// The errors of [`Reader::seek`] and [`Reader::decode`].
    pub fn seek_decodable(&mut self, entries: &[Entry], entry: &Entry) -> Result<Head, Error> {
        let number = entry.head.number;
        // Without an index, only decoding the members since the keyframe verifies the binding of this member.
        let may_continue = self.index.is_some();
        let start = entries.iter().rev().find(|other| {
            let is_start = other.head.keyframe || may_continue && self.can_decode(&other.head);
            other.head.number <= number && is_start
        });
        let mut head = self.seek(start.unwrap_or(entry))?;
        while head.number < number {
            self.decode(&head, &mut io::sink())?;
            let offset = self.at;
            head = self.next()?.ok_or_else(|| {
                self.damage("a member's head", offset, name_of(&entry.head), "the file's end".to_owned())
            })?;
        }
        Ok(head)
    }

    /// Finds a member by its name, moves to it and returns its head, so that the member can be decoded next.
    /// Decodes the members that it depends on first. Returns `None` if the file has no member of this name.
    ///
    /// # Errors
    /// The errors of [`Reader::seek_decodable`], and damage before which no member has the name.
    pub fn member(&mut self, name: &[u8]) -> Result<Option<Head>, Error> {
        let (entries, fault) = match &self.index {
            Some(index) => (Arc::clone(index), None),
            None => {
                let (entries, fault) = self.entries();
                (Arc::new(entries), fault)
            }
        };
        match entries.iter().find(|entry| entry.head.meta.name == name) {
            Some(entry) => self.seek_decodable(&entries, entry).map(Some),
            None => fault.map_or(Ok(None), Err),
        }
    }

    /// Returns the binding that precedes a member, according to the index.
    pub(super) fn binding_before(&self, number: u64) -> Option<Hash> {
        match number.checked_sub(1) {
            None => self.header_binding,
            Some(before) => {
                let index = self.index.as_ref()?;
                Some(index.get(usize::try_from(before).ok()?)?.end.binding)
            }
        }
    }

    /// Returns all members of the file, from its index or by walking the frames, and the first error found.
    /// Reading continues at the first member.
    pub fn entries(&mut self) -> (Vec<Entry>, Option<Error>) {
        let index = match self.header {
            Some(FileHeader { form: FileForm::Pack, .. }) => self.index().ok(),
            _ => None,
        };
        let entries = index.map_or_else(|| self.walk(), |entries| (entries, None));
        self.go_to_start();
        entries
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

    /// Reads the index after the last member. The index must list exactly the members read so far.
    pub(super) fn pass_index(&mut self, frame: FrameHeader, offset: u64) -> Result<(), Error> {
        const PART: &str = "the index";
        let content = self.content(frame, offset, offset, PART)?;
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

    /// Reads the footer, which must match the index and the members read so far.
    pub(super) fn check_footer(&mut self, frame: FrameHeader, offset: u64) -> Result<(), Error> {
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
}

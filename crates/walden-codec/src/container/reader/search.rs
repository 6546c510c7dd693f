//! Searches for the next member after damage.

use std::io::{Read, Seek};

use walden_format::reader::Reader as Cursor;

use super::super::Error;
use super::super::layout::{FRAME_HEADER, FRAME_MAGIC, FrameHeader, Hash, Kind};
use super::Reader;

/// Position of a reader, to return to it later.
pub(in crate::container) struct SavedPosition {
    /// Offset in the file.
    offset: u64,
    /// Number of the next frame.
    frame: u64,
    /// Number of the next member.
    member: u64,
    /// Binding of the previous member, if known.
    binding: Option<Hash>,
}

impl<R: Read + Seek> Reader<R> {
    /// Searches from offset `from` for the next member, index or footer, and moves there. Returns its offset,
    /// or `None` at the end of the file.
    ///
    /// # Errors
    /// Returns errors of the file system.
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

    /// Returns whether reading can resume at a frame that was found, and moves there if so.
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
            // Both store the number of members: the index at offset 0, the footer after the offset of the
            // index.
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
                if frame.kind == Kind::HEAD {
                    // A member after an index is out of place, but it may be the only remaining copy.
                    self.index_passed = None;
                }
            }
            None => self.id = id,
        }
        sound.is_some()
    }

    pub(in crate::container) fn save_position(&self) -> SavedPosition {
        SavedPosition { offset: self.at, frame: self.frame, member: self.member, binding: self.binding }
    }

    pub(in crate::container) fn restore_position(&mut self, saved: SavedPosition) {
        self.go_to(saved.offset, saved.frame, saved.member);
        self.binding = saved.binding;
    }

    /// Allows members to be decoded at any position, and limits the total bytes read: see
    /// [`Reader::content`].
    pub(in crate::container) fn start_salvage(&mut self) {
        self.is_salvaging = true;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor as File;

    use walden_format::crc::crc32c_append;

    use super::super::super::ReadLimits;
    use super::*;

    /// Nested frames: the content of each is the remaining file.
    #[test]
    fn salvage_reads_frames_within_each_other_a_few_times_at_most() {
        let mut file = Vec::new();
        for number in (0..2000_u64).rev() {
            let bytes = file.len() as u64;
            let header =
                FrameHeader { kind: Kind::INDEX, id: 7, number, bytes, checksum: crc32c_append(0, &file) };
            file.splice(..0, header.to_bytes());
        }
        let mut reader = Reader::open_damaged(File::new(&file), ReadLimits::default()).expect("memory");
        reader.start_salvage();
        let mut from = 0;
        while reader.find_next(from).expect("memory").is_some() {
            from = reader.position() + 1;
            assert!(reader.next().is_err());
        }
        let times = reader.content_bytes / file.len() as u64;
        assert!((15..=16).contains(&times), "{times} times");
    }
}

//! Reads frames: headers, and contents with their checksums.

use std::io::{self, Read, Seek, SeekFrom};

use walden_format::crc::crc32c_append;

use super::super::layout::{End, FOOTER, FRAME_HEADER, Footer, FrameHeader, Head, Kind, MAX_HEAD};
use super::super::{Damage, Error};
use super::Reader;

/// Maximum number of bytes allocated before the first byte is read.
const MAX_AT_ONCE: u64 = 16 << 20;

/// Maximum number of times that the bytes of a damaged file are read. After damage, frames are searched for
/// inside apparent frames, and in a hostile file every header may claim the remaining file as its content.
const MAX_TIMES_SALVAGED: u64 = 16;

impl<R: Read + Seek> Reader<R> {
    /// Reads the header of the next frame and checks its number.
    pub(super) fn frame_header(&mut self) -> Result<FrameHeader, Error> {
        self.frame_header_or_end()?.ok_or_else(|| self.cut_frame_header(0))
    }

    /// As [`Reader::frame_header`], but returns `None` at the end of the file.
    pub(super) fn frame_header_or_end(&mut self) -> Result<Option<FrameHeader>, Error> {
        let offset = self.at;
        let Some(frame) = self.any_frame_header_or_end()? else { return Ok(None) };
        if frame.number != self.frame {
            let (expected, found) = (format!("frame {}", self.frame), format!("frame {}", frame.number));
            return Err(self.damage("a frame's header", offset, expected, found));
        }
        self.frame = self.frame.saturating_add(1);
        Ok(Some(frame))
    }

    pub(super) fn any_frame_header(&mut self) -> Result<FrameHeader, Error> {
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

    /// Creates the error for a frame header cut off after `got` bytes.
    pub(super) fn cut_frame_header(&self, got: usize) -> Error {
        let found = if got == 0 { "the end of the file".to_owned() } else { format!("{got} bytes") };
        self.damage("a frame's header", self.at, format!("{FRAME_HEADER} bytes"), found)
    }

    /// Reads the content of the frame whose header was read last, of at most `most` bytes.
    pub(super) fn content(
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
        let content_bytes = self.content_bytes.saturating_add(frame.bytes);
        if self.is_salvaging && content_bytes / MAX_TIMES_SALVAGED > self.bytes {
            let found = format!("{content_bytes} bytes in a file of {}", self.bytes);
            return Err(self.damage(part, offset, "frames that do not overlap", found));
        }
        self.content_bytes = content_bytes;
        // The allocation is bounded because a sparse file can state any size.
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

    /// Reads from the current position until the buffer is full or the file ends. Returns the number of bytes
    /// read.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
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

    /// Verifies the checksums of all frames without decoding any, including frames that readers skip. Moves
    /// to the first member.
    ///
    /// # Errors
    /// Returns errors of the file system, and damage.
    pub fn check_frames(&mut self) -> Result<(), Error> {
        self.go_to_start();
        loop {
            let offset = self.at;
            let Some(frame) = self.frame_header_or_end()? else { break };
            self.content(frame, offset, self.bytes, "a frame")?;
        }
        self.go_to_start();
        Ok(())
    }

    /// Skips the content of a frame.
    pub(super) fn pass(&mut self, frame: FrameHeader) {
        // The header was checked: this is not beyond the end of the file.
        self.at = self.at.saturating_add(frame.bytes);
    }

    pub(super) fn head(&mut self, frame: FrameHeader, offset: u64) -> Result<(Head, Vec<u8>), Error> {
        let content = self.content(frame, offset, MAX_HEAD, "a member's head")?;
        match Head::parse(&content) {
            Ok(head) => Ok((head, content)),
            Err((expected, found)) => Err(self.damage("a member's head", offset, expected, found)),
        }
    }

    pub(super) fn end(&mut self, frame: FrameHeader, offset: u64) -> Result<End, Error> {
        let content = self.content(frame, offset, MAX_HEAD, "a member's end")?;
        let found = format!("{} bytes", content.len());
        End::parse(&content).ok_or_else(|| self.damage("a member's end", offset, "72 bytes or more", found))
    }

    pub(super) fn footer(&mut self, frame: FrameHeader, offset: u64) -> Result<Footer, Error> {
        const PART: &str = "the footer";
        if frame.kind != Kind::FOOTER {
            return Err(self.damage(PART, offset, "the footer", format!("a frame of kind {}", frame.kind.0)));
        }
        let content = self.content(frame, offset, FOOTER as u64, PART)?;
        let found = format!("{} bytes", content.len());
        Footer::parse(&content).ok_or_else(|| self.damage(PART, offset, format!("{FOOTER} bytes"), found))
    }

    pub(super) fn expect_end(&mut self) -> Result<(), Error> {
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

    pub(super) fn damage(
        &self,
        part: &'static str,
        offset: u64,
        expected: impl Into<String>,
        found: String,
    ) -> Error {
        let expected = expected.into();
        Error::Damage(Box::new(Damage { member: None, part, offset, expected, found, source: None }))
    }
}

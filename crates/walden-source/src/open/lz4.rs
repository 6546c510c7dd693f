//! LZ4 frames, one after another, as `lz4`, WAL-G, pgBackRest and pg_receivewal write them.
//!
//! Only the block format comes from the `lz4_flex` crate, because its frame reader treats a file that was cut
//! between two blocks as complete. The layout, from `lz4_Frame_format.md` of the LZ4 project:
//!
//! ```text
//! width
//!     4  0x184D2204
//!     1  FLG: version (bits 6-7), blocks independent (5), block checksums (4), content size (3),
//!        content checksum (2), dictionary (0)
//!     1  BD: largest block (bits 4-6): 4 is 64 kB, each step four times as much
//!   0/8  content size
//!   0/4  dictionary
//!     1  header checksum
//! blocks: length (4, highest bit: stored as it is), bytes, checksum (0/4); the last has the length 0
//!   0/4  content checksum
//! ```

use std::hash::Hasher;
use std::io::{self, BufRead, Read};

use lz4_flex::block::{decompress_into, decompress_into_with_dict};
use twox_hash::XxHash32;

/// First bytes of a frame.
pub(super) const MAGIC: u32 = 0x184D_2204;
/// First bytes of a frame of the legacy format, which consists of blocks only.
pub(super) const LEGACY_MAGIC: u32 = 0x184C_2102;
/// First bytes of a frame to skip; its lowest 4 bits are arbitrary.
pub(super) const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;

/// Most bytes before a block to which it may refer.
const HISTORY: usize = 64 << 10;
const LEGACY_BLOCK: usize = 8 << 20;
/// Flag in a block's length: its bytes are not compressed.
const STORED: u32 = 1 << 31;

/// Decompresses all frames of a reader. Holds two blocks of the size that the frame demands: at most 16 MB.
pub(super) struct Lz4Reader<R> {
    input: R,
    frame: Option<Frame>,
    /// The first bytes of the next frame, which have ended a frame of the legacy format.
    pending_magic: Option<u32>,
    compressed: Vec<u8>,
    /// [`HISTORY`] bytes to which blocks may refer, then the block.
    plain: Vec<u8>,
    history: usize,
    /// The part of `plain` that has not been read yet.
    unread: std::ops::Range<usize>,
}

struct Frame {
    legacy: bool,
    linked: bool,
    block_checksums: bool,
    largest_block: usize,
    content_size: Option<u64>,
    hasher: Option<XxHash32>,
    done: u64,
}

impl<R: BufRead> Lz4Reader<R> {
    pub(super) fn new(input: R) -> Lz4Reader<R> {
        Lz4Reader {
            input,
            frame: None,
            pending_magic: None,
            compressed: Vec::new(),
            plain: Vec::new(),
            history: 0,
            unread: 0..0,
        }
    }

    /// Reads blocks until one has content. Returns `false` at the proper end of the last frame.
    fn fill(&mut self) -> io::Result<bool> {
        while self.unread.is_empty() {
            if self.frame.is_none() && !self.next_frame()? {
                return Ok(false);
            }
            self.next_block()?;
        }
        Ok(true)
    }

    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            let magic = match self.pending_magic.take() {
                Some(magic) => magic,
                None if self.input.fill_buf()?.is_empty() => return Ok(false),
                None => self.word()?,
            };
            if magic & !0xF == SKIPPABLE_MAGIC {
                let len = u64::from(self.word()?);
                if io::copy(&mut (&mut self.input).take(len), &mut io::sink())? < len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            let frame = match magic {
                MAGIC => self.frame_header()?,
                LEGACY_MAGIC => Frame {
                    legacy: true,
                    linked: false,
                    block_checksums: false,
                    largest_block: LEGACY_BLOCK,
                    content_size: None,
                    hasher: None,
                    done: 0,
                },
                _ => return Err(invalid("bytes after the end that are no LZ4 frame")),
            };
            self.history = 0;
            self.frame = Some(frame);
            return Ok(true);
        }
    }

    fn frame_header(&mut self) -> io::Result<Frame> {
        let mut header = Vec::with_capacity(14);
        (&mut self.input).take(2).read_to_end(&mut header)?;
        let &[flags, block] = header.as_slice() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        if flags >> 6 != 1 || flags & 0x02 != 0 || block & 0x8F != 0 || !(4..=7).contains(&(block >> 4)) {
            return Err(invalid("a frame header of an unknown form"));
        }
        if flags & 0x01 != 0 {
            return Err(invalid("it was compressed with a dictionary, which Walden does not have"));
        }
        let has_size = flags & 0x08 != 0;
        let rest = if has_size { 9 } else { 1 };
        (&mut self.input).take(rest).read_to_end(&mut header)?;
        if header.len() < 2 + rest as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (fields, checksum) = header.split_at(header.len() - 1);
        if (XxHash32::oneshot(0, fields) >> 8) as u8 != checksum[0] {
            return Err(invalid("a frame header with a wrong checksum"));
        }
        let content_size = fields[2..].first_chunk().map(|size| u64::from_le_bytes(*size));
        Ok(Frame {
            legacy: false,
            linked: flags & 0x20 == 0,
            block_checksums: flags & 0x10 != 0,
            largest_block: 1 << (8 + 2 * (block >> 4)),
            content_size,
            hasher: (flags & 0x04 != 0).then(|| XxHash32::with_seed(0)),
            done: 0,
        })
    }

    fn next_block(&mut self) -> io::Result<()> {
        let Some(frame) = &self.frame else { return Ok(()) };
        let (legacy, largest, checksums) = (frame.legacy, frame.largest_block, frame.block_checksums);
        if legacy && self.input.fill_buf()?.is_empty() {
            self.frame = None;
            return Ok(());
        }
        let word = self.word()?;
        if legacy && (word == MAGIC || word == LEGACY_MAGIC || word & !0xF == SKIPPABLE_MAGIC) {
            self.frame = None;
            self.pending_magic = Some(word);
            return Ok(());
        }
        if word == 0 && !legacy {
            return self.end_frame();
        }
        let (stored, len) =
            if legacy { (false, word as usize) } else { (word & STORED != 0, (word & !STORED) as usize) };
        // The legacy format has no uncompressed blocks, so a block may be a little longer than its content.
        if len > if legacy { largest + largest / 255 + 16 } else { largest } {
            return Err(invalid("a block that is longer than the frame allows"));
        }
        self.compressed.clear();
        // Memory grows with the bytes read, not with the claimed length.
        (&mut self.input).take(len as u64).read_to_end(&mut self.compressed)?;
        if self.compressed.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if checksums && self.word()? != XxHash32::oneshot(0, &self.compressed) {
            return Err(invalid("a block with a wrong checksum"));
        }
        self.decompress(stored, largest)
    }

    fn decompress(&mut self, stored: bool, largest: usize) -> io::Result<()> {
        self.plain.resize(HISTORY + largest, 0);
        let (before, block) = self.plain.split_at_mut(HISTORY);
        let history = &before[HISTORY - self.history..];
        let len = if stored {
            block[..self.compressed.len()].copy_from_slice(&self.compressed);
            self.compressed.len()
        } else if history.is_empty() {
            decompress_into(&self.compressed, block).map_err(|e| invalid(&e.to_string()))?
        } else {
            decompress_into_with_dict(&self.compressed, block, history)
                .map_err(|e| invalid(&e.to_string()))?
        };
        self.unread = HISTORY..HISTORY + len;
        let frame = self.frame.as_mut().ok_or_else(|| invalid("a block outside of a frame"))?;
        frame.done += len as u64;
        if frame.content_size.is_some_and(|size| frame.done > size) {
            return Err(invalid("more content than its header says"));
        }
        if let Some(hasher) = &mut frame.hasher {
            hasher.write(&self.plain[self.unread.clone()]);
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let Some(frame) = self.frame.take() else { return Ok(()) };
        if frame.content_size.is_some_and(|size| frame.done != size) {
            return Err(invalid("less content than its header says"));
        }
        match frame.hasher {
            Some(hasher) if self.word()? != hasher.finish() as u32 => {
                Err(invalid("content with a wrong checksum"))
            }
            _ => Ok(()),
        }
    }

    /// Moves the end of the previous block to the start of the buffer, where the next block refers to it.
    fn keep_history(&mut self) {
        if self.frame.as_ref().is_some_and(|frame| frame.linked) {
            let end = self.unread.end;
            let start = end.saturating_sub(HISTORY).max(HISTORY - self.history);
            self.plain.copy_within(start..end, HISTORY - (end - start));
            self.history = end - start;
        }
        self.unread = 0..0;
    }

    fn word(&mut self) -> io::Result<u32> {
        let mut word = [0; 4];
        self.input.read_exact(&mut word)?;
        Ok(u32::from_le_bytes(word))
    }
}

impl<R: BufRead> Read for Lz4Reader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || !self.fill()? {
            return Ok(0);
        }
        let len = buf.len().min(self.unread.len());
        buf[..len].copy_from_slice(&self.plain[self.unread.start..self.unread.start + len]);
        self.unread.start += len;
        if self.unread.is_empty() {
            self.keep_history();
        }
        Ok(len)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

//! Whether a tar file is complete: an empty block follows its last entry, but not if it was cut off there.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use tar::{Entry, EntryType};

/// Bytes of a block of a tar file.
const BLOCK: u64 = 512;

/// Counts the bytes that are read.
pub struct CountedReader<R> {
    content: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> CountedReader<R> {
    /// Returns a reader of the same content, and the number of bytes that were read.
    pub fn new(content: R) -> (CountedReader<R>, Rc<Cell<u64>>) {
        let read = Rc::new(Cell::new(0));
        (CountedReader { content, read: Rc::clone(&read) }, read)
    }
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

/// Returns the offset of the block after an entry.
///
/// # Errors
/// The entry's size is impossible: its end exceeds 2^64 bytes.
pub fn end_of_entry<R: Read>(entry: &Entry<'_, R>) -> io::Result<u64> {
    // A sparse entry has fewer stored bytes than its content has.
    let bytes = match entry.header().entry_type() {
        EntryType::GNUSparse => entry.header().entry_size()?,
        _ => entry.size(),
    };
    let end = entry.raw_file_position().checked_add(bytes);
    end.and_then(|end| end.checked_next_multiple_of(BLOCK)).ok_or_else(|| {
        let text = format!("expected an entry with a possible size, found {bytes} bytes");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Checks that a tar file was read beyond its last entry, which ends at `end`. `read` is the number of bytes
/// that were read when the entries ended.
///
/// # Errors
/// The file ends at the entry.
pub fn expect_end_block(read: u64, end: u64) -> io::Result<()> {
    match read > end {
        true => Ok(()),
        false => Err(cut_off()),
    }
}

/// The error for a tar file that was cut off.
pub fn cut_off() -> io::Error {
    let text = "the tar file ends early: it was cut off; get a complete copy of it";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

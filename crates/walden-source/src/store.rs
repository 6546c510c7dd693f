//! Segments that are not opened by the name of a file: in an archive in an object store, in a tar file, or
//! held open.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Maximum number of bytes that are reserved in advance for a segment, whose size in the file may be wrong.
const MAX_RESERVED: u64 = 64 << 20;

/// Creates a buffer for the content of a segment of this size, which is not trusted. A vector that grows
/// copies its content and uses twice the memory, whose first use took a sixth of the time of decoding.
pub fn segment_buffer(segment_bytes: u64) -> Vec<u8> {
    let bytes = usize::try_from(segment_bytes.min(MAX_RESERVED)).unwrap_or_default();
    let mut buffer = Vec::new();
    // If this much memory is not available, the vector grows as the content arrives.
    let _ = buffer.try_reserve_exact(bytes);
    buffer
}

/// A store that returns complete segments by number.
pub trait SegmentStore: fmt::Debug + Send + Sync {
    /// Returns a reader for one thread, which should read segments in ascending order.
    fn reader(&self) -> Box<dyn SegmentContents>;

    /// Returns a reader of the stored bytes of a segment, if they are in a file. The segment is then read
    /// from there in windows.
    fn stream(&self, _number: u64) -> Option<Box<dyn Read + Send>> {
        None
    }

    /// Returns whether a running server has overwritten the file of a segment with a later segment.
    fn is_recycled(&self, _number: u64) -> bool {
        false
    }
}

/// A range of a file, read from its start. Reading does not move the file's own position.
#[derive(Clone, Debug)]
pub struct FileRange {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl FileRange {
    /// Creates a range of `bytes` bytes from `start` on.
    pub fn new(file: Arc<File>, start: u64, bytes: u64) -> FileRange {
        FileRange { file, at: start, left: bytes }
    }
}

impl Read for FileRange {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let wanted = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.file.read_at(&mut buf[..wanted], self.at)?;
        self.at += got as u64;
        self.left -= got as u64;
        Ok(got)
    }
}

/// Reads segments of a store one after another.
pub trait SegmentContents: Send {
    /// Returns the decoded content of the segment with a number, which is [`SegmentFile::member`].
    ///
    /// # Errors
    /// Errors of the store, with the segment's place in its text.
    ///
    /// [`SegmentFile::member`]: crate::inventory::SegmentFile::member
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>>;
}

/// A store shared by segments. Two are equal if they are the same store.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<dyn SegmentStore>);

impl SharedStore {
    /// Shares a store.
    pub fn new(store: impl SegmentStore + 'static) -> SharedStore {
        SharedStore(Arc::new(store))
    }

    pub(crate) fn reader(&self) -> Box<dyn SegmentContents> {
        self.0.reader()
    }

    pub(crate) fn stream(&self, number: u64) -> Option<Box<dyn Read + Send>> {
        self.0.stream(number)
    }

    pub(crate) fn is_recycled(&self, number: u64) -> bool {
        self.0.is_recycled(number)
    }
}

impl PartialEq for SharedStore {
    fn eq(&self, other: &SharedStore) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedStore {}

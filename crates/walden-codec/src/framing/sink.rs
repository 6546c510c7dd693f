//! Output of a [`PageWriter`](super::PageWriter): decoding passes the bytes on, encoding compares them with
//! the original.

use super::original::Original;

/// A destination of pages.
pub trait PageSink {
    /// Returns the number of bytes so far.
    fn len(&self) -> usize;

    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends bytes of a record. When encoding, they were read from the original. If the page headers around
    /// them match, the bytes do too, so they are not compared.
    fn put_record_bytes(&mut self, bytes: &[u8]);

    /// Appends zeros up to a length.
    fn put_zeros_to(&mut self, len: usize);

    /// When encoding: returns the next bytes of the original.
    fn peek<const N: usize>(&self) -> Option<&[u8; N]>;
}

/// Passes pages to a callback in chunks that fit in a processor's cache.
pub struct StreamingSink<'o> {
    out: &'o mut dyn FnMut(&[u8]),
    flushed: usize,
    buffer: Vec<u8>,
}

/// Approximate number of bytes per callback.
pub const FLUSH_BYTES: usize = 128 << 10;

impl<'o> StreamingSink<'o> {
    /// Creates a sink that calls `out`.
    pub fn new(out: &'o mut dyn FnMut(&[u8])) -> StreamingSink<'o> {
        StreamingSink { out, flushed: 0, buffer: Vec::with_capacity(FLUSH_BYTES) }
    }

    /// Passes buffered bytes on.
    pub fn flush(&mut self) {
        (self.out)(&self.buffer);
        self.flushed += self.buffer.len();
        self.buffer.clear();
    }
}

impl PageSink for StreamingSink<'_> {
    fn len(&self) -> usize {
        self.flushed + self.buffer.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > FLUSH_BYTES {
            self.flush();
        }
        self.buffer.extend_from_slice(bytes);
    }

    #[inline]
    fn put_record_bytes(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    #[inline]
    fn put_zeros_to(&mut self, len: usize) {
        while len - self.flushed > 2 * FLUSH_BYTES {
            self.buffer.resize(self.buffer.len().max(FLUSH_BYTES), 0);
            self.flush();
        }
        self.buffer.resize(len - self.flushed, 0);
    }

    #[inline]
    fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        None
    }
}

/// Compares pages with the pages of the original.
pub struct ComparingSink<'i> {
    pub original: Original<'i>,
    len: usize,
    is_same: bool,
}

impl<'i> ComparingSink<'i> {
    /// Starts at the original's first byte.
    pub fn new(original: Original<'i>) -> ComparingSink<'i> {
        ComparingSink { original, len: 0, is_same: true }
    }

    /// Returns whether all bytes so far were equal.
    pub fn is_same(&self) -> bool {
        self.is_same
    }

    /// Returns to a length up to which all bytes were equal.
    pub fn rewind_to(&mut self, len: usize) {
        (self.len, self.is_same) = (len, true);
    }

    /// Releases the pieces of the original that were compared and end at or before `read`.
    pub fn release_compared(&mut self, read: usize) {
        self.original.release_before(self.len.min(read));
    }
}

impl PageSink for ComparingSink<'_> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.is_same &= self.original.get(self.len..end) == Some(bytes);
        self.len = end;
    }

    #[inline]
    fn put_record_bytes(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.is_same &= self.len <= self.original.bytes();
    }

    #[inline]
    fn put_zeros_to(&mut self, len: usize) {
        if len > self.len {
            let zeros = self.original.get(self.len..len);
            self.is_same &= zeros.is_some_and(|zeros| zeros.iter().all(|&byte| byte == 0));
        }
        self.len = len;
    }

    #[inline]
    fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.original.get(self.len..self.len + N)?.first_chunk()
    }
}

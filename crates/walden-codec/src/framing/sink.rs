//! Where a [`PageWriter`](super::PageWriter) writes: decoding passes the bytes on, encoding compares them with the original.

use super::original::Original;

/// A destination of pages.
pub trait PageSink {
    /// Bytes so far.
    fn len(&self) -> usize;

    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends bytes of a record. When encoding, these were read from the original: if the page headers around them match,
    /// they do too, and are not compared.
    fn put_record_bytes(&mut self, bytes: &[u8]);

    /// Appends zeros up to this length.
    fn put_zeros_to(&mut self, len: usize);

    /// The next bytes of the original, when encoding.
    fn peek<const N: usize>(&self) -> Option<&[u8; N]>;
}

/// Passes pages on to a callback, some at a time, which stay in a processor's cache until then.
pub struct StreamingSink<'o> {
    out: &'o mut dyn FnMut(&[u8]),
    flushed: usize,
    buffer: Vec<u8>,
}

/// Bytes that are passed on at a time, about.
pub const FLUSH_BYTES: usize = 128 << 10;

impl<'o> StreamingSink<'o> {
    /// A sink that calls `out`.
    pub fn new(out: &'o mut dyn FnMut(&[u8])) -> StreamingSink<'o> {
        StreamingSink { out, flushed: 0, buffer: Vec::with_capacity(FLUSH_BYTES) }
    }

    /// Passes on what is buffered.
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

/// Compares pages with those of the original.
pub struct ComparingSink<'i> {
    /// The original.
    pub original: Original<'i>,
    len: usize,
    is_same: bool,
}

impl<'i> ComparingSink<'i> {
    /// Starts at the original's first byte.
    pub fn new(original: Original<'i>) -> ComparingSink<'i> {
        ComparingSink { original, len: 0, is_same: true }
    }

    /// Whether all so far was equal.
    pub fn is_same(&self) -> bool {
        self.is_same
    }

    /// Goes back to a length up to which all was equal.
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

//! Bytes of a column that is to be compressed.

use crate::column_kind::{Class, Form};

/// A column that is being filled.
///
/// The content grows in pieces, so that bytes are not moved and the heap is not fragmented.
#[derive(Debug)]
pub struct Content {
    /// Class in which it is compressed.
    pub class: Class,
    /// Layout of its bytes.
    pub form: Form,
    /// Number of the column, in the order of creation.
    pub number: u32,
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
    bytes: usize,
}

impl Content {
    /// Maximum length of a piece, unless a single value is longer.
    pub const PIECE: usize = 64 << 10;

    /// Creates an empty column.
    pub fn new(class: Class, form: Form, number: usize) -> Content {
        let (full, last, bytes) = (Vec::new(), Vec::new(), 0);
        Content { class, form, number: number as u32, full, last, bytes }
    }

    /// Returns a buffer with capacity for `bytes` more bytes.
    #[inline]
    pub fn space(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.last.len() + bytes > Content::PIECE {
            self.next_piece(bytes);
        }
        &mut self.last
    }

    #[cold]
    fn next_piece(&mut self, bytes: usize) {
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(bytes.max(Content::PIECE)));
        self.bytes += full.len();
        self.full.push(full);
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes + self.last.len()
    }

    /// Returns the bytes in pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.full.iter().chain([&self.last]).map(Vec::as_slice)
    }

    /// Returns all bytes. If the content has several pieces, copies them to `joined`.
    pub fn joined<'a>(&'a self, joined: &'a mut Vec<u8>) -> &'a [u8] {
        if self.full.is_empty() {
            return &self.last;
        }
        joined.clear();
        joined.reserve(self.len());
        self.pieces().for_each(|piece| joined.extend_from_slice(piece));
        joined
    }

    /// Removes all bytes and frees their memory.
    pub fn clear(&mut self) {
        (self.full, self.last, self.bytes) = (Vec::new(), Vec::new(), 0);
    }

    /// Creates a column with these bytes.
    #[cfg(test)]
    pub fn from_bytes(class: Class, form: Form, bytes: &[u8]) -> Content {
        let mut content = Content::new(class, form, 0);
        bytes.chunks(7).for_each(|bytes| content.space(bytes.len()).extend_from_slice(bytes));
        content
    }
}

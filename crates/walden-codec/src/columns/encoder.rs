//! The encoding direction: fills columns, and compresses them into chunks.

use super::{CLASSES, COLUMN_WEIGHT, Class, Coder, Column, Form, Kind, MAX_LEB128_BYTES, put_leb128};
use crate::Corrupt;
use crate::entropy::Packer;

/// A column being filled.
///
/// It grows by pieces, so that bytes are not moved and the heap is not fragmented.
#[derive(Debug)]
pub struct Content {
    /// The class in which it is compressed.
    pub class: Class,
    /// The layout of its bytes.
    pub form: Form,
    /// The column's number, in the order of creation.
    pub number: u32,
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
    bytes: usize,
}

/// Bytes of a piece at most, unless a single value has more.
const PIECE: usize = 64 << 10;

impl Content {
    fn new(class: Class, form: Form, number: usize) -> Content {
        let (full, last, bytes) = (Vec::new(), Vec::new(), 0);
        Content { class, form, number: number as u32, full, last, bytes }
    }

    /// A buffer with capacity for `bytes` more bytes.
    #[inline]
    fn space(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.last.len() + bytes > PIECE {
            self.next_piece(bytes);
        }
        &mut self.last
    }

    #[cold]
    fn next_piece(&mut self, bytes: usize) {
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(bytes.max(PIECE)));
        self.bytes += full.len();
        self.full.push(full);
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes + self.last.len()
    }

    /// Its bytes, one piece after another.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.full.iter().chain([&self.last]).map(Vec::as_slice)
    }

    /// All its bytes; copied to `joined` if they are in several pieces.
    pub fn joined<'a>(&'a self, joined: &'a mut Vec<u8>) -> &'a [u8] {
        if self.full.is_empty() {
            return &self.last;
        }
        joined.clear();
        joined.reserve(self.len());
        self.pieces().for_each(|piece| joined.extend_from_slice(piece));
        joined
    }

    /// Removes its bytes and frees their memory.
    pub fn clear(&mut self) {
        (self.full, self.last, self.bytes) = (Vec::new(), Vec::new(), 0);
    }

    /// A column with these bytes.
    #[cfg(test)]
    pub fn of(class: Class, form: Form, bytes: &[u8]) -> Content {
        let mut content = Content::new(class, form, 0);
        bytes.chunks(7).for_each(|bytes| content.space(bytes.len()).extend_from_slice(bytes));
        content
    }
}

/// Encodes: fills columns.
#[derive(Default)]
pub struct Encoder {
    columns: Vec<Content>,
    announced: usize,
}

impl Coder for Encoder {
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.columns.push(Content::new(kind.class(), kind.form(), self.columns.len()));
        Ok(Column(self.columns.len() as u32 - 1))
    }

    #[inline]
    fn symbol(&mut self, column: Column, value: u64) -> Result<u64, Corrupt> {
        put_leb128(self.columns[column.0 as usize].space(MAX_LEB128_BYTES), value);
        Ok(value)
    }

    #[inline]
    fn symbol_with(&mut self, column: Column, value: impl FnOnce() -> u64) -> Result<u64, Corrupt> {
        self.symbol(column, value())
    }

    #[inline]
    fn bytes(
        &mut self,
        column: Column,
        source: &[u8],
        len: usize,
        target: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        debug_assert_eq!(source.len(), len);
        self.columns[column.0 as usize].space(source.len()).extend_from_slice(source);
        target.extend_from_slice(source);
        Ok(())
    }

    #[inline]
    fn array<const N: usize>(&mut self, column: Column, source: &[u8; N]) -> Result<[u8; N], Corrupt> {
        self.columns[column.0 as usize].space(source.len()).extend_from_slice(source);
        Ok(*source)
    }

    #[inline]
    fn text(&mut self, column: Column, source: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt> {
        let bytes = self.columns[column.0 as usize].space(source.len() + 1);
        bytes.extend_from_slice(source);
        bytes.push(0);
        target.extend_from_slice(source);
        Ok(())
    }

    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt> {
        let column = self.columns[column.0 as usize].space(times);
        column.resize(column.len() + times, value);
        Ok(())
    }

    #[inline]
    fn in_place(
        &mut self,
        column: Column,
        places: impl Iterator<Item = (usize, usize)>,
        target: &mut [u8],
    ) -> Result<(), Corrupt> {
        let column = self.columns[column.0 as usize].space(target.len());
        places.for_each(|(at, len)| column.extend_from_slice(&target[at..at + len]));
        Ok(())
    }

    fn remaining(&self, _: Column) -> &[u8] {
        &[]
    }
}

impl Encoder {
    /// Bytes in all columns together.
    pub fn bytes_held(&self) -> usize {
        self.columns.iter().map(Content::len).sum()
    }

    /// The columns' weight for [`crate::coder::Limits::columns`].
    pub fn weight(&self) -> usize {
        self.bytes_held() + self.columns.len() * COLUMN_WEIGHT
    }

    /// Compresses all columns into a chunk, and clears them.
    ///
    /// ```text
    /// directory: number of new columns; per new column: class, form; per column: bytes
    /// per class with bytes: its part
    /// ```
    pub fn chunk(&mut self, packer: &mut Packer) -> Vec<u8> {
        let mut directory = Vec::new();
        put_leb128(&mut directory, (self.columns.len() - self.announced) as u64);
        for column in &self.columns[self.announced..] {
            put_leb128(&mut directory, column.class as u64);
            put_leb128(&mut directory, column.form.code());
        }
        self.announced = self.columns.len();
        for column in &self.columns {
            put_leb128(&mut directory, column.len() as u64);
        }
        let mut out = Vec::new();
        packer.directory(&directory, &mut out);
        for class in CLASSES {
            let is_used = |column: &&mut Content| column.class == class && column.len() > 0;
            let mut columns: Vec<&mut Content> = self.columns.iter_mut().filter(is_used).collect();
            if !columns.is_empty() {
                packer.class(class, &mut columns, &mut out);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_holds_what_was_written_in_pieces_of_bounded_size() {
        let mut coder = Encoder::default();
        let column = coder.column(Kind::Bytes(Class::Text)).unwrap();
        let (mut expected, mut joined) = (Vec::new(), Vec::new());
        for (round, len) in [7, PIECE - 8, 2, PIECE, 3 * PIECE + 1, 0, 9].into_iter().enumerate() {
            let value = vec![round as u8; len];
            coder.bytes(column, &value, len, &mut expected).unwrap();
            coder.symbol(column, 300 + len as u64).unwrap();
            put_leb128(&mut expected, 300 + len as u64);
            coder.text(column, b"text", &mut expected).unwrap();
            expected.push(0);
            assert_eq!(coder.bytes_held(), expected.len());
        }
        let content = &coder.columns[0];
        assert!(content.pieces().count() > 4);
        let most = content.pieces().map(<[u8]>::len).filter(|&len| len > PIECE).collect::<Vec<_>>();
        assert_eq!(most, [3 * PIECE + 1], "one value");
        assert!(content.pieces().collect::<Vec<_>>().concat() == expected);
        assert!(content.joined(&mut joined) == expected);
        coder.columns[0].clear();
        assert_eq!((coder.bytes_held(), coder.columns[0].joined(&mut joined)), (0, &[][..]));
    }
}

//! Fills columns and compresses them into chunks.

use super::{COLUMN_WEIGHT, Coder, Column};
use crate::Corrupt;
use crate::column_kind::{CLASSES, Kind};
use crate::entropy::{Content, Packer};
use crate::leb128::{MAX_LEB128_BYTES, put_leb128};

/// Encodes values to columns.
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
    /// Returns the number of bytes in all columns.
    pub fn bytes_held(&self) -> usize {
        self.columns.iter().map(Content::len).sum()
    }

    /// Returns the columns' weight for [`crate::limits::Limits::columns`].
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
    use crate::column_kind::Class;

    const PIECE: usize = Content::PIECE;

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

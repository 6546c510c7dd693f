//! Reading C structures field by field.

use std::fmt;
use std::marker::PhantomData;

use super::{PayloadError, PayloadFault};
use crate::lsn::Lsn;
use crate::reader::Reader;
use crate::record::{BlockRef, Record, RecordHeader, RelFileLocator};
use crate::rmgr::Kind;
use crate::version::Major;

/// A cursor over the data of a record that is laid out as C structures.
///
/// A number is stored at a multiple of its own width from the start of its structure; the compiler's padding
/// before it is skipped. Where PostgreSQL writes structures one after the other without regard to alignment,
/// [`Fields::new_structure`] starts the next one.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    reader: Reader<'a>,
    /// Remaining bytes at the start of the current structure.
    structure_left: usize,
    /// Whether the record is longer than the part that is held.
    cut: bool,
    pub kind: Kind,
    pub version: Major,
}

impl<'a> Fields<'a> {
    pub fn from_main_data(record: &Record<'a>, kind: Kind) -> Fields<'a> {
        let data = record.main_data();
        let cut = (data.len() as u64) < u64::from(record.main_len);
        let reader = Reader::new(data);
        Fields { reader, structure_left: data.len(), cut, kind, version: record.version }
    }

    /// Returns the data of a block; `None` if it has none, for example because an image replaces it.
    pub fn for_block(&self, record: &Record<'a>, block: &BlockRef) -> Option<Fields<'a>> {
        if block.data_len == 0 {
            return None;
        }
        let data = record.block_data(block);
        let cut = data.len() < usize::from(block.data_len);
        Some(Fields { reader: Reader::new(data), structure_left: data.len(), cut, ..*self })
    }

    pub fn since(&self, version: Major) -> bool {
        self.version >= version
    }

    pub fn left(&self) -> usize {
        self.reader.left()
    }

    /// Starts a structure: alignment counts from the current position.
    pub fn new_structure(&mut self) {
        self.structure_left = self.reader.left();
    }

    /// Skips to a multiple of `width` bytes from the structure's start.
    pub fn align(&mut self, width: usize) -> Option<()> {
        let offset = self.structure_left.wrapping_sub(self.reader.left());
        let padding = offset.wrapping_neg() & (width - 1);
        self.reader.take(padding).map(|_| ())
    }

    /// Skips the padding at the end of a structure that is written whole (`sizeof`).
    pub fn padded_to(&mut self, width: usize, structure: &'static str) -> Result<(), PayloadError> {
        let left = self.left();
        self.align(width).ok_or_else(|| self.short(structure, width as u64, left as u64))
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, PayloadError> {
        self.read(field, 1, Reader::u8)
    }

    pub fn bool(&mut self, field: &'static str) -> Result<bool, PayloadError> {
        self.u8(field).map(|value| value != 0)
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, PayloadError> {
        self.read(field, 2, Reader::u16)
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, PayloadError> {
        self.read(field, 4, Reader::u32)
    }

    pub fn i32(&mut self, field: &'static str) -> Result<i32, PayloadError> {
        self.u32(field).map(u32::cast_signed)
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, PayloadError> {
        self.read(field, 8, Reader::u64)
    }

    pub fn i64(&mut self, field: &'static str) -> Result<i64, PayloadError> {
        self.read(field, 8, Reader::i64)
    }

    pub fn lsn(&mut self, field: &'static str) -> Result<Lsn, PayloadError> {
        self.u64(field).map(Lsn)
    }

    pub fn timestamp(&mut self, field: &'static str) -> Result<super::Timestamp, PayloadError> {
        self.i64(field).map(super::Timestamp)
    }

    pub fn relation(&mut self, field: &'static str) -> Result<RelFileLocator, PayloadError> {
        Ok(RelFileLocator {
            tablespace: self.u32(field)?,
            database: self.u32(field)?,
            relation: self.u32(field)?,
        })
    }

    /// Reads a structure of fixed layout.
    pub fn structure<T: super::layout::Structure>(&mut self, name: &'static str) -> Result<T, PayloadError> {
        let bytes = self.bytes(name, T::WIDTH as u64)?;
        T::read_whole(bytes).ok_or_else(|| self.short(name, T::WIDTH as u64, bytes.len() as u64))
    }

    /// Reads a count, an `int` in PostgreSQL: rejects negative values.
    pub fn count(&mut self, field: &'static str) -> Result<u32, PayloadError> {
        let count = self.u32(field)?;
        if count > i32::MAX as u32 { Err(self.value(field, count.into())) } else { Ok(count) }
    }

    /// Reads `count` consecutive items.
    pub fn items<T: Item>(
        &mut self,
        field: &'static str,
        count: impl Into<u64>,
    ) -> Result<Items<'a, T>, PayloadError> {
        let width = T::width(self.version);
        // A size that overflows exceeds the data in any case.
        let bytes = count.into().saturating_mul(width as u64);
        Ok(Items { bytes: self.bytes(field, bytes)?, width, item: PhantomData })
    }

    /// Reads all remaining data as items.
    pub fn rest_as_items<T: Item>(&mut self, field: &'static str) -> Result<Items<'a, T>, PayloadError> {
        let width = T::width(self.version);
        let count = self.left() / width;
        let items = self.items(field, count as u64)?;
        self.end(field)?;
        Ok(items)
    }

    pub fn bytes(&mut self, field: &'static str, length: impl Into<u64>) -> Result<&'a [u8], PayloadError> {
        let length = length.into();
        let left = self.left() as u64;
        if length > left {
            return Err(self.short(field, length, left));
        }
        self.reader.take(length as usize).ok_or_else(|| self.short(field, length, left))
    }

    pub fn rest(&mut self) -> &'a [u8] {
        self.reader.take(self.reader.left()).unwrap_or(&[])
    }

    /// Reads a string and its terminating zero.
    pub fn c_string(&mut self, field: &'static str) -> Result<Text<'a>, PayloadError> {
        let rest = self.reader.rest();
        let end = rest.iter().position(|byte| *byte == 0);
        let length = end.ok_or_else(|| self.short(field, rest.len() as u64 + 1, rest.len() as u64))?;
        let text = self.bytes(field, length as u64)?;
        self.bytes(field, 1u64)?;
        Ok(Text(text))
    }

    /// A string in an array of `length` bytes.
    pub fn char_array(&mut self, field: &'static str, length: usize) -> Result<Text<'a>, PayloadError> {
        let bytes = self.bytes(field, length as u64)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(Text(bytes.get(..end).unwrap_or(bytes)))
    }

    /// Returns an error if bytes remain.
    pub fn end(&self, field: &'static str) -> Result<(), PayloadError> {
        match self.left() {
            0 => Ok(()),
            bytes => Err(self.error(field, PayloadFault::Trailing { bytes: bytes as u64 })),
        }
    }

    pub fn value(&self, field: &'static str, value: u64) -> PayloadError {
        self.error(field, PayloadFault::Value(value))
    }

    fn read<T>(
        &mut self,
        field: &'static str,
        width: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Option<T>,
    ) -> Result<T, PayloadError> {
        let left = self.left();
        let value = self.align(width).and_then(|()| read(&mut self.reader));
        value.ok_or_else(|| self.short(field, width as u64, left as u64))
    }

    fn short(&self, field: &'static str, expected: u64, found: u64) -> PayloadError {
        let cause = if self.cut { PayloadFault::NotHeld } else { PayloadFault::Short { expected, found } };
        self.error(field, cause)
    }

    fn error(&self, field: &'static str, cause: PayloadFault) -> PayloadError {
        PayloadError { kind: self.kind, version: self.version, field, cause }
    }
}

/// Whether the header of the record that the fields belong to has this bit of the info byte.
pub(crate) fn has_info(header: &RecordHeader, bit: u8) -> bool {
    header.info & bit != 0
}

/// The element type of a list in a record.
pub trait Item: Sized {
    /// Bytes of one item.
    fn width(version: Major) -> usize;

    /// Reads one item.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

impl Item for u16 {
    fn width(_: Major) -> usize {
        2
    }

    fn read(reader: &mut Reader<'_>) -> Option<u16> {
        reader.u16()
    }
}

/// Returns the offset numbers (`OffsetNumber`, 2 bytes each) in `bytes`; an odd byte at the end is ignored.
#[inline]
pub fn offset_numbers(bytes: &[u8]) -> impl ExactSizeIterator<Item = u16> + Clone {
    bytes.as_chunks().0.iter().map(|number| u16::from_le_bytes(*number))
}

/// Appends offset numbers in the format that [`offset_numbers`] reads.
#[inline]
pub fn push_offset_numbers(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = u16>) {
    out.extend(numbers.into_iter().flat_map(u16::to_le_bytes));
}

impl Item for u32 {
    fn width(_: Major) -> usize {
        4
    }

    fn read(reader: &mut Reader<'_>) -> Option<u32> {
        reader.u32()
    }
}

impl Item for RelFileLocator {
    fn width(_: Major) -> usize {
        12
    }

    fn read(reader: &mut Reader<'_>) -> Option<RelFileLocator> {
        let (tablespace, database, relation) = (reader.u32()?, reader.u32()?, reader.u32()?);
        Some(RelFileLocator { tablespace, database, relation })
    }
}

/// A list within a record: an iterator that reads the record's bytes in place. Copy it to iterate again.
pub struct Items<'a, T> {
    bytes: &'a [u8],
    width: usize,
    item: PhantomData<fn() -> T>,
}

impl<T> Items<'_, T> {
    /// An empty list.
    pub const EMPTY: Items<'static, T> = Items { bytes: &[], width: 1, item: PhantomData };

    /// The number of remaining items.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Whether no item remains.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Item> Iterator for Items<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (item, rest) = self.bytes.split_at_checked(self.width)?;
        self.bytes = rest;
        T::read(&mut Reader::new(item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len(), Some(self.len()))
    }
}

impl<T: Item> ExactSizeIterator for Items<'_, T> {}

// Not derived: the implementation does not depend on `T`.
impl<T> Clone for Items<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Items<'_, T> {}

impl<T> PartialEq for Items<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && (self.width == other.width || self.bytes.is_empty())
    }
}

impl<T: Item + fmt::Debug> fmt::Debug for Items<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Prints `[3, 4, 5]`; for a long list the first items and the total number.
impl<T: Item + fmt::Display> fmt::Display for Items<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_LISTED: usize = 8;
        f.write_str("[")?;
        for (at, item) in self.take(MAX_LISTED).enumerate() {
            write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
        }
        if self.len() > MAX_LISTED {
            write!(f, ", ... {} in all", self.len())?;
        }
        f.write_str("]")
    }
}

/// A name in the encoding of its database, which is unknown here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub &'a [u8]);

/// Prints the name as UTF-8, with replacement characters for invalid bytes.
impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{FFFD}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

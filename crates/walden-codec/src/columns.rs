//! Columns: where the parts of records go, values of one kind beside each other.
//!
//! A model names columns as it goes. Encoding and decoding name the same ones in the same order, because both do nothing
//! but what the model does; so a column's number needs no name in the compressed form.
//!
//! Columns are emptied into a *chunk* at the end of each segment, and named once for as many chunks as follow each other.

use walden_format::record::RelFileLocator;
use walden_redo::compress::pglz::same_start;

use crate::entropy::{Packer, Unpacker};
use crate::meter::{Meter, Metered};
use crate::{Corrupt, corrupt};

/// A column, by the order in which columns are named.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Column(u32);

/// What a column holds, and with which others it is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Small numbers, as LEB128.
    Symbols(Class),
    /// Rows of so many bytes, 1 or more.
    Rows(Class, u16),
    /// Bytes without a form.
    Bytes(Class),
}

/// What goes through the entropy coder together: alike in content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    /// What frames the records.
    Framing,
    /// Shapes of records.
    Shapes,
    /// Transactions.
    Transactions,
    /// Relations and blocks.
    Blocks,
    /// What records say apart from blocks.
    MainData,
    /// Lengths and forms of what records say of blocks.
    BlockData,
    /// What records say of blocks where nothing is known of its form.
    Payload,
    /// Headers and lengths of heap rows.
    RowHeaders,
    /// Attributes of one width.
    Fixed,
    /// Attributes of any length.
    Text,
    /// What was compressed by the server, as it was before.
    Expanded,
    /// Index tuples.
    IndexTuples,
    /// Headers of images.
    ImageHeaders,
    /// Where images differ from the pages that are known.
    ImageDifferences,
    /// Pages' headers and line pointers.
    PageHeaders,
    /// Images of which nothing is known.
    ImageBytes,
    /// Bytes that are no record.
    Raw,
}

/// All classes, in the order in which they are stored.
pub const CLASSES: [Class; 17] = [
    Class::Framing,
    Class::Shapes,
    Class::Transactions,
    Class::Blocks,
    Class::MainData,
    Class::BlockData,
    Class::Payload,
    Class::RowHeaders,
    Class::Fixed,
    Class::Text,
    Class::Expanded,
    Class::IndexTuples,
    Class::ImageHeaders,
    Class::ImageDifferences,
    Class::PageHeaders,
    Class::ImageBytes,
    Class::Raw,
];

impl Class {
    /// Its name, as `docs/format.md` has it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Framing => "framing",
            Class::Shapes => "shapes",
            Class::Transactions => "transactions",
            Class::Blocks => "blocks",
            Class::MainData => "main data",
            Class::BlockData => "block data",
            Class::Payload => "payload",
            Class::RowHeaders => "row headers",
            Class::Fixed => "fixed",
            Class::Text => "text",
            Class::Expanded => "expanded",
            Class::IndexTuples => "index tuples",
            Class::ImageHeaders => "image headers",
            Class::ImageDifferences => "image differences",
            Class::PageHeaders => "page headers",
            Class::ImageBytes => "image bytes",
            Class::Raw => "raw",
        }
    }
}

impl Kind {
    /// With which others the column is compressed.
    pub fn class(self) -> Class {
        match self {
            Kind::Symbols(class) | Kind::Rows(class, _) | Kind::Bytes(class) => class,
        }
    }

    /// How the entropy coder sees it.
    pub fn form(self) -> Form {
        match self {
            Kind::Symbols(_) => Form::Symbols,
            Kind::Rows(_, width) => Form::Rows(width.max(1)),
            Kind::Bytes(_) => Form::Bytes,
        }
    }
}

/// The form of a column's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Numbers as LEB128.
    Symbols,
    /// Rows of a width.
    Rows(u16),
    /// Text, or anything.
    Bytes,
}

impl Form {
    /// As the directory of a chunk has it.
    pub fn code(self) -> u64 {
        match self {
            Form::Symbols => 0,
            Form::Bytes => 1,
            Form::Rows(width) => 1 + u64::from(width),
        }
    }

    fn from_code(code: u64) -> Result<Form, Corrupt> {
        Ok(match code {
            0 => Form::Symbols,
            1 => Form::Bytes,
            width => Form::Rows(u16::try_from(width - 1).map_err(|_| corrupt("a column's form can't be"))?),
        })
    }
}

/// One of the two directions: what a model is written against.
pub trait Coder {
    /// Names a column.
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt>;

    /// Names a column whose values belong to many relations, though it is named while one of them is coded.
    fn shared_column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.column(kind)
    }

    /// Notes, for statistics, to which relation the values belong that are coded from here on.
    fn set_relation(&mut self, _: Option<RelFileLocator>) {}

    /// Codes a number: encoding writes `value` and gives it back, decoding ignores it and gives the one written.
    fn symbol(&mut self, column: Column, value: u64) -> Result<u64, Corrupt>;

    /// Codes a number that takes finding out, which only encoding does.
    fn symbol_of(&mut self, column: Column, value: impl FnOnce() -> u64) -> Result<u64, Corrupt>;

    /// Codes bytes: encoding writes `source`, decoding reads `len`; either way they are appended to `target`.
    fn bytes(
        &mut self,
        column: Column,
        source: &[u8],
        len: usize,
        target: &mut Vec<u8>,
    ) -> Result<(), Corrupt>;

    /// Codes a few bytes.
    fn array<const N: usize>(&mut self, column: Column, source: &[u8; N]) -> Result<[u8; N], Corrupt>;

    /// Codes a text without zeros, which a zero ends in the column; it is appended to `target`.
    fn text(&mut self, column: Column, source: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt>;

    /// Codes the same number so many times; it takes one byte.
    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt>;

    /// Codes bytes in place: encoding writes what is in `target` at these places, decoding puts there what was written.
    fn in_place(
        &mut self,
        column: Column,
        places: impl Iterator<Item = (usize, usize)>,
        target: &mut [u8],
    ) -> Result<(), Corrupt>;

    /// What is left of a column to decode; when encoding, nothing.
    fn ahead(&self, column: Column) -> &[u8];
}

/// How many of these numbers of one byte are `value`, from the first on.
fn repeated(ahead: &[u8], value: u8) -> usize {
    match ahead.first() {
        // As long as each is the same as the one before it.
        Some(&first) if first == value => 1 + same_start(&ahead[1..], ahead),
        _ => 0,
    }
}

/// How many of so many items there are when decoding, as far as these columns tell, in each of which all have the same number
/// of one byte.
pub fn all_repeated<S: Coder>(coder: &S, same: &[(Column, u8)], most: usize) -> usize {
    same.iter().fold(most, |most, &(column, value)| {
        let ahead = coder.ahead(column);
        repeated(&ahead[..most.min(ahead.len())], value)
    })
}

/// A column being filled.
///
/// It grows piece by piece: what there is of it is not moved, and leaves no room behind that is too small for what is larger.
#[derive(Debug)]
pub struct Content {
    /// With which others it is compressed.
    pub class: Class,
    /// The form of its bytes.
    pub form: Form,
    /// By the order in which columns are named.
    pub number: u32,
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
    bytes: usize,
}

/// A piece has so many bytes at most, unless one value has more.
const PIECE: usize = 64 << 10;

impl Content {
    fn new(class: Class, form: Form, number: usize) -> Content {
        let (full, last, bytes) = (Vec::new(), Vec::new(), 0);
        Content { class, form, number: number as u32, full, last, bytes }
    }

    /// Where so many bytes more go.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut Vec<u8> {
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

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes + self.last.len()
    }

    /// Its bytes, one piece after another.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.full.iter().chain([&self.last]).map(Vec::as_slice)
    }

    /// All its bytes: in `joined`, unless they are together as it is.
    pub fn joined<'a>(&'a self, joined: &'a mut Vec<u8>) -> &'a [u8] {
        if self.full.is_empty() {
            return &self.last;
        }
        joined.clear();
        joined.reserve(self.len());
        self.pieces().for_each(|piece| joined.extend_from_slice(piece));
        joined
    }

    /// Nothing of the next chunk yet. Its room is for others.
    pub fn clear(&mut self) {
        (self.full, self.last, self.bytes) = (Vec::new(), Vec::new(), 0);
    }

    /// A column by itself.
    #[cfg(test)]
    pub fn of(class: Class, form: Form, bytes: &[u8]) -> Content {
        let mut content = Content::new(class, form, 0);
        bytes.chunks(7).for_each(|bytes| content.room(bytes.len()).extend_from_slice(bytes));
        content
    }
}

/// Fills columns.
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
        put_number(self.columns[column.0 as usize].room(MAX_NUMBER_BYTES), value);
        Ok(value)
    }

    #[inline]
    fn symbol_of(&mut self, column: Column, value: impl FnOnce() -> u64) -> Result<u64, Corrupt> {
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
        self.columns[column.0 as usize].room(source.len()).extend_from_slice(source);
        target.extend_from_slice(source);
        Ok(())
    }

    #[inline]
    fn array<const N: usize>(&mut self, column: Column, source: &[u8; N]) -> Result<[u8; N], Corrupt> {
        self.columns[column.0 as usize].room(source.len()).extend_from_slice(source);
        Ok(*source)
    }

    #[inline]
    fn text(&mut self, column: Column, source: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt> {
        let bytes = self.columns[column.0 as usize].room(source.len() + 1);
        bytes.extend_from_slice(source);
        bytes.push(0);
        target.extend_from_slice(source);
        Ok(())
    }

    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt> {
        let column = self.columns[column.0 as usize].room(times);
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
        let column = self.columns[column.0 as usize].room(target.len());
        places.for_each(|(at, len)| column.extend_from_slice(&target[at..at + len]));
        Ok(())
    }

    fn ahead(&self, _: Column) -> &[u8] {
        &[]
    }
}

impl Encoder {
    /// Bytes in all columns together.
    pub fn bytes_held(&self) -> usize {
        self.columns.iter().map(Content::len).sum()
    }

    /// What the columns count against [`crate::coder::Limits::columns`].
    pub fn weight(&self) -> usize {
        self.bytes_held() + self.columns.len() * COLUMN_WEIGHT
    }

    /// Empties all columns into a chunk.
    ///
    /// ```text
    /// directory: number of new columns; per new column: class, form; per column: bytes
    /// per class that has any: its part
    /// ```
    pub fn chunk(&mut self, packer: &mut Packer) -> Vec<u8> {
        let mut directory = Vec::new();
        put_number(&mut directory, (self.columns.len() - self.announced) as u64);
        for column in &self.columns[self.announced..] {
            put_number(&mut directory, column.class as u64);
            put_number(&mut directory, column.form.code());
        }
        self.announced = self.columns.len();
        for column in &self.columns {
            put_number(&mut directory, column.len() as u64);
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

/// What a column counts beside its bytes, so that many empty ones count, too.
const COLUMN_WEIGHT: usize = 16;

/// Bytes that columns of most segments have less of.
const USUAL: usize = 16 << 20;

/// Empties columns.
#[derive(Default)]
pub struct Decoder {
    columns: Vec<(Class, Form)>,
    /// What is left of each column: where it begins and ends in `bytes`.
    left: Vec<(usize, usize)>,
    bytes: Vec<u8>,
    named: usize,
    /// Counts bytes by class and relation; beside it, how many each column has in the chunk.
    meter: Option<Box<(Meter, Vec<usize>)>>,
}

/// A column that is to be decompressed.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// By the order in which columns are named.
    pub number: u32,
    /// The form of its bytes.
    pub form: Form,
    /// How many it has.
    pub bytes: usize,
}

impl Decoder {
    /// Fills the columns from a chunk; `most` is what they may have together, by [`Encoder::weight`].
    pub fn chunk(&mut self, unpacker: &mut Unpacker, stored: &[u8], most: usize) -> Result<(), Corrupt> {
        let mut rest = stored;
        let directory = unpacker.directory(&mut rest, most)?;
        let directory_bytes = (directory.len() as u64, (stored.len() - rest.len()) as u64);
        let mut stored_by_class = [0; CLASSES.len()];
        let mut directory = &directory[..];
        let new: usize = narrow(get_number(&mut directory)?)?;
        // Each takes two bytes of the directory or more.
        if new > directory.len() / 2 {
            return Err(corrupt("more columns than are described"));
        }
        for _ in 0..new {
            let class: usize = narrow(get_number(&mut directory)?)?;
            let class = *CLASSES.get(class).ok_or_else(|| corrupt("an unknown class of columns"))?;
            let form = Form::from_code(get_number(&mut directory)?)?;
            self.columns.push((class, form));
        }
        let weight = self.columns.len().saturating_mul(COLUMN_WEIGHT);
        let (left, mut room) = (most.checked_sub(weight), 0);
        let mut left = left.ok_or_else(|| corrupt("more columns than the limit allows"))?;
        let mut wanted = CLASSES.map(|_| Vec::new());
        for (number, &(class, form)) in self.columns.iter().enumerate() {
            let bytes = usize::try_from(get_number(&mut directory)?).unwrap_or(usize::MAX);
            left = left.checked_sub(bytes).ok_or_else(|| corrupt("more bytes than the limit allows"))?;
            // Rows are there twice: as planes, and turned back.
            room += if let Form::Rows(_) = form { 2 * bytes } else { bytes };
            if bytes > 0 {
                wanted[class as usize].push(Wanted { number: number as u32, form, bytes });
            }
        }
        if !directory.is_empty() {
            return Err(corrupt("bytes after the directory of columns"));
        }
        self.bytes.clear();
        // What it says they have is not believed of a few bytes, unless it is no more than is usual.
        self.bytes.reserve(room.min(USUAL.max(64 * stored.len())));
        self.left.clear();
        self.left.resize(self.columns.len(), (0, 0));
        for class in CLASSES {
            let wanted = &wanted[class as usize];
            if wanted.is_empty() {
                continue;
            }
            let (left, before) = (&mut self.left, rest.len());
            unpacker.class(class, wanted, &mut rest, &mut self.bytes, |column, at| {
                left[column.number as usize] = (at, at + column.bytes);
            })?;
            stored_by_class[class as usize] = (before - rest.len()) as u64;
        }
        if let Some((meter, sizes)) = self.meter.as_deref_mut() {
            meter.start(&self.left, stored_by_class, directory_bytes);
            sizes.clear();
            sizes.extend(self.left.iter().map(|(at, end)| end - at));
        }
        if rest.is_empty() { Ok(()) } else { Err(corrupt("bytes after the last column")) }
    }

    /// What has not been read of each column, with its class and form.
    pub fn contents(&self) -> impl Iterator<Item = (Class, Form, &[u8])> {
        let columns = self.columns.iter().zip(&self.left);
        columns.map(|(&(class, form), &(at, end))| (class, form, &self.bytes[at..end]))
    }

    /// Checks that nothing of the chunk is left.
    pub fn finish(&self) -> Result<(), Corrupt> {
        let empty = self.left.iter().all(|(at, end)| at == end);
        if empty && self.named == self.columns.len() { Ok(()) } else { Err(corrupt("columns are left over")) }
    }

    /// Counts bytes from here on; it has to be called before the first chunk.
    pub fn meter(&mut self) {
        self.meter = Some(Box::default());
    }

    /// What was counted of a chunk that was decoded to its end, if it was metered.
    pub fn take_metered(&mut self) -> Option<Metered> {
        let Decoder { meter, left, columns, .. } = self;
        let (meter, sizes) = meter.as_deref_mut()?;
        Some(meter.finish(sizes, left, |column| columns[column].0))
    }

    fn name(&mut self, kind: Kind, is_shared: bool) -> Result<Column, Corrupt> {
        let column = self.columns.get(self.named).ok_or_else(|| corrupt("a column is missing"))?;
        if *column != (kind.class(), kind.form()) {
            return Err(corrupt("a column is of another kind"));
        }
        if let Some((meter, _)) = self.meter.as_deref_mut() {
            meter.name(kind.class(), is_shared, self.left[self.named].0);
        }
        self.named += 1;
        Ok(Column(self.named as u32 - 1))
    }

    /// A number of more than a byte, or none.
    #[cold]
    fn long_symbol(&mut self, column: Column) -> Result<u64, Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        let mut rest = &self.bytes[*at..*end];
        let value = get_number(&mut rest)?;
        *at = *end - rest.len();
        Ok(value)
    }

    /// So many bytes of a column.
    #[inline]
    fn taken(&mut self, column: Column, len: usize) -> Result<&[u8], Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        if len > *end - *at {
            return Err(corrupt("a column ends too early"));
        }
        let taken = &self.bytes[*at..*at + len];
        *at += len;
        Ok(taken)
    }
}

impl Coder for Decoder {
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.name(kind, false)
    }

    fn shared_column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.name(kind, true)
    }

    #[inline]
    fn set_relation(&mut self, relation: Option<RelFileLocator>) {
        if let Some((meter, _)) = self.meter.as_deref_mut() {
            meter.set_relation(relation, &self.left, |column| self.columns[column].0);
        }
    }

    #[inline]
    fn symbol(&mut self, column: Column, _: u64) -> Result<u64, Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        // Most are of one byte.
        if at < end
            && let Some(&byte) = self.bytes.get(*at)
            && byte < 0x80
        {
            *at += 1;
            return Ok(byte.into());
        }
        self.long_symbol(column)
    }

    #[inline]
    fn symbol_of(&mut self, column: Column, _: impl FnOnce() -> u64) -> Result<u64, Corrupt> {
        self.symbol(column, 0)
    }

    #[inline]
    fn bytes(&mut self, column: Column, _: &[u8], len: usize, target: &mut Vec<u8>) -> Result<(), Corrupt> {
        target.extend_from_slice(self.taken(column, len)?);
        Ok(())
    }

    #[inline]
    fn array<const N: usize>(&mut self, column: Column, _: &[u8; N]) -> Result<[u8; N], Corrupt> {
        self.taken(column, N)?.try_into().map_err(|_| corrupt("a column ends too early"))
    }

    #[inline]
    fn text(&mut self, column: Column, _: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        let rest = &self.bytes[*at..*end];
        let len = memchr::memchr(0, rest).ok_or_else(|| corrupt("a column ends too early"))?;
        target.extend_from_slice(&rest[..len]);
        *at += len + 1;
        Ok(())
    }

    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt> {
        debug_assert!(repeated(self.ahead(column), value) >= times);
        self.taken(column, times).map(|_| ())
    }

    #[inline]
    fn in_place(
        &mut self,
        column: Column,
        places: impl Iterator<Item = (usize, usize)>,
        target: &mut [u8],
    ) -> Result<(), Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        let mut rest = &self.bytes[*at..*end];
        for (at, len) in places {
            let (taken, after) =
                rest.split_at_checked(len).ok_or_else(|| corrupt("a column ends too early"))?;
            target[at..at + len].copy_from_slice(taken);
            rest = after;
        }
        *at = *end - rest.len();
        Ok(())
    }

    fn ahead(&self, column: Column) -> &[u8] {
        let (at, end) = self.left[column.0 as usize];
        &self.bytes[at..end]
    }
}

/// Bytes of a number at most.
pub const MAX_NUMBER_BYTES: usize = 10;

/// Appends a number as LEB128.
#[inline]
pub fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off.
#[inline]
pub fn get_number(rest: &mut &[u8]) -> Result<u64, Corrupt> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or_else(|| corrupt("a number is cut short"))?;
        *rest = after;
        // Of the tenth byte, one bit is left.
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(corrupt("a number is too long"))
}

/// A number of a narrower type, which on all machines holds as much.
#[inline]
pub fn narrow<T: TryFrom<u64>>(value: u64) -> Result<T, Corrupt> {
    T::try_from(value).map_err(|_| corrupt("a number is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_what_was_written_in_pieces_that_are_no_larger_than_they_must_be() {
        let mut coder = Encoder::default();
        let column = coder.column(Kind::Bytes(Class::Text)).unwrap();
        let (mut expected, mut joined) = (Vec::new(), Vec::new());
        for (round, len) in [7, PIECE - 8, 2, PIECE, 3 * PIECE + 1, 0, 9].into_iter().enumerate() {
            let value = vec![round as u8; len];
            coder.bytes(column, &value, len, &mut expected).unwrap();
            coder.symbol(column, 300 + len as u64).unwrap();
            put_number(&mut expected, 300 + len as u64);
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

    #[test]
    fn numbers_come_back_and_none_exceeds_64_bits() {
        for value in [0, 127, 128, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, value);
            assert_eq!(get_number(&mut &bytes[..]), Ok(value));
        }
        for last in [0x02, 0x7F, 0x81] {
            let mut bytes = [0xFF; 10];
            bytes[9] = last;
            assert!(get_number(&mut &bytes[..]).is_err(), "{last}");
        }
        assert!(narrow::<u32>(1 << 32).is_err());
    }
}

//! Decompresses chunks into columns and decodes values from them.

use super::{COLUMN_WEIGHT, Coder, Column, repeated};
use walden_format::record::RelFileLocator;

use crate::column_kind::{CLASSES, Class, Form, Kind};
use crate::entropy::{ColumnEntry, Unpacker};
use crate::leb128::{get_leb128, narrow};
use crate::meter::{Meter, Metered};
use crate::{Corrupt, corrupt};

/// Memory reserved for columns even if the chunk is small. Most segments need less.
const USUAL_BYTES: usize = 16 << 20;

/// Decodes values from columns.
#[derive(Default)]
pub struct Decoder {
    columns: Vec<(Class, Form)>,
    /// Remaining part of each column: start and end in `bytes`.
    left: Vec<(usize, usize)>,
    bytes: Vec<u8>,
    /// Number of columns created so far.
    created: usize,
    /// Counts bytes by class and relation. The vector has the size of each column in the chunk.
    meter: Option<Box<(Meter, Vec<usize>)>>,
}

impl Decoder {
    /// Decompresses a chunk into the columns. `max` limits their weight, see [`super::Encoder::weight`].
    pub fn chunk(&mut self, unpacker: &mut Unpacker, stored: &[u8], max: usize) -> Result<(), Corrupt> {
        let mut input = stored;
        let directory = unpacker.directory(&mut input, max)?;
        let directory_bytes = (directory.len() as u64, (stored.len() - input.len()) as u64);
        let mut stored_by_class = [0; CLASSES.len()];
        let (entries, memory) = self.read_directory(&directory, max)?;
        self.bytes.clear();
        // Further memory is reserved only in proportion to the chunk, because its lengths may be wrong.
        self.bytes.reserve(memory.min(USUAL_BYTES.max(64 * stored.len())));
        self.left.clear();
        self.left.resize(self.columns.len(), (0, 0));
        for class in CLASSES {
            let entries = &entries[class as usize];
            if entries.is_empty() {
                continue;
            }
            let (left, before) = (&mut self.left, input.len());
            unpacker.class(class, entries, &mut input, &mut self.bytes, |column, at| {
                left[column.number as usize] = (at, at + column.bytes);
            })?;
            stored_by_class[class as usize] = (before - input.len()) as u64;
        }
        if let Some((meter, sizes)) = self.meter.as_deref_mut() {
            meter.start(&self.left, stored_by_class, directory_bytes);
            sizes.clear();
            sizes.extend(self.left.iter().map(|(at, end)| end - at));
        }
        if input.is_empty() {
            Ok(())
        } else {
            Err(corrupt("cannot read columns: expected no bytes after the last"))
        }
    }

    /// Reads the directory of columns, including new ones. Returns the entries of non-empty columns by class,
    /// and the bytes of memory that they need.
    fn read_directory(
        &mut self,
        mut directory: &[u8],
        max: usize,
    ) -> Result<([Vec<ColumnEntry>; CLASSES.len()], usize), Corrupt> {
        let new: usize = narrow(get_leb128(&mut directory)?)?;
        // Each takes at least two bytes of the directory.
        if new > directory.len() / 2 {
            return Err(corrupt("cannot read the directory of columns: expected as many as it states"));
        }
        for _ in 0..new {
            let class: usize = narrow(get_leb128(&mut directory)?)?;
            let class = *CLASSES
                .get(class)
                .ok_or_else(|| corrupt("cannot read the directory of columns: expected a class up to 16"))?;
            let form = Form::from_code(get_leb128(&mut directory)?)?;
            self.columns.push((class, form));
        }
        let weight = self.columns.len().saturating_mul(COLUMN_WEIGHT);
        let (left, mut memory) = (max.checked_sub(weight), 0);
        let mut left =
            left.ok_or_else(|| corrupt("cannot read the directory of columns: expected fewer columns"))?;
        let mut entries = CLASSES.map(|_| Vec::new());
        for (number, &(class, form)) in self.columns.iter().enumerate() {
            let bytes = usize::try_from(get_leb128(&mut directory)?).unwrap_or(usize::MAX);
            left = left
                .checked_sub(bytes)
                .ok_or_else(|| corrupt("cannot read the directory of columns: expected fewer bytes"))?;
            // Rows are in memory twice while they are transposed.
            memory += if let Form::Rows(_) = form { 2 * bytes } else { bytes };
            if bytes > 0 {
                entries[class as usize].push(ColumnEntry { number: number as u32, form, bytes });
            }
        }
        if !directory.is_empty() {
            return Err(corrupt("cannot read the directory of columns: expected no bytes after it"));
        }
        Ok((entries, memory))
    }

    /// Returns the remaining bytes of each column, with its class and form.
    pub fn contents(&self) -> impl Iterator<Item = (Class, Form, &[u8])> {
        let columns = self.columns.iter().zip(&self.left);
        columns.map(|(&(class, form), &(at, end))| (class, form, &self.bytes[at..end]))
    }

    /// Checks that the whole chunk was decoded.
    pub fn finish(&self) -> Result<(), Corrupt> {
        let empty = self.left.iter().all(|(at, end)| at == end);
        if empty && self.created == self.columns.len() {
            Ok(())
        } else {
            Err(corrupt("cannot decode the segment: expected all columns to be used up"))
        }
    }

    /// Enables counting bytes. Must be called before the first chunk.
    pub fn meter(&mut self) {
        self.meter = Some(Box::default());
    }

    /// Returns the byte counts of a chunk that was decoded completely, if metering is enabled.
    pub fn take_metered(&mut self) -> Option<Metered> {
        let Decoder { meter, left, columns, .. } = self;
        let (meter, sizes) = meter.as_deref_mut()?;
        Some(meter.finish(sizes, left, |column| columns[column].0))
    }

    fn create(&mut self, kind: Kind, is_shared: bool) -> Result<Column, Corrupt> {
        let column = self
            .columns
            .get(self.created)
            .ok_or_else(|| corrupt("cannot decode the segment: expected another column"))?;
        if *column != (kind.class(), kind.form()) {
            return Err(corrupt("cannot decode the segment: expected a column of another class or form"));
        }
        if let Some((meter, _)) = self.meter.as_deref_mut() {
            meter.add_column(kind.class(), is_shared, self.left[self.created].0);
        }
        self.created += 1;
        Ok(Column(self.created as u32 - 1))
    }

    /// Decodes a number of more than one byte, or fails at the end of the column.
    #[cold]
    fn long_symbol(&mut self, column: Column) -> Result<u64, Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        let mut rest = &self.bytes[*at..*end];
        let value = get_leb128(&mut rest)?;
        *at = *end - rest.len();
        Ok(value)
    }

    /// Returns the next bytes of a column and advances past them.
    #[inline]
    fn next_bytes(&mut self, column: Column, len: usize) -> Result<&[u8], Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        if len > *end - *at {
            return Err(cut_short());
        }
        let taken = &self.bytes[*at..*at + len];
        *at += len;
        Ok(taken)
    }
}

impl Coder for Decoder {
    fn column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.create(kind, false)
    }

    fn shared_column(&mut self, kind: Kind) -> Result<Column, Corrupt> {
        self.create(kind, true)
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
        // Most numbers take one byte.
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
    fn symbol_with(&mut self, column: Column, _: impl FnOnce() -> u64) -> Result<u64, Corrupt> {
        self.symbol(column, 0)
    }

    #[inline]
    fn bytes(&mut self, column: Column, _: &[u8], len: usize, target: &mut Vec<u8>) -> Result<(), Corrupt> {
        target.extend_from_slice(self.next_bytes(column, len)?);
        Ok(())
    }

    #[inline]
    fn array<const N: usize>(&mut self, column: Column, _: &[u8; N]) -> Result<[u8; N], Corrupt> {
        self.next_bytes(column, N)?.try_into().map_err(|_| cut_short())
    }

    #[inline]
    fn text(&mut self, column: Column, _: &[u8], target: &mut Vec<u8>) -> Result<(), Corrupt> {
        let (at, end) = &mut self.left[column.0 as usize];
        let rest = &self.bytes[*at..*end];
        let len = memchr::memchr(0, rest).ok_or_else(cut_short)?;
        target.extend_from_slice(&rest[..len]);
        *at += len + 1;
        Ok(())
    }

    fn repeat(&mut self, column: Column, value: u8, times: usize) -> Result<(), Corrupt> {
        debug_assert!(repeated(self.remaining(column), value) >= times);
        self.next_bytes(column, times).map(|_| ())
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
            let (taken, after) = rest.split_at_checked(len).ok_or_else(cut_short)?;
            target[at..at + len].copy_from_slice(taken);
            rest = after;
        }
        *at = *end - rest.len();
        Ok(())
    }

    fn remaining(&self, column: Column) -> &[u8] {
        let (at, end) = self.left[column.0 as usize];
        &self.bytes[at..end]
    }
}

#[cold]
fn cut_short() -> Corrupt {
    corrupt("cannot decode a column: it is cut short")
}

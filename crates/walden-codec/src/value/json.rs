//! Codes values of type `jsonb` by their keys and values.
//!
//! A container has a header, an entry for each key and value (its type, and its length or end offset), and
//! then the keys and values themselves. All lengths and offsets are derived from the content. Only the
//! following is coded: kind and size of containers, strings, and numbers, each kind in separate columns. The
//! layout is in [`walden_redo::page::jsonb`].

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use walden_redo::page::jsonb::container::{ARRAY, OBJECT};
use walden_redo::page::jsonb::entry::{CONTAINER, FALSE, NULL, NUMERIC, STRING};
use walden_redo::page::jsonb::{
    ALIGNMENT, COUNT_MASK, END_STRIDE, ENTRY_HAS_END, KIND_SHIFT, LENGTH_MASK, WORD_BYTES, container,
    entry_type,
};
use walden_redo::page::varlena::{LONG_HEADER_BYTES, LongHeader};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::{Corrupt, corrupt};

/// An array around a single scalar value.
const SCALAR: u32 = container::SCALAR | ARRAY;
/// A string that consists mostly of digits, such as a time or a number. Not a type of PostgreSQL: it is coded
/// differently.
const DIGITS: u8 = 6;

/// Maximum nesting depth of containers. Deeper values are not parsed.
const MAX_DEPTH: usize = 32;
/// Bytes and parts allocated for a value initially. Most values need no more.
const USUAL_BYTES: usize = 512;
const USUAL_PARTS: usize = 32;

/// A part of a value. Parts are coded in this order: a container, its keys, its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Kind, and number of keys or elements.
    Container(u32, u32),
    Key(Text),
    /// A string or a number.
    Value(u8, Text),
    /// True, false or null.
    Literal(u8),
}

/// A range of the value's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Text {
    start: u32,
    end: u32,
}

impl Text {
    fn slice<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// A value parsed into its parts.
pub struct Json {
    parts: Vec<Part>,
    bytes: Vec<u8>,
}

/// Columns of a field's values.
pub struct Columns {
    json_forms: Column,
    json_keys: Column,
    json_strings: Column,
    json_lengths: Column,
    json_numbers: Column,
    /// Heads of numbers (sign, scale and weight), and the columns of their digits by length and head.
    json_heads: Column,
    json_by_head: FxHashMap<(u8, [u8; NUMBER_HEAD]), Column>,
    /// Lengths of strings of digits, and the columns of these strings by length.
    json_digit_lengths: Column,
    json_digits: FxHashMap<u16, Column>,
    /// Buffer of [`JsonCoder::entries`].
    entries: Vec<u32>,
}

/// Returns whether a string is better coded in a column of strings of its length.
fn is_digits(text: &[u8]) -> bool {
    const LENGTHS: std::ops::RangeInclusive<usize> = 8..=MAX_DIGITS as usize;
    LENGTHS.contains(&text.len())
        && text.iter().filter(|byte| byte.is_ascii_digit()).count() * 2 >= text.len()
}

const MAX_DIGITS: u16 = 64;

const NUMBER_HEAD: usize = 2;
/// Lengths of numbers that have columns by head.
const MIN_NUMBER_BYTES: usize = 3;
const MAX_NUMBER_BYTES: usize = 24;
/// Maximum number of heads of a field that have separate columns.
const MAX_HEADS: usize = 64;

impl Columns {
    /// Creates the columns of a field.
    pub fn new<S: Coder>(coder: &mut S) -> Result<Columns, Corrupt> {
        Ok(Columns {
            json_forms: coder.column(Kind::Symbols(Class::TupleHeaders))?,
            json_keys: coder.column(Kind::Bytes(Class::Text))?,
            json_strings: coder.column(Kind::Bytes(Class::Text))?,
            json_lengths: coder.column(Kind::Symbols(Class::TupleHeaders))?,
            json_numbers: coder.column(Kind::Bytes(Class::Fixed))?,
            json_heads: coder.column(Kind::Rows(Class::Fixed, NUMBER_HEAD as u16))?,
            json_by_head: FxHashMap::default(),
            json_digit_lengths: coder.column(Kind::Symbols(Class::TupleHeaders))?,
            json_digits: FxHashMap::default(),
            entries: Vec::new(),
        })
    }
}

impl Json {
    /// Parses a value; `None` if its parts would not reconstruct it.
    pub fn parse(value: &[u8]) -> Option<Json> {
        let header = u32::from_le_bytes(*value.first_chunk()?);
        if !matches!(header >> KIND_SHIFT, OBJECT | ARRAY | SCALAR)
            || (header & COUNT_MASK) as usize > value.len() / WORD_BYTES
        {
            return None;
        }
        let mut parts = Vec::with_capacity(USUAL_PARTS);
        parse_container(value, 0, value.len(), &mut parts, 0)?;
        let json = Json { parts, bytes: value.to_vec() };
        let has_zero = |part: &Part| match part {
            Part::Key(text) | Part::Value(STRING, text) => text.slice(value).contains(&0),
            _ => false,
        };
        (!json.parts.iter().any(has_zero) && json.value()? == value).then_some(json)
    }

    /// Reconstructs the value from its parts.
    pub fn value(&self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(self.bytes.len() * 2);
        let mut parts = self.parts.iter();
        let Some(&Part::Container(kind, count)) = parts.next() else { return None };
        write_container(kind, count, &mut parts, &self.bytes, &mut out)?;
        parts.next().is_none().then_some(out)
    }

    /// Codes a value by its parts and returns it.
    pub fn code<S: Coder>(
        coder: &mut S,
        columns: &mut Columns,
        source: Option<&Json>,
    ) -> Result<Vec<u8>, Corrupt> {
        let parts = source.map_or(&[][..], |json| &json.parts);
        let bytes = source.map_or(&[][..], |json| &json.bytes);
        let mut entries = std::mem::take(&mut columns.entries);
        entries.clear();
        let mut json_coder = JsonCoder {
            coder,
            columns,
            parts: parts.iter(),
            bytes,
            value: Vec::with_capacity(USUAL_BYTES),
            entries,
        };
        let first = json_coder.parts.next().copied();
        json_coder.container(first, 0)?;
        let JsonCoder { value, entries, columns, .. } = json_coder;
        columns.entries = entries;
        Ok(value)
    }
}

fn word_at(value: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*value.get(at..)?.first_chunk()?))
}

/// Appends the parts of the container between `from` and `to`; `None` if PostgreSQL would not write it.
fn parse_container(value: &[u8], from: usize, to: usize, parts: &mut Vec<Part>, depth: usize) -> Option<()> {
    let from = from.next_multiple_of(ALIGNMENT);
    let header = word_at(value, from)?;
    let (kind, count) = (header >> KIND_SHIFT, header & COUNT_MASK);
    let entries = match kind {
        OBJECT => 2 * count as usize,
        ARRAY | SCALAR => count as usize,
        _ => return None,
    };
    let start = (from + WORD_BYTES).checked_add(entries.checked_mul(WORD_BYTES)?)?;
    if start > to || depth == MAX_DEPTH {
        return None;
    }
    parts.push(Part::Container(kind, count));
    let mut at = start;
    for number in 0..entries {
        let entry = word_at(value, from + WORD_BYTES * (1 + number))?;
        let len_or_end = (entry & LENGTH_MASK) as usize;
        let end = if entry & ENTRY_HAS_END != 0 { start } else { at }.checked_add(len_or_end)?;
        if end < at || end > to {
            return None;
        }
        let of = |start: usize| Text { start: start.min(end) as u32, end: end as u32 };
        let is_key = kind == OBJECT && number < count as usize;
        match entry_type(entry) {
            STRING if is_key => parts.push(Part::Key(of(at))),
            _ if is_key => return None,
            STRING => parts.push(Part::Value(STRING, of(at))),
            // After a varlena header, which repeats the length.
            NUMERIC => {
                parts.push(Part::Value(NUMERIC, of(at.next_multiple_of(ALIGNMENT) + LONG_HEADER_BYTES)))
            }
            CONTAINER => parse_container(value, at, end, parts, depth + 1)?,
            literal @ FALSE..=NULL => parts.push(Part::Literal(literal)),
            _ => return None,
        }
        at = end;
    }
    Some(())
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// Appends a container, built from the next parts, to `out`.
fn write_container<'a>(
    kind: u32,
    count: u32,
    parts: &mut impl Iterator<Item = &'a Part>,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    pad(out);
    let entries = if kind == OBJECT { 2 * count as usize } else { count as usize };
    out.extend_from_slice(&(kind << KIND_SHIFT | count).to_le_bytes());
    let entries_at = out.len();
    out.resize(entries_at + WORD_BYTES * entries, 0);
    let start = out.len();
    for number in 0..entries {
        let from = out.len();
        let entry_type = match *parts.next()? {
            Part::Key(text) | Part::Value(STRING, text) => {
                out.extend_from_slice(text.slice(bytes));
                STRING
            }
            Part::Value(value_type, text) => {
                pad(out);
                let text = text.slice(bytes);
                out.extend(LongHeader::new(text.len().checked_add(LONG_HEADER_BYTES)?, false)?.to_bytes());
                out.extend_from_slice(text);
                value_type
            }
            Part::Literal(literal) => literal,
            Part::Container(kind, count) => {
                write_container(kind, count, parts, bytes, out)?;
                CONTAINER
            }
        };
        let (len, end) = (out.len() - from, out.len() - start);
        let len_or_end =
            if number.is_multiple_of(END_STRIDE) { ENTRY_HAS_END | end as u32 } else { len as u32 };
        if end as u64 > u64::from(LENGTH_MASK) {
            return None;
        }
        let entry = len_or_end | u32::from(entry_type) << KIND_SHIFT;
        out[entries_at + WORD_BYTES * number..][..WORD_BYTES].copy_from_slice(&entry.to_le_bytes());
    }
    Some(())
}

const WRONG_TYPE: Corrupt =
    Corrupt("cannot decode a value of jsonb: expected an object, an array, or a scalar's type");

/// Codes one value in either direction.
struct JsonCoder<'a, S> {
    coder: &'a mut S,
    columns: &'a mut Columns,
    /// When encoding: the remaining parts, and the value's bytes.
    parts: std::slice::Iter<'a, Part>,
    bytes: &'a [u8],
    value: Vec<u8>,
    /// Entries of the containers that are being coded, innermost last.
    entries: Vec<u32>,
}

impl<'a, S: Coder> JsonCoder<'a, S> {
    /// Codes a container. Its entries are inserted before its content once that is complete, so that the
    /// number of entries stated by a file does not determine an allocation.
    fn container(&mut self, part: Option<Part>, depth: usize) -> Result<(), Corrupt> {
        let (container, count) = self.container_header(part, depth)?;
        let (start, first) = (self.value.len(), self.entries.len());
        if container == OBJECT {
            for _ in 0..count {
                let (part, from) = (self.parts.next().copied(), self.value.len());
                let key = self.bytes_of(part);
                self.coder.text(self.columns.json_keys, key, &mut self.value)?;
                self.entry(STRING, (start, from), first)?;
            }
        }
        for _ in 0..count {
            let from = self.value.len();
            let kind = self.element(depth)?;
            self.entry(kind, (start, from), first)?;
        }
        let (entries, end) = (&self.entries[first..], self.value.len());
        self.value.resize(end + WORD_BYTES * entries.len(), 0);
        self.value.copy_within(start..end, start + WORD_BYTES * entries.len());
        for (target, entry) in self.value[start..].chunks_exact_mut(WORD_BYTES).zip(entries) {
            target.copy_from_slice(&entry.to_le_bytes());
        }
        self.entries.truncate(first);
        Ok(())
    }

    /// Codes and writes a container's header. Returns its kind, and the number of its keys or elements.
    fn container_header(&mut self, part: Option<Part>, depth: usize) -> Result<(u32, u32), Corrupt> {
        let code = match part {
            Some(Part::Container(kind, count)) => u64::from(count) << 3 | u64::from(kind),
            _ => 0,
        };
        let code = self.coder.symbol(self.columns.json_forms, code)?;
        let (container, count) = ((code & 7) as u32, code >> 3);
        let count = u32::try_from(count).ok().filter(|&count| count <= COUNT_MASK >> 4).ok_or(WRONG_TYPE)?;
        if !matches!(container, OBJECT | ARRAY | SCALAR) || depth > MAX_DEPTH {
            return Err(WRONG_TYPE);
        }
        pad(&mut self.value);
        self.value.extend_from_slice(&(container << KIND_SHIFT | count).to_le_bytes());
        Ok((container, count))
    }

    /// Codes the next element of an array or value of an object. Returns its type in the container's entry.
    fn element(&mut self, depth: usize) -> Result<u8, Corrupt> {
        let part = self.parts.next().copied();
        let code = match part {
            Some(Part::Value(STRING, text)) if is_digits(text.slice(self.bytes)) => DIGITS,
            Some(Part::Value(kind, _)) => kind,
            Some(Part::Literal(literal)) => literal,
            _ => CONTAINER,
        };
        match narrow(self.coder.symbol(self.columns.json_forms, code.into())?)? {
            STRING => {
                let text = self.bytes_of(part);
                self.coder.text(self.columns.json_strings, text, &mut self.value)?;
                Ok(STRING)
            }
            DIGITS => self.digits(part).map(|()| STRING),
            NUMERIC => self.number(part).map(|()| NUMERIC),
            CONTAINER => self.container(part, depth + 1).map(|()| CONTAINER),
            literal @ FALSE..=NULL => Ok(literal),
            _ => Err(WRONG_TYPE),
        }
    }

    /// Adds the entry for the content from `from` on, to the container whose content starts at `start`.
    fn entry(&mut self, kind: u8, (start, from): (usize, usize), first: usize) -> Result<(), Corrupt> {
        let (len, end) = (self.value.len() - from, self.value.len() - start);
        if end as u64 > u64::from(LENGTH_MASK) {
            return Err(corrupt("cannot decode a value of jsonb: expected less than 256 MB"));
        }
        let has_end = (self.entries.len() - first).is_multiple_of(END_STRIDE);
        let len_or_end = if has_end { ENTRY_HAS_END | end as u32 } else { len as u32 };
        self.entries.push(len_or_end | u32::from(kind) << KIND_SHIFT);
        Ok(())
    }

    /// When encoding: returns the bytes of a part.
    fn bytes_of(&self, part: Option<Part>) -> &'a [u8] {
        match part {
            Some(Part::Key(text) | Part::Value(_, text)) => text.slice(self.bytes),
            _ => &[],
        }
    }

    /// Codes a string of digits.
    fn digits(&mut self, part: Option<Part>) -> Result<(), Corrupt> {
        let source = self.bytes_of(part);
        let len = self.coder.symbol(self.columns.json_digit_lengths, source.len() as u64)?;
        let len = u16::try_from(len).ok().filter(|len| (1..=MAX_DIGITS).contains(len));
        let len = len.ok_or_else(|| corrupt("cannot decode a string of digits: expected 1 to 64 bytes"))?;
        let column = match self.columns.json_digits.entry(len) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(self.coder.column(Kind::Rows(Class::Fixed, len))?),
        };
        self.coder.bytes(column, source, len.into(), &mut self.value)
    }

    /// Codes a number with its header.
    fn number(&mut self, part: Option<Part>) -> Result<(), Corrupt> {
        pad(&mut self.value);
        let source = self.bytes_of(part);
        let len = self.coder.symbol(self.columns.json_lengths, source.len() as u64)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let header = LongHeader::new(len.saturating_add(LONG_HEADER_BYTES), false);
        let header =
            header.ok_or_else(|| corrupt("cannot decode a value of jsonb: expected less than 1 GB"))?;
        self.value.extend_from_slice(&header.to_bytes());
        let (mut column, mut digits) = (self.columns.json_numbers, source);
        let mut left = len;
        if (MIN_NUMBER_BYTES..=MAX_NUMBER_BYTES).contains(&len) {
            let (head, after) = source.split_first_chunk().unwrap_or((&[0; NUMBER_HEAD], &[]));
            let head = self.coder.array(self.columns.json_heads, head)?;
            self.value.extend_from_slice(&head);
            (digits, left) = (after, len - NUMBER_HEAD);
            let may_add = self.columns.json_by_head.len() < MAX_HEADS;
            column = match self.columns.json_by_head.entry((len as u8, head)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) if may_add => {
                    *new.insert(self.coder.column(Kind::Rows(Class::Fixed, left as u16))?)
                }
                Entry::Vacant(_) => column,
            };
        }
        self.coder.bytes(column, digits, left, &mut self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};

    /// Returns `{"a": "xyz", "bc": 10, "d": [true, null, {"e": "2025-06-07 08:09"}]}` with `more` additional
    /// keys.
    fn value(more: usize) -> Vec<u8> {
        let mut json = Json { parts: Vec::new(), bytes: Vec::new() };
        let text = |json: &mut Json, bytes: &[u8]| {
            let start = json.bytes.len() as u32;
            json.bytes.extend_from_slice(bytes);
            Text { start, end: json.bytes.len() as u32 }
        };
        json.parts.push(Part::Container(OBJECT, 3 + more as u32));
        for key in [&b"a"[..], b"bc", b"d"] {
            let key = text(&mut json, key);
            json.parts.push(Part::Key(key));
        }
        for number in 0..more {
            let key = text(&mut json, format!("key {number}").as_bytes());
            json.parts.push(Part::Key(key));
        }
        let string = text(&mut json, b"xyz");
        json.parts.push(Part::Value(STRING, string));
        let number = text(&mut json, &[0, 0x80, 10, 0]);
        json.parts.push(Part::Value(NUMERIC, number));
        json.parts.extend([Part::Container(ARRAY, 3), Part::Literal(3), Part::Literal(NULL)]);
        json.parts.push(Part::Container(OBJECT, 1));
        let (key, string) = (text(&mut json, b"e"), text(&mut json, b"2025-06-07 08:09"));
        json.parts.extend([Part::Key(key), Part::Value(STRING, string)]);
        json.parts.extend(vec![Part::Literal(FALSE); more]);
        json.value().expect("a value")
    }

    #[test]
    fn values_are_restored_from_their_parts() {
        let values: Vec<Vec<u8>> = [0, 5, 90].map(value).into();
        let mut coder = Encoder::default();
        let mut columns = Columns::new(&mut coder).unwrap();
        for value in &values {
            let json = Json::parse(value).expect("a value");
            Json::code(&mut coder, &mut columns, Some(&json)).unwrap();
        }
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
        let mut columns = Columns::new(&mut coder).unwrap();
        for value in &values {
            let json = Json::code(&mut coder, &mut columns, None).unwrap();
            assert_eq!(json, *value);
        }
        coder.finish().unwrap();
    }

    #[test]
    fn the_layout_is_postgresqls() {
        // `{"a": true}`: header, entries, key.
        let mut expected = 0x2000_0001_u32.to_le_bytes().to_vec();
        expected.extend(0x8000_0001_u32.to_le_bytes());
        expected.extend(0x3000_0000_u32.to_le_bytes());
        expected.push(b'a');
        assert!(Json::parse(&expected).is_some());
    }

    #[test]
    fn random_parts_are_an_error_or_a_value() {
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) % bound
        };
        let mut values = 0;
        for containers in 0..400_u64 {
            let mut coder = Encoder::default();
            let columns = Columns::new(&mut coder).unwrap();
            let digits = coder.column(Kind::Rows(Class::Fixed, 9)).unwrap();
            // Some are nested as deeply as possible, some state more elements than there are.
            for _ in 0..containers / 4 {
                let code = [1 << 3 | 4, 2 << 3 | 2, 1 << 40 | 4, 5][below(4).min(containers / 100) as usize];
                coder.symbol(columns.json_forms, code).unwrap();
                coder.symbol(columns.json_forms, [5, 5, below(8)][below(3) as usize]).unwrap();
                coder.symbol(columns.json_lengths, [3, u64::MAX][usize::from(below(9) == 0)]).unwrap();
                coder.symbol(columns.json_digit_lengths, [9, 0, u64::MAX, 9][below(4) as usize]).unwrap();
                coder.bytes(digits, b"123456789", 9, &mut Vec::new()).unwrap();
                coder.bytes(columns.json_keys, b"k\0", 2, &mut Vec::new()).unwrap();
                coder.bytes(columns.json_strings, b"st\0", 3, &mut Vec::new()).unwrap();
                coder.bytes(columns.json_heads, b"12", 2, &mut Vec::new()).unwrap();
                coder.bytes(columns.json_numbers, b"123", 3, &mut Vec::new()).unwrap();
            }
            let chunk = coder.chunk(&mut Packer::new(1, true));
            let mut coder = Decoder::default();
            coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
            let mut columns = Columns::new(&mut coder).unwrap();
            // An error, or a value that has these parts.
            if let Ok(value) = Json::code(&mut coder, &mut columns, None) {
                assert_eq!(Json::parse(&value).and_then(|json| json.value()), Some(value));
                values += 1;
            }
        }
        assert!((1..200).contains(&values), "{values}");
    }

    #[test]
    fn a_type_is_compared_with_all_bits_of_its_number() {
        for (kind, is_one) in [(u64::from(NULL), true), (256 + u64::from(NULL), false), (7, false)] {
            let mut coder = Encoder::default();
            let columns = Columns::new(&mut coder).unwrap();
            coder.symbol(columns.json_forms, 1 << 3 | u64::from(ARRAY)).unwrap();
            coder.symbol(columns.json_forms, kind).unwrap();
            let chunk = coder.chunk(&mut Packer::new(1, true));
            let mut coder = Decoder::default();
            coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
            let mut columns = Columns::new(&mut coder).unwrap();
            assert_eq!(Json::code(&mut coder, &mut columns, None).is_ok(), is_one, "{kind}");
        }
    }

    #[test]
    fn damaged_values_are_not_parsed_or_restored_as_they_are() {
        let value = value(40);
        for at in 0..value.len() {
            assert!(Json::parse(&value[..at]).is_none());
            let mut other = value.clone();
            other[at] ^= 0x55;
            // The damaged bytes may be another valid value, but then this value is reconstructed exactly.
            if let Some(json) = Json::parse(&other) {
                assert_eq!(json.value(), Some(other));
            }
        }
    }
}

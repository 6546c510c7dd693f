//! Values of type `jsonb`, by their parts.
//!
//! A container has a header, an entry for each key and value (its type, and its length, or where it ends), and then the keys
//! and values themselves. All numbers in it follow from what is in it, so only that is coded: how many of what, and texts
//! and numbers, each kind beside its like.
//!
//! ```text
//! offset  width
//!      0      4  keys or elements 28 bits, what it is 4 bits (`JsonbContainer`)
//!      4    4 n  for each key, then each value: length or end 28 bits, type 3 bits, 1 bit: it is the end (`JEntry`)
//!                keys, then values; numbers and containers from the next multiple of 4 on
//! ```

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::{Corrupt, corrupt};

const COUNT: u32 = 0x0FFF_FFFF;
const OBJECT: u32 = 2;
const ARRAY: u32 = 4;
/// An array around a single value.
const SCALAR: u32 = 5;

const IS_END: u32 = 0x8000_0000;
/// Every so many entries say where they end (`JB_OFFSET_STRIDE`).
const STRIDE: usize = 32;

const STRING: u8 = 0;
const NUMERIC: u8 = 1;
const FALSE: u8 = 2;
const NULL: u8 = 4;
const CONTAINER: u8 = 5;
/// Of strings that are mostly digits, such as times and numbers: said of how they are coded, not a type.
const DIGITS: u8 = 6;

const DEEPEST: usize = 32;
/// Bytes that most values have room in, and the number of parts that most have.
const USUAL: usize = 512;
const USUAL_PARTS: usize = 32;

/// A part of a value, in the order in which parts are coded: a container, its keys, its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// What it is, and how many.
    Container(u32, u32),
    Key(Text),
    /// A string or a number.
    Value(u8, Text),
    /// True, false or null.
    Word(u8),
}

/// Where bytes are in the text of all parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Text {
    start: u32,
    end: u32,
}

impl Text {
    fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// A value in its parts.
pub struct Json {
    parts: Vec<Part>,
    bytes: Vec<u8>,
}

/// Where a field's values go.
pub struct Columns {
    forms: Column,
    keys: Column,
    strings: Column,
    lengths: Column,
    numbers: Column,
    /// Heads of numbers, which say sign, scale and weight, and by these and the length the rest.
    heads: Column,
    by_head: FxHashMap<(u8, [u8; NUMBER_HEAD]), Column>,
    /// Strings of digits: their lengths, and by these the strings beneath each other.
    digit_lengths: Column,
    digits: FxHashMap<u16, Column>,
    /// For use within.
    entries: Vec<u32>,
}

/// Whether a string is better put beneath others of its length.
fn is_digits(text: &[u8]) -> bool {
    const LENGTHS: std::ops::RangeInclusive<usize> = 8..=MAX_DIGITS as usize;
    LENGTHS.contains(&text.len())
        && text.iter().filter(|byte| byte.is_ascii_digit()).count() * 2 >= text.len()
}

const MAX_DIGITS: u16 = 64;

const NUMBER_HEAD: usize = 2;
/// Numbers of other lengths are not put beneath their like.
const MIN_NUMBER_BYTES: usize = 3;
const MAX_NUMBER_BYTES: usize = 24;
/// Nor are those with other heads than so many.
const MAX_HEADS: usize = 64;

impl Columns {
    /// Names them.
    pub fn new<S: Coder>(coder: &mut S) -> Result<Columns, Corrupt> {
        Ok(Columns {
            forms: coder.column(Kind::Symbols(Class::RowHeaders))?,
            keys: coder.column(Kind::Bytes(Class::Text))?,
            strings: coder.column(Kind::Bytes(Class::Text))?,
            lengths: coder.column(Kind::Symbols(Class::RowHeaders))?,
            numbers: coder.column(Kind::Bytes(Class::Fixed))?,
            heads: coder.column(Kind::Rows(Class::Fixed, NUMBER_HEAD as u16))?,
            by_head: FxHashMap::default(),
            digit_lengths: coder.column(Kind::Symbols(Class::RowHeaders))?,
            digits: FxHashMap::default(),
            entries: Vec::new(),
        })
    }
}

impl Json {
    /// The parts of a value; nothing if it would not come back from them.
    pub fn of(value: &[u8]) -> Option<Json> {
        let header = u32::from_le_bytes(*value.first_chunk()?);
        if !matches!(header >> 28, OBJECT | ARRAY | SCALAR) || (header & COUNT) as usize > value.len() / 4 {
            return None;
        }
        let mut parts = Vec::with_capacity(USUAL_PARTS);
        take_apart(value, 0, value.len(), &mut parts, 0)?;
        let json = Json { parts, bytes: value.to_vec() };
        let has_zero = |part: &Part| match part {
            Part::Key(text) | Part::Value(STRING, text) => text.of(value).contains(&0),
            _ => false,
        };
        (!json.parts.iter().any(has_zero) && json.value()? == value).then_some(json)
    }

    /// The value.
    pub fn value(&self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(self.bytes.len() * 2);
        let mut parts = self.parts.iter();
        let Some(&Part::Container(what, count)) = parts.next() else { return None };
        put_container(what, count, &mut parts, &self.bytes, &mut out)?;
        parts.next().is_none().then_some(out)
    }

    /// Codes a value by its parts, and gives it back.
    pub fn code<S: Coder>(
        coder: &mut S,
        columns: &mut Columns,
        source: Option<&Json>,
    ) -> Result<Vec<u8>, Corrupt> {
        let parts = source.map_or(&[][..], |json| &json.parts);
        let bytes = source.map_or(&[][..], |json| &json.bytes);
        let mut entries = std::mem::take(&mut columns.entries);
        entries.clear();
        let mut tuple_coder = JsonCoder {
            coder,
            columns,
            parts: parts.iter(),
            bytes,
            value: Vec::with_capacity(USUAL),
            entries,
        };
        let first = tuple_coder.parts.next().copied();
        tuple_coder.container(first, 0)?;
        let JsonCoder { value, entries, columns, .. } = tuple_coder;
        columns.entries = entries;
        Ok(value)
    }
}

fn word_at(value: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*value.get(at..)?.first_chunk()?))
}

/// The parts of the container that begins at `from` and ends at `to`.
fn take_apart(value: &[u8], from: usize, to: usize, parts: &mut Vec<Part>, depth: usize) -> Option<()> {
    let from = from.next_multiple_of(4);
    let header = word_at(value, from)?;
    let (what, count) = (header >> 28, header & COUNT);
    let entries = match what {
        OBJECT => 2 * count as usize,
        ARRAY | SCALAR => count as usize,
        _ => return None,
    };
    let start = (from + 4).checked_add(entries.checked_mul(4)?)?;
    if start > to || depth == DEEPEST {
        return None;
    }
    parts.push(Part::Container(what, count));
    let mut at = start;
    for number in 0..entries {
        let entry = word_at(value, from + 4 + 4 * number)?;
        let said = (entry & COUNT) as usize;
        let end = if entry & IS_END != 0 { start.checked_add(said)? } else { at.checked_add(said)? };
        if end < at || end > to {
            return None;
        }
        let of = |start: usize| Text { start: start.min(end) as u32, end: end as u32 };
        let is_key = what == OBJECT && number < count as usize;
        match (entry >> 28 & 7) as u8 {
            STRING if is_key => parts.push(Part::Key(of(at))),
            _ if is_key => return None,
            STRING => parts.push(Part::Value(STRING, of(at))),
            // The header of a varlena says the length again.
            NUMERIC => parts.push(Part::Value(NUMERIC, of(at.next_multiple_of(4) + 4))),
            CONTAINER => take_apart(value, at, end, parts, depth + 1)?,
            word @ FALSE..=NULL => parts.push(Part::Word(word)),
            _ => return None,
        }
        at = end;
    }
    Some(())
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends a container of the parts that follow.
fn put_container<'a>(
    what: u32,
    count: u32,
    parts: &mut impl Iterator<Item = &'a Part>,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    pad(out);
    let entries = if what == OBJECT { 2 * count as usize } else { count as usize };
    out.extend_from_slice(&(what << 28 | count).to_le_bytes());
    let entries_at = out.len();
    out.resize(entries_at + 4 * entries, 0);
    let start = out.len();
    for number in 0..entries {
        let from = out.len();
        let kind = match *parts.next()? {
            Part::Key(text) | Part::Value(STRING, text) => {
                out.extend_from_slice(text.of(bytes));
                STRING
            }
            Part::Value(kind, text) => {
                pad(out);
                let text = text.of(bytes);
                out.extend((u32::try_from(text.len()).ok()?.checked_add(4)? << 2).to_le_bytes());
                out.extend_from_slice(text);
                kind
            }
            Part::Word(word) => word,
            Part::Container(what, count) => {
                put_container(what, count, parts, bytes, out)?;
                CONTAINER
            }
        };
        let (len, end) = (out.len() - from, out.len() - start);
        let said = if number.is_multiple_of(STRIDE) { IS_END | end as u32 } else { len as u32 };
        if end as u64 > u64::from(COUNT) {
            return None;
        }
        let entry = said | u32::from(kind) << 28;
        out[entries_at + 4 * number..entries_at + 4 * number + 4].copy_from_slice(&entry.to_le_bytes());
    }
    Some(())
}

/// One of the two directions.
struct JsonCoder<'a, S> {
    coder: &'a mut S,
    columns: &'a mut Columns,
    /// What is left of the parts, when encoding, and where their bytes are.
    parts: std::slice::Iter<'a, Part>,
    bytes: &'a [u8],
    value: Vec<u8>,
    /// Entries of the containers that are being made, the inner ones last.
    entries: Vec<u32>,
}

impl<'a, S: Coder> JsonCoder<'a, S> {
    /// A container. Its entries are put before its content only when all of that has come: how many there are is not
    /// believed before.
    fn container(&mut self, part: Option<Part>, depth: usize) -> Result<(), Corrupt> {
        let wrong = Corrupt("a value of jsonb can't be");
        let code = match part {
            Some(Part::Container(what, count)) => u64::from(count) << 3 | u64::from(what),
            _ => 0,
        };
        let code = self.coder.symbol(self.columns.forms, code)?;
        let (what, count) = ((code & 7) as u32, code >> 3);
        let count = u32::try_from(count).ok().filter(|&count| count <= COUNT >> 4).ok_or(wrong)?;
        if !matches!(what, OBJECT | ARRAY | SCALAR) || depth > DEEPEST {
            return Err(wrong);
        }
        pad(&mut self.value);
        self.value.extend_from_slice(&(what << 28 | count).to_le_bytes());
        let (start, first) = (self.value.len(), self.entries.len());
        if what == OBJECT {
            for _ in 0..count {
                let (part, from) = (self.parts.next().copied(), self.value.len());
                let key = self.bytes_of(part);
                self.coder.text(self.columns.keys, key, &mut self.value)?;
                self.entry(STRING, (start, from), first)?;
            }
        }
        for _ in 0..count {
            let (part, from) = (self.parts.next().copied(), self.value.len());
            let code = match part {
                Some(Part::Value(STRING, text)) if is_digits(text.of(self.bytes)) => DIGITS,
                Some(Part::Value(kind, _)) => kind,
                Some(Part::Word(word)) => word,
                _ => CONTAINER,
            };
            let kind = match narrow(self.coder.symbol(self.columns.forms, code.into())?)? {
                STRING => {
                    let text = self.bytes_of(part);
                    self.coder.text(self.columns.strings, text, &mut self.value)?;
                    STRING
                }
                DIGITS => {
                    self.digits(part)?;
                    STRING
                }
                NUMERIC => {
                    self.number(part)?;
                    NUMERIC
                }
                CONTAINER => {
                    self.container(part, depth + 1)?;
                    CONTAINER
                }
                word @ FALSE..=NULL => word,
                _ => return Err(wrong),
            };
            self.entry(kind, (start, from), first)?;
        }
        let (entries, end) = (&self.entries[first..], self.value.len());
        self.value.resize(end + 4 * entries.len(), 0);
        self.value.copy_within(start..end, start + 4 * entries.len());
        for (place, entry) in self.value[start..].chunks_exact_mut(4).zip(entries) {
            place.copy_from_slice(&entry.to_le_bytes());
        }
        self.entries.truncate(first);
        Ok(())
    }

    /// The entry of what was made from `from` on, in the container whose content begins at `start`.
    fn entry(&mut self, kind: u8, (start, from): (usize, usize), first: usize) -> Result<(), Corrupt> {
        let (len, end) = (self.value.len() - from, self.value.len() - start);
        if end as u64 > u64::from(COUNT) {
            return Err(corrupt("a value of jsonb can't be so long"));
        }
        let says_end = (self.entries.len() - first).is_multiple_of(STRIDE);
        let said = if says_end { IS_END | end as u32 } else { len as u32 };
        self.entries.push(said | u32::from(kind) << 28);
        Ok(())
    }

    /// The bytes of a part, when encoding.
    fn bytes_of(&self, part: Option<Part>) -> &'a [u8] {
        match part {
            Some(Part::Key(text) | Part::Value(_, text)) => text.of(self.bytes),
            _ => &[],
        }
    }

    fn digits(&mut self, part: Option<Part>) -> Result<(), Corrupt> {
        let source = self.bytes_of(part);
        let len = self.coder.symbol(self.columns.digit_lengths, source.len() as u64)?;
        let len = u16::try_from(len).ok().filter(|len| (1..=MAX_DIGITS).contains(len));
        let len = len.ok_or_else(|| corrupt("a string of digits can't be so long"))?;
        let column = match self.columns.digits.entry(len) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(self.coder.column(Kind::Rows(Class::Fixed, len))?),
        };
        self.coder.bytes(column, source, len.into(), &mut self.value)
    }

    fn number(&mut self, part: Option<Part>) -> Result<(), Corrupt> {
        pad(&mut self.value);
        let source = self.bytes_of(part);
        let len = self.coder.symbol(self.columns.lengths, source.len() as u64)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let header = u32::try_from(len).ok().and_then(|len| len.checked_add(4));
        let header = header.ok_or_else(|| corrupt("a value of jsonb can't be so long"))? << 2;
        self.value.extend_from_slice(&header.to_le_bytes());
        let (mut column, mut rest) = (self.columns.numbers, source);
        let mut left = len;
        if (MIN_NUMBER_BYTES..=MAX_NUMBER_BYTES).contains(&len) {
            let (head, after) = source.split_first_chunk().unwrap_or((&[0; NUMBER_HEAD], &[]));
            let head = self.coder.array(self.columns.heads, head)?;
            self.value.extend_from_slice(&head);
            (rest, left) = (after, len - NUMBER_HEAD);
            let room = self.columns.by_head.len() < MAX_HEADS;
            column = match self.columns.by_head.entry((len as u8, head)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) if room => {
                    *new.insert(self.coder.column(Kind::Rows(Class::Fixed, left as u16))?)
                }
                Entry::Vacant(_) => column,
            };
        }
        self.coder.bytes(column, rest, left, &mut self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};

    /// `{"a": "xyz", "bc": 10, "d": [true, null, {"e": "2025-06-07 08:09"}]}` and more keys than a stride.
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
        json.parts.extend([Part::Container(ARRAY, 3), Part::Word(3), Part::Word(NULL)]);
        json.parts.push(Part::Container(OBJECT, 1));
        let (key, string) = (text(&mut json, b"e"), text(&mut json, b"2025-06-07 08:09"));
        json.parts.extend([Part::Key(key), Part::Value(STRING, string)]);
        json.parts.extend(vec![Part::Word(FALSE); more]);
        json.value().expect("a value")
    }

    #[test]
    fn values_come_back_from_their_parts() {
        let values: Vec<Vec<u8>> = [0, 5, 90].map(value).into();
        let mut coder = Encoder::default();
        let mut columns = Columns::new(&mut coder).unwrap();
        for value in &values {
            let json = Json::of(value).expect("a value");
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
        // `{"a": true}`: its header, the entries, the key.
        let mut expected = 0x2000_0001_u32.to_le_bytes().to_vec();
        expected.extend(0x8000_0001_u32.to_le_bytes());
        expected.extend(0x3000_0000_u32.to_le_bytes());
        expected.push(b'a');
        assert!(Json::of(&expected).is_some());
    }

    #[test]
    fn no_parts_make_decoding_fail_badly() {
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
            // Some as deep as they get, some with more than there is.
            for _ in 0..containers / 4 {
                let code = [1 << 3 | 4, 2 << 3 | 2, 1 << 40 | 4, 5][below(4).min(containers / 100) as usize];
                coder.symbol(columns.forms, code).unwrap();
                coder.symbol(columns.forms, [5, 5, below(8)][below(3) as usize]).unwrap();
                coder.symbol(columns.lengths, [3, u64::MAX][usize::from(below(9) == 0)]).unwrap();
                coder.symbol(columns.digit_lengths, [9, 0, u64::MAX, 9][below(4) as usize]).unwrap();
                coder.bytes(digits, b"123456789", 9, &mut Vec::new()).unwrap();
                coder.bytes(columns.keys, b"k\0", 2, &mut Vec::new()).unwrap();
                coder.bytes(columns.strings, b"st\0", 3, &mut Vec::new()).unwrap();
                coder.bytes(columns.heads, b"12", 2, &mut Vec::new()).unwrap();
                coder.bytes(columns.numbers, b"123", 3, &mut Vec::new()).unwrap();
            }
            let chunk = coder.chunk(&mut Packer::new(1, true));
            let mut coder = Decoder::default();
            coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
            let mut columns = Columns::new(&mut coder).unwrap();
            // An error, or a value that has these parts.
            if let Ok(value) = Json::code(&mut coder, &mut columns, None) {
                assert_eq!(Json::of(&value).and_then(|json| json.value()), Some(value));
                values += 1;
            }
        }
        assert!((1..200).contains(&values), "{values}");
    }

    #[test]
    fn what_a_value_is_takes_all_of_its_number() {
        for (kind, is_one) in [(u64::from(NULL), true), (256 + u64::from(NULL), false), (7, false)] {
            let mut coder = Encoder::default();
            let columns = Columns::new(&mut coder).unwrap();
            coder.symbol(columns.forms, 1 << 3 | u64::from(ARRAY)).unwrap();
            coder.symbol(columns.forms, kind).unwrap();
            let chunk = coder.chunk(&mut Packer::new(1, true));
            let mut coder = Decoder::default();
            coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
            let mut columns = Columns::new(&mut coder).unwrap();
            assert_eq!(Json::code(&mut coder, &mut columns, None).is_ok(), is_one, "{kind}");
        }
    }

    #[test]
    fn what_is_no_value_has_no_parts() {
        let value = value(40);
        for at in 0..value.len() {
            assert!(Json::of(&value[..at]).is_none());
            let mut other = value.clone();
            other[at] ^= 0x55;
            // Another value, perhaps, but not one that would come back as this.
            if let Some(json) = Json::of(&other) {
                assert_eq!(json.value(), Some(other));
            }
        }
    }
}

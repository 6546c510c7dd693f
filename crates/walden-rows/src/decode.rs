//! Bytes of a tuple to values.
//!
//! Lengths come from tuples that may be damaged, or be read with the wrong columns: each is checked, and what does not fit is
//! an error of the value alone.

use walden_redo::compress::Method;
use walden_redo::page::varlena::{
    COMPRESSED_HEADER_BYTES, CompressionInfo, LONG_HEADER_BYTES, LongHeader, ShortHeader,
    TOAST_POINTER_BYTES, TOAST_POINTER_HEADER, toast_compression,
};

use crate::types::{Kind, Layout, Types, oid};
use crate::value::{Array, Dimension, Inet, Interval, Numeric, Range, Value, jsonb_text, tsvector_text};

/// Values within each other that are followed.
const MAX_DEPTH: usize = 64;
/// Dimensions of an array (`MAXDIM`).
const MAX_DIMENSIONS: usize = 6;
/// Bytes of the longest value (`MaxAllocSize`).
pub(crate) const MAX_VALUE_BYTES: usize = (1 << 30) - 1;
/// The least part of its length that pglz and lz4 compress a value to, so that no header makes us allocate more.
const MAX_RATIO: usize = 256;

/// A column's bytes in a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<'a> {
    /// Of fixed length.
    Fixed(&'a [u8]),
    /// Of variable length, without its header.
    Plain(&'a [u8]),
    /// Compressed; begins with `va_tcinfo`.
    Compressed(&'a [u8]),
    /// In a TOAST table.
    Toasted(ToastPointer),
}

/// Where a value in a TOAST table is (`varatt_external`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToastPointer {
    /// Bytes of the value with a header of 4 bytes.
    pub raw_bytes: u32,
    /// Bytes stored, and how they are compressed.
    pub stored: CompressionInfo,
    /// `va_valueid`
    pub value: u32,
    /// `va_toastrelid`: OID of the TOAST table.
    pub relation: u32,
}

impl ToastPointer {
    /// Reads a reference, its header included.
    fn read(bytes: &[u8]) -> Option<ToastPointer> {
        let content = bytes.strip_prefix(&TOAST_POINTER_HEADER)?;
        let (words, _) = content.as_chunks::<4>();
        let &[raw, info, value, relation] = words.first_chunk()?;
        Some(ToastPointer {
            raw_bytes: u32::from_le_bytes(raw),
            stored: CompressionInfo::from_bytes(info),
            value: u32::from_le_bytes(value),
            relation: u32::from_le_bytes(relation),
        })
    }

    /// Whether the stored bytes are compressed (`VARATT_EXTERNAL_IS_COMPRESSED`).
    pub fn is_compressed(&self) -> bool {
        u64::from(self.stored.raw_bytes) + LONG_HEADER_BYTES as u64
            <= u64::from(self.raw_bytes).saturating_sub(1)
    }
}

/// Reads the next value at `at`, which lies behind it afterwards; `None` if the bytes end before its end.
pub(crate) fn next<'a>(bytes: &'a [u8], at: &mut usize, layout: Layout) -> Option<Stored<'a>> {
    let Layout { length, align } = layout;
    if length >= 0 {
        let start = at.next_multiple_of(align);
        let value = bytes.get(start..start + usize::from(length.unsigned_abs()))?;
        *at = start + value.len();
        return Some(Stored::Fixed(value));
    }
    if length == -2 {
        let start = at.next_multiple_of(align);
        let text = bytes.get(start..)?;
        let end = text.iter().position(|&byte| byte == 0)?;
        *at = start + end + 1;
        return Some(Stored::Plain(&text[..end]));
    }
    // Padding is zero, and a header of one byte is not (`att_align_pointer`).
    let start = if *bytes.get(*at)? != 0 { *at } else { at.next_multiple_of(align) };
    let rest = bytes.get(start..)?;
    match ShortHeader::of(*rest.first()?) {
        Some(ShortHeader::External) => {
            let pointer = ToastPointer::read(rest.get(..TOAST_POINTER_BYTES)?)?;
            *at = start + TOAST_POINTER_BYTES;
            Some(Stored::Toasted(pointer))
        }
        Some(ShortHeader::Value { size }) => {
            *at = start + size;
            Some(Stored::Plain(rest.get(1..size)?))
        }
        None => {
            // A long header is aligned, even where the byte before it is not padding.
            let start = at.next_multiple_of(align);
            let rest = bytes.get(start..)?;
            let header = LongHeader::read(rest)?;
            let content = rest.get(LONG_HEADER_BYTES..header.size as usize)?;
            *at = start + header.size as usize;
            Some(if header.is_compressed { Stored::Compressed(content) } else { Stored::Plain(content) })
        }
    }
}

/// Decompresses a value whose bytes begin with `va_tcinfo`.
pub(crate) fn decompress(bytes: &[u8]) -> Option<Vec<u8>> {
    let (info, stored) = bytes.split_first_chunk::<{ COMPRESSED_HEADER_BYTES - LONG_HEADER_BYTES }>()?;
    let info = CompressionInfo::from_bytes(*info);
    let method = match info.method {
        toast_compression::PGLZ => Method::Pglz,
        toast_compression::LZ4 => Method::Lz4,
        _ => return None,
    };
    let length = info.raw_bytes as usize;
    if length > MAX_VALUE_BYTES || length > stored.len().saturating_mul(MAX_RATIO) {
        return None;
    }
    let mut raw = vec![0; length];
    (method.decompress(stored, &mut raw)? == length).then_some(raw)
}

/// Reads a value of a type from its bytes, without the header of its length.
///
/// What cannot be read is [`Value::Unknown`].
pub(crate) fn value(types: &Types, type_oid: u32, bytes: &[u8]) -> Value {
    read(types, type_oid, bytes, 0).unwrap_or_else(|| Value::Unknown(bytes.to_vec()))
}

fn read(types: &Types, type_oid: u32, bytes: &[u8], depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    match types.kind(type_oid) {
        Kind::Base(base) => base_value(base, bytes),
        Kind::Enum => {
            let oid = u32::from_le_bytes(bytes.try_into().ok()?);
            Some(Value::Enum { oid, label: types.label(type_oid, oid).map(str::to_owned) })
        }
        Kind::Array { element } => array(types, element, bytes, depth).map(Value::Array),
        Kind::Composite => composite(types, type_oid, bytes, depth),
        Kind::Range { subtype } => range_value(types, subtype, bytes, depth).map(Value::Range),
        Kind::Multirange { subtype } => multirange(types, subtype, bytes, depth),
        Kind::Unknown => None,
    }
}

fn base_value(base: u32, bytes: &[u8]) -> Option<Value> {
    let text = || std::str::from_utf8(bytes).ok().map(str::to_owned);
    Some(match base {
        oid::BOOL => Value::Bool(*bytes.first()? != 0),
        oid::BYTEA => Value::Bytea(bytes.to_vec()),
        oid::CHAR => Value::Char(*bytes.first()?),
        oid::NAME => {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            Value::Text(std::str::from_utf8(&bytes[..end]).ok()?.to_owned())
        }
        oid::INT8 => Value::Int8(i64::from_le_bytes(bytes.try_into().ok()?)),
        oid::INT2 => Value::Int2(i16::from_le_bytes(bytes.try_into().ok()?)),
        oid::INT4 => Value::Int4(i32::from_le_bytes(bytes.try_into().ok()?)),
        oid::TEXT | oid::BPCHAR | oid::VARCHAR | oid::XML => Value::Text(text()?),
        oid::JSON => Value::Json(text()?),
        oid::JSONB => Value::Jsonb(jsonb_text(bytes)?),
        oid::TSVECTOR => Value::TsVector(tsvector_text(bytes)?),
        oid::NUMERIC => Value::Numeric(Numeric::parse(bytes)?),
        oid::FLOAT4 => Value::Float4(f32::from_le_bytes(bytes.try_into().ok()?)),
        oid::FLOAT8 => Value::Float8(f64::from_le_bytes(bytes.try_into().ok()?)),
        oid::MONEY => Value::Money(i64::from_le_bytes(bytes.try_into().ok()?)),
        oid::DATE => Value::Date(i32::from_le_bytes(bytes.try_into().ok()?)),
        oid::TIME => Value::Time(i64::from_le_bytes(bytes.try_into().ok()?)),
        oid::TIMESTAMP => Value::Timestamp(i64::from_le_bytes(bytes.try_into().ok()?)),
        oid::TIMESTAMPTZ => Value::TimestampTz(i64::from_le_bytes(bytes.try_into().ok()?)),
        oid::TIMETZ => {
            let (micros, zone) = bytes.split_first_chunk::<8>()?;
            Value::TimeTz {
                micros: i64::from_le_bytes(*micros),
                zone: i32::from_le_bytes(zone.try_into().ok()?),
            }
        }
        oid::INTERVAL => {
            let (micros, rest) = bytes.split_first_chunk::<8>()?;
            let (days, months) = rest.split_first_chunk::<4>()?;
            Value::Interval(Interval {
                months: i32::from_le_bytes(months.try_into().ok()?),
                days: i32::from_le_bytes(*days),
                micros: i64::from_le_bytes(*micros),
            })
        }
        oid::UUID => Value::Uuid(bytes.try_into().ok()?),
        oid::INET => Value::Inet(Inet::parse(bytes, false)?),
        oid::CIDR => Value::Inet(Inet::parse(bytes, true)?),
        oid::MACADDR => Value::MacAddr(bytes.try_into().ok()?),
        oid::MACADDR8 => Value::MacAddr8(bytes.try_into().ok()?),
        oid::BIT | oid::VARBIT => {
            let (count, bytes) = bytes.split_first_chunk::<4>()?;
            let count = u32::from_le_bytes(*count);
            (count as usize <= 8 * bytes.len()).then(|| Value::Bits { count, bytes: bytes.to_vec() })?
        }
        oid::TID => {
            let &[h0, h1, l0, l1, o0, o1] = bytes.first_chunk()?;
            let block =
                u32::from(u16::from_le_bytes([h0, h1])) << 16 | u32::from(u16::from_le_bytes([l0, l1]));
            Value::Tid { block, offset: u16::from_le_bytes([o0, o1]) }
        }
        oid::PG_LSN => Value::Lsn(u64::from_le_bytes(bytes.try_into().ok()?)),
        oid::XID8 => Value::Xid8(u64::from_le_bytes(bytes.try_into().ok()?)),
        oid::POINT..=oid::POLYGON | oid::LINE | oid::CIRCLE => return shape(base, bytes),
        _ => Value::Oid(u32::from_le_bytes(bytes.try_into().ok()?)),
    })
}

fn floats<const N: usize>(bytes: &[u8]) -> Option<[f64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(f64::from_le_bytes))
}

fn points(bytes: &[u8]) -> Option<Vec<[f64; 2]>> {
    let (points, rest) = bytes.as_chunks::<16>();
    rest.is_empty().then(|| points.iter().filter_map(|point| floats(point)).collect())
}

fn shape(base: u32, bytes: &[u8]) -> Option<Value> {
    /// `npts`, `closed` and padding of `PATH`.
    const PATH_HEADER: usize = 12;
    /// `npts` and the bounding box of `POLYGON`.
    const POLYGON_HEADER: usize = 36;
    Some(match base {
        oid::POINT => Value::Point(floats(bytes)?),
        oid::LSEG => Value::Lseg(floats(bytes)?),
        oid::BOX => Value::Box(floats(bytes)?),
        oid::LINE => Value::Line(floats(bytes)?),
        oid::CIRCLE => Value::Circle(floats(bytes)?),
        oid::PATH => {
            let closed = bytes.get(4..8)?.iter().any(|&byte| byte != 0);
            Value::Path { closed, points: points(bytes.get(PATH_HEADER..)?)? }
        }
        oid::POLYGON => Value::Polygon(points(bytes.get(POLYGON_HEADER..)?)?),
        _ => return None,
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// The value at `at` of bytes that begin where the whole value's header of 4 bytes does, as alignment counts from there.
fn inner(types: &Types, of: u32, whole: &[u8], at: &mut usize, depth: usize) -> Option<Value> {
    let layout = types.layout(of)?;
    match next(whole, at, layout)? {
        Stored::Fixed(bytes) | Stored::Plain(bytes) => {
            Some(read(types, of, bytes, depth + 1).unwrap_or_else(|| Value::Unknown(bytes.to_vec())))
        }
        Stored::Compressed(bytes) => read(types, of, &decompress(bytes)?, depth + 1),
        // Values within others are never in a TOAST table (`toast_flatten_tuple_to_datum`).
        Stored::Toasted(_) => None,
    }
}

/// A value's bytes as they are with the header of 4 bytes that was removed.
fn with_header(bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(LONG_HEADER_BYTES + bytes.len());
    whole.extend([0; LONG_HEADER_BYTES]);
    whole.extend(bytes);
    whole
}

/// `ArrayType`: number of dimensions, where the data begins or 0, type of the elements, lengths, lower bounds, null bitmap.
fn array(types: &Types, element: u32, bytes: &[u8], depth: usize) -> Option<Array> {
    const HEADER: usize = 16;
    let whole = with_header(bytes);
    let rank = number(&whole, 4)? as usize;
    let data_at = number(&whole, 8)? as usize;
    let element_type = number(&whole, 12)?;
    // Arrays of a domain have the domain as their elements' type.
    let element = if element_type != 0 { element_type } else { element };
    if rank > MAX_DIMENSIONS {
        return None;
    }
    let mut dimensions = Vec::with_capacity(rank);
    let mut count: usize = if rank == 0 { 0 } else { 1 };
    for index in 0..rank {
        let length = number(&whole, HEADER + 4 * index)? as usize;
        let lower = number(&whole, HEADER + 4 * (rank + index))?.cast_signed();
        // An empty array has no dimensions.
        if length == 0 {
            return None;
        }
        count = count.checked_mul(length).filter(|&count| count <= 8 * whole.len())?;
        dimensions.push(Dimension { length, lower });
    }
    let bitmap_at = HEADER + 8 * rank;
    let mut at = if data_at == 0 { bitmap_at.next_multiple_of(8) } else { data_at };
    let mut elements = Vec::new();
    for index in 0..count {
        let is_null = data_at != 0 && whole.get(bitmap_at + index / 8)? >> (index % 8) & 1 == 0;
        let value = if is_null { None } else { Some(inner(types, element, &whole, &mut at, depth)?) };
        elements.push(value);
    }
    Some(Array { dimensions, elements, element_type: element })
}

/// What a range has (`RANGE_*` in `rangetypes.h`).
mod range_flags {
    pub const EMPTY: u8 = 0x01;
    pub const LOWER_INCLUSIVE: u8 = 0x02;
    pub const UPPER_INCLUSIVE: u8 = 0x04;
    pub const LOWER_INFINITE: u8 = 0x08;
    pub const UPPER_INFINITE: u8 = 0x10;
}

/// `RangeType`: type, bounds, flags.
fn range_value(types: &Types, subtype: u32, bytes: &[u8], depth: usize) -> Option<Range> {
    let (flags, bounds) = bytes.split_last()?;
    let mut at = LONG_HEADER_BYTES + 4;
    bounds.get(..4)?;
    range(types, subtype, &with_header(bounds), &mut at, *flags, depth)
}

/// The bounds of a range from `at` on.
fn range(
    types: &Types,
    subtype: u32,
    whole: &[u8],
    at: &mut usize,
    flags: u8,
    depth: usize,
) -> Option<Range> {
    let mut bound = |infinite: u8| match flags & (range_flags::EMPTY | infinite) {
        0 => inner(types, subtype, whole, at, depth).map(|value| Some(Box::new(value))),
        _ => Some(None),
    };
    let (lower, upper) = (bound(range_flags::LOWER_INFINITE)?, bound(range_flags::UPPER_INFINITE)?);
    Some(Range {
        is_empty: flags & range_flags::EMPTY != 0,
        lower,
        upper,
        has_lower: flags & range_flags::LOWER_INCLUSIVE != 0,
        has_upper: flags & range_flags::UPPER_INCLUSIVE != 0,
    })
}

/// `MultirangeType`: type, count, offsets of all bounds but the first, flags, bounds.
fn multirange(types: &Types, subtype: u32, bytes: &[u8], depth: usize) -> Option<Value> {
    let whole = with_header(bytes);
    let count = number(&whole, 8)? as usize;
    let flags_at = 12 + 4 * count.saturating_sub(1).min(whole.len());
    let flags = whole.get(flags_at..flags_at.checked_add(count)?)?;
    let align = types.layout(subtype)?.align;
    let mut at = (flags_at + count).next_multiple_of(align);
    let mut ranges = Vec::with_capacity(count);
    for &flags in flags {
        // Each range's bounds begin where the type's alignment allows it.
        at = at.next_multiple_of(align);
        ranges.push(range(types, subtype, &whole, &mut at, flags, depth)?);
    }
    Some(Value::Multirange(ranges))
}

/// A composite value: a heap tuple with the header of 4 bytes as its first field.
fn composite(types: &Types, type_oid: u32, bytes: &[u8], depth: usize) -> Option<Value> {
    let columns = types.columns(type_oid)?;
    let whole = with_header(bytes);
    let tuple = crate::tuple::Tuple::of(&whole)?;
    let mut values = Vec::with_capacity(columns.len());
    for (column, stored) in columns.iter().zip(tuple.attributes(columns)) {
        let value = match stored.ok()? {
            None => None,
            Some(Stored::Fixed(bytes) | Stored::Plain(bytes)) => {
                read(types, column.type_oid, bytes, depth + 1)
            }
            Some(Stored::Compressed(bytes)) => read(types, column.type_oid, &decompress(bytes)?, depth + 1),
            Some(Stored::Toasted(_)) => return None,
        };
        if !column.is_dropped {
            values.push(value);
        }
    }
    Some(Value::Record(values))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_source::names::{Column, Type};

    use super::*;
    use crate::tuple::Tuple;

    fn column(type_oid: u32, length: i16, align: char) -> Column {
        Column::plain(1, "c", type_oid, length, align)
    }

    /// Types of users: an enum, a composite type with an array of itself, a domain of itself, a range.
    fn types() -> Types {
        let mut types = Types::default();
        let base = Type { length: -1, align: 'i', ..Type::default() };
        let all = [
            Type { oid: 20_000, kind: 'e', length: 4, labels: vec![(1, "one".to_owned())], ..base.clone() },
            Type {
                oid: 20_001,
                kind: 'c',
                align: 'd',
                columns: vec![column(20_002, -1, 'd')],
                ..base.clone()
            },
            Type { oid: 20_002, kind: 'b', align: 'd', element: 20_001, is_array: true, ..base.clone() },
            Type { oid: 20_003, kind: 'd', base: 20_003, ..base.clone() },
            Type { oid: 20_004, kind: 'r', subtype: oid::TEXT, ..base },
        ];
        all.into_iter().for_each(|of| drop(types.set(of.oid, Some(of))));
        types
    }

    const OIDS: [u32; 32] = [
        16, 17, 18, 19, 20, 25, 602, 604, 650, 869, 1000, 1007, 1009, 1020, 1082, 1114, 1186, 1231, 1266,
        1560, 1700, 3614, 3802, 3807, 3904, 3908, 4451, 4532, 20_000, 20_001, 20_002, 20_004,
    ];

    proptest! {
        /// Whatever the bytes are, they are a value or unknown, and can be printed.
        #[test]
        fn no_bytes_are_too_strange(
            type_oid in proptest::sample::select(&OIDS[..]),
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(1), 0_u8..12], 0..200),
        ) {
            let value = value(&types(), type_oid, &bytes);
            prop_assert!(value.to_string().len() < 200_000 * bytes.len().max(1));
        }

        /// Tuples are no longer than they are, whatever their headers say.
        #[test]
        fn no_tuple_is_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let columns: Vec<Column> =
                [(20, 8, 'd'), (25, -1, 'i'), (21, 2, 's'), (2275, -2, 'c'), (20_001, -1, 'd'), (16, 1, 'c')]
                    .into_iter()
                    .cycle()
                    .take(60)
                    .map(|(oid, length, align)| column(oid, length, align))
                    .collect();
            if let Some(tuple) = Tuple::of(&bytes) {
                for stored in tuple.attributes(&columns).flatten().flatten() {
                    match stored {
                        Stored::Fixed(part) | Stored::Plain(part) | Stored::Compressed(part) => {
                            prop_assert!(part.len() <= bytes.len());
                            decompress(part);
                        }
                        Stored::Toasted(_) => {}
                    }
                }
            }
        }
    }

    #[test]
    fn a_domain_of_itself_is_unknown() {
        assert_eq!(value(&types(), 20_003, &[1, 2]), Value::Unknown(vec![1, 2]));
    }
}

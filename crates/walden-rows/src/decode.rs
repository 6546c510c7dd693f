//! Decodes bytes of a column to values.
//!
//! Lengths come from tuples that may be damaged, or decoded with the wrong columns. Each length is checked,
//! and a mismatch affects that value only.

use walden_redo::page::Tid;
use walden_redo::page::varlena::LONG_HEADER_BYTES;

use crate::stored_value::{Stored, decompress, next};
use crate::tuple::Tuple;
use crate::types::{Kind, Types, oid};
use crate::value::{
    Array, Dimension, Float, Inet, Interval, Numeric, Range, Value, hex_bytes, jsonb_text, tsvector_text,
};

/// Maximum depth of nested values.
const MAX_DEPTH: usize = 64;
/// Maximum number of dimensions of an array (`MAXDIM`).
const MAX_DIMENSIONS: usize = 6;
/// Decodes a value of a type from its bytes, without a length header.
///
/// A value that cannot be decoded becomes [`Value::Unknown`].
pub(crate) fn value(types: &Types, type_oid: u32, bytes: &[u8]) -> Value {
    read(types, type_oid, bytes, 0).unwrap_or_else(|| Value::Unknown(bytes.to_vec()))
}

/// Parses a value from PostgreSQL's text, if the text determines it. Other values become [`Value::Printed`].
pub(crate) fn printed(types: &Types, type_oid: u32, text: &str) -> Value {
    let value = match types.kind(type_oid) {
        Kind::Base(oid::BOOL) => match text {
            "t" => Some(Value::Bool(true)),
            "f" => Some(Value::Bool(false)),
            _ => None,
        },
        Kind::Base(oid::INT2) => text.parse().ok().map(Value::Int2),
        Kind::Base(oid::INT4) => text.parse().ok().map(Value::Int4),
        Kind::Base(oid::INT8) => text.parse().ok().map(Value::Int8),
        Kind::Base(oid::OID) => text.parse().ok().map(Value::Oid),
        Kind::Base(oid::FLOAT4) => text.parse().ok().map(|number| Value::Float4(Float(number))),
        Kind::Base(oid::FLOAT8) => text.parse().ok().map(|number| Value::Float8(Float(number))),
        Kind::Base(oid::BYTEA) => text.strip_prefix("\\x").and_then(hex_bytes).map(Value::Bytea),
        Kind::Base(oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::NAME | oid::REFCURSOR) => {
            Some(Value::Text(text.to_owned()))
        }
        Kind::Base(base) => Value::parse_text(base, text),
        _ => None,
    };
    value.unwrap_or_else(|| Value::Printed(text.to_owned()))
}

fn read(types: &Types, type_oid: u32, bytes: &[u8], depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    match types.kind(type_oid) {
        Kind::Base(base) => base_value(types, base, bytes),
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

fn base_value(types: &Types, base: u32, bytes: &[u8]) -> Option<Value> {
    let encoding = types.encoding;
    let text = || encoding.decode(bytes);
    Some(match base {
        oid::BOOL => Value::Bool(*bytes.first()? != 0),
        oid::BYTEA => Value::Bytea(bytes.to_vec()),
        oid::CHAR => Value::Char(*bytes.first()?),
        oid::NAME => {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            Value::Text(encoding.decode(&bytes[..end])?)
        }
        oid::INT8 => Value::Int8(i64::from_le_bytes(bytes.try_into().ok()?)),
        oid::INT2 => Value::Int2(i16::from_le_bytes(bytes.try_into().ok()?)),
        oid::INT2VECTOR => vector::<2>(bytes, |number| i16::from_le_bytes(number).into())?,
        oid::OIDVECTOR => vector::<4>(bytes, |number| u32::from_le_bytes(number).into())?,
        oid::INT4 => Value::Int4(i32::from_le_bytes(bytes.try_into().ok()?)),
        oid::TEXT | oid::BPCHAR | oid::VARCHAR | oid::REFCURSOR | oid::XML => Value::Text(text()?),
        oid::JSON => Value::Json(text()?),
        oid::JSONB => Value::Jsonb(jsonb_text(bytes, encoding)?),
        oid::TSVECTOR => Value::TsVector(tsvector_text(bytes, encoding)?),
        oid::NUMERIC => Value::Numeric(Numeric::parse(bytes)?),
        oid::FLOAT4 => Value::Float4(Float(f32::from_le_bytes(bytes.try_into().ok()?))),
        oid::FLOAT8 => Value::Float8(Float(f64::from_le_bytes(bytes.try_into().ok()?))),
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
            let Tid { block, offset_number } = Tid::read(bytes)?;
            Value::Tid { block, offset: offset_number }
        }
        oid::PG_LSN => {
            Value::Lsn { lsn: u64::from_le_bytes(bytes.try_into().ok()?), is_padded: types.pads_lsn }
        }
        oid::XID8 => Value::Xid8(u64::from_le_bytes(bytes.try_into().ok()?)),
        oid::POINT..=oid::POLYGON | oid::LINE | oid::CIRCLE => return shape(base, bytes),
        _ => Value::Oid(u32::from_le_bytes(bytes.try_into().ok()?)),
    })
}

fn floats<const N: usize>(bytes: &[u8]) -> Option<[Float<f64>; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(|word| Float(f64::from_le_bytes(word))))
}

fn points(bytes: &[u8]) -> Option<Vec<[Float<f64>; 2]>> {
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

/// Decodes the value at `at`. `whole` starts with the whole value's header of 4 bytes, as alignment counts
/// from there.
fn inner(types: &Types, of: u32, whole: &[u8], at: &mut usize, depth: usize) -> Option<Value> {
    let layout = types.layout(of)?;
    match next(whole, at, layout)? {
        Stored::Fixed(bytes) | Stored::Plain(bytes) => {
            Some(read(types, of, bytes, depth + 1).unwrap_or_else(|| Value::Unknown(bytes.to_vec())))
        }
        Stored::Compressed(bytes) => read(types, of, &decompress(bytes)?, depth + 1),
        // Nested values are never in a TOAST table (`toast_flatten_tuple_to_datum`).
        Stored::Toasted(_) => None,
    }
}

/// A value's bytes with the removed 4-byte header restored.
fn with_header(bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(LONG_HEADER_BYTES + bytes.len());
    whole.extend([0; LONG_HEADER_BYTES]);
    whole.extend(bytes);
    whole
}

/// `ArrayType`: number of dimensions, offset of the data or 0, type of the elements, lengths, lower bounds,
/// null bitmap.
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

/// `int2vector` and `oidvector`: the fields of a one-dimensional array, which has a length even if empty, and
/// no nulls.
fn vector<const WIDTH: usize>(bytes: &[u8], of: impl Fn([u8; WIDTH]) -> i64) -> Option<Value> {
    /// Number of dimensions, offset of the data, type, length, lower bound.
    const HEADER: usize = 20;
    let (dimensions, data_at, length) = (number(bytes, 0)?, number(bytes, 4)?, number(bytes, 12)?);
    let (numbers, rest) = bytes.get(HEADER..)?.as_chunks::<WIDTH>();
    let is_sound = dimensions == 1 && data_at == 0 && rest.is_empty() && numbers.len() == length as usize;
    is_sound.then(|| Value::Vector(numbers.iter().map(|number| of(*number)).collect()))
}

/// Flags of a range (`RANGE_*` in `rangetypes.h`).
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

/// Decodes the bounds of a range, starting at `at`.
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
        // Each range's bounds start at the type's alignment.
        at = at.next_multiple_of(align);
        ranges.push(range(types, subtype, &whole, &mut at, flags, depth)?);
    }
    Some(Value::Multirange(ranges))
}

/// A composite value: a heap tuple with the header of 4 bytes as its first field.
fn composite(types: &Types, type_oid: u32, bytes: &[u8], depth: usize) -> Option<Value> {
    let columns = types.columns(type_oid)?;
    let whole = with_header(bytes);
    let tuple = Tuple::parse(&whole)?;
    let mut values = Vec::with_capacity(columns.len());
    let mut attributes = tuple.attributes(columns);
    // Attributes added to the type later are null.
    for (column, stored) in columns.iter().map(|column| (column, attributes.next().unwrap_or(Ok(None)))) {
        let stored = stored.ok()?;
        if column.is_dropped {
            continue;
        }
        let of = |bytes: &[u8]| {
            read(types, column.type_oid, bytes, depth + 1).unwrap_or_else(|| Value::Unknown(bytes.to_vec()))
        };
        values.push(match stored {
            None => None,
            Some(Stored::Fixed(bytes) | Stored::Plain(bytes)) => Some(of(bytes)),
            Some(Stored::Compressed(bytes)) => Some(of(&decompress(bytes)?)),
            Some(Stored::Toasted(_)) => return None,
        });
    }
    Some(Value::Record(values))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_source::names::{Column, Type};

    use super::*;

    fn column(type_oid: u32, length: i16, align: char) -> Column {
        Column::plain(1, "c", type_oid, length, align)
    }

    #[test]
    fn printed_values_are_those_of_their_types() {
        let types = Types::default();
        for (type_oid, text, expected) in [
            (oid::BOOL, "t", Value::Bool(true)),
            (oid::INT4, "7", Value::Int4(7)),
            (oid::FLOAT8, "-Infinity", Value::Float8(Float(f64::NEG_INFINITY))),
            (oid::BYTEA, "\\x00ff", Value::Bytea(vec![0, 255])),
            (oid::BYTEA, "\\x0", Value::Printed("\\x0".to_owned())),
            (oid::TEXT, "", Value::Text(String::new())),
            (oid::DATE, "2000-01-02", Value::Date(1)),
            (oid::DATE, "02.01.2000", Value::Printed("02.01.2000".to_owned())),
            (oid::BOX, "(1,1),(0,0)", Value::Printed("(1,1),(0,0)".to_owned())),
        ] {
            assert_eq!(printed(&types, type_oid, text), expected, "{text}");
        }
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

    const OIDS: [u32; 35] = [
        16, 17, 18, 19, 20, 22, 25, 30, 602, 604, 650, 869, 1000, 1006, 1007, 1009, 1020, 1082, 1114, 1186,
        1231, 1266, 1560, 1700, 3614, 3802, 3807, 3904, 3908, 4451, 4532, 20_000, 20_001, 20_002, 20_004,
    ];

    proptest! {
        /// Arbitrary bytes decode to a value or to unknown, and the result can be printed.
        #[test]
        fn no_bytes_are_too_strange(
            type_oid in proptest::sample::select(&OIDS[..]),
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(1), 0_u8..12], 0..200),
        ) {
            let value = value(&types(), type_oid, &bytes);
            prop_assert!(value.to_string().len() < 200_000 * bytes.len().max(1));
        }
    }

    #[test]
    fn vectors_are_arrays_that_are_printed_without_braces() {
        let header = |of: u32, length: u32| [1, 0, of, length, 0].map(u32::to_le_bytes).concat();
        let text = |type_oid, bytes: &[u8]| value(&types(), type_oid, bytes).to_string();
        let two: Vec<u8> =
            [header(oid::INT2, 2), (-2_i16).to_le_bytes().into(), 7_i16.to_le_bytes().into()].concat();
        assert_eq!(text(oid::INT2VECTOR, &two), "-2 7");
        let large = [header(oid::OID, 1), u32::MAX.to_le_bytes().into()].concat();
        assert_eq!(text(oid::OIDVECTOR, &large), "4294967295");
        assert_eq!(text(oid::OIDVECTOR, &header(oid::OID, 0)), "");
        let damaged = [header(oid::INT2, 3), vec![0; 4]].concat();
        assert_eq!(value(&types(), oid::INT2VECTOR, &damaged), Value::Unknown(damaged.clone()));
        // An array of vectors: each has its own length header.
        let mut array =
            [1, 0, oid::INT2VECTOR, 1, 1, 4 * (4 + two.len() as u32)].map(u32::to_le_bytes).concat();
        array.extend(&two);
        assert_eq!(text(1006, &array), "{\"-2 7\"}");
    }

    #[test]
    fn positions_of_the_log_are_printed_as_the_version_does() {
        for (pads_lsn, text) in [(false, "0/1A"), (true, "0/0000001A")] {
            let mut types = types();
            types.pads_lsn = pads_lsn;
            assert_eq!(value(&types, oid::PG_LSN, &0x1A_u64.to_le_bytes()).to_string(), text);
        }
    }

    #[test]
    fn a_domain_of_itself_is_unknown() {
        assert_eq!(value(&types(), 20_003, &[1, 2]), Value::Unknown(vec![1, 2]));
    }
}

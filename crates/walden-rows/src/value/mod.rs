//! A column's value, typed, and formatted as PostgreSQL does.
//!
//! The format follows the server's default settings: `datestyle` ISO, `timezone` UTC, `intervalstyle`
//! postgres, `extra_float_digits` 1, `bytea_output` hex, `lc_monetary` C.

mod float;
mod geometry;
mod json;
mod nested;
mod network;
mod numeric;
mod text;
mod text_search;
mod time;

use std::fmt;

pub use float::Float;
pub use json::jsonb_text;
pub use nested::{Array, Dimension, Range};
pub use network::Inet;
pub use numeric::{Numeric, NumericSign};
pub(crate) use text::hex_bytes;
pub use text_search::tsvector_text;
pub use time::Interval;

/// A value of a column that is not null.
///
/// Each variant corresponds to a storage form in a typed column of another system: PostgreSQL types with the
/// same meaning (`text`, `varchar`, `name`) share a variant. [`fmt::Display`] corresponds to PostgreSQL's
/// output function.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// `bool`
    Bool(bool),
    /// `int2`
    Int2(i16),
    /// `int4`
    Int4(i32),
    /// `int8`
    Int8(i64),
    /// `oid` and the types based on it: `xid`, `cid`, `regclass` and similar types, which are printed as
    /// numbers.
    Oid(u32),
    /// `xid8`
    Xid8(u64),
    /// `float4`
    Float4(Float<f32>),
    /// `float8`
    Float8(Float<f64>),
    /// `numeric`, exact.
    Numeric(Numeric),
    /// `money`: hundredths.
    Money(i64),
    /// `text`, `varchar`, `bpchar` (with its blanks), `name`, `xml`.
    Text(String),
    /// `"char"`
    Char(u8),
    /// `bytea`
    Bytea(Vec<u8>),
    /// `date`: days since 2000-01-01; the ends of the range are the infinities.
    Date(i32),
    /// `time`: microseconds since midnight.
    Time(i64),
    /// `timetz`
    TimeTz {
        /// Microseconds since midnight, local time.
        micros: i64,
        /// Seconds west of UTC.
        zone: i32,
    },
    /// `timestamp`: microseconds since 2000-01-01 00:00; the ends of the range are the infinities.
    Timestamp(i64),
    /// `timestamptz`: the same in UTC.
    TimestampTz(i64),
    /// `interval`
    Interval(Interval),
    /// `uuid`
    Uuid([u8; 16]),
    /// `json`, as originally written.
    Json(String),
    /// `jsonb`, as PostgreSQL prints it.
    Jsonb(String),
    /// `inet` and `cidr`
    Inet(Inet),
    /// `macaddr`
    MacAddr([u8; 6]),
    /// `macaddr8`
    MacAddr8([u8; 8]),
    /// `bit` and `varbit`
    Bits {
        /// Number of bits.
        count: u32,
        /// The bits: the first bit is the highest bit of the first byte.
        bytes: Vec<u8>,
    },
    /// `tid`
    Tid {
        /// Block number.
        block: u32,
        /// Offset number.
        offset: u16,
    },
    /// `pg_lsn`
    Lsn {
        /// The position.
        lsn: u64,
        /// Whether the half after the slash is printed with eight digits: since 19 (`pg_lsn_out`).
        is_padded: bool,
    },
    /// `point`: x, y.
    Point([Float<f64>; 2]),
    /// `line`: A, B, C.
    Line([Float<f64>; 3]),
    /// `lseg`: two points.
    Lseg([Float<f64>; 4]),
    /// `box`: upper right and lower left corner.
    Box([Float<f64>; 4]),
    /// `path`
    Path {
        /// Whether the last point is joined to the first.
        closed: bool,
        /// The points.
        points: Vec<[Float<f64>; 2]>,
    },
    /// `polygon`
    Polygon(Vec<[Float<f64>; 2]>),
    /// `circle`: centre and radius.
    Circle([Float<f64>; 3]),
    /// A value of an enum.
    Enum {
        /// OID of the row in `pg_enum`.
        oid: u32,
        /// The label, if known.
        label: Option<String>,
    },
    /// An array.
    Array(Array),
    /// `int2vector` and `oidvector`: their numbers.
    Vector(Vec<i64>),
    /// A range.
    Range(Range),
    /// A multirange.
    Multirange(Vec<Range>),
    /// A composite value: its columns, `None` for null.
    Record(Vec<Option<Value>>),
    /// `tsvector`, as PostgreSQL prints it.
    TsVector(String),
    /// A value known only as text: a default from names read from a server.
    Printed(String),
    /// A value of an unsupported type: its bytes in the tuple, without a length header.
    Unknown(Vec<u8>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => f.write_str(if *value { "t" } else { "f" }),
            Value::Int2(value) => value.fmt(f),
            Value::Int4(value) => value.fmt(f),
            Value::Int8(value) => value.fmt(f),
            Value::Oid(value) => value.fmt(f),
            Value::Xid8(value) => value.fmt(f),
            Value::Float4(value) => value.fmt(f),
            Value::Float8(value) => value.fmt(f),
            Value::Numeric(value) => value.fmt(f),
            Value::Money(value) => numeric::money(*value, f),
            Value::Text(text)
            | Value::Json(text)
            | Value::Jsonb(text)
            | Value::TsVector(text)
            | Value::Printed(text) => f.write_str(text),
            Value::Char(0) => Ok(()),
            Value::Char(byte) if byte.is_ascii() => write!(f, "{}", char::from(*byte)),
            Value::Char(byte) => write!(f, "\\{byte:03o}"),
            Value::Bytea(bytes) | Value::Unknown(bytes) => hexadecimal(bytes, f),
            Value::Date(days) => time::date(*days, f),
            Value::Time(micros) => time::time(*micros, f),
            Value::TimeTz { micros, zone } => time::time_with_zone(*micros, *zone, f),
            Value::Timestamp(micros) => time::timestamp(*micros, "", f),
            Value::TimestampTz(micros) => time::timestamp(*micros, "+00", f),
            Value::Interval(interval) => interval.fmt(f),
            Value::Uuid(bytes) => network::uuid(bytes, f),
            Value::Inet(inet) => inet.fmt(f),
            Value::MacAddr(bytes) => network::mac(bytes, f),
            Value::MacAddr8(bytes) => network::mac(bytes, f),
            Value::Bits { count, bytes } => bits(*count, bytes, f),
            Value::Tid { block, offset } => write!(f, "({block},{offset})"),
            Value::Lsn { lsn, is_padded: false } => write!(f, "{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF),
            Value::Lsn { lsn, is_padded: true } => write!(f, "{:X}/{:08X}", lsn >> 32, lsn & 0xFFFF_FFFF),
            Value::Point(_)
            | Value::Line(_)
            | Value::Lseg(_)
            | Value::Box(_)
            | Value::Path { .. }
            | Value::Polygon(_)
            | Value::Circle(_) => geometry::shape(self, f),
            Value::Enum { label: Some(label), .. } => f.write_str(label),
            Value::Enum { oid, label: None } => oid.fmt(f),
            Value::Array(array) => array.fmt(f),
            Value::Vector(numbers) => nested::vector(numbers, f),
            Value::Range(range) => range.fmt(f),
            Value::Multirange(ranges) => nested::multirange(ranges, f),
            Value::Record(columns) => nested::record(columns, f),
        }
    }
}

/// `bytea` with `bytea_output` hex.
fn hexadecimal(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\\x")?;
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

fn bits(count: u32, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let all = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
    all.take(count as usize).try_for_each(|bit| f.write_str(if bit == 1 { "1" } else { "0" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_postgresql_does() {
        let cases = [
            (Value::Bool(true), "t"),
            (Value::Char(b'x'), "x"),
            (Value::Char(0), ""),
            (Value::Bytea(vec![0, 255]), "\\x00ff"),
            (Value::Bits { count: 5, bytes: vec![0b1011_0000] }, "10110"),
            (Value::Tid { block: 3, offset: 7 }, "(3,7)"),
            (Value::Lsn { lsn: 0x16_0374_D848, is_padded: false }, "16/374D848"),
            (Value::Lsn { lsn: 0x16_0374_D848, is_padded: true }, "16/0374D848"),
            (Value::Money(-123_456_789), "-$1,234,567.89"),
            (Value::Enum { oid: 7, label: None }, "7"),
            (Value::Vector(vec![1, -2, 4_294_967_295]), "1 -2 4294967295"),
            (Value::Vector(Vec::new()), ""),
            (Value::MacAddr([8, 0, 0x2b, 1, 2, 3]), "08:00:2b:01:02:03"),
        ];
        for (value, text) in cases {
            assert_eq!(value.to_string(), text);
        }
    }
}

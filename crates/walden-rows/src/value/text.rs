//! Parses values from PostgreSQL's text output, with the settings of the [parent module](super).

use walden_format::payload::timestamp::EPOCH_DAYS;

use super::{Numeric, NumericSign, Value};
use crate::types::oid;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Maximum year by number of digits: the last year of `date` is 5874897.
const MAX_YEAR: i64 = 9_999_999;

impl Value {
    /// Parses a value of a built-in type from its text. `None` if the text has another format, for example
    /// because of other settings, or if the type is not parsed from text.
    pub(crate) fn parse_text(type_oid: u32, text: &str) -> Option<Value> {
        let value = match type_oid {
            oid::NUMERIC => numeric(text).map(Value::Numeric),
            oid::DATE => date(text).map(Value::Date),
            oid::TIME => time(text).map(Value::Time),
            oid::TIMESTAMP => timestamp(text, "").map(Value::Timestamp),
            oid::TIMESTAMPTZ => timestamp(text, "+00").map(Value::TimestampTz),
            oid::UUID => uuid(text).map(Value::Uuid),
            oid::XID | oid::CID => text.parse().ok().map(Value::Oid),
            oid::XID8 => text.parse().ok().map(Value::Xid8),
            oid::JSON => Some(Value::Json(text.to_owned())),
            oid::JSONB => Some(Value::Jsonb(text.to_owned())),
            oid::TSVECTOR => Some(Value::TsVector(text.to_owned())),
            _ => None,
        };
        value.filter(|value| value.to_string() == text)
    }
}

/// Parses bytes from pairs of hexadecimal digits.
pub(crate) fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| u8::try_from(16 * digit(pair[0])? + digit(pair[1])?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    hex_bytes(&text.replace('-', ""))?.try_into().ok()
}

fn numeric(text: &str) -> Option<Numeric> {
    let special = |sign| Some(Numeric { sign, weight: 0, scale: 0, digits: Vec::new() });
    match text {
        "NaN" => return special(NumericSign::NaN),
        "Infinity" => return special(NumericSign::Infinity),
        "-Infinity" => return special(NumericSign::NegativeInfinity),
        _ => {}
    }
    let (sign, number) = match text.strip_prefix('-') {
        Some(number) => (NumericSign::Negative, number),
        None => (NumericSign::Positive, text),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Whole digits of base 10000 on both sides of the point.
    let zeros = |count: usize| "0".repeat(count.next_multiple_of(4) - count);
    let (before, behind) = (zeros(whole.len()), zeros(fraction.len()));
    let decimals = [before.as_str(), whole, fraction, behind.as_str()].concat();
    let (groups, _) = decimals.as_bytes().as_chunks::<4>();
    let group = |group: &[u8; 4]| {
        let digit = |value: u16, byte: &u8| Some(10 * value + u16::from(byte.checked_sub(b'0')?.min(9)));
        group.iter().try_fold(0, digit)
    };
    let mut digits = groups.iter().map(group).collect::<Option<Vec<u16>>>()?;
    let mut weight = i16::try_from(whole.len().div_ceil(4)).ok()? - 1;
    // The stored form (`strip_var`).
    while digits.last() == Some(&0) {
        digits.pop();
    }
    let leading = digits.iter().take_while(|&&digit| digit == 0).count();
    digits.drain(..leading);
    weight = if digits.is_empty() { 0 } else { weight.checked_sub(i16::try_from(leading).ok()?)? };
    Some(Numeric { sign, weight, scale: u16::try_from(fraction.len()).ok()?, digits })
}

fn date(text: &str) -> Option<i32> {
    match text {
        "infinity" => Some(i32::MAX),
        "-infinity" => Some(i32::MIN),
        _ => {
            let (text, is_before_christ) = without_era(text);
            i32::try_from(days(text, is_before_christ)?).ok()
        }
    }
}

/// Parses a timestamp whose time is followed by `zone`.
fn timestamp(text: &str, zone: &str) -> Option<i64> {
    match text {
        "infinity" => Some(i64::MAX),
        "-infinity" => Some(i64::MIN),
        _ => {
            let (text, is_before_christ) = without_era(text);
            let (date, micros) = text.strip_suffix(zone)?.split_once(' ')?;
            days(date, is_before_christ)?.checked_mul(DAY)?.checked_add(time(micros)?)
        }
    }
}

/// Microseconds since midnight.
fn time(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':');
    let mut part = || parts.next();
    let (hours, minutes, seconds) = (number(part()?)?, number(part()?)?, part()?);
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let micros = number(&format!("{fraction:0<6}"))?;
    Some((3600 * hours + 60 * minutes + number(seconds)?) * SECOND + micros)
}

/// A part of a time.
fn number(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| (0..SECOND).contains(number))
}

fn without_era(text: &str) -> (&str, bool) {
    match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    }
}

/// Days from 2000-01-01 to a date. Counts like
/// [`calendar_date`](walden_format::payload::timestamp::calendar_date), in years that start in March.
fn days(text: &str, is_before_christ: bool) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let mut part = |last: i64| parts.next()?.parse::<i64>().ok().filter(|number| (1..=last).contains(number));
    let (year, month, day) = (part(MAX_YEAR)?, part(12)?, part(31)?);
    // Year 0 does not exist: year 1 BC precedes year 1.
    let year = if is_before_christ { 1 - year } else { year };
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(146_097 * era + day_of_era - 719_468 - EPOCH_DAYS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_those_that_are_stored() {
        let numeric = |words: &[u16]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            Value::Numeric(Numeric::parse(&bytes).expect("a numeric"))
        };
        for (type_oid, text, expected) in [
            (oid::NUMERIC, "0", numeric(&[0x8000])),
            (oid::NUMERIC, "0.00", numeric(&[0x8100])),
            (oid::NUMERIC, "12.34", numeric(&[0x8100, 12, 3400])),
            (oid::NUMERIC, "-123400.000", numeric(&[0xA181, 12, 3400])),
            (oid::NUMERIC, "0.0005", numeric(&[0x8000 | 4 << 7 | 0x7F, 5])),
            (oid::NUMERIC, "50000", numeric(&[0x8001, 5])),
            (oid::NUMERIC, "-Infinity", numeric(&[0xF000])),
            (oid::DATE, "2000-03-01", Value::Date(60)),
            (oid::DATE, "0001-12-31 BC", Value::Date(-730_120)),
            (oid::TIME, "00:00:01.5", Value::Time(1_500_000)),
            (oid::TIMESTAMPTZ, "2000-01-02 00:00:00+00", Value::TimestampTz(DAY)),
            (
                oid::UUID,
                "00010203-0405-0607-0809-0a0b0c0d0e0f",
                Value::Uuid(std::array::from_fn(|at| at as u8)),
            ),
            (oid::XID, "4000000000", Value::Oid(4_000_000_000)),
        ] {
            assert_eq!(Value::parse_text(type_oid, text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_printed_otherwise_stays_text() {
        for (type_oid, texts) in [
            (oid::NUMERIC, &["", "-", ".5", "1.", "1e5", "1,000", "+1", "00", "1:"][..]),
            (oid::DATE, &["2024-02-30", "29.02.2024", "2024-2-1", "0000-01-01", "99999999-01-01"]),
            (oid::TIME, &["1:00:00", "00:00:00.10", "00:00:00.1234567", "00:00", "é"]),
            (oid::TIMESTAMPTZ, &["2024-01-01 00:00:00", "2024-01-01 00:00:00-05", "2024-01-01"]),
            (oid::UUID, &["", "00010203-0405-0607-0809-0A0B0C0D0E0F"]),
            (oid::BIT, &["101"]),
            (oid::BOX, &["(1,1),(0,0)"]),
        ] {
            for text in texts {
                assert_eq!(Value::parse_text(type_oid, text), None, "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_again(
            micros in -211_813_488_000_000_000..9_223_371_331_200_000_000_i64,
            days in -2_451_545..2_145_031_949_i32,
            number in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?",
        ) {
            let zoned = Value::TimestampTz(micros);
            for (type_oid, value) in
                [(oid::TIMESTAMP, Value::Timestamp(micros)), (oid::TIMESTAMPTZ, zoned), (oid::DATE, Value::Date(days))]
            {
                prop_assert_eq!(Value::parse_text(type_oid, &value.to_string()), Some(value));
            }
            prop_assert!(Value::parse_text(oid::NUMERIC, &number).is_some(), "{}", number);
        }

        #[test]
        fn no_text_is_too_strange(text in "[-+0-9:. BCé]{0,30}") {
            for type_oid in [oid::NUMERIC, oid::DATE, oid::TIME, oid::TIMESTAMP, oid::TIMESTAMPTZ, oid::UUID] {
                Value::parse_text(type_oid, &text);
            }
        }
    }
}

//! Dates, times and intervals (`datetime.c`, `timestamp.c`).

use std::fmt;

use walden_format::payload::timestamp::{EPOCH_DAYS, calendar_date};

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// `interval`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Months, twelve to a year.
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
    pub micros: i64,
}

pub(super) fn date(days: i32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match days {
        i32::MAX => f.write_str("infinity"),
        i32::MIN => f.write_str("-infinity"),
        _ => {
            let (year, month, day) = calendar_date(EPOCH_DAYS + i64::from(days));
            write!(f, "{:04}-{month:02}-{day:02}{}", shown_year(year), era(year))
        }
    }
}

pub(super) fn time(micros: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (hours, rest) = (micros.div_euclid(3600 * SECOND), micros.rem_euclid(3600 * SECOND));
    write!(f, "{hours:02}:{:02}:", rest / (60 * SECOND))?;
    seconds(rest % (60 * SECOND), f)
}

pub(super) fn time_with_zone(micros: i64, zone: i32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    time(micros, f)?;
    let (sign, all) = (if zone <= 0 { '+' } else { '-' }, zone.unsigned_abs());
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    write!(f, "{sign}{hours:02}")?;
    if minutes != 0 || seconds != 0 {
        write!(f, ":{minutes:02}")?;
    }
    if seconds != 0 {
        write!(f, ":{seconds:02}")?;
    }
    Ok(())
}

/// A timestamp, with `zone` before the era.
pub(super) fn timestamp(micros: i64, zone: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match micros {
        i64::MAX => f.write_str("infinity"),
        i64::MIN => f.write_str("-infinity"),
        _ => {
            let (year, month, day) = calendar_date(EPOCH_DAYS + micros.div_euclid(DAY));
            write!(f, "{:04}-{month:02}-{day:02} ", shown_year(year))?;
            time(micros.rem_euclid(DAY), f)?;
            write!(f, "{zone}{}", era(year))
        }
    }
}

/// Seconds and their fraction without trailing zeros.
fn seconds(micros: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:02}", micros / SECOND)?;
    let fraction = micros % SECOND;
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    Ok(())
}

/// Year 0 does not exist: year 1 BC precedes year 1.
fn shown_year(year: i64) -> i64 {
    if year > 0 { year } else { 1 - year }
}

fn era(year: i64) -> &'static str {
    if year > 0 { "" } else { " BC" }
}

/// Formats the interval for `intervalstyle` postgres (`EncodeInterval`).
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interval { months, days, micros } = *self;
        match (months, days, micros) {
            (i32::MAX, i32::MAX, i64::MAX) => return f.write_str("infinity"),
            (i32::MIN, i32::MIN, i64::MIN) => return f.write_str("-infinity"),
            _ => {}
        }
        let (mut is_first, mut is_after_negative) = (true, false);
        for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
            if count == 0 {
                continue;
            }
            let space = if is_first { "" } else { " " };
            let sign = if is_after_negative && count > 0 { "+" } else { "" };
            write!(f, "{space}{sign}{count} {unit}{}", if count == 1 { "" } else { "s" })?;
            (is_first, is_after_negative) = (false, count < 0);
        }
        if micros == 0 && !is_first {
            return Ok(());
        }
        let space = if is_first { "" } else { " " };
        let sign = if micros < 0 {
            "-"
        } else if is_after_negative {
            "+"
        } else {
            ""
        };
        let all = micros.unsigned_abs();
        let (hours, rest) = (all / (3600 * SECOND as u64), (all % (3600 * SECOND as u64)) as i64);
        write!(f, "{space}{sign}{hours:02}:{:02}:", rest / (60 * SECOND))?;
        seconds(rest % (60 * SECOND), f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Value;
    use super::*;

    #[test]
    fn dates_and_times_are_iso() {
        assert_eq!(Value::Date(0).to_string(), "2000-01-01");
        assert_eq!(Value::Date(-730_119).to_string(), "0001-01-01");
        assert_eq!(Value::Date(-730_120).to_string(), "0001-12-31 BC");
        assert_eq!(Value::Date(i32::MAX).to_string(), "infinity");
        assert_eq!(Value::Time(DAY).to_string(), "24:00:00");
        assert_eq!(Value::Time(1_500_000).to_string(), "00:00:01.5");
        assert_eq!(Value::TimeTz { micros: 0, zone: -19_800 }.to_string(), "00:00:00+05:30");
        assert_eq!(Value::TimeTz { micros: 0, zone: 3600 }.to_string(), "00:00:00-01");
        assert_eq!(Value::Timestamp(-1).to_string(), "1999-12-31 23:59:59.999999");
        assert_eq!(Value::TimestampTz(DAY).to_string(), "2000-01-02 00:00:00+00");
        assert_eq!(Value::Timestamp(i64::MIN).to_string(), "-infinity");
    }

    #[test]
    fn intervals_have_each_part_with_its_sign() {
        let text = |months, days, micros| Interval { months, days, micros }.to_string();
        assert_eq!(text(0, 0, 0), "00:00:00");
        assert_eq!(text(14, 3, 14_706_789_000), "1 year 2 mons 3 days 04:05:06.789");
        assert_eq!(text(-13, 1, -1), "-1 years -1 mons +1 day -00:00:00.000001");
        assert_eq!(text(0, -1, SECOND), "-1 days +00:00:01");
        assert_eq!(text(1, 0, 0), "1 mon");
        assert_eq!(text(i32::MAX, i32::MAX, i64::MAX), "infinity");
    }
}

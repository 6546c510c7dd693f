//! Parses times as PostgreSQL does: `2026-11-20 10:00`, with or without seconds, fractions and a time zone.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, AmbiguousZoned, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};

/// A moment, in the time zone of its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment(Zoned);

impl Moment {
    /// Parses a moment. Without a time zone in the text, the environment variable `TZ` or the system's zone
    /// applies.
    ///
    /// # Errors
    /// The text is no time, clocks skip or repeat it, its zone is unknown, or `TZ`, which applies to a text
    /// without a zone, is invalid.
    pub fn parse(text: &str) -> Result<Moment, String> {
        Moment::parse_in(text, local_zone)
    }

    fn parse_in(text: &str, local: impl FnOnce() -> Result<TimeZone, String>) -> Result<Moment, String> {
        let wrong = || {
            format!(
                "\"{text}\" is no time such as 2026-11-20 10:00, 2026-11-20 10:00:30.5+01 or 2026-11-20 10:00 Europe/Berlin"
            )
        };
        let text = text.trim();
        let date_end = text.find([' ', 'T', 't']).unwrap_or(text.len());
        let date: Date = text[..date_end].parse().map_err(|_| wrong())?;
        let rest = text[date_end..].trim_start_matches([' ', 'T', 't']);
        let zone_at =
            rest.find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.')).unwrap_or(rest.len());
        let time = match &rest[..zone_at] {
            "" if zone_at == rest.len() => Time::midnight(),
            time => parse_time(time).ok_or_else(wrong)?,
        };
        let zone = match rest[zone_at..].trim() {
            "" => local()?,
            "Z" | "z" => TimeZone::UTC,
            zone => parse_zone(zone).ok_or_else(|| {
                format!("\"{zone}\" is no time zone of this machine, such as +01, UTC or Europe/Berlin (abbreviations have several meanings; the package tzdata has the names)")
            })?,
        };
        // PostgreSQL accepts a skipped or repeated time without a message (`DetermineTimeZoneOffset` in
        // `datetime.c`). A target of recovery may then be an hour off.
        let zoned = zone.to_ambiguous_zoned(DateTime::from_parts(date, time));
        match zoned.offset() {
            AmbiguousOffset::Unambiguous { .. } => {}
            AmbiguousOffset::Gap { before, after } => {
                return Err(describe_skipped(text, &zoned, before, after));
            }
            AmbiguousOffset::Fold { before, after } => {
                return Err(describe_repeated(text, &zoned, before, after));
            }
        }
        zoned.unambiguous().map(Moment).map_err(|error| format!("\"{text}\": {error}"))
    }

    /// The moment as a timestamp.
    pub fn timestamp(&self) -> Timestamp {
        self.0.timestamp()
    }

    /// Microseconds since 1970-01-01 00:00:00 UTC.
    pub fn micros(&self) -> i64 {
        self.0.timestamp().as_microsecond()
    }

    /// The moment in UTC, independent of the server's time zone, for PostgreSQL's settings.
    pub fn for_settings(&self) -> String {
        in_utc(self.0.timestamp())
    }

    /// The moment for display: in its own time zone and in UTC.
    pub fn text(&self) -> String {
        let here = self.0.strftime("%Y-%m-%d %H:%M:%S%.f %:z");
        format!("{here} ({})", in_utc(self.0.timestamp()))
    }
}

/// Describes a time that does not exist, as clocks are set forward past it.
fn describe_skipped(text: &str, skipped: &AmbiguousZoned, before: Offset, after: Offset) -> String {
    let zone = skipped.time_zone();
    // By the offset from before the change, the time is after the change.
    let change = before.to_timestamp(skipped.datetime()).ok().and_then(|later| {
        // `preceding` excludes a change at the timestamp itself.
        let from = later.checked_add(SignedDuration::from_nanos(1)).ok()?;
        zone.preceding(from).next().map(|transition| transition.timestamp())
    });
    let clocks = change.map_or_else(String::new, |change| {
        let (last, first) = (before.to_datetime(change), after.to_datetime(change));
        format!(": clocks are set forward from {} to {}", civil(last, before), civil(first, after))
    });
    format!(
        "\"{text}\" does not exist in the time zone {}{clocks}. Name a time before or after, or write the offset from UTC after the time",
        zone_name(zone)
    )
}

/// Describes a local time that exists twice, because clocks are set back from after this time to before it.
fn describe_repeated(text: &str, repeated: &AmbiguousZoned, before: Offset, after: Offset) -> String {
    let time = repeated.datetime();
    format!(
        "\"{text}\" exists twice in the time zone {}, as clocks are set back: write \"{}\" for the first time, or \"{}\" for the second",
        zone_name(repeated.time_zone()),
        civil(time, before),
        civil(time, after)
    )
}

fn zone_name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("of this machine")
}

/// A local time with its offset, as [`Moment::parse`] reads it.
fn civil(time: DateTime, offset: Offset) -> String {
    format!("{}{offset}", time.strftime("%Y-%m-%d %H:%M:%S%.f"))
}

/// Returns the time zone of the environment or the system. A misspelled `TZ` is an error, although the C
/// library takes it as UTC without a message.
fn local_zone() -> Result<TimeZone, String> {
    let named = std::env::var("TZ").unwrap_or_default();
    match TimeZone::try_system() {
        Ok(zone) => Ok(zone),
        Err(_) if named.is_empty() => Ok(TimeZone::UTC),
        Err(_) => Err(format!(
            "the environment variable TZ={named} is no time zone of this machine, such as Europe/Berlin (the package tzdata has them): \
             correct it, or write the zone after the time"
        )),
    }
}

fn in_utc(timestamp: Timestamp) -> String {
    format!("{}+00", timestamp.strftime("%Y-%m-%d %H:%M:%S%.f"))
}

/// Formats microseconds since 1970-01-01 00:00:00 UTC for display, in UTC.
pub fn time_text(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map_or_else(|_| format!("{micros} us"), in_utc)
}

fn parse_time(text: &str) -> Option<Time> {
    let mut parts = text.split(':');
    let number = |part: Option<&str>| part.filter(|part| (1..=2).contains(&part.len()))?.parse::<i8>().ok();
    let (hour, minute) = (number(parts.next())?, number(parts.next())?);
    let (second, nanosecond) = match parts.next() {
        None => (0, 0),
        Some(part) => {
            let (second, fraction) = part.split_once('.').unwrap_or((part, ""));
            let is_short = fraction.len() <= 9 && fraction.bytes().all(|digit| digit.is_ascii_digit());
            let nanosecond = format!("{fraction:0<9}").parse::<i32>().ok().filter(|_| is_short)?;
            (number(Some(second))?, nanosecond)
        }
    };
    parts.next().is_none().then(|| Time::new(hour, minute, second, nanosecond).ok()).flatten()
}

fn parse_zone(text: &str) -> Option<TimeZone> {
    let Some(digits) = text.strip_prefix(['+', '-']) else { return TimeZone::get(text).ok() };
    let digits: String = digits.chars().filter(|c| *c != ':').collect();
    let is_valid = (1..=6).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let digits = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits };
    let part = |at: usize| digits.get(at..at + 2).map_or(Some(0), |part| part.parse::<i32>().ok());
    let (hours, minutes, seconds) = (part(0)?, part(2)?, part(4)?);
    if !is_valid || minutes > 59 || seconds > 59 {
        return None;
    }
    let seconds = hours * 3600 + minutes * 60 + seconds;
    let seconds = if text.starts_with('-') { -seconds } else { seconds };
    Some(TimeZone::fixed(Offset::from_seconds(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_postgresql_reads_them() {
        let berlin = || TimeZone::get("Europe/Berlin").map_err(|error| error.to_string());
        for (text, utc) in [
            ("2026-11-20 10:00", "2026-11-20 09:00:00+00"),
            ("2026-11-20", "2026-11-19 23:00:00+00"),
            ("2026-11-20T10:00:30.25", "2026-11-20 09:00:30.25+00"),
            ("2026-11-20 10:00Z", "2026-11-20 10:00:00+00"),
            ("2026-11-20 10:00:00 UTC", "2026-11-20 10:00:00+00"),
            ("2026-11-20 10:00:00+01", "2026-11-20 09:00:00+00"),
            ("2026-11-20 10:00:00.123456-05:30", "2026-11-20 15:30:00.123456+00"),
            ("2026-11-20 10:00 -0530", "2026-11-20 15:30:00+00"),
            ("2026-11-20 10:00 America/New_York", "2026-11-20 15:00:00+00"),
            // Clocks are set forward from 02:00 to 03:00, and back from 03:00 to 02:00.
            ("2026-03-29 01:59:59", "2026-03-29 00:59:59+00"),
            ("2026-03-29 03:00", "2026-03-29 01:00:00+00"),
            ("2026-03-29 02:30+01", "2026-03-29 01:30:00+00"),
            ("2026-10-25 01:59:59", "2026-10-24 23:59:59+00"),
            ("2026-10-25 02:30+02", "2026-10-25 00:30:00+00"),
            ("2026-10-25 02:30+01", "2026-10-25 01:30:00+00"),
            ("2026-10-25 03:00", "2026-10-25 02:00:00+00"),
        ] {
            let moment = Moment::parse_in(text, berlin).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(moment.for_settings(), utc, "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2026-13-01",
            "2026-11-20 25:00",
            "2026-11-20 10:00 Nowhere/X",
            "2026-11-20 10:00+1:99",
            "2026-11-20 10",
            "2026-11-20 10:00:00.x",
        ] {
            assert!(Moment::parse_in(text, berlin).is_err(), "{text}");
        }
    }

    #[test]
    fn times_that_clocks_skip_or_repeat_are_refused() {
        let utc = || Ok(TimeZone::UTC);
        for (text, expected) in [
            (
                "2026-03-29 02:00 Europe/Berlin",
                "forward from 2026-03-29 02:00:00+01 to 2026-03-29 03:00:00+02",
            ),
            (
                "2026-03-29 02:30 Europe/Berlin",
                "does not exist in the time zone Europe/Berlin: clocks are set",
            ),
            ("2026-03-29 02:59:59.999 Europe/Berlin", "does not exist"),
            ("2026-10-25 02:00 Europe/Berlin", "write \"2026-10-25 02:00:00+02\" for the first time, or"),
            ("2026-10-25 02:30:00.5 Europe/Berlin", "or \"2026-10-25 02:30:00.5+01\" for the second"),
            // Half an hour, and west of Greenwich.
            ("2026-10-04 02:10 Australia/Lord_Howe", "to 2026-10-04 02:30:00+11"),
            ("2026-11-01 01:30 America/New_York", "write \"2026-11-01 01:30:00-04\" for"),
        ] {
            let error = Moment::parse_in(text, utc).unwrap_err();
            assert!(error.contains(expected), "{error}");
            // The proposals of the message can be read.
            for proposed in error.split('"').skip(3).step_by(2) {
                Moment::parse_in(proposed, utc).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn a_moment_is_shown_where_it_was_given_and_in_utc() {
        let moment = Moment::parse("2026-11-20 10:00:00+01").unwrap();
        assert_eq!(moment.text(), "2026-11-20 10:00:00 +01:00 (2026-11-20 09:00:00+00)");
        assert_eq!(time_text(moment.micros()), "2026-11-20 09:00:00+00");
    }
}

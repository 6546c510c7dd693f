//! PostgreSQL timestamps.

use std::fmt;

/// A point in time: microseconds since 2000-01-01 00:00:00 UTC (`TimestampTz`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

/// Days from 1970-01-01, the epoch of Unix and of `calendar_date`, to 2000-01-01, the epoch of PostgreSQL.
pub const EPOCH_DAYS: i64 = 10_957;
const DAY_SECONDS: i64 = 86_400;
const SECOND_MICROS: i64 = 1_000_000;

impl Timestamp {
    /// Converts seconds since 1970-01-01 00:00:00 UTC, which checkpoints contain (`pg_time_t`).
    pub fn from_unix_seconds(seconds: i64) -> Timestamp {
        let seconds = seconds.saturating_sub(EPOCH_DAYS * DAY_SECONDS);
        Timestamp(seconds.saturating_mul(SECOND_MICROS))
    }

    /// Converts microseconds since 1970-01-01 00:00:00 UTC, saturating.
    pub fn from_unix_micros(micros: i64) -> Timestamp {
        Timestamp(micros.saturating_sub(EPOCH_DAYS * DAY_SECONDS * SECOND_MICROS))
    }

    /// Returns microseconds since 1970-01-01 00:00:00 UTC, saturating.
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(EPOCH_DAYS * DAY_SECONDS * SECOND_MICROS)
    }
}

/// Prints `2024-02-29 13:37:00.000001 UTC`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(SECOND_MICROS);
        let (days, second) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
        let (year, month, day) = calendar_date(days + EPOCH_DAYS);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let micros = self.0.rem_euclid(SECOND_MICROS);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} UTC")
    }
}

/// Returns year, month and day of the proleptic Gregorian calendar from days since 1970-01-01.
///
/// Counts in years that start in March, so that the leap day is a year's last (Hinnant, "chrono-compatible
/// low-level date algorithms").
pub fn calendar_date(days: i64) -> (i64, i64, i64) {
    const FOUR_CENTURIES: i64 = 146_097;
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(FOUR_CENTURIES), days.rem_euclid(FOUR_CENTURIES));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_dates() {
        let text = |micros| Timestamp(micros).to_string();
        assert_eq!(text(0), "2000-01-01 00:00:00.000000 UTC");
        assert_eq!(text(-1), "1999-12-31 23:59:59.999999 UTC");
        assert_eq!(Timestamp::from_unix_seconds(0).to_string(), "1970-01-01 00:00:00.000000 UTC");
        assert_eq!(Timestamp::from_unix_seconds(1_709_213_820).to_string(), "2024-02-29 13:37:00.000000 UTC");
        assert_eq!(Timestamp::from_unix_seconds(1_735_689_599).to_string(), "2024-12-31 23:59:59.000000 UTC");
        assert_eq!(Timestamp::from_unix_seconds(5).unix_micros(), 5_000_000);
    }

    #[test]
    fn no_timestamp_is_too_far_away() {
        for micros in [i64::MIN, i64::MAX] {
            assert!(Timestamp(micros).to_string().ends_with(" UTC"));
            Timestamp(micros).unix_micros();
            Timestamp::from_unix_seconds(micros);
        }
    }
}

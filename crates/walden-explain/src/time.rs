//! Times as text.

use jiff::Timestamp;

/// Microseconds since 1970-01-01 UTC as RFC 3339.
pub fn time_text(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map_or_else(|_| format!("{micros} µs"), |time| format!("{time:.6}"))
}

/// Seconds since 1970-01-01 UTC as RFC 3339.
pub fn second_text(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| format!("{seconds} s"), |time| time.to_string())
}

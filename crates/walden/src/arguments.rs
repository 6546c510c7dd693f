//! Parsers for option values that several commands share: sizes, time spans, LSNs, dimensions, patterns.

use regex::{Regex, RegexBuilder};
use walden_explain::group::{ViewError, ViewSpec};
use walden_explain::{Bound, BoundError};
use walden_format::transam::without_epoch;

/// Maximum size of a compiled pattern, in bytes.
const MAX_PATTERN: usize = 10 << 20;

pub use walden_report::units::parse_size;

/// Parses comma-separated dimensions, the value of `--by`.
pub fn parse_view(text: &str) -> Result<ViewSpec, String> {
    text.parse().map_err(|error: ViewError| error.to_string())
}

/// Parses a regular expression.
pub fn parse_pattern(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).size_limit(MAX_PATTERN).build().map_err(|error| error.to_string())
}

/// Parses an LSN or a time.
pub fn parse_bound(text: &str) -> Result<Bound, String> {
    text.parse().map_err(|error: BoundError| error.to_string())
}

/// Parses a transaction ID. Like `recovery_target_xid`, accepts one with its epoch, as
/// `pg_current_xact_id()` returns it, and uses its lower 32 bits, which WAL has.
pub fn parse_xid(text: &str) -> Result<u32, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| format!("expected a transaction ID, a number of at most 64 bits, found \"{text}\""))?;
    without_epoch(number).map_err(|error| error.to_string())
}

/// Parses a time span with a unit, such as `5m`. Returns seconds.
pub fn parse_span(text: &str) -> Result<i64, String> {
    let invalid = || format!("\"{text}\" is no span of at least a second such as 10s, 5m, 1h or 1d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: i64 = text[..digits].parse().map_err(|_| invalid())?;
    let unit = match text[digits..].trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(invalid()),
    };
    number.checked_mul(unit).filter(|seconds| (1..=366 * 86_400).contains(seconds)).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_may_have_an_epoch() {
        assert_eq!(parse_xid("731"), Ok(731));
        assert_eq!(parse_xid("4294967295"), Ok(u32::MAX));
        // As pg_current_xact_id() returns them after one wraparound and after many.
        assert_eq!(parse_xid("4294968038"), Ok(742));
        assert_eq!(parse_xid("18446744073709551615"), Ok(u32::MAX));
        let error = |text| parse_xid(text).unwrap_err();
        assert_eq!(error("2"), "expected a transaction ID from 3 on, found 2");
        assert!(error("4294967298").contains("found 2 there in 4294967298"), "{}", error("4294967298"));
        for wrong in ["", "-1", "x", "18446744073709551616"] {
            assert!(error(wrong).contains("at most 64 bits"), "{}", error(wrong));
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512MB"), Ok(512 << 20));
        assert_eq!(parse_size("4 GB"), Ok(4 << 30));
        assert_eq!(parse_size("8192B"), Ok(8192));
        for wrong in ["", "MB", "5", "5mb", "-1MB", "99999999999999TB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_units() {
        assert_eq!(parse_span("90"), Ok(90));
        assert_eq!(parse_span("5m"), Ok(300));
        assert_eq!(parse_span("1h"), Ok(3600));
        for bad in ["", "0", "m", "-1s", "1.5h", "99999999999999999999h", "5 parsecs"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }
}

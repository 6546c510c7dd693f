//! Gaps of an archive as text.

use walden_archive::gaps::Gap;
use walden_format::payload::Timestamp;
use walden_report::table::harmless;
use walden_source::counted;

/// Formats a gap for `list` and `verify`.
pub fn line(gap: &Gap) -> String {
    let Gap { first, last, acknowledged, .. } = gap;
    let segments = counted(gap.segments, "segment");
    match acknowledged {
        None => format!("MISSING: {segments}, {first} to {last}"),
        // Without a key, only the segments of an encrypted acknowledgement are known.
        Some(one) if one.time == 0 => {
            format!("missing: {segments}, {first} to {last}, acknowledged: {}", harmless(&one.reason))
        }
        Some(one) => format!(
            "missing: {segments}, {first} to {last}, acknowledged by {} on {}: {}",
            harmless(&one.by),
            Timestamp::from_unix_micros(one.time),
            harmless(&one.reason)
        ),
    }
}

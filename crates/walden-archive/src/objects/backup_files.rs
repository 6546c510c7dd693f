//! Parses the files that PostgreSQL writes with a base backup: `backup_label`; the backup history file, which
//! has the same lines and two more (`build_backup_content` in `xlogbackup.c`); and `backup_manifest`
//! (`backup_manifest.c`).

use std::io::{self, Read};

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use serde::de::IgnoredAny;
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_recover::manifest;

pub use walden_recover::manifest::WalRange;

/// Names of these files in a backup's folder.
pub(crate) const LABEL: &str = "backup_label";
pub(crate) const MANIFEST: &str = "backup_manifest";

/// Reads a text of at most `max_bytes` bytes.
pub(crate) fn read_bounded(content: &mut dyn Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    content.take(max_bytes + 1).read_to_end(&mut text)?;
    if text.len() as u64 > max_bytes {
        let problem = format!("expected at most {max_bytes} bytes, found more");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(text)
}

/// The fields of a backup label or backup history file. `None` means that the field is missing.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Label {
    /// Where replay starts.
    pub start: Option<Lsn>,
    /// Where the backup ended. Only a history file has this field.
    pub stop: Option<Lsn>,
    /// Timeline of the start.
    pub timeline: Option<Timeline>,
    /// Start and stop times.
    pub start_time: Option<ServerTime>,
    pub stop_time: Option<ServerTime>,
    /// `streamed`, or `pg_start_backup` for an exclusive backup, which PostgreSQL 15 removed.
    pub method: Option<String>,
    /// The user's label.
    pub label: Option<String>,
    /// Whether the backup was taken from a standby, or was advanced.
    pub is_from_standby: bool,
    /// Whether the backup is incremental: it contains only the changes since another backup.
    pub is_incremental: bool,
    /// Start LSN of the backup on which an incremental backup is based.
    pub incremental_from: Option<Lsn>,
}

impl Label {
    pub fn parse(text: &[u8]) -> Label {
        let mut label = Label::default();
        for line in String::from_utf8_lossy(text).lines() {
            let Some((field, value)) = line.split_once(": ") else { continue };
            let position = || value.split_whitespace().next()?.parse::<Lsn>().ok();
            match field {
                "START WAL LOCATION" => {
                    label.start = position();
                    label.timeline = label.timeline.or_else(|| timeline_of_segment(value));
                }
                "STOP WAL LOCATION" => label.stop = position(),
                "START TIMELINE" => label.timeline = value.trim().parse().ok(),
                "START TIME" => label.start_time = Some(ServerTime::parse(value)),
                "STOP TIME" => label.stop_time = Some(ServerTime::parse(value)),
                "BACKUP METHOD" => label.method = Some(value.to_owned()),
                "BACKUP FROM" => label.is_from_standby = value.trim() == "standby",
                "LABEL" => label.label = Some(value.to_owned()),
                "INCREMENTAL FROM LSN" => {
                    label.is_incremental = true;
                    label.incremental_from = position();
                }
                "INCREMENTAL FROM TLI" => label.is_incremental = true,
                _ => {}
            }
        }
        label
    }
}

/// Parses the timeline in `0/2000028 (file 000000010000000000000002)`.
fn timeline_of_segment(value: &str) -> Option<Timeline> {
    let (_, file) = value.split_once(" (file ")?;
    Some(SegmentName::parse(file.trim_end().strip_suffix(')')?)?.timeline)
}

/// A time as the server wrote it, such as `2026-11-20 10:00:00 CET`: local time with a zone abbreviation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerTime {
    /// The text of the server.
    pub text: String,
    /// The latest moment that the text can denote, in microseconds since 1970-01-01 00:00:00 UTC; `None` if
    /// the text is not a time.
    pub latest: Option<i64>,
    /// Whether it denotes that moment: offsets are certain, and abbreviations except UTC and GMT are
    /// ambiguous.
    pub is_exact: bool,
}

impl ServerTime {
    fn parse(text: &str) -> ServerTime {
        let (time, zone) = text.trim().rsplit_once(' ').unwrap_or((text.trim(), ""));
        let known = offset_of(zone);
        // A backup must not count as older than it is.
        let offset = known.unwrap_or(jiff::tz::offset(-12));
        let latest = || {
            let time = DateTime::strptime("%Y-%m-%d %H:%M:%S", time).ok()?;
            Some(time.to_zoned(TimeZone::fixed(offset)).ok()?.timestamp().as_microsecond())
        };
        ServerTime { text: text.to_owned(), latest: latest(), is_exact: known.is_some() }
    }
}

/// Returns the offset of a zone that is not ambiguous: `UTC`, `+02`, `-0330`, `+05:45`.
fn offset_of(zone: &str) -> Option<Offset> {
    if matches!(zone, "UTC" | "GMT" | "Z") {
        return Some(Offset::UTC);
    }
    let sign = match zone.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return None,
    };
    let digits = zone[1..].replace(':', "");
    if !matches!(digits.len(), 2 | 4 | 6) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |at: usize| digits.get(at..at + 2).map_or(Some(0), |part| part.parse::<i32>().ok());
    Offset::from_seconds(sign * (part(0)? * 3600 + part(2)? * 60 + part(4)?)).ok()
}

/// The relevant parts of a manifest. The list of files is skipped.
pub(crate) type Manifest = manifest::Manifest<IgnoredAny>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_not_cut_short() {
        assert_eq!(read_bounded(&mut &b"four"[..], 4).unwrap(), b"four");
        let error = read_bounded(&mut &b"fives"[..], 4).unwrap_err();
        assert_eq!(error.to_string(), "expected at most 4 bytes, found more");
    }

    #[test]
    fn times_of_labels_are_kept_as_they_are_written() {
        let label = Label::parse(
            b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nSTOP WAL LOCATION: 0/2000120 (file 000000010000000000000002)\n\
              BACKUP METHOD: streamed\nBACKUP FROM: primary\nSTART TIME: 2026-11-20 10:00:00 CET\nLABEL: before: the move\n\
              START TIMELINE: 1\nSTOP TIME: 2026-11-20 10:05:00 CET\nSTOP TIMELINE: 1\n",
        );
        assert_eq!(label.start_time.unwrap().text, "2026-11-20 10:00:00 CET");
        assert_eq!(label.stop_time.unwrap().text, "2026-11-20 10:05:00 CET");
        assert_eq!(label.label.as_deref(), Some("before: the move"));
        assert_eq!((label.method.as_deref(), label.timeline), (Some("streamed"), Some(1)));
    }

    #[test]
    fn times_of_labels_are_never_too_early() {
        let latest = |text| ServerTime::parse(text).latest;
        let exact = latest("2026-11-20 10:00:00 UTC");
        assert_eq!(exact, Some(1_795_168_800_000_000));
        for text in [
            "2026-11-20 10:00:00 GMT",
            "2026-11-20 12:00:00 +02",
            "2026-11-20 15:30:00 +0530",
            "2026-11-20 15:45:00 +05:45",
            "2026-11-20 06:30:00 -0330",
        ] {
            let time = ServerTime::parse(text);
            assert_eq!((time.latest, time.is_exact), (exact, true), "{text}");
        }
        // China and North America; Newfoundland; no zone; no offset.
        for zone in ["CST", "NST", "IST", "", "+9é", "+", "+1", "+99"] {
            let time = ServerTime::parse(&format!("2026-11-20 10:00:00 {zone}"));
            assert!(time.latest.is_none_or(|latest| Some(latest) >= exact) && !time.is_exact, "{time:?}");
        }
        assert_eq!(latest("yesterday"), None);
    }
}

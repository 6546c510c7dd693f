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
    /// Latest possible start and stop times, in microseconds since 1970-01-01 00:00:00 UTC.
    pub start_time: Option<i64>,
    pub stop_time: Option<i64>,
    /// The same times as the server wrote them: local time with a time zone abbreviation.
    pub start_time_text: Option<String>,
    pub stop_time_text: Option<String>,
    /// `streamed`, or `pg_start_backup` for an exclusive backup, which PostgreSQL 15 removed.
    pub method: Option<String>,
    /// The user's label.
    pub label: Option<String>,
    /// The backup is incremental: it contains only the changes since another backup.
    pub is_incremental: bool,
    /// Start of that other backup.
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
                "START TIME" => {
                    label.start_time = latest_time(value);
                    label.start_time_text = Some(value.to_owned());
                }
                "STOP TIME" => {
                    label.stop_time = latest_time(value);
                    label.stop_time_text = Some(value.to_owned());
                }
                "BACKUP METHOD" => label.method = Some(value.to_owned()),
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

/// Returns the latest moment that a time such as `2026-11-20 10:00:00 CET` can denote. Time zone
/// abbreviations are ambiguous, and a backup must not count as older than it is.
fn latest_time(text: &str) -> Option<i64> {
    let (time, zone) = text.trim().rsplit_once(' ').unwrap_or((text.trim(), ""));
    let offset = match zone {
        "UTC" | "GMT" | "Z" => Offset::UTC,
        _ => {
            let hours = zone.parse::<i8>().ok().filter(|_| zone.starts_with(['+', '-']));
            hours.and_then(|hours| Offset::from_hours(hours).ok()).unwrap_or(jiff::tz::offset(-12))
        }
    };
    let time = DateTime::strptime("%Y-%m-%d %H:%M:%S", time).ok()?;
    Some(time.to_zoned(TimeZone::fixed(offset)).ok()?.timestamp().as_microsecond())
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
        assert_eq!(label.start_time_text.as_deref(), Some("2026-11-20 10:00:00 CET"));
        assert_eq!(label.stop_time_text.as_deref(), Some("2026-11-20 10:05:00 CET"));
        assert_eq!(label.label.as_deref(), Some("before: the move"));
        assert_eq!((label.method.as_deref(), label.timeline), (Some("streamed"), Some(1)));
    }

    #[test]
    fn times_of_labels_are_never_too_early() {
        let exact = latest_time("2026-11-20 10:00:00 UTC");
        assert_eq!(exact, Some(1_795_168_800_000_000));
        assert_eq!(latest_time("2026-11-20 12:00:00 +02"), exact);
        assert!(latest_time("2026-11-20 10:00:00 CET") >= exact);
        assert_eq!(latest_time("yesterday"), None);
    }
}

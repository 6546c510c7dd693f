//! The listing of an archive as text: a tree of timelines, with the times to which recovery is possible.

use std::fmt::Write;

use walden_archive::base_backups::LeftoverState;
use walden_archive::encryption::KEYS;
use walden_archive::gaps::{GAPS_UNKNOWN, HISTORY_HINT};
use walden_archive::list::{
    BACKUP_HINT, BackupWithoutStart, BaseBackup, Listing, TimelineListing, TimesGoBack,
};
use walden_archive::object::Finding;
use walden_archive::verify::KEYS_HINT;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::payload::Timestamp;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

use super::gaps;

/// Formats a listing.
pub fn table(listing: &Listing) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: cluster {}, segments of {} MB\n",
        listing.location,
        listing.system_identifier,
        listing.segment_bytes >> 20
    );
    let roots = listing.timelines.iter().filter(|timeline| parent_of(timeline, listing).is_none());
    for root in roots {
        tree(&mut text, root, listing, ("", ""), 0);
        text.push('\n');
    }
    if !listing.has_all_restore_points && !listing.locked {
        let _ = writeln!(
            text,
            "Restore points are those in segments at the ends of timelines and gaps; --all reads every segment's summary for all of them."
        );
    }
    for history in &listing.missing_histories {
        let _ = writeln!(text, "{}", missing_history_line(history));
    }
    if !listing.missing_histories.is_empty() {
        let _ = writeln!(text, "  HINT: {HISTORY_HINT}");
    }
    for one in &listing.diverging {
        let _ = writeln!(text, "NOTE: {one}");
    }
    stored_backups(&mut text, listing);
    // Those of the base backups in the archive are in their lines.
    let is_shown = |name: &&String| {
        let mut stored = listing.stored_backups.iter();
        !stored.any(|backup| backup.history_file.as_ref() == Some(name))
    };
    if listing.backups.iter().any(|name| is_shown(&name)) {
        text.push_str("Backup history files:\n");
    }
    for name in listing.backups.iter().filter(is_shown) {
        let said = listing.base_backups.iter().find(|backup| backup.name == *name);
        let said = said.map_or_else(String::new, |backup| format!(": {}", backup_text(backup)));
        let is_without_start = listing.backups_without_start.iter().any(|backup| backup.backup == *name);
        let lacks = if is_without_start { " (its first segment is MISSING)" } else { "" };
        let _ = writeln!(text, "  {name}{said}{lacks}");
    }
    text.push_str(&backups_without_start(&listing.backups_without_start));
    for backup in &listing.backups {
        for left in listing.left_before_backup(backup) {
            let (number, at) = (left.timeline, left.starts_at.as_deref().unwrap_or_default());
            let _ = writeln!(
                text,
                "{backup} is no base backup for timeline {number}, which left its timeline before, at {at}"
            );
        }
    }
    if listing.locked && !listing.are_keys_missing {
        let backups = match listing.locked_backups {
            0 => String::new(),
            count => format!("{}, ", counted(count, "base backup")),
        };
        let _ = writeln!(
            text,
            "The archive is encrypted: with a private key that may read it (--identity FILE), {backups}times, restore points and parents of timelines are shown too."
        );
    }
    if !listing.has_all_gaps {
        let _ = writeln!(text, "NOTE: {GAPS_UNKNOWN}");
    }
    for unknown in &listing.unknown {
        let _ = writeln!(text, "Not an object of an archive: {unknown}");
    }
    for Finding { object, problem } in &listing.unreadable {
        let _ = writeln!(text, "DAMAGED: {}: {}", harmless(object), harmless(problem));
    }
    if listing.unreadable.iter().any(|finding| finding.object.starts_with(KEYS)) {
        let _ = writeln!(text, "  HINT: {KEYS_HINT}");
    } else if !listing.unreadable.is_empty() {
        let _ = writeln!(
            text,
            "  HINT: times and restore points are those of the other objects; walden archive verify lists all other damage"
        );
    }
    text
}

/// Lists the base backups in the archive.
fn stored_backups(text: &mut String, listing: &Listing) {
    if !listing.stored_backups.is_empty() {
        text.push_str("Base backups in the archive:\n");
    }
    for backup in &listing.stored_backups {
        let _ = write!(
            text,
            "  {} \"{}\": {} of files in {}, {} of them new",
            backup.name,
            harmless(&backup.label),
            units::bytes(backup.bytes),
            units::bytes(backup.stored_bytes),
            units::bytes(backup.new_bytes)
        );
        if let Some(history) = &backup.history_file {
            let _ = write!(text, "; {history}");
        }
        let _ = match &backup.missing_segment {
            Some(missing) => writeln!(text, "; of its WAL, {missing} is MISSING"),
            None => writeln!(text),
        };
    }
    for backup in &listing.unfinished_backups {
        let (name, bytes) = (&backup.name, units::bytes(backup.stored_bytes));
        let _ = match backup.state {
            LeftoverState::InProgress => writeln!(text, "  {name} is being made ({bytes})"),
            LeftoverState::Removed => {
                writeln!(text, "  {name} was removed; other backups may need its pieces ({bytes})")
            }
            _ => writeln!(
                text,
                "  {name} was interrupted ({bytes}); the next walden backup create continues it, or walden archive prune removes it"
            ),
        };
    }
}

/// Describes a backup history file, with times as the server wrote them.
fn backup_text(backup: &BaseBackup) -> String {
    let BaseBackup { label, start_time, stop_time, method, is_incremental, .. } = backup;
    let label = label.as_ref().map(|label| format!("\"{}\"", harmless(label)));
    let start = start_time.as_ref().map(|time| format!("started {}", harmless(time)));
    let stop = stop_time.as_ref().map(|time| format!("stopped {}", harmless(time)));
    let method = method.as_ref().map(|method| harmless(method).into_owned());
    let incremental = is_incremental.then(|| "incremental".to_owned());
    let parts: Vec<String> = [label, start, stop, method, incremental].into_iter().flatten().collect();
    match parts.is_empty() {
        true => "its history file is empty, as after a crash of the server".to_owned(),
        false => parts.join(", "),
    }
}

/// Formats the base backups whose first segment is missing, for `list` and `verify`.
pub fn backups_without_start(backups: &[BackupWithoutStart]) -> String {
    let mut text = String::new();
    for backup in backups {
        let _ = match backup.is_acknowledged {
            true => writeln!(text, "missing: {backup}, acknowledged"),
            false => writeln!(text, "MISSING: {backup}"),
        };
    }
    if backups.iter().any(|backup| !backup.is_acknowledged) {
        let _ = writeln!(text, "  HINT: {BACKUP_HINT}");
    }
    text
}

/// Formats a missing timeline history for `list` and `verify`.
pub fn missing_history_line(history: &str) -> String {
    format!("MISSING: {history}, the history of an archived timeline")
}

/// Describes segments that were archived as bytes.
pub fn unknown_version_line(segments: u64) -> String {
    format!("{} of an unknown version: verified by hash only", counted(segments, "segment"))
}

/// Returns the parent of a timeline, if it is listed too.
fn parent_of<'a>(timeline: &TimelineListing, listing: &'a Listing) -> Option<&'a TimelineListing> {
    listing.timelines.iter().find(|other| Some(other.timeline) == timeline.parent)
}

/// Maximum indentation of timelines; every timeline names its parent.
const MAX_DEPTH: usize = 12;

/// Writes a timeline and its descendants as a tree, with these prefixes for the first line and for all
/// further lines.
fn tree(
    text: &mut String,
    timeline: &TimelineListing,
    listing: &Listing,
    (head, below): (&str, &str),
    depth: usize,
) {
    let (first, lines) = describe_timeline(timeline, listing);
    // A history file can only name lower timelines.
    let is_child = |other: &&TimelineListing| {
        other.parent == Some(timeline.timeline) && other.timeline > timeline.timeline
    };
    let children: Vec<&TimelineListing> = listing.timelines.iter().filter(is_child).collect();
    let _ = writeln!(text, "{head}{first}");
    let bar = if children.is_empty() { ' ' } else { '│' };
    for line in lines {
        let _ = writeln!(text, "{below}{bar} {line}");
    }
    for (at, child) in children.iter().enumerate() {
        let is_last = at + 1 == children.len();
        let (branch, bar) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let bar = if depth < MAX_DEPTH { bar } else { "" };
        tree(text, child, listing, (&format!("{below}{branch}"), &format!("{below}{bar}")), depth + 1);
    }
}

/// Describes a timeline: its first line, and the lines below.
fn describe_timeline(timeline: &TimelineListing, listing: &Listing) -> (String, Vec<String>) {
    let TimelineListing { timeline: number, segments, .. } = timeline;
    let from = match (timeline.parent, &timeline.starts_at) {
        (Some(parent), Some(at)) => format!(", which left timeline {parent} at {at}"),
        _ => String::new(),
    };
    let mut lines = Vec::new();
    if let (Some(first), Some(last)) = (&timeline.first_segment, &timeline.last_segment) {
        let (segments, objects) = (counted(*segments, "segment"), counted(timeline.objects, "object"));
        lines.push(format!("{segments} in {objects}, {first} to {last}"));
        let ratio = timeline.raw_bytes as f64 / timeline.stored_bytes.max(1) as f64;
        let (raw, stored) = (units::bytes(timeline.raw_bytes), units::bytes(timeline.stored_bytes));
        lines.push(format!("{raw} of WAL in {stored} ({ratio:.1} times smaller)"));
    }
    if timeline.unknown_version_segments > 0 {
        lines.push(unknown_version_line(timeline.unknown_version_segments));
    }
    lines.extend(partial_line(timeline, listing));
    if let Some(end) = &timeline.live_end {
        lines.push(format!("continues to {end}, in parts of the segment that is being written"));
    }
    lines.extend(timeline.gaps.iter().map(gaps::line));
    lines.extend(timeline.resets.iter().map(|reset| {
        format!(
            "pg_resetwal restarted the WAL at {} ({}): earlier base backups cannot be recovered past it",
            reset.lsn, reset.segment
        )
    }));
    lines.extend(timeline.minimal_wal.iter().map(ToString::to_string));
    if listing.timelines_without_segments.contains(number) {
        lines.push(
            "it has no segments: they are missing, unless the timeline was left in the segment in which it started, as the history of a later timeline shows"
                .to_owned(),
        );
    }
    let has_wal = timeline.last_segment.is_some() || timeline.live_end.is_some();
    if !has_wal && !listing.timelines_without_segments.contains(number) {
        lines.push(match (&timeline.partial_segment, timeline.parent) {
            (Some(_), _) => "no complete segment of it is in the archive".to_owned(),
            (None, Some(_)) => "no WAL of it is in the archive, only its history".to_owned(),
            (None, None) => "no WAL of it is in the archive".to_owned(),
        });
    } else if has_wal && !listing.locked {
        restorable(timeline, listing, &mut lines);
    }
    lines.extend(timeline.restore_points.iter().map(|point| {
        let (name, time) = (harmless(&point.name), time_text(point.time));
        let hint = if point.name.contains(char::REPLACEMENT_CHARACTER) { NOT_UTF8 } else { "" };
        format!("restore point \"{name}\" at {} ({time}){hint}", point.lsn)
    }));
    // By default, recovery follows the newest timeline.
    if has_wal && listing.timelines.len() > 1 {
        lines.push(format!("recovery along this timeline: recovery_target_timeline = '{number}'"));
    }
    (format!("Timeline {number}{from}"), lines)
}

/// Notice for a restore point that was created in a database with another encoding.
const NOT_UTF8: &str =
    ": its name is not UTF-8; restore to its LSN instead, with --to LSN or recovery_target_lsn";

/// Describes a `.partial` segment. At a failover, the new primary archives the segment in which it leaves the
/// old timeline as `.partial`; after a split brain, the old server's segments follow this segment. Any other
/// `.partial` segment comes from `pg_receivewal`, or from a failover whose history is missing.
fn partial_line(timeline: &TimelineListing, listing: &Listing) -> Option<String> {
    let partial = timeline.partial_segment.as_ref()?;
    let lsn = |text: &Option<String>| text.as_ref()?.parse::<Lsn>().ok();
    let segment = SegmentName::parse(partial).zip(SegmentSize::new(listing.segment_bytes));
    let is_within =
        |at: &Lsn| segment.is_some_and(|(name, size)| name.number(size) == Some(size.segment_of(*at)));
    let children = listing.timelines.iter().filter(|other| other.parent == Some(timeline.timeline));
    let left_at = children.filter_map(|child| lsn(&child.starts_at)).filter(is_within).max();
    let last = timeline.last_segment.as_ref().filter(|last| *last >= partial);
    Some(match (last, left_at) {
        (None, Some(_)) => format!("ends in {partial}.partial, in which it was left"),
        (None, None) => format!(
            "followed by {partial}.partial, a segment that was not complete, which recovery does not read"
        ),
        (Some(last), Some(at)) if last == partial => match lsn(&timeline.end) {
            Some(end) if end <= at => {
                format!("ends in {last}, in which it was left; {partial}.partial is archived too")
            }
            Some(end) => format!(
                "{partial}.partial was archived where a failover left this timeline, which does not end there: {last} is archived too and continues to {end}"
            ),
            None => format!("{partial}.partial is archived too, where a failover left this timeline"),
        },
        (Some(last), Some(_)) => format!(
            "{partial}.partial was archived where a failover left this timeline, which does not end there: it continues to {last}"
        ),
        (Some(last), None) if last == partial => {
            format!("{partial}.partial is archived too, from before the segment was complete")
        }
        (Some(last), None) => {
            let is_lost = timeline.gaps.iter().any(|gap| gap.first <= *partial && *partial <= gap.last);
            let since =
                if is_lost { "and its segment is missing" } else { "from before the segment was complete" };
            format!("{partial}.partial is archived too, {since}; the timeline continues to {last}")
        }
    })
}

/// Describes the times of a timeline to which recovery is possible.
fn restorable(timeline: &TimelineListing, listing: &Listing, lines: &mut Vec<String>) {
    let ranges = timeline.restorable.iter().filter_map(|range| Some((range, range.moments()?)));
    let before = lines.len();
    for (range, times) in ranges {
        let from = range.base_backup_from.as_deref().unwrap_or_else(|| first_before(timeline, listing));
        // After a gap on the timeline itself, only its own backups count.
        let is_own = range
            .base_backup_from
            .as_deref()
            .and_then(SegmentName::parse)
            .is_some_and(|name| name.timeline == timeline.timeline);
        let limit = if is_own { String::new() } else { backup_limit(timeline, listing, from) };
        let any = if timeline.times_go_back.is_empty() { "any moment" } else { "moments" };
        lines.push(format!(
            "restorable to {any} {}, from a base backup that started in {from} or later{limit}",
            moments(times)
        ));
    }
    for TimesGoBack { lsn, from, to } in &timeline.times_go_back {
        lines.push(format!(
            "COMMIT TIMES GO BACK at {lsn}, from {} to {}: the clock of the server was set back. Recovery to a time stops at the first later \
             commit, so for the WAL after {lsn} and a time before {}, use recovery_target_lsn or a restore point",
            time_text(*from),
            time_text(*to),
            time_text(*from)
        ));
    }
    lines.push(match lines.len() > before {
        true => "(the last commit or abort and later WAL are reached by recovery to the end of WAL, not to a time)".to_owned(),
        false => "no transaction ended in it: no time can be restored to, only the end".to_owned(),
    });
}

/// Describes where base backups of a timeline's ancestors must have ended, back to the ancestor with segment
/// `from`.
fn backup_limit(timeline: &TimelineListing, listing: &Listing, from: &str) -> String {
    let mut limits = Vec::new();
    let mut next = Some(timeline);
    while let Some((one, parent, at)) =
        next.and_then(|one| Some((one, one.parent?, one.starts_at.as_deref()?)))
    {
        limits.push(format!("of timeline {parent}, one that ended before {at}"));
        next = parent_of(one, listing).filter(|found| {
            found.timeline < one.timeline
                && SegmentName::parse(from).is_some_and(|from| from.timeline < found.timeline)
        });
    }
    if limits.is_empty() { String::new() } else { format!(" ({})", limits.join("; ")) }
}

/// Returns the first segment of gapless WAL up to a timeline's first segment, from the timeline itself or an
/// ancestor.
fn first_before<'a>(timeline: &'a TimelineListing, listing: &'a Listing) -> &'a str {
    let (mut timeline, mut first) = (timeline, timeline.first_segment.as_deref().unwrap_or_default());
    while let Some(parent) = parent_of(timeline, listing).filter(|parent| parent.timeline < timeline.timeline)
    {
        match parent.first_segment.as_deref() {
            Some(start) if is_before(start, first) => first = start,
            // The WAL of this parent starts later: no earlier ancestor leads to the timeline.
            Some(start) if is_before(first, start) => break,
            // Both timelines start in one segment, or the parent has none because it was left in its first
            // one.
            _ => {}
        }
        timeline = parent;
    }
    first
}

/// Returns whether a segment precedes another, regardless of timelines.
fn is_before(one: &str, other: &str) -> bool {
    let position = |name| SegmentName::parse(name).map(|name| (name.log, name.segment));
    position(one) < position(other)
}

/// Describes the times that recovery can reach, given the first and the last commit or abort. Recovery stops
/// only at a commit later than the target, and no commit is later than the last commit.
pub fn moments((first, last): (i64, i64)) -> String {
    match first < last {
        true => format!("from {} until just before the last commit, {}", time_text(first), time_text(last)),
        false => format!("before the last commit, {}", time_text(last)),
    }
}

fn time_text(micros: i64) -> String {
    Timestamp::from_unix_micros(micros).to_string()
}

#[cfg(test)]
mod tests {
    use walden_archive::contents::RestorePoint;
    use walden_archive::list::{BaseBackup, Diverging, RestorableRange};

    use super::*;

    /// Minutes after 2026-11-20 10:00:00 UTC.
    fn at(minutes: i64) -> i64 {
        1_795_168_800_000_000 + minutes * 60_000_000
    }

    fn timeline(timeline: u32, parent: Option<(u32, &str)>, ranges: Vec<RestorableRange>) -> TimelineListing {
        TimelineListing {
            timeline,
            parent: parent.map(|(parent, _)| parent),
            starts_at: parent.map(|(_, at)| at.to_owned()),
            parent_last_commit_time: None,
            first_segment: ranges.first().map(|range| range.first_segment.clone()),
            last_segment: ranges.last().map(|range| range.last_segment.clone()),
            segments: 4,
            partial_segment: None,
            end: None,
            live_end: None,
            unknown_version_segments: 0,
            resets: Vec::new(),
            minimal_wal: Vec::new(),
            gaps: Vec::new(),
            raw_bytes: 64_000_000,
            stored_bytes: 8_000_000,
            objects: 4,
            first_commit_time: None,
            last_commit_time: None,
            times_go_back: Vec::new(),
            restorable: ranges,
            restore_points: Vec::new(),
        }
    }

    fn range(first: &str, last: &str, minutes: (i64, i64), from: Option<&str>) -> RestorableRange {
        RestorableRange {
            first_segment: first.to_owned(),
            last_segment: last.to_owned(),
            base_backup_from: from.map(str::to_owned),
            first_commit_time: Some(at(minutes.0)),
            last_commit_time: Some(at(minutes.1)),
            previous_commit_time: None,
        }
    }

    #[test]
    fn a_partial_segment_is_the_end_of_a_timeline_only_if_none_follows() {
        let segments = vec![range("000000010000000000000001", "000000010000000000000010", (0, 10), None)];
        let listed = timeline(1, None, segments);
        let line = |partial: &str, left_at: &[&str], end: &str| {
            let children = left_at.iter().zip(2..);
            let listed = TimelineListing {
                partial_segment: Some(partial.to_owned()),
                end: Some(end.to_owned()),
                ..listed.clone()
            };
            let mut listing = Listing::default();
            listing.segment_bytes = 16 << 20;
            listing.timelines = vec![listed.clone()];
            listing
                .timelines
                .extend(children.map(|(at, number)| timeline(number, Some((1, at)), Vec::new())));
            partial_line(&listed, &listing).unwrap()
        };
        let end = line("000000010000000000000011", &["0/11800000"], "0/11000000");
        assert_eq!(end, "ends in 000000010000000000000011.partial, in which it was left");
        let inside = line("00000001000000000000000D", &["0/DE00028", "0/10800000"], "0/11000000");
        assert!(inside.contains("where a failover left this timeline"), "{inside}");
        assert!(inside.ends_with("it continues to 000000010000000000000010"), "{inside}");
        // The old primary archived the segment of the switch, with or without later WAL.
        let whole = line("000000010000000000000010", &["0/10800000"], "0/10800000");
        assert!(whole.starts_with("ends in 000000010000000000000010, in which it was left;"), "{whole}");
        let longer = line("000000010000000000000010", &["0/10800000"], "0/10800028");
        assert!(
            longer.ends_with("000000010000000000000010 is archived too and continues to 0/10800028"),
            "{longer}"
        );
        // Imported from pg_receivewal: no timeline branched off from this timeline, or one branched off at
        // another LSN.
        for left_at in [&[][..], &["0/10800000"], &["0/12000000"]] {
            let last = line("000000010000000000000011", left_at, "0/11000000");
            assert!(last.starts_with("followed by 000000010000000000000011.partial"), "{last}");
            let inside = line("00000001000000000000000D", left_at, "0/11000000");
            assert!(!inside.contains("failover"), "{inside}");
            assert!(inside.ends_with("the timeline continues to 000000010000000000000010"), "{inside}");
        }
        let complete = line("000000010000000000000010", &[], "0/11000000");
        assert_eq!(
            complete,
            "000000010000000000000010.partial is archived too, from before the segment was complete"
        );
        assert_eq!(partial_line(&listed, &Listing::default()), None);
    }

    #[test]
    fn a_restore_point_whose_name_is_not_utf_8_is_reached_by_its_lsn() {
        let point = |name: &str| {
            let (name, lsn, time) = (name.to_owned(), "0/7000028".to_owned(), at(1));
            let mut listed = timeline(1, None, Vec::new());
            listed.live_end = Some("0/7000100".to_owned());
            listed.restore_points = vec![RestorePoint { name, lsn, time }];
            describe_timeline(&listed, &Listing::default()).1.remove(2)
        };
        assert!(point("it's \u{FFFD}").ends_with(NOT_UTF8), "{}", point("it's \u{FFFD}"));
        assert!(point("it's").ends_with("UTC)"), "{}", point("it's"));
    }

    #[test]
    fn nothing_is_promised_for_a_timeline_without_wal() {
        let mut listing = Listing::default();
        let whole = vec![range("000000010000000000000001", "000000010000000000000004", (0, 10), None)];
        listing.timelines = vec![timeline(1, None, whole), timeline(2, Some((1, "0/5000238")), Vec::new())];
        let lines = |listed: &TimelineListing| describe_timeline(listed, &listing).1;
        assert_eq!(lines(&listing.timelines[1]), ["no WAL of it is in the archive, only its history"]);
        let mut partial = listing.timelines[1].clone();
        partial.partial_segment = Some("000000020000000000000005".to_owned());
        assert_eq!(lines(&partial).last().unwrap(), "no complete segment of it is in the archive");
        // The server is still writing its first segment.
        let mut live = listing.timelines[1].clone();
        live.live_end = Some("0/5000500".to_owned());
        assert!(
            lines(&live).last().unwrap().ends_with("recovery_target_timeline = '2'"),
            "{:?}",
            lines(&live)
        );
    }

    #[test]
    fn a_base_backup_of_an_ancestor_serves_timelines_that_begin_in_one_segment() {
        let range = |first, last| vec![range(first, last, (0, 10), None)];
        let mut listing = Listing::default();
        listing.timelines = vec![
            timeline(1, None, range("000000010000000000000007", "00000001000000000000000A")),
            timeline(2, Some((1, "0/B03608")), range("00000002000000000000000B", "00000002000000000000000B")),
            timeline(3, Some((2, "0/B91230")), range("00000003000000000000000B", "00000003000000000000000C")),
        ];
        let text = table(&listing);
        let expected = "from a base backup that started in 000000010000000000000007 or later (of timeline 2, one that ended before \
                        0/B91230; of timeline 1, one that ended before 0/B03608)";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn timelines_are_a_tree_and_moments_end_before_the_last_commit() {
        let mut listing = Listing::default();
        listing.location = "/archive".to_owned();
        listing.system_identifier = "7".to_owned();
        listing.segment_bytes = 16 << 20;
        listing.has_all_gaps = true;
        listing.timelines = vec![
            timeline(
                1,
                None,
                vec![
                    range("000000010000000000000001", "000000010000000000000004", (0, 10), None),
                    range(
                        "000000010000000000000006",
                        "000000010000000000000008",
                        (20, 30),
                        Some("000000010000000000000006"),
                    ),
                ],
            ),
            timeline(
                2,
                Some((1, "0/7000000")),
                vec![RestorableRange {
                    // The last commit of timeline 1 before the switch.
                    previous_commit_time: Some(at(29)),
                    ..range(
                        "000000020000000000000007",
                        "000000020000000000000008",
                        (40, 50),
                        Some("000000010000000000000006"),
                    )
                }],
            ),
            timeline(3, Some((2, "0/8000000")), Vec::new()),
            timeline(
                4,
                Some((1, "0/2000000")),
                vec![range("000000040000000000000002", "000000040000000000000003", (60, 60), None)],
            ),
        ];
        listing.missing_histories = vec!["00000003.history".to_owned()];
        listing.diverging = vec![Diverging { timeline: 1, left_by: 2, left_at: "0/7000000".to_owned() }];
        listing.backups = ["000000010000000000000001.00000028", "000000010000000000000006.00000028"]
            .map(|name| format!("{name}.backup"))
            .to_vec();
        listing.backups_without_start = vec![BackupWithoutStart {
            backup: "000000010000000000000006.00000028.backup".to_owned(),
            segment: "000000010000000000000006".to_owned(),
            is_acknowledged: false,
        }];
        listing.base_backups = vec![BaseBackup {
            name: "000000010000000000000006.00000028.backup".to_owned(),
            label: Some("monday".to_owned()),
            start_time: Some("2026-11-20 11:20:00 CET".to_owned()),
            stop_time: Some("2026-11-20 11:25:00 CET".to_owned()),
            method: Some("streamed".to_owned()),
            is_incremental: false,
        }];
        let expected = "\
/archive: cluster 7, segments of 16 MB

Timeline 1
│ 4 segments in 4 objects, 000000010000000000000001 to 000000010000000000000008
│ 64.0 MB of WAL in 8.0 MB (8.0 times smaller)
│ restorable to any moment from 2026-11-20 10:00:00.000000 UTC until just before the last commit, 2026-11-20 10:10:00.000000 UTC, from a base backup that started in 000000010000000000000001 or later
│ restorable to any moment from 2026-11-20 10:20:00.000000 UTC until just before the last commit, 2026-11-20 10:30:00.000000 UTC, from a base backup that started in 000000010000000000000006 or later
│ (the last commit or abort and later WAL are reached by recovery to the end of WAL, not to a time)
│ recovery along this timeline: recovery_target_timeline = '1'
├─ Timeline 2, which left timeline 1 at 0/7000000
│  │ 4 segments in 4 objects, 000000020000000000000007 to 000000020000000000000008
│  │ 64.0 MB of WAL in 8.0 MB (8.0 times smaller)
│  │ restorable to any moment from 2026-11-20 10:29:00.000000 UTC until just before the last commit, 2026-11-20 10:50:00.000000 UTC, from a base backup that started in 000000010000000000000006 or later (of timeline 1, one that ended before 0/7000000)
│  │ (the last commit or abort and later WAL are reached by recovery to the end of WAL, not to a time)
│  │ recovery along this timeline: recovery_target_timeline = '2'
│  └─ Timeline 3, which left timeline 2 at 0/8000000
│       no WAL of it is in the archive, only its history
└─ Timeline 4, which left timeline 1 at 0/2000000
     4 segments in 4 objects, 000000040000000000000002 to 000000040000000000000003
     64.0 MB of WAL in 8.0 MB (8.0 times smaller)
     restorable to any moment before the last commit, 2026-11-20 11:00:00.000000 UTC, from a base backup that started in 000000010000000000000001 or later (of timeline 1, one that ended before 0/2000000)
     (the last commit or abort and later WAL are reached by recovery to the end of WAL, not to a time)
     recovery along this timeline: recovery_target_timeline = '4'

Restore points are those in segments at the ends of timelines and gaps; --all reads every segment's summary for all of them.
MISSING: 00000003.history, the history of an archived timeline
  HINT: walden archive check --against DSN --repair fetches it from a server of the cluster, and walden archive push archives a copy; without it, recovery from an earlier timeline assumes that the timeline does not exist
NOTE: timeline 1 continues after 0/7000000, where timeline 2 left it, with commits later than the first one of timeline 2: two servers have written at the same time
Backup history files:
  000000010000000000000001.00000028.backup
  000000010000000000000006.00000028.backup: \"monday\", started 2026-11-20 11:20:00 CET, stopped 2026-11-20 11:25:00 CET, streamed (its first segment is MISSING)
MISSING: 000000010000000000000006, in which the base backup of 000000010000000000000006.00000028.backup starts
  HINT: walden archive check --against DSN --repair fetches the segments that a server still has; without them, recovery from these base backups needs the WAL in the backup itself. walden archive prune removes backup history files with the WAL before a later backup
000000010000000000000006.00000028.backup is no base backup for timeline 4, which left its timeline before, at 0/2000000
";
        assert_eq!(table(&listing), expected);
    }
}

//! Formats an interval as tables.

use walden_report::explain::{CAUSES, causes};
use walden_report::table::{Look, Row, table as rows_as_table};
use walden_report::units::{bytes, count, percent, seconds};

use crate::document::{CheckpointDocument, GroupDocument, Grouping, WatchDocument, unqueried_text};

/// Returns the tables of an interval.
pub fn table(document: &WatchDocument, groupings: &[Grouping], look: Look) -> String {
    let mut text = format!(
        "{}\n  PostgreSQL {}, timeline {}, up to {}, in {}: {}, {}/s, {} commits\n\n",
        look.heading(&document.time),
        document.postgresql,
        document.timeline,
        document.lsn,
        seconds(document.window_seconds),
        bytes(document.sum.bytes),
        bytes(document.sum.bytes_per_second as u64),
        count(document.committed),
    );
    let lists = [
        ("Relations", &document.relations),
        ("Kinds of records", &document.record_kinds),
        ("Databases", &document.databases),
    ];
    let others = groupings.iter().zip(&document.groups).map(|(by, groups)| (by.title(), &groups.rows));
    for (title, groups) in lists.into_iter().chain(others) {
        if !groups.is_empty() {
            let rows: Vec<Row> = groups.iter().map(row).collect();
            text +=
                &rows_as_table(look, title, ("", &["bytes", "per second", "share", "images", "why"]), &rows);
            text.push('\n');
        }
    }
    if !document.causes.is_empty() {
        text += &causes(CAUSES, &document.causes, document.sum.bytes, look);
        text.push('\n');
    }
    for line in state_lines(document) {
        text += &format!("{line}\n");
    }
    text.push('\n');
    text
}

fn row(group: &GroupDocument) -> Row {
    Row {
        depth: 0,
        label: group.label.text.clone(),
        cells: vec![
            bytes(group.sum.bytes),
            bytes(group.sum.bytes_per_second as u64),
            percent(group.share),
            or_dash(image_share(group)),
            or_dash(main_cause(group).to_owned()),
        ],
        share: Some(group.share),
    }
}

/// Replaces an empty cell by a dash: bars are aligned only if no cell is empty.
fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Returns the share of images in a group's bytes; empty if it has none.
pub(crate) fn image_share(group: &GroupDocument) -> String {
    match group.sum.image_bytes {
        0 => String::new(),
        images => percent(images as f64 / group.sum.bytes.max(1) as f64),
    }
}

/// Returns the cause of most of a group's image bytes.
pub(crate) fn main_cause(group: &GroupDocument) -> &str {
    let causes = group.image_bytes_by_cause.iter();
    let largest = causes.max_by_key(|(_, bytes)| bytes.as_u64());
    largest.map_or("", |(name, _)| name.as_str())
}

/// Returns one line each for checkpoints, archiver, slots and problems.
pub(crate) fn state_lines(document: &WatchDocument) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(match &document.checkpoint {
        Some(checkpoint) => checkpoint_line(checkpoint),
        None => "Checkpoint: none seen yet".to_owned(),
    });
    if let Some(archiver) = &document.archiver {
        lines.push(match archiver.ready_files {
            0 => "Archiver: nothing waits".to_owned(),
            files => format!(
                "Archiver: {} files wait ({}), the oldest for {}",
                count(files),
                bytes(archiver.ready_bytes),
                seconds(archiver.oldest_seconds)
            ),
        });
    }
    for slot in &document.slots {
        let kind = if slot.slot.is_logical { "logical" } else { "physical" };
        let active = match (slot.slot.active, &slot.slot.client) {
            _ if slot.slot.is_synced => ", synchronized".to_owned(),
            (Some(true), Some(client)) => format!(", used by {client}"),
            (Some(true), None) => ", active".to_owned(),
            (Some(false), _) => ", inactive".to_owned(),
            (None, _) => String::new(),
        };
        let lag = match (slot.slot.is_lost, slot.lag_bytes, &slot.slot.problem) {
            (_, _, Some(problem)) => problem.clone(),
            (true, _, _) => "lost".to_owned(),
            (_, Some(lag), _) => format!("{} behind", bytes(lag)),
            (_, None, _) => "holds nothing".to_owned(),
        };
        lines.push(format!("Slot {} ({kind}{active}): {lag}", slot.slot.name));
    }
    let problem = document.server_problem.as_ref();
    lines.extend(problem.map(|problem| format!("Server: {}", unqueried_text(problem))));
    if document.missed_bytes > 0 {
        lines.push(format!("Not counted: {}", bytes(document.missed_bytes)));
    }
    lines
}

fn checkpoint_line(checkpoint: &CheckpointDocument) -> String {
    let next = &checkpoint.next;
    let mut text = format!("Checkpoint: {}", bytes(next.bytes_since));
    if let Some(since) = next.seconds_since {
        text += &format!(", {}", seconds(since));
    }
    text += " since the last";
    if checkpoint.is_running {
        text += ", in progress";
    } else if checkpoint.may_be_running {
        text += ", one may be in progress";
    }
    let left = next.seconds_left.map(seconds).unwrap_or_default();
    text += &match next.cause {
        Some("volume") if next.bytes_left == Some(0) => "; next due by max_wal_size".to_owned(),
        Some("volume") => format!("; next in {left} by max_wal_size"),
        Some(_) => format!("; next in {left} by checkpoint_timeout"),
        None if checkpoint.is_server_stopped => {
            format!("; {}", checkpoint.stopped_text.as_deref().unwrap_or("the server is stopped"))
        }
        None if next.is_timeout_passed && checkpoint.is_running => String::new(),
        None if next.is_timeout_passed && next.seconds_left_by_volume.is_none() => {
            "; checkpoint_timeout has passed: an idle server skips checkpoints".to_owned()
        }
        None if next.is_timeout_passed => {
            "; checkpoint_timeout has passed: the next is due, in progress, or skipped (idle)".to_owned()
        }
        None => "; what triggers the next is not known (--set max_wal_size=...)".to_owned(),
    };
    if let Some(left) = next.bytes_left.filter(|left| *left > 0) {
        text += &format!(" ({} to max_wal_size)", bytes(left));
    }
    text
}

#[cfg(test)]
mod tests {
    use walden_explain::checkpoints::CheckpointSettings;
    use walden_format::lsn::{Lsn, SegmentSize};

    use super::*;
    use crate::forecast::{Cycle, forecast};

    #[test]
    fn no_time_is_said_of_a_checkpoint_that_an_idle_server_skips() {
        let settings = CheckpointSettings {
            timeout: 300,
            max_wal_size: 1 << 30,
            completion_target_milli: 900,
            keeps_one: true,
        };
        let cycle = Cycle { redo: Lsn(1 << 24), began: Some(1000.0), server_started: None };
        let document = |settings, rate, now, is_running| {
            let (end, size) = (Lsn((1 << 24) + 120), SegmentSize::DEFAULT);
            CheckpointDocument {
                redo: cycle.redo.to_string(),
                next: forecast(cycle, end, size, settings, rate, now),
                is_running,
                may_be_running: false,
                is_server_stopped: settings.is_none(),
                stopped_text: None,
                max_wal_size: None,
                checkpoint_timeout_seconds: None,
                seen: Default::default(),
            }
        };
        let line = |rate, now, is_running| checkpoint_line(&document(Some(settings), rate, now, is_running));
        assert!(line(0.0, 1290.0, false).contains("; next in 10.0 s by checkpoint_timeout ("));
        assert!(line(0.0, 1500.0, false).contains("; checkpoint_timeout has passed: an idle server skips"));
        assert!(line(9.0, 1500.0, false).contains("; checkpoint_timeout has passed: the next is due"));
        assert!(line(9.0, 1500.0, true).contains(" since the last, in progress ("));
        let stopped = checkpoint_line(&document(None, 0.0, 1290.0, false));
        assert!(stopped.ends_with(" since the last; the server is stopped"), "{stopped}");
    }
}

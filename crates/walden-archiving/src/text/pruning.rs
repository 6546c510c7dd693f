//! What `prune` removes from an archive as text.

use std::fmt::Write;

use walden_archive::prune::{BackupState, KeptObject, Pruned, TimelineState};
use walden_format::payload::Timestamp;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

use super::{cost, locks};

/// Formats what was removed, or would be.
pub fn table(pruned: &Pruned) -> String {
    let mut text = String::new();
    if !pruned.backups.is_empty() {
        text.push_str("Backups\n");
    }
    for backup in &pruned.backups {
        describe_backup(&mut text, backup);
    }
    for timeline in &pruned.timelines {
        describe_timeline(&mut text, timeline);
    }
    for warning in &pruned.warnings {
        let _ = writeln!(text, "WARNING: {warning}");
    }
    match &pruned.reason {
        Some(reason) if !pruned.warnings.contains(reason) => {
            let _ = writeln!(text, "{reason}");
        }
        Some(_) => {}
        None => {
            let objects = counted(pruned.removed_objects, "object");
            let bytes = units::bytes(pruned.removed_bytes);
            let verb = if pruned.is_applied { "removed" } else { "would be removed (--apply removes them)" };
            let from = pruned.kept_from.as_deref().unwrap_or_default();
            let _ = writeln!(text, "Everything from {from} on stays. {objects} of {bytes} {verb}.");
            if let Some(early) = &pruned.early {
                let costs = if pruned.is_applied { "their removal cost" } else { "their removal would cost" };
                let _ = writeln!(text, "NOTE: {}", cost::describe_early(early, costs));
            }
            describe_kept(&mut text, pruned);
        }
    }
    describe_freed(&mut text, pruned);
    text
}

/// Describes removed base backups.
fn describe_freed(text: &mut String, pruned: &Pruned) {
    let count = pruned.removed_backups.len() as u64;
    let Some(freed) = &pruned.freed else {
        if count > 0 {
            let backups = counted(count, "base backup");
            let _ = writeln!(text, "{backups} would be removed, with the pieces that no other one has.");
        }
        return;
    };
    if freed.objects > 0 {
        let (objects, bytes) = (counted(freed.objects, "object"), units::bytes(freed.bytes));
        let _ = writeln!(text, "{} removed: {objects} of {bytes}.", counted(count, "base backup"));
    }
    if let Some(reason) = &freed.postponed {
        let _ = writeln!(
            text,
            "NOTE: pieces of removed base backups stay until a later run: {}",
            harmless(reason)
        );
    }
    if freed.kept_objects > 0 {
        let objects = counted(freed.kept_objects, "object");
        let _ = writeln!(
            text,
            "NOTE: the store keeps {objects} of removed base backups; a later run removes them"
        );
    }
}

/// Describes objects that are not needed and that the store keeps, and extended locks.
fn describe_kept(text: &mut String, pruned: &Pruned) {
    for KeptObject { object, problem, .. } in &pruned.kept {
        let _ = writeln!(text, "KEPT: {}: {}", harmless(object), harmless(problem));
    }
    if pruned.kept_objects > 0 {
        let _ = writeln!(
            text,
            "{} of {} not needed stay for now, with the WAL after them, so that no gap arises. A later run removes them.",
            counted(pruned.kept_objects, "object"),
            units::bytes(pruned.kept_bytes)
        );
    }
    if let Some(locks) = &pruned.locks {
        text.push_str(&locks::text(locks));
    }
}

fn describe_backup(text: &mut String, backup: &BackupState) {
    let verdict = match (&backup.problem, backup.is_kept) {
        (None, true) => "stays",
        (None, false) => "goes",
        (Some(_), true) => "does not count, its WAL is kept",
        (Some(_), false) => "does not count, its WAL is removed",
    };
    let label = backup.label.as_deref().map_or(String::new(), |label| format!(" \"{}\"", harmless(label)));
    let time = match (&backup.time_text, backup.time) {
        (Some(text), _) => format!(", {}", harmless(text)),
        (None, Some(time)) => format!(", {}", Timestamp::from_unix_micros(time)),
        (None, None) => String::new(),
    };
    let from = backup.incremental_from.as_ref();
    let incremental = from.map_or(String::new(), |from| format!(", incremental since the one from {from}"));
    let _ = writeln!(
        text,
        "  {}{label}, timeline {} from {}{time}{incremental}: {verdict}",
        harmless(&backup.name),
        backup.timeline,
        backup.start
    );
    if let Some(problem) = &backup.problem {
        let _ = writeln!(text, "    {problem}");
    }
}

fn describe_timeline(text: &mut String, timeline: &TimelineState) {
    let _ = writeln!(text, "Timeline {}", timeline.timeline);
    let rows = [
        (
            "goes",
            timeline.removed_segments,
            timeline.removed_objects,
            timeline.removed_bytes,
            &timeline.removed_range,
        ),
        ("stays", timeline.kept_segments, timeline.kept_objects, timeline.kept_bytes, &timeline.kept_range),
    ];
    for (verb, segments, objects, bytes, range) in rows {
        let Some((first, last)) = range else { continue };
        let bytes = units::bytes(bytes);
        let _ = writeln!(
            text,
            "  {verb:<5}  {} in {}, {bytes}: {first} to {last}",
            counted(segments, "segment"),
            counted(objects, "object")
        );
    }
}

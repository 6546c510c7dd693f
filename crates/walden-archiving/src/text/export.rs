//! Exports from an archive as JSON and as text.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use walden_archive::export::{Exported, Plan};
use walden_archive::name::ArchivedFile;
use walden_archive::recovery::{Recovery, TransactionEnd};
use walden_explain::moment::{Moment, time_text};
use walden_report::units;
use walden_source::counted;

use super::gaps;

/// Returns the JSON document of an export to a folder.
pub fn document(plan: &Plan, exported: &Exported, folder: &Path) -> Value {
    let names =
        |file: &(ArchivedFile, _, _)| matches!(file.0, ArchivedFile::Segment(_)).then(|| file.0.to_string());
    let begun = || plan.begun.iter().map(ToString::to_string);
    let segments: Vec<String> = plan.files.iter().filter_map(names).chain(begun()).collect();
    json!({
        "folder": folder.display().to_string(),
        "files": plan.files.len() + plan.begun.len(),
        "segments": exported.segments,
        "first_segment": segments.first(),
        "last_segment": segments.last(),
        "begun_segments": begun().collect::<Vec<String>>(),
        "written": exported.written,
        "unchanged": exported.unchanged,
        "written_bytes": exported.written_bytes,
        "damaged": exported.damaged,
        "gaps": plan.gaps,
    })
}

/// Adds the moment that recovery reaches, and the transactions around it, to the document of an export.
pub fn with_recovery(moment: &Moment, recovery: &Recovery, mut document: Value) -> Value {
    document["moment"] = json!(moment.micros());
    document["recovery_target_time"] = json!(moment.for_settings());
    document["timeline"] = json!(recovery.log.timeline());
    document["last_before"] = json!(recovery.last);
    document["stops_before"] = json!(recovery.stop);
    document["early_drops"] = json!(recovery.early_drops);
    document
}

/// Formats an export to a folder.
pub fn table(plan: &Plan, exported: &Exported, folder: &Path) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} in {}, with {}: {} written ({}), {} already present",
        counted((plan.files.len() + plan.begun.len()) as u64, "file"),
        folder.display(),
        counted(exported.segments, "segment"),
        exported.written,
        units::bytes(exported.written_bytes),
        exported.unchanged
    );
    if !exported.damaged.is_empty() {
        let files = counted(exported.damaged.len() as u64, "file");
        let _ = writeln!(text, "NOT WRITTEN: {files}, as objects of the archive are damaged");
    }
    for begun in &plan.begun {
        let _ = writeln!(text, "{begun} is still being written: its archived part, followed by zeros");
    }
    if plan.segments() == 0 {
        text.push_str(
            "The archive has no segments there; walden archive list shows timelines and their segments.\n",
        );
    }
    for gap in &plan.gaps {
        let _ = writeln!(text, "{}", gaps::line(gap));
    }
    text
}

/// Describes recovery to a moment: the transactions around it, and the settings.
pub fn recovery(moment: &Moment, recovery: &Recovery) -> String {
    let end = |end: &TransactionEnd| {
        let lsn = end.lsn.as_ref().map(|lsn| format!(" at {lsn}")).unwrap_or_default();
        format!("{}{lsn} in segment {}", time_text(end.time), end.segment)
    };
    let mut text = format!("Recovery to {}, on timeline {}:\n", moment.text(), recovery.log.timeline());
    let last = recovery.last.as_ref().map_or_else(|| "none since the start".to_owned(), end);
    let _ = writeln!(text, "  last commit or abort replayed: {last}");
    let _ = writeln!(text, "  stops before that of {}", end(&recovery.stop));
    let _ = writeln!(text, "  recovery_target_time = '{}'", moment.for_settings());
    let _ = writeln!(text, "  recovery_target_timeline = '{}'", recovery.log.timeline());
    for drop in &recovery.early_drops {
        let _ = writeln!(
            text,
            "  WARNING: {drop}: to keep them, use recovery_target_lsn = '{}' with recovery_target_inclusive = off instead of a time",
            drop.lsn
        );
    }
    text
}

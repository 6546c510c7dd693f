//! Repairs of an archive as text.

use std::fmt::Write;

use walden_archive::object::Finding;
use walden_archive::repair::Rewritten;
use walden_archive::undelete::Undeleted;
use walden_report::table::harmless;
use walden_source::counted;

use super::verification::altered_line;

/// Describes a lost `archive.json` that was written again.
pub fn rewritten(location: &str, rewritten: &Rewritten) -> String {
    let Rewritten { identity, objects, asked, agreeing, unreadable } = rewritten;
    let (cluster, megabytes) = (&identity.system_identifier, identity.segment_bytes >> 20);
    let encrypted = identity.encryption.as_ref().map(|it| format!(", encrypted to {}", it.recipient));
    let mut text = format!(
        "{location}: archive.json was rewritten: cluster {cluster}, segments of {megabytes} MB{}\n{agreeing} of {} that were read agree, \
         and none contradicts it; the archive has {objects}.\n",
        encrypted.unwrap_or_default(),
        counted(*asked, "object")
    );
    for Finding { object, problem } in unreadable {
        let _ = writeln!(text, "DAMAGED: {}: {}", harmless(object), harmless(problem));
    }
    text.push_str("walden archive verify compares all segments with it, and reads everything.\n");
    text
}

/// Describes objects of which an intact version was restored.
pub fn undeleted(undeleted: &Undeleted) -> String {
    let Undeleted { location, restored, failed, .. } = undeleted;
    let mut text = String::new();
    for altered in restored {
        let _ = writeln!(text, "{}: restored", altered_line(altered));
    }
    for Finding { object, problem } in failed {
        let _ = writeln!(text, "NOT RESTORED: {}: {}", harmless(object), harmless(problem));
    }
    let count = counted(restored.len() as u64, "object");
    let _ = writeln!(
        text,
        "{location}: {count} restored, {} not. walden archive verify reads everything.",
        failed.len()
    );
    text
}

//! Extended locks of objects as text.

use std::fmt::Write;

use walden_archive::lock::Extended;
use walden_format::payload::Timestamp;
use walden_report::table::harmless;
use walden_source::counted;

/// Describes extended locks.
pub fn text(extended: &Extended) -> String {
    let mut text = String::new();
    let until = Timestamp::from_unix_micros(extended.until);
    let objects = counted(extended.objects, "needed object");
    let _ = writeln!(text, "Locks of {} of {objects} extended to {until}.", extended.extended);
    for finding in &extended.problems {
        let _ = writeln!(text, "NOT EXTENDED: {}: {}", harmless(&finding.object), harmless(&finding.problem));
    }
    if extended.failed > 0 {
        let _ = writeln!(text, "{} could not be extended", counted(extended.failed, "lock"));
    }
    text
}

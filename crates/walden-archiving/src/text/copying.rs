//! Copies between archives as text.

use std::fmt::Write;

use walden_archive::copy::Copied;
use walden_archive::object::Finding;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

/// Describes the result for a repository.
pub fn text(copied: &Copied) -> String {
    let mut text = match copied.missing {
        0 if copied.failed.is_empty() => format!("{}: nothing is missing\n", copied.location),
        0 => format!("{}: not compared with each archive\n", copied.location),
        missing => format!(
            "{}: {} of {} copied ({})\n",
            copied.location,
            copied.copied,
            counted(missing, "missing file"),
            units::bytes(copied.stored_bytes)
        ),
    };
    text.push_str(&failures(&copied.failed));
    if let Some(backups) = copied.base_backups.as_ref().filter(|it| it.objects > 0 || !it.is_complete()) {
        let _ = writeln!(
            text,
            "{}: {} of {} copied ({})",
            copied.location,
            backups.copied,
            counted(backups.missing, "missing base backup"),
            units::bytes(backups.bytes)
        );
        text.push_str(&failures(&backups.failed));
    }
    text
}

/// Lists the objects that could not be copied.
pub fn failures(failed: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { object, problem } in failed {
        let _ = writeln!(text, "NOT COPIED: {}: {}", harmless(object), harmless(problem));
    }
    text
}

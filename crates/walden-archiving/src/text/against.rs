//! The comparison of an archive with a server's files as text.

use std::fmt::Write;

use walden_archive::against::{Compared, Mark, Outcome};
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

use super::gaps;
use crate::other_writer::OtherWriter;

/// Formats a comparison. `promoted` describes its branch ([`crate::other_writer::describe_branch`]);
/// `is_repair` is whether missing files were to be archived.
pub fn table(compared: &Compared, promoted: Option<&OtherWriter>, is_repair: bool) -> String {
    let Compared { compared: files, waiting, offered, missing, .. } = compared;
    let mut text = String::new();
    let role = match (compared.is_standby, promoted) {
        (true, _) => "standby",
        (false, None) => "primary",
        (false, Some(_)) => "server",
    };
    let _ = writeln!(
        text,
        "{} of the {role} (timeline {}, written up to {}) compared with {}",
        counted(*files, "complete file"),
        compared.timeline,
        compared.written,
        compared.location
    );
    if *waiting > 0 {
        let verb = if *waiting == 1 { "waits" } else { "wait" };
        let _ = writeln!(text, "  {waiting} {verb} for the server's archive_command");
    }
    if *offered > 0 {
        let verb = if *offered == 1 { "is" } else { "are" };
        let _ = writeln!(text, "  {offered} {verb} archived under that name, but the server still offers it");
    }
    if let Some(refused) = &compared.refused {
        let (file, problem) = (&refused.file, harmless(&refused.problem));
        let _ = writeln!(text, "  {file} is REFUSED, and all others wait for it: {problem}");
    }
    if let Some(other) = &compared.other_history {
        let (file, problem) = (&other.file, harmless(&other.problem));
        let _ = writeln!(text, "  ANOTHER HISTORY at {} in {file}: {problem}", other.lsn);
        let _ = writeln!(text, "    HINT: {}", other.hint);
    }
    if let Some(OtherWriter { problem, hint }) = promoted {
        let _ = writeln!(text, "  {}", harmless(problem));
        let _ = writeln!(text, "    HINT: {hint}");
    }
    for one in missing {
        let mark = match one.mark {
            Mark::Done => "marked as done",
            Mark::Ready => "marked as ready",
            Mark::None => "not marked",
        };
        let outcome = match (&one.outcome, &one.problem) {
            (Outcome::Filled, _) => "filled",
            (_, None) => "MISSING",
            (_, Some(problem)) => &format!("REFUSED: {problem}"),
        };
        let _ = writeln!(text, "  {} ({}, {mark}): {outcome}", one.file, units::bytes(one.bytes));
    }
    for gap in &compared.gaps {
        let _ = writeln!(text, "{}", gaps::line(gap));
    }
    if compared.other_history.is_some() {
        let _ = writeln!(text, "Nothing is archived from this server.");
    } else if missing.iter().any(|one| one.outcome == Outcome::Found) && !is_repair {
        let _ = writeln!(text, "Nothing was changed: --repair archives the missing files.");
    }
    if compared.is_good() && waiting + offered > 0 {
        let _ = writeln!(text, "The archive lacks only the waiting files.");
    } else if compared.is_good() {
        let _ = writeln!(text, "The archive has everything that the server has completed.");
    } else if !compared.gaps.is_empty() {
        let _ = writeln!(text, "Other servers of the cluster may have the missing files.");
    }
    text
}

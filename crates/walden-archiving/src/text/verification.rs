//! Verifications of an archive as text.

use std::fmt::Write;

use walden_archive::encryption::KEYS;
use walden_archive::gaps::HISTORY_HINT;
use walden_archive::verify::altered::{Altered, Change};
use walden_archive::verify::{DAMAGE_HINT, KEYS_HINT, UNDELETE_HINT, UNREADABLE_HINT, Verified};
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

use super::{gaps, listing};

/// Formats a verification.
pub fn table(verified: &Verified) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} with {} and {}: {} of WAL in {}, {} records",
        counted(verified.objects, "object"),
        counted(verified.segments, "segment"),
        counted(verified.other_files, "other file"),
        units::bytes(verified.raw_bytes),
        units::bytes(verified.stored_bytes),
        units::count(verified.records)
    );
    if verified.base_backups > 0 {
        let backups = counted(verified.base_backups, "base backup");
        let pieces = counted(verified.pieces, "piece");
        let _ = writeln!(text, "{backups} in {pieces}: {}", units::bytes(verified.piece_bytes));
    }
    if verified.unknown_version_segments > 0 {
        let _ = writeln!(text, "{}", listing::unknown_version_line(verified.unknown_version_segments));
    }
    for finding in &verified.damaged {
        let _ = writeln!(text, "DAMAGED: {}: {}", finding.object, finding.problem);
    }
    if !verified.damaged.is_empty() {
        let are_keys = verified.damaged.iter().any(|finding| finding.object.starts_with(KEYS));
        let _ = writeln!(text, "  HINT: {}", if are_keys { KEYS_HINT } else { DAMAGE_HINT });
    }
    for altered in &verified.altered {
        let _ = writeln!(text, "{}", altered_line(altered));
    }
    if !verified.altered.is_empty() {
        let _ = writeln!(text, "  HINT: {UNDELETE_HINT}");
    }
    for finding in &verified.unreadable {
        let _ = writeln!(text, "NOT READ: {}: {}", finding.object, finding.problem);
    }
    if !verified.unreadable.is_empty() {
        let objects = counted(verified.unreadable.len() as u64, "object");
        let _ = writeln!(text, "{objects} could not be read\n  HINT: {UNREADABLE_HINT}");
    }
    for gap in &verified.gaps {
        let _ = writeln!(text, "{}", gaps::line(gap));
    }
    for history in &verified.missing_histories {
        let _ = writeln!(text, "{}", listing::missing_history_line(history));
    }
    if !verified.missing_histories.is_empty() {
        let _ = writeln!(text, "  HINT: {HISTORY_HINT}");
    }
    text.push_str(&listing::backups_without_start(&verified.backups_without_start));
    for minimal in &verified.minimal_wal {
        let _ = writeln!(text, "warning: {minimal}");
    }
    for finding in &verified.warnings {
        let _ = writeln!(text, "warning: {}: {}", finding.object, finding.problem);
    }
    if let (Some(replay), Some(images), Some(different)) =
        (&verified.replay, verified.replayed_images, verified.different)
    {
        let _ = writeln!(
            text,
            "{} records replayed from {} to {} on timeline {}: {} full-page images compared, {different} differ ({} \
             cannot be compared)",
            units::count(replay.records),
            replay.from,
            replay.reached,
            replay.timeline,
            units::count(images),
            units::count(replay.not_compared)
        );
        let wrong = [
            ("DIFFERENT", &replay.differences),
            ("DOES NOT FIT", &replay.misfits),
            ("DAMAGED", &replay.damaged),
        ];
        for (what, lines) in wrong {
            for line in lines {
                let _ = writeln!(text, "{what}: {line}");
            }
        }
    }
    if verified.is_good() {
        let but = if verified.gaps.is_empty() { "" } else { " but those whose absence was acknowledged" };
        let _ = writeln!(text, "Everything is as it was archived, and no segment is missing{but}.");
    }
    text
}

/// Describes an object that was deleted or overwritten.
pub fn altered_line(altered: &Altered) -> String {
    let Altered { object, change, version, stored, intact_version, .. } = altered;
    let what = match change {
        Change::Deleted => format!(
            "DELETED: {}: the delete marker {} of {} hides it",
            harmless(object),
            harmless(version),
            harmless(stored)
        ),
        Change::Overwritten => {
            format!(
                "OVERWRITTEN: {}: the version {} of {} has other content",
                harmless(object),
                harmless(version),
                harmless(stored)
            )
        }
    };
    match intact_version {
        Some(intact) => format!("{what}; the version {} is intact", harmless(intact)),
        None => format!("{what}; no version is intact"),
    }
}

#[cfg(test)]
mod tests {
    use walden_archive::list::BackupWithoutStart;
    use walden_archive::object::Finding;

    use super::*;

    #[test]
    fn what_is_damaged_or_missing_comes_with_what_to_do() {
        let finding = |object: &str| Finding { object: object.to_owned(), problem: "cut off".to_owned() };
        let mut verified = Verified::default();
        verified.damaged = vec![finding("wal/1.wlz"), finding("wal/2.wlz")];
        verified.backups_without_start = vec![BackupWithoutStart {
            backup: "000000010000000000000002.00000028.backup".to_owned(),
            segment: "000000010000000000000002".to_owned(),
            is_acknowledged: false,
        }];
        let text = table(&verified);
        assert!(!verified.is_good());
        for expected in [
            "DAMAGED: wal/2.wlz: cut off\n  HINT: put the object back",
            "acknowledge-gap",
            "MISSING: 000000010000000000000002, in which the base backup of 000000010000000000000002.00000028.backup starts\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(table(&Verified::default()).ends_with("no segment is missing.\n"));
    }
}

//! Packs that were written as text.

use std::fmt::Write;

use walden_archive::pack::Packed;
use walden_report::units;
use walden_source::counted;

use super::cost;

/// Describes the number of segments that remain unpacked.
fn staying(segments: u64) -> String {
    let verb = if segments == 1 { "stays as it is" } else { "stay as they are" };
    format!("{} {verb}", counted(segments, "segment"))
}

/// Formats the packs that were written, or would be.
pub fn table(packed: &Packed) -> String {
    let mut text = String::new();
    let Packed { is_dry_run, segments, packs, .. } = packed;
    for pack in packs {
        let before = units::bytes(pack.bytes_before);
        let after = pack.bytes.map_or(String::new(), |bytes| format!(" -> {}", units::bytes(bytes)));
        let _ = writeln!(text, "{}: {}, {before}{after}", pack.object, counted(pack.segments, "segment"));
    }
    let verb = if *is_dry_run { "would be packed" } else { "packed" };
    let _ = writeln!(
        text,
        "{} {verb} into {}",
        counted(*segments, "segment"),
        counted(packs.len() as u64, "pack")
    );
    if !packed.tidied.is_empty() {
        let verb = if *is_dry_run { "would be removed" } else { "removed" };
        let _ = writeln!(
            text,
            "{} {verb} whose segments are in a pack too",
            counted(packed.tidied.len() as u64, "object")
        );
    }
    if let Some(early) = &packed.early {
        let costs = if *is_dry_run { "replacing them would cost" } else { "replacing them cost" };
        let _ = writeln!(text, "NOTE: {}", cost::describe_early(early, costs));
    }
    if packed.kept_objects > 0 {
        let _ = writeln!(
            text,
            "{} whose segments are in a pack too stay until their locks end, or until credentials may remove them",
            counted(packed.kept_objects, "object")
        );
    }
    if packed.incompressible_segments > 0 {
        let _ = writeln!(
            text,
            "{}: a pack of them would be larger by more than a sixteenth (a higher --level may help)",
            staying(packed.incompressible_segments)
        );
    }
    if packed.unfilled_segments > 0 {
        let _ = writeln!(
            text,
            "{} until the packs for them are full (--segments makes smaller packs)",
            staying(packed.unfilled_segments)
        );
    }
    if packed.single_segments > 0 {
        let _ = writeln!(text, "{}: no neighboring segment can be packed", staying(packed.single_segments));
    }
    if let (Some(objects), Some(bytes)) = (packed.objects_after, packed.bytes_after) {
        let before = (packed.objects_before, packed.bytes_before);
        let (was, is) = (units::bytes(before.1), units::bytes(bytes));
        let _ = writeln!(text, "objects: {} before, {objects} now; stored: {was} before, {is} now", before.0);
    }
    for finding in &packed.problems {
        let _ = writeln!(text, "LEFT AS IT IS: {}: {}", finding.object, finding.problem);
    }
    text
}

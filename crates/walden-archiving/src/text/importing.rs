//! Imports into an archive as text.

use std::fmt::Write;

use walden_archive::import::{Ignored, Imported};
use walden_report::units;
use walden_source::inventory::FileKind;

/// Formats an import.
pub fn table(imported: &Imported) -> String {
    let Imported { files, present, refused, warnings, damaged, .. } = imported;
    let mut text = String::new();
    let _ = writeln!(text, "{} ({}): {files} files", imported.source, imported.layout);
    let (raw, stored) = (units::bytes(imported.raw_bytes), units::bytes(imported.stored_bytes));
    let _ = write!(text, "  imported  {}", imported.imported);
    let _ = writeln!(
        text,
        "{}",
        if imported.imported > 0 { format!(": {raw} in {stored}") } else { String::new() }
    );
    if *present > 0 {
        let _ = writeln!(text, "  present   {present}: archived before, with the same content");
    }
    if !refused.is_empty() {
        let _ = writeln!(text, "  refused   {}", refused.len());
    }
    for one in refused {
        let _ = writeln!(text, "REFUSED: {} ({}): {}", one.file, one.path.display(), one.problem);
        if let Some(hint) = &one.hint {
            let _ = writeln!(text, "  HINT: {hint}");
        }
    }
    for one in damaged {
        let _ = writeln!(text, "DAMAGED: {}: {}", one.file, one.warning);
    }
    for one in warnings {
        let _ = writeln!(text, "warning: {}: {}", one.file, one.warning);
    }
    write_ignored(&mut text, &imported.ignored);
    text
}

/// Lists unusable segments individually; files that PostgreSQL does not archive are only counted.
fn write_ignored(text: &mut String, ignored: &[Ignored]) {
    let is_of_interest = |one: &&Ignored| {
        let name = one.path.file_name().unwrap_or_default().to_string_lossy();
        matches!(FileKind::from_name(&name), FileKind::Segment { .. } | FileKind::Pack)
    };
    for one in ignored.iter().filter(is_of_interest) {
        let _ = writeln!(text, "left out: {}: {}", one.path.display(), one.reason);
    }
    let others = ignored.iter().filter(|one| !is_of_interest(one)).count();
    if others > 0 {
        let _ = writeln!(text, "left out: {others} files that PostgreSQL does not archive");
    }
}

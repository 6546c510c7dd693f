//! Advances a base backup, for `walden backup advance`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use walden_recover::{EarlyDrop, Plan, PlanDocument, Purpose, Recovery, Restored, RestoredDocument};
use walden_report::table::harmless;
use walden_report::units;

use super::{
    Prepared, RecoverArgs, amounts_text, plan_text, report_interruption, warn_of_damage, warn_of_drops,
    with_progress,
};
use crate::terminal::{self, Format};

/// Prints the plan, and writes the later backup to a folder or in place, unless no checkpoint follows or only
/// the plan is wanted.
pub(super) fn advance_to(
    recover: &RecoverArgs,
    path: &Path,
    prepared: &Prepared,
    output: Option<&Path>,
) -> Result<Document> {
    let plan = &prepared.plan;
    let shown = output.unwrap_or(path).display().to_string();
    if recover.format == Format::Table {
        let base = path.display().to_string();
        let title = format!("Advance of {} to {}\n", harmless(&base), harmless(&shown));
        terminal::print(&(title + &plan_text(prepared) + &remaining_text(plan)))?;
    }
    warn_of_damage(plan);
    warn_of_replayed_drops(plan);
    let mut document = Document { plan: prepared.document(path), output: shown, advanced: None };
    let folder = output.map_or_else(|| std::fs::canonicalize(path), |output| Ok(output.to_owned()))?;
    if plan.checkpoint.is_none() && !recover.dry_run {
        // There is nothing to continue.
        if let Some(removed) = walden_recover::remove_leftover(&folder)? {
            let removed = harmless(&removed.display().to_string()).into_owned();
            crate::output::print_line(&format!("note: removed {removed}, which an interrupted run left"));
        }
    }
    if plan.checkpoint.is_some() && !recover.dry_run {
        let options = recover.options(Purpose::Backup, prepared);
        report_interruption(&folder)?;
        let started = Instant::now();
        let restored: Restored = with_progress(prepared, |Prepared { base, run, plan, .. }, progress| {
            let recovery = Recovery { run, base, plan, options: &options };
            match output {
                Some(output) => recovery.restore(output, progress),
                None => recovery.advance_in_place(progress),
            }
        })?;
        let seconds = started.elapsed().as_secs_f64();
        if recover.format == Format::Table {
            terminal::print(&format!("Advanced in {}\n", amounts_text(plan, &restored, seconds)))?;
        }
        document.advanced = Some(RestoredDocument::new(&restored, seconds));
    }
    Ok(document)
}

/// Warns of early drops before the checkpoint. The new backup still has files whose removal follows it.
pub(super) fn warn_of_replayed_drops(plan: &Plan) {
    let redo = plan.checkpoint.as_ref().map(|checkpoint| checkpoint.fields.redo);
    let is_replayed = |drop: &&EarlyDrop| redo.is_some_and(|redo| drop.lsn < redo);
    warn_of_drops(plan.early_drops.iter().filter(is_replayed));
}

/// Returns lines on the WAL after the checkpoint.
pub(super) fn remaining_text(plan: &Plan) -> String {
    let mut text = match plan.checkpoint {
        Some(_) => format!("  {} of WAL follow until the target\n", units::bytes(plan.remaining_bytes())),
        None => "  The backup stays as it is: no checkpoint follows its end before the target\n".to_owned(),
    };
    if let Some(unsupported) = &plan.unsupported {
        let _ = writeln!(text, "  Walden does not get past {unsupported}; take a new base backup");
    }
    text
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct Document {
    plan: PlanDocument,
    output: String,
    /// `null` with `--dry-run`, and without a later checkpoint.
    advanced: Option<RestoredDocument>,
}

impl Document {
    /// Returns whether a later backup was written.
    pub(super) fn is_complete(&self) -> bool {
        self.advanced.is_some()
    }
}

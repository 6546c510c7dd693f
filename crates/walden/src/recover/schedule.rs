//! `walden backup advance --keep`: a folder to which each run adds a later backup, and from which it removes
//! those that a rule does not keep.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::tz::TimeZone;
use serde::Serialize;
use walden_format::lsn::Lsn;
use walden_recover::{BackupDecision, BackupFolder, BaseBackup, KeepRule, ListedBackup};
use walden_report::table::harmless;

use super::advance::{Document, advance_to};
use super::restore::expect_separate_target;
use super::{Prepared, RecoverArgs, expect_unprotected, find_run};
use crate::output;
use crate::terminal::{self, Format};

/// A folder of backups, and the rule for it.
pub(super) struct Schedule<'s> {
    /// The backup with which the schedule starts.
    pub first: Option<&'s Path>,
    pub folder: &'s Path,
    pub rule: &'s KeepRule,
    pub recover: &'s RecoverArgs,
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct ScheduleDocument {
    #[serde(flatten)]
    advance: Document,
    rule: String,
    backups: Vec<BackupDecision>,
}

impl Schedule<'_> {
    /// Adds a backup, and then removes others. A failure removes nothing.
    pub fn run(&self) -> Result<ScheduleDocument> {
        let Schedule { folder, recover, .. } = *self;
        expect_unprotected(folder)?;
        if let Some(first) = self.first {
            expect_separate_target(first, folder)?;
        }
        let opened = match recover.dry_run {
            true => BackupFolder::open_to_read(folder),
            false => BackupFolder::open(folder)?,
        };
        let backups = opened.backups()?;
        let (path, mut prepared) = self.prepare_newest(&backups)?;
        let new = opened.path_of(&prepared.plan);
        let output = new.as_ref().map_or(folder, |(path, _)| path);
        if new.is_some() && !recover.dry_run {
            prepared.tablespaces = opened.create_tablespaces(&prepared.base, output)?;
        }
        let advance = advance_to(recover, &path, &prepared, Some(output))?;
        if advance.is_complete() {
            opened.complete_tablespaces(output)?;
        }
        // The backup that is advanced, or the new one, is where the next run starts.
        let newest = new.as_ref().map_or(&path, |(path, _)| path).clone();
        let mut backups = match recover.dry_run {
            true => backups,
            false => opened.backups()?,
        };
        if let (Some((path, time)), Some(checkpoint), true) =
            (&new, &prepared.plan.checkpoint, recover.dry_run)
        {
            backups.push(ListedBackup {
                name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                path: path.clone(),
                start: checkpoint.fields.redo,
                timeline: checkpoint.fields.timeline,
                system_identifier: prepared.base.system_identifier(),
                scheduled: Some(*time),
            });
        }
        let mut decisions = self.rule.decide(&backups, &newest, &TimeZone::system());
        if !recover.dry_run {
            for (backup, decision) in
                backups.iter().zip(&mut decisions).filter(|(_, it)| it.kept_for.is_empty())
            {
                match opened.remove(backup)? {
                    true => decision.removed = true,
                    false => decision.kept_for.push("in use"),
                }
            }
        }
        let document = ScheduleDocument { advance, rule: self.rule.to_string(), backups: decisions };
        if recover.format == Format::Table {
            terminal::print(&self.text(&document))?;
        }
        Ok(document)
    }

    /// Finds the newest backup that the WAL continues, and makes its plan.
    fn prepare_newest(&self, backups: &[ListedBackup]) -> Result<(PathBuf, Prepared)> {
        let mut candidates: Vec<(Lsn, PathBuf, Option<BaseBackup>)> =
            backups.iter().map(|backup| (backup.start, backup.path.clone(), None)).collect();
        let mut systems: BTreeSet<u64> = backups.iter().map(|backup| backup.system_identifier).collect();
        if let Some(path) = self.first {
            let base = self.recover.open_base(path)?;
            systems.insert(base.system_identifier());
            candidates.push((base.start(), path.to_owned(), Some(base)));
        }
        if systems.len() > 1 {
            let systems = systems.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let text = format!("expected backups of one cluster, found system identifiers {systems}");
            let hint = "use a folder for each cluster";
            return Err(output::with_hint(format!("cannot use {}: {text}", self.folder.display()), hint));
        }
        candidates.sort_by_key(|(start, _, _)| Reverse(*start));
        let mut left = candidates.len();
        for (start, path, opened) in candidates {
            left -= 1;
            let base = opened.map_or_else(|| self.recover.open_base(&path), Ok)?;
            let chosen = find_run(self.recover, &base)?;
            let run = &chosen.run;
            // After a recovery to an earlier time, the newest backups are of a branch that was left.
            let is_left = run.timeline > base.timeline() && !run.goes_on_from(start, base.timeline());
            if !is_left || left == 0 {
                // The new folders of tablespaces depend on the plan's checkpoint.
                return Ok((path, self.recover.prepare_with(base, chosen, Vec::new())?));
            }
            output::print_line(&format!(
                "note: timeline {} does not lead through {}; walden advances an earlier backup",
                run.timeline,
                path.display()
            ));
        }
        let text = format!("cannot advance a backup: expected one in {}, found none", self.folder.display());
        Err(output::with_hint(
            text,
            "name the first backup: walden backup advance BACKUP --keep RULE -o FOLDER",
        ))
    }

    fn text(&self, document: &ScheduleDocument) -> String {
        let folder = self.folder.display().to_string();
        let mut text = format!("Backups in {} ({})\n", harmless(&folder), self.rule);
        for backup in &document.backups {
            let verdict = match (&backup.kept_for[..], backup.removed) {
                ([], true) => "removed".to_owned(),
                ([], false) => "would be removed".to_owned(),
                (reasons, _) => format!("kept: {}", reasons.join(", ")),
            };
            let _ = writeln!(text, "  {}  {verdict}", harmless(&backup.name));
        }
        text
    }
}

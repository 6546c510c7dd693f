//! `walden backup advance --store`: a stored base backup becomes a later one in the same archive.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use walden_archive::base_backups::{self, NewBackup, StoredBackup, Writer, WriterOptions};
use walden_recover::{BaseBackup, PlanDocument, Purpose, Recovery, RestoredDocument, WorkFolder};
use walden_report::table::harmless;
use walden_report::units;

use super::advance::{remaining_text, warn_of_replayed_drops};
use super::{
    RecoverArgs, amounts_text, expect_unprotected, find_run, plan_text, report_interruption, stored,
    warn_of_damage, with_progress,
};
use crate::output;
use crate::progress::Progress;
use crate::terminal::{self, Format};

/// Advances a backup of the archive in a work folder, and stores the result, unless no checkpoint follows or
/// only the plan is wanted.
pub(super) fn advance_stored(recover: &RecoverArgs, path: &Path, work: &Path) -> Result<Document> {
    let Some(name) = stored::name_of(path) else {
        let text = format!(
            "cannot store a later backup than {}: expected the name of one in the archive, found a path",
            path.display()
        );
        return Err(output::with_hint(
            text,
            "latest is the newest one, and walden archive list shows all; without --store, -o names a folder",
        ));
    };
    expect_unprotected(work)?;
    let (archive, _) = recover.place.open()?;
    let old = base_backups::find(&archive, name)?;
    let base =
        recover.verified(BaseBackup::open_streamed(&stored::open(&recover.place, &archive, &old)?)?)?;
    let work = match recover.dry_run {
        true => WorkFolder::planned(work),
        false => WorkFolder::create(work)?,
    };
    let (chosen, tablespaces) = (find_run(recover, &base)?, walden_recover::tablespaces_in(&base, &work));
    let prepared = recover.prepare_with(base, chosen, tablespaces)?;
    let plan = &prepared.plan;
    if recover.format == Format::Table {
        let location = archive.store().location();
        let title = format!("Advance of {} in {}\n", old.name, harmless(location));
        terminal::print(&(title + &plan_text(&prepared) + &remaining_text(plan)))?;
    }
    warn_of_damage(plan);
    warn_of_replayed_drops(plan);
    let base_path = prepared.base.path().to_owned();
    let mut document = Document { plan: prepared.document(&base_path), advanced: None, stored: None };
    let Some(checkpoint) = plan.checkpoint.as_ref().filter(|_| !recover.dry_run) else {
        return Ok(document);
    };
    let (data, options) = (work.path().join("data"), recover.options(Purpose::Backup, &prepared));
    report_interruption(&data)?;
    let started = Instant::now();
    let restored = with_progress(&prepared, |prepared, progress| {
        let (run, base, plan) = (&prepared.run, &prepared.base, &prepared.plan);
        let restored = Recovery { run, base, plan, options: &options }.restore(&data, progress)?;
        base.write_tablespace_map(&data)?;
        Ok(restored)
    })?;
    let seconds = started.elapsed().as_secs_f64();
    if recover.format == Format::Table {
        terminal::print(&format!("Advanced in {}\n", amounts_text(plan, &restored, seconds)))?;
    }
    document.advanced = Some(RestoredDocument::new(&restored, seconds));
    let new = NewBackup {
        label: old.label.clone(),
        server_version: old.server_version.clone(),
        system_identifier: prepared.base.system_identifier(),
        start: checkpoint.fields.redo,
    };
    let writer = Writer::begin(&archive, new, WriterOptions::default().threads(recover.threads()))?;
    let mut bar = Progress::bytes("storing", prepared.base.bytes());
    let stored =
        base_backups::store_folder(writer, &data, &prepared.tablespaces, &mut |bytes| bar.advance(bytes));
    bar.finish();
    let stored = StoredDocument::new(&stored?, started.elapsed().as_secs_f64() - seconds);
    if recover.format == Format::Table {
        terminal::print(&format!(
            "Stored {}: {} of files in {}, {} of them new, in {:.1} s\n",
            stored.name,
            units::bytes(stored.bytes),
            units::bytes(stored.stored_bytes),
            units::bytes(stored.new_bytes),
            stored.seconds
        ))?;
    }
    document.stored = Some(stored);
    Ok(document)
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct Document {
    plan: PlanDocument,
    /// `null` with `--dry-run`, and without a later checkpoint.
    advanced: Option<RestoredDocument>,
    /// As `advanced`.
    stored: Option<StoredDocument>,
}

/// The stored backup.
#[derive(Serialize)]
struct StoredDocument {
    name: String,
    timeline: u32,
    start_lsn: String,
    end_lsn: String,
    bytes: u64,
    stored_bytes: u64,
    new_bytes: u64,
    seconds: f64,
}

impl StoredDocument {
    fn new(backup: &StoredBackup, seconds: f64) -> StoredDocument {
        let (timeline, start) = backup.start();
        StoredDocument {
            name: backup.name.clone(),
            timeline,
            start_lsn: start.to_string(),
            end_lsn: backup.end().to_string(),
            bytes: backup.bytes,
            stored_bytes: backup.stored_bytes,
            new_bytes: backup.new_bytes,
            seconds,
        }
    }
}

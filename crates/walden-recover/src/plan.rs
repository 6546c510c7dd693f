//! The plan of a restore, made in one pass over the WAL before anything is written.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use walden_format::lsn::{Lsn, Timeline};
use walden_format::payload::dbase::DatabaseCreate;
use walden_format::payload::xlog::{Checkpoint, ParameterChange, WalLevel};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{NeededPart, Visitor};
use walden_redo::Overwrites;
use walden_source::datadir::SharedSizes;
use walden_source::inventory::{Run, SegmentFile};
use walden_source::kept::KeptSegments;
use walden_source::scan::{Damage, Nothing, ScanOptions, SegmentEnd, scan};
use walden_source::timelines::{Lineage, lineages};

use crate::base::BaseBackup;
use crate::early_drops::{DropEvents, EarlyDrop, find_early_drops};
use crate::error::RecoverError;
use crate::overwritten::{ImagePlace, ImagesOfSegments, OverwritesBefore};
use crate::settings::{NewSettings, largest, sizes_of};
use crate::support::{Unsupported, reads_fields, unsupported};
use crate::tablespaces::{MappedTablespace, new_folder_of};
use crate::target::{Target, end_of_transaction};

/// A checkpoint record at which PostgreSQL may start.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckpointRecord {
    /// LSN of the record.
    pub lsn: Lsn,
    /// End of the checkpoint record.
    pub end: Lsn,
    /// Fields of the checkpoint record.
    pub fields: Checkpoint,
    /// Its main data, which `pg_control` has a copy of.
    pub(crate) data: Vec<u8>,
}

/// The plan of a restore.
#[derive(Debug)]
pub struct Plan {
    /// Where recovery stops.
    pub target: Target,
    /// The position from which WAL is replayed.
    pub start: Lsn,
    /// From where on the base backup is consistent.
    pub consistent: Lsn,
    /// The checkpoint up to whose redo pointer Walden replays; `None` if no checkpoint lies between the end
    /// of the backup and the target: PostgreSQL starts from the base backup itself.
    pub checkpoint: Option<CheckpointRecord>,
    /// Number of checkpoints between the base backup and the target.
    pub checkpoints: u64,
    /// The record at which recovery stops, or the end of the WAL.
    pub stop: Lsn,
    /// A later restore point with the target's name, if one follows within 1 GB.
    pub next_of_name: Option<Lsn>,
    /// The last commit or abort before it, in microseconds since 1970-01-01 00:00:00 UTC.
    pub last_commit: Option<i64>,
    /// The timeline that is followed to the target.
    pub timeline: Timeline,
    /// The first record that is left to PostgreSQL because Walden does not replay it.
    pub unsupported: Option<Unsupported>,
    /// Damage that ends the WAL.
    pub damage: Option<Damage>,
    /// Tablespaces that records from the checkpoint's redo pointer to the target create outside of the data
    /// directory, with the position. PostgreSQL creates them in the same folders.
    pub tablespaces: Vec<(Lsn, String)>,
    /// Databases and tablespaces whose files recovery removes, although it stops before the commit of their
    /// drop.
    pub early_drops: Vec<EarlyDrop>,
    /// Settings at the checkpoint, if WAL has changed them since the base backup.
    pub(crate) settings: Option<ParameterChange>,
    /// Settings that recovery from the checkpoint to the target requires at least.
    pub(crate) required: SharedSizes,
    /// The pages that WAL before the checkpoint's redo pointer overwrites.
    pub(crate) overwrites: Arc<Overwrites>,
}

impl Plan {
    /// Bytes of WAL that Walden replays.
    pub fn replayed_bytes(&self) -> u64 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.fields.redo.bytes_since(self.start))
    }

    /// The settings of a server restored from a backup in plain format. For other formats, the settings are
    /// known only after the restore.
    pub fn new_settings(&self, base: &BaseBackup) -> Option<NewSettings> {
        NewSettings::of_backup(base, self.required)
    }

    /// Bytes of WAL that PostgreSQL replays.
    pub fn remaining_bytes(&self) -> u64 {
        let from = self.checkpoint.as_ref().map_or(self.start, |checkpoint| checkpoint.fields.redo);
        self.stop.bytes_since(from)
    }

    /// Reads the WAL from the base backup to the target and chooses the checkpoint. `mapped` has the new
    /// folders of tablespaces. Images that replay will not read are cut out of `kept`. `done` gets the bytes
    /// of each segment that was read.
    ///
    /// # Errors
    /// The WAL does not continue the backup, does not reach the target, or is damaged before it; a new folder
    /// is not used, or PostgreSQL would not use it.
    pub fn make(
        run: &Run,
        base: &BaseBackup,
        target: Target,
        mapped: &[MappedTablespace],
        threads: usize,
        kept: Option<&KeptSegments>,
        mut done: impl FnMut(u64),
    ) -> Result<Plan, RecoverError> {
        let (start, timeline) = (base.start(), base.timeline());
        let (expected, found) = (base.system_identifier(), run.system_id);
        if expected != found {
            return Err(RecoverError::OtherCluster { expected, found });
        }
        if !run.goes_on_from(start, timeline) {
            let found =
                format!("segments from {} to {} on timeline {}", run.start(), run.end(), run.timeline);
            return Err(RecoverError::NoStart { start, timeline, found });
        }
        let commit_timestamps = base.control.track_commit_timestamp;
        let notes_images = kept.is_some();
        let make = |_| Survey {
            start,
            target: &target,
            commit_timestamps,
            mapped,
            notes_images,
            found: Found::default(),
        };
        let (mut all, mut reached, mut damage) = (Found::default(), start, None);
        let mut overwrites = OverwritesBefore::default();
        let mut images = ImagesOfSegments::default();
        scan(run, ScanOptions::new(threads).from(Some(start)), make, |mut outcome| {
            reached = outcome.position;
            let end = outcome.start.plus(run.segment_size.bytes());
            overwrites.add(end, std::mem::take(&mut outcome.visitor.found.overwrites));
            images.add(outcome.start, std::mem::take(&mut outcome.visitor.found.images));
            all.append(outcome.visitor.found);
            if let Some(last) = all.checkpoints.last()
                && all.unsupported.as_ref().is_none_or(|unsupported| last.fields.redo <= unsupported.lsn)
            {
                overwrites.reach(last.fields.redo);
            }
            if let Some(kept) = kept.filter(|_| !all.copies_database) {
                images.cut(kept, &overwrites, run.geometry());
            }
            done(run.segment_size.bytes());
            if all.stop.is_some() {
                return ControlFlow::Break(());
            }
            if let SegmentEnd::Damaged(found) = outcome.end {
                damage = Some(found);
            }
            ControlFlow::Continue(())
        });
        let stop = match (all.stop, &target) {
            (Some(stop), _) => stop,
            (None, Target::Latest) => match damage.take() {
                // PostgreSQL would end recovery there without an error.
                Some(found) if has_later_segments(run, &found) => {
                    return Err(RecoverError::Damage(Box::new(found)));
                }
                found => {
                    damage = found;
                    reached
                }
            },
            (None, _) => {
                return Err(match (damage, &target, all.top_level_xid) {
                    (_, &Target::Xid(xid), Some(top_level)) => {
                        RecoverError::Subtransaction { xid, top_level }
                    }
                    (Some(damage), ..) => RecoverError::Damage(Box::new(damage)),
                    (None, ..) => match (&target, all.last_of_target) {
                        (&Target::Xid(xid), Some((lsn, is_prepared))) => {
                            RecoverError::Unfinished { xid, start, lsn, is_prepared, end: reached }
                        }
                        _ => {
                            let target = target.to_string();
                            RecoverError::TargetNotReached { target, start, end: reached }
                        }
                    },
                });
            }
        };
        let next_of_name = find_next_name(run, &target, stop, threads);
        let consistent = match base.label.is_from_standby {
            true => Some(base.control.min_recovery_point.max(start)),
            false => all.ends_of_backups.iter().find(|(of, _)| *of == start).map(|(_, end)| *end),
        };
        let Some(consistent) = consistent.filter(|&consistent| consistent <= stop) else {
            return Err(match target {
                Target::Latest => RecoverError::NoEndOfBackup { start, end: reached },
                _ => {
                    let end = consistent.or_else(|| find_end_of_backup(run, start, stop, threads));
                    let backup = end.map_or_else(
                        || "which the WAL does not contain".to_owned(),
                        |end| format!("at {end}"),
                    );
                    RecoverError::TargetTooEarly { target: target.to_string(), backup }
                }
            });
        };
        // PostgreSQL would stop at the first later commit, with changes after the target.
        let backup_time = all.checkpoints.iter().find(|it| it.lsn == base.label.checkpoint);
        if let (Target::Time(time), Some(checkpoint)) = (&target, backup_time)
            && *time < checkpoint.fields.time.saturating_mul(1_000_000)
        {
            let backup =
                format!("its checkpoint was at {}", Timestamp::from_unix_seconds(checkpoint.fields.time));
            return Err(RecoverError::TargetTooEarly { target: target.to_string(), backup });
        }
        let is_minimal = |(_, settings): &&(Lsn, ParameterChange)| settings.wal_level == WalLevel::Minimal;
        if let Some(&(lsn, _)) = all.settings.iter().find(is_minimal) {
            return Err(RecoverError::MinimalWal { lsn });
        }
        let is_before_stop = |checkpoint: &CheckpointRecord| checkpoint.end <= stop;
        let checkpoints =
            all.checkpoints.iter().filter(|it| it.lsn > base.label.checkpoint && is_before_stop(it));
        let is_possible = |checkpoint: &&CheckpointRecord| {
            let redo = checkpoint.fields.redo;
            is_before_stop(checkpoint)
                && redo >= consistent
                && all.unsupported.as_ref().is_none_or(|unsupported| redo <= unsupported.lsn)
        };
        let (count, checkpoint) =
            (checkpoints.count() as u64, all.checkpoints.iter().rfind(is_possible).cloned());
        let redo = checkpoint.as_ref().map_or(start, |checkpoint| checkpoint.fields.redo);
        let unsupported = all.unsupported.filter(|unsupported| unsupported.lsn < stop);
        let tablespaces = tablespaces_left(all.tablespaces, mapped, (redo, unsupported.as_ref()), base)?;
        let settings = all.settings.iter().rfind(|(lsn, _)| *lsn < redo).map(|(_, settings)| *settings);
        let at_start = settings.as_ref().map_or(base.control.sizes, sizes_of);
        let changes = all.settings.iter().filter(|(lsn, _)| *lsn >= redo);
        let required = changes.map(|(_, settings)| sizes_of(settings)).fold(at_start, largest);
        let is_inclusive = !matches!(target, Target::Latest | Target::Time(_));
        let early_drops = find_early_drops(run, start, stop.plus(u64::from(is_inclusive)), all.last_drop);
        let overwrites = if all.copies_database { None } else { overwrites.before(redo) };
        if overwrites.is_none() {
            kept.into_iter().for_each(KeptSegments::drop_cut);
        }
        Ok(Plan {
            target,
            start,
            consistent,
            checkpoint,
            checkpoints: count,
            stop,
            next_of_name,
            last_commit: all.last_commit,
            timeline: run.timeline,
            unsupported,
            damage,
            tablespaces,
            early_drops,
            settings,
            required,
            overwrites: Arc::new(overwrites.unwrap_or_default()),
        })
    }
}

/// Returns the tablespaces that PostgreSQL creates, in the folders that WAL names. `created` are those of all
/// records before the target.
fn tablespaces_left(
    mut created: Vec<(Lsn, String)>,
    mapped: &[MappedTablespace],
    (redo, unsupported): (Lsn, Option<&Unsupported>),
    base: &BaseBackup,
) -> Result<Vec<(Lsn, String)>, RecoverError> {
    let is_created = |old: &Path| created.iter().any(|(_, path)| Path::new(path) == old);
    if let Some(old) = mapped.iter().filter_map(MappedTablespace::old_if_created).find(|old| !is_created(old))
    {
        let mut known: Vec<String> =
            base.tablespaces.iter().map(|it| it.folder.display().to_string()).collect();
        known.extend(created.into_iter().map(|(_, path)| path));
        return Err(RecoverError::Mapping { old: old.to_owned(), found: known.join(", ") });
    }
    created.retain(|(lsn, _)| *lsn >= redo);
    match created.iter().find(|(_, path)| new_folder_of(mapped, path.as_bytes()).is_some()) {
        Some((lsn, path)) => {
            let (path, unsupported) = (path.into(), unsupported.cloned());
            Err(RecoverError::MappedAfter { path, lsn: *lsn, redo, unsupported })
        }
        None => Ok(created),
    }
}

/// Returns whether the WAL has segments after the one in which the damaged record starts.
fn has_later_segments(run: &Run, damage: &Damage) -> bool {
    let size = run.segment_size;
    run.end() > size.start_of(size.segment_of(damage.lsn)).plus(size.bytes())
}

/// Maximum number of bytes of WAL after the target that are searched for another restore point of its name.
const MAX_SEARCHED: u64 = 1 << 30;

/// Returns the next restore point with the target's name after the one at which recovery stops.
fn find_next_name(run: &Run, target: &Target, stop: Lsn, threads: usize) -> Option<Lsn> {
    if !matches!(target, Target::Name(_)) {
        return None;
    }
    let (mut next, mut searched) = (None, 0);
    let make = |_| NameSearch { target, after: stop, found: None };
    scan(run, ScanOptions::new(threads).from(Some(stop)), make, |outcome| {
        next = outcome.visitor.found;
        searched += run.segment_size.bytes();
        match next.is_some() || searched >= MAX_SEARCHED {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    next
}

/// Returns the end of the base backup that starts at `start`, from its record after `stop`.
fn find_end_of_backup(run: &Run, start: Lsn, stop: Lsn, threads: usize) -> Option<Lsn> {
    let mut end = None;
    let make = |_| EndOfBackup { start, end: None };
    scan(run, ScanOptions::new(threads).from(Some(stop)), make, |outcome| {
        end = outcome.visitor.end;
        match end {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    end
}

/// Finds the end of the base backup that starts at `start`.
struct EndOfBackup {
    start: Lsn,
    end: Option<Lsn>,
}

impl Visitor for EndOfBackup {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.header.rmid == rmid::XLOG
            && let Ok(Payload::BackupEnd(end)) = payload::parse(record)
            && end.start == self.start
        {
            self.end = Some(record.end);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Finds a record at which recovery would stop after `after`.
struct NameSearch<'t> {
    target: &'t Target,
    after: Lsn,
    found: Option<Lsn>,
}

impl Visitor for NameSearch<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.lsn > self.after && self.target.stops_at(record) {
            self.found = Some(record.lsn);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Returns the LSN of the last record of a run; without records, the start of the run.
pub fn last_record(run: &Run, threads: usize) -> Lsn {
    let (mut last, mut first) = (run.start(), run.segments.len());
    // A record may start some segments before the end.
    while first > 0 && last == run.start() {
        first -= 1;
        let from = run.segments.get(first).map(|segment| segment.start);
        scan(
            run,
            ScanOptions::new(threads).from(from),
            |_| Nothing,
            |outcome| {
                last = outcome.last_record().unwrap_or(last);
                ControlFlow::Continue(())
            },
        );
    }
    last
}

/// Chooses the WAL that continues a base backup, along the latest timeline. Without WAL that continues the
/// backup, returns other WAL, which the plan's error names.
pub fn choose_run(runs: Vec<Run>, base: &BaseBackup) -> Option<ChosenRun> {
    let mut found: Vec<(Run, Option<SegmentFile>)> = Vec::new();
    for Lineage { mut run, .. } in lineages(runs) {
        let mut partial = None;
        // Recovery does not ask for a .partial.
        while let Some(found) = run.segments.pop_if(|segment| segment.partial) {
            partial = Some(found);
        }
        if !run.segments.is_empty() {
            found.push((run, partial));
        }
    }
    let runs = found;
    let is_of_cluster = |(run, _): &(Run, _)| run.system_id == base.system_identifier();
    let continues = |one: &(Run, _)| is_of_cluster(one) && one.0.goes_on_from(base.start(), base.timeline());
    let index = runs.iter().rposition(continues).or_else(|| runs.iter().rposition(is_of_cluster));
    let end = index.map(|index| runs[index].0.end());
    let later = runs.iter().filter(|one| is_of_cluster(one)).filter_map(|(run, _)| {
        let first = run.segments.first()?;
        Some(LaterWal { start: first.start, is_restarted: first.is_restarted })
    });
    let is_later = |later: &LaterWal, end| later.start > end || later.start == end && later.is_restarted;
    let later = later.filter(|later| end.is_some_and(|end| is_later(later, end))).min();
    let (run, partial) = runs.into_iter().nth(index.unwrap_or(0))?;
    Some(ChosenRun { run, later, partial })
}

/// The start of WAL that does not continue the WAL before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LaterWal {
    /// Where it starts.
    pub start: Lsn,
    /// Whether `pg_resetwal` restarted the WAL there. Otherwise, segments before it are missing.
    pub is_restarted: bool,
}

/// The WAL that continues a base backup.
#[derive(Debug)]
pub struct ChosenRun {
    /// The segments that recovery asks for.
    pub run: Run,
    /// The next WAL after a gap or a restart.
    pub later: Option<LaterWal>,
    /// The `.partial` that follows the segments.
    partial: Option<SegmentFile>,
}

impl ChosenRun {
    /// Makes the plan, as [`Plan::make`] does.
    ///
    /// # Errors
    /// As [`Plan::make`], and WAL that ends before the target at a gap, or where `pg_resetwal` restarted it:
    /// the end of the run is not the end of the WAL then.
    pub fn make_plan(
        &self,
        base: &BaseBackup,
        target: Target,
        mapped: &[MappedTablespace],
        threads: usize,
        kept: Option<&KeptSegments>,
        done: impl FnMut(u64),
    ) -> Result<Plan, RecoverError> {
        let plan = Plan::make(&self.run, base, target.clone(), mapped, threads, kept, done);
        let gap = |later: LaterWal| {
            let (target, end) = (target.to_string(), self.run.end());
            match later.is_restarted {
                true => {
                    let last = last_record(&self.run, threads);
                    RecoverError::Restarted { target, last, at: later.start }
                }
                false => RecoverError::Gap { target, end, later: later.start },
            }
        };
        match (plan, self.later) {
            (Ok(plan), Some(later)) if plan.target == Target::Latest => Err(gap(later)),
            (
                Err(
                    RecoverError::TargetNotReached { .. }
                    | RecoverError::Unfinished { .. }
                    | RecoverError::NoEndOfBackup { .. },
                ),
                Some(later),
            ) => Err(gap(later)),
            (plan, _) => plan,
        }
    }

    /// Returns the `.partial` that follows the segments, and the end of its WAL.
    pub fn find_unread_partial(&mut self, threads: usize) -> Option<UnreadPartial> {
        let partial = self.partial.clone()?;
        let (file, mut end) = (format!("{}.partial", partial.name), partial.start);
        let start = end;
        self.run.segments.push(partial);
        scan(
            &self.run,
            ScanOptions::new(threads).from(Some(end)),
            |_| Nothing,
            |outcome| {
                end = outcome.position;
                ControlFlow::Continue(())
            },
        );
        self.run.segments.pop();
        (end > start).then_some(UnreadPartial { file, end })
    }
}

/// An incomplete segment after the WAL, which recovery does not read under its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadPartial {
    /// Name of the file.
    pub file: String,
    /// The end of its WAL.
    pub end: Lsn,
}

/// Results of the survey of a segment, or of all segments so far.
#[derive(Default)]
struct Found {
    checkpoints: Vec<CheckpointRecord>,
    /// Starts of backups, and the ends of their `BACKUP_END` records.
    ends_of_backups: Vec<(Lsn, Lsn)>,
    settings: Vec<(Lsn, ParameterChange)>,
    unsupported: Option<Unsupported>,
    tablespaces: Vec<(Lsn, String)>,
    overwrites: Overwrites,
    images: Vec<ImagePlace>,
    /// Whether a database is copied: the pages of its source are read in between.
    copies_database: bool,
    /// The last record that removes a database or a tablespace.
    last_drop: Option<Lsn>,
    last_commit: Option<i64>,
    /// The record at which recovery stops.
    stop: Option<Lsn>,
    /// The transaction that has the target as a subtransaction.
    top_level_xid: Option<u32>,
    /// The last record of the transaction that is the target, and whether it prepares the transaction.
    last_of_target: Option<(Lsn, bool)>,
}

impl Found {
    /// Appends the results of a later segment.
    fn append(&mut self, later: Found) {
        self.checkpoints.extend(later.checkpoints);
        self.ends_of_backups.extend(later.ends_of_backups);
        self.settings.extend(later.settings);
        self.tablespaces.extend(later.tablespaces);
        self.copies_database |= later.copies_database;
        self.unsupported = self.unsupported.take().or(later.unsupported);
        self.last_drop = later.last_drop.or(self.last_drop);
        self.last_commit = later.last_commit.or(self.last_commit);
        self.stop = later.stop;
        self.top_level_xid = self.top_level_xid.or(later.top_level_xid);
        self.last_of_target = later.last_of_target.or(self.last_of_target);
    }
}

/// Reads a segment for a [`Plan`].
struct Survey<'t> {
    start: Lsn,
    target: &'t Target,
    commit_timestamps: bool,
    mapped: &'t [MappedTablespace],
    notes_images: bool,
    found: Found,
}

impl Visitor for Survey<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.lsn < self.start {
            return ControlFlow::Continue(());
        }
        if DropEvents::may_be_drop(record) {
            self.found.last_drop = Some(record.lsn);
        }
        if self.target.stops_at(record) {
            self.found.stop = Some(record.lsn);
            // Recovery to a time stops before the record, others after it.
            if !matches!(self.target, Target::Time(_)) {
                self.note_end_of_transaction(record);
            }
            return ControlFlow::Break(());
        }
        if matches!(self.target, Target::Xid(xid) if *xid == record.header.xid) {
            let is_prepared =
                record.header.rmid == rmid::XACT && matches!(payload::parse(record), Ok(Payload::Prepare(_)));
            self.found.last_of_target = Some((record.lsn, is_prepared));
        }
        if self.found.unsupported.is_none() {
            let is_mapped = |old: &[u8]| new_folder_of(self.mapped, old).is_some();
            self.found.unsupported = unsupported(record, self.commit_timestamps, &is_mapped);
        }
        self.found.overwrites.note(record);
        if self.notes_images {
            self.found.images.extend(ImagePlace::find(record));
        }
        match record.header.rmid {
            rmid::DBASE => self.note_copy_of_database(record),
            rmid::XACT => self.note_end_of_transaction(record),
            rmid::XLOG => self.read_of_log(record),
            rmid::TBLSPC => self.note_tablespace(record),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        match record.blocks.is_empty() || reads_fields(record) {
            true => NeededPart::All,
            false => NeededPart::Headers,
        }
    }
}

impl Survey<'_> {
    fn note_copy_of_database(&mut self, record: &Record<'_>) {
        let is_copy = |created: DatabaseCreate| created.source.is_some();
        self.found.copies_database |=
            matches!(payload::parse(record), Ok(Payload::DatabaseCreate(created)) if is_copy(created));
    }

    fn note_end_of_transaction(&mut self, record: &Record<'_>) {
        let Some((xid, time)) = end_of_transaction(record) else { return };
        self.found.last_commit = Some(time);
        if let Target::Xid(target) = self.target
            && self.found.top_level_xid.is_none()
            && let Ok(Payload::Commit(end) | Payload::Abort(end)) = payload::parse(record)
            && end.subxacts.clone().any(|subxact| subxact == *target)
        {
            self.found.top_level_xid = Some(xid);
        }
    }

    /// Notes a tablespace in a folder outside of the data directory.
    fn note_tablespace(&mut self, record: &Record<'_>) {
        if let Ok(Payload::TablespaceCreate(created)) = payload::parse(record)
            && !created.path.0.is_empty()
        {
            let path = String::from_utf8_lossy(created.path.0).into_owned();
            self.found.tablespaces.push((record.lsn, path));
        }
    }

    fn read_of_log(&mut self, record: &Record<'_>) {
        match payload::parse(record) {
            Ok(Payload::Checkpoint(fields)) => {
                let data = record.main_data().to_owned();
                let checkpoint = CheckpointRecord { lsn: record.lsn, end: record.end, fields, data };
                self.found.checkpoints.push(checkpoint);
            }
            Ok(Payload::BackupEnd(end)) => self.found.ends_of_backups.push((end.start, record.end)),
            Ok(Payload::ParameterChange(change)) => self.found.settings.push((record.lsn, change)),
            _ => {}
        }
    }
}

//! Removes WAL that no kept base backup needs.
//!
//! A backup needs all WAL from its start, on its timeline and on every descendant. So a single LSN decides:
//! the start of the oldest kept backup's WAL. Earlier WAL on any timeline is useless to all kept backups.
//! Later WAL is kept, as are all histories and every pack with at least one kept segment. A backup counts
//! only if the archive has the WAL that makes it consistent. If several timelines continue, a rule that
//! counts backups applies to each of them. For a timeline that is newer than those of all kept backups, the
//! last backup that leads to it is also kept, unless the user chose the position.

mod plan;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_recover::KeepRule;

use self::plan::{Choice, KeptForTimeline, LastBackupOfTimeline};
use crate::archive::{Archive, ArchiveError};
use crate::base_backups::{self, Removed};
use crate::history::History;
use crate::ingest::probe;
use crate::inspect::cost::{Ages, Early};
use crate::inspect::list::{self, ListOptions, Listing};
use crate::inventory::gaps::{self, Gap};
use crate::inventory::pruned;
use crate::inventory::segments::Segments;
use crate::inventory::snapshot::Snapshot;
use crate::inventory::verified;
use crate::maintenance::backup::{self, Backup};
use crate::maintenance::lock::{self, Extended};
use crate::objects::name::{ArchivedFile, Object, WAL};
use crate::restore::get;
use crate::restore::log::stretches;
use crate::restore::recovery;
use crate::store::Cause;

/// Number of segments before a backup in which the end of a transaction is searched for.
const MAX_SEGMENTS_BEFORE: usize = 16;

/// The rule for keeping backups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Keeps all backups on disk.
    KeepExisting,
    /// Keeps this many backups.
    KeepBackups(u64),
    /// Keeps the newest backup of each of the last periods.
    Keep {
        /// The periods.
        rule: KeepRule,
        /// The time zone of days and weeks.
        zone: TimeZone,
    },
    /// Keeps the WAL for recovery to any moment since `moment`.
    KeepSince {
        /// The moment, in microseconds since 1970-01-01 00:00:00 UTC.
        moment: i64,
        /// Microseconds from the moment to now.
        age: i64,
    },
    /// Keeps a backup and all later backups. The backup is identified by its label, the name of its history
    /// file, or its path.
    OlderThanBackup(String),
    /// Keeps all backups that start in this segment or later.
    OlderThanSegment(SegmentName),
    /// Keeps all backups that start at this position or later.
    OlderThanPosition(Lsn),
}

impl Rule {
    /// Returns whether the user chose the position.
    fn is_explicit(&self) -> bool {
        match self {
            Rule::KeepExisting | Rule::KeepBackups(_) | Rule::KeepSince { .. } | Rule::Keep { .. } => false,
            Rule::OlderThanBackup(_) | Rule::OlderThanSegment(_) | Rule::OlderThanPosition(_) => true,
        }
    }
}

/// Result of pruning.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// Location of the archive.
    pub location: String,
    /// Whether the plan was applied.
    #[serde(rename = "applied")]
    pub is_applied: bool,
    /// Start LSN of the first kept segment. All WAL before this LSN is removed.
    pub kept_from: Option<String>,
    /// The reason for removing nothing, if any.
    pub reason: Option<String>,
    /// All known backups, ordered by their starts.
    pub backups: Vec<BackupState>,
    /// Removed and kept WAL by timeline.
    pub timelines: Vec<TimelineState>,
    /// Number of removed objects: segments, packs, partial segments and backup history files.
    pub removed_objects: u64,
    /// Stored size of the removed objects in bytes.
    pub removed_bytes: u64,
    /// Number of objects that are not needed but that the store keeps: they are locked, these credentials may
    /// not remove them, or their removal would leave a gap after another object that stays. A later run tries
    /// again.
    pub kept_objects: u64,
    /// Stored size of the objects that the store keeps, in bytes.
    pub kept_bytes: u64,
    /// The first of the objects that are not needed but that the store keeps, at most [`MAX_KEPT`].
    pub kept: Vec<KeptObject>,
    /// Removed objects that are younger than the minimum storage duration of their class.
    pub early: Option<Early>,
    /// Locks of the kept objects that were extended, if the configuration has a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks: Option<Extended>,
    /// Names of the base backups in the archive that are removed.
    pub removed_backups: Vec<String>,
    /// The result of removing base backups, once it was applied; `None` if there was nothing to do.
    pub freed: Option<Removed>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Maximum number of objects in [`Pruned::kept`].
pub const MAX_KEPT: usize = 64;

/// An object that is not needed, and that the store keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KeptObject {
    /// Name of the object in the store.
    pub object: String,
    /// When the object's lock ends, in microseconds since 1970-01-01 00:00:00 UTC; `None` if the object has
    /// no lock.
    pub locked_until: Option<i64>,
    /// Why the store keeps the object.
    pub problem: String,
}

/// A backup and the decision about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BackupState {
    /// Name of the backup history file, or path of the manifest.
    pub name: String,
    /// Label of the backup.
    pub label: Option<String>,
    /// Timeline on which the backup started.
    pub timeline: Timeline,
    /// Start LSN of the backup's WAL.
    pub start: String,
    /// Time of completion, in microseconds since 1970-01-01 00:00:00 UTC. `None` if it is not known exactly.
    pub time: Option<i64>,
    /// The server's text for a time whose zone is ambiguous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_text: Option<String>,
    /// Start LSN of the backup that this incremental backup needs.
    pub incremental_from: Option<String>,
    /// Why the backup does not count; `None` if it counts.
    pub problem: Option<String>,
    /// Whether the backup's WAL is kept.
    #[serde(rename = "kept")]
    pub is_kept: bool,
}

/// The decision about a timeline's WAL.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TimelineState {
    /// The timeline.
    pub timeline: Timeline,
    /// Number of removed segments.
    pub removed_segments: u64,
    /// Number of removed objects.
    pub removed_objects: u64,
    /// Stored size of the removed objects in bytes.
    pub removed_bytes: u64,
    /// First and last removed segment.
    pub removed_range: Option<(String, String)>,
    /// Number of kept segments.
    pub kept_segments: u64,
    /// Number of kept objects.
    pub kept_objects: u64,
    /// Stored size of the kept objects in bytes.
    pub kept_bytes: u64,
    /// First and last kept segment.
    pub kept_range: Option<(String, String)>,
}

/// The planned removals, in order.
#[derive(Clone, Debug)]
pub struct Plan {
    pruned: Pruned,
    removals: Vec<Removal>,
    ages: Ages,
    /// The first kept segment of each timeline; empty if everything is kept.
    first_kept: Vec<SegmentName>,
    /// The base backups in the archive that are removed, with the number of their first segment.
    backups: Vec<(String, u64)>,
}

/// A planned removal.
#[derive(Clone, Debug)]
struct Removal {
    key: String,
    bytes: u64,
    /// Number of the last segment of an object with WAL, or of the first segment of a backup.
    number: u64,
    has_wal: bool,
}

impl Pruned {
    /// Returns whether the kept WAL is complete and backups were found.
    pub fn is_good(&self) -> bool {
        self.warnings.is_empty()
    }
}

/// Plans the removals without changing anything. `on_disk` are the backups found on disk. If there are any,
/// or any in the archive, only these count.
///
/// # Errors
/// The store's errors, and an archive that cannot be interpreted.
pub fn plan(archive: &Archive, rule: &Rule, on_disk: Vec<Backup>) -> Result<Plan, ArchiveError> {
    make_plan(archive, rule, on_disk, false)
}

/// Plans the removals as if each backup history file were that of an existing backup.
///
/// # Errors
/// As [`plan`].
pub fn plan_if_all_exist(archive: &Archive, rule: &Rule, on_disk: Vec<Backup>) -> Result<Plan, ArchiveError> {
    make_plan(archive, rule, on_disk, true)
}

fn make_plan(
    archive: &Archive,
    rule: &Rule,
    on_disk: Vec<Backup>,
    all_exist: bool,
) -> Result<Plan, ArchiveError> {
    let size = archive.segment_size()?;
    let objects = Snapshot::take(archive.store(), &[WAL.to_owned()])?.objects;
    let mut existing = on_disk;
    existing.extend(backup::stored(archive)?);
    let only_existing = !existing.is_empty() && !all_exist;
    let backups = backup::merge(backup::archived(archive, size)?, existing);
    let segments = Segments::new(&objects, size);
    let (newest, latest_before) = match rule {
        Rule::KeepSince { .. } => {
            let listing = list::list(archive, ListOptions::default().time_samples(true))?;
            let newest = listing.timelines.iter().filter_map(|timeline| timeline.last_commit_time).max();
            let latest = |backup| latest_before(archive, &objects, &listing, backup, size);
            (newest, backups.iter().map(latest).collect::<Result<Vec<_>, _>>()?)
        }
        _ => (None, Vec::new()),
    };
    let states: Vec<Option<String>> = backups
        .iter()
        .map(|backup| match only_existing && !backup.is_on_disk {
            true => Some("not found where backups are kept".to_owned()),
            false => segments.problem_of(&backup.ranges),
        })
        .collect();
    let states = plan::with_parents(&backups, states);
    let histories = archive.histories()?;
    let timelines: BTreeSet<Timeline> =
        objects.keys().map(|object| object.timeline()).chain(histories.keys().copied()).collect();
    let lines: Vec<_> =
        timelines.into_iter().map(|timeline| stretches(timeline, histories.get(&timeline))).collect();
    let choice = Choice {
        backups: &backups,
        problems: &states,
        size,
        segments: &segments,
        newest,
        latest_before: &latest_before,
        lines: &lines,
    };
    let mut pruned = Pruned { location: archive.store().location().to_owned(), ..Pruned::default() };
    let first_kept = match choice.first_kept(rule) {
        Ok(number) => Some(pruned.keep_other_timelines(&choice, rule, number)),
        Err(reason) => {
            pruned.warnings.extend(reason.is_warning.then(|| reason.text.clone()));
            pruned.reason = Some(reason.text);
            None
        }
    };
    pruned.kept_from = first_kept.map(|number| size.start_of(number).to_string());
    // Without a position, everything is kept.
    let cut = first_kept.unwrap_or(0);
    let between = first_kept.map_or_else(Vec::new, |_| choice.between_kept(rule));
    let is_kept = |backup: &Backup| {
        size.segment_of(backup.start().1) >= cut && !(backup.stored.is_some() && between.contains(&backup))
    };
    let removed_backups: Vec<(String, u64)> = backups
        .iter()
        .filter(|backup| !is_kept(backup))
        .filter_map(|backup| Some((backup.stored.clone()?, size.segment_of(backup.start().1))))
        .collect();
    pruned.removed_backups = removed_backups.iter().map(|(name, _)| name.clone()).collect();
    pruned.add_backups(&backups, states.clone(), is_kept);
    let cuts = Cuts::new(cut, &objects, &histories, size);
    // Also checked if nothing is removed, because then everything is kept. Gaps before the first kept object
    // do not matter.
    let gaps =
        find_gaps(archive, &objects, &backups, &histories, |object| !cuts.removes_object(object, size))?;
    pruned.warnings.extend(gaps.iter().filter(|(_, gap)| gap.is_new()).map(describe_gap));
    let without_history = gaps::listed_without_history(archive, &objects, &histories)?;
    pruned.warnings.extend(without_history.into_iter().map(describe_missing_history));
    let removals = pruned.divide(&objects, &backups, &cuts, size);
    let ages = if removals.is_empty() { Ages::default() } else { Ages::list(archive)? };
    pruned.early = ages.early(removals.iter().map(|removal| removal.key.as_str()));
    let timelines = pruned.timelines.iter().map(|state| state.timeline).filter(|_| first_kept.is_some());
    let first_kept = timelines.map(|timeline| cuts.first_kept(timeline, size)).collect();
    Ok(Plan { pruned, removals, first_kept, ages, backups: removed_backups })
}

/// Returns the latest known commit time before a backup's start: in the segments before the backup, and at
/// steps before it at which commit times go back.
fn latest_before(
    archive: &Archive,
    objects: &BTreeMap<Object, u64>,
    listing: &Listing,
    backup: &Backup,
    size: SegmentSize,
) -> Result<Option<i64>, ArchiveError> {
    let (timeline, start) = backup.start();
    let is_before = |lsn: &str| lsn.parse::<Lsn>().is_ok_and(|lsn| lsn <= start);
    // The summary of a segment within which times go back need not have the latest one.
    let latest_in = |timeline, lsn: &str| match lsn.parse::<Lsn>() {
        Ok(lsn) => {
            let segment = SegmentName::new(timeline, size.segment_of(lsn), size);
            match recovery::ends_of(archive, size, segment) {
                Err(error) if error.is_damage() => Ok::<_, ArchiveError>(None),
                ends => Ok(ends?.into_iter().flatten().map(|(_, time)| time).max()),
            }
        }
        Err(_) => Ok(None),
    };
    let mut latest = None;
    for other in listing.timelines.iter().filter(|other| other.timeline <= timeline) {
        for step in other.times_go_back.iter().filter(|step| is_before(&step.lsn)) {
            latest = latest.max(Some(step.from)).max(latest_in(other.timeline, &step.lsn)?);
        }
    }
    let first = size.segment_of(start);
    let segments = objects.iter().filter(|(object, _)| {
        object.timeline() == timeline
            && object.segments().and_then(|(begin, _)| begin.number(size)).is_some_and(|begin| begin < first)
    });
    // Most segments have the end of a transaction.
    for (&object, &bytes) in segments.rev().take(MAX_SEGMENTS_BEFORE) {
        let contents = match get::read_contents(archive, object, bytes) {
            // The listing reports it.
            Err(error) if error.is_damage() => continue,
            other => other?,
        };
        let before = contents.iter().filter(|it| it.first_record.as_deref().is_some_and(is_before));
        let mut has_ends = false;
        for it in before {
            let Some((first, last)) = it.ends_of_transactions() else { continue };
            has_ends = true;
            latest = latest.max(Some(first.max(last)));
            if it.goes_back() {
                latest = latest.max(latest_in(timeline, it.first_record.as_deref().unwrap_or_default())?);
            }
        }
        if has_ends {
            break;
        }
    }
    Ok(latest)
}

/// Finds gaps among the kept objects, and missing segments after them up to the newest segment that the
/// archive ever had.
fn find_gaps(
    archive: &Archive,
    objects: &BTreeMap<Object, u64>,
    backups: &[Backup],
    histories: &BTreeMap<Timeline, History>,
    is_kept: impl Fn(Object) -> bool,
) -> Result<Vec<(Timeline, Gap)>, ArchiveError> {
    let size = archive.segment_size()?;
    let acknowledged = gaps::all_acknowledged(archive)?;
    let names: Vec<String> = backups.iter().filter_map(|backup| Some(backup.file?.to_string())).collect();
    let mut by_timeline: BTreeMap<Timeline, BTreeMap<Object, u64>> = BTreeMap::new();
    for (&object, &bytes) in objects {
        by_timeline.entry(object.timeline()).or_default().insert(object, bytes);
    }
    let without_start =
        list::backups_without_start(archive, &names, &by_timeline, histories, &acknowledged, size)?;
    let verified = verified::newest_segments(archive)?;
    let newest_known = list::newest_known(verified, &without_start, &acknowledged);
    let kept = objects.keys().copied().filter(|&object| is_kept(object));
    Ok(gaps::missing_among(kept, histories, &newest_known, size, &acknowledged))
}

/// The number of the first kept segment, by timeline.
struct Cuts {
    cut: u64,
    earlier: BTreeMap<Timeline, u64>,
}

impl Cuts {
    /// Keeps a pack as a whole if any of its segments is kept. If WAL kept before the cut leads to the start
    /// of another timeline, that timeline is also kept from its start, and so are its descendants. Otherwise
    /// the segments between would be reported as a gap.
    fn new(
        cut: u64,
        objects: &BTreeMap<Object, u64>,
        histories: &BTreeMap<Timeline, History>,
        size: SegmentSize,
    ) -> Cuts {
        let mut cuts = Cuts { cut, earlier: BTreeMap::new() };
        let mut of_timelines: BTreeMap<Timeline, Vec<Object>> = BTreeMap::new();
        for object in objects.keys() {
            of_timelines.entry(object.timeline()).or_default().push(*object);
        }
        // First kept segment of each timeline. In ascending order, so that a timeline's ancestors precede it.
        let mut first_kept: BTreeMap<Timeline, u64> = BTreeMap::new();
        for (timeline, objects) in of_timelines {
            let ancestors = gaps::ancestors_of(timeline, histories);
            let stays_before = ancestors.iter().any(|ancestor| {
                let first = first_kept.get(&ancestor.timeline);
                first.is_some_and(|&first| first <= size.segment_of(ancestor.end))
            });
            let begin = ancestors.last().map(|parent| size.segment_of(parent.end));
            if let Some(begin) = begin.filter(|&begin| begin < cut && stays_before) {
                cuts.earlier.insert(timeline, begin);
            }
            let kept = objects.into_iter().filter(|object| !cuts.removes_object(*object, size));
            if let Some(first) = kept.filter_map(|object| gaps::first_number(object, size)).min() {
                first_kept.insert(timeline, first);
            }
        }
        cuts
    }

    /// Returns whether an object with segments is removed.
    fn removes_object(&self, object: Object, size: SegmentSize) -> bool {
        let last = match object {
            Object::File(ArchivedFile::Partial(name)) => name.number(size),
            _ => object.segments().and_then(|(_, last)| last.number(size)),
        };
        last.is_some_and(|last| self.removes(object.timeline(), last))
    }

    /// Returns whether an object is removed whose last segment has this number.
    fn removes(&self, timeline: Timeline, last: u64) -> bool {
        last < self.first_number(timeline)
    }

    fn first_number(&self, timeline: Timeline) -> u64 {
        self.earlier.get(&timeline).copied().unwrap_or(self.cut)
    }

    /// Returns the first segment of a timeline that is kept.
    fn first_kept(&self, timeline: Timeline, size: SegmentSize) -> SegmentName {
        SegmentName::new(timeline, self.first_number(timeline), size)
    }
}

fn describe_last_backup(last: &LastBackupOfTimeline<'_>, rule: &Rule) -> String {
    let LastBackupOfTimeline { timeline, backup: Backup { name, .. } } = last;
    match rule.is_explicit() {
        true => format!(
            "recovery to timeline {timeline} becomes impossible: {name} is the last backup that leads to it"
        ),
        false => format!(
            "{name} is kept too: it is the last backup that leads to timeline {timeline}, which is newer than the timelines of the other kept backups. Take a base backup on timeline {timeline}, or abandon that timeline with --older-than-backup"
        ),
    }
}

fn describe_continuing(of_timelines: &[KeptForTimeline<'_>], without: Lsn) -> String {
    let timelines: Vec<String> = of_timelines.iter().map(|kept| kept.timeline.to_string()).collect();
    let backups: Vec<String> = of_timelines
        .iter()
        .map(|kept| format!("{} and later for timeline {}", kept.backup.name, kept.timeline))
        .collect();
    format!(
        "several timelines have WAL after the last switch away from them ({}), and a live server may write any of them: the rule applies \
         to each, so these backups stay: {}. If you need only the newest backups, --older-than {without} removes the WAL of the others",
        timelines.join(", "),
        backups.join("; ")
    )
}

fn describe_gap((timeline, gap): &(Timeline, Gap)) -> String {
    let Gap { first, last, segments, .. } = gap;
    let are = if *segments == 1 { "segment is" } else { "segments are" };
    format!("on timeline {timeline}, {segments} {are} missing, {first} to {last}: recovery ends before them")
}

fn describe_missing_history(timeline: Timeline) -> String {
    let history = ArchivedFile::History(timeline);
    format!("{history} is missing: recovery from an earlier timeline cannot reach timeline {timeline}")
}

impl Plan {
    /// Returns the plan's report.
    pub fn report(&self) -> &Pruned {
        &self.pruned
    }

    /// Applies the plan: removes backup history files first, then WAL starting with the oldest, so that an
    /// interruption leaves no gap. For the same reason, WAL after an object that the store keeps stays too,
    /// and so does the WAL of a backup whose history file it keeps. The locks of everything else are extended
    /// if the configuration has a rule.
    ///
    /// # Errors
    /// Errors of the store. The next run removes the remaining objects.
    pub fn apply(self, archive: &Archive) -> Result<Pruned, ArchiveError> {
        archive.store().remove_leftovers()?;
        probe::remove_old(archive)?;
        // Before the removals, so that copying does not undo an interrupted run. On a full file system, the
        // removals make room for the record.
        let is_recorded = match pruned::record(archive, &self.first_kept) {
            Ok(()) => true,
            Err(error) if error.store_error().is_some_and(|error| error.cause == Cause::Full) => false,
            Err(error) => return Err(error),
        };
        let mut pruned = Pruned { is_applied: true, ..self.pruned };
        let mut removed_before = u64::MAX;
        // Before their WAL.
        let names: Vec<String> = self.backups.iter().map(|(name, _)| name.clone()).collect();
        let freed = base_backups::remove(archive, &names)?;
        for (name, number) in &self.backups {
            if !freed.backups.contains(name) {
                removed_before = removed_before.min(*number);
            }
        }
        pruned.removed_backups.clone_from(&freed.backups);
        let unneeded_of_backups = freed.unneeded.clone();
        pruned.freed = Some(freed).filter(|freed| *freed != Removed::default());
        let mut removed = Vec::new();
        for Removal { key, bytes, number, has_wal } in &self.removals {
            if !has_wal || *number < removed_before {
                let Some(kept) = archive.store().discard(key)? else {
                    removed.push(key.as_str());
                    continue;
                };
                removed_before = removed_before.min(*number);
                if pruned.kept.len() < MAX_KEPT {
                    pruned.kept.push(KeptObject {
                        object: archive.stored_name(key),
                        locked_until: kept.until.map(Timestamp::as_microsecond),
                        problem: kept.to_string(),
                    });
                }
            }
            pruned.kept_objects += 1;
            pruned.kept_bytes += bytes;
        }
        if !is_recorded {
            pruned::record(archive, &self.first_kept)?;
        }
        pruned.removed_objects -= pruned.kept_objects;
        pruned.removed_bytes -= pruned.kept_bytes;
        pruned.early = self.ages.early(removed.into_iter());
        let keys = self.removals.iter().map(|removal| removal.key.as_str());
        let keys = keys.chain(unneeded_of_backups.iter().map(String::as_str));
        let unneeded: BTreeSet<String> = keys.map(|key| archive.stored_name(key)).collect();
        let extend = |rule| lock::extend(archive, rule, |key| !unneeded.contains(key));
        pruned.locks = lock::rule(archive).map(extend).transpose()?;
        if let Some(locks) = pruned.locks.as_ref().filter(|locks| locks.failed > 0) {
            pruned.warnings.push(locks.failure_text());
        }
        Ok(pruned)
    }
}

impl Pruned {
    /// Returns the number of the first kept segment, adjusted so that a rule abandons no timeline that
    /// continues.
    fn keep_other_timelines(&mut self, choice: &Choice<'_>, rule: &Rule, number: u64) -> u64 {
        let of_timelines = choice.kept_for_each_timeline(rule);
        let first = of_timelines.iter().map(|kept| choice.first_number(kept.backup)).fold(number, u64::min);
        if first < number {
            self.warnings.push(describe_continuing(&of_timelines, choice.size.start_of(number)));
        }
        let last_backups = choice.last_backups_before(first);
        self.warnings.extend(last_backups.iter().map(|last| describe_last_backup(last, rule)));
        let kept = last_backups.iter().filter(|_| !rule.is_explicit());
        kept.map(|last| choice.first_number(last.backup)).fold(first, u64::min)
    }

    fn add_backups(
        &mut self,
        backups: &[Backup],
        problems: Vec<Option<String>>,
        is_kept: impl Fn(&Backup) -> bool,
    ) {
        for (backup, problem) in backups.iter().zip(problems) {
            let (timeline, start) = backup.start();
            self.backups.push(BackupState {
                name: backup.name.clone(),
                label: backup.label.clone(),
                timeline,
                start: start.to_string(),
                time: backup.time.filter(|_| backup.time_text.is_none()),
                time_text: backup.time_text.clone(),
                incremental_from: backup.incremental_from.map(|from| from.to_string()),
                problem,
                is_kept: is_kept(backup),
            });
        }
    }

    /// Counts the removed and kept objects, and returns the removals.
    fn divide(
        &mut self,
        objects: &BTreeMap<Object, u64>,
        backups: &[Backup],
        cuts: &Cuts,
        size: SegmentSize,
    ) -> Vec<Removal> {
        let mut removals = Vec::new();
        for backup in backups {
            let first = size.segment_of(backup.start().1);
            if let Some(file) = backup.file.filter(|_| first < cuts.cut) {
                self.removed_objects += 1;
                self.removed_bytes += backup.stored_bytes;
                removals.push(Removal {
                    key: file.key(),
                    bytes: backup.stored_bytes,
                    number: first,
                    has_wal: false,
                });
            }
        }
        let mut timelines: BTreeMap<Timeline, TimelineState> = BTreeMap::new();
        // Ordered by position rather than timeline, so that after an interruption no timeline starts later
        // than its predecessor. The last segment decides: if a segment's own object stays, a pack that
        // contains it and later ones must stay too.
        let mut removed: Vec<(u64, Object, u64)> = Vec::new();
        for (&object, &bytes) in objects {
            let (first, last) = match object {
                Object::File(ArchivedFile::Partial(name)) => (name, name),
                _ => match object.segments() {
                    Some(segments) => segments,
                    None => continue,
                },
            };
            let timeline = object.timeline();
            let state = timelines
                .entry(timeline)
                .or_insert_with(|| TimelineState { timeline, ..TimelineState::default() });
            let Some(last_number) = last.number(size) else { continue };
            let goes = cuts.removes(timeline, last_number);
            state.add(object, bytes, (first, last), goes);
            if goes {
                self.removed_objects += 1;
                self.removed_bytes += bytes;
                removed.push((last_number, object, bytes));
            }
        }
        removed.sort();
        removals.extend(removed.into_iter().map(|(number, object, bytes)| Removal {
            key: object.key(),
            bytes,
            number,
            has_wal: true,
        }));
        self.timelines = timelines.into_values().collect();
        removals
    }
}

impl TimelineState {
    fn add(&mut self, object: Object, bytes: u64, (first, last): (SegmentName, SegmentName), goes: bool) {
        let segments = match object {
            Object::Pack(pack) => pack.segments(),
            Object::File(ArchivedFile::Segment(_)) => 1,
            Object::File(_) => 0,
        };
        let (of_segments, of_objects, of_bytes, range) = match goes {
            true => (
                &mut self.removed_segments,
                &mut self.removed_objects,
                &mut self.removed_bytes,
                &mut self.removed_range,
            ),
            false => {
                (&mut self.kept_segments, &mut self.kept_objects, &mut self.kept_bytes, &mut self.kept_range)
            }
        };
        *of_segments += segments;
        *of_objects += 1;
        *of_bytes += bytes;
        let (first, last) = (first.to_string(), last.to_string());
        *range = Some(match range.take() {
            None => (first, last),
            Some((known_first, known_last)) => (known_first.min(first), known_last.max(last)),
        });
    }
}

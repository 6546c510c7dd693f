//! Lists an archive: its timelines, their segments and gaps, and the moments that can be restored.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::{iter, mem};

use serde::{Serialize, Serializer};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::clock::{Clock, StepBack};
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError};
use crate::base_backups::{Inventory, LeftoverState, Totals};
use crate::encryption::SUFFIX;
use crate::history::History;
use crate::inventory::gaps::{self, Acknowledgement, Expected};
use crate::inventory::parts::{self, Extent};
use crate::inventory::segments::Segments;
use crate::inventory::snapshot::Snapshot;
use crate::inventory::verified::{self, VerifiedAt};
use crate::objects::backup_files::Label;
use crate::objects::contents::{Contents, MinimalWal, RestorePoint};
use crate::objects::name::{ArchivedFile, BACKUP, HISTORY, IDENTITY, Object, WAL};
use crate::objects::object::Finding;
use crate::restore::diverging;
pub use crate::restore::diverging::Diverging;
use crate::restore::log::{Log, latest_timeline};
use crate::restore::{get, recovery};

pub use crate::inventory::gaps::Gap;

/// The contents of an archive.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct Listing {
    /// Location of the archive.
    pub location: String,
    /// System identifier of the cluster.
    pub system_identifier: String,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// The objects are encrypted.
    pub encrypted: bool,
    /// The objects could not be read, because no private key is configured or the archive's keys are missing.
    /// Parents of timelines, times and restore points are missing from the listing.
    pub locked: bool,
    /// The archive is encrypted and its keys are missing. Always false if objects are not read.
    #[serde(rename = "keys_missing")]
    pub are_keys_missing: bool,
    /// Every segment's summary was read, so no restore point is missing from the listing.
    #[serde(rename = "restore_points_complete")]
    pub has_all_restore_points: bool,
    /// The histories are readable or there are none, so no gap is missing from the listing. Otherwise only
    /// gaps between the segments of a timeline are known, but not those at the end of a timeline that was
    /// left, nor timelines without any segment.
    #[serde(rename = "gaps_complete")]
    pub has_all_gaps: bool,
    /// Timelines that have a history but no segments, between timelines with segments, if the histories are
    /// unreadable. These timelines have lost their segments unless they ended in the segment in which they
    /// started. If the histories are readable, these timelines are in `timelines` instead, with gaps.
    pub timelines_without_segments: Vec<Timeline>,
    /// The timelines in ascending order.
    pub timelines: Vec<TimelineListing>,
    /// Names of missing timeline histories. The archive has WAL of the timeline or the history of a
    /// descendant, and WAL of an earlier timeline, so recovery from there does not reach the timeline.
    pub missing_histories: Vec<String>,
    /// Timelines that one server continued to write although another server had already branched off from
    /// them.
    pub diverging: Vec<Diverging>,
    /// Names of backup history files.
    pub backups: Vec<String>,
    /// Backups whose first segment is not archived.
    pub backups_without_start: Vec<BackupWithoutStart>,
    /// Contents of the readable backup history files, in the same order, if requested.
    pub base_backups: Vec<BaseBackup>,
    /// Base backups in the archive, ordered by their starts, if requested.
    pub stored_backups: Vec<ListedBackup>,
    /// Base backups that are being made, or were abandoned.
    pub unfinished_backups: Vec<UnfinishedBackup>,
    /// Number of base backups in the archive that only a private key shows.
    pub locked_backups: u64,
    /// Keys that do not belong to an archive.
    pub unknown: Vec<String>,
    /// Objects that are damaged, or encrypted to a foreign key, among those that were read. Times, restore
    /// points and parents of timelines come from the other objects. Damaged keys come first.
    pub unreadable: Vec<Finding>,
}

impl Listing {
    /// Returns the gaps of all timelines.
    pub fn gaps(&self) -> Vec<Gap> {
        self.timelines.iter().flat_map(|timeline| timeline.gaps.iter().cloned()).collect()
    }

    /// Returns the timelines that branched off from a base backup's timeline before the backup started, so
    /// that recovery from the backup does not lead to them. `backup` is the name of a backup history file.
    pub fn left_before_backup(&self, backup: &str) -> Vec<&TimelineListing> {
        let Some(size) = SegmentSize::new(self.segment_bytes) else { return Vec::new() };
        let Some(ArchivedFile::Backup(segment, offset)) = ArchivedFile::parse(backup) else {
            return Vec::new();
        };
        let Some(start) = segment.start(size).map(|start| start.plus(u64::from(offset))) else {
            return Vec::new();
        };
        let is_left = |timeline: &&TimelineListing| {
            let left_at = timeline.starts_at.as_ref().and_then(|lsn| lsn.parse::<Lsn>().ok());
            timeline.parent == Some(segment.timeline) && left_at.is_some_and(|left_at| left_at <= start)
        };
        self.timelines.iter().filter(is_left).collect()
    }

    /// Returns the reachable ranges along the newest timeline with segments and its ancestors: ranges of
    /// segments without a gap, in WAL order.
    pub fn restorable(&self) -> Vec<RestorableRange> {
        let Some(size) = SegmentSize::new(self.segment_bytes) else { return Vec::new() };
        let number = |name: &str| SegmentName::parse(name)?.number(size);
        // Starts with the newest timeline.
        let mut ranges: Vec<RestorableRange> = Vec::new();
        let mut end = u64::MAX;
        // The last commit before `end`, if it was read.
        let mut last_before_end = None;
        let mut next = self.timelines.iter().rev().find(|timeline| !timeline.restorable.is_empty());
        while let Some(timeline) = next {
            for range in timeline.restorable.iter().rev() {
                let (Some(first), Some(last)) = (number(&range.first_segment), number(&range.last_segment))
                else {
                    continue;
                };
                // The segment of a timeline switch, and all later segments, are read from the later timeline.
                if first >= end {
                    continue;
                }
                let mut range = range.clone();
                if last >= end {
                    range.last_segment = SegmentName::new(timeline.timeline, end - 1, size).to_string();
                    range.last_commit_time = last_before_end;
                }
                let last = last.min(end - 1);
                match ranges
                    .last_mut()
                    .filter(|later| number(&later.first_segment).is_some_and(|first| first <= last + 1))
                {
                    Some(later) => {
                        later.first_segment = range.first_segment;
                        later.base_backup_from = range.base_backup_from;
                        later.previous_commit_time = range.previous_commit_time;
                        later.first_commit_time = range.first_commit_time.or(later.first_commit_time);
                        later.last_commit_time = later.last_commit_time.or(range.last_commit_time);
                    }
                    None => ranges.push(range),
                }
            }
            let begin = timeline.starts_at.as_ref().and_then(|lsn| lsn.parse().ok());
            let begin = begin.map_or(0, |begin| size.segment_of(begin));
            // A timeline that ended in its first segment has no commits of its own.
            if begin != end {
                last_before_end = timeline.parent_last_commit_time.filter(|_| begin < end);
            }
            end = begin.min(end);
            next = timeline
                .parent
                .filter(|&parent| parent < timeline.timeline)
                .and_then(|parent| self.timelines.iter().find(|timeline| timeline.timeline == parent));
        }
        ranges.reverse();
        ranges
    }
}

/// A base backup whose first segment is not archived. Recovery from it needs the backup's own copy of the
/// WAL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BackupWithoutStart {
    /// Name of the backup history file.
    pub backup: String,
    /// The segment in which the backup starts.
    pub segment: String,
    /// The gap is acknowledged.
    #[serde(rename = "acknowledged")]
    pub is_acknowledged: bool,
}

impl fmt::Display for BackupWithoutStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackupWithoutStart { backup, segment, .. } = self;
        write!(f, "{segment}, in which the base backup of {backup} starts")
    }
}

/// Remedy for base backups whose first segment is missing.
pub const BACKUP_HINT: &str = "walden archive check --against DSN --repair fetches the segments that a server still has; without them, recovery \
                               from these base backups needs the WAL in the backup itself. walden archive prune removes backup history files \
                               with the WAL before a later backup";

/// A base backup, as described by its backup history file. Times are PostgreSQL's original text: local times
/// of the server, with a possibly ambiguous time zone abbreviation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BaseBackup {
    /// Name of the backup history file.
    pub name: String,
    /// The user's label, or `None` if the file is empty, as after a crash of the server.
    pub label: Option<String>,
    /// Start time.
    pub start_time: Option<String>,
    /// Stop time.
    pub stop_time: Option<String>,
    /// `streamed`, or `pg_start_backup` for an exclusive backup before PostgreSQL 15.
    pub method: Option<String>,
    /// Whether it requires an earlier backup (`pg_basebackup --incremental`, since PostgreSQL 17).
    #[serde(rename = "incremental")]
    pub is_incremental: bool,
}

/// A base backup in the archive.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ListedBackup {
    /// Its name.
    pub name: String,
    /// The user's label.
    pub label: String,
    /// When it was completed, in microseconds since 1970-01-01 00:00:00 UTC.
    pub completed: i64,
    /// The timeline of its start.
    pub timeline: Timeline,
    /// Where recovery from it starts.
    pub start_lsn: String,
    /// Where it is consistent.
    pub end_lsn: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its pieces.
    pub pieces: u64,
    /// Stored bytes of its pieces.
    pub stored_bytes: u64,
    /// Stored bytes of the pieces that no earlier backup had.
    pub new_bytes: u64,
    /// The first segment of its WAL that is missing: the backup cannot be restored.
    pub missing_segment: Option<String>,
    /// Name of its backup history file, if the archive has it.
    pub history_file: Option<String>,
}

/// A base backup that is not complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UnfinishedBackup {
    /// Its name.
    pub name: String,
    /// Stored bytes of its objects.
    pub stored_bytes: u64,
    /// The state of its writer.
    pub state: LeftoverState,
}

impl BaseBackup {
    fn parse_history(name: String, text: &[u8]) -> BaseBackup {
        let Label { label, start_time, stop_time, method, is_incremental, .. } = Label::parse(text);
        let (start_time, stop_time) = (start_time.map(|time| time.text), stop_time.map(|time| time.text));
        BaseBackup { name, label, start_time, stop_time, method, is_incremental }
    }
}

/// An archive's contents of one timeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TimelineListing {
    /// The timeline.
    pub timeline: Timeline,
    /// The parent timeline, if this timeline's history is archived.
    pub parent: Option<Timeline>,
    /// LSN at which it left the parent timeline.
    pub starts_at: Option<String>,
    /// Time of the parent's last commit or abort before the segment of the switch, in microseconds since
    /// 1970-01-01 00:00:00 UTC. Only read if the parent has no gap before and after the segment of the
    /// switch.
    pub parent_last_commit_time: Option<i64>,
    /// First segment.
    pub first_segment: Option<String>,
    /// Last segment.
    pub last_segment: Option<String>,
    /// Number of complete segments.
    pub segments: u64,
    /// The archived incomplete last segment (`.partial`) of a timeline that another timeline continues.
    pub partial_segment: Option<String>,
    /// End of the complete records in the last segment, if its summary was read.
    pub end: Option<String>,
    /// End of the archived part of the incomplete segment, from `walden receive --ack-after archive`.
    pub live_end: Option<String>,
    /// Missing segments between the first and the last segment, and up to the LSN at which another timeline
    /// branched off.
    pub gaps: Vec<Gap>,
    /// Size of the segments before compression, in bytes.
    pub raw_bytes: u64,
    /// Stored size of the timeline's objects, in bytes.
    pub stored_bytes: u64,
    /// Number of the timeline's objects.
    pub objects: u64,
    /// Time of the first commit or abort, in microseconds since 1970-01-01 00:00:00 UTC.
    pub first_commit_time: Option<i64>,
    /// Time of the last commit or abort. Recovery to a time stops only at a later commit or abort, so it can
    /// reach every moment before this time, but not this time itself.
    pub last_commit_time: Option<i64>,
    /// Decreasing commit times in the segments whose summaries were read, because the server's clock was set
    /// back.
    pub times_go_back: Vec<TimesGoBack>,
    /// The reachable moments for recovery to a time: one range for each part of the timeline between gaps.
    pub restorable: Vec<RestorableRange>,
    /// Number of segments with a version that Walden cannot read, among those whose summaries were read.
    pub unknown_version_segments: u64,
    /// Restarts of the WAL by `pg_resetwal`, in the segments whose summaries were read.
    pub resets: Vec<Reset>,
    /// WAL that was written with `wal_level = minimal`, in the segments whose summaries were read, or
    /// according to the last `verify`.
    pub minimal_wal: Vec<MinimalWal>,
    /// Named restore points in the segments whose summaries were read.
    pub restore_points: Vec<RestorePoint>,
}

/// A segment at which `pg_resetwal` restarted the WAL. Recovery does not get past its start. Names of
/// segments directly before it may have been skipped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reset {
    /// Name of the segment.
    pub segment: String,
    /// LSN of the checkpoint that `pg_resetwal` wrote at the segment's start.
    pub lsn: String,
}

impl Reset {
    fn from_contents(timeline: Timeline, contents: &Contents) -> Option<Reset> {
        let (lsn, size) = (contents.reset_at()?, SegmentSize::new(contents.segment_bytes)?);
        let segment = SegmentName::new(timeline, size.segment_of(lsn), size).to_string();
        Some(Reset { segment, lsn: lsn.to_string() })
    }
}

/// A step at which commit times of a timeline go back: a time between `to` and `from` denotes several
/// moments, and recovery stops at the first later commit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TimesGoBack {
    /// LSN of the first commit or abort after the step; if its segment cannot be read, of the segment's first
    /// record.
    pub lsn: String,
    /// Time of the latest commit or abort before the step, in microseconds since 1970-01-01 00:00:00 UTC.
    pub from: i64,
    /// Time of the first commit or abort after the step, in microseconds since 1970-01-01 00:00:00 UTC.
    pub to: i64,
}

impl From<&StepBack> for TimesGoBack {
    fn from(step: &StepBack) -> TimesGoBack {
        TimesGoBack { lsn: step.lsn.to_string(), from: step.from, to: step.to }
    }
}

/// A range of segments without a gap and without WAL of `wal_level = minimal`, and its reachable moments.
/// Recovery to a time can reach every moment from the first commit of the range, or from the commit before
/// the range if there is one, up to but excluding the last commit of the range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RestorableRange {
    /// First segment.
    pub first_segment: String,
    /// Last segment.
    pub last_segment: String,
    /// The first segment after the gap that precedes this range, on this timeline or an ancestor, or after a
    /// segment with WAL of `wal_level = minimal`. Recovery cannot pass either, so a base backup must have
    /// started in this segment or later. `None` if nothing precedes this range, or only ancestors that lead
    /// to it without a gap.
    pub base_backup_from: Option<String>,
    /// Time of the first commit or abort, in microseconds since 1970-01-01 00:00:00 UTC. `None` if there is
    /// none, or if it was not read because there are many ranges and this is not one of the newest.
    pub first_commit_time: Option<i64>,
    /// Time of the last commit or abort, in microseconds since 1970-01-01 00:00:00 UTC. Recovery to this time
    /// does not reach it.
    pub last_commit_time: Option<i64>,
    /// Time of the last commit or abort before this range on the parent timeline, if its segments lead to
    /// this range without a gap. Recovery to a moment between this time and the first commit stops before the
    /// first commit.
    pub previous_commit_time: Option<i64>,
}

impl RestorableRange {
    /// Returns the times of the first and the last commit or abort.
    pub fn commit_times(&self) -> Option<(i64, i64)> {
        self.first_commit_time.zip(self.last_commit_time)
    }

    /// Returns the first reachable moment, and the time of the commit or abort that the moment must precede.
    pub fn moments(&self) -> Option<(i64, i64)> {
        let (first, last) = self.commit_times()?;
        // If the clock was set back, the previous commit can have a later time.
        Some((self.previous_commit_time.map_or(first, |previous| previous.min(first)), last))
    }
}

/// Options for reading the archive.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ListOptions {
    /// Reads every segment's summary to find all restore points, not only the summaries needed for the first
    /// and last moments.
    pub all_summaries: bool,
    /// Reads the backup history files, for [`Listing::base_backups`].
    pub base_backups: bool,
    /// Reads additional summaries of each timeline, evenly spread, for [`TimelineListing::times_go_back`].
    pub time_samples: bool,
}

walden_format::setters!(ListOptions { all_summaries: bool, base_backups: bool, time_samples: bool });

/// Lists an archive.
///
/// The listing reports damage in the objects that were read.
///
/// # Errors
/// Errors of the store.
pub fn list(archive: &Archive, options: ListOptions) -> Result<Listing, ArchiveError> {
    Ok(list_objects(archive, Depth::Contents(options))?.0)
}

/// Lists an archive, or returns `None` if it was created but nothing was archived yet.
///
/// # Errors
/// [`ArchiveError::Missing`] if no archive exists at the location, and the errors of [`list`].
pub fn list_if_any(archive: &Archive, options: ListOptions) -> Result<Option<Listing>, ArchiveError> {
    match list(archive, options) {
        Err(ArchiveError::Empty(_)) => Ok(None),
        other => other.map(Some),
    }
}

/// Which objects are read in addition to listing keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// Only histories, and only if they are readable. The listing has no times.
    Keys,
    /// The objects that the options require.
    Contents(ListOptions),
}

/// Lists an archive, and also returns all its objects.
///
/// # Errors
/// Errors of the store.
pub(crate) fn list_objects(
    archive: &Archive,
    depth: Depth,
) -> Result<(Listing, Vec<(Object, u64)>), ArchiveError> {
    let (identity, size) = (archive.identity()?.clone(), archive.segment_size()?);
    let encrypted = archive.encrypted().is_encrypted()?;
    let are_keys_missing = depth != Depth::Keys && archive.encrypted().are_keys_missing()?;
    // An administrator may have kept the archive's own private key, which suffices without the keys in the
    // archive.
    let needs_keys = || archive.unlock().is_err_and(|error| error.has_missing_keys());
    let key_findings = match depth {
        Depth::Keys => Vec::new(),
        Depth::Contents(_) => archive.encrypted().key_findings()?,
    };
    // If keys are damaged, earlier generations may still open the archive.
    let locked = gaps::is_locked(archive)?
        || (are_keys_missing && needs_keys())
        || (!key_findings.is_empty() && archive.unlock().is_err_and(|error| error.is_damage()));
    let options = match depth {
        Depth::Contents(options) if !locked => Some(options),
        Depth::Contents(_) | Depth::Keys => None,
    };
    let looks_at_headers = depth != Depth::Keys && locked && !are_keys_missing && key_findings.is_empty();
    let found = classify_objects(archive)?;
    let mut listing = Listing {
        location: archive.store().location().to_owned(),
        system_identifier: identity.system_identifier,
        segment_bytes: identity.segment_bytes,
        encrypted,
        locked,
        are_keys_missing,
        has_all_restore_points: options.is_some(),
        has_all_gaps: !locked || found.with_history.is_empty(),
        timelines_without_segments: match locked {
            true => gaps::without_wal(&found.with_wal, &found.with_history),
            false => Vec::new(),
        },
        timelines: Vec::new(),
        missing_histories: Vec::new(),
        diverging: Vec::new(),
        backups: found.backups,
        backups_without_start: Vec::new(),
        base_backups: Vec::new(),
        stored_backups: Vec::new(),
        unfinished_backups: Vec::new(),
        locked_backups: 0,
        unknown: found.unknown,
        unreadable: key_findings,
    };
    if options.is_some_and(|options| options.base_backups) {
        listing.base_backups = read_backups(archive, &listing.backups, &mut listing.unreadable)?;
        list_stored_backups(archive, &found.timelines, size, &mut listing)?;
    }
    if locked && depth != Depth::Keys {
        listing.locked_backups = Totals::list(archive)?.backups;
    }
    let live = parts::extents(archive)?;
    let mut objects = found.timelines;
    for extent in &live {
        objects.entry(extent.segment.timeline).or_default();
    }
    let (acknowledged, unknown) = gaps::acknowledged(archive, locked)?;
    listing.unknown.extend(unknown);
    for key in &mut listing.unknown {
        *key = archive.stored_name(key);
    }
    if !encrypted && depth != Depth::Keys {
        let sealed = listing.unknown.extract_if(.., |key| is_sealed_object(key));
        listing.unreadable.extend(sealed.map(sealed_in_plain));
    }
    let histories = match depth {
        _ if locked => BTreeMap::new(),
        Depth::Contents(_) => {
            let (histories, damaged) = archive.undamaged_histories()?;
            let finding = |(key, error): (String, ArchiveError)| Finding {
                object: archive.stored_name(&key),
                problem: error_text(&error),
            };
            listing.unreadable.extend(damaged.into_iter().map(finding));
            histories
        }
        Depth::Keys => match archive.undamaged_histories() {
            Ok((histories, _)) => histories,
            Err(_) => {
                listing.has_all_gaps = found.with_history.is_empty();
                BTreeMap::new()
            }
        },
    };
    // Includes histories that were archived since the listing.
    let with_history: BTreeSet<Timeline> =
        found.with_history.into_iter().chain(histories.keys().copied()).collect();
    let missing = gaps::without_history(&found.with_wal, &with_history, &histories);
    listing.missing_histories =
        missing.into_iter().map(|timeline| ArchivedFile::History(timeline).to_string()).collect();
    let mut first_numbers: BTreeMap<Timeline, u64> = objects
        .iter()
        .filter_map(|(&timeline, objects)| {
            Some((timeline, objects.keys().filter_map(|object| gaps::first_number(*object, size)).min()?))
        })
        .collect();
    let parts = live.iter().map(|extent| extent.segment);
    gaps::add_parts(&mut first_numbers, parts, &acknowledged, size);
    // A timeline without any object, not even its history, is listed if the WAL leads through it.
    for timeline in gaps::in_histories(&histories) {
        if objects.contains_key(&timeline) {
            continue;
        }
        let expected = Expected::from_histories(timeline, &histories, &first_numbers, size);
        if !expected.missing(timeline, iter::empty(), size, &[]).is_empty() {
            objects.insert(timeline, BTreeMap::new());
        }
    }
    listing.backups_without_start =
        backups_without_start(archive, &listing.backups, &objects, &histories, &acknowledged, size)?;
    let verified = verified::last_readable(archive)?;
    let newest_verified = verified.as_ref().map(VerifiedAt::newest_by_timeline).unwrap_or_default();
    let timelines = Timelines {
        archive,
        size,
        options,
        looks_at_headers,
        objects,
        histories,
        first_numbers,
        live,
        newest_known: newest_known(newest_verified, &listing.backups_without_start, &acknowledged),
        acknowledged,
        minimal_wal: verified.map(|run| run.minimal_wal).unwrap_or_default(),
    };
    for (&timeline, objects) in &timelines.objects {
        timelines.add_timeline(timeline, objects, &mut listing)?;
    }
    Ok((listing, found.all))
}

/// Returns whether `name` is the name of an object in an encrypted archive.
pub(crate) fn is_sealed_object(name: &str) -> bool {
    name.strip_suffix(SUFFIX).is_some_and(|key| Object::parse_key(key).is_some())
}

/// Describes an encrypted object in an archive that `archive.json` describes as plain.
pub(crate) fn sealed_in_plain(object: String) -> Finding {
    let problem =
        format!("it is encrypted, and {IDENTITY} states that the archive is not: {IDENTITY} was replaced");
    Finding { object, problem }
}

/// Returns the newest segment of each timeline that is known to have existed, according to `verify`, to
/// backup history files and to acknowledged gaps. PostgreSQL archives a backup history file after the segment
/// in which the backup starts. A gap can be acknowledged before a later segment is archived (`receive
/// --accept-gap`).
pub(crate) fn newest_known(
    newest_verified: BTreeMap<Timeline, SegmentName>,
    without_start: &[BackupWithoutStart],
    acknowledged: &[Acknowledgement],
) -> BTreeMap<Timeline, SegmentName> {
    let mut newest = newest_verified;
    let starts = without_start.iter().map(|backup| &backup.segment);
    let lost = acknowledged.iter().map(|gap| &gap.last);
    for name in starts.chain(lost).filter_map(|name| SegmentName::parse(name)) {
        let known = newest.entry(name.timeline).or_insert(name);
        *known = name.max(*known);
    }
    newest
}

/// The objects of an archive by kind.
#[derive(Default)]
struct Classified {
    /// All objects in order.
    all: Vec<(Object, u64)>,
    /// Objects with WAL by timeline. A timeline with only a history is absent.
    timelines: BTreeMap<Timeline, BTreeMap<Object, u64>>,
    with_wal: BTreeSet<Timeline>,
    with_history: BTreeSet<Timeline>,
    /// Names of backup history files.
    backups: Vec<String>,
    /// Keys that do not belong to an archive.
    unknown: Vec<String>,
}

fn classify_objects(archive: &Archive) -> Result<Classified, ArchiveError> {
    let mut found = Classified::default();
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    found.unknown.extend(wal.unknown);
    for (object, bytes) in wal.objects {
        found.all.push((object, bytes));
        found.timelines.entry(object.timeline()).or_default().insert(object, bytes);
    }
    found.with_wal = found.timelines.keys().copied().collect();
    for prefix in [BACKUP, HISTORY] {
        archive.store().list(prefix, &mut |listed| {
            let Some(object) = Object::parse_key(&listed.key) else {
                found.unknown.push(listed.key);
                return;
            };
            found.all.push((object, listed.bytes));
            match object {
                Object::File(file @ ArchivedFile::Backup(..)) => found.backups.push(file.to_string()),
                _ => {
                    found.timelines.entry(object.timeline()).or_default();
                    found.with_history.extend(gaps::timeline_of_history(Some(object)));
                }
            }
        })?;
    }
    found.all.sort_unstable();
    found.backups.sort();
    Ok(found)
}

/// Lists the base backups in the archive, and whether the WAL of each is there.
fn list_stored_backups(
    archive: &Archive,
    timelines: &BTreeMap<Timeline, BTreeMap<Object, u64>>,
    size: SegmentSize,
    listing: &mut Listing,
) -> Result<(), ArchiveError> {
    let inventory = Inventory::read(archive)?;
    let objects = timelines.values().flatten().map(|(&object, &bytes)| (object, bytes)).collect();
    let segments = Segments::new(&objects, size);
    for backup in inventory.backups {
        let (timeline, start) = backup.start();
        let missing = segments.first_missing(&backup.wal_ranges());
        let history_file = history_file(timeline, start, size);
        listing.stored_backups.push(ListedBackup {
            history_file: Some(history_file).filter(|name| listing.backups.contains(name)),
            timeline,
            start_lsn: start.to_string(),
            end_lsn: backup.end().to_string(),
            missing_segment: missing.map(|name| name.to_string()),
            name: backup.name,
            label: backup.label,
            completed: backup.completed,
            bytes: backup.bytes,
            pieces: backup.pieces,
            stored_bytes: backup.stored_bytes,
            new_bytes: backup.new_bytes,
        });
    }
    listing.unfinished_backups = inventory
        .leftovers
        .into_iter()
        .map(|leftover| UnfinishedBackup {
            name: leftover.name,
            stored_bytes: leftover.bytes,
            state: leftover.state,
        })
        .collect();
    listing.unreadable.extend(inventory.unreadable);
    listing.unknown.extend(inventory.unknown);
    Ok(())
}

/// Returns the name of the backup history file of a backup with this start.
fn history_file(timeline: Timeline, start: Lsn, size: SegmentSize) -> String {
    let segment = SegmentName::new(timeline, size.segment_of(start), size);
    let offset = start.0 % size.bytes();
    ArchivedFile::Backup(segment, u32::try_from(offset).unwrap_or_default()).to_string()
}

/// The input for listing timelines.
struct Timelines<'a> {
    archive: &'a Archive,
    size: SegmentSize,
    /// `None` if no object is read.
    options: Option<ListOptions>,
    /// Whether to read the headers of a few encrypted objects, if their contents are unreadable.
    looks_at_headers: bool,
    /// Objects with WAL.
    objects: BTreeMap<Timeline, BTreeMap<Object, u64>>,
    histories: BTreeMap<Timeline, History>,
    /// Number of each timeline's first segment.
    first_numbers: BTreeMap<Timeline, u64>,
    /// Archived parts of incomplete segments.
    live: Vec<Extent>,
    acknowledged: Vec<Acknowledgement>,
    /// See [`newest_known`].
    newest_known: BTreeMap<Timeline, SegmentName>,
    /// WAL of `wal_level = minimal` according to the last `verify`.
    minimal_wal: Vec<MinimalWal>,
}

impl Timelines<'_> {
    /// Adds a timeline to the listing, which already contains all earlier timelines.
    fn add_timeline(
        &self,
        timeline: Timeline,
        objects: &BTreeMap<Object, u64>,
        listing: &mut Listing,
    ) -> Result<(), ArchiveError> {
        let newest_known = self.newest_known.get(&timeline).and_then(|name| name.number(self.size));
        let expected = Expected::from_histories(timeline, &self.histories, &self.first_numbers, self.size);
        let expected = expected.up_to(newest_known);
        let mut found = segments(timeline, objects, self.size, &self.acknowledged, expected);
        let previous_commit_time = self.link_to_parent(&mut found, &listing.timelines)?;
        // Parts of an archived segment are obsolete.
        let is_live = |extent: &&Extent| {
            extent.segment.timeline == timeline
                && found.last_segment.as_ref() < Some(&extent.segment.to_string())
        };
        let live: Vec<Extent> = self.live.iter().filter(is_live).copied().collect();
        let live_end = live_end(self.archive, &live, self.size, &mut listing.unreadable)?;
        found.live_end = live_end.map(|end| end.to_string());
        found.minimal_wal = self.minimal_wal.clone();
        if self.options.is_none() {
            exclude_minimal_wal(&mut found, self.size);
        }
        let first_segment = found.restorable.first().map(|first| first.first_segment.clone());
        if let Some(options) = self.options {
            listing.has_all_restore_points &=
                times(self.archive, objects, options, &mut found, &mut listing.unreadable)?;
            let first = found.restorable.first_mut();
            if let Some(first) = first.filter(|first| Some(&first.first_segment) == first_segment.as_ref()) {
                first.previous_commit_time = previous_commit_time;
            }
            let diverging = self.find_divergence(timeline, objects)?;
            listing.diverging.extend(diverging);
        } else if self.looks_at_headers {
            look_at_headers(self.archive, objects, &mut listing.unreadable)?;
        }
        listing.timelines.push(found);
        Ok(())
    }

    /// Sets the LSN at which a timeline left its parent, which is already in the listing, and the first
    /// segment in which a base backup may have started. Returns the parent's last commit or abort before the
    /// first commit or abort of the timeline, if the parent leads to the timeline without a gap.
    fn link_to_parent(
        &self,
        found: &mut TimelineListing,
        earlier: &[TimelineListing],
    ) -> Result<Option<i64>, ArchiveError> {
        let Some(parent) = self.histories.get(&found.timeline).and_then(History::parent) else {
            return Ok(None);
        };
        found.parent = Some(parent.timeline);
        found.starts_at = Some(parent.end.to_string());
        let ancestors = &self.histories[&found.timeline].ancestors;
        let parent = gaps::with_whole_segments(ancestors, self.size).unwrap_or(parent);
        let switch = self.size.segment_of(parent.end);
        let before = SegmentName::new(parent.timeline, switch.saturating_sub(1), self.size).to_string();
        let ranges = earlier.iter().filter(|other| other.timeline == parent.timeline);
        // The last range that starts before the switch, or `None` if the archive starts after the switch.
        let range = ranges.flat_map(|parent| &parent.restorable).rfind(|range| range.first_segment <= before);
        if let Some(range) = range.filter(|range| range.last_segment > before && self.options.is_some())
            && let Some(objects) = self.objects.get(&parent.timeline)
        {
            let segments = (range.first_segment.as_str(), before.as_str());
            found.parent_last_commit_time = last_commit_in(self.archive, objects, segments, self.size)?;
        }
        let Some(first) = found.restorable.first_mut() else { return Ok(None) };
        // If all of the parent's last segments before the switch are lost, the archive does not start here.
        let is_lost = |other: &TimelineListing| other.gaps.iter().any(|gap| gap.first <= before);
        let is_parent_lost = earlier.iter().any(|other| other.timeline == parent.timeline && is_lost(other));
        // A backup of either timeline can start in the segment of the switch.
        let begin = SegmentName::new(found.timeline, switch, self.size).to_string();
        let is_whole = first.first_segment <= begin && first.base_backup_from.is_none();
        let mut previous_commit_time = None;
        first.base_backup_from = match range {
            Some(range) if range.last_segment >= before && is_whole => {
                let last = match range.last_segment > before {
                    true => found.parent_last_commit_time,
                    false => range.last_commit_time,
                };
                // If no transaction ended between two switches, the commit before the first switch counts.
                previous_commit_time = last.or(range.previous_commit_time);
                range.base_backup_from.clone()
            }
            None if is_whole && !is_parent_lost => None,
            _ => Some(first.first_segment.clone()),
        };
        Ok(previous_commit_time)
    }

    /// Returns whether a timeline and its parent were written concurrently.
    fn find_divergence(
        &self,
        timeline: Timeline,
        objects: &BTreeMap<Object, u64>,
    ) -> Result<Option<Diverging>, ArchiveError> {
        let Some(parent) = self.histories.get(&timeline).and_then(History::parent) else { return Ok(None) };
        let Some(left) = self.objects.get(&parent.timeline) else { return Ok(None) };
        let branch = self.size.segment_of(parent.end);
        let segments = |objects| Log::complete_segments(objects, branch, self.size);
        let left = segments(left);
        if left.is_empty() || !diverging::overlap(self.archive, branch, &left, &segments(objects))? {
            return Ok(None);
        }
        let (left_by, left_at) = (timeline, parent.end.to_string());
        Ok(Some(Diverging { timeline: parent.timeline, left_by, left_at }))
    }
}

/// Reads the headers of a timeline's first and last object, whose contents would be read for times if a
/// private key were available. Adds undecryptable objects to `unreadable`.
fn look_at_headers(
    archive: &Archive,
    objects: &BTreeMap<Object, u64>,
    unreadable: &mut Vec<Finding>,
) -> Result<(), ArchiveError> {
    let ends: BTreeSet<&Object> =
        objects.keys().next().into_iter().chain(objects.keys().next_back()).collect();
    for object in ends {
        match archive.encrypted().expect_own(&object.key()).map_err(ArchiveError::from) {
            Err(error) if error.is_damage() => {
                let object = archive.stored_name(&object.key());
                unreadable.push(Finding { object, problem: error_text(&error) });
            }
            // Packed or pruned since it was listed.
            Err(error) if error.is_not_found() => {}
            other => other?,
        }
    }
    Ok(())
}

/// Number of backup history files read concurrently.
const BACKUP_THREADS: usize = 4;

/// Reads backup history files. Adds damaged files to `unreadable`.
fn read_backups(
    archive: &Archive,
    names: &[String],
    unreadable: &mut Vec<Finding>,
) -> Result<Vec<BaseBackup>, ArchiveError> {
    let read = |name: &String| -> Result<Option<Vec<u8>>, ArchiveError> {
        let Some(file) = ArchivedFile::parse(name) else { return Ok(None) };
        let mut text = Vec::new();
        match get::decode(archive, file, Object::File(file), 0, &mut text) {
            Ok(()) => Ok(Some(text)),
            // Removed since the listing.
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    };
    let mut found = Vec::new();
    for (name, text) in names.iter().zip(workers::map_in_order(names, BACKUP_THREADS, read)) {
        match text {
            Ok(text) => found.extend(text.map(|text| BaseBackup::parse_history(name.clone(), &text))),
            Err(error) if error.is_damage() => {
                let object = ArchivedFile::parse(name).map_or_else(|| name.clone(), |file| file.key());
                unreadable
                    .push(Finding { object: archive.stored_name(&object), problem: error_text(&error) });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns the backups whose first segment is not archived, neither on their own timeline nor on one that
/// branched off in that segment.
pub(crate) fn backups_without_start(
    archive: &Archive,
    names: &[String],
    objects: &BTreeMap<Timeline, BTreeMap<Object, u64>>,
    histories: &BTreeMap<Timeline, History>,
    acknowledged: &[Acknowledgement],
    size: SegmentSize,
) -> Result<Vec<BackupWithoutStart>, ArchiveError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let starts = names.iter().filter_map(|name| match ArchivedFile::parse(name)? {
        ArchivedFile::Backup(segment, _) => Some((name, segment, segment.number(size)?)),
        _ => None,
    });
    // The segment is in its own object, a partial one, a pack, or an object of a later timeline.
    let listed: BTreeSet<(Timeline, u64)> = objects
        .iter()
        .flat_map(|(&timeline, objects)| {
            objects.keys().flat_map(move |object| {
                let first = gaps::first_number(*object, size);
                let last = object.segments().map_or(first, |(_, last)| last.number(size));
                let numbers = first.zip(last).map(|(first, last)| first..=last);
                numbers.into_iter().flatten().map(move |number| (timeline, number))
            })
        })
        .collect();
    let mut without = Vec::new();
    for (name, segment, number) in starts {
        // If histories are unreadable, any later timeline may have branched off there.
        let has_it = |timeline: Timeline| {
            let left_at = histories.get(&timeline).and_then(|history| history.end_of(segment.timeline));
            timeline == segment.timeline
                || left_at.is_some_and(|left_at| size.segment_of(left_at) == number)
                || histories.is_empty() && timeline > segment.timeline
        };
        let is_listed = objects.keys().any(|&one| listed.contains(&(one, number)) && has_it(one));
        // The segment may have been archived after segments were listed and before its backup history file.
        if is_listed || archive.find(ArchivedFile::Segment(segment))?.is_some() {
            continue;
        }
        let missing = gaps::divide((segment, segment), size, acknowledged);
        without.push(BackupWithoutStart {
            backup: name.clone(),
            segment: segment.to_string(),
            is_acknowledged: !missing.iter().any(Gap::is_new),
        });
    }
    Ok(without)
}

/// Returns the end of the WAL in the parts of a timeline's last segments. A missing part ends the WAL and is
/// reported as a finding.
fn live_end(
    archive: &Archive,
    live: &[Extent],
    size: SegmentSize,
    unreadable: &mut Vec<Finding>,
) -> Result<Option<Lsn>, ArchiveError> {
    let mut end = None;
    for extent in live {
        let Some(start) = extent.segment.start(size) else { continue };
        let before = end.filter(|&end| end < start).map(|end| (size.segment_of(end), end, start));
        let inside = extent.goes_on_at.map(|at| {
            let offset = |offset: u32| start.plus(u64::from(offset));
            (size.segment_of(start), offset(extent.end), offset(at))
        });
        for (number, from, to) in before.into_iter().chain(inside) {
            let segment = SegmentName::new(extent.segment.timeline, number, size);
            // The parts of a segment that was archived in the meantime are being removed.
            if archive.find(ArchivedFile::Segment(segment))?.is_none() {
                let problem = format!("expected parts with the WAL from {from}, found none before {to}");
                unreadable.push(Finding { object: parts::folder_of(segment), problem });
                return Ok(Some(from));
            }
        }
        end = Some(start.plus(u64::from(extent.end)));
    }
    Ok(end)
}

/// A timeline that recovery follows by default, and that does not contain the end of another timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Branch {
    /// The timeline.
    pub timeline: Timeline,
    /// The timeline from which it branched off.
    pub parent: Timeline,
    /// LSN at which the timeline branched off.
    #[serde(serialize_with = "as_text")]
    pub left_at: Lsn,
}

fn as_text<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// Finds the timeline that recovery from a base backup follows by default, if it branched off from a
/// primary's timeline before the primary's position `end`. A standby from a new base backup of this primary
/// cannot follow that timeline (`rescanLatestTimeLine` and `readRecoveryTarget` in PostgreSQL). Returns
/// `None` in an encrypted archive without a private key, because the histories are unreadable.
///
/// # Errors
/// Errors of the store.
pub fn find_branch(archive: &Archive, own: Timeline, end: Lsn) -> Result<Option<Branch>, ArchiveError> {
    if gaps::is_locked(archive)? {
        return Ok(None);
    }
    let (histories, _) = archive.undamaged_histories()?;
    let timeline = latest_timeline(own, &histories);
    let Some(history) = histories.get(&timeline).filter(|_| timeline > own) else { return Ok(None) };
    let of_own = history.ancestors.iter().find(|ancestor| ancestor.timeline == own);
    // A timeline that does not descend from the primary's timeline branched off from an ancestor of it.
    let parent = of_own.or_else(|| history.ancestors.iter().rfind(|ancestor| ancestor.timeline < own));
    let branch = parent.map(|parent| Branch { timeline, parent: parent.timeline, left_at: parent.end });
    Ok(branch.filter(|branch| branch.parent != own || branch.left_at < end))
}

/// Returns the last segment of each timeline.
///
/// # Errors
/// Errors of the store.
pub fn last_segments(archive: &Archive) -> Result<BTreeMap<Timeline, SegmentName>, ArchiveError> {
    let extents = extents(archive)?.into_iter();
    Ok(extents.map(|(timeline, (_, last))| (timeline, last)).collect())
}

/// The first segment of each timeline that has any, by one listing.
///
/// # Errors
/// Errors of the store.
pub fn first_segments(archive: &Archive) -> Result<BTreeMap<Timeline, SegmentName>, ArchiveError> {
    let extents = extents(archive)?.into_iter();
    Ok(extents.map(|(timeline, (first, _))| (timeline, first)).collect())
}

/// The first and last segment of each timeline that has any, by one listing.
fn extents(archive: &Archive) -> Result<BTreeMap<Timeline, (SegmentName, SegmentName)>, ArchiveError> {
    let mut extents = BTreeMap::new();
    if matches!(archive.identity(), Err(ArchiveError::Missing(_) | ArchiveError::Empty(_))) {
        return Ok(extents);
    }
    let objects = Snapshot::take(archive.store(), &[WAL.to_owned()])?.objects;
    for (first, last) in objects.into_keys().filter_map(|object| object.segments()) {
        let known = extents.entry(first.timeline).or_insert((first, last));
        *known = (first.min(known.0), last.max(known.1));
    }
    Ok(extents)
}

/// Returns the last segment of the newest timeline with segments, where a copy of the WAL continues. Returns
/// `None` if the archive is empty.
///
/// # Errors
/// Errors of the store.
pub fn newest_segment(archive: &Archive) -> Result<Option<SegmentName>, ArchiveError> {
    match archive.identity() {
        Err(ArchiveError::Missing(_) | ArchiveError::Empty(_)) => return Ok(None),
        other => other?,
    };
    let wal = Snapshot::take(archive.store(), &[WAL.to_owned()])?;
    Ok(wal.objects.into_keys().filter_map(|object| object.segments()).map(|(_, last)| last).max())
}

/// Counts a timeline's segments and finds the gaps between them.
fn segments(
    timeline: Timeline,
    objects: &BTreeMap<Object, u64>,
    size: SegmentSize,
    acknowledged: &[Acknowledgement],
    expected: Expected,
) -> TimelineListing {
    let mut listing = TimelineListing {
        timeline,
        parent: None,
        starts_at: None,
        parent_last_commit_time: None,
        first_segment: None,
        last_segment: None,
        segments: 0,
        partial_segment: None,
        end: None,
        live_end: None,
        gaps: Vec::new(),
        raw_bytes: 0,
        stored_bytes: 0,
        objects: objects.len() as u64,
        first_commit_time: None,
        last_commit_time: None,
        times_go_back: Vec::new(),
        restorable: Vec::new(),
        unknown_version_segments: 0,
        resets: Vec::new(),
        minimal_wal: Vec::new(),
        restore_points: Vec::new(),
    };
    let mut ranges = Vec::new();
    for (object, bytes) in objects {
        listing.stored_bytes += bytes;
        match *object {
            Object::File(ArchivedFile::Segment(name)) => ranges.push((name, name)),
            Object::File(ArchivedFile::Partial(name)) => listing.partial_segment = Some(name.to_string()),
            Object::Pack(pack) => ranges.push((pack.first, pack.last)),
            Object::File(_) => {}
        }
    }
    ranges.sort();
    let numbers = ranges.iter().filter_map(|(first, last)| first.number(size).zip(last.number(size)));
    listing.gaps = expected.missing(timeline, numbers, size, acknowledged);
    let mut next: Option<u64> = None;
    for (first, last) in ranges {
        let (Some(from), Some(to)) = (first.number(size), last.number(size)) else { continue };
        listing.first_segment.get_or_insert_with(|| first.to_string());
        if next.is_none_or(|next| next < from) {
            let (first_segment, last_segment) = (first.to_string(), last.to_string());
            // Names on one timeline sort by position.
            let is_behind_gap = listing.gaps.first().is_some_and(|gap| gap.first < first_segment);
            listing.restorable.push(RestorableRange {
                base_backup_from: is_behind_gap.then(|| first_segment.clone()),
                first_segment,
                last_segment,
                first_commit_time: None,
                last_commit_time: None,
                previous_commit_time: None,
            });
        }
        // A segment that is in a pack and still has its own object counts once.
        let counted = next.unwrap_or(from).max(from);
        listing.segments += (to + 1).saturating_sub(counted);
        if next.is_none_or(|next| to + 1 > next) {
            next = Some(to + 1);
            listing.last_segment = Some(last.to_string());
            if let Some(range) = listing.restorable.last_mut() {
                range.last_segment = last.to_string();
            }
        }
    }
    listing.raw_bytes = listing.segments * size.bytes();
    listing
}

/// Maximum number of objects that are searched for a timeline's first commit.
const MAX_LOOKED_AT: usize = 16;

/// Returns the last commit or abort in a range of a timeline's segments.
fn last_commit_in(
    archive: &Archive,
    objects: &BTreeMap<Object, u64>,
    (first_segment, last_segment): (&str, &str),
    size: SegmentSize,
) -> Result<Option<i64>, ArchiveError> {
    let end = SegmentName::parse(last_segment).and_then(|last| last.start(size)?.0.checked_add(size.bytes()));
    for (object, &bytes) in objects.iter().rev() {
        let is_asked = object.segments().is_some_and(|(first, _)| {
            let first = first.to_string();
            first.as_str() >= first_segment && first.as_str() <= last_segment
        });
        if !is_asked {
            continue;
        }
        // A pack may continue after the last segment.
        let is_before = |contents: &&Contents| {
            let first = contents.first_record.as_ref().and_then(|lsn| lsn.parse::<Lsn>().ok());
            first.zip(end).is_some_and(|(first, end)| first.0 < end)
        };
        let contents = match get::read_contents(archive, *object, bytes) {
            // Damage is reported as a finding of its own timeline. An earlier commit is also a valid restore
            // target.
            Err(error) if error.is_damage() => continue,
            other => other?,
        };
        let last = contents.iter().filter(is_before).rev().find_map(|it| it.last_end_of_transaction);
        if last.is_some() {
            return Ok(last);
        }
    }
    Ok(None)
}

/// Returns whether Walden cannot read the version of any segment in an object.
fn is_unread(contents: &[Contents]) -> bool {
    !contents.is_empty() && contents.iter().all(|it| it.unknown_magic.is_some())
}

/// Keeps the WAL of `wal_level = minimal` in a timeline's segments, and excludes these segments from its
/// reachable ranges. Names on one timeline sort by position.
fn exclude_minimal_wal(listing: &mut TimelineListing, size: SegmentSize) {
    let is_own = |name: &SegmentName| name.timeline == listing.timeline;
    let excluded: Vec<(MinimalWal, SegmentName)> = mem::take(&mut listing.minimal_wal)
        .into_iter()
        .filter_map(|one| SegmentName::parse(&one.segment).filter(is_own).map(|name| (one, name)))
        .collect();
    for (one, segment) in excluded {
        let at = listing
            .restorable
            .iter()
            .position(|range| range.first_segment <= one.segment && one.segment <= range.last_segment);
        if let (Some(at), Some(number)) = (at, segment.number(size)) {
            let range = listing.restorable.remove(at);
            let name = |number| SegmentName::new(segment.timeline, number, size).to_string();
            if one.segment < range.last_segment {
                let first_segment = name(number + 1);
                let base_backup_from = Some(first_segment.clone());
                listing
                    .restorable
                    .insert(at, RestorableRange { first_segment, base_backup_from, ..range.clone() });
            }
            if range.first_segment < one.segment {
                listing.restorable.insert(at, RestorableRange { last_segment: name(number - 1), ..range });
            }
        }
        if is_listed(listing, &one.segment) {
            listing.minimal_wal.push(one);
        }
    }
}

/// Returns whether a segment is between a timeline's first and last one, and in no gap.
fn is_listed(listing: &TimelineListing, segment: &String) -> bool {
    listing.first_segment.as_ref().is_some_and(|first| first <= segment)
        && listing.last_segment.as_ref().is_some_and(|last| segment <= last)
        && !listing.gaps.iter().any(|gap| gap.first <= *segment && *segment <= gap.last)
}

/// Maximum number of ranges between gaps whose times are read. Otherwise an archive that lacks every other
/// segment would require reading all summaries.
const MAX_RANGES: usize = 16;

/// Number of a timeline's objects whose commit times are compared in addition to the objects at the ends of
/// ranges: in a folder, and in an object store, which is slower.
const LOCAL_SAMPLES: usize = 32;
const REMOTE_SAMPLES: usize = 8;

/// Returns the `.partial` objects whose segment is also archived completely, as by the old primary after a
/// failover. These objects are copies of the start of their segment.
fn partials_of_complete_segments(objects: &BTreeMap<Object, u64>) -> BTreeSet<Object> {
    let has = |name: SegmentName| {
        let mut ranges = objects.keys().filter_map(|object| object.segments());
        ranges.any(|(first, last)| first <= name && name <= last)
    };
    let is_copy =
        |object: &&Object| matches!(object, Object::File(ArchivedFile::Partial(name)) if has(*name));
    objects.keys().filter(is_copy).copied().collect()
}

/// Maximum number of segments that are decoded for the places of steps back. A place in a further one is only
/// the segment's first record.
const MAX_DECODED: usize = 32;

/// The summaries of a timeline's objects that were read.
type Summaries = BTreeMap<Object, Vec<Contents>>;

/// Finds where commit times go back according to summaries, and decodes the segments in which they do.
fn find_times_that_go_back(
    archive: &Archive,
    size: SegmentSize,
    timeline: Timeline,
    summaries: &Summaries,
) -> Result<Vec<TimesGoBack>, ArchiveError> {
    let first_record = |one: &Contents| one.first_record.as_ref()?.parse::<Lsn>().ok();
    // A segment that is in a pack and in its own object counts once.
    let in_order: BTreeMap<Lsn, &Contents> =
        summaries.values().flatten().filter_map(|one| Some((first_record(one)?, one))).collect();
    let mut clock = Clock::default();
    let mut decoded = 0;
    for (lsn, one) in in_order {
        let Some((first, last)) = one.ends_of_transactions() else { continue };
        let mut ends = vec![(lsn, first), (lsn, last)];
        if decoded < MAX_DECODED && (one.goes_back() || clock.would_go_back(first)) {
            decoded += 1;
            let segment = SegmentName::new(timeline, size.segment_of(lsn), size);
            match recovery::ends_of(archive, size, segment) {
                Err(error) if error.is_damage() => {}
                found => ends = found?.unwrap_or(ends),
            }
        }
        ends.into_iter().for_each(|(lsn, time)| clock.add(lsn, time));
    }
    Ok(clock.steps_back().iter().map(TimesGoBack::from).collect())
}

/// Bisects the objects between two samples if commit times go back between them, so that the summary of the
/// first segment after each step is read too. `objects` and `samples`, which are indexes, are in WAL order.
fn bisect_steps_back(
    objects: &[(Object, u64)],
    samples: impl Iterator<Item = usize>,
    mut read: impl FnMut(&Object, u64) -> Result<Vec<Contents>, ArchiveError>,
) -> Result<(), ArchiveError> {
    let mut ends = |at: usize| -> Result<Option<(i64, i64)>, ArchiveError> {
        let Some((object, bytes)) = objects.get(at) else { return Ok(None) };
        let contents = read(object, *bytes)?;
        let mut ends = contents.iter().filter_map(Contents::ends_of_transactions);
        let Some(first) = ends.next() else { return Ok(None) };
        Ok(Some((first.0, ends.next_back().unwrap_or(first).1)))
    };
    let mut clock = Clock::default();
    let mut before = 0;
    for sample in samples {
        let Some((first, last)) = ends(sample)? else { continue };
        let mut after = sample;
        while clock.would_go_back(first) && after - before > 1 {
            let middle = before + (after - before) / 2;
            // The object in the middle may have no transactions.
            let mut probe = middle;
            let mut found = ends(probe)?;
            while found.is_none() && probe > before + 1 {
                probe -= 1;
                found = ends(probe)?;
            }
            match found {
                Some((first, _)) if clock.would_go_back(first) => after = probe,
                Some((first, last)) => {
                    clock.add(Lsn::INVALID, first);
                    clock.add(Lsn::INVALID, last);
                    before = middle;
                }
                None => before = middle,
            }
        }
        clock.add(Lsn::INVALID, first);
        clock.add(Lsn::INVALID, last);
        before = sample;
    }
    Ok(())
}

/// Reads the times of the first and last end of a transaction, overall and between gaps, searching inward
/// from both ends. Returns whether all summaries were read. Adds damaged summaries to `unreadable`, so that
/// one damaged summary does not hide the others.
fn times(
    archive: &Archive,
    objects: &BTreeMap<Object, u64>,
    options: ListOptions,
    listing: &mut TimelineListing,
    unreadable: &mut Vec<Finding>,
) -> Result<bool, ArchiveError> {
    let copies = partials_of_complete_segments(objects);
    let read = || objects.iter().filter(|(object, _)| !copies.contains(object));
    let mut summaries = Summaries::new();
    let minimal_wal: RefCell<BTreeSet<MinimalWal>> =
        RefCell::new(mem::take(&mut listing.minimal_wal).into_iter().collect());
    let known_before = unreadable.len();
    let mut contents = |object: &Object, bytes: u64| -> Result<_, ArchiveError> {
        if let Some(known) = summaries.get(object) {
            return Ok(Clone::clone(known));
        }
        let read = match get::read_contents(archive, *object, bytes) {
            Err(error) if error.is_damage() => {
                let object = archive.stored_name(&object.key());
                unreadable.push(Finding { object, problem: error_text(&error) });
                Vec::new()
            }
            other => other?,
        };
        summaries.insert(*object, read.clone());
        minimal_wal.borrow_mut().extend(read.iter().filter_map(Contents::minimal_wal));
        Ok(read)
    };
    let is_local = archive.encrypted().inner().folder().is_some();
    let samples = match (options, is_local) {
        (ListOptions { all_summaries: true, .. }, _) => objects.len(),
        (ListOptions { time_samples: false, .. }, _) => 0,
        (_, true) => LOCAL_SAMPLES,
        (_, false) => REMOTE_SAMPLES,
    };
    if samples > 0 {
        let in_order: Vec<(Object, u64)> = read().map(|(object, bytes)| (*object, *bytes)).collect();
        let step = in_order.len().div_ceil(samples).max(1);
        let last = in_order.len().checked_sub(1).filter(|last| last % step > 0);
        bisect_steps_back(&in_order, (0..in_order.len()).step_by(step).chain(last), &mut contents)?;
    }
    let (timeline, size) = (listing.timeline, archive.segment_size()?);
    // Names on one timeline sort by position.
    let mut times_of = |range: Option<(&str, &str)>| -> Result<_, ArchiveError> {
        let is_asked = |object: &Object| {
            // Recovery does not read a partial segment.
            let segments = object.segments().map(|(first, last)| (first.to_string(), last.to_string()));
            let overlaps = |(from, to)| {
                segments.is_some_and(|(first, last)| from <= last.as_str() && first.as_str() <= to)
            };
            range.is_none_or(overlaps)
        };
        // A pack may continue outside of the range.
        let is_in_range = |one: &&Contents| {
            let first_record = one.first_record.as_ref().and_then(|lsn| lsn.parse::<Lsn>().ok());
            let name =
                first_record.map(|lsn| SegmentName::new(timeline, size.segment_of(lsn), size).to_string());
            range.is_none_or(|(from, to)| {
                name.is_some_and(|name| from <= name.as_str() && name.as_str() <= to)
            })
        };
        let (mut first, mut last) = (None, None);
        // Segments with an unreadable version have no times, and an archive can contain thousands of these
        // segments.
        let mut unread = 0;
        for (object, &bytes) in read().filter(|(object, _)| is_asked(object)) {
            let found = contents(object, bytes)?;
            first = found.iter().filter(is_in_range).find_map(|it| it.first_end_of_transaction);
            unread += usize::from(is_unread(&found));
            if first.is_some() || unread == MAX_LOOKED_AT {
                break;
            }
        }
        unread = 0;
        for (object, &bytes) in read().rev().filter(|(object, _)| is_asked(object)) {
            let found = contents(object, bytes)?;
            last = found.iter().rev().filter(is_in_range).find_map(|it| it.last_end_of_transaction);
            unread += usize::from(is_unread(&found));
            if last.is_some() || unread == MAX_LOOKED_AT {
                break;
            }
        }
        Ok((first, last))
    };
    (listing.first_commit_time, listing.last_commit_time) = times_of(None)?;
    // Reading a range may find more WAL of `wal_level = minimal`, which divides it.
    let mut excluded = None;
    while excluded != Some(minimal_wal.borrow().len()) {
        listing.minimal_wal = minimal_wal.borrow().iter().cloned().collect();
        excluded = Some(listing.minimal_wal.len());
        exclude_minimal_wal(listing, size);
        for range in listing.restorable.iter_mut().rev().take(MAX_RANGES) {
            let ends = (range.first_segment.as_str(), range.last_segment.as_str());
            (range.first_commit_time, range.last_commit_time) = times_of(Some(ends))?;
        }
    }
    listing.times_go_back = find_times_that_go_back(archive, size, timeline, &summaries)?;
    archive.expect_size_of(summaries.values().flatten())?;
    let complete = summaries.iter().filter(|(object, _)| object.segments().is_some());
    let end = complete.flat_map(|(_, contents)| contents).filter_map(|it| it.end.parse::<Lsn>().ok()).max();
    listing.end = end.map(|end| end.to_string());
    let has_all = summaries.len() + copies.len() == objects.len() && unreadable.len() == known_before;
    let unknown = summaries.values().flatten().filter(|it| it.unknown_magic.is_some());
    listing.unknown_version_segments = unknown.count() as u64;
    let resets = summaries.values().flatten().filter_map(|it| Reset::from_contents(timeline, it));
    let resets: BTreeMap<String, Reset> = resets.map(|reset| (reset.segment.clone(), reset)).collect();
    listing.resets = resets.into_values().collect();
    listing.restore_points = summaries.into_values().flatten().flat_map(|it| it.restore_points).collect();
    // A segment that is in a pack and in its own object counts once.
    let mut seen = BTreeSet::new();
    listing.restore_points.retain(|point| seen.insert((point.lsn.clone(), point.name.clone())));
    Ok(has_all)
}

//! Determines which backups count, and where the WAL of the oldest kept one starts.

use std::collections::BTreeMap;

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::timelines::Stretch;

use super::Rule;
use crate::maintenance::backup::{Backup, WalRange};
use crate::objects::name::{ArchivedFile, Object};

/// The archive's segments.
pub(super) struct Segments {
    size: SegmentSize,
    /// For each timeline, inclusive ranges of segment numbers in ascending order that neither touch nor
    /// overlap.
    ranges: BTreeMap<Timeline, Vec<(u64, u64)>>,
    /// Partial segments.
    partial: Vec<(Timeline, u64)>,
}

impl Segments {
    pub fn new(objects: &BTreeMap<Object, u64>, size: SegmentSize) -> Segments {
        let mut segments = Segments { size, ranges: BTreeMap::new(), partial: Vec::new() };
        // Sorted by their first segments.
        for object in objects.keys() {
            if let Object::File(ArchivedFile::Partial(name)) = object {
                segments.partial.extend(name.number(size).map(|number| (name.timeline, number)));
            }
            let Some((first, last)) = object.segments() else { continue };
            let (Some(from), Some(to)) = (first.number(size), last.number(size)) else { continue };
            let ranges = segments.ranges.entry(first.timeline).or_default();
            match ranges.last_mut() {
                Some(range) if from <= range.1 + 1 => range.1 = range.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        segments
    }

    /// Returns the number of a timeline's last complete segment.
    fn last_of(&self, timeline: Timeline) -> Option<u64> {
        self.ranges.get(&timeline)?.last().map(|range| range.1)
    }

    fn has(&self, timeline: Timeline, number: u64) -> bool {
        let ranges = self.ranges.get(&timeline).map_or(&[][..], Vec::as_slice);
        let at = ranges.partition_point(|range| range.1 < number);
        ranges.get(at).is_some_and(|range| range.0 <= number)
    }

    /// Returns the reason why recovery cannot make a backup consistent, such as the first missing segment.
    pub fn problem_of(&self, backup: &Backup) -> Option<String> {
        if backup.ranges.last().is_some_and(|range| range.end.is_none()) {
            // Includes a backup that is in progress.
            return Some("its end is unknown: its history file is empty, or it has no manifest".to_owned());
        }
        let timelines: Vec<Timeline> = backup.ranges.iter().map(|range| range.timeline).collect();
        backup.ranges.iter().find_map(|range| self.missing_in(range, &timelines))
    }

    fn missing_in(&self, range: &WalRange, timelines: &[Timeline]) -> Option<String> {
        let first = self.size.segment_of(range.start);
        let last =
            range.end.map_or(first, |end| self.size.segment_of(Lsn(end.0.saturating_sub(1)))).max(first);
        // A timeline's last segment is complete on the timeline that continues it.
        let has = |number: u64| {
            let mut later = timelines.iter().filter(|timeline| **timeline >= range.timeline);
            later.any(|&timeline| self.has(timeline, number))
                || (number == last && self.partial.contains(&(range.timeline, number)))
        };
        // Each number is in a range that the archive has, or the search ends.
        let missing = (first..=last).find(|&number| !has(number))?;
        Some(format!("{} is not in the archive", SegmentName::new(range.timeline, missing, self.size)))
    }
}

/// Returns the backup on which an incremental one is based.
pub(super) fn parent_of<'a>(backups: &'a [Backup], backup: &Backup) -> Option<&'a Backup> {
    let from = backup.incremental_from?;
    // Requiring an earlier start guarantees that the chain of parents ends.
    let is_parent = |other: &&Backup| other.start().1 == from && other.start() < backup.start();
    backups.iter().rev().find(is_parent)
}

/// Returns, for each backup, why it does not count, including because the backup on which it is based does
/// not count. `backups` are ordered by their starts.
pub(super) fn with_parents(backups: &[Backup], mut problems: Vec<Option<String>>) -> Vec<Option<String>> {
    for (at, backup) in backups.iter().enumerate() {
        let Some(from) = backup.incremental_from.filter(|_| problems[at].is_none()) else { continue };
        problems[at] = match parent_of(&backups[..at], backup) {
            None => Some(format!("it is incremental, and the backup from {from} that it needs is not known")),
            Some(parent) => {
                let number = backups.iter().position(|other| other == parent);
                let problem = number.and_then(|number| problems[number].as_ref());
                problem.map(|_| {
                    format!("it is incremental, and {}, which it needs, does not count", parent.name)
                })
            }
        };
    }
    problems
}

/// The reason for removing nothing.
pub(super) struct Reason {
    pub text: String,
    /// The reason is a problem, not merely that there is nothing to remove.
    pub is_warning: bool,
}

impl Reason {
    fn note(text: String) -> Reason {
        Reason { text, is_warning: false }
    }

    fn warning(text: String) -> Reason {
        Reason { text, is_warning: true }
    }
}

/// The input for choosing backups.
pub(super) struct Choice<'a> {
    /// All backups, ordered by their starts.
    pub backups: &'a [Backup],
    /// For each backup, why it does not count.
    pub problems: &'a [Option<String>],
    pub size: SegmentSize,
    pub segments: &'a Segments,
    /// Time of the last commit in the archive.
    pub newest: Option<i64>,
    /// For each backup, the latest known commit time before its start.
    pub latest_before: &'a [Option<i64>],
    /// Each timeline with segments or a history, preceded by its ancestors.
    pub lines: &'a [Vec<Stretch>],
}

/// A timeline that no kept backup leads to, and the last backup that does.
pub(super) struct LastBackupOfTimeline<'a> {
    pub timeline: Timeline,
    pub backup: &'a Backup,
}

/// The oldest backup that a rule keeps among those that lead to a timeline.
pub(super) struct KeptForTimeline<'a> {
    pub timeline: Timeline,
    pub backup: &'a Backup,
}

/// Returns the timeline at the end of a line.
fn timeline_of_line(line: &[Stretch]) -> Option<Timeline> {
    line.last().map(|stretch| stretch.timeline)
}

/// Returns whether recovery from a backup reaches the last timeline of a line.
fn leads_to(backup: &Backup, line: &[Stretch]) -> bool {
    backup.ranges.iter().all(|range| {
        let stretch = line.iter().find(|stretch| stretch.timeline == range.timeline);
        stretch.is_some_and(|stretch| {
            stretch.end.is_none_or(|left_at| range.end.unwrap_or(range.start) <= left_at)
        })
    })
}

impl<'a> Choice<'a> {
    /// Returns the number of the first segment that a rule keeps.
    pub fn first_kept(&self, rule: &Rule) -> Result<u64, Reason> {
        let counted = self.counted();
        let kept: Vec<&Backup> = match rule {
            Rule::OlderThanSegment(name) => return self.older_than(&counted, name.number(self.size)),
            Rule::OlderThanPosition(lsn) => {
                return self.older_than(&counted, Some(self.size.segment_of(*lsn)));
            }
            _ if counted.is_empty() => {
                return Err(Reason::warning(
                    "no backup is known whose WAL the archive has: nothing is removed".to_owned(),
                ));
            }
            // One that does not count may become usable: the archive may be incomplete for a time.
            Rule::KeepExisting => self.backups.iter().filter(|backup| backup.is_on_disk).collect(),
            Rule::KeepBackups(count) => Choice::newest_of(&counted, *count)?,
            Rule::KeepSince { moment, age } => self.since(&counted, *moment, *age)?,
            Rule::OlderThanBackup(wanted) => self.backup_and_later(&counted, wanted)?,
        };
        // The earliest start counts, because on another timeline an earlier backup may start at a later
        // position.
        let first = kept.iter().map(|backup| self.first_number(backup)).min();
        first.ok_or_else(|| Reason::warning("no backup is kept: nothing is removed".to_owned()))
    }

    fn counted(&self) -> Vec<&'a Backup> {
        let all = self.backups.iter().zip(self.problems);
        all.filter(|(_, problem)| problem.is_none()).map(|(backup, _)| backup).collect()
    }

    /// Returns the timelines that only backups starting before a segment lead to. After a failover, the new
    /// primary may write one of these timelines while the old primary continues another. So a rule must not
    /// abandon a timeline merely because its backups are older.
    ///
    /// A timeline that is older than the timeline of a kept backup counts as abandoned unless it continues.
    pub fn last_backups_before(&self, cut: u64) -> Vec<LastBackupOfTimeline<'a>> {
        let counted = self.counted();
        let (kept, removed): (Vec<&Backup>, Vec<&Backup>) =
            counted.into_iter().partition(|backup| self.number(backup) >= cut);
        let newest_kept =
            kept.iter().flat_map(|backup| &backup.ranges).map(|range| range.timeline).max().unwrap_or(0);
        let continuing = self.continuing_lines();
        let continues = |timeline| continuing.iter().any(|line| timeline_of_line(line) == Some(timeline));
        let newer = self.lines.iter().filter_map(|line| {
            let timeline = timeline_of_line(line)?;
            let is_asked = timeline > newest_kept || continues(timeline);
            let is_cut = is_asked && !kept.iter().any(|backup| leads_to(backup, line));
            let backup = removed.iter().rev().copied().find(|backup| is_cut && leads_to(backup, line))?;
            Some(LastBackupOfTimeline { timeline, backup })
        });
        newer.collect()
    }

    /// Returns the timelines that have segments after the last LSN at which another timeline branched off.
    fn continuing_lines(&self) -> Vec<&'a Vec<Stretch>> {
        let mut left_in: BTreeMap<Timeline, u64> = BTreeMap::new();
        for stretch in self.lines.iter().flatten() {
            if let Some(end) = stretch.end {
                let number = left_in.entry(stretch.timeline).or_default();
                *number = self.size.segment_of(end).max(*number);
            }
        }
        let continues = |line: &&Vec<Stretch>| {
            timeline_of_line(line).is_some_and(|timeline| {
                let last = self.segments.last_of(timeline);
                last.is_some_and(|last| left_in.get(&timeline).is_none_or(|&left| last > left))
            })
        };
        self.lines.iter().filter(continues).collect()
    }

    /// Applies a rule that counts backups to each timeline that continues, if there are several. The archive
    /// does not show which timeline a live server writes: a promoted copy may share the archive with its
    /// primary. A timeline with too few backups keeps all its backups.
    pub fn kept_for_each_timeline(&self, rule: &Rule) -> Vec<KeptForTimeline<'a>> {
        let lines = self.continuing_lines();
        if lines.len() < 2 {
            return Vec::new();
        }
        let first_of_line = |line: &Vec<Stretch>| {
            let counted: Vec<&Backup> =
                self.counted().into_iter().filter(|backup| leads_to(backup, line)).collect();
            let kept = match rule {
                Rule::KeepBackups(count) => Choice::newest_of(&counted, *count),
                Rule::KeepSince { moment, age } => self.since(&counted, *moment, *age),
                Rule::KeepExisting
                | Rule::OlderThanBackup(_)
                | Rule::OlderThanSegment(_)
                | Rule::OlderThanPosition(_) => return None,
            };
            let backup =
                kept.unwrap_or(counted).into_iter().min_by_key(|backup| self.first_number(backup))?;
            Some(KeptForTimeline { timeline: timeline_of_line(line)?, backup })
        };
        lines.into_iter().filter_map(first_of_line).collect()
    }

    /// Returns the number of the segment in which a backup's WAL starts.
    fn number(&self, backup: &Backup) -> u64 {
        self.size.segment_of(backup.start().1)
    }

    /// Returns the number of the first segment that a backup needs, including the chain of backups on which
    /// an incremental one is based.
    pub fn first_number(&self, backup: &Backup) -> u64 {
        let needed = std::iter::successors(Some(backup), |backup| parent_of(self.backups, backup));
        needed.map(|backup| self.number(backup)).min().unwrap_or_else(|| self.number(backup))
    }

    /// Returns the newest backups, including `count` full backups. Only full backups are counted, because an
    /// incremental backup is useless without the full backup on which it is based.
    fn newest_of<'b>(counted: &[&'b Backup], count: u64) -> Result<Vec<&'b Backup>, Reason> {
        let is_full = |backup: &Backup| backup.incremental_from.is_none();
        let full: Vec<usize> = (0..counted.len()).filter(|&at| is_full(counted[at])).collect();
        let Some(first) = full.len().checked_sub(usize::try_from(count).unwrap_or(usize::MAX)) else {
            let (found, incremental) = (full.len(), counted.len() - full.len());
            let backups =
                if found == 1 { "1 backup counts".to_owned() } else { format!("{found} backups count") };
            let beside = if incremental == 0 { "" } else { ", not counting incremental ones" };
            let text = format!("{backups}{beside}, and {count} are to be kept: nothing is removed");
            return Err(Reason::note(text));
        };
        Ok(full.get(first).map_or_else(Vec::new, |&at| counted[at..].to_vec()))
    }

    /// Returns the last backup that was completed before a moment, at which recovery to this moment starts,
    /// and all later backups.
    ///
    /// Clocks may have been reset, so times need not increase with positions: a backup qualifies only if all
    /// earlier backups were also completed, and earlier transactions committed, before the moment. The age is
    /// relative to the last commit in the archive if that is earlier than now. Otherwise a fast clock on this
    /// machine, or stopped archiving, would make everything old.
    fn since<'b>(&self, counted: &[&'b Backup], moment: i64, age: i64) -> Result<Vec<&'b Backup>, Reason> {
        let moment = self.newest.map_or(moment, |newest| moment.min(newest.saturating_sub(age)));
        let latest_before = |backup: &Backup| {
            let at = self.backups.iter().position(|other| other == backup);
            at.and_then(|at| *self.latest_before.get(at)?)
        };
        let is_before = |backup: &&&Backup| {
            backup.time.is_some_and(|time| time <= moment)
                && latest_before(backup).is_none_or(|latest| latest <= moment)
        };
        match counted.iter().take_while(is_before).count() {
            0 => Err(Reason::note(
                "no backup that counts was finished before the days to be kept: nothing is removed"
                    .to_owned(),
            )),
            before => Ok(counted[before - 1..].to_vec()),
        }
    }

    fn backup_and_later<'b>(&self, counted: &[&'b Backup], wanted: &str) -> Result<Vec<&'b Backup>, Reason> {
        let is_wanted = |backup: &Backup| {
            let names = [Some(backup.name.as_str()), backup.label.as_deref()];
            let file = backup.file.map(|file| file.to_string());
            names.contains(&Some(wanted)) || file.as_deref() == Some(wanted)
        };
        let found: Vec<_> =
            self.backups.iter().zip(self.problems).filter(|(one, _)| is_wanted(one)).collect();
        match found.as_slice() {
            [] => Err(Reason::warning(format!(
                "no backup is labelled or named \"{wanted}\": nothing is removed"
            ))),
            [(backup, None)] => {
                Ok(counted.iter().copied().filter(|other| other.start() >= backup.start()).collect())
            }
            [(_, Some(problem))] => Err(Reason::warning(format!(
                "the backup \"{wanted}\" does not count: {problem}; nothing is removed"
            ))),
            several => {
                let names: Vec<&str> = several.iter().map(|(backup, _)| backup.name.as_str()).collect();
                let names = names.join(", ");
                Err(Reason::warning(format!(
                    "several backups are labelled \"{wanted}\" ({names}): name one of these; nothing is removed"
                )))
            }
        }
    }

    /// Returns the position that the user chose. If backups are known, at least one that counts must be kept.
    fn older_than(&self, counted: &[&Backup], number: Option<u64>) -> Result<u64, Reason> {
        let Some(number) = number else {
            let bytes = self.size.bytes();
            let text = format!("segments of {bytes} bytes have no such name: nothing is removed");
            return Err(Reason::warning(text));
        };
        if !self.backups.is_empty() && !counted.iter().any(|backup| self.first_number(backup) >= number) {
            let text = "no backup that counts starts there or later: nothing is removed";
            return Err(Reason::warning(text.to_owned()));
        }
        // A kept incremental backup keeps the chain of backups on which it is based.
        let kept = counted.iter().filter(|backup| self.number(backup) >= number);
        Ok(kept.map(|backup| self.first_number(backup)).fold(number, u64::min))
    }
}

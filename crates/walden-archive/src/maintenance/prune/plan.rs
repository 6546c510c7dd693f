//! Determines which backups count, and where the WAL of the oldest kept one starts.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use walden_format::lsn::{SegmentSize, Timeline};
use walden_recover::KeepRule;
use walden_source::timelines::Stretch;

use super::Rule;
use crate::inventory::segments::Segments;
use crate::maintenance::backup::Backup;

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
            Rule::Keep { rule, zone } => Choice::newest_of_periods(&counted, rule, zone),
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
                Rule::Keep { rule, zone } => Ok(Choice::newest_of_periods(&counted, rule, zone)),
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

    /// Returns the newest full backups of the rule's periods, and those whose time is not known.
    fn newest_of_periods<'b>(counted: &[&'b Backup], rule: &KeepRule, zone: &TimeZone) -> Vec<&'b Backup> {
        let time = |backup: &Backup| jiff::Timestamp::from_microsecond(backup.time?).ok();
        let timed = counted.iter().filter(|backup| backup.incremental_from.is_none());
        let timed: Vec<(&Backup, jiff::Timestamp)> =
            timed.filter_map(|&backup| Some((backup, time(backup)?))).collect();
        let times: Vec<jiff::Timestamp> = timed.iter().map(|(_, time)| *time).collect();
        let selected = rule.select(&times, zone);
        let is_removed = |backup: &Backup| {
            timed.iter().zip(&selected).any(|((it, _), periods)| *it == backup && periods.is_empty())
        };
        counted.iter().copied().filter(|backup| !is_removed(backup)).collect()
    }

    /// Returns the backups that are not needed although the WAL from their start on is: those of the rule's
    /// periods that are not the newest ones. On each timeline that continues, the rule keeps its own, and the
    /// last backup that leads to a timeline stays.
    pub fn between_kept(&self, rule: &Rule) -> Vec<&'a Backup> {
        let Rule::Keep { rule, zone } = rule else { return Vec::new() };
        let counted = self.counted();
        let mut kept = Choice::newest_of_periods(&counted, rule, zone);
        for line in self.lines {
            let of_line: Vec<&Backup> =
                counted.iter().copied().filter(|backup| leads_to(backup, line)).collect();
            kept.extend(of_line.last());
            kept.extend(Choice::newest_of_periods(&of_line, rule, zone));
        }
        counted.into_iter().filter(|backup| !kept.contains(backup)).collect()
    }

    /// Returns the last backup that was completed before a moment, where recovery to that moment starts, and
    /// all later ones.
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

//! Which backups of a schedule are kept: the newest of each of the last days, weeks and so on.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde::Serialize;

use crate::backup_folder::ListedBackup;

/// How many backups to keep by period, such as `daily=7,weekly=5`.
///
/// As in restic, a period without backups does not count: if backups stop, the rule keeps the same ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeepRule {
    /// By the row of [`PERIODS`]; 0 if the rule does not have it.
    counts: [u32; PERIODS.len()],
}

/// Names of periods, and the values that two times of one period have in common. Each backup is a period of
/// its own for `last`.
const PERIODS: [(&str, Option<PeriodOf>); 6] = [
    ("last", None),
    ("hourly", Some(|time| [time.year(), time.day_of_year(), time.hour().into()])),
    ("daily", Some(|time| [time.year(), time.day_of_year(), 0])),
    (
        "weekly",
        Some(|time| [time.date().iso_week_date().year(), time.date().iso_week_date().week().into(), 0]),
    ),
    ("monthly", Some(|time| [time.year(), time.month().into(), 0])),
    ("yearly", Some(|time| [time.year(), 0, 0])),
];

type PeriodOf = fn(&Zoned) -> [i16; 3];

/// Why a backup is kept that the schedule did not create.
const OTHER: &str = "not of this schedule";

/// A backup in the folder and the decision about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct BackupDecision {
    /// The name of its folder.
    pub name: String,
    /// The position from which WAL is replayed.
    pub start_lsn: String,
    /// Time in microseconds since 1970-01-01 00:00:00 UTC; `None` if the schedule did not create it.
    pub time: Option<i64>,
    /// Periods of the rule, or another reason; empty if it is not kept.
    pub kept_for: Vec<&'static str>,
    /// Whether it was removed.
    pub removed: bool,
}

impl KeepRule {
    /// Decides which backups are kept; none is removed yet. The rule counts only those of the schedule.
    /// `newest` is the path of the backup that the next run advances, which is always kept.
    pub fn decide(&self, backups: &[ListedBackup], newest: &Path, zone: &TimeZone) -> Vec<BackupDecision> {
        let times: Vec<Timestamp> = backups.iter().filter_map(|backup| backup.scheduled).collect();
        let mut selected = self.select(&times, zone).into_iter();
        let decide = |backup: &ListedBackup| {
            let mut kept_for = match backup.scheduled {
                Some(_) => selected.next().unwrap_or_default(),
                None => vec![OTHER],
            };
            if kept_for.is_empty() && backup.path == newest {
                kept_for.push("newest");
            }
            BackupDecision {
                name: backup.name.clone(),
                start_lsn: backup.start.to_string(),
                time: backup.scheduled.map(Timestamp::as_microsecond),
                kept_for,
                removed: false,
            }
        };
        backups.iter().map(decide).collect()
    }

    /// Returns, for each backup, the periods for which it is kept; none if it is not kept. If two backups
    /// have the same time, the later one in the list counts as newer.
    pub fn select(&self, times: &[Timestamp], zone: &TimeZone) -> Vec<Vec<&'static str>> {
        let mut newest_first: Vec<(Timestamp, usize)> =
            times.iter().enumerate().map(|(index, &time)| (time, index)).collect();
        newest_first.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = vec![Vec::new(); times.len()];
        for (&count, (name, period_of)) in self.counts.iter().zip(PERIODS) {
            let (mut left, mut last) = (count, None);
            for &(time, index) in &newest_first {
                let period = period_of.map(|period_of| period_of(&time.to_zoned(zone.clone())));
                if left > 0 && (period.is_none() || period != last) {
                    kept[index].push(name);
                    (left, last) = (left - 1, period);
                }
            }
        }
        kept
    }
}

impl FromStr for KeepRule {
    type Err = String;

    fn from_str(text: &str) -> Result<KeepRule, String> {
        let mut rule = KeepRule { counts: [0; PERIODS.len()] };
        for part in text.split(',') {
            let counted = part.split_once('=').and_then(|(name, count)| {
                let row = PERIODS.iter().position(|(known, _)| *known == name.trim())?;
                Some((row, count.trim().parse().ok().filter(|&count| count > 0)?))
            });
            let Some((row, count)) = counted.filter(|(row, _)| rule.counts[*row] == 0) else {
                let names = PERIODS.map(|(name, _)| name).join(", ");
                return Err(format!(
                    "expected each of {names} at most once with a number from 1 on, such as daily=7,weekly=5; found \"{part}\""
                ));
            };
            rule.counts[row] = count;
        }
        Ok(rule)
    }
}

impl fmt::Display for KeepRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (count, (name, _)) in self.counts.iter().zip(PERIODS).filter(|(count, _)| **count > 0) {
            write!(f, "{separator}{name}={count}")?;
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(text: &str) -> KeepRule {
        text.parse().unwrap()
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_rule_has_each_period_at_most_once() {
        for text in ["daily=7,weekly=5", "last=1", "hourly=24,monthly=12,yearly=1"] {
            assert_eq!(rule(text).to_string(), text);
        }
        for wrong in [
            "",
            "daily",
            "daily=0",
            "daily=-1",
            "nightly=7",
            "daily=7,",
            "daily=1,daily=2",
            "last=99999999999",
        ] {
            let error = wrong.parse::<KeepRule>().unwrap_err();
            assert!(error.contains("such as daily=7,weekly=5"), "{wrong}: {error}");
        }
    }

    #[test]
    fn days_and_weeks_are_those_of_the_time_zone() {
        // Sunday 23:30 and Monday 00:30 in a zone two hours east of UTC.
        let times = [time("2026-11-22T21:30:00Z"), time("2026-11-22T22:30:00Z")];
        let east = TimeZone::fixed(jiff::tz::offset(2));
        for (text, zone, expected) in [
            ("daily=2", &east, [true, true]),
            ("weekly=2", &east, [true, true]),
            ("daily=2", &TimeZone::UTC, [false, true]),
            ("weekly=2", &TimeZone::UTC, [false, true]),
            ("daily=1", &east, [false, true]),
        ] {
            let kept = rule(text).select(&times, zone);
            assert_eq!(
                kept.iter().map(|periods| !periods.is_empty()).collect::<Vec<_>>(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn the_newest_of_each_day_and_week_is_kept() {
        // Two backups a day for nine weeks, which end on a Monday.
        let first = time("2026-09-22T01:00:00Z");
        let times: Vec<Timestamp> =
            (0..7 * 9 * 2).map(|half| first + jiff::SignedDuration::from_hours(half * 12)).collect();
        let kept = rule("daily=7,weekly=5").select(&times, &TimeZone::UTC);
        let kept: Vec<(String, String)> = times
            .iter()
            .zip(kept)
            .filter(|(_, periods)| !periods.is_empty())
            .map(|(time, periods)| (time.strftime("%m-%d %H").to_string(), periods.join("+")))
            .collect();
        let kept: Vec<(&str, &str)> = kept.iter().map(|(time, periods)| (&**time, &**periods)).collect();
        assert_eq!(
            kept,
            [
                ("11-01 13", "weekly"),
                ("11-08 13", "weekly"),
                ("11-15 13", "weekly"),
                ("11-17 13", "daily"),
                ("11-18 13", "daily"),
                ("11-19 13", "daily"),
                ("11-20 13", "daily"),
                ("11-21 13", "daily"),
                ("11-22 13", "daily+weekly"),
                ("11-23 13", "daily+weekly"),
            ]
        );
    }

    fn any_rule() -> impl Strategy<Value = KeepRule> {
        prop::array::uniform6(0_u32..5)
            .prop_filter("a rule has a period", |counts| counts.iter().any(|&count| count > 0))
            .prop_map(|counts| KeepRule { counts })
    }

    fn any_times() -> impl Strategy<Value = Vec<Timestamp>> {
        // Gaps of up to two weeks, most of them of hours.
        prop::collection::vec(prop_oneof![0_i64..86_400, 0_i64..1_209_600], 1..60).prop_map(|gaps| {
            let mut second = 1_790_000_000;
            let later = |gap| {
                second += gap;
                Timestamp::from_second(second).unwrap()
            };
            gaps.into_iter().map(later).collect()
        })
    }

    proptest! {
        /// Per period: a backup is kept if and only if it is the newest of its period and fewer than N
        /// periods with backups are later.
        #[test]
        fn the_newest_of_the_last_periods_are_kept(rule in any_rule(), times in any_times(), hours in -12_i8..12) {
            let zone = TimeZone::fixed(jiff::tz::offset(hours));
            let kept = rule.select(&times, &zone);
            for (count, (name, period_of)) in rule.counts.into_iter().zip(PERIODS) {
                let period = |index: usize| match period_of {
                    Some(period_of) => period_of(&times[index].to_zoned(zone.clone())),
                    None => [index as i16, 0, 0],
                };
                for (index, periods) in kept.iter().enumerate() {
                    let later: std::collections::BTreeSet<_> = (index + 1..times.len()).map(period).collect();
                    let is_newest = !later.contains(&period(index));
                    let expected = is_newest && (later.len() as u32) < count;
                    prop_assert_eq!(periods.contains(&name), expected, "{} of {}", name, index);
                }
            }
            prop_assert!(!kept[times.len() - 1].is_empty(), "the newest is kept");
        }

        /// Removing after each backup leaves the same backups as a single removal at the end.
        #[test]
        fn no_backup_is_removed_that_a_later_run_would_keep(rule in any_rule(), times in any_times()) {
            let zone = TimeZone::UTC;
            let keep = |times: &[Timestamp]| -> Vec<Timestamp> {
                let kept = rule.select(times, &zone).into_iter().zip(times);
                kept.filter(|(periods, _)| !periods.is_empty()).map(|(_, time)| *time).collect()
            };
            let mut left = Vec::new();
            for &time in &times {
                left.push(time);
                left = keep(&left);
            }
            prop_assert_eq!(left, keep(&times));
        }
    }
}

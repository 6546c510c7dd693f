//! Searches settings for an aim: parses the aim, lists the candidates and chooses among their predictions.

use serde::Serialize;
use thiserror::Error;
use walden_format::version::Major;

use crate::document::Predicted;

/// An aim. All limits that are set have to be met.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Aim {
    /// Maximum WAL volume, as a fraction of the trace.
    pub max_trace_fraction: Option<f64>,
    /// Maximum WAL volume, in bytes per second.
    pub max_bytes_per_second: Option<f64>,
    /// Maximum recovery time, in seconds.
    pub max_recovery_seconds: Option<f64>,
    /// Whether the WAL volume is to be minimized.
    pub is_minimum: bool,
}

/// Text that is not an aim.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "cannot parse the aim: expected parts such as: halve the WAL, WAL by 40%, WAL under 200GB a day, least WAL, recovery under \
     2 minutes; found {text:?}"
)]
pub struct AimError {
    text: String,
}

impl Aim {
    /// Parses an aim: parts joined by `with`, `and` or commas, each about the WAL or about recovery.
    ///
    /// # Errors
    /// A part that states neither a WAL volume nor a recovery time.
    pub fn parse(text: &str) -> Result<Aim, AimError> {
        let error = |part: &str| AimError { text: part.trim().into() };
        let lower = text.to_lowercase();
        let spaced = lower.replace(',', " , ");
        let mut aim = Aim::default();
        let words: Vec<&str> = spaced.split_whitespace().collect();
        for part in words.split(|word| matches!(*word, "," | "with" | "and" | "but")) {
            if part.is_empty() {
                continue;
            }
            let said = part.join(" ");
            if part.iter().any(|word| word.starts_with("recover") || *word == "restart") {
                aim.max_recovery_seconds = Some(duration(part).ok_or_else(|| error(&said))?);
            } else if part.iter().any(|word| matches!(*word, "halve" | "half")) {
                aim.max_trace_fraction = Some(0.5);
            } else if part
                .iter()
                .any(|word| matches!(*word, "least" | "less" | "minimal" | "minimise" | "minimize"))
            {
                aim.is_minimum = true;
            } else if let Some(percent) = part.iter().find_map(|word| percent(word)) {
                // `by 40%` is the reduction, `to 40%` the result.
                let stays = part.iter().any(|word| matches!(*word, "to" | "under" | "below" | "at"));
                aim.max_trace_fraction = Some(if stays { percent } else { 1.0 - percent });
            } else {
                aim.max_bytes_per_second = Some(rate(part).ok_or_else(|| error(&said))?);
            }
        }
        if aim == Aim::default() { Err(error(text)) } else { Ok(aim) }
    }

    /// The maximum WAL volume in bytes, for a trace of this size and duration; `None` without a limit.
    pub fn max_bytes(&self, trace_bytes: u64, seconds: Option<f64>) -> Option<f64> {
        let share = self.max_trace_fraction.map(|share| share * trace_bytes as f64);
        let rate = self.max_bytes_per_second.zip(seconds).map(|(rate, seconds)| rate * seconds);
        share.into_iter().chain(rate).reduce(f64::min)
    }
}

fn percent(word: &str) -> Option<f64> {
    let number: f64 = word.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

/// A number and its unit, in one word or two (`200GB`, `2 minutes`), and the index of the next word.
fn quantity<'a>(words: &[&'a str]) -> Option<(f64, &'a str, usize)> {
    words.iter().enumerate().find_map(|(at, word)| {
        let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
        let number: f64 = word[..digits].parse().ok()?;
        Some(match &word[digits..] {
            "" => (number, words.get(at + 1).copied().unwrap_or(""), at + 2),
            unit => (number, unit, at + 1),
        })
    })
}

fn duration(words: &[&str]) -> Option<f64> {
    let words: Vec<&str> = words.iter().map(|word| if *word == "a" { "1" } else { *word }).collect();
    let (number, unit, _) = quantity(&words)?;
    Some(number * seconds_of(unit)?)
}

fn seconds_of(unit: &str) -> Option<f64> {
    Some(match unit.trim_end_matches('s') {
        "" | "sec" | "second" => 1.0,
        "min" | "minute" | "m" => 60.0,
        "h" | "hour" => 3600.0,
        "d" | "day" => 86_400.0,
        "week" => 7.0 * 86_400.0,
        "month" => 30.0 * 86_400.0,
        _ => return None,
    })
}

/// Parses bytes per second: `200GB a day`, `5MB/s`.
fn rate(words: &[&str]) -> Option<f64> {
    let joined = words.join(" ").replace('/', " per ");
    let words: Vec<&str> = joined.split_whitespace().collect();
    let (number, unit, next) = quantity(&words)?;
    let shift =
        [("b", 0), ("kb", 10), ("mb", 20), ("gb", 30), ("tb", 40)].iter().find(|row| row.0 == unit)?.1;
    let over = words.get(next..)?.iter().find_map(|word| match *word {
        "per" | "a" | "an" | "each" | "every" => None,
        "hourly" => Some(3600.0),
        "daily" => Some(86_400.0),
        word => seconds_of(word).filter(|_| !word.is_empty()),
    })?;
    Some(number * (1_u64 << shift) as f64 / over)
}

/// Values of a setting that are tried, alone and in combination with the others.
struct CandidateValues {
    name: &'static str,
    values: &'static [&'static str],
    /// Values that are tried only if the aim limits recovery time.
    for_shorter_recovery: &'static [&'static str],
    since: Major,
}

const CANDIDATES: &[CandidateValues] = &[
    CandidateValues {
        name: "max_wal_size",
        values: &["1GB", "2GB", "4GB", "8GB", "16GB", "32GB", "64GB"],
        for_shorter_recovery: &["128MB", "256MB", "512MB"],
        since: Major::V10,
    },
    CandidateValues {
        name: "checkpoint_timeout",
        values: &["15min", "30min", "1h"],
        for_shorter_recovery: &["5min"],
        since: Major::V10,
    },
    CandidateValues {
        name: "wal_compression",
        values: &["lz4", "zstd"],
        for_shorter_recovery: &[],
        since: Major::V15,
    },
    CandidateValues {
        name: "wal_compression",
        values: &["pglz"],
        for_shorter_recovery: &[],
        since: Major::V10,
    },
];

/// The sets of settings that are tried for an aim; the first one is empty.
pub fn candidates(aim: &Aim, version: Major) -> Vec<Vec<(String, String)>> {
    let mut all: Vec<Vec<(String, String)>> = vec![Vec::new()];
    let mut done: Vec<&str> = Vec::new();
    for candidate in CANDIDATES {
        if version < candidate.since || done.contains(&candidate.name) {
            continue;
        }
        done.push(candidate.name);
        let for_shorter_recovery =
            if aim.max_recovery_seconds.is_some() { candidate.for_shorter_recovery } else { &[] };
        let with = |change: &Vec<(String, String)>| {
            let value = |value: &&str| {
                let mut change = change.clone();
                change.push((candidate.name.to_string(), value.to_string()));
                change
            };
            let mut changes = vec![change.clone()];
            changes.extend(for_shorter_recovery.iter().chain(candidate.values).map(value));
            changes
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// The advice for an aim.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The aim as parsed.
    pub aim: String,
    /// Whether all limits are met.
    pub reached: bool,
    /// If not, why this is the best candidate.
    pub why: String,
    /// The changes, largest saving first.
    pub steps: Vec<Step>,
}

/// A setting to change.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The SQL statement.
    pub statement: String,
    /// This change and those before it.
    pub name: String,
    /// WAL in bytes with these changes.
    pub bytes: u64,
    /// The same relative to the trace: -0.4 is 40 % less.
    pub change: f64,
    /// Maximum recovery time with these changes.
    pub recovery_seconds: f64,
    /// Costs and risks, in words.
    pub risk: String,
}

/// Chooses among the predictions of [`candidates`]: of those that meet the aim, the one with the fewest changes and then the
/// shortest recovery; for a minimizing aim, the one with the least WAL.
pub fn choose(aim: &Aim, predicted: &[Predicted], trace_bytes: u64, seconds: Option<f64>) -> Advice {
    let most = aim.max_bytes(trace_bytes, seconds);
    let recovers_in_time =
        |one: &Predicted| aim.max_recovery_seconds.is_none_or(|most| one.recovery_seconds <= most);
    let fits = |one: &Predicted| most.is_none_or(|most| one.bytes as f64 <= most);
    let distinct: Vec<&Predicted> = {
        let mut seen = std::collections::HashSet::new();
        predicted.iter().filter(|one| seen.insert(&one.name)).collect()
    };
    let reaching: Vec<&&Predicted> =
        distinct.iter().filter(|one| recovers_in_time(one) && fits(one)).collect();
    let by_effort = |a: &&&Predicted, b: &&&Predicted| {
        effort(a).cmp(&effort(b)).then(a.recovery_seconds.total_cmp(&b.recovery_seconds))
    };
    let reached = !reaching.is_empty();
    let chosen = if reached && !aim.is_minimum {
        reaching.into_iter().min_by(by_effort)
    } else {
        let within: Vec<&&Predicted> = distinct.iter().filter(|one| recovers_in_time(one)).collect();
        if within.is_empty() {
            distinct.iter().min_by(|a, b| a.recovery_seconds.total_cmp(&b.recovery_seconds))
        } else {
            // Within half a percent of the least WAL, prefer fewer changes.
            let least = within.iter().map(|one| one.bytes).min().unwrap_or(0);
            within.into_iter().filter(|one| one.bytes <= least + least / 200).min_by(by_effort)
        }
    };
    let Some(chosen) = chosen else {
        return Advice {
            aim: aim.to_string(),
            reached: false,
            why: "nothing was predicted".into(),
            steps: Vec::new(),
        };
    };
    let why = if reached {
        String::new()
    } else if recovers_in_time(chosen) {
        let percent = 100.0 * (1.0 - chosen.bytes as f64 / trace_bytes.max(1) as f64);
        let than = if percent < 0.0 { "more" } else { "less" };
        format!(
            "of all settings tried, this writes the least WAL within the recovery time requested: {:.0} % {than} than the trace",
            percent.abs()
        )
    } else {
        "no setting tried recovers within that time; this one is the shortest: a faster server or more checkpoints are needed".into()
    };
    Advice { aim: aim.to_string(), reached, why, steps: steps(chosen, &distinct) }
}

impl std::fmt::Display for Aim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if let Some(share) = self.max_trace_fraction {
            parts.push(format!("WAL at most {:.0} % of the trace", 100.0 * share));
        }
        if let Some(rate) = self.max_bytes_per_second {
            parts.push(format!("WAL at most {:.1} GB a day", rate * 86_400.0 / (1_u64 << 30) as f64));
        }
        if self.is_minimum {
            parts.push("least WAL".into());
        }
        if let Some(seconds) = self.max_recovery_seconds {
            parts.push(format!("recovery in at most {seconds:.0} s"));
        }
        f.write_str(&parts.join(", "))
    }
}

/// Weight of the changes: one each, and two for compression, which costs processor time.
fn effort(one: &Predicted) -> u32 {
    one.changed.iter().map(|(name, _)| if name == "wal_compression" { 2 } else { 1 }).sum()
}

/// Orders the changes greedily, the largest saving first.
fn steps(chosen: &Predicted, all: &[&Predicted]) -> Vec<Step> {
    let mut left = chosen.changed.clone();
    let mut so_far: Vec<(String, String)> = Vec::new();
    let mut steps = Vec::new();
    while !left.is_empty() {
        let with = |more: &(String, String)| {
            let is_it = |one: &&&Predicted| {
                one.changed.len() == so_far.len() + 1
                    && one.changed.contains(more)
                    && so_far.iter().all(|before| one.changed.contains(before))
            };
            all.iter().find(is_it)
        };
        let best = left.iter().enumerate().filter_map(|(at, more)| Some((at, with(more)?)));
        let Some((at, one)) = best.min_by_key(|(_, one)| one.bytes) else { break };
        let (name, value) = left.remove(at);
        steps.push(Step {
            statement: format!("ALTER SYSTEM SET {name} = '{value}';"),
            name: one.name.clone(),
            bytes: one.bytes,
            change: one.change,
            recovery_seconds: one.recovery_seconds,
            risk: risk(&name, &value, one),
        });
        so_far.push((name, value));
    }
    steps
}

fn risk(name: &str, value: &str, one: &Predicted) -> String {
    match name {
        "max_wal_size" => format!(
            "pg_wal grows to about {value}, and further if the archive or a slot lags; a crash replays up to {:.1} GB",
            one.longest_redo_bytes as f64 / (1_u64 << 30) as f64
        ),
        "checkpoint_timeout" => {
            "recovery after a crash or a standby restart replays more; max_wal_size has to be large enough for it"
                .into()
        }
        "wal_compression" => format!(
            "backends spend processor time on {value} for every full-page image ({} during the trace), within the transactions \
             that write them; a server built without it refuses the setting",
            one.images
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Causes;

    fn predicted(changed: &[(&str, &str)], bytes: u64, recovery_seconds: f64) -> Predicted {
        let changed: Vec<(String, String)> =
            changed.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Predicted {
            name: changed.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "),
            changed,
            bytes,
            change: bytes as f64 / 1000.0 - 1.0,
            recovery_seconds,
            checkpoints: Causes { total: 3, volume: 3, time: 0, requested: 0 },
            ..Predicted::default()
        }
    }

    #[test]
    fn aims_are_parsed() {
        let aim = Aim::parse("halve the WAL with recovery under 2 minutes").unwrap();
        assert_eq!((aim.max_trace_fraction, aim.max_recovery_seconds), (Some(0.5), Some(120.0)));
        assert_eq!(Aim::parse("WAL by 40%").unwrap().max_trace_fraction, Some(0.6));
        assert_eq!(Aim::parse("reduce WAL to 40%").unwrap().max_trace_fraction, Some(0.4));
        assert_eq!(Aim::parse("recovery in a minute").unwrap().max_recovery_seconds, Some(60.0));
        let day = Aim::parse("WAL under 200GB a day").unwrap().max_bytes_per_second.unwrap();
        assert!((day - 200.0 * (1_u64 << 30) as f64 / 86_400.0).abs() < 1e-3);
        assert_eq!(Aim::parse("5MB/s").unwrap().max_bytes_per_second, Some(5.0 * (1 << 20) as f64));
        assert!(Aim::parse("least WAL, recovery under 30s").unwrap().is_minimum);
        for nothing in ["", "faster please", "recovery soon", "WAL under 5 bananas a day"] {
            assert!(Aim::parse(nothing).is_err(), "{nothing}");
        }
    }

    #[test]
    fn fewest_changes_that_meet_the_aim_are_chosen() {
        let all = [
            predicted(&[], 1000, 60.0),
            predicted(&[("max_wal_size", "8GB")], 700, 200.0),
            predicted(&[("max_wal_size", "4GB")], 800, 100.0),
            predicted(&[("wal_compression", "lz4")], 500, 50.0),
            predicted(&[("max_wal_size", "4GB"), ("wal_compression", "lz4")], 400, 90.0),
        ];
        let advise = |text| choose(&Aim::parse(text).unwrap(), &all, 1000, Some(100.0));
        let names = |advice: &Advice| {
            advice.steps.iter().map(|step| step.statement.clone()).collect::<Vec<_>>().join(" ")
        };
        let advice = advise("WAL by 20%");
        assert!(advice.reached);
        assert_eq!(names(&advice), "ALTER SYSTEM SET max_wal_size = '4GB';");
        let advice = advise("WAL by 30%");
        assert_eq!(names(&advice), "ALTER SYSTEM SET max_wal_size = '8GB';");
        let advice = advise("WAL by 20% with recovery under 100s");
        assert_eq!(names(&advice), "ALTER SYSTEM SET max_wal_size = '4GB';");
        let advice = advise("least WAL with recovery under 95s");
        assert_eq!(
            names(&advice),
            "ALTER SYSTEM SET wal_compression = 'lz4'; ALTER SYSTEM SET max_wal_size = '4GB';"
        );
        assert_eq!(advice.steps.iter().map(|step| step.bytes).collect::<Vec<_>>(), [500, 400]);
        let advice = advise("WAL by 90%");
        assert!(!advice.reached && !advice.why.is_empty() && advice.steps.len() == 2);
        let advice = advise("recovery under 10 seconds");
        assert!(!advice.reached && advice.why.contains("shortest"));
    }

    #[test]
    fn candidates_depend_on_the_version() {
        let old = candidates(&Aim::default(), Major::V14);
        let new = candidates(&Aim::parse("recovery in 5s").unwrap(), Major::V15);
        assert_eq!((old.len(), new.len()), (8 * 4 * 2, 11 * 5 * 3));
        assert!(old[0].is_empty() && !old.iter().flatten().any(|(_, value)| value == "lz4"));
    }
}

//! Settings searched for an aim: what is wanted in words, what is tried, and which of it is advised.

use serde::Serialize;
use thiserror::Error;
use walden_format::version::Major;

use crate::document::Predicted;

/// What is wanted. Everything that is named has to be reached.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Aim {
    /// Most WAL, as a fraction of the trace.
    pub most_of_trace: Option<f64>,
    /// Most WAL in bytes a second.
    pub most_a_second: Option<f64>,
    /// Longest recovery, in seconds.
    pub longest_recovery: Option<f64>,
    /// As little WAL as can be had.
    pub least: bool,
}

/// Words that are no aim.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "no aim is understood in \"{text}\"; expected parts such as: halve the WAL, WAL by 40%, WAL under 200GB a day, least WAL, \
     recovery under 2 minutes"
)]
pub struct AimError {
    text: String,
}

impl Aim {
    /// Reads an aim: parts joined by `with`, `and` or commas, each about the WAL or about recovery.
    ///
    /// # Errors
    /// A part that says neither how much WAL nor how long a recovery.
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
                aim.longest_recovery = Some(duration(part).ok_or_else(|| error(&said))?);
            } else if part.iter().any(|word| matches!(*word, "halve" | "half")) {
                aim.most_of_trace = Some(0.5);
            } else if part
                .iter()
                .any(|word| matches!(*word, "least" | "less" | "minimal" | "minimise" | "minimize"))
            {
                aim.least = true;
            } else if let Some(percent) = part.iter().find_map(|word| percent(word)) {
                // `by 40%` is what goes, `to 40%` what stays.
                let stays = part.iter().any(|word| matches!(*word, "to" | "under" | "below" | "at"));
                aim.most_of_trace = Some(if stays { percent } else { 1.0 - percent });
            } else {
                aim.most_a_second = Some(rate(part).ok_or_else(|| error(&said))?);
            }
        }
        if aim == Aim::default() { Err(error(text)) } else { Ok(aim) }
    }

    /// The WAL in bytes that a trace of so many bytes and seconds may come to; nothing where no limit was named.
    pub fn most_bytes(&self, trace_bytes: u64, seconds: Option<f64>) -> Option<f64> {
        let share = self.most_of_trace.map(|share| share * trace_bytes as f64);
        let rate = self.most_a_second.zip(seconds).map(|(rate, seconds)| rate * seconds);
        share.into_iter().chain(rate).reduce(f64::min)
    }
}

fn percent(word: &str) -> Option<f64> {
    let number: f64 = word.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

/// A number and its unit, in one word or two: `200GB`, `2 minutes`.
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

/// Bytes a second: `200GB a day`, `5MB/s`.
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

/// Settings that are tried, alone and together; the first of each is to leave it.
struct Trials {
    name: &'static str,
    values: &'static [&'static str],
    /// Only where recovery has to become shorter too.
    shorter: &'static [&'static str],
    since: Major,
}

const TRIALS: &[Trials] = &[
    Trials {
        name: "max_wal_size",
        values: &["1GB", "2GB", "4GB", "8GB", "16GB", "32GB", "64GB"],
        shorter: &["128MB", "256MB", "512MB"],
        since: Major::V10,
    },
    Trials {
        name: "checkpoint_timeout",
        values: &["15min", "30min", "1h"],
        shorter: &["5min"],
        since: Major::V10,
    },
    Trials { name: "wal_compression", values: &["lz4", "zstd"], shorter: &[], since: Major::V15 },
    Trials { name: "wal_compression", values: &["pglz"], shorter: &[], since: Major::V10 },
];

/// Every set of settings that is tried for an aim, the one that changes nothing first.
pub fn candidates(aim: &Aim, version: Major) -> Vec<Vec<(String, String)>> {
    let mut all: Vec<Vec<(String, String)>> = vec![Vec::new()];
    let mut done: Vec<&str> = Vec::new();
    for trials in TRIALS {
        if version < trials.since || done.contains(&trials.name) {
            continue;
        }
        done.push(trials.name);
        let shorter = if aim.longest_recovery.is_some() { trials.shorter } else { &[] };
        let with = |change: &Vec<(String, String)>| {
            let value = |value: &&str| {
                let mut change = change.clone();
                change.push((trials.name.to_string(), value.to_string()));
                change
            };
            let mut changes = vec![change.clone()];
            changes.extend(shorter.iter().chain(trials.values).map(value));
            changes
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// What is advised.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The aim, as it was understood.
    pub aim: String,
    /// Everything asked for is reached.
    pub reached: bool,
    /// What comes nearest if it is not, and why nothing comes nearer.
    pub why: String,
    /// The changes, in the order of what they save.
    pub steps: Vec<Step>,
}

/// A setting to change.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The statement.
    pub statement: String,
    /// All changes so far.
    pub name: String,
    /// With this one and those before it: WAL in bytes, and against the trace.
    pub bytes: u64,
    /// As a fraction: -0.4 is 40 % less.
    pub change: f64,
    /// Recovery then, at most.
    pub recovery_seconds: f64,
    /// What it costs, and what may go wrong.
    pub risk: String,
}

/// Chooses among predictions of [`candidates`], the first of which changes nothing. Of those that reach the aim, the one with
/// the fewest changes, and of these the one that recovers soonest; if the least is wanted, the least.
pub fn choose(aim: &Aim, predicted: &[Predicted], trace_bytes: u64, seconds: Option<f64>) -> Advice {
    let most = aim.most_bytes(trace_bytes, seconds);
    let recovers = |one: &Predicted| aim.longest_recovery.is_none_or(|most| one.recovery_seconds <= most);
    let fits = |one: &Predicted| most.is_none_or(|most| one.bytes as f64 <= most);
    let distinct: Vec<&Predicted> = {
        let mut seen = std::collections::HashSet::new();
        predicted.iter().filter(|one| seen.insert(&one.name)).collect()
    };
    let reaching: Vec<&&Predicted> = distinct.iter().filter(|one| recovers(one) && fits(one)).collect();
    let milder = |a: &&&Predicted, b: &&&Predicted| {
        effort(a).cmp(&effort(b)).then(a.recovery_seconds.total_cmp(&b.recovery_seconds))
    };
    let reached = !reaching.is_empty();
    let chosen = if reached && !aim.least {
        reaching.into_iter().min_by(milder)
    } else {
        let within: Vec<&&Predicted> = distinct.iter().filter(|one| recovers(one)).collect();
        if within.is_empty() {
            distinct.iter().min_by(|a, b| a.recovery_seconds.total_cmp(&b.recovery_seconds))
        } else {
            // Within half a percent of the least, what is easier is better.
            let least = within.iter().map(|one| one.bytes).min().unwrap_or(0);
            within.into_iter().filter(|one| one.bytes <= least + least / 200).min_by(milder)
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
    } else if recovers(chosen) {
        let percent = 100.0 * (1.0 - chosen.bytes as f64 / trace_bytes.max(1) as f64);
        let than = if percent < 0.0 { "more" } else { "less" };
        format!(
            "of all settings tried, this is the least WAL within the recovery asked for: {:.0} % {than} than the trace",
            percent.abs()
        )
    } else {
        "no setting tried recovers within that time: this is the shortest; a faster server is needed, or more checkpoints".into()
    };
    Advice { aim: aim.to_string(), reached, why, steps: steps(chosen, &distinct) }
}

impl std::fmt::Display for Aim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if let Some(share) = self.most_of_trace {
            parts.push(format!("WAL at most {:.0} % of the trace", 100.0 * share));
        }
        if let Some(rate) = self.most_a_second {
            parts.push(format!("WAL at most {:.1} GB a day", rate * 86_400.0 / (1_u64 << 30) as f64));
        }
        if self.least {
            parts.push("as little WAL as can be had".into());
        }
        if let Some(seconds) = self.longest_recovery {
            parts.push(format!("recovery in at most {seconds:.0} s"));
        }
        f.write_str(&parts.join(", "))
    }
}

/// How much is asked of whoever changes these: each change counts, compression twice because it costs processor time.
fn effort(one: &Predicted) -> u32 {
    one.changed.iter().map(|(name, _)| if name == "wal_compression" { 2 } else { 1 }).sum()
}

/// The changes one after another, each time the one that saves most.
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
            "a crash replays more, and so does a standby that restarts; max_wal_size has to leave room for it"
                .into()
        }
        "wal_compression" => format!(
            "backends spend processor time on {value} for every image ({} in the trace's time), inside the transactions that \
             write them; a server built without it refuses the setting",
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
    fn aims_in_words() {
        let aim = Aim::parse("halve the WAL with recovery under 2 minutes").unwrap();
        assert_eq!((aim.most_of_trace, aim.longest_recovery), (Some(0.5), Some(120.0)));
        assert_eq!(Aim::parse("WAL by 40%").unwrap().most_of_trace, Some(0.6));
        assert_eq!(Aim::parse("reduce WAL to 40%").unwrap().most_of_trace, Some(0.4));
        assert_eq!(Aim::parse("recovery in a minute").unwrap().longest_recovery, Some(60.0));
        let day = Aim::parse("WAL under 200GB a day").unwrap().most_a_second.unwrap();
        assert!((day - 200.0 * (1_u64 << 30) as f64 / 86_400.0).abs() < 1e-3);
        assert_eq!(Aim::parse("5MB/s").unwrap().most_a_second, Some(5.0 * (1 << 20) as f64));
        assert!(Aim::parse("least WAL, recovery under 30s").unwrap().least);
        for nothing in ["", "faster please", "recovery soon", "WAL under 5 bananas a day"] {
            assert!(Aim::parse(nothing).is_err(), "{nothing}");
        }
    }

    #[test]
    fn the_mildest_that_reaches_the_aim() {
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
    fn what_is_tried_fits_the_version() {
        let old = candidates(&Aim::default(), Major::V14);
        let new = candidates(&Aim::parse("recovery in 5s").unwrap(), Major::V15);
        assert_eq!((old.len(), new.len()), (8 * 4 * 2, 11 * 5 * 3));
        assert!(old[0].is_empty() && !old.iter().flatten().any(|(_, value)| value == "lz4"));
    }
}

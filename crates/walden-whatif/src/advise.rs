//! Searches settings for an aim: parses the aim, lists the candidates and chooses among their predictions.

use serde::Serialize;
use thiserror::Error;
use walden_format::lsn::SegmentSize;
use walden_format::version::Major;

use crate::predicted::Predicted;
use crate::settings::{seconds, show_seconds, show_size, size as size_of};

/// An aim. All limits that are set must be met.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Aim {
    /// Maximum WAL volume, as a fraction of the trace.
    pub max_trace_fraction: Option<f64>,
    /// Maximum WAL volume, in bytes per second.
    pub max_bytes_per_second: Option<f64>,
    /// Maximum recovery time, in seconds.
    pub max_recovery_seconds: Option<f64>,
    /// Maximum size of `pg_wal`, in bytes.
    pub max_disk_bytes: Option<f64>,
    /// Maximum processor time for compressing images, in seconds per second.
    pub max_processor_share: Option<f64>,
    /// Whether `wal_compression` stays as it is.
    pub keeps_compression: bool,
    /// Whether the WAL volume is to be minimized.
    pub is_minimum: bool,
}

/// Text that is not an aim.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "cannot parse the aim: expected parts such as: halve the WAL, WAL by 40%, WAL under 200GB a day, least WAL, recovery under \
     2 minutes, disk under 20GB, processor time under 5%, without compression; found {text:?}"
)]
#[non_exhaustive]
pub struct AimError {
    text: String,
}

/// Words that start another part of an aim.
const SEPARATORS: [&str; 6] = [",", ";", "with", "and", "but", "while"];
/// Words that a part may contain in addition to numbers, units and its topic. Other words are rejected,
/// because ignoring them could change the meaning.
const FILLERS: &[&str] = &[
    "a", "after", "all", "an", "as", "at", "be", "below", "by", "crash", "cut", "down", "each", "every",
    "for", "from", "in", "is", "keep", "keeping", "least", "less", "log", "max", "maximum", "most", "must",
    "no", "not", "of", "on", "over", "per", "possible", "reduce", "should", "shrink", "size", "space",
    "than", "the", "time", "to", "under", "up", "volume", "wal", "within", "write", "writes",
];

impl Aim {
    /// Parses an aim: parts joined by `with`, `and` or commas, each about the WAL, recovery, disk space,
    /// processor time or compression.
    ///
    /// # Errors
    /// A part that states no aim, or contains an unknown word.
    pub fn parse(text: &str) -> Result<Aim, AimError> {
        let spaced = text.to_lowercase().replace(',', " , ").replace(';', " ; ").replace("per cent", "%");
        // `without` starts a part and is also a word of this part.
        let spaced = spaced.replace("without ", ", without ").replace("percent", "%").replace(" %", "%");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut aim = Aim::default();
        for part in words.split(|word| SEPARATORS.contains(word)).filter(|part| !part.is_empty()) {
            aim.add(part).ok_or_else(|| AimError { text: part.join(" ") })?;
        }
        if aim == Aim::default() { Err(AimError { text: text.trim().into() }) } else { Ok(aim) }
    }

    /// Adds a part; `None` if it cannot be parsed.
    fn add(&mut self, part: &[&str]) -> Option<()> {
        let has = |any: &[&str]| part.iter().any(|word| any.contains(word));
        let topic =
            |word: &str| TOPICS.iter().find(|(words, _)| words.contains(&word)).map(|(_, topic)| *topic);
        // A part refers to the WAL unless it names another topic.
        let about = part.iter().find_map(|word| topic(word)).unwrap_or(Topic::Wal);
        let is_known = |word: &&str| {
            FILLERS.contains(word)
                || topic(word).is_some()
                || ["halve", "half", "minimal", "minimise", "minimize", "minimum"].contains(word)
                || word.starts_with(|c: char| c.is_ascii_digit())
                || size_unit(word).is_some()
                || word.split('/').all(|unit| seconds_of(unit).is_some() || size_unit(unit).is_some())
        };
        if !part.iter().all(is_known) {
            return None;
        }
        match about {
            Topic::Recovery => self.max_recovery_seconds = Some(duration(part)?),
            Topic::Disk => self.max_disk_bytes = Some(size(part)?),
            Topic::Compression => {
                self.keeps_compression = has(&["without", "no", "not", "keep", "keeping"]).then_some(true)?
            }
            Topic::Processor => {
                self.max_processor_share = Some(match part.iter().find_map(|word| percent(word)) {
                    Some(share) => share,
                    None => processor_rate(part)?,
                });
            }
            Topic::Wal if has(&["halve", "half"]) => self.max_trace_fraction = Some(0.5),
            Topic::Wal => match part.iter().find_map(|word| percent(word)) {
                Some(percent) => self.max_trace_fraction = Some(fraction(part, percent)?),
                None if has(LEAST) && size(part).is_none() => self.is_minimum = true,
                None => self.max_bytes_per_second = Some(rate(part)?),
            },
        }
        Some(())
    }

    /// Returns the maximum WAL volume in bytes, for a trace of this size and duration; `None` without a
    /// limit.
    pub fn max_bytes(&self, trace_bytes: u64, seconds: Option<f64>) -> Option<f64> {
        let share = self.max_trace_fraction.map(|share| share * trace_bytes as f64);
        let rate = self.max_bytes_per_second.zip(seconds).map(|(rate, seconds)| rate * seconds);
        share.into_iter().chain(rate).reduce(f64::min)
    }
}

/// The topic of a part of an aim.
#[derive(Clone, Copy)]
enum Topic {
    Wal,
    Recovery,
    Disk,
    Processor,
    Compression,
}

const TOPICS: [(&[&str], Topic); 4] = [
    (&["recovery", "recover", "recovers", "recovering", "restart", "restarts"], Topic::Recovery),
    (&["disk", "pg_wal", "storage"], Topic::Disk),
    (&["processor", "cpu"], Topic::Processor),
    (&["compression", "wal_compression", "compressing", "without"], Topic::Compression),
];

/// Words for a minimum.
const LEAST: &[&str] = &["least", "less", "minimal", "minimise", "minimize", "minimum"];

/// Returns the maximum share of the WAL that remains: `by 40%` is the reduction, `to 40%` the remainder.
/// `None` for opposite bounds, such as `by at most 40%`.
fn fraction(part: &[&str], percent: f64) -> Option<f64> {
    let has = |any: &[&str]| part.iter().any(|word| any.contains(word));
    let is_upper_bound = has(&["most", "max", "maximum", "up"]);
    let says_what_stays =
        has(&["to", "under", "below", "within", "than"]) || has(&["at"]) && !has(&["least"]);
    let says_what_goes = has(&["by"])
        || has(&["cut", "reduce", "shrink", "least"]) && !has(&["to", "under", "below", "within", "than"]);
    match (says_what_goes, is_upper_bound) {
        (true, true) => None,
        (true, false) => Some(1.0 - percent),
        (false, _) => Some(if says_what_stays || is_upper_bound { percent } else { 1.0 - percent }),
    }
}

fn percent(word: &str) -> Option<f64> {
    let number: f64 = word.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

/// Parses a number and its unit, in one word or two (`200GB`, `2 minutes`). Also returns the index of the
/// next word.
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
        "m" if unit == "ms" => 0.001,
        "min" | "minute" | "m" => 60.0,
        "h" | "hour" => 3600.0,
        "d" | "day" => 86_400.0,
        "week" => 7.0 * 86_400.0,
        "month" => 30.0 * 86_400.0,
        "hourly" => 3600.0,
        "daily" => 86_400.0,
        _ => return None,
    })
}

/// Returns the bytes of a unit. As in PostgreSQL's settings, `GB` means the same as `GiB`.
fn size_unit(unit: &str) -> Option<f64> {
    const UNITS: [(&[&str], u32); 5] = [
        (&["b", "byte", "bytes"], 0),
        (&["kb", "kib"], 10),
        (&["mb", "mib"], 20),
        (&["gb", "gib"], 30),
        (&["tb", "tib"], 40),
    ];
    UNITS.iter().find(|(names, _)| names.contains(&unit)).map(|(_, shift)| (1_u64 << shift) as f64)
}

fn size(words: &[&str]) -> Option<f64> {
    let (number, unit, _) = quantity(words)?;
    Some(number * size_unit(unit)?)
}

/// Parses an amount per time: the amount, its unit, and the seconds.
fn per_time<'a>(words: &'a [&'a str]) -> Option<(f64, String, f64)> {
    let joined = words.join(" ").replace('/', " per ");
    let words: Vec<&str> = joined.split_whitespace().collect();
    let (number, unit, next) = quantity(&words)?;
    let over = words.get(next..)?.iter().find_map(|word| match *word {
        "per" | "a" | "an" | "each" | "every" => None,
        word => seconds_of(word).filter(|_| !word.is_empty()),
    })?;
    Some((number, unit.to_owned(), over))
}

/// Parses bytes per second: `200GB a day`, `5MB/s`.
fn rate(words: &[&str]) -> Option<f64> {
    let (number, unit, over) = per_time(words)?;
    Some(number * size_unit(&unit)? / over)
}

/// Parses seconds per second: `30 s an hour`.
fn processor_rate(words: &[&str]) -> Option<f64> {
    let (number, unit, over) = per_time(words)?;
    Some(number * seconds_of(&unit)? / over)
}

/// Values of a setting to try, alone and in combination with other settings, ascending.
struct CandidateValues {
    name: &'static str,
    values: &'static [&'static str],
    /// Values to try only if the aim limits recovery time or the size of `pg_wal`.
    for_shorter_recovery: &'static [&'static str],
    since: Major,
}

const CANDIDATES: &[CandidateValues] = &[
    CandidateValues {
        name: "max_wal_size",
        values: &["64MB", "128MB", "256MB", "512MB", "1GB", "2GB", "4GB", "8GB", "16GB", "32GB", "64GB"],
        for_shorter_recovery: &[],
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

/// Name and value of each setting of a set.
type Changes = Vec<(String, String)>;

/// Returns the sets of settings to try for an aim; the first set is empty.
pub fn candidates(aim: &Aim, version: Major, segment_size: SegmentSize) -> Vec<Changes> {
    let mut done: Vec<&str> = Vec::new();
    let mut lists: Vec<(&str, Vec<String>)> = Vec::new();
    for candidate in CANDIDATES {
        let is_kept = aim.keeps_compression && candidate.name == "wal_compression";
        if version < candidate.since || done.contains(&candidate.name) || is_kept {
            continue;
        }
        done.push(candidate.name);
        let limits_recovery = aim.max_recovery_seconds.or(aim.max_disk_bytes).is_some();
        let shorter = if limits_recovery { candidate.for_shorter_recovery } else { &[] };
        let values = shorter.iter().chain(candidate.values).map(|value| (*value).to_owned());
        lists.push((
            candidate.name,
            values.filter(|value| is_valid(candidate.name, value, segment_size)).collect(),
        ));
    }
    combine(&lists)
}

/// Whether a server with segments of this size starts with the value.
fn is_valid(name: &str, value: &str, segment_size: SegmentSize) -> bool {
    name != "max_wal_size" || size_of(value).is_some_and(|bytes| bytes >= 2 * segment_size.bytes())
}

/// Returns all combinations of the values of settings, in which each setting may also be unchanged; the first
/// combination is empty.
fn combine(lists: &[(&str, Vec<String>)]) -> Vec<Changes> {
    let mut all = vec![Changes::new()];
    for (name, values) in lists {
        let with = |change: &Changes| {
            let value = |value: &String| [change.clone(), vec![((*name).to_owned(), value.clone())]].concat();
            std::iter::once(change.clone()).chain(values.iter().map(value)).collect::<Vec<Changes>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// The smallest `max_wal_size` of [`CANDIDATES`], in bytes.
const SMALLEST_SIZE: u64 = 64 << 20;
/// Steps between one value of [`CANDIDATES`] and the next, in the search for a smaller value.
const FINER: u64 = 8;

/// Returns sets of settings with smaller values of `max_wal_size` and `checkpoint_timeout` than a set that
/// reaches an aim: in finer steps, down to half of each, and from the smallest size down to two segments.
/// `None` if the set has neither setting.
pub fn finer_candidates(reaching: &[(String, String)], segment_size: SegmentSize) -> Option<Vec<Changes>> {
    let has_finer = |(name, _): &(String, String)| name == "max_wal_size" || name == "checkpoint_timeout";
    if !reaching.iter().any(has_finer) {
        return None;
    }
    let smaller = |name: &str, value: &str| -> Vec<String> {
        let steps = |from: u64, to: u64, unit: u64| -> Vec<u64> {
            let step = |n: u64| (from + (to - from) * n / FINER).div_ceil(unit) * unit;
            let mut steps: Vec<u64> = (0..FINER).map(step).filter(|step| (from..to).contains(step)).collect();
            steps.dedup();
            steps
        };
        match name {
            "max_wal_size" => size_of(value).map_or(Vec::new(), |bytes| {
                let half = if bytes <= SMALLEST_SIZE { 0 } else { bytes / 2 };
                let least = half.max(2 * segment_size.bytes()).min(bytes);
                steps(least, bytes, segment_size.bytes()).into_iter().map(show_size).collect()
            }),
            "checkpoint_timeout" => seconds(value).map_or(Vec::new(), |long| {
                let steps = steps((long / 2).max(30).cast_unsigned(), long.max(30).cast_unsigned(), 60);
                steps.into_iter().map(|seconds| show_seconds(seconds.cast_signed())).collect()
            }),
            _ => Vec::new(),
        }
    };
    let list = |(name, value): &(String, String)| {
        let mut values = smaller(name, value);
        values.push(value.clone());
        (name.clone(), values)
    };
    let lists: Vec<(String, Vec<String>)> = reaching.iter().map(list).collect();
    let lists: Vec<(&str, Vec<String>)> =
        lists.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
    Some(combine(&lists))
}

/// The advice for an aim.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// The aim as parsed.
    pub aim: String,
    /// Whether all limits are met.
    pub reached: bool,
    /// If the aim is not met, the reason why this is the best candidate, as text; otherwise empty.
    pub why: String,
    /// The changes, largest saving first.
    pub steps: Vec<Step>,
    /// Reasons why the trace may be too short for this advice, as text; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A setting to change.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The SQL statement.
    pub statement: String,
    /// This change and all preceding changes, as in [`Predicted::name`].
    pub name: String,
    /// WAL in bytes with these changes.
    pub bytes: u64,
    /// Change relative to the prediction for the trace's own settings: -0.4 is 40 % less.
    pub change: f64,
    /// Maximum recovery time with these changes, in seconds.
    pub recovery_seconds: f64,
    /// Size of `pg_wal` with these changes, in bytes.
    pub pg_wal_bytes: u64,
    /// Processor time for compressing images during the trace, in seconds.
    pub compression_seconds: f64,
    /// Costs and risks, as text; empty if none are known.
    pub risk: String,
}

/// A limit of an aim other than the volume: its value for a prediction, and the maximum.
struct Limit {
    what: &'static str,
    of: fn(&Predicted) -> f64,
    most: f64,
    show: fn(f64) -> String,
}

impl Limit {
    /// Returns how far a prediction exceeds it, as a fraction.
    fn excess(&self, one: &Predicted) -> f64 {
        ((self.of)(one) / self.most.max(1e-9) - 1.0).max(0.0)
    }
}

fn limits(aim: &Aim, seconds: Option<f64>) -> Vec<Limit> {
    let seconds = seconds.unwrap_or(0.0);
    let limit = |what, of, most: Option<f64>, show| most.map(|most| Limit { what, of, most, show });
    let recovery =
        limit("recovery", |one| one.recovery_seconds, aim.max_recovery_seconds, |s| format!("{s:.1} s"));
    let disk = limit("pg_wal", |one| one.pg_wal_bytes as f64, aim.max_disk_bytes, gigabytes);
    let processor = limit(
        "processor time for compression",
        |one| one.compression_seconds,
        aim.max_processor_share.map(|share| share * seconds),
        |s| format!("{s:.1} s"),
    );
    [recovery, disk, processor].into_iter().flatten().collect()
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.1} GB", bytes / (1_u64 << 30) as f64)
}

/// Chooses among the predictions of [`candidates`]. Of those that meet the aim, it chooses the one with the
/// fewest changes and then the shortest recovery, with the smallest values of `max_wal_size` and
/// `checkpoint_timeout`; for a minimizing aim, the one with the least WAL. If none meets the aim, it chooses
/// the one with the least WAL within the other limits, otherwise the one that exceeds these least.
pub fn choose(aim: &Aim, predicted: &[Predicted], trace_bytes: u64, seconds: Option<f64>) -> Advice {
    let most = aim.max_bytes(trace_bytes, seconds);
    let limits = limits(aim, seconds);
    let excess = |one: &Predicted| limits.iter().map(|limit| limit.excess(one)).sum::<f64>();
    let fits = |one: &Predicted| most.is_none_or(|most| one.bytes as f64 <= most);
    let distinct: Vec<&Predicted> = {
        let mut seen = std::collections::HashSet::new();
        predicted.iter().filter(|one| seen.insert(&one.name)).collect()
    };
    let within: Vec<&Predicted> = distinct.iter().copied().filter(|one| excess(one) == 0.0).collect();
    let reaching: Vec<&Predicted> = within.iter().copied().filter(|one| fits(one)).collect();
    let by_effort = |a: &&Predicted, b: &&Predicted| {
        effort(a).cmp(&effort(b)).then(a.recovery_seconds.total_cmp(&b.recovery_seconds))
    };
    let reached = !reaching.is_empty();
    let chosen = if reached && !aim.is_minimum {
        smallest(reaching).into_iter().min_by(by_effort)
    } else if let Some(least) = within.iter().map(|one| one.bytes).min() {
        // Within half a percent of the least WAL, prefer fewer changes.
        within.into_iter().filter(|one| one.bytes <= least + least / 200).min_by(by_effort)
    } else {
        distinct.iter().copied().min_by(|a, b| excess(a).total_cmp(&excess(b)).then(by_effort(a, b)))
    };
    let Some(chosen) = chosen else {
        let why = "nothing was predicted".into();
        return Advice { aim: aim.to_string(), reached: false, why, steps: Vec::new(), warnings: Vec::new() };
    };
    let why = if reached { String::new() } else { why_not(chosen, &limits, trace_bytes) };
    let warnings = too_short(chosen).into_iter().collect();
    Advice { aim: aim.to_string(), reached, why, steps: steps(chosen, &distinct), warnings }
}

/// Keeps one prediction for each list of changed settings and each compression method: the prediction with
/// the smallest sizes and times.
fn smallest(all: Vec<&Predicted>) -> Vec<&Predicted> {
    let amount = |value: &str| size_of(value).or(seconds(value).map(i64::cast_unsigned));
    let split = |one: &Predicted| -> (Vec<(String, String)>, Vec<u64>) {
        let change = |(name, value): &(String, String)| match amount(value) {
            Some(amount) => ((name.clone(), String::new()), amount),
            None => ((name.clone(), value.clone()), 0),
        };
        one.changed.iter().map(change).unzip()
    };
    let mut kept: Vec<(&Predicted, _)> = Vec::new();
    for one in all {
        let (settings, amounts) = split(one);
        match kept.iter_mut().find(|(_, (known, _))| *known == settings) {
            Some((best, (_, least))) if amounts < *least => (*best, *least) = (one, amounts),
            Some(_) => {}
            None => kept.push((one, (settings, amounts))),
        }
    }
    kept.into_iter().map(|(one, _)| one).collect()
}

/// Returns the reason why the chosen prediction does not reach the aim.
fn why_not(chosen: &Predicted, limits: &[Limit], trace_bytes: u64) -> String {
    let exceeded: Vec<String> = limits
        .iter()
        .filter(|limit| limit.excess(chosen) > 0.0)
        .map(|limit| {
            format!(
                "{} {} instead of {}",
                limit.what,
                (limit.show)((limit.of)(chosen)),
                (limit.show)(limit.most)
            )
        })
        .collect();
    if !exceeded.is_empty() {
        return format!(
            "no combination of settings that was tried stays within the limits; this one exceeds them least: {}",
            exceeded.join(", ")
        );
    }
    let percent = 100.0 * (1.0 - chosen.bytes as f64 / trace_bytes.max(1) as f64);
    let than = if percent < 0.0 { "more" } else { "less" };
    let within = if limits.is_empty() { "" } else { " within the other limits" };
    format!(
        "of all settings tried, this writes the least WAL{within}: {:.0} % {than} than the trace",
        percent.abs()
    )
}

/// Warns if the trace has fewer than two checkpoint cycles under the advised settings, because it then shows
/// no complete cycle.
fn too_short(chosen: &Predicted) -> Option<String> {
    let cycles = chosen.checkpoints.total;
    (cycles < 2 && !chosen.changed.is_empty()).then(|| {
        format!(
            "the trace covers {} under these settings: it is too short to show what they write in the long run; repeat this with a \
             trace over two checkpoints and more",
            match cycles {
                0 => "no checkpoint".to_owned(),
                _ => "one checkpoint".to_owned(),
            }
        )
    })
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
        if let Some(bytes) = self.max_disk_bytes {
            parts.push(format!("pg_wal of at most {}", gigabytes(bytes)));
        }
        if let Some(share) = self.max_processor_share {
            parts.push(format!("at most {:.1} % of a core for compression", 100.0 * share));
        }
        if self.keeps_compression {
            parts.push("wal_compression as it is".into());
        }
        f.write_str(&parts.join(", "))
    }
}

/// Returns the weight of the changes: one each, and two for compression, which costs processor time.
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
            pg_wal_bytes: one.pg_wal_bytes,
            compression_seconds: one.compression_seconds,
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
            "backends spend about {:.1} s of processor time on {value} during the trace, for {} full-page images, within the \
             transactions that write them; a server built without it refuses the setting",
            one.compression_seconds, one.compressed_images
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predicted::Causes;

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
        for (text, fraction) in [
            ("cut the WAL by at least 40%", 0.6),
            ("cut the WAL at least 40%", 0.6),
            ("WAL less than 60%", 0.6),
            ("WAL at most 60%", 0.6),
            ("WAL 60% maximum", 0.6),
            ("reduce the WAL to at most 40%", 0.4),
            ("40% less WAL", 0.6),
        ] {
            let aim = Aim::parse(text).unwrap();
            assert_eq!((aim.max_trace_fraction, aim.is_minimum), (Some(fraction), false), "{text}");
        }
        assert_eq!(Aim::parse("recovery in a minute").unwrap().max_recovery_seconds, Some(60.0));
        let day = Aim::parse("WAL under 200GB a day").unwrap().max_bytes_per_second.unwrap();
        assert!((day - 200.0 * (1_u64 << 30) as f64 / 86_400.0).abs() < 1e-3);
        assert_eq!(Aim::parse("5MB/s").unwrap().max_bytes_per_second, Some(5.0 * (1 << 20) as f64));
        assert!(Aim::parse("least WAL, recovery under 30s").unwrap().is_minimum);
        let aim =
            Aim::parse("halve the WAL without compression, pg_wal under 20 GiB and cpu under 2 percent")
                .unwrap();
        assert_eq!((aim.max_trace_fraction, aim.keeps_compression), (Some(0.5), true));
        assert_eq!(aim.max_disk_bytes, Some(20.0 * (1_u64 << 30) as f64));
        assert_eq!(aim.max_processor_share, Some(0.02));
        assert_eq!(Aim::parse("WAL by 40 percent").unwrap(), Aim::parse("WAL by 40%").unwrap());
        assert_eq!(Aim::parse("reduce the WAL by 40 per cent").unwrap().max_trace_fraction, Some(0.6));
        assert_eq!(
            Aim::parse("processor time at most 36 s per hour, no compression").unwrap().max_processor_share,
            Some(0.01)
        );
        assert!(Aim::parse("disk space below 512MB").unwrap().max_disk_bytes.is_some());
        // Each constraint is printed.
        assert_eq!(
            aim.to_string(),
            "WAL at most 50 % of the trace, pg_wal of at most 20.0 GB, at most 2.0 % of a core for compression, \
             wal_compression as it is"
        );
        let refused =
            ["halve the WAL and buy disks", "WAL by 40% on tuesdays", "halve the WAL with compression"];
        for nothing in refused {
            assert!(Aim::parse(nothing).is_err(), "{nothing}");
        }
        for nothing in [
            "reduce the WAL by at most 40%",
            "WAL by up to 40%",
            "",
            "faster please",
            "recovery soon",
            "WAL under 5 bananas a day",
        ] {
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
        assert!(
            !advice.reached && advice.why.contains("recovery 50.0 s instead of 10.0 s"),
            "{}",
            advice.why
        );
    }

    /// Larger values may have the same recovery time, or appear to have a shorter one if the trace is short.
    #[test]
    fn the_smallest_size_that_reaches_the_aim_is_chosen() {
        let all = [
            predicted(&[], 1000, 60.0),
            predicted(&[("max_wal_size", "1GB")], 500, 50.0),
            predicted(&[("max_wal_size", "96MB")], 690, 61.0),
            predicted(&[("max_wal_size", "128MB")], 650, 61.0),
            predicted(&[("checkpoint_timeout", "1h")], 700, 90.0),
        ];
        let advice = choose(&Aim::parse("WAL by 20%").unwrap(), &all, 1000, Some(100.0));
        assert_eq!(advice.steps[0].statement, "ALTER SYSTEM SET max_wal_size = '96MB';");
    }

    #[test]
    fn finer_values_lie_between_those_that_were_tried() {
        let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let finer = |reaching: &[(String, String)], megabytes: u64| {
            let all = finer_candidates(reaching, SegmentSize::new(megabytes << 20).unwrap())?;
            let values =
                |set: &Changes| set.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>().join(" ");
            Some(all.iter().map(values).collect::<Vec<_>>())
        };
        let size = |value| [change("max_wal_size", value)];
        assert_eq!(finer(&size("128MB"), 16).unwrap(), ["", "64MB", "80MB", "96MB", "112MB", "128MB"]);
        assert_eq!(finer(&size("64MB"), 16).unwrap(), ["", "32MB", "48MB", "64MB"]);
        assert_eq!(finer(&size("64MB"), 1).unwrap()[1..4], ["2MB", "10MB", "18MB"]);
        assert_eq!(finer(&size("128MB"), 64).unwrap(), ["", "128MB"]);
        assert_eq!(finer(&size("1GB"), 16).unwrap().len(), 10);
        let timeout = [change("checkpoint_timeout", "15min")];
        assert_eq!(
            finer(&timeout, 16).unwrap(),
            ["", "8min", "9min", "10min", "11min", "12min", "13min", "14min", "15min"]
        );
        let both = [change("wal_compression", "lz4"), change("max_wal_size", "128MB")];
        assert_eq!(finer(&both, 16).unwrap().len(), 12);
        assert_eq!(finer(&[change("wal_compression", "lz4")], 16), None);
    }

    #[test]
    fn each_limit_is_kept_or_named() {
        let with = |one: Predicted, pg_wal_bytes: u64, compression_seconds| Predicted {
            pg_wal_bytes: pg_wal_bytes << 30,
            compression_seconds,
            ..one
        };
        let all = [
            with(predicted(&[], 1000, 60.0), 1, 0.0),
            with(predicted(&[("max_wal_size", "8GB")], 600, 200.0), 8, 0.0),
            with(predicted(&[("wal_compression", "lz4")], 500, 50.0), 1, 3.0),
            with(predicted(&[("wal_compression", "zstd")], 400, 55.0), 1, 9.0),
        ];
        let advise = |text| choose(&Aim::parse(text).unwrap(), &all, 1000, Some(100.0));
        let name = |advice: &Advice| advice.steps.last().map(|step| step.name.clone()).unwrap_or_default();
        assert_eq!(name(&advise("least WAL")), "wal_compression=zstd");
        assert_eq!(name(&advise("least WAL, processor time under 5%")), "wal_compression=lz4");
        assert_eq!(name(&advise("least WAL, processor time under 1%")), "max_wal_size=8GB");
        assert_eq!(name(&advise("WAL by 30%, disk under 2GB, cpu under 4%")), "wal_compression=lz4");
        let advice = advise("WAL by 30%, disk under 2GB, cpu under 1%");
        assert!(!advice.reached && advice.steps.is_empty(), "{advice:?}");
        let advice = advise("WAL by 30%, disk under 512MB");
        assert!(!advice.reached && advice.why.contains("pg_wal 1.0 GB instead of 0.5 GB"), "{}", advice.why);
    }

    #[test]
    fn a_short_trace_is_warned_of() {
        let mut long = predicted(&[("max_wal_size", "8GB")], 100, 1.0);
        long.checkpoints.total = 1;
        let all = [predicted(&[], 1000, 60.0), long];
        let advice = choose(&Aim::parse("halve the WAL").unwrap(), &all, 1000, Some(100.0));
        assert!(advice.warnings[0].contains("one checkpoint"), "{:?}", advice.warnings);
    }

    #[test]
    fn candidates_depend_on_the_version() {
        let size = SegmentSize::DEFAULT;
        let old = candidates(&Aim::default(), Major::V14, size);
        let new = candidates(&Aim::parse("recovery in 5s").unwrap(), Major::V15, size);
        assert_eq!((old.len(), new.len()), (12 * 4 * 2, 12 * 5 * 3));
        let plain = candidates(&Aim::parse("halve the WAL without compression").unwrap(), Major::V15, size);
        assert!(plain.iter().flatten().all(|(name, _)| name != "wal_compression") && plain.len() == 12 * 4);
        // No server starts with fewer than two segments.
        let large = candidates(&Aim::default(), Major::V14, SegmentSize::new(256 << 20).unwrap());
        assert_eq!(large.len(), 9 * 4 * 2);
        assert!(old[0].is_empty() && !old.iter().flatten().any(|(_, value)| value == "lz4"));
    }
}

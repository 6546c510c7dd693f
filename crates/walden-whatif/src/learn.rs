//! Infers the settings under which a trace was taken, and assumes settings that the trace does not show.

use serde::Serialize;
use walden_explain::checkpoints::{
    Cause, Checkpoint, Contradiction, crossed_segments, explain_checkpoints, is_same_timeout, undecided,
    volume_segments,
};
use walden_format::geometry::Geometry;
use walden_format::lsn::Lsn;
use walden_format::payload::xlog::WalLevel;
use walden_recompress::Method;
use walden_source::counted;

use crate::bounds::{self, TIMEOUTS};
use crate::in_force::most_in_force;
use crate::settings::{Settings, show_seconds, show_size};
use crate::simulate::RequestLag;
use crate::survey::{MAX_BARE_PAGES, Survey};

/// The source of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The command line.
    Given,
    /// The server's current settings.
    Server,
    /// Evidence in the trace.
    Learned,
    /// The trace has no evidence of the setting.
    Assumed,
}

/// A setting of the trace.
#[derive(Clone, Debug, Serialize)]
pub struct Traced {
    /// Name of the setting.
    pub name: &'static str,
    /// Value of the setting.
    pub value: String,
    /// The source of the value.
    pub from: Origin,
    /// The evidence, as text.
    pub why: String,
    /// For an assumed value: the smallest and the largest value that the trace allows, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[String; 2]>,
    /// Whether the value is given and the trace shows another value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub contradicted: bool,
    /// The server's current value, if the trace shows another value; the trace's value counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

impl Traced {
    fn new(name: &'static str, value: String, from: Origin, why: String) -> Traced {
        Traced { name, value, from, why, range: None, contradicted: false, server: None }
    }

    /// Returns the server's value and the trace's, if they differ.
    pub fn contradiction(&self) -> Option<Contradiction> {
        let (name, wal) = (self.name, self.value.clone());
        self.server.clone().map(|server| Contradiction { name, server, wal })
    }

    /// Creates an assumed value, with the smallest and the largest one that the trace allows.
    fn between(name: &'static str, value: String, range: [String; 2], why: &str) -> Traced {
        let why = format!("{why}; {} to {} are possible", range[0], range[1]);
        Traced { range: Some(range), ..Traced::new(name, value, Origin::Assumed, why) }
    }
}

/// The settings that a trace was taken under.
#[derive(Clone, Debug)]
pub struct Learned {
    /// The settings.
    pub settings: Settings,
    /// The settings for display, each with its origin.
    pub traced: Vec<Traced>,
    /// The checkpoints of the trace, with their causes.
    pub checkpoints: Vec<Checkpoint>,
    /// The delay with which checkpoints by volume start.
    pub request_lag: RequestLag,
    /// Bytes by which the latest start of a checkpoint by volume exceeds that delay.
    pub late_by: u64,
    /// For each checkpoint requested by volume while another checkpoint was in progress, in order: whether it
    /// was skipped. The server skips a checkpoint if the preceding checkpoint's record is the last in the
    /// WAL, so that no activity followed (`CreateCheckPoint`).
    pub skipped_requests: Vec<bool>,
    /// Microseconds that a requested checkpoint takes, which is not throttled: for writing and, above all,
    /// syncing.
    pub unthrottled_micros: i64,
    /// The ends of the ranges of assumed settings, for the most and the fewest checkpoints. `None` if the
    /// trace shows all settings that trigger checkpoints.
    pub extremes: Option<[Extreme; 2]>,
    /// Redo pointers of checkpoints that the trace's `max_wal_size` or a request may have triggered, and the
    /// trace does not show which, ascending.
    pub undecided: Vec<Lsn>,
}

/// Values of assumed settings; `None` for settings that are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extreme {
    /// `checkpoint_timeout`, in seconds.
    pub checkpoint_timeout: Option<i64>,
    /// `max_wal_size`, in bytes.
    pub max_wal_size: Option<u64>,
    /// Whether the checkpoints in [`Learned::undecided`] were requested.
    pub are_requested: Option<bool>,
}

/// Converts values of `pg_settings` (`300 s`, `64 16MB`) to values for `postgresql.conf`. Omits settings that
/// predictions do not support.
pub fn settings_from_server(reported: &std::collections::BTreeMap<String, String>) -> Vec<(String, String)> {
    let known = crate::settings::ROWS.iter().filter(|row| row.show.is_some());
    let one = |row: &crate::settings::Row| {
        // Since 19, a logical slot raises the effective level.
        let effective = if row.name == "wal_level" { reported.get("effective_wal_level") } else { None };
        let value = effective.or(reported.get(row.name))?;
        let Some((number, unit)) = value.split_once(' ') else {
            return Some((row.name.into(), value.clone()));
        };
        // The unit may include a factor: `64 16MB`.
        let digits = unit.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let factor: u64 = if digits == 0 { 1 } else { unit[..digits].parse().ok()? };
        let number = number.parse::<u64>().ok()?.checked_mul(factor)?;
        Some((row.name.into(), format!("{number}{}", &unit[digits..])))
    };
    known.filter_map(one).collect()
}

/// Infers the settings of the range `window` of a trace. Names and values of a server's settings, `server`,
/// count where the trace has no evidence: the trace may have been written before a setting was changed.
/// Settings in `given` override both. If a setting changes within the range, the value in force for most of
/// its bytes counts.
///
/// # Errors
/// A given setting that is unknown or has an invalid value.
pub fn learn(
    survey: &Survey,
    window: (Lsn, Lsn),
    server: &[(String, String)],
    given: &[(String, String)],
) -> Result<Learned, crate::SettingError> {
    let mut settings = Settings::default_of(survey.version);
    settings.segment_size = survey.segment_size;
    let size = show_size(survey.segment_size.bytes());
    let from_headers = "from the segments' headers".into();
    let mut known = settings.clone();
    let all = || server.iter().chain(given);
    for (name, value) in all() {
        known.set(name, value)?;
    }
    let is_given = |name: &str| all().any(|(one, _)| one.trim().eq_ignore_ascii_case(name));
    let given_hints = GivenHints {
        wal_log_hints: is_given("wal_log_hints").then_some(known.wal_log_hints),
        data_checksums: is_given("data_checksums").then_some(known.data_checksums),
    };
    let mut traced = vec![
        Traced::new("wal_segment_size", size, Origin::Learned, from_headers),
        learn_wal_level(survey, window, &mut settings),
        learn_full_page_writes(survey, window, &mut settings),
        learn_compression(survey, window, &mut settings),
    ];
    traced.extend(learn_hints(survey, window, given_hints, &mut settings));
    let mut undecided = learn_checkpoint_settings(survey, &mut settings, &mut traced);
    traced.push(learn_archive_timeout(survey, &mut settings));
    for (name, value) in server {
        let learned = settings.clone();
        if let crate::Effect::Changed = settings.set(name, value)?
            && !take_given(name, [&learned, &settings], &mut traced, Origin::Server)
        {
            settings = learned;
        }
    }
    for (name, value) in given {
        let learned = settings.clone();
        if let crate::Effect::Changed = settings.set(name, value)? {
            take_given(name, [&learned, &settings], &mut traced, Origin::Given);
        }
    }
    // The segments show their size, whatever value was given.
    settings.segment_size = survey.segment_size;
    let known = Some(settings.checkpoint_settings());
    let checkpoints = explain_checkpoints(&survey.checkpoints, survey.segment_size, known);
    let (request_lag, late_by) = request_lag(&checkpoints, &survey.first_commits, &settings);
    let skipped_requests = skipped_requests(&checkpoints, &settings);
    let unthrottled_micros = shortest_unthrottled_checkpoint(&checkpoints, survey, &settings);
    let extremes = extremes(&traced);
    if extremes.is_none_or(|[least, _]| least.max_wal_size.is_none()) {
        undecided.clear();
    }
    settings.has_undecided_requests = !checkpoints
        .iter()
        .any(|one| one.cause == Cause::Volume && undecided.binary_search(&one.record.redo).is_ok());
    Ok(Learned {
        settings,
        traced,
        checkpoints,
        request_lag,
        late_by,
        skipped_requests,
        unthrottled_micros,
        extremes,
        undecided,
    })
}

/// The ends of the ranges of assumed settings.
fn extremes(traced: &[Traced]) -> Option<[Extreme; 2]> {
    let mut extremes = [Extreme::default(); 2];
    for Traced { name, range, .. } in traced {
        for (extreme, value) in extremes.iter_mut().zip(range.iter().flatten()) {
            match *name {
                "checkpoint_timeout" => extreme.checkpoint_timeout = crate::settings::seconds(value),
                _ => extreme.max_wal_size = crate::settings::size(value),
            }
        }
    }
    for (extreme, are_requested) in extremes.iter_mut().zip([false, true]) {
        extreme.are_requested = extreme.max_wal_size.map(|_| are_requested);
    }
    (extremes[0] != Extreme::default()).then_some(extremes)
}

/// Replaces the inferred value of a setting by its value in `settings`, which was given or is the server's.
/// Returns false, and marks the contradiction, if evidence in the trace shows another value than the
/// server's.
fn take_given(
    name: &str,
    [learned, settings]: [&Settings; 2],
    traced: &mut Vec<Traced>,
    from: Origin,
) -> bool {
    let row = crate::settings::ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name.trim()));
    let Some(row) = row else { return true };
    let why = match from {
        Origin::Server => "the server's current value",
        _ => "on the command line",
    };
    let mut given = Traced::new(row.name, settings.show(row.name).unwrap_or_default(), from, why.into());
    let Some(known) = traced.iter_mut().find(|traced| traced.name == row.name) else {
        traced.push(given);
        return true;
    };
    // A scheduled job may switch segments periodically.
    let is_evident = known.from == Origin::Learned && row.name != "archive_timeout";
    let is_same = match row.name {
        "max_wal_size" => learned.checkpoint_segments() == settings.checkpoint_segments(),
        "checkpoint_timeout" => is_same_timeout(learned.checkpoint_timeout, settings.checkpoint_timeout),
        _ => known.value == given.value,
    };
    if is_evident && !is_same {
        if from == Origin::Server {
            known.server = Some(given.value);
            return false;
        }
        given.why = format!("the trace shows {}: {}", known.value, known.why);
        given.contradicted = true;
    }
    *known = given;
    true
}

fn learn_wal_level(survey: &Survey, window: (Lsn, Lsn), settings: &mut Settings) -> Traced {
    let (within, around) = (&survey.evidence, &survey.outside);
    let logical = within.logical_records + around.logical_records;
    let effective = most_in_force(&within.wal_levels(), window);
    let is_raised = || matches!(most_in_force(&within.wal_level, window), Some((WalLevel::Replica, _)));
    let (level, from, why) = match effective {
        Some((WalLevel::Logical, _)) if !within.logical_decoding.is_empty() && is_raised() => {
            (WalLevel::Logical, Origin::Learned, "replica, which a logical slot raises to logical".into())
        }
        Some((level, share)) => {
            (level, Origin::Learned, format!("logged in records{}", describe_share(share)))
        }
        None if logical > 0 => {
            let why = format!("{} written at this level only", counted(logical, "record"));
            (WalLevel::Logical, Origin::Learned, why)
        }
        None if within.standby_records + around.standby_records > 0 => {
            (WalLevel::Replica, Origin::Learned, "records for standbys and none for logical decoding".into())
        }
        None if snapshots_missing(survey) => {
            (WalLevel::Minimal, Origin::Learned, "checkpoints without a snapshot for standbys".into())
        }
        None => (WalLevel::Replica, Origin::Assumed, "no evidence in the trace".into()),
    };
    settings.wal_level = level;
    Traced::new("wal_level", level.to_string(), from, why)
}

/// Whether the trace has an online checkpoint. Above `minimal`, each online checkpoint logs a snapshot of
/// running transactions (`LogStandbySnapshot`); the caller has found no snapshot.
fn snapshots_missing(survey: &Survey) -> bool {
    let start = survey.span.map_or(Lsn(u64::MAX), |span| span.0);
    survey.checkpoints.iter().any(|one| !one.shutdown && one.is_finished && one.redo >= start)
}

fn learn_full_page_writes(survey: &Survey, window: (Lsn, Lsn), settings: &mut Settings) -> Traced {
    let (within, around) = (&survey.evidence, &survey.outside);
    let (on, from, why) = match most_in_force(&within.full_page_writes, window) {
        Some((on, share)) => (on, Origin::Learned, format!("logged by checkpoints{}", describe_share(share))),
        None if within.checkpoint_images + around.checkpoint_images > 0 => {
            (true, Origin::Learned, "the trace has full-page images".into())
        }
        None if survey.bare_pages.is_some_and(|pages| pages >= MAX_BARE_PAGES) => (
            false,
            Origin::Learned,
            format!("{MAX_BARE_PAGES} pages and more changed without a full-page image, and none with one"),
        ),
        None => (true, Origin::Assumed, "no checkpoint and no full-page image in the trace".into()),
    };
    settings.full_page_writes = on;
    Traced::new("full_page_writes", settings.show("full_page_writes").unwrap_or_default(), from, why)
}

/// Images within the window take precedence over those around it.
fn learn_compression(survey: &Survey, window: (Lsn, Lsn), settings: &mut Settings) -> Traced {
    let shown = &survey.evidence.compression;
    let is_within = |(lsn, _): &&(Lsn, _)| (window.0..window.1).contains(lsn);
    let own: Vec<(Lsn, Option<Method>)> = shown.iter().filter(is_within).copied().collect();
    let most = most_in_force(if own.is_empty() { shown } else { &own }, window);
    settings.wal_compression = most.and_then(|(method, _)| method);
    let images: u64 = survey.evidence.images.iter().chain(&survey.outside.images).sum();
    let (from, why) = match most {
        Some((Some(_), share)) => {
            (Origin::Learned, format!("images compressed by it{}", describe_share(share)))
        }
        Some((None, share)) => {
            let why =
                format!("images that compression would shrink are not compressed{}", describe_share(share));
            (Origin::Learned, why)
        }
        None if images == 0 => (Origin::Assumed, "no full-page image in the trace".into()),
        None => {
            let images = counted(images, "full-page image");
            (Origin::Assumed, format!("{images} in the trace, and compression would shrink none"))
        }
    };
    Traced::new("wal_compression", settings.show("wal_compression").unwrap_or_default(), from, why)
}

/// Describes a fraction of the bytes; empty if the fraction is 1.
fn describe_share(share: f64) -> String {
    if share >= 1.0 { String::new() } else { format!(", for {:.1} % of the bytes", 100.0 * share) }
}

/// The given values of the two settings that cause hint bits to be logged.
#[derive(Clone, Copy, Default)]
struct GivenHints {
    wal_log_hints: Option<bool>,
    data_checksums: Option<bool>,
}

/// The records about `wal_log_hints`. No record contains the state of data checksums.
#[derive(Clone, Copy, Default)]
struct LoggedHints {
    wal_log_hints: Option<bool>,
    /// The last record logged the value off, and images for hint bits followed it.
    is_off_before_images: bool,
}

fn learn_hints(
    survey: &Survey,
    window: (Lsn, Lsn),
    given: GivenHints,
    settings: &mut Settings,
) -> [Traced; 2] {
    let records = survey.evidence.hint_records + survey.outside.hint_records;
    let last_image = survey.evidence.last_hint_record.max(survey.outside.last_hint_record);
    let shown = &survey.evidence.wal_log_hints;
    let before_image = shown.iter().filter(|(lsn, _)| *lsn < last_image).max_by_key(|(lsn, _)| *lsn);
    let value = |of| most_in_force(of, window).map(|(on, _)| on);
    let logged = LoggedHints {
        wal_log_hints: value(shown),
        is_off_before_images: before_image.is_some_and(|(_, on)| !on),
    };
    infer_hints(records, logged, given, settings)
}

/// Infers `wal_log_hints` and data checksums. An image for hint bits shows that at least one of the two
/// settings is on, but not which: if one is known to be off, the other is on.
fn infer_hints(records: u64, logged: LoggedHints, given: GivenHints, settings: &mut Settings) -> [Traced; 2] {
    let images = format!("{records} full-page images for hint bits");
    let are_hints_off = given.wal_log_hints.map_or(logged.is_off_before_images, |on| !on);
    let are_of_checksums = given.data_checksums.unwrap_or(are_hints_off);
    let (hints, hints_from, hints_why) = match (records, logged.wal_log_hints) {
        (_, Some(true)) => (true, Origin::Learned, "logged in a record".to_owned()),
        (0, _) => (false, Origin::Assumed, "no full-page image for hint bits in the trace".into()),
        _ if are_of_checksums => {
            (false, Origin::Assumed, format!("{images}, which data checksums log as well"))
        }
        _ => (true, Origin::Learned, format!("{images}, or data checksums are on")),
    };
    let is_other_off = are_hints_off && given.data_checksums.is_none();
    let (checksums, checksums_from, checksums_why) = match records {
        1.. if is_other_off => (true, Origin::Learned, format!("{images}, without wal_log_hints")),
        _ => (false, Origin::Assumed, "no evidence in the trace".to_owned()),
    };
    (settings.wal_log_hints, settings.data_checksums) = (hints, checksums);
    let traced = |name, from, why| Traced::new(name, settings.show(name).unwrap_or_default(), from, why);
    [traced("wal_log_hints", hints_from, hints_why), traced("data_checksums", checksums_from, checksums_why)]
}

/// Infers the settings that trigger checkpoints. Returns the redo pointers of checkpoints that volume or a
/// request may have triggered, ascending.
fn learn_checkpoint_settings(survey: &Survey, settings: &mut Settings, traced: &mut Vec<Traced>) -> Vec<Lsn> {
    let checkpoints = explain_checkpoints(&survey.checkpoints, survey.segment_size, None);
    let undecided = undecided(&checkpoints, survey.segment_size);
    traced.push(learn_timeout(survey, &checkpoints, settings));
    traced.push(learn_max_wal_size(survey, &checkpoints, &undecided, settings));
    traced.push(learn_completion_target(survey, &checkpoints, settings));
    let mut redo_pointers: Vec<Lsn> = undecided.iter().map(|one| one.record.redo).collect();
    redo_pointers.sort_unstable();
    redo_pointers
}

/// Infers `checkpoint_timeout` from the intervals of timed checkpoints; if they differ, the interval with the
/// most bytes counts. Without a timed checkpoint, the trace shows only a lower bound.
fn learn_timeout(survey: &Survey, checkpoints: &[Checkpoint], settings: &mut Settings) -> Traced {
    const NAME: &str = "checkpoint_timeout";
    let timed = checkpoints.windows(2).filter_map(|pair| {
        let [before, one] = pair else { return None };
        let interval = one.interval.filter(|_| one.cause == Cause::Time)?;
        Some((interval, one.distance.unwrap_or(0), bounds::shows_timeout(survey, before, one)))
    });
    let timed: Vec<(i64, u64, bool)> = timed.collect();
    let exact: Vec<(i64, u64)> = timed.iter().filter(|one| one.2).map(|one| (one.0, one.1)).collect();
    let intervals = match exact.is_empty() {
        false => group_intervals(exact),
        // The other intervals are not shorter than the timeout.
        true => group_intervals(timed.iter().map(|one| (one.0, 0)).collect()),
    };
    let shortest = bounds::shortest_timeout(survey, checkpoints, settings);
    if let Some(most) = intervals.iter().rev().max_by_key(|one| one.bytes) {
        let timeout = round_to_usual_timeout(most.seconds);
        let others: u64 = intervals.iter().map(|one| one.count).sum::<u64>() - most.count;
        // A busy checkpointer is late, but not by that much: these checkpoints were requested at regular
        // times.
        let is_contradicted = intervals.len() == 1 && shortest > timeout + timeout / 5 + 5;
        if !is_contradicted {
            settings.checkpoint_timeout = timeout;
            let mut why = format!("interval of {}", counted(most.count, "checkpoint"));
            if others > 0 {
                why += &format!("; {} with fewer bytes have others", counted(others, "checkpoint"));
            }
            return Traced::new(NAME, show_seconds(timeout), Origin::Learned, why);
        }
    }
    let usual = [300, 900, 1800, 3600, 86_400].into_iter().find(|usual| *usual >= shortest);
    settings.checkpoint_timeout = usual.unwrap_or(86_400);
    let why = "no checkpoint in the trace was triggered by time";
    let value = show_seconds(settings.checkpoint_timeout);
    let range = [shortest, TIMEOUTS.1].map(show_seconds);
    Traced::between(NAME, value, range, why)
}

/// Intervals of timed checkpoints that show the same timeout.
struct Intervals {
    /// The shortest interval.
    seconds: i64,
    count: u64,
    /// WAL between these checkpoints.
    bytes: u64,
}

/// Groups intervals that differ by no more than a timer's delay.
fn group_intervals(mut intervals: Vec<(i64, u64)>) -> Vec<Intervals> {
    intervals.sort_unstable();
    let mut groups: Vec<Intervals> = Vec::new();
    for (seconds, bytes) in intervals {
        match groups.last_mut().filter(|group| seconds <= group.seconds + 2 + group.seconds / 50) {
            Some(group) => (group.count, group.bytes) = (group.count + 1, group.bytes + bytes),
            None => groups.push(Intervals { seconds, count: 1, bytes }),
        }
    }
    groups
}

/// Infers `max_wal_size` from the distances of checkpoints by volume ([`volume_segments`]). Without such a
/// checkpoint, the trace shows only the number of segments that were filled without a checkpoint by volume.
/// `undecided` checkpoints may have been triggered by volume or requested.
fn learn_max_wal_size(
    survey: &Survey,
    checkpoints: &[Checkpoint],
    undecided: &[Checkpoint],
    settings: &mut Settings,
) -> Traced {
    const NAME: &str = "max_wal_size";
    let size = survey.segment_size;
    let target = settings.completion_target_milli;
    let least_of = |segments: u64| (segments * (1000 + target)).div_ceil(1000).max(2) * size.bytes();
    if let Some((segments, count)) = volume_segments(checkpoints, size) {
        settings.max_wal_size = settings.checkpoint_settings().roundest_max_wal_size(segments, size);
        let why = format!(
            "{} started {} after the one before",
            counted(count, "checkpoint"),
            counted(segments, "segment")
        );
        if !undecided.is_empty() {
            let range = [least_of(segments), MAX_MAX_WAL_SIZE].map(show_size);
            let why = format!("{why}, by volume or on request");
            return Traced::between(NAME, show_size(settings.max_wal_size), range, &why);
        }
        return Traced::new(NAME, show_size(settings.max_wal_size), Origin::Learned, why);
    }
    let longest = bounds::longest_distance(survey, checkpoints, settings);
    // A checkpoint by volume after this distance may be among those that count as requested.
    let crossed = |one: &Checkpoint| one.distance.map(|distance| crossed_segments(one, distance, size));
    let is_undecided = undecided.iter().any(|one| crossed(one) == Some(longest));
    let least = least_of(if is_undecided { longest } else { longest + 1 });
    let roundest = settings.checkpoint_settings().roundest_max_wal_size(longest + 1, size);
    settings.max_wal_size = settings.max_wal_size.max(roundest);
    let why = match is_undecided {
        true => "a checkpoint may have been triggered by volume or requested",
        false => "no checkpoint in the trace was triggered by volume",
    };
    let range = [least, MAX_MAX_WAL_SIZE].map(show_size);
    Traced::between(NAME, show_size(settings.max_wal_size), range, why)
}

/// Larger than any `max_wal_size` in use: 64 TB.
const MAX_MAX_WAL_SIZE: u64 = 1 << 46;

/// Checks the default of `checkpoint_completion_target` against the duration of timed checkpoints: a longer
/// duration shows a larger value. A shorter one shows nothing, because the checkpoint may have had few pages
/// to write.
fn learn_completion_target(survey: &Survey, checkpoints: &[Checkpoint], settings: &mut Settings) -> Traced {
    const NAME: &str = "checkpoint_completion_target";
    let timeout = settings.checkpoint_timeout * 1_000_000;
    let share = |one: &Checkpoint| {
        let took = survey.time_at(one.record.lsn)?.saturating_sub((one.record.time + 1) * 1_000_000);
        // If it took longer than the timeout, the disk was too slow.
        (0..=timeout).contains(&took).then(|| took.saturating_mul(1000) / timeout)
    };
    let timed = checkpoints.iter().filter(|one| one.cause == Cause::Time && one.record.is_finished);
    let longest = timed.filter_map(share).max().unwrap_or(0).cast_unsigned();
    // The last writes and the sync add to the target.
    const SYNC: u64 = 50;
    let mut why = "no evidence in the trace".to_owned();
    if longest > settings.completion_target_milli + SYNC {
        settings.completion_target_milli = (longest.div_ceil(50) * 50).min(1000);
        why = format!("a checkpoint took {:.0} % of checkpoint_timeout", longest as f64 / 10.0);
    }
    Traced::new(NAME, settings.show(NAME).unwrap_or_default(), Origin::Assumed, why)
}

/// The minimum number of timed switches from which `archive_timeout` is inferred.
const MIN_SWITCHES: usize = 3;

/// Infers `archive_timeout` from segments that were switched after equal times. Manual switches are not that
/// regular, and switches for base backups are not in [`Survey::switches`].
fn learn_archive_timeout(survey: &Survey, settings: &mut Settings) -> Traced {
    let size = survey.segment_size;
    // A filled segment restarts the clock, so only adjacent segments are the timeout apart.
    let neighbours =
        survey.switches.windows(2).filter(|pair| size.segment_of(pair[1]) == size.segment_of(pair[0]) + 1);
    let seconds: Vec<f64> = neighbours
        .filter_map(|pair| Some((survey.time_at(pair[1])? - survey.time_at(pair[0])?) as f64 / 1e6))
        .collect();
    let since_start = seconds_since_start(survey);
    // A segment that stayed open for longer contradicts the timeout: a scheduled job switched the other
    // segments.
    let longest_open = longest_open(survey);
    let mean = |seconds: &[f64]| mean_of_equal(seconds).filter(|mean| longest_open <= 1.1 * mean + 2.0);
    let (mean, why) = match (mean(&seconds), mean(&since_start)) {
        (Some(mean), _) => {
            (mean, format!("{} segments in a row were switched, {mean:.1} s apart", seconds.len()))
        }
        (None, Some(mean)) => {
            (mean, format!("{} segments were switched {mean:.1} s after their start", since_start.len()))
        }
        (None, None) => {
            let value = settings.show("archive_timeout").unwrap_or_default();
            let why =
                "fewer than three segments were switched before they were full, or not after equal times";
            return Traced::new("archive_timeout", value, Origin::Assumed, why.into());
        }
    };
    settings.archive_timeout = round_to_usual_archive_timeout(mean);
    Traced::new("archive_timeout", show_seconds(settings.archive_timeout), Origin::Learned, why)
}

/// Returns the longest time, in seconds, between two transaction ends in one segment.
fn longest_open(survey: &Survey) -> f64 {
    let size = survey.segment_size;
    let open = |of_segment: &[(Lsn, i64)]| match of_segment {
        // The last entry belongs to the first transaction end after its position, which may be in the next
        // segment.
        [(_, first), .., (_, last), _] => (last - first) as f64 / 1e6,
        _ => 0.0,
    };
    let segments =
        survey.times.chunk_by(|(one, _), (next, _)| size.segment_of(*one) == size.segment_of(*next));
    segments.map(open).fold(0.0, f64::max)
}

/// Returns, for each switch, the seconds since the preceding segment was filled or switched, from which the
/// server counts (`GetLastSegSwitchData`).
fn seconds_since_start(survey: &Survey) -> Vec<f64> {
    let size = survey.segment_size;
    let since_start = |switch: &Lsn| {
        let start = Lsn(switch.0 - size.offset_of(*switch));
        Some((survey.time_at(*switch)? - survey.time_at(start)?) as f64 / 1e6)
    };
    survey.switches.iter().filter_map(since_start).collect()
}

/// Returns the mean of times that differ no more than the intervals of a timer; `None` if they differ more,
/// or are too few.
fn mean_of_equal(seconds: &[f64]) -> Option<f64> {
    let [least, most] = [f64::min, f64::max].map(|of| seconds.iter().copied().reduce(of).unwrap_or(0.0));
    // Allow a second for the checkpointer, which uses whole seconds of the clock (`CheckArchiveTimeout`).
    let is_equal = least >= 0.5 && most <= 1.1 * least + 1.0;
    (seconds.len() >= MIN_SWITCHES && is_equal).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
}

/// Rounds a mean interval, which is measured by transaction ends, to a commonly set value.
fn round_to_usual_archive_timeout(mean: f64) -> i64 {
    const USUAL: [i64; 14] = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600];
    let near = USUAL.into_iter().find(|usual| (mean / *usual as f64 - 1.0).abs() < 0.15);
    near.unwrap_or(mean.round() as i64).max(1)
}

/// Rounds an interval to a commonly set value, because timers fire slightly late.
fn round_to_usual_timeout(interval: i64) -> i64 {
    const USUAL: [i64; 11] = [30, 60, 120, 180, 300, 600, 900, 1200, 1800, 2700, 3600];
    let near = USUAL.into_iter().find(|usual| (usual - 1..=usual + 2).contains(&interval));
    near.unwrap_or(interval).clamp(30, 86_400)
}

/// Bytes after the end of a segment at which it is on disk without a commit, if the trace does not show it.
/// WAL buffers are 4 MB by default, and at most rates the WAL writer is earlier.
const WRITTEN_AFTER: u64 = 1 << 20;

/// Infers the delay of checkpoints by volume from the medians in the trace: of bytes after the first commit,
/// and, for checkpoints that started before that, of bytes after the end of the segment. Also returns by how
/// much the latest start exceeds that delay. Checkpoints that had to wait for the preceding one are excluded.
fn request_lag(checkpoints: &[Checkpoint], first_commits: &[Lsn], settings: &Settings) -> (RequestLag, u64) {
    let size = settings.segment_size;
    let geometry = Geometry::with_default_pages(size);
    let farthest = (size.bytes() / 4).max(2 * WRITTEN_AFTER);
    let (mut after_commit, mut after_end, mut longest) = (Vec::new(), Vec::new(), WRITTEN_AFTER);
    let mut all = Vec::new();
    for pair in checkpoints.windows(2) {
        let [before, one] = pair else { continue };
        let redo = one.record.redo;
        let due = size.start_of(size.segment_of(before.record.redo) + settings.checkpoint_segments());
        let late = redo.0.checked_sub(due.0).filter(|late| *late < farthest);
        let Some(late) = late.filter(|_| one.cause == Cause::Volume && before.record.lsn < due) else {
            continue;
        };
        all.push(late);
        let from = first_commits.partition_point(|commit| *commit <= due);
        match first_commits.get(from).filter(|commit| **commit <= redo) {
            Some(commit) => {
                let [commit, begin] = [*commit, redo].map(|lsn| geometry.usable_position(lsn));
                after_commit.push(begin.saturating_sub(commit));
                longest = longest.max(late);
            }
            None => after_end.push(late),
        }
    }
    let lag = RequestLag {
        after_commit: median(&mut after_commit).unwrap_or(0),
        at_most: median(&mut after_end).unwrap_or(longest),
    };
    let usual = median(&mut all).unwrap_or(0);
    (lag, all.last().map_or(0, |latest| latest - usual))
}

fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Returns the shortest time, in microseconds, from a requested checkpoint's redo pointer to its record,
/// measured by the transaction ends between them.
fn shortest_unthrottled_checkpoint(checkpoints: &[Checkpoint], survey: &Survey, settings: &Settings) -> i64 {
    // A base backup may request a throttled checkpoint.
    let target = settings.completion_target_milli as i64;
    let longest = settings.checkpoint_timeout * target * 1000 / 2;
    let farthest = settings.checkpoint_segments() * settings.segment_size.bytes() / 2;
    let took = |one: &Checkpoint| {
        let within = |(lsn, _): &&(Lsn, i64)| *lsn > one.record.redo && *lsn <= one.record.lsn;
        let mut within = survey.times.iter().filter(within).map(|(_, micros)| *micros);
        let first = within.next()?;
        let took = within.next_back().unwrap_or(first) - first;
        (took < longest && one.record.lsn.bytes_since(one.record.redo) < farthest).then_some(took)
    };
    checkpoints.iter().filter(|one| one.cause == Cause::Requested).filter_map(took).min().unwrap_or(0)
}

/// Returns, for each checkpoint that was requested while another checkpoint was in progress, whether it was
/// skipped.
fn skipped_requests(checkpoints: &[Checkpoint], settings: &Settings) -> Vec<bool> {
    let size = settings.segment_size;
    let outcome = |pair: &[Checkpoint]| {
        let [one, next] = pair else { return None };
        let volume = one.cause == Cause::Volume && next.cause == Cause::Volume;
        let asked = size.segment_of(one.record.redo) + settings.checkpoint_segments();
        let done = size.segment_of(one.record.lsn);
        (volume && done >= asked).then(|| size.segment_of(next.record.redo) > done)
    };
    checkpoints.windows(2).filter_map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use walden_format::lsn::SegmentSize;
    use walden_format::version::Major;

    use super::*;

    /// For each case: the inferred and given values of both settings, whether hint bits were logged, and the
    /// contradictions.
    #[test]
    fn images_for_hint_bits_are_of_wal_log_hints_or_checksums() {
        let learn_all = |records, logged, wal_log_hints, data_checksums| {
            let mut settings = Settings::default_of(Major::V18);
            let given = GivenHints { wal_log_hints, data_checksums };
            let mut traced = infer_hints(records, logged, given, &mut settings).to_vec();
            for (name, on) in [("wal_log_hints", wal_log_hints), ("data_checksums", data_checksums)] {
                let Some(on) = on else { continue };
                let learned = settings.clone();
                settings.set(name, if on { "on" } else { "off" }).unwrap();
                take_given(name, [&learned, &settings], &mut traced, Origin::Given);
            }
            let contradicted: Vec<&str> =
                traced.iter().filter(|one| one.contradicted).map(|one| one.name).collect();
            (settings.wal_log_hints, settings.data_checksums, contradicted)
        };
        let learn = |records, wal_log_hints, given_hints, given_checksums| {
            learn_all(
                records,
                LoggedHints {
                    wal_log_hints,
                    is_off_before_images: records > 0 && wal_log_hints == Some(false),
                },
                given_hints,
                given_checksums,
            )
        };
        let (on, off) = (Some(true), Some(false));
        assert_eq!(learn(0, None, None, None), (false, false, vec![]));
        assert_eq!(learn(9, None, None, None), (true, false, vec![]));
        assert_eq!(learn(9, off, None, None), (false, true, vec![]));
        // Logged at the server's last start, after the images: they may be from before that.
        let later = LoggedHints { wal_log_hints: off, is_off_before_images: false };
        assert_eq!(learn_all(9, later, None, None), (true, false, vec![]));
        assert_eq!(learn(0, on, None, None), (true, false, vec![]));
        // The settings that a server with checksums reports, and each setting alone.
        assert_eq!(learn(9, None, off, on), (false, true, vec![]));
        assert_eq!(learn(9, off, off, on), (false, true, vec![]));
        assert_eq!(learn(9, None, None, on), (false, true, vec![]));
        assert_eq!(learn(9, None, off, None), (false, true, vec![]));
        assert_eq!(learn(9, None, None, off), (true, false, vec![]));
        assert_eq!(learn(9, None, on, off), (true, false, vec![]));
        assert_eq!(learn(9, None, off, off), (false, false, vec!["wal_log_hints"]));
        assert_eq!(learn(0, on, off, None), (false, false, vec!["wal_log_hints"]));
    }

    #[test]
    fn a_server_reports_checksums() {
        let reported = |state: &str| {
            let all = [("wal_log_hints", "off"), ("data_checksums", state)];
            settings_from_server(&all.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
        };
        let of = |checksums: &str| {
            [("wal_log_hints", "off"), ("data_checksums", checksums)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        assert_eq!(reported("on"), of("on"));
        assert_eq!(reported("off"), of("off"));
    }

    #[test]
    fn a_server_reports_the_level_of_what_it_logs() {
        let reported = |all: &[(&str, &str)]| {
            let all = all.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            settings_from_server(&all.collect())
        };
        let of = |level: &str| [("wal_level".to_owned(), level.to_owned())];
        assert_eq!(reported(&[("wal_level", "replica")]), of("replica"));
        assert_eq!(reported(&[("wal_level", "replica"), ("effective_wal_level", "logical")]), of("logical"));
    }

    #[test]
    fn switches_do_not_contradict_a_given_archive_timeout() {
        let mut settings = Settings::default_of(Major::V15);
        let learned =
            |name, value: &str| vec![Traced::new(name, value.into(), Origin::Learned, "seen".into())];
        for (name, value, is_contradicted) in
            [("archive_timeout", "0", false), ("wal_compression", "off", true)]
        {
            let mut traced = learned(name, "another");
            let before = settings.clone();
            settings.set(name, value).unwrap();
            take_given(name, [&before, &settings], &mut traced, Origin::Given);
            assert_eq!((traced[0].from, traced[0].contradicted), (Origin::Given, is_contradicted), "{name}");
        }
    }

    /// Segments of 1 MB, and a checkpoint after every 21 of them, as if only the WAL writer flushed the WAL.
    #[test]
    fn checkpoints_of_small_segments_begin_more_than_a_segment_late() {
        let mut settings = Settings::default_of(Major::V15);
        for (name, value) in [("wal_segment_size", "1MB"), ("max_wal_size", "40MB")] {
            settings.set(name, value).unwrap();
        }
        assert_eq!(settings.checkpoint_segments(), 21);
        let checkpoint = |redo: u64, took: u64, cause| {
            let record = walden_explain::checkpoints::CheckpointRecord {
                begin: walden_explain::checkpoints::Begin::Unmarked,
                lsn: Lsn(redo + took),
                redo: Lsn(redo),
                time: 0,
                shutdown: false,
                is_finished: true,
            };
            Checkpoint { record, distance: None, interval: None, cause }
        };
        let begun_at = |late: [u64; 4], took| {
            let first = checkpoint(100 << 20, took, Cause::Requested);
            let mut all = vec![first];
            for late in late {
                let before = all.last().map_or(0, |last| last.record.redo.0);
                all.push(checkpoint((((before >> 20) + 21) << 20) + late, took, Cause::Volume));
            }
            all
        };
        let commits: Vec<Lsn> = (100..250).map(|segment| Lsn((segment << 20) + 1000)).collect();
        let late = [900_000, 1_048_576 + 100_000, 500_000, 1_000_000];
        let (lag, late_by) = request_lag(&begun_at(late, 10 << 20), &commits, &settings);
        // Everything except page headers.
        assert!((985_000..1_000_000).contains(&lag.after_commit), "{lag:?}");
        assert_eq!((lag.at_most, late_by), (1_148_576, 148_576));
        // Each checkpoint had to wait for the preceding one: the delay is unknown.
        let (lag, late_by) = request_lag(&begun_at(late, 22 << 20), &commits, &settings);
        assert_eq!((lag.after_commit, lag.at_most, late_by), (0, WRITTEN_AFTER, 0));
    }

    #[test]
    fn intervals_of_one_timeout_are_grouped() {
        let groups = group_intervals(vec![(301, 10), (60, 5), (300, 10), (61, 4), (1802, 50), (1800, 40)]);
        let groups: Vec<_> = groups.iter().map(|one| (one.seconds, one.count, one.bytes)).collect();
        assert_eq!(groups, [(60, 2, 9), (300, 2, 20), (1800, 2, 90)]);
    }

    #[test]
    fn equal_times_are_of_archive_timeout() {
        assert_eq!(mean_of_equal(&[20.0, 20.4, 19.6]), Some(20.0));
        assert_eq!(mean_of_equal(&[20.0, 20.0]), None, "too few");
        assert_eq!(mean_of_equal(&[20.0, 5.0, 61.0]), None, "an administrator's");
        assert_eq!(mean_of_equal(&[20.0, 106.0, 108.0, 175.0]), None, "with those of base backups");
        assert_eq!(mean_of_equal(&[0.0, 0.0, 0.0]), None, "in a script");
        assert_eq!(mean_of_equal(&[]), None);
    }

    #[test]
    fn checkpoint_distances_are_rounded_to_common_settings() {
        for megabytes in [48_u64, 128, 512, 1024, 2048, 4096, 16384] {
            let mut settings = Settings::default_of(Major::V15);
            settings.max_wal_size = megabytes << 20;
            let segments = settings.checkpoint_segments();
            let known = settings.checkpoint_settings();
            settings.max_wal_size = known.roundest_max_wal_size(segments, settings.segment_size);
            assert_eq!(settings.checkpoint_segments(), segments, "{megabytes} MB");
        }
        let default = Settings::default_of(Major::V15).checkpoint_settings();
        assert_eq!(default.roundest_max_wal_size(33, SegmentSize::DEFAULT), 1 << 30);
        assert_eq!(round_to_usual_timeout(301), 300);
        assert_eq!([4.8, 5.6, 61.5, 43.0, 0.2].map(round_to_usual_archive_timeout), [5, 5, 60, 43, 1]);
    }
}

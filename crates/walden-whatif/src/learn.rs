//! The settings that a trace was taken under, as far as it betrays them, and what is assumed where it does not.

use serde::Serialize;
use walden_explain::checkpoints::{Cause, Checkpoint, CheckpointSettings, explain_checkpoints};
use walden_format::lsn::Lsn;
use walden_format::payload::xlog::WalLevel;
use walden_redo::recompress::Method;

use crate::settings::{Settings, show_seconds, show_size};
use crate::survey::Survey;

/// Where a setting's value is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// A flag or the server said so.
    Told,
    /// The trace shows it.
    Learned,
    /// Nothing shows it.
    Assumed,
}

/// A setting of the trace.
#[derive(Clone, Debug, Serialize)]
pub struct Traced {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Where that is from.
    pub from: From,
    /// What shows it, in words.
    pub why: String,
}

/// What a trace was taken under.
#[derive(Clone, Debug)]
pub struct Learned {
    /// The settings.
    pub settings: Settings,
    /// How each is known.
    pub traced: Vec<Traced>,
    /// Its checkpoints, with why each came.
    pub checkpoints: Vec<Checkpoint>,
    /// Bytes from where a segment was full to where the checkpoint that this asked for began: the checkpointer has to wake
    /// up first.
    pub lag: u64,
    /// Of checkpoints for volume that were asked for while another one was made, in order: this one never came. When the one
    /// before is done, and its own record is the last one in the log, the server finds that nothing has happened since.
    pub skips: Vec<bool>,
    /// Microseconds that a checkpoint takes that need not wait for its schedule, as one that somebody asked for: writing and
    /// above all syncing.
    pub hurry: i64,
}

/// The settings that a server told, as `pg_settings` has them (`300 s`, `64 16MB`), in the words of `postgresql.conf`.
pub fn told_by_server(told: &std::collections::BTreeMap<String, String>) -> Vec<(String, String)> {
    let known = crate::settings::ROWS.iter().filter(|row| row.show.is_some() && row.name != "data_checksums");
    let one = |row: &crate::settings::Row| {
        let value = told.get(row.name)?;
        let Some((number, unit)) = value.split_once(' ') else {
            return Some((row.name.into(), value.clone()));
        };
        // The unit may have a number of its own: `64 16MB`.
        let digits = unit.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let factor: u64 = if digits == 0 { 1 } else { unit[..digits].parse().ok()? };
        let number = number.parse::<u64>().ok()?.checked_mul(factor)?;
        Some((row.name.into(), format!("{number}{}", &unit[digits..])))
    };
    let mut all: Vec<(String, String)> = known.filter_map(one).collect();
    // Checksums log hints whatever the other setting is.
    if told.get("data_checksums").is_some_and(|on| on == "on") {
        all.push(("data_checksums".into(), "on".into()));
    }
    all
}

/// Learns the settings; `told` are names and values that are known otherwise.
pub fn learn(
    survey: &Survey,
    window: Lsn,
    told: &[(String, String)],
) -> Result<Learned, crate::SettingError> {
    let mut settings = Settings::default_of(survey.version);
    let mut traced = Vec::new();
    let mut note = |name, value: String, from, why: String| traced.push(Traced { name, value, from, why });
    settings.segment_size = survey.segment_size;
    note(
        "wal_segment_size",
        show_size(survey.segment_size.bytes()),
        From::Learned,
        "the segments have it".into(),
    );
    let seen = &survey.seen;

    // A setting at a position is what the last record before it or the first one after it says.
    let level = at(&seen.wal_level, window);
    let (level, from, why) = match level {
        Some(level) => (level, From::Learned, "records say it".into()),
        None if seen.logical > 0 => {
            (WalLevel::Logical, From::Learned, format!("{} records that only it writes", seen.logical))
        }
        None if seen.standby > 0 => {
            (WalLevel::Replica, From::Learned, "records for standbys, none for logical decoding".into())
        }
        None => (WalLevel::Replica, From::Assumed, "no record shows it".into()),
    };
    settings.wal_level = level;
    note("wal_level", level.to_string(), from, why);

    let (on, from, why) = match at(&seen.full_page_writes, window) {
        Some(on) => (on, From::Learned, "checkpoints say it".to_string()),
        None if seen.checkpoint_images > 0 => (true, From::Learned, "there are images".into()),
        None => (true, From::Assumed, "no checkpoint and no image shows it".into()),
    };
    settings.full_page_writes = on;
    note("full_page_writes", settings.show("full_page_writes").unwrap_or_default(), from, why);

    let [plain, pglz, lz4, zstd] = seen.images;
    let most = [(pglz, Method::Pglz), (lz4, Method::Lz4), (zstd, Method::Zstd)];
    let most = most.into_iter().max_by_key(|(count, _)| *count).filter(|(count, _)| *count > 0);
    settings.wal_compression = most.map(|(_, method)| method);
    let (from, why) = match (most, plain) {
        (Some((count, _)), _) => {
            (From::Learned, format!("{count} of {} images are compressed", plain + pglz + lz4 + zstd))
        }
        (None, 0) => (From::Assumed, "there is no image".into()),
        (None, _) => (From::Learned, format!("none of {plain} images is compressed")),
    };
    note("wal_compression", settings.show("wal_compression").unwrap_or_default(), from, why);

    let (hints, from, why) = match (seen.hints, seen.wal_log_hints) {
        (1.., _) => (true, From::Learned, format!("{} images for hints", seen.hints)),
        (0, Some(true)) => (true, From::Learned, "a record says it".to_string()),
        (0, _) => (false, From::Assumed, "no image for a hint".into()),
    };
    settings.log_hints = hints;
    note("wal_log_hints", settings.show("wal_log_hints").unwrap_or_default(), from, why);

    checkpoint_settings(survey, &mut settings, &mut traced);
    for (name, value) in told {
        if let crate::Effect::Changed = settings.set(name, value)? {
            let row = crate::settings::ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name.trim()));
            let Some(row) = row else { continue };
            let shown = settings.show(row.name).unwrap_or_default();
            let told =
                Traced { name: row.name, value: shown, from: From::Told, why: "given with the trace".into() };
            match traced.iter_mut().find(|traced| traced.name == row.name) {
                Some(known) => *known = told,
                None => traced.push(told),
            }
        }
    }
    // The segments are what they are.
    settings.segment_size = survey.segment_size;
    let known = CheckpointSettings {
        timeout: settings.checkpoint_timeout,
        max_wal_size: settings.max_wal_size,
        completion_target_milli: settings.completion_target_milli,
        keeps_one: true,
    };
    let checkpoints = explain_checkpoints(&survey.checkpoints, survey.segment_size, Some(known));
    let lag = lag(&checkpoints, survey);
    let skips = skips(&checkpoints, &settings);
    let hurry = hurry(&checkpoints, survey, &settings);
    Ok(Learned { settings, traced, checkpoints, lag, skips, hurry })
}

/// The value at a position of what records say now and then.
fn at<T: Copy>(said: &[(Lsn, T)], position: Lsn) -> Option<T> {
    let before = said.iter().filter(|(lsn, _)| *lsn <= position).max_by_key(|(lsn, _)| *lsn);
    before.or_else(|| said.iter().min_by_key(|(lsn, _)| *lsn)).map(|(_, value)| *value)
}

fn checkpoint_settings(survey: &Survey, settings: &mut Settings, traced: &mut Vec<Traced>) {
    let checkpoints = explain_checkpoints(&survey.checkpoints, survey.segment_size, None);
    let mut note = |name, value, from, why| traced.push(Traced { name, value, from, why });

    let timed = |checkpoint: &&Checkpoint| checkpoint.cause == Cause::Time;
    let intervals: Vec<i64> = checkpoints.iter().filter(timed).filter_map(|one| one.interval).collect();
    let longest = checkpoints.iter().filter_map(|one| one.interval).max().unwrap_or(0);
    let (timeout, from, why) = match most_frequent(&intervals) {
        Some(interval) => {
            let timeout = nearest_usual(interval);
            (timeout, From::Learned, format!("{} checkpoints came that far apart", intervals.len()))
        }
        None => {
            let fits = [300, 900, 1800, 3600, 86_400].into_iter().find(|usual| *usual >= longest);
            (fits.unwrap_or(86_400), From::Assumed, "no checkpoint came because of time".into())
        }
    };
    settings.checkpoint_timeout = timeout;
    note("checkpoint_timeout", show_seconds(timeout), from, why);

    let size = survey.segment_size;
    let crossed = |one: &Checkpoint| {
        one.distance.map(|distance| {
            size.segment_of(one.seen.redo) as i64 - size.segment_of(Lsn(one.seen.redo.0 - distance)) as i64
        })
    };
    let volume = |checkpoint: &&Checkpoint| checkpoint.cause == Cause::Volume;
    let segments: Vec<i64> = checkpoints.iter().filter(volume).filter_map(crossed).collect();
    let furthest = checkpoints.iter().filter_map(crossed).max().unwrap_or(0).max(0) as u64;
    let target = settings.completion_target_milli;
    match most_frequent(&segments).filter(|segments| *segments > 0) {
        Some(usual) => {
            settings.max_wal_size = roundest(usual as u64, target) * size.bytes();
            note(
                "max_wal_size",
                show_size(settings.max_wal_size),
                From::Learned,
                format!("{} checkpoints came {usual} segments after the one before", segments.len()),
            );
        }
        None => {
            let least = roundest(furthest + 1, target) * size.bytes();
            settings.max_wal_size = settings.max_wal_size.max(least);
            note(
                "max_wal_size",
                show_size(settings.max_wal_size),
                From::Assumed,
                "no checkpoint came because of volume".into(),
            );
        }
    }
    note(
        "checkpoint_completion_target",
        settings.show("checkpoint_completion_target").unwrap_or_default(),
        From::Assumed,
        "the log does not show it".into(),
    );
}

fn most_frequent(values: &[i64]) -> Option<i64> {
    let count = |value: &i64| values.iter().filter(|other| *other == value).count();
    values.iter().copied().max_by_key(|value| (count(value), -value))
}

/// Timers are a little late.
fn nearest_usual(interval: i64) -> i64 {
    const USUAL: [i64; 11] = [30, 60, 120, 180, 300, 600, 900, 1200, 1800, 2700, 3600];
    let near = USUAL.into_iter().find(|usual| (usual - 1..=usual + 2).contains(&interval));
    near.unwrap_or(interval).clamp(30, 86_400)
}

/// Of all numbers of segments that lead to that distance, the one that people would have set.
fn roundest(segments: u64, target_milli: u64) -> u64 {
    let first = (segments * (1000 + target_milli)).div_ceil(1000).max(2);
    let last = ((segments + 1) * (1000 + target_milli)).div_ceil(1000).saturating_sub(1).max(first);
    (first..=last).max_by_key(|number| (number.trailing_zeros(), u64::MAX - number)).unwrap_or(first)
}

/// The median way from a full segment to the redo pointer that it led to.
fn lag(checkpoints: &[Checkpoint], survey: &Survey) -> u64 {
    let size = survey.segment_size;
    let mut lags: Vec<u64> = checkpoints
        .iter()
        .filter(|one| one.cause == Cause::Volume)
        .map(|one| size.offset_of(one.seen.redo))
        .filter(|lag| *lag < size.bytes() / 4)
        .collect();
    lags.sort_unstable();
    lags.get(lags.len() / 2).copied().unwrap_or(0)
}

/// The shortest time from a requested checkpoint's redo pointer to its record, by the transactions that ended between.
fn hurry(checkpoints: &[Checkpoint], survey: &Survey, settings: &Settings) -> i64 {
    // Base backups may ask for one that keeps to the schedule.
    let target = settings.completion_target_milli as i64;
    let longest = settings.checkpoint_timeout * target * 1000 / 2;
    let farthest = settings.checkpoint_segments() * settings.segment_size.bytes() / 2;
    let took = |one: &Checkpoint| {
        let within = |(lsn, _): &&(Lsn, i64)| *lsn > one.seen.redo && *lsn <= one.seen.lsn;
        let mut within = survey.times.iter().filter(within).map(|(_, micros)| *micros);
        let first = within.next()?;
        let took = within.next_back().unwrap_or(first) - first;
        (took < longest && one.seen.lsn.bytes_since(one.seen.redo) < farthest).then_some(took)
    };
    checkpoints.iter().filter(|one| one.cause == Cause::Requested).filter_map(took).min().unwrap_or(0)
}

/// What became of the checkpoints that were asked for while another one was made.
fn skips(checkpoints: &[Checkpoint], settings: &Settings) -> Vec<bool> {
    let size = settings.segment_size;
    let outcome = |pair: &[Checkpoint]| {
        let [one, next] = pair else { return None };
        let volume = one.cause == Cause::Volume && next.cause == Cause::Volume;
        let asked = size.segment_of(one.seen.redo) + settings.checkpoint_segments();
        let done = size.segment_of(one.seen.lsn);
        (volume && done >= asked).then(|| size.segment_of(next.seen.redo) > done)
    };
    checkpoints.windows(2).filter_map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_become_what_people_set() {
        for megabytes in [48_u64, 128, 512, 1024, 2048, 4096, 16384] {
            let mut settings = Settings::default_of(walden_format::version::Major::V15);
            settings.max_wal_size = megabytes << 20;
            let segments = settings.checkpoint_segments();
            settings.max_wal_size = roundest(segments, 900) << 24;
            assert_eq!(settings.checkpoint_segments(), segments, "{megabytes} MB");
        }
        assert_eq!(roundest(33, 900), 64, "a default server's");
        assert_eq!(nearest_usual(301), 300);
        assert_eq!(most_frequent(&[5, 3, 3, 9]), Some(3));
    }
}

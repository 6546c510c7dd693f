//! Estimates the savings of a changed setting without a second pass over the WAL.
//!
//! The first pass samples pages and images ([`Sample`]). From these, [`estimate`] computes the savings of
//! `wal_compression`, `max_wal_size`, and `checkpoint_timeout`, with a range. `walden_whatif::savings`
//! instead replays the WAL, which is exact and slower.

mod simulate;

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use walden_format::lsn::Lsn;

use self::simulate::{Bounds, ImageRatios, RedoPointer, Trigger, Workload};
use crate::checkpoints::{Cause, Checkpoint, CheckpointSettings, explain_checkpoints, volume_segments};
use crate::document::Document;
use crate::explanation::{Explanation, Range};
use crate::findings::{Finding, FindingKind, rank};
use crate::image_sample::{RatioSums, Sample, Touch, TouchKind};

/// A setting that saves a smaller share of the WAL is no finding.
const MIN_SAVING: f64 = 0.02;
/// Seconds: the default of `checkpoint_timeout`.
const DEFAULT_TIMEOUT: i64 = 300;
/// A further error of each estimate, as a share of the saving.
const RELATIVE_ERROR: f64 = 0.03;
/// Lengths of the first interval between checkpoints in other runs, as shares of the interval, or of the WAL
/// if that is shorter.
const PHASES: [f64; 3] = [0.25, 0.5, 0.75];

/// Settings and their new values.
pub type Changes = Vec<(String, String)>;

/// Bytes that a change of settings saves, with the error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saving {
    /// Number of bytes that are saved.
    pub bytes: u64,
    /// Maximum error in either direction.
    pub error: u64,
}

/// Estimates the savings of all findings whose remedy is a setting, and ranks the findings by their savings.
/// `settings` are the server's settings, if known.
///
/// Savings stay unknown if the WAL has gaps, several timelines or damage, or if images were not sampled.
pub fn estimate(document: &mut Document, explanation: &Explanation, settings: Option<CheckpointSettings>) {
    let changes = distinct_changes(&document.findings);
    if changes.is_empty() {
        return;
    }
    let Some(estimator) = Estimator::new(explanation, settings) else { return };
    let savings: Vec<(Changes, Saving)> =
        changes.into_iter().filter_map(|change| Some((change.clone(), estimator.saving(&change)?))).collect();
    apply(document, &savings, explanation.buckets.images());
}

/// The data for estimates.
struct Estimator<'a> {
    explanation: &'a Explanation,
    sample: &'a Sample,
    /// Bytes of the WAL per byte of the sample.
    weight: f64,
    workload: Workload,
    /// The trigger of the WAL's checkpoints; `None` if all checkpoints were requested.
    trigger: Option<Trigger>,
    /// `checkpoint_completion_target`, in thousandths.
    completion_target_milli: u64,
    /// Bytes that the simulation of the WAL's own settings saves, and their difference to the WAL.
    before: f64,
    self_check_error: f64,
}

impl<'a> Estimator<'a> {
    fn new(explanation: &'a Explanation, settings: Option<CheckpointSettings>) -> Option<Estimator<'a>> {
        let ([range], Some(sample), None) =
            (explanation.ranges.as_slice(), &explanation.sample, &explanation.damage)
        else {
            return None;
        };
        let checkpoints = explain_checkpoints(&explanation.checkpoints, explanation.segment_size, settings);
        let trigger = trigger_of(&checkpoints, explanation, settings);
        let weight = weight_of(sample, explanation);
        let workload = workload(explanation, range, (sample, weight), &checkpoints, trigger);
        let with_all = workload.saved_with_all_pointers(ImageRatios::UNCOMPRESSED);
        let before =
            trigger.map_or(with_all, |trigger| workload.saved(trigger, ImageRatios::UNCOMPRESSED, 1.0));
        Some(Estimator {
            explanation,
            sample,
            weight,
            workload,
            trigger,
            completion_target_milli: settings.map_or(900, |known| known.completion_target_milli),
            before,
            self_check_error: (before - with_all).abs(),
        })
    }

    /// The saving of a change; `None` if it contains a setting that cannot be estimated.
    fn saving(&self, change: &Changes) -> Option<Saving> {
        let mut trigger = self.trigger;
        let (mut ratios, mut ratio_error) = (ImageRatios::UNCOMPRESSED, 0.0);
        for (name, value) in change {
            match name.as_str() {
                "wal_compression" => (ratios, ratio_error) = self.ratios(),
                "max_wal_size" => trigger.get_or_insert_default().segments = Some(self.segments(value)?),
                "checkpoint_timeout" => trigger.get_or_insert_default().timeout = Some(parse_seconds(value)?),
                _ => return None,
            }
        }
        let workload = &self.workload;
        let Some(then) = trigger.filter(|_| self.trigger.is_some()) else {
            return Some(with_error(workload.saved_with_all_pointers(ratios) - self.before, ratio_error));
        };
        let after = workload.saved(then, ratios, 1.0);
        let longest = workload.intervals(then).min(1.0);
        let by_phase = PHASES.map(|phase| (workload.saved(then, ratios, phase * longest) - after).abs());
        let phase_error = by_phase.into_iter().fold(0.0, f64::max) / 2.0;
        Some(with_error(after - self.before, ratio_error + phase_error + self.self_check_error))
    }

    /// Returns the compression ratios of images, and the error of the compressed total in bytes.
    fn ratios(&self) -> (ImageRatios, f64) {
        let mut classes = [(RatioSums::default(), 0.0); 3];
        let mut all = RatioSums::default();
        let mut seen = FxHashSet::default();
        for touch in self.sample.touches.touches() {
            let is_first = seen.insert(touch.page);
            let class = match touch.kind {
                TouchKind::Forced => 0,
                _ if is_first => 1,
                _ => 2,
            };
            classes[class].1 += f64::from(touch.bytes) * self.weight;
            if let Some(image) = touch.compressed {
                classes[class].0.add(image);
                all.add(image);
            }
        }
        // A class without images in the sample has the ratio of all classes.
        let [forced, first, repeated] = classes.map(|(sums, _)| sums.ratio().or(all.ratio()).unwrap_or(1.0));
        let errors = classes.map(|(sums, bytes)| 2.0 * sums.error() * bytes);
        (ImageRatios { forced, first, repeated }, errors.into_iter().fold(0.0, f64::hypot))
    }

    /// Segments between redo pointers under a `max_wal_size`.
    fn segments(&self, max_wal_size: &str) -> Option<u64> {
        let settings = CheckpointSettings {
            timeout: DEFAULT_TIMEOUT,
            max_wal_size: parse_bytes(max_wal_size)?,
            completion_target_milli: self.completion_target_milli,
            keeps_one: true,
        };
        Some(settings.segments(self.explanation.segment_size))
    }
}

fn with_error(saved: f64, error: f64) -> Saving {
    let saved = saved.max(0.0);
    Saving { bytes: saved as u64, error: (error + RELATIVE_ERROR * saved) as u64 }
}

fn workload(
    explanation: &Explanation,
    range: &Range,
    (sample, weight): (&Sample, f64),
    checkpoints: &[Checkpoint],
    trigger: Option<Trigger>,
) -> Workload {
    let size = explanation.segment_size;
    let (first_time, last_time) =
        explanation.time_span.map_or((0, 0), |(first, last)| (first / 1_000_000, last / 1_000_000));
    let pointer = |checkpoint: &Checkpoint| RedoPointer {
        redo: checkpoint.record.redo,
        time: checkpoint.record.time,
        is_requested: match checkpoint.cause {
            Cause::Requested | Cause::Shutdown => true,
            // The WAL does not show the cause.
            Cause::First => checkpoint.record.is_empty(),
            _ => false,
        },
    };
    let mut pointers: Vec<RedoPointer> = checkpoints.iter().map(pointer).collect();
    pointers.sort_by_key(|pointer| pointer.redo);
    let before = pointers.iter().rfind(|pointer| pointer.redo <= range.start).copied();
    pointers.retain(|pointer| pointer.redo > range.start);
    let at = |redo: Lsn, time: i64| RedoPointer { redo, time, is_requested: false };
    let last = pointers.last().copied().or(before);
    let intervals: Vec<i64> = checkpoints.iter().filter_map(|checkpoint| checkpoint.interval).collect();
    let sum = intervals.iter().fold(0i64, |sum, interval| sum.saturating_add(*interval));
    let mean_interval = sum / intervals.len().max(1) as i64;
    if let Some((last, redo)) = last.and_then(|last| Some((last, unfinished_redo(sample, last.redo)?))) {
        pointers.push(at(redo, last.time.saturating_add(mean_interval).min(last_time)));
    }
    let last_checkpoint = pointers.last().map_or(last_time, |pointer| pointer.time);
    let bounds = Bounds {
        begin: before.unwrap_or_else(|| {
            // If the WAL does not contain it, assume one interval before the first pointer. The timeout would
            // make that pointer due by time also under a larger `max_wal_size`.
            let distance = trigger.and_then(|trigger| trigger.segments).unwrap_or(0) * size.bytes();
            let timeout = trigger.and_then(|trigger| trigger.timeout).unwrap_or(0);
            let interval = if intervals.is_empty() { timeout } else { mean_interval.min(timeout) };
            let first = pointers.first().copied().unwrap_or(at(range.start, first_time));
            at(
                Lsn(first.redo.0.saturating_sub(distance)).min(range.start),
                first.time.saturating_sub(interval).min(first_time),
            )
        }),
        end: at(range.end, last_time.max(last_checkpoint)),
        segment_size: size,
    };
    Workload::new(sample.touches.touches(), weight, sample.mean_data(), bounds, pointers)
}

/// Bytes of the WAL per byte of the sample.
fn weight_of(sample: &Sample, explanation: &Explanation) -> f64 {
    if sample.touches.is_complete() {
        return 1.0;
    }
    let in_sample: f64 = sample.touches.touches().iter().map(|touch| f64::from(touch.bytes)).sum();
    explanation.images.compressible().bytes as f64 / in_sample.max(1.0)
}

/// The approximate redo pointer of a checkpoint that started after `last` and whose record is not in the WAL.
/// Before version 17, only the checkpoint's record contains the pointer. But pages get a second image after
/// the pointer.
fn unfinished_redo(sample: &Sample, last: Lsn) -> Option<Lsn> {
    /// A few pages may have two images for other reasons, such as a truncation.
    const MIN_REPEATED: usize = 3;

    let mut seen = FxHashSet::default();
    let has_image = |touch: &&Touch| matches!(touch.kind, TouchKind::Image | TouchKind::Hint);
    let behind = sample.touches.touches().iter().filter(|touch| touch.lsn >= last).filter(has_image);
    let repeated: Vec<Lsn> =
        behind.filter(|touch| !seen.insert(touch.page)).map(|touch| touch.lsn).take(MIN_REPEATED).collect();
    repeated.first().copied().filter(|_| repeated.len() >= MIN_REPEATED)
}

/// The trigger of the WAL's checkpoints, from the server's settings or from the checkpoints themselves.
fn trigger_of(
    checkpoints: &[Checkpoint],
    explanation: &Explanation,
    settings: Option<CheckpointSettings>,
) -> Option<Trigger> {
    let size = explanation.segment_size;
    let has = |cause| checkpoints.iter().any(|checkpoint| checkpoint.cause == cause);
    if !has(Cause::Volume) && !has(Cause::Time) {
        return None;
    }
    if let Some(settings) = settings {
        return Some(Trigger { segments: Some(settings.segments(size)), timeout: Some(settings.timeout) });
    }
    let intervals = |cause: Option<Cause>| {
        let of_cause = move |checkpoint: &&Checkpoint| cause.is_none_or(|cause| checkpoint.cause == cause);
        checkpoints.iter().filter(of_cause).filter_map(|checkpoint| checkpoint.interval)
    };
    // A longer interval contradicts the default.
    let at_least = || intervals(None).max().unwrap_or_default().max(DEFAULT_TIMEOUT);
    let timeout = intervals(Some(Cause::Time)).min().unwrap_or_else(at_least);
    Some(Trigger {
        segments: volume_segments(checkpoints, size).map(|(segments, _)| segments),
        timeout: Some(timeout),
    })
}

/// Bytes of a size such as `512MB` or `4GB`.
fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, scale) = match text.strip_suffix("MB") {
        Some(digits) => (digits, 1 << 20),
        None => (text.strip_suffix("GB")?, 1 << 30),
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// Seconds of a time such as `1200s`.
fn parse_seconds(text: &str) -> Option<i64> {
    text.strip_suffix('s')?.parse().ok()
}

fn change_of(finding: &Finding) -> Changes {
    finding.try_settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the change of each finding, and the change of all settings together.
pub fn distinct_changes(findings: &[Finding]) -> Vec<Changes> {
    let mut all: Vec<Changes> = Vec::new();
    let with_settings = || findings.iter().filter(|finding| !finding.try_settings.is_empty());
    for finding in with_settings() {
        let change = change_of(finding);
        if !all.contains(&change) {
            all.push(change);
        }
    }
    let settings = with_settings().filter(|finding| finding.kind == FindingKind::Setting);
    let joint: BTreeMap<String, String> = settings.flat_map(change_of).collect();
    let joint: Changes = joint.into_iter().collect();
    if !joint.is_empty() && !all.contains(&joint) {
        all.push(joint);
    }
    all
}

/// Writes savings into the findings of a document, drops settings that save less than 2 %, and ranks the
/// findings. `image_bytes` are the bytes of all images.
pub fn apply(document: &mut Document, savings: &[(Changes, Saving)], image_bytes: u64) {
    write_savings(&mut document.findings, savings, image_bytes);
    let least = (document.wal_bytes as f64 * MIN_SAVING) as u64;
    document.findings.retain(|finding| {
        finding.kind == FindingKind::Cause || finding.saves_bytes.is_none_or(|saves| saves >= least)
    });
    rank(&mut document.findings);
}

/// Settings affect the same images. The saving of the finding that comes first counts in full. Every other
/// saving is capped at the joint saving minus the first saving.
fn write_savings(findings: &mut [Finding], savings: &[(Changes, Saving)], image_bytes: u64) {
    let of = |change: &Changes| savings.iter().find(|(one, _)| one == change).map(|(_, saving)| *saving);
    let joint = savings.iter().map(|(_, saving)| saving.bytes).max().unwrap_or(0);
    for finding in findings.iter_mut() {
        let Some(saving) = of(&change_of(finding)).filter(|_| !finding.try_settings.is_empty()) else {
            continue;
        };
        (finding.saves_bytes, finding.saves_error_bytes) = match finding.kind {
            FindingKind::Setting => (Some(saving.bytes.min(finding.bytes)), Some(saving.error)),
            FindingKind::Cause => {
                // The saving of the setting, in proportion to the finding's images.
                let share = finding.bytes as f64 / image_bytes.max(1) as f64;
                let error = (saving.error as f64 * share) as u64 + saving.bytes / 20;
                (Some((saving.bytes as f64 * share) as u64), Some(error))
            }
        };
    }
    rank(findings);
    let is_estimated = |one: &&mut Finding| {
        one.kind == FindingKind::Setting && !one.try_settings.is_empty() && of(&change_of(one)).is_some()
    };
    let mut settings = findings.iter_mut().filter(is_estimated);
    let Some(first) = settings.next() else { return };
    let left = joint.saturating_sub(first.saves_bytes.unwrap_or(0));
    for other in settings {
        other.saves_bytes = other.saves_bytes.map(|bytes| bytes.min(left));
        other.remedy += &format!("; the saving is in addition to that of {}", settings_text(first));
    }
}

/// The settings that a finding's remedy changes, as `NAME=VALUE`.
fn settings_text(finding: &Finding) -> String {
    let settings: Vec<String> =
        finding.try_settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    settings.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str) -> Changes {
        vec![(name.to_owned(), "x".to_owned())]
    }

    #[test]
    fn sizes_and_times_of_remedies_are_parsed() {
        assert_eq!(parse_bytes("512MB"), Some(512 << 20));
        assert_eq!(parse_bytes("4GB"), Some(4 << 30));
        assert_eq!(parse_bytes("4"), None);
        assert_eq!(parse_bytes("99999999999999999999GB"), None);
        assert_eq!(parse_seconds("1200s"), Some(1200));
        assert_eq!(parse_seconds("20min"), None);
    }

    #[test]
    fn the_second_setting_gets_what_it_saves_in_addition() {
        let finding = |name: &str| Finding {
            kind: FindingKind::Setting,
            rule: "checkpoint-images",
            bytes: 100,
            share: 0.5,
            text: String::new(),
            points_at: name.to_owned(),
            remedy: String::new(),
            saves_bytes: None,
            saves_error_bytes: None,
            saves_more_bytes: 0,
            image_bytes: 0,
            try_settings: change(name).into_iter().collect(),
        };
        let mut findings = vec![finding("a"), finding("b")];
        assert_eq!(distinct_changes(&findings).len(), 3);
        let saving = |bytes| Saving { bytes, error: 1 };
        let both: Changes = change("a").into_iter().chain(change("b")).collect();
        let savings = [(change("a"), saving(50)), (change("b"), saving(70)), (both, saving(90))];
        let saves = |at: usize, findings: &[Finding]| findings[at].saves_bytes;
        write_savings(&mut findings, &savings, 100);
        assert_eq!((saves(0, &findings), saves(1, &findings)), (Some(70), Some(20)));
        assert_eq!(findings[1].remedy, "; the saving is in addition to that of b=x");
        assert_eq!(findings[0].remedy, "");
    }
}

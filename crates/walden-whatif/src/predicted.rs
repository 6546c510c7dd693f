//! The prediction for a set of settings, in the units of the JSON document.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_recompress::Method;

use crate::archive::ArchiveSize;
use crate::buckets::{Bucket, Buckets};
use crate::objects::ObjectEffect;
use crate::outcome::Prediction;
use crate::predict::{ErrorParts, relative};
use crate::recovery::{RecoveryModel, RecoveryRates};
use crate::settings::{ROWS, Settings};

/// Processor time for compressing a page of 8 kB, in seconds.
const PGLZ_SECONDS: f64 = 60e-6;
const LZ4_SECONDS: f64 = 5.5e-6;
const ZSTD_SECONDS: f64 = 19e-6;

/// The method by which the recovery time is computed.
#[derive(Clone, PartialEq, Debug)]
pub enum Recovery {
    /// A rate in bytes per second, whatever the records.
    Rate(u64),
    /// By type of work, with the default figures.
    Default,
    /// By type of work, with figures measured by `walden bench redo --calibrate`.
    Measured(Box<RecoveryRates>),
}

impl Recovery {
    fn model(&self) -> RecoveryModel {
        match self {
            Recovery::Measured(rates) => rates.nanoseconds,
            Recovery::Rate(_) | Recovery::Default => RecoveryModel::default(),
        }
    }
}

/// The prediction for a set of settings. Errors apply in either direction.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Predicted {
    /// The changes as text, such as `max_wal_size=8GB`, or `as traced`.
    pub name: String,
    /// Name and value of each setting that differs from the trace's; `drop_index` and the index for each
    /// dropped index.
    pub changed: Vec<(String, String)>,
    /// Bytes, as a distance of LSNs.
    pub bytes: u64,
    /// The change relative to the prediction for the trace's own settings, so that a change without effect is
    /// 0: -0.4 is 40 % less.
    pub change: f64,
    /// Error of `bytes`, in bytes.
    pub error_bytes: u64,
    /// `error` by cause, in bytes.
    pub error_parts: ErrorParts,
    /// Fractions of the bytes without page headers and padding, by [`Basis`](crate::Basis): exact,
    /// reconstructed, sampled, estimated.
    pub shares: [f64; 4],
    /// Bytes by bucket, in the order of reports.
    pub buckets: Vec<BucketBytes>,
    /// Number of images after checkpoints.
    pub images: u64,
    /// Number of images of all kinds that `wal_compression` is tried on.
    pub compressed_images: u64,
    /// Processor time for compressing these, in seconds; 0 without compression.
    pub compression_seconds: f64,
    /// Number of checkpoints, by cause.
    pub checkpoints: Causes,
    /// Number of segments filled or switched.
    pub segments: u64,
    /// Number of segments per hour; `None` if the trace does not show how long it took.
    pub segments_per_hour: Option<f64>,
    /// The longest distance that recovery may have to replay, in bytes.
    pub longest_redo_bytes: u64,
    /// The time of that replay, in seconds.
    pub recovery_seconds: f64,
    /// The size that `pg_wal` grows to, in bytes, without segments retained by an archiver, slots or
    /// `wal_keep_size`.
    pub pg_wal_bytes: u64,
    /// Upper bound of the bytes that logging hint bits would add, if the trace does not contain them.
    pub hints_at_most_bytes: u64,
    /// Effects of changes of tables and indexes, in addition to `bytes`; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectEffect>,
    /// Sizes of an archive, by compressor; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archive: Vec<ArchiveSize>,
    /// Each checkpoint: its start time, in seconds since 1970-01-01 UTC, its redo pointer, and its cause as
    /// in the JSON of `walden explain`.
    pub checkpoint_list: Vec<(f64, String, &'static str)>,
    /// Growth over time: seconds since 1970-01-01 UTC, bytes since the start.
    pub growth: Vec<(f64, u64)>,
}

/// Numbers of checkpoints by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Causes {
    /// All checkpoints.
    pub total: u64,
    /// Because of `max_wal_size`.
    pub volume: u64,
    /// Because of `checkpoint_timeout`.
    pub time: u64,
    /// Number of checkpoints on request, or at shutdown; for the trace, also the first checkpoint, whose
    /// cause is unknown.
    pub requested: u64,
}

/// A bucket, and its size.
#[derive(Clone, Debug, Serialize)]
pub struct BucketBytes {
    /// Name of the bucket: see [`Bucket::name`].
    pub name: &'static str,
    /// Bytes in the bucket.
    pub bytes: u64,
}

impl Predicted {
    pub(crate) fn new(
        traced: &Settings,
        settings: &Settings,
        prediction: &Prediction,
        self_check_bytes: u64,
        seconds: Option<f64>,
        recovery: &Recovery,
        error_parts: ErrorParts,
    ) -> Predicted {
        let changed: Vec<(String, String)> = ROWS
            .iter()
            .filter_map(|row| row.show.map(|show| (row.name, show(settings), show(traced))))
            .filter(|(_, now, before)| now != before)
            .map(|(name, now, _)| (name.into(), now))
            .collect();
        let dropped = settings.dropped.iter().map(|index| ("drop_index".to_string(), index.to_string()));
        let changed: Vec<(String, String)> = changed.into_iter().chain(dropped).collect();
        let name =
            changed.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        let known: u64 = prediction.shares.iter().sum();
        let longest_redo = longest_redo(settings, prediction, seconds);
        let hour = |seconds: f64| prediction.segments as f64 / seconds * 3600.0;
        Predicted {
            name: if name.is_empty() { "as traced".into() } else { name },
            changed,
            bytes: prediction.bytes,
            change: relative(prediction.bytes, self_check_bytes),
            error_bytes: error_parts.total() as u64,
            error_parts,
            shares: prediction.shares.map(|bytes| bytes as f64 / known.max(1) as f64),
            buckets: buckets(&prediction.buckets),
            images: prediction.images,
            compressed_images: prediction.compressed_images,
            compression_seconds: settings
                .wal_compression
                .map_or(0.0, |method| prediction.compressed_images as f64 * seconds_per_image(method)),
            checkpoints: causes(prediction),
            segments: prediction.segments,
            segments_per_hour: seconds.filter(|seconds| *seconds > 0.0).map(hour),
            longest_redo_bytes: longest_redo,
            recovery_seconds: recovery_seconds(recovery, prediction, longest_redo),
            pg_wal_bytes: (longest_redo + settings.segment_size.bytes()).max(settings.min_wal_size()),
            hints_at_most_bytes: prediction.hints_at_most,
            objects: Vec::new(),
            archive: Vec::new(),
            checkpoint_list: prediction
                .checkpoints
                .iter()
                .map(|one| (one.time as f64 / 1e6, one.redo.to_string(), one.cause.name()))
                .collect(),
            growth: prediction.growth.iter().map(|(time, bytes)| (*time as f64 / 1e6, *bytes)).collect(),
        }
    }
}

/// Returns the longest distance that recovery may have to replay: from the redo pointer of one checkpoint to
/// the end of the next. If the prediction has fewer than two, the distance is computed from the settings and
/// the mean rate.
fn longest_redo(settings: &Settings, prediction: &Prediction, seconds: Option<f64>) -> u64 {
    let by_itself = prediction.caused_by(Cause::Volume) + prediction.caused_by(Cause::Time);
    if by_itself >= 2 {
        return prediction.longest_redo;
    }
    let spread = 1.0 + settings.completion_target_milli as f64 / 1000.0;
    let by_volume = (settings.checkpoint_segments() * settings.segment_size.bytes()) as f64 * spread;
    let rate = seconds.filter(|seconds| *seconds > 0.0).map(|seconds| prediction.bytes as f64 / seconds);
    let by_time = rate.map_or(f64::INFINITY, |rate| rate * settings.checkpoint_timeout as f64 * spread);
    prediction.longest_redo.max(by_volume.min(by_time) as u64)
}

/// Returns the seconds to replay the longest distance.
fn recovery_seconds(recovery: &Recovery, prediction: &Prediction, longest_redo: u64) -> f64 {
    let model = match recovery {
        Recovery::Rate(rate) => return longest_redo as f64 / (*rate).max(1) as f64,
        modelled => modelled.model(),
    };
    // The distance may be longer than any that the trace shows.
    if longest_redo > prediction.longest_redo {
        return model.seconds(&prediction.work.scaled(longest_redo as f64 / prediction.bytes.max(1) as f64));
    }
    model.seconds(&prediction.longest_redo_work)
}

/// Returns the processor time for compressing a page, in seconds, measured on pages of pgbench
/// (docs/whatif.md).
fn seconds_per_image(method: Method) -> f64 {
    match method {
        Method::Pglz => PGLZ_SECONDS,
        Method::Lz4 => LZ4_SECONDS,
        Method::Zstd => ZSTD_SECONDS,
    }
}

pub(crate) fn buckets(buckets: &Buckets) -> Vec<BucketBytes> {
    Bucket::ALL.iter().map(|one| BucketBytes { name: one.name(), bytes: buckets.get(*one) }).collect()
}

pub(crate) fn causes(prediction: &Prediction) -> Causes {
    let of = |cause| prediction.caused_by(cause);
    Causes {
        total: prediction.checkpoints.len() as u64,
        volume: of(Cause::Volume),
        time: of(Cause::Time),
        requested: of(Cause::Requested) + of(Cause::Shutdown),
    }
}

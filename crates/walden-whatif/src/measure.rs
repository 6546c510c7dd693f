//! Measures compressors, by compressing a few segments of a trace and of the WAL that is predicted from it.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use walden_codec::coder::{Encoder, Limits};
use walden_codec::container::FileForm;
use walden_explain::tally::{Bucket, Buckets};
use walden_explain::{ExplainError, Request};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_recompress::Method;
use walden_source::inventory::{Run, SegmentFile};
use walden_source::open::open;

use crate::archive::{Compressor, Sample, fit};
use crate::outcome::Prediction;
use crate::predict::{Forecast, PredictError, Question, start_under, write_segments};
use crate::settings::Settings;
use crate::trace::MAX_SIMULATIONS;

/// Maximum number of segments of the trace, or of one prediction, to compress: as many as have this size
/// together, but at least the minimum.
const SAMPLE_BYTES: u64 = 128 << 20;
const MIN_SAMPLES: usize = 8;
/// The same for all predictions together. Of one, at least the minimum is compressed.
const PREDICTED_BYTES: u64 = 256 << 20;
const MIN_PREDICTED_SAMPLES: usize = 3;
/// The default level of `walden compress`.
const LEVEL: u8 = FileForm::Segment.default_level();

/// Why compressors cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A segment cannot be read.
    #[error("{action} {}", path.display())]
    Segment {
        /// What failed.
        action: &'static str,
        /// The segment.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A segment cannot be explained.
    #[error("{0}")]
    Explain(#[from] ExplainError),
    /// Segments cannot be predicted.
    #[error("{0}")]
    Predict(#[from] PredictError),
    /// The command cannot be run.
    #[error("cannot run {command}")]
    Run {
        /// The command.
        command: String,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// The command cannot be waited for, or its output not be read.
    #[error("{0}")]
    Command(#[from] io::Error),
    /// There is no pipe to the command.
    #[error("cannot write to the command or read from it")]
    NoPipe,
    /// The command has failed.
    #[error(
        "the compression command {command} ended with {status}: expected a command that compresses its standard input to its standard \
         output, such as gzip or zstd -3"
    )]
    Failed {
        /// The command.
        command: String,
        /// Exit status of the command.
        status: ExitStatus,
    },
}

type Result<T> = std::result::Result<T, MeasureError>;

/// Returns about the bytes of the segments that [`compressors`] compresses.
pub fn sample_bytes(run: &Run, forecast: &Forecast) -> u64 {
    let predicted = wanted(forecast)
        .into_iter()
        .map(|one| one.segments.len() as u64 * forecast.predictions[one.prediction].0.segment_size.bytes());
    chosen(run, forecast).len() as u64 * run.segment_size.bytes() + predicted.sum::<u64>()
}

/// Chooses segments of the trace: of those that the forecast counts as a whole, or, if there are none, in
/// part.
fn chosen<'a>(run: &'a Run, forecast: &Forecast) -> Vec<&'a SegmentFile> {
    let (from, to) = forecast.span;
    let end = |one: &SegmentFile| one.start.plus(run.segment_size.bytes());
    let files = || run.segments.iter().filter(|one| !one.partial && one.start < to && end(one) > from);
    let mut counted: Vec<&SegmentFile> = files()
        .filter(|one| one.start.plus(run.segment_size.bytes() / 8) >= from && end(one) <= to)
        .collect();
    if counted.is_empty() {
        counted = files().collect();
    }
    let samples = MIN_SAMPLES.max((SAMPLE_BYTES / run.segment_size.bytes()) as usize);
    let count = counted.len().min(samples);
    (0..count).map(|at| counted[(2 * at + 1) * counted.len() / (2 * count)]).collect()
}

/// Segments of a prediction to compress.
#[derive(Debug)]
struct Wanted {
    /// Index of the prediction.
    prediction: usize,
    /// Numbers of the segments, ascending.
    segments: Vec<u64>,
    /// The predictions that the segments stand for.
    of: Kind,
}

/// Settings that determine how images are stored, and how much of the WAL is compressed at a time.
type Kind = (Option<Method>, SegmentSize);

fn kind(settings: &Settings) -> Kind {
    (settings.wal_compression, settings.segment_size)
}

/// Chooses segments of predictions: for each kind, of the predictions with the smallest and the largest share
/// of images.
fn wanted(forecast: &Forecast) -> Vec<Wanted> {
    let share = |at: usize| {
        let buckets = &forecast.predictions[at].1.buckets;
        buckets.images() as f64 / buckets.total().max(1) as f64
    };
    let mut chosen: Vec<(usize, Kind)> = Vec::new();
    let mut kinds: Vec<Kind> = Vec::new();
    for (settings, _) in &forecast.predictions {
        let of = kind(settings);
        if kinds.contains(&of) {
            continue;
        }
        kinds.push(of);
        let group = (0..forecast.predictions.len()).filter(|at| kind(&forecast.predictions[*at].0) == of);
        let order = |a: &usize, b: &usize| share(*a).total_cmp(&share(*b));
        let (least, most) = (group.clone().min_by(order), group.max_by(order));
        chosen.extend(least.map(|at| (at, of)));
        chosen.extend(most.filter(|most| least != Some(*most)).map(|at| (at, of)));
    }
    chosen.truncate(MAX_SIMULATIONS);
    let bytes = SAMPLE_BYTES.min(PREDICTED_BYTES / chosen.len().max(1) as u64);
    let of = |(prediction, of): (usize, Kind)| {
        let (settings, predicted) = &forecast.predictions[prediction];
        let count = MIN_PREDICTED_SAMPLES.max((bytes / settings.segment_size.bytes()) as usize);
        let start = start_under(forecast, settings);
        let segments = spread(settings.segment_size, start, predicted.segments, count);
        Wanted { prediction, segments, of }
    };
    chosen.into_iter().map(of).collect()
}

/// Returns at most `count` numbers of segments of WAL that starts at `start` and finishes `finished`
/// segments: spread over those that are full, or, if there are none, all of them.
fn spread(size: SegmentSize, start: Lsn, finished: u64, count: usize) -> Vec<u64> {
    let first = size.segment_of(start);
    let is_first_full = size.offset_of(start) < size.bytes() / 8;
    let full = first + u64::from(!is_first_full)..first + finished;
    if full.is_empty() {
        return (first..=first + finished).collect();
    }
    let (len, count) = (full.end - full.start, (count as u64).min(full.end - full.start));
    (0..count).map(|at| full.start + (2 * at + 1) * len / (2 * count)).collect()
}

/// Measures Walden's codec, and the command if given, on the run and on the WAL of the forecast's
/// predictions, of which it writes and compresses whole segments. `done` receives the bytes of each
/// compressed segment. Starts a thread and joins it before it returns.
///
/// # Errors
/// A segment cannot be read or predicted, or the command fails.
pub fn compressors(
    run: &Run,
    question: &Question<'_>,
    forecast: &Forecast,
    command: Option<&str>,
    mut done: impl FnMut(u64),
) -> Result<Vec<Compressor>> {
    let mut measured = Measured { encoder: Encoder::new(LEVEL, Limits::default()), command };
    let mut of_trace = Vec::new();
    for segment in chosen(run, forecast) {
        let mut bytes = Vec::new();
        let limit = run.segment_size.bytes();
        let failed = |action| {
            let path = segment.path.clone();
            move |error| MeasureError::Segment { action, path, error }
        };
        let reader = open(segment).map_err(failed("cannot open"))?;
        reader.take(limit).read_to_end(&mut bytes).map_err(failed("cannot read"))?;
        let buckets = buckets(run, segment)?;
        // Old pages after the end of the WAL are not archived.
        let used = (buckets.total() - buckets.unused()).min(bytes.len() as u64);
        bytes[used as usize..].fill(0);
        let (images, padding) = (buckets.images(), buckets.get(Bucket::SwitchPadding));
        of_trace.push(measured.samples(&bytes, images, used.saturating_sub(images + padding))?);
        done(bytes.len() as u64);
    }
    let wanted = wanted(forecast);
    let mut of_predictions: Vec<Vec<Samples>> = wanted.iter().map(|_| Vec::new()).collect();
    thread::scope(|scope| {
        let segments = wanted.iter().map(|one| (one.prediction, one.segments.clone())).collect();
        let (sender, receiver) = mpsc::sync_channel(1);
        let pass = thread::Builder::new()
            .name("prediction".into())
            .spawn_scoped(scope, move || write_segments(run, question, forecast, segments, sender))?;
        for segment in receiver {
            let samples = measured.samples(&segment.bytes, segment.images, segment.other)?;
            of_predictions[segment.simulation].push(samples);
            done(segment.bytes.len() as u64);
        }
        pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok::<(), MeasureError>(())
    })?;
    let names = std::iter::once("walden compress").chain(command);
    let compressor = |(which, name): (usize, &str)| {
        let of_kind = |(settings, prediction): &(Settings, Prediction)| {
            let group = forecast.predictions.iter().filter(|(one, _)| kind(one) == kind(settings)).count();
            let samples: Vec<Sample> = wanted
                .iter()
                .zip(&of_predictions)
                .filter(|(one, _)| one.of == kind(settings))
                .flat_map(|(_, samples)| samples.iter().filter_map(|both| both[which]))
                .collect();
            // Segments of one prediction do not cover another.
            fit(&samples, if group == 1 { prediction.bytes } else { u64::MAX })
        };
        let samples: Vec<Sample> = of_trace.iter().filter_map(|both| both[which]).collect();
        let predictions = forecast.predictions.iter().map(of_kind).collect();
        Some(Compressor { name: name.into(), trace: fit(&samples, forecast.trace_bytes)?, predictions })
    };
    Ok(names.enumerate().filter_map(compressor).collect())
}

/// A segment, compressed by Walden's codec, and by the command if there is one.
type Samples = [Option<Sample>; 2];

struct Measured<'a> {
    encoder: Encoder,
    command: Option<&'a str>,
}

impl Measured<'_> {
    fn samples(&mut self, bytes: &[u8], images: u64, other: u64) -> Result<Samples> {
        self.encoder.begin_keyframe();
        let sample = |compressed| Sample { images, other, compressed };
        let own = sample(self.encoder.encode(bytes).content.len() as u64);
        let by_command = self.command.map(|command| through(command, bytes)).transpose()?;
        Ok([Some(own), by_command.map(sample)])
    }
}

fn buckets(run: &Run, segment: &SegmentFile) -> Result<Buckets> {
    let request = Request::sums(segment.start, segment.start.plus(run.segment_size.bytes()), 1);
    Ok(walden_explain::explain(std::slice::from_ref(run), &request, |_| {})?.buckets)
}

/// Pipes bytes through a command, and returns the size of its output in bytes.
fn through(command: &str, bytes: &[u8]) -> Result<u64> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| MeasureError::Run { command: command.to_owned(), error })?;
    let mut input = child.stdin.take().ok_or(MeasureError::NoPipe)?;
    let mut output = child.stdout.take().ok_or(MeasureError::NoPipe)?;
    let count = thread::scope(|scope| {
        // Ignored: a command that does not read all of its input reports that by its exit status.
        scope.spawn(move || input.write_all(bytes));
        io::copy(&mut output, &mut io::sink())
    });
    let status = child.wait()?;
    if !status.success() {
        return Err(MeasureError::Failed { command: command.to_owned(), status });
    }
    Ok(count?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_full_segments_of_all_parts() {
        let size = SegmentSize::new(1 << 20).unwrap();
        let at = |segment: u64, offset: u64| Lsn((segment << 20) + offset);
        assert_eq!(spread(size, at(5, 0), 16, 4), [7, 11, 15, 19]);
        assert_eq!(spread(size, at(5, 1 << 19), 3, 8), [6, 7]);
        // None is full.
        assert_eq!(spread(size, at(5, 1 << 19), 1, 8), [5, 6]);
        assert_eq!(spread(size, at(5, 0), 0, 8), [5]);
    }
}

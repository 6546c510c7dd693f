//! Measures compressors on a trace, by compressing a few of its segments.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use walden_codec::coder::{Encoder, Limits};
use walden_codec::container::FileForm;
use walden_explain::{ExplainError, Request};
use walden_source::inventory::{Run, SegmentFile};
use walden_source::open::open;

use crate::archive::{Compressor, Sample, fit};

/// Number of segments to compress, spread over the trace.
const SAMPLES: usize = 8;
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

/// Returns the bytes of the segments that [`compressors`] compresses.
pub fn sample_bytes(run: &Run) -> u64 {
    chosen(run).len() as u64 * run.segment_size.bytes()
}

fn chosen(run: &Run) -> Vec<&SegmentFile> {
    let step = run.segments.len().div_ceil(SAMPLES).max(1);
    run.segments.iter().step_by(step).filter(|one| !one.partial).collect()
}

/// Measures Walden's codec, and the command if given, on the run. `done` receives the bytes of each
/// compressed segment.
///
/// # Errors
/// A segment cannot be read, or the command fails.
pub fn compressors(run: &Run, command: Option<&str>, mut done: impl FnMut(u64)) -> Result<Vec<Compressor>> {
    let chosen = chosen(run);
    let mut encoder = Encoder::new(LEVEL, Limits::default());
    let (mut by_walden, mut by_command) = (Vec::new(), Vec::new());
    for segment in chosen {
        let mut bytes = Vec::new();
        let limit = run.segment_size.bytes();
        let failed = |action| {
            let path = segment.path.clone();
            move |error| MeasureError::Segment { action, path, error }
        };
        let reader = open(segment).map_err(failed("cannot open"))?;
        reader.take(limit).read_to_end(&mut bytes).map_err(failed("cannot read"))?;
        let images = images(run, segment)?;
        let other = (bytes.len() as u64).saturating_sub(images);
        encoder.begin_keyframe();
        let compressed = encoder.encode(&bytes).content.len() as u64;
        by_walden.push(Sample { images, other, compressed });
        if let Some(command) = command {
            by_command.push(Sample { images, other, compressed: through(command, &bytes)? });
        }
        done(bytes.len() as u64);
    }
    let of = |name: &str, recompresses_images, samples: &[Sample]| {
        fit(samples).map(|rates| Compressor { name: name.into(), recompresses_images, rates })
    };
    let own = of("walden compress", true, &by_walden);
    Ok(own.into_iter().chain(command.and_then(|command| of(command, false, &by_command))).collect())
}

fn images(run: &Run, segment: &SegmentFile) -> Result<u64> {
    let request = Request::sums(segment.start, segment.start.plus(run.segment_size.bytes()), 1);
    let explanation = walden_explain::explain(std::slice::from_ref(run), &request, |_| {})?;
    Ok(explanation.buckets.images())
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

//! Measures compressors on a trace, by compressing a few of its segments.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use walden_codec::coder::{Encoder, Limits};
use walden_codec::container::FileForm;
use walden_explain::Request;
use walden_source::inventory::{Run, SegmentFile};
use walden_source::open::open;
use walden_whatif::archive::{Compressor, Sample, fit};

use crate::progress::Progress;

/// Number of segments to compress, spread over the trace.
const SAMPLES: usize = 8;
/// The default level of `walden compress`.
const LEVEL: u8 = FileForm::Segment.default_level();

/// Measures Walden's codec, and the command if given, on the run.
pub fn compressors(run: &Run, command: Option<&str>) -> Result<Vec<Compressor>> {
    let step = run.segments.len().div_ceil(SAMPLES).max(1);
    let chosen: Vec<&SegmentFile> = run.segments.iter().step_by(step).filter(|one| !one.partial).collect();
    let mut progress = Progress::bytes("compressing", chosen.len() as u64 * run.segment_size.bytes());
    let mut encoder = Encoder::new(LEVEL, Limits::default());
    let (mut by_walden, mut by_command) = (Vec::new(), Vec::new());
    for segment in chosen {
        let mut bytes = Vec::new();
        let limit = run.segment_size.bytes();
        let reader = open(segment).with_context(|| format!("cannot open {}", segment.path.display()))?;
        reader
            .take(limit)
            .read_to_end(&mut bytes)
            .with_context(|| format!("cannot read {}", segment.path.display()))?;
        let images = images(run, segment)?;
        let other = (bytes.len() as u64).saturating_sub(images);
        encoder.begin_keyframe();
        let compressed = encoder.encode(&bytes).content.len() as u64;
        by_walden.push(Sample { images, other, compressed });
        if let Some(command) = command {
            by_command.push(Sample { images, other, compressed: through(command, &bytes)? });
        }
        progress.advance(bytes.len() as u64);
    }
    progress.finish();
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
        .with_context(|| format!("cannot run {command}"))?;
    let mut input = child.stdin.take().context("cannot write to the command or read from it")?;
    let mut output = child.stdout.take().context("cannot write to the command or read from it")?;
    let count = thread::scope(|scope| {
        // Ignored: a command that does not read all of its input reports that by its exit status.
        scope.spawn(move || input.write_all(bytes));
        std::io::copy(&mut output, &mut std::io::sink())
    });
    let status = child.wait()?;
    if !status.success() {
        bail!(
            "{command}: {status}; expected a command that compresses its input to its output, such as gzip or zstd -3"
        );
    }
    Ok(count?)
}

//! Measures compressors on a trace, by compressing a few of its segments.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use walden_archive::cost::{Class, MONTH_DAYS, OwnPrices, Rate};
use walden_codec::coder::{Encoder, Limits};
use walden_codec::container::FileForm;
use walden_explain::Request;
use walden_source::inventory::{Run, SegmentFile};
use walden_source::open::open;
use walden_whatif::archive::{ArchiveMonth, ArchiveSize, Compressor, Sample, fit};
use walden_whatif::document::Document;

use crate::progress::Progress;

/// Number of segments to compress, spread over the trace.
const SAMPLES: usize = 8;
/// The name of Walden's codec in documents.
const WALDEN: &str = "walden compress";
/// The default level of `walden compress`.
const LEVEL: u8 = FileForm::Segment.default_level();

/// The prices of a month in an archive.
pub struct Priced {
    pub class: Option<&'static Class>,
    pub own: Option<OwnPrices>,
    /// Days for which WAL is kept.
    pub keep_days: u32,
}

impl Priced {
    /// Returns a month of an archive in which `segments` segments of `bytes` bytes are stored in `seconds`
    /// seconds.
    fn month(&self, segments: u64, bytes: u64, seconds: f64) -> Option<ArchiveMonth> {
        let list = self.class.map(|class| class.prices);
        let prices = self.own.map(|own| own.or(list)).or(list);
        let rate = Rate::new(segments, bytes, seconds, prices.as_ref())?;
        let (min_days, min_bytes) = self.class.map_or((0, 0), |class| (class.min_days, class.min_bytes));
        let days = f64::from(self.keep_days.max(min_days));
        let billed_bytes = rate.stored_bytes.max(rate.segments * min_bytes as f64) * days / MONTH_DAYS;
        let price =
            prices.zip(rate.price).map(|(prices, requests)| prices.storage_of(billed_bytes) + requests);
        Some(ArchiveMonth {
            stored_bytes: rate.stored_bytes,
            billed_bytes,
            put_requests: rate.put_requests,
            get_requests: rate.get_requests,
            price,
        })
    }
}

/// Adds a month of `walden archive` to the sizes in a document, if the trace's time is known.
pub fn add_months(document: &mut Document, priced: &Priced, segment_bytes: u64) {
    let Some(seconds) = document.trace.seconds else { return };
    let own = |sizes: &mut Vec<ArchiveSize>, segments: u64| {
        if let Some(size) = sizes.iter_mut().find(|size| size.compressor == WALDEN) {
            size.month = priced.month(segments, size.bytes, seconds);
        }
    };
    let segments = document.trace_bytes.div_ceil(segment_bytes);
    own(&mut document.trace.archive, segments);
    for prediction in &mut document.predictions {
        own(&mut prediction.archive, prediction.segments);
    }
}

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
    let own = of(WALDEN, true, &by_walden);
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

#[cfg(test)]
mod tests {
    use walden_archive::cost::class_of;

    use super::*;

    #[test]
    fn a_month_is_billed_for_the_days_that_are_kept() {
        let month = |class: Option<&str>, keep_days| {
            let class = class.and_then(|name| class_of("s3://bucket", Some(name)));
            let priced = Priced { class, own: None, keep_days };
            // 10 segments of 1 MB each day.
            priced.month(10, 10_000_000, 86_400.0).unwrap()
        };
        let standard = month(Some("STANDARD"), 30);
        assert_eq!((standard.stored_bytes.round(), standard.billed_bytes.round()), (3e8, 3e8));
        assert_eq!((standard.put_requests.round(), standard.get_requests.round()), (600.0, 300.0));
        let price = 0.3 * 0.023 + 0.6 * 0.005 + 0.3 * 0.0004;
        assert!((standard.price.unwrap() - price).abs() < 1e-9, "{standard:?}");
        // The minimum storage duration counts if fewer days are kept.
        assert_eq!(month(Some("GLACIER_IR"), 10).billed_bytes.round(), 9e8);
        assert_eq!(month(None, 15).billed_bytes.round(), 1.5e8);
        assert_eq!(month(None, 15).price, None);
    }
}

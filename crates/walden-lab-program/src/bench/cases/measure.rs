//! Encodes segments with all special cases, and without each of them in turn.

use std::fs;
use std::io::Read;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use walden_codec::coder::{Decoder, Encoder, Limits};
use walden_codec::measure::{Case, Cases};
use walden_lab::Progress;
use walden_source::inventory::SegmentFile;
use walden_source::open;

/// Options of the measurement.
pub struct Options<'a> {
    pub cases: &'a [Case],
    pub level: u8,
    /// Whether segments are encoded as a sequence, as in a pack.
    pub is_pack: bool,
    pub runs: u8,
}

/// Bytes, and seconds of processor time.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct Spent {
    pub bytes: u64,
    pub compress_seconds: f64,
    pub decompress_seconds: f64,
}

impl Spent {
    /// Returns the lowest seconds of two runs with the same bytes.
    fn fewest(self, other: Spent) -> Spent {
        Spent {
            bytes: self.bytes,
            compress_seconds: self.compress_seconds.min(other.compress_seconds),
            decompress_seconds: self.decompress_seconds.min(other.decompress_seconds),
        }
    }

    fn add(&mut self, other: Spent) {
        self.bytes += other.bytes;
        self.compress_seconds += other.compress_seconds;
        self.decompress_seconds += other.decompress_seconds;
    }
}

/// Encodes segments. Returns their size, and the sums over them with all cases, and without each.
pub fn measure(
    options: &Options<'_>,
    files: &[&SegmentFile],
    corpus: &str,
    progress: &Progress,
) -> Result<(u64, Vec<Spent>)> {
    let sets: Vec<Cases> = std::iter::once(Cases::ALL)
        .chain(options.cases.iter().map(|&case| Cases::ALL.without(case)))
        .collect();
    let steps = files.len() * sets.len() * usize::from(options.runs);
    progress.counted(corpus, steps as u64);
    // For each set and file, the lowest values of the runs.
    let mut spent = vec![vec![None; files.len()]; sets.len()];
    let mut note = |set: usize, file: usize, now: Spent| {
        let of: &mut Option<Spent> = &mut spent[set][file];
        *of = Some(of.map_or(now, |before| before.fewest(now)));
        progress.advance(1);
    };
    let mut bytes = 0;
    if options.is_pack {
        for run in 0..options.runs {
            for (set, &cases) in sets.iter().enumerate() {
                let mut pair = Pair::new(options, cases);
                for (number, file) in files.iter().enumerate() {
                    let original = read(file)?;
                    bytes += if (run, set) == (0, 0) { original.len() as u64 } else { 0 };
                    note(set, number, pair.code(&original, &label(options, set, file))?);
                }
            }
        }
    } else {
        for (number, file) in files.iter().enumerate() {
            let original = read(file)?;
            bytes += original.len() as u64;
            // Sets run alternately, so that other work on the machine affects them equally.
            for _ in 0..options.runs {
                for (set, &cases) in sets.iter().enumerate() {
                    let mut pair = Pair::new(options, cases);
                    note(set, number, pair.code(&original, &label(options, set, file))?);
                }
            }
        }
    }
    let sum = |of: Vec<Option<Spent>>| {
        let mut sum = Spent::default();
        of.into_iter().flatten().for_each(|one| sum.add(one));
        sum
    };
    Ok((bytes, spent.into_iter().map(sum).collect()))
}

/// Describes a segment and the case that is left out, for errors.
fn label(options: &Options<'_>, set: usize, file: &SegmentFile) -> String {
    match set.checked_sub(1) {
        None => file.name.to_string(),
        Some(case) => format!("{} without {}", file.name, options.cases[case].name()),
    }
}

fn read(file: &SegmentFile) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = file.segment_size.bytes();
    open::open(file)?
        .take(limit)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", file.path.display()))?;
    Ok(bytes)
}

/// An encoder and a decoder with the same cases.
struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    decoded: Vec<u8>,
}

impl Pair {
    fn new(options: &Options<'_>, cases: Cases) -> Pair {
        let encoder = Encoder::new(options.level, Limits::default()).with_cases(cases);
        let decoder = Decoder::new(Limits::default()).with_cases(cases);
        let decoded = Vec::new();
        match options.is_pack {
            true => Pair { encoder, decoder, decoded },
            false => Pair { encoder: encoder.alone(), decoder: decoder.alone(), decoded },
        }
    }

    /// Encodes a segment, decodes it and compares the result with the original.
    fn code(&mut self, original: &[u8], label: &str) -> Result<Spent> {
        let Pair { encoder, decoder, decoded } = self;
        let clock = Clock::start();
        let encoded = encoder.encode(original);
        let compress_seconds = clock.seconds();
        decoded.clear();
        decoded.reserve(original.len());
        let clock = Clock::start();
        decoder
            .decode(&encoded, original.len(), &mut |more| decoded.extend_from_slice(more))
            .with_context(|| format!("cannot decode {label}"))?;
        let decompress_seconds = clock.seconds();
        ensure!(decoded == original, "{label} is decoded to other bytes");
        Ok(Spent { bytes: encoded.content.len() as u64, compress_seconds, decompress_seconds })
    }
}

/// A clock of this thread.
struct Clock {
    wall: Instant,
    processor: Option<f64>,
}

impl Clock {
    fn start() -> Clock {
        Clock { processor: on_processor(), wall: Instant::now() }
    }

    /// Returns the seconds of processor time, or of wall time if the system does not report it.
    fn seconds(self) -> f64 {
        let wall = self.wall.elapsed().as_secs_f64();
        self.processor.zip(on_processor()).map_or(wall, |(before, now)| now - before)
    }
}

/// Returns the seconds for which this thread had a processor, on Linux.
fn on_processor() -> Option<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

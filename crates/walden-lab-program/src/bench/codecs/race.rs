//! Runs contenders on a corpus alternately, and compares every decompressed byte with the original.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use walden_lab::{Finished, Progress, Scratch, median};

use super::contenders::{Entry, Takes, Task};
use super::corpus::{Corpus, spread};

/// The number of runs, and of segments for slow contenders.
pub struct Rules {
    pub runs: u8,
    /// How many segments of the corpus slow contenders take.
    pub slow_segments: usize,
}

/// A contender's measurements on a corpus.
#[derive(Default)]
pub struct Outcome {
    laps: Vec<Lap>,
    /// The reason for missing figures.
    pub failure: Option<String>,
}

/// The input of one process, and its measurements in each run.
struct Lap {
    /// Indexes of the files' segments in the corpus.
    segments: Vec<usize>,
    files: Vec<PathBuf>,
    bytes_in: u64,
    bytes_out: u64,
    compress: Vec<Finished>,
    decompress: Vec<Finished>,
}

/// Sums over segments.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub segments: usize,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub compress: Spent,
    pub decompress: Spent,
}

/// Time, and peak resident memory.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct Spent {
    pub wall_seconds: f64,
    pub cpu_seconds: f64,
    pub peak_kilobytes: u64,
}

/// Runs all contenders. Within a run, all contenders process a segment before any takes the next one, so that
/// other work on the machine affects them alike.
pub fn race(
    corpus: &Corpus,
    entries: &[Entry],
    rules: &Rules,
    scratch: &Scratch,
    progress: &Progress,
) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for entry in entries {
        outcomes.push(Outcome { laps: laps(corpus, entry, rules)?, failure: None });
    }
    let longest = outcomes.iter().map(|outcome| outcome.laps.len()).max().unwrap_or(0);
    let all: usize = outcomes.iter().map(|outcome| outcome.laps.len()).sum();
    progress.counted(&corpus.name, (all * usize::from(rules.runs)) as u64);
    for run in 1..=rules.runs {
        for lap in 0..longest {
            for (entry, outcome) in entries.iter().zip(&mut outcomes) {
                let Some(lap) = outcome.laps.get_mut(lap) else { continue };
                if outcome.failure.is_none() {
                    progress.label(&format!(
                        "{}, run {run} of {}: {}",
                        corpus.name,
                        rules.runs,
                        entry.label()
                    ));
                    if let Err(error) = once(entry, lap, scratch) {
                        outcome.failure = Some(format!("{error:#}"));
                    }
                }
                progress.advance(1);
            }
        }
    }
    Ok(outcomes)
}

fn laps(corpus: &Corpus, entry: &Entry, rules: &Rules) -> Result<Vec<Lap>> {
    let count = corpus.segments.len();
    let lap = |segments: Vec<usize>, files: Vec<PathBuf>| -> Result<Lap> {
        let sizes: Result<Vec<u64>, _> =
            files.iter().map(|file| file.metadata().map(|meta| meta.len())).collect();
        let (compress, decompress) = (Vec::new(), Vec::new());
        Ok(Lap { segments, files, bytes_in: sizes?.iter().sum(), bytes_out: 0, compress, decompress })
    };
    match entry.contender.takes {
        Takes::Segment => {
            let most = if entry.is_slow() { rules.slow_segments } else { count };
            let one = |index: usize| lap(vec![index], vec![corpus.segments[index].clone()]);
            spread(count, most).into_iter().map(one).collect()
        }
        Takes::Corpus => {
            let files = if entry.contender.compress.contains(&"{files}") {
                corpus.segments.clone()
            } else {
                vec![corpus.whole.clone().context("cannot run: expected all segments in one file")?]
            };
            Ok(vec![lap((0..count).collect(), files)?])
        }
    }
}

/// Returns whether a contender reads all segments as one file.
pub fn should_concatenate(entries: &[Entry]) -> bool {
    let wants = |entry: &Entry| {
        entry.contender.takes == Takes::Corpus && !entry.contender.compress.contains(&"{files}")
    };
    entries.iter().any(wants)
}

/// Compresses, decompresses and compares.
fn once(entry: &Entry, lap: &mut Lap, scratch: &Scratch) -> Result<()> {
    let program = entry.program.as_deref().context("cannot run: the program is not installed")?;
    let packed = emptied(scratch.path().join("packed"))?;
    let unpacked = emptied(scratch.path().join("unpacked"))?;
    let name = lap.files[0].file_name().context("cannot run: expected a file name")?;
    let mut packed_name = name.to_owned();
    packed_name.push(entry.contender.ending);

    let task = Task { files: &lap.files, folder: &packed, output: &packed.join(packed_name) };
    let mut command = task.command(program, entry.contender.compress, entry.level)?;
    let compressed = run(&mut command, scratch).context("compress")?;
    let outputs = files_below(&packed)?;
    let sizes: Result<Vec<u64>, _> =
        outputs.iter().map(|file| file.metadata().map(|meta| meta.len())).collect();
    lap.bytes_out = sizes?.iter().sum();
    ensure!(lap.bytes_out > 0, "compress: nothing was written");

    let task = Task { files: &outputs, folder: &unpacked, output: &unpacked.join(name) };
    let mut command = task.command(program, entry.contender.decompress, entry.level)?;
    let decompressed = run(&mut command, scratch).context("decompress")?;
    compare(&lap.files, &unpacked)?;
    lap.compress.push(compressed);
    lap.decompress.push(decompressed);
    Ok(())
}

fn emptied(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

fn run(command: &mut Command, scratch: &Scratch) -> Result<Finished> {
    let errors = scratch.path().join("errors");
    let finished = scratch.run(command.stderr(File::create(&errors)?).current_dir(scratch.path()))?;
    if !finished.status.success() {
        let text = fs::read(&errors).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
        // Some programs print their usage after the error.
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        bail!("{}: {}", finished.status, line.trim());
    }
    Ok(finished)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files.sort();
    Ok(files)
}

/// Checks that `folder` contains exactly the originals' names, each with the original's bytes.
fn compare(originals: &[PathBuf], folder: &Path) -> Result<()> {
    let files = files_below(folder)?;
    let (wanted, got) = (originals.len(), files.len());
    ensure!(got == wanted, "round trip: expected {wanted} files, found {got}");
    for original in originals {
        let name = original.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let copy = files.iter().find(|file| file.file_name() == original.file_name());
        let copy = copy.with_context(|| format!("round trip: expected {name}, found no such file"))?;
        if let Some(place) = first_difference(original, copy)? {
            bail!("round trip: {name} differs from the original at byte {place}");
        }
    }
    Ok(())
}

fn first_difference(one: &Path, other: &Path) -> Result<Option<u64>> {
    const CHUNK: u64 = 1 << 16;
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let mut place = 0;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    loop {
        left.clear();
        right.clear();
        one.by_ref().take(CHUNK).read_to_end(&mut left)?;
        other.by_ref().take(CHUNK).read_to_end(&mut right)?;
        if left != right {
            let same = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
            return Ok(Some(place + same as u64));
        }
        if left.is_empty() {
            return Ok(None);
        }
        place += left.len() as u64;
    }
}

impl Outcome {
    /// Returns the sums over segments of the medians of runs; `None` after a failure.
    pub fn tally(&self) -> Option<Tally> {
        if self.failure.is_some() || self.laps.is_empty() {
            return None;
        }
        let mut tally = Tally::default();
        for lap in &self.laps {
            tally.add(&lap.tally());
        }
        Some(tally)
    }

    /// Returns the sums over the segments that `other` compressed; `None` unless each was compressed by a
    /// separate process.
    pub fn tally_like(&self, other: &Outcome) -> Option<Tally> {
        self.tally()?;
        let mut tally = Tally::default();
        for segment in other.laps.iter().flat_map(|lap| &lap.segments) {
            tally.add(&self.laps.iter().find(|lap| lap.segments == [*segment])?.tally());
        }
        Some(tally)
    }
}

impl Lap {
    fn tally(&self) -> Tally {
        Tally {
            segments: self.segments.len(),
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            compress: Spent::from_runs(&self.compress),
            decompress: Spent::from_runs(&self.decompress),
        }
    }
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.segments += other.segments;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.compress.add(&other.compress);
        self.decompress.add(&other.decompress);
    }
}

impl Spent {
    fn from_runs(runs: &[Finished]) -> Spent {
        Spent {
            wall_seconds: median(runs.iter().map(|run| run.wall)),
            cpu_seconds: median(runs.iter().map(|run| run.cpu)),
            peak_kilobytes: runs.iter().map(|run| run.peak_kilobytes).max().unwrap_or(0),
        }
    }

    fn add(&mut self, other: &Spent) {
        self.wall_seconds += other.wall_seconds;
        self.cpu_seconds += other.cpu_seconds;
        self.peak_kilobytes = self.peak_kilobytes.max(other.peak_kilobytes);
    }

    /// Returns the time per segment.
    pub fn over(&self, segments: usize) -> Spent {
        let count = segments.max(1) as f64;
        Spent { wall_seconds: self.wall_seconds / count, cpu_seconds: self.cpu_seconds / count, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::codecs::contenders::{CONTENDERS, Contender};

    const RULES: Rules = Rules { runs: 2, slow_segments: 1 };

    const FAITHFUL: Contender = Contender {
        program: "sh",
        slow_from: None,
        compress: &["-c", "cat"],
        decompress: &["-c", "cat"],
        ..CONTENDERS[0]
    };
    const FORGETFUL: Contender = Contender { decompress: &["-c", "head -c 3"], ..FAITHFUL };
    const BROKEN: Contender = Contender { compress: &["-c", "echo no such level >&2; exit 2"], ..FAITHFUL };
    const SILENT: Contender = Contender { compress: &["-c", "true"], ..FAITHFUL };
    const SLOW: Contender = Contender { slow_from: Some(1), ..FAITHFUL };

    #[test]
    fn a_contender_that_loses_bytes_fails() {
        let scratch = Scratch::new().unwrap();
        let segments: Vec<PathBuf> = ["a", "b", "c"].map(|name| scratch.path().join(name)).into();
        for (segment, text) in segments.iter().zip(["one", "three", "seventeen"]) {
            fs::write(segment, text).unwrap();
        }
        let corpus = Corpus { name: "c".into(), source: String::new(), segments, whole: None, bytes: 17 };
        let entry = |contender| Entry { contender, level: 1, program: Some("/bin/sh".into()) };
        let entries = [&FAITHFUL, &FORGETFUL, &BROKEN, &SILENT, &SLOW].map(entry);
        let outcomes = race(&corpus, &entries, &RULES, &scratch, &Progress::hidden()).unwrap();

        let tally = outcomes[0].tally().unwrap();
        assert_eq!((tally.segments, tally.bytes_in, tally.bytes_out), (3, 17, 17));
        let failure = |index: usize| outcomes[index].failure.clone().unwrap_or_default();
        // The first segment has three bytes.
        assert_eq!(failure(1), "round trip: b differs from the original at byte 3");
        assert!(failure(2).ends_with("no such level") && outcomes[2].tally().is_none(), "{}", failure(2));
        assert_eq!(failure(3), "compress: nothing was written");
        // A slow contender compresses one segment, and is compared with the others on that segment.
        assert_eq!(outcomes[4].tally().unwrap().bytes_in, 5);
        assert_eq!(outcomes[0].tally_like(&outcomes[4]).unwrap().bytes_out, 5);
        assert!(outcomes[2].tally_like(&outcomes[0]).is_none());
    }
}

//! Compresses the work's segments, and compares the size with xz.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use liblzma::write::XzEncoder;
use serde::Serialize;
use walden_compress::{CompressOptions, pack_folder};
use walden_lab::Progress;
use walden_report::chart::{Axis, Bars, Layer, Tone, Unit};
use walden_report::html::{Cell, Section, Table};
use walden_report::table::{Look, Row, table};
use walden_report::units;

use crate::output;

/// The level of `xz`. Its default level takes four times the time for a few percent, too long for a demo.
const XZ_LEVEL: u32 = 2;

/// The size of the segments in one form.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compressed {
    pub name: String,
    pub bytes: u64,
    /// Duration of the compression; `None` for uncompressed segments.
    pub seconds: Option<f64>,
}

/// Measures the segments of a folder uncompressed, compressed by xz, and as a pack, which is verified.
pub(super) fn compress_segments(folder: &Path, pack: &Path, progress: &Progress) -> Result<Vec<Compressed>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort_unstable();
    let mut plain = 0;
    for path in &paths {
        plain += fs::metadata(path)?.len();
    }
    let as_is = Compressed { name: "segments".into(), bytes: plain, seconds: None };

    progress.counted(&format!("xz -{XZ_LEVEL}"), paths.len() as u64);
    let started = Instant::now();
    let mut encoder = XzEncoder::new(Counter::default(), XZ_LEVEL);
    for path in &paths {
        let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        io::copy(&mut file, &mut encoder)?;
        progress.advance(1);
    }
    let bytes = encoder.finish()?.0;
    let seconds = Some(started.elapsed().as_secs_f64());
    let xz = Compressed { name: format!("xz -{XZ_LEVEL}"), bytes, seconds };

    progress.phase("walden compress --pack, and its verification");
    let started = Instant::now();
    let bytes = pack_folder(folder, pack, &CompressOptions::default(), &|line| output::print_line(line))?;
    let seconds = Some(started.elapsed().as_secs_f64());
    let ours = Compressed { name: "walden compress --pack".into(), bytes, seconds };
    Ok(vec![as_is, xz, ours])
}

/// A writer that only counts bytes.
#[derive(Default)]
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ratio(all: &[Compressed], one: &Compressed) -> f64 {
    all.first().map_or(1.0, |plain| plain.bytes as f64 / one.bytes.max(1) as f64)
}

/// Returns the table for the terminal.
pub(super) fn compression_table(all: &[Compressed], look: Look) -> String {
    let largest = all.iter().skip(1).map(|one| one.bytes).max().unwrap_or(0).max(1);
    let row = |(at, one): (usize, &Compressed)| Row {
        depth: 0,
        label: one.name.clone(),
        cells: vec![
            units::bytes(one.bytes),
            format!("{:.1}x", ratio(all, one)),
            one.seconds.map_or_else(|| "-".into(), units::seconds),
        ],
        share: (at > 0).then(|| one.bytes as f64 / largest as f64),
    };
    let rows: Vec<Row> = all.iter().enumerate().map(row).collect();
    table(look, "The WAL, compressed", ("", &["bytes", "ratio", "time"]), &rows)
}

/// Returns the section of the HTML page.
pub(super) fn compression_section(all: &[Compressed]) -> Section {
    let compressed = || all.iter().skip(1);
    let chart = Bars {
        title: "The WAL, compressed".into(),
        x: Axis::new("compressed", Unit::Bytes),
        categories: compressed().map(|one| one.name.clone()).collect(),
        layers: vec![Layer {
            name: "compressed".into(),
            tone: Tone::Emphasis,
            values: compressed().map(|one| Some(one.bytes as f64)).collect(),
        }],
        stacked: true,
        ..Bars::default()
    };
    let mut table = Table::new(&["", "bytes", "ratio", "time"]);
    for one in all {
        let ratio = ratio(all, one);
        table.row(vec![
            Cell::text(&one.name),
            Cell::bytes(one.bytes),
            Cell::number(&format!("{ratio:.1}x"), ratio),
            one.seconds.map_or_else(Cell::none, Cell::seconds),
        ]);
    }
    let plain = all.first().map_or(0, |plain| plain.bytes);
    let note = format!(
        "The segments of the work, {} as they are. Both restore them byte for byte; the pack's time has its verification in it.",
        units::bytes(plain)
    );
    Section::new("The WAL, compressed").chart(chart, &note).table(table)
}

//! `walden bench redo --calibrate`: measures this machine's recovery rates for `walden whatif`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use walden_lab::{Progress, Wanted, median};
use walden_output::Inputs;
use walden_report::table::{Row, table};
use walden_report::units;
use walden_source::base::{base_pages, open_base};
use walden_source::inventory::Inventory;
use walden_whatif::recovery::{Recovered, RecoveryModel, RecoveryRates, Work};
use walden_whatif::recovery_file;
use walden_whatif::{OpenBase, Question, predict};

use super::{Material, Variant, find_workloads, recover};
use crate::output::Overwrite;
use crate::terminal::Format;
use crate::{memory, output, terminal};

/// The workloads: name, size, value of `wal_compression` if set, and whether the rates are fitted to the
/// workload. Together they have records without images, images compressed by each method and by none, and
/// data in large records. The workloads that are not fitted show how accurate the rates are for other work.
const WORKLOADS: [(&str, u64, Option<&str>, bool); 8] = [
    ("oltp", 40_000, None, true),
    ("oltp-pressure", 40_000, None, true),
    ("oltp-pressure", 40_000, Some("pglz"), true),
    ("oltp-pressure", 40_000, Some("lz4"), true),
    ("oltp-pressure", 40_000, Some("zstd"), true),
    ("dense", 300_000, None, true),
    ("load", 80, None, true),
    ("mixed", 30_000, None, false),
];

/// Runs the command. `path` replaces the default location of the file, in which new rates replace earlier
/// ones.
pub fn run(
    path: Option<&Path>,
    overwrite: Overwrite,
    pg: Option<Wanted>,
    runs: u8,
    format: Format,
) -> Result<ExitCode> {
    let overwrite = Overwrite { force: overwrite.force || path.is_none() };
    let path = path.map(Path::to_path_buf).or_else(recovery_file::default_path);
    let path = path
        .context("cannot place the file of rates: set XDG_CONFIG_HOME or HOME, or write --calibrate=FILE")?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    }
    output::can_write(&[("--calibrate", Some(&path))], overwrite, &Inputs::default())?;
    let mut postgresql = None;
    let mut measured = Vec::new();
    for (name, size, compression, is_fitted) in WORKLOADS {
        let workload = find_workloads(&[name.to_owned()])?.remove(0);
        let label = compression.map_or_else(|| name.to_owned(), |method| format!("{name}, {method}"));
        let setting = compression.map(|method| ("wal_compression", method));
        let variant = Variant { pg, size: Some(size), keep_data: true, setting, ..Variant::default() };
        let material = match Material::with(workload, variant) {
            Ok(material) => material,
            // A server that was built without a compression method rejects its name.
            Err(error) if compression.is_some() && format!("{error:#}").contains("Available values") => {
                eprintln!("note: {label}: this server was built without it; its rate stays the default");
                continue;
            }
            Err(error) => return Err(error),
        };
        ensure!(
            material.installation.version.major >= 15,
            "PostgreSQL says how much processor time redo took since 15: choose such a version with --pg"
        );
        postgresql.get_or_insert_with(|| material.installation.version.to_string());
        let segments = material.segments()?;
        let progress = Progress::new(&format!("{label}: recovering"));
        let (mut processor, mut elapsed) = (Vec::new(), Vec::new());
        for round in 0..=runs {
            let redo = recover(&material, &segments, "false")?;
            // The first round only warms the cache.
            if round > 0 {
                processor.push(redo.processor);
                elapsed.push(redo.elapsed);
            }
        }
        progress.finish();
        let (wal_bytes, work) = work(&material)?;
        let [seconds, elapsed_seconds] = [processor, elapsed].map(median);
        let computed_seconds = 0.0;
        let recovered =
            Recovered { workload: label, is_fitted, wal_bytes, seconds, elapsed_seconds, computed_seconds };
        measured.push((work, recovered));
    }
    let to_fit = measured.iter().filter(|(_, recovered)| recovered.is_fitted);
    let to_fit: Vec<(Work, f64)> = to_fit.map(|(work, recovered)| (*work, recovered.seconds)).collect();
    let model = RecoveryModel::fit(&to_fit, &RecoveryModel::default());
    let computed = |(work, recovered): (Work, Recovered)| Recovered {
        computed_seconds: model.seconds(&work),
        ..recovered
    };
    let rates = RecoveryRates {
        machine: machine(),
        postgresql: postgresql.unwrap_or_default(),
        measured_on: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        nanoseconds: model,
        recoveries: measured.into_iter().map(computed).collect(),
    };
    output::write(&path, terminal::json(&rates)?, overwrite)?;
    terminal::show(format, || &rates, || tables(&rates, &path))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the size of the workload's WAL, and the work of replaying it from the base backup to its end.
fn work(material: &Material) -> Result<(u64, Work)> {
    let base = material.folder.join("base");
    let inventory = Inventory::search(&[material.wal()])?;
    let (run, data) = open_base(&base, &inventory.runs)?;
    let open = || base_pages(Some(&base));
    // Without a checkpoint, each page has one image.
    let once = [("max_wal_size", "1TB"), ("checkpoint_timeout", "1d"), ("full_page_writes", "on")];
    let once = once.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let question = Question {
        changes: vec![once],
        base: Some((data.redo_from(), &open as OpenBase<'_>)),
        threads: terminal::cores(),
        memory_bytes: memory::quarter_of_machine(),
        ..Question::default()
    };
    let forecast = predict(&inventory.runs[run], &question, &|_| ())?;
    let pages = forecast.predictions.first().map_or(0.0, |(_, once)| once.work.pages);
    Ok((forecast.trace_bytes, Work { pages, ..forecast.self_check.work }))
}

/// Returns the processor's name according to the system, the number of cores, and the system.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {} cores, {}", terminal::cores(), std::env::consts::OS)
}

fn tables(rates: &RecoveryRates, path: &Path) -> String {
    let look = terminal::look();
    let rows: Vec<Row> = rates
        .recoveries
        .iter()
        .map(|one| Row {
            depth: 0,
            label: match one.is_fitted {
                true => one.workload.clone(),
                false => format!("{}, not fitted", one.workload),
            },
            cells: vec![
                units::bytes(one.wal_bytes),
                format!("{:.2} s", one.elapsed_seconds),
                format!("{:.2} s", one.seconds),
                format!("{:.2} s", one.computed_seconds),
                format!("{:+.0} %", 100.0 * (one.computed_seconds / one.seconds.max(0.01) - 1.0)),
            ],
            share: None,
        })
        .collect();
    let head: &[&str] = &["WAL", "elapsed", "processor", "computed", "error"];
    let title = format!("Recovery of PostgreSQL {} on {}", rates.postgresql, rates.machine);
    let mut text = table(look, &title, ("workload", head), &rows) + "\n";
    let model = &rates.nanoseconds;
    let figures = [
        ("record", model.record),
        ("byte of a record", model.record_byte),
        ("page", model.page),
        ("byte of an image", model.image_byte),
        ("image compressed by pglz", model.pglz_image),
        ("image compressed by lz4", model.lz4_image),
        ("image compressed by zstd", model.zstd_image),
    ];
    let rows: Vec<Row> = figures
        .into_iter()
        .map(|(name, nanoseconds)| Row {
            depth: 0,
            label: name.to_owned(),
            cells: vec![format!("{nanoseconds:.2} ns")],
            share: None,
        })
        .collect();
    text += &table(look, "Rates", ("for each", &["time"]), &rows);
    text + &format!("\n  written to {}\n", path.display())
}

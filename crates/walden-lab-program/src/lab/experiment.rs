//! `walden lab run EXPERIMENT`: has the options, analyses the WAL for the lab, and prints the results.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use walden_explain::checkpoints::{Cause, Checkpoint, CheckpointSettings, explain_checkpoints};
use walden_explain::tally::Bucket;
use walden_explain::{Explanation, Request};
use walden_format::lsn::Lsn;
use walden_lab::experiments::definition::{Definition, Kind};
use walden_lab::experiments::report::{Check, Figure, Phase, Report};
use walden_lab::experiments::statements::Relation;
use walden_lab::experiments::{self, Analysis, Form, Options, PredictedRun};
use walden_lab::oracle_model::RowChanges;
use walden_lab::{Installation, Progress};
use walden_output::Inputs;
use walden_report::table::{Look, Row, table, wrap};
use walden_report::units;
use walden_source::base::{base_pages, open_base};
use walden_source::inventory::Inventory;
use walden_whatif::OpenBase;
use walden_whatif::settings::Settings;
use walden_whatif::{Prediction, Question, learn};

use super::figures::{measure_name, number};
use super::{experiment_html, row_changes};
use crate::output::Overwrite;
use crate::terminal::Format;
use crate::{memory, output, terminal};

/// Options of experiments alone.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of experiments")]
pub struct ExperimentArgs {
    /// Run it at a small size, in seconds
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// Run it at the published size
    #[arg(long)]
    pub full: bool,
    /// pgbench's scale factor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub scale: Option<u64>,
    /// Transactions in total
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    pub transactions: Option<u64>,
    /// Clients at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clients: Option<u64>,
    /// Rows of the table
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=1_000_000_000))]
    pub rows: Option<u64>,
    /// Megabytes to copy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub megabytes: Option<u64>,
    /// Run on this server, in a new database; its settings are restored afterwards (needs a superuser)
    #[arg(long, value_name = "DSN")]
    pub dsn: Option<String>,
    /// Also run the statements on this Oracle database: USER/PASSWORD@HOST:PORT/SERVICE (needs Python's
    /// oracledb)
    #[arg(long, value_name = "DSN")]
    pub oracle_dsn: Option<String>,
    /// Keep each run's WAL and facts.json in this folder, in a subfolder with the case's name
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Take the runs that --keep kept an earlier time, in place of running them (whatif-validation)
    #[arg(long, requires = "keep", conflicts_with = "dsn")]
    pub reuse: bool,
    /// Also write the results as JSON
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Also write a page with charts: measured, published and predicted figures, and the claims
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl ExperimentArgs {
    /// Returns the first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            (self.quick, "--quick"),
            (self.full, "--full"),
            (self.scale.is_some(), "--scale"),
            (self.transactions.is_some(), "--transactions"),
            (self.clients.is_some(), "--clients"),
            (self.rows.is_some(), "--rows"),
            (self.megabytes.is_some(), "--megabytes"),
            (self.dsn.is_some(), "--dsn"),
            (self.oracle_dsn.is_some(), "--oracle-dsn"),
            (self.keep.is_some(), "--keep"),
            (self.reuse, "--reuse"),
            (self.out.is_some(), "--out"),
            (self.html.is_some(), "--html"),
        ];
        all.into_iter().find_map(|(given, name)| given.then_some(name))
    }

    /// Returns the run's options, without the required server.
    pub fn options(&self, settings: &[(String, String)], force: bool) -> Options {
        let sizes = [
            ("scale", self.scale),
            ("transactions", self.transactions),
            ("clients", self.clients),
            ("rows", self.rows),
            ("megabytes", self.megabytes),
        ];
        Options {
            form: match (self.quick, self.full) {
                (true, _) => Form::Quick,
                (_, true) => Form::Full,
                _ => Form::Default,
            },
            sizes: sizes.into_iter().filter_map(|(name, size)| Some((name.to_owned(), size?))).collect(),
            settings: settings.to_vec(),
            dsn: self.dsn.clone(),
            oracle_dsn: self.oracle_dsn.clone(),
            keep: self.keep.clone(),
            reuse: self.reuse,
            force,
            ..Options::default()
        }
    }
}

/// Runs an experiment and prints its results.
pub fn run(
    definition: &Definition,
    mut options: Options,
    installation: impl FnOnce() -> Result<Option<Installation>>,
    files: &ExperimentArgs,
    format: Format,
) -> Result<()> {
    let overwrite = Overwrite { force: options.force };
    let wanted = [("--out", files.out.as_deref()), ("--html", files.html.as_deref())];
    output::can_write(&wanted, overwrite, &Inputs::default())?;
    if options.reuse && definition.kind != Kind::WhatifValidation {
        bail!("--reuse is for whatif-validation: {} has no runs to predict from", definition.name);
    }
    options.installation = if options.dsn.is_some() { None } else { installation()? };
    options.progress = Progress::new("starting");
    let report = experiments::run(definition, &options, &Reader)?;
    let write = |path: &PathBuf| output::write(path, terminal::json(&report)?, overwrite);
    let out = files.out.as_ref().map_or(Ok(()), write);
    let page = |path: &PathBuf| {
        output::write_page(path, &experiment_html::page(&report, definition.kind), overwrite)
    };
    let html = files.html.as_ref().map_or(Ok(()), page);
    // Results that took hours are printed even if they cannot be written.
    let printed = terminal::show(format, || &report, || tables(&report));
    out.and(html).and(printed)
}

/// Answers the lab's questions about the WAL.
pub struct Reader;

impl Analysis for Reader {
    fn buckets(&self, wal: &Path, from: Lsn, to: Lsn) -> Result<BTreeMap<String, u64>> {
        let explanation = explain(wal, from, to)?;
        let of = |bucket: Bucket| (bucket.name().to_owned(), explanation.buckets.get(bucket));
        Ok(Bucket::all().map(of).filter(|(_, bytes)| *bytes > 0).collect())
    }

    fn checkpoints(
        &self,
        wal: &Path,
        (from, to): (Lsn, Lsn),
        settings: &BTreeMap<String, String>,
    ) -> Result<[u64; 2]> {
        // The record of a transaction that started within the range may be after it.
        let explanation = explain(wal, Lsn(0), Lsn(u64::MAX))?;
        let (version, size) = (explanation.version, explanation.segment_size);
        let settings = CheckpointSettings::from_settings(settings, version);
        let checkpoints = explain_checkpoints(&explanation.checkpoints, size, settings);
        let began = |cause| {
            let matches =
                |one: &&Checkpoint| one.cause == cause && one.record.redo > from && one.record.redo < to;
            checkpoints.iter().filter(matches).count() as u64
        };
        Ok([began(Cause::Volume), began(Cause::Time)])
    }

    fn row_changes(&self, wal: &Path, table: &Relation, phases: &[Phase]) -> Result<Vec<RowChanges>> {
        row_changes::row_changes(wal, table, phases)
    }

    fn predict(
        &self,
        (wal, base): (&Path, Option<&Path>),
        (from, to): (Lsn, Lsn),
        traced: &BTreeMap<String, String>,
        cases: &[BTreeMap<String, String>],
    ) -> Result<Vec<PredictedRun>> {
        let inventory = Inventory::search(&[wal.to_owned()])?;
        let run = inventory
            .runs
            .first()
            .context("cannot read the WAL of the run: expected segments, found none")?;
        let from_base = base.map(|path| open_base(path, &inventory.runs)).transpose()?;
        let open = || base_pages(base);
        let question = Question {
            base: from_base.as_ref().map(|(_, data)| (data.redo_from(), &open as OpenBase<'_>)),
            from: Some(from),
            to: Some(to),
            traced: learn::settings_from_server(traced),
            server: Vec::new(),
            changes: cases.iter().map(learn::settings_from_server).collect(),
            objects: Vec::new(),
            all_images: true,
            threads: terminal::cores(),
            memory_bytes: memory::quarter_of_machine(),
        };
        let forecast = walden_whatif::predict(run, &question, &|_| ())?;
        if let Some(damage) = &forecast.damage {
            bail!("{damage}");
        }
        let of = |(_, prediction): &(Settings, Prediction)| {
            let checkpoints = [Cause::Volume, Cause::Time].map(|cause| prediction.caused_by(cause));
            PredictedRun {
                bytes: prediction.bytes,
                error_bytes: forecast.error_bytes(prediction) as u64,
                checkpoints,
            }
        };
        Ok(forecast.predictions.iter().map(of).collect())
    }
}

fn explain(wal: &Path, from: Lsn, to: Lsn) -> Result<Explanation> {
    let inventory = Inventory::search(&[wal.to_owned()])?;
    let request = Request::sums(from, to, terminal::cores());
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {})?;
    match &explanation.damage {
        Some(damage) => bail!("{damage}"),
        None => Ok(explanation),
    }
}

fn tables(report: &Report) -> String {
    let look = terminal::look();
    let mut text = format!(
        "{}\n{}\n{}\n{}\n  {}\n",
        head(look, report),
        figures(look, report),
        look.heading("Shape"),
        checks(look, &report.checks),
        wrap(&report.verdict, look.width, 2)
    );
    for note in &report.notes {
        let _ = writeln!(text, "  {}", look.faint(&wrap(note, look.width, 2)));
    }
    for missing in &report.unavailable {
        let missing = wrap(&format!("not measured: {missing}"), look.width, 2);
        let _ = writeln!(text, "  {}", look.pointer(&missing));
    }
    text
}

fn head(look: Look, report: &Report) -> String {
    let source = &report.source;
    let sizes: Vec<String> = report.sizes.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let server = report.server.as_ref().map(|server| server.version.split(" (").next().unwrap_or_default());
    let server = server.map(|server| format!("{} with ", server.split(" on ").next().unwrap_or_default()));
    let published = source.as_ref().map_or_else(
        || "not published: predictions are compared with the servers' WAL".into(),
        |source| format!("published: {} {}; {}", source.author, source.year, source.setup),
    );
    format!(
        "{}\n  {}{} in {}\n  {}",
        look.heading(&format!("{}: {}", report.experiment, report.about)),
        server.unwrap_or_default(),
        sizes.join(", "),
        units::seconds(report.seconds),
        look.faint(&wrap(&published, look.width, 2))
    )
}

fn figures(look: Look, report: &Report) -> String {
    let predicted = report.figures.iter().any(|figure| figure.predicted.is_some());
    let mut columns = vec!["measured", "published"];
    if predicted {
        columns.push("predicted");
    }
    let mut rows = Vec::new();
    let mut last = (String::new(), String::new());
    for figure in &report.figures {
        let place = (figure.case.clone(), figure.phase.clone());
        if place != last {
            let label = format!("{}, {}", figure.case, figure.phase);
            rows.push(Row { depth: 0, label, cells: Vec::new(), share: None });
            last = place;
        }
        rows.push(Row {
            depth: 1,
            label: measure_name(&figure.measure),
            cells: cells(figure, predicted),
            share: None,
        });
    }
    let mut text = table(look, "Figures", ("", &columns), &rows);
    if !report.published_size && report.figures.iter().any(|figure| figure.published.is_some()) {
        let hint = "published figures are those of the published size: compare only ratios";
        text.push_str(&format!("  {}\n", look.faint(&wrap(hint, look.width, 2))));
    }
    text
}

fn cells(figure: &Figure, predicted: bool) -> Vec<String> {
    let mut cells = vec![number(figure.measured), number(figure.published)];
    if predicted {
        cells.push(number(figure.predicted));
    }
    cells
}

fn checks(look: Look, checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let mark = match check.holds {
            Some(true) => "yes",
            Some(false) => "NO ",
            None => "-  ",
        };
        let mark = if check.holds == Some(false) { look.alarm(mark) } else { mark.to_owned() };
        let published = check.published.map(|ratio| format!(", published {}", number(Some(ratio))));
        let measured = number(check.measured);
        let words = format!("{}: {measured} times{}", check.claim, published.unwrap_or_default());
        text.push_str(&format!("  {mark}  {}\n", wrap(&words, look.width, 7)));
    }
    text
}

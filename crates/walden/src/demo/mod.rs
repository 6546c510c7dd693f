//! `walden demo`: runs every main command against a temporary server. It explains the WAL, predicts the
//! effect of another setting and measures it, compresses the WAL, and writes a page with all results.

mod compression;
mod remedy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use walden_explain::document::{Context, Document};
use walden_explain::{Explanation, Request, savings};
use walden_format::lsn::Lsn;
use walden_lab::demo::{DATABASE, Work, Worked};
use walden_lab::{Progress, Wanted, find_or_install, tools, waldump};
use walden_output::Inputs;
use walden_report::explain_html;
use walden_report::html::Page;
use walden_server::guard::Undo;
use walden_source::inventory::Inventory;
use walden_source::names::Names;

use self::compression::{Compressed, compress_segments, compression_section, compression_table};
use self::remedy::{Remedy, Tried};
use crate::explain::Format;
use crate::output::Overwrite;
use crate::{FOUND, judge, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden demo
      the whole story; the page is walden-demo.html
  walden demo --pg 15 --html /tmp/demo.html
      on PostgreSQL 15, which is downloaded if it is not installed

The servers listen on Unix sockets in temporary folders, which are removed at the end. Nothing is installed into the system.

Exit status: 0 done, 1 figures that differ from pg_waldump's, 2 wrong usage, 3 a server could not be run.";

/// Demonstrate Walden on a temporary server in two minutes: explain, predict, measure, compress, a page with
/// charts
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// The PostgreSQL version, downloaded if it is not installed [default: an installed one, otherwise 18]
    #[arg(long, value_name = "VERSION")]
    pg: Option<Wanted>,

    /// Number of pgbench transactions
    #[arg(long, value_name = "N", default_value_t = 6_000, value_parser = clap::value_parser!(u32).range(4..=10_000_000))]
    transactions: u32,

    /// Where to write the page with charts
    #[arg(long, value_name = "FILE", default_value = "walden-demo.html")]
    html: PathBuf,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Output format; csv contains only the explanation
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Groups per list of the explanation.
const TOP: usize = 4;

/// All results.
#[derive(Serialize)]
struct Story {
    explanation: Document,
    /// `None` if no finding suggests a setting that the demo can change.
    prediction: Option<Tried>,
    compression: Vec<Compressed>,
    page: String,
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    output::can_write(&[("--html", Some(&args.html))], args.overwrite, &Inputs::default())?;
    let installation = find_or_install(args.pg.unwrap_or(Wanted::Any))?;
    say(args, &format!("PostgreSQL {} on a Unix socket in a temporary folder\n", installation.version))?;
    let progress = Progress::new("starting");
    let work = Work { installation, transactions: args.transactions, progress: &progress };
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?.keep();
    let _removed = Undo::by_removing(folder.clone());
    let wal = folder.join("wal");

    let worked = work.on_new_server(&[])?;
    progress.phase("reading the names and the WAL");
    let (mut names, methods) =
        (walden_postgres::names::from_server(&worked.cluster.dsn(DATABASE))?, worked.compression_methods()?);
    worked.stop(&wal)?;
    let inventory = Inventory::search(std::slice::from_ref(&wal))?;
    let explanation = explain(&inventory, worked.range)?;
    let checkpoint_settings = crate::names::complete(&mut names, &explanation);
    progress.finish();
    let with_top = |top| {
        Document::new(
            &explanation,
            &Context { names: &names, checkpoint_settings, top, pattern: None, writers: None },
        )
    };
    let mut document = with_top((args.format == Format::Table).then_some(TOP));
    // Only the page shows these.
    document.views.clear();
    document.cycles.clear();
    let remedy = Remedy::find(&document, &names, &methods);
    savings::estimate(&mut document, &explanation, checkpoint_settings);
    let mut page = with_top(Some(explain_html::ROWS));
    page.findings.clone_from(&document.findings);
    let page = explain_html::page(&page);
    show(args, || walden_report::explain::explain(&document, terminal::look()))?;
    let agreed = check(args, &worked, &wal, &explanation)?;

    let progress = Progress::new("predicting");
    let work = Work { progress: &progress, ..work };
    let prediction =
        remedy.map(|remedy| try_remedy(remedy, &work, &worked, &names, &inventory)).transpose()?;
    progress.finish();
    if let Some(tried) = &prediction {
        show(args, || format!("\n{}", tried.table(terminal::look())))?;
    }
    let progress = Progress::new("compressing");
    let compression = compress_segments(&wal, &folder.join("demo.wpk"), &progress)?;
    progress.finish();
    show(args, || format!("\n{}", compression_table(&compression, terminal::look())))?;

    output::write_page(&args.html, &finished(page, prediction.as_ref(), &compression), args.overwrite)?;
    let written = std::path::absolute(&args.html).unwrap_or_else(|_| args.html.clone());
    let written = written.display().to_string();
    let story = Story { explanation: document, prediction, compression, page: written };
    match args.format {
        Format::Table => next_steps(&story.page)?,
        Format::Json => terminal::print(&terminal::json(&story)?)?,
        Format::Csv => terminal::print(&walden_report::csv::explain(&story.explanation)?)?,
    }
    Ok(if agreed { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn explain(inventory: &Inventory, (from, to): (Lsn, Lsn)) -> Result<Explanation> {
    let views = explain_html::views().to_vec();
    let sums = Request::sums(from, to, terminal::cores());
    let request = sums.views(views).top(explain_html::ROWS).sample_images(true);
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {})?;
    match &explanation.damage {
        Some(damage) => anyhow::bail!("{damage}"),
        None => Ok(explanation),
    }
}

/// Predicts the work's WAL under a setting, then repeats the work on a second server with that setting.
fn try_remedy(
    remedy: Remedy,
    work: &Work<'_>,
    worked: &Worked,
    names: &Names,
    inventory: &Inventory,
) -> Result<Tried> {
    let predicted = remedy.predict(worked, names, inventory)?;
    work.progress.phase(&format!("the same work under {}", remedy.setting()));
    let again = work.on_new_server(&[(remedy.name, &remedy.value)])?;
    Ok(remedy.tried(worked.bytes(), predicted, again.bytes()))
}

/// Inserts the later results into the explanation's page, after the findings.
fn finished(mut page: Page, prediction: Option<&Tried>, compression: &[Compressed]) -> Page {
    const BEHIND_FINDINGS: usize = 1;
    page.insert(BEHIND_FINDINGS, compression_section(compression));
    if let Some(tried) = prediction {
        page.insert(BEHIND_FINDINGS, tried.section());
    }
    page
}

/// Compares the figures with those of pg_waldump, if pg_waldump of this version is available.
fn check(args: &DemoArgs, worked: &Worked, wal: &Path, explanation: &Explanation) -> Result<bool> {
    let cluster = &worked.cluster;
    let Some(pg_waldump) = tools().pg_waldump(cluster.major()) else {
        let major = cluster.major();
        let text =
            format!("\nNo pg_waldump of PostgreSQL {major} is at hand to check the figures against.\n");
        return say(args, &text).map(|()| true);
    };
    let (from, to) = worked.range;
    let arguments = waldump::range_arguments(wal, &from.to_string(), &to.to_string());
    let verdict = judge::compare(explanation, &waldump::stats(&pg_waldump, &arguments)?);
    let sum = explanation.buckets.total();
    let mut text = format!("\n{}\n", terminal::look().heading("Checked"));
    text += &format!("  the buckets add up to the {sum} bytes of the range\n");
    text += &format!(
        "  {} records of {} kinds: counts and bytes equal those of pg_waldump {}\n",
        verdict.records,
        verdict.agreed,
        cluster.installation().version
    );
    for difference in &verdict.differences {
        text += &format!("  DIFFERENT: {difference}\n");
    }
    say(args, &text)?;
    Ok(verdict.differences.is_empty())
}

fn next_steps(page: &str) -> Result<()> {
    let look = terminal::look();
    let text = format!(
        "\n{}\n  {page}\n\n{}\n  walden explain                                       your own servers, with the command for each
  walden whatif --set max_wal_size=8GB DIR             the same work under another setting
  walden compress --pack -o /backup DIR                the log in a fraction of its size
  walden archive --help                                an archive that PostgreSQL recovers from
  walden --help                                        everything else\n",
        look.heading("The page with charts"),
        look.heading("Try next")
    );
    terminal::print(&text)
}

/// Prints a part of the human-readable output.
fn show(args: &DemoArgs, text: impl FnOnce() -> String) -> Result<()> {
    match args.format {
        Format::Table => terminal::print(&text()),
        Format::Json | Format::Csv => Ok(()),
    }
}

/// Prints text: to standard error if standard output is machine-readable.
fn say(args: &DemoArgs, text: &str) -> Result<()> {
    match args.format {
        Format::Table => terminal::print(text)?,
        Format::Json | Format::Csv => eprint!("{text}"),
    }
    Ok(())
}

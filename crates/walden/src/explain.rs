//! `walden explain`: turns arguments into a request, and prints the explanation.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use regex::Regex;
use walden_explain::document::{Context, Document};
use walden_explain::group::{Dimension, ViewSpec};
use walden_explain::writers::Writers;
use walden_explain::{Bound, ExplainError, Explanation, Request};
use walden_output::Inputs;
use walden_report::explain_html;
use walden_source::inventory::Inventory;
use walden_source::names::Names;
use walden_source::server_log::{self, Prefix};

use crate::arguments::{parse_bound, parse_pattern, parse_span, parse_view};
use crate::output::Overwrite;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::{USAGE, names, output, savings, servers, terminal};

const EXAMPLES: &str = "\
Examples:
  walden explain /var/lib/postgresql/18/main/pg_wal
      where the WAL of a running server comes from; walden explain alone lists the servers of this machine
  walden explain 'host=/run/postgresql'
      the same with the names of tables and indexes; run it as the server's user (sudo -u postgres)
  walden explain --names 'host=/run/postgresql user=postgres' /archive/wal
      the same of an archive, with the names of tables and indexes
  walden explain --by relation,record --top 20 0000000100000A2B000000C5.zst
      one segment, each relation by kind of record
  walden explain --by time --every 1m --from '2026-11-20 22:00' --to '2026-11-21 02:00' /archive/wal
      one night, minute by minute
  walden explain --by checkpoint --format csv /archive/wal > cycles.csv
      each checkpoint cycle as a line for a spreadsheet
  walden explain --from '2026-11-20 22:00' s3://backups/main
      of an archive in an object store no more is read than the range needs
  walden explain /backup/base/pg_wal.tar.gz
      the WAL of a base backup in tar format
  walden explain --group 'tenant_(\\d+)' --names names.json /archive/wal
      by tenant, where each has tables or a schema of its own
  walden explain --by vacuum --by schema --names names.json /archive/wal
      what vacuum writes, by table; all of it by schema
  walden explain --log server.csv --by user --by statement --top 20 /archive/wal
      who wrote it: transactions joined with the server's own log
  walden explain --html wal.html --names names.json /archive/wal
      also write a page with charts
  walden explain --names 'host=/run/postgresql' --save-names names.json
      save the names, to explain elsewhere with --names names.json

Without --by: the largest parts and relations, and the findings; --full prints all tables.

Exit status: 0 done, 2 wrong usage, 3 input unreadable or damaged (the part before the damage is explained).";

/// Attribute every byte of WAL by relation, record, transaction, database, time, checkpoint
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// Segments, folders of segments (pg_wal, a data directory, an archive, compressed or not), tar files
    /// (pg_wal.tar or base.tar of pg_basebackup), archives of `walden archive` (a folder, or
    /// s3://BUCKET/PREFIX), or the connection string of a server on this machine, which also supplies names.
    /// Without a source, lists the servers of this machine
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,

    /// Another SOURCE, for users of pg_waldump
    #[arg(short, long, value_name = "SOURCE")]
    path: Vec<PathBuf>,

    /// Follow this timeline and its ancestors [default: the newest for an archive, else each timeline
    /// separately]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// Split by relation, record, xid, database, time, checkpoint, schema, partition, tablespace, group or
    /// vacuum, and with --log by user, application, client or statement; separate several by commas to
    /// combine them; repeatable
    #[arg(long, value_name = "DIMENSIONS", value_parser = parse_view)]
    by: Vec<ViewSpec>,

    /// Group relations by the text that this regular expression matches in DATABASE.SCHEMA.TABLE, or by its
    /// capture groups ('tenant_(\d+)'); adds a view by group unless --by has one
    #[arg(long, value_name = "REGEX", value_parser = parse_pattern)]
    group: Option<Regex>,

    /// Where to read the names of tables and indexes: a connection string, or a file written by --save-names;
    /// repeatable
    #[arg(long, value_name = "DSN|FILE")]
    names: Vec<String>,

    /// Save the names to this file
    #[arg(long, value_name = "FILE", requires = "names")]
    save_names: Option<PathBuf>,

    /// The server's log (csvlog, jsonlog, or stderr with %x in log_line_prefix; also compressed; any number
    /// of files, in any order), which shows who wrote the WAL, for --by user, application, client and
    /// statement [default: by user]
    #[arg(long, value_name = "FILE", num_args = 1)]
    log: Vec<PathBuf>,

    /// log_line_prefix of a log in text format [default: the one saved with the names, or a common one that
    /// matches]
    #[arg(long, value_name = "PREFIX", requires = "log")]
    log_line_prefix: Option<String>,

    /// Start with the first record at or after this LSN (16/B374D848) or time (2026-11-20 22:00, local time
    /// unless it has a zone)
    #[arg(long, visible_alias = "start", value_name = "LSN|TIME", value_parser = parse_bound)]
    from: Option<Bound>,

    /// End before the first record at or after this LSN or time
    #[arg(long, visible_alias = "end", value_name = "LSN|TIME", value_parser = parse_bound)]
    to: Option<Bound>,

    /// Interval of --by time, such as 10s, 5m, 1h [default: at most 60 intervals]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    every: Option<i64>,

    /// Rows of each table, with a last row for all remaining rows; 0: all [default: 10; all for json and csv]
    #[arg(long, value_name = "N")]
    top: Option<usize>,

    /// Also print images by compression, record types, transactions, checkpoints, and all findings
    #[arg(long)]
    full: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Also write an HTML page with charts that works offline: over time, checkpoints, relations
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Method for estimating savings of changed settings
    #[arg(long, value_name = "METHOD", value_enum, default_value_t)]
    savings: savings::Method,

    /// Number of threads that decode [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// Output formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Tables for the terminal
    Table,
    /// One JSON object, see docs/json.md
    Json,
    /// One line per group of the first --by, or per relation
    Csv,
}

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Result<ExitCode> {
    if args.log.is_empty() && args.by.iter().any(ViewSpec::is_by_writer) {
        crate::wrong_usage("--by user, application, client and statement need the server's log: --log FILE");
    }
    if args.group.is_none() && args.by.iter().any(|view| view.has(Dimension::Pattern)) {
        crate::wrong_usage("--by group needs a pattern: --group 'tenant_(\\d+)'");
    }
    let sources: Vec<PathBuf> = args.sources.iter().chain(&args.path).cloned().collect();
    if sources.is_empty() && args.save_names.is_none() {
        output::print_line(servers::without_source("explain").trim_end());
        return Ok(ExitCode::from(USAGE));
    }
    let (sources, servers) = servers::local_sources(sources)?;
    let wanted = [("--save-names", args.save_names.as_deref()), ("--html", args.html.as_deref())];
    output::can_write(&wanted, args.overwrite, &Inputs::new(sources.iter().chain(&args.log)))?;
    let name_sources = if args.names.is_empty() { servers } else { args.names.clone() };
    let mut names = load_names(args, &name_sources)?;
    if sources.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let inventory = sources::open(&sources, &source_range(args))?;
    sources::note_omitted(&inventory);
    names::check_cluster(&names, &inventory)?;
    let writers = load_log(args, &names)?;
    let explanation = explain(args, &inventory, writers.clone());
    let extent = || {
        let threads = args.threads.map_or_else(terminal::cores, usize::from);
        sources::describe_extent(&sources, &source_range(args), &inventory, threads)
    };
    let explanation = explanation.map_err(|error| match error.downcast_ref() {
        Some(ExplainError::TimeAfterEnd(_)) => output::with_hint(error.to_string(), extent()),
        _ => error,
    })?;
    sources::warn_of_step_back(explanation.step_back);
    if explanation.wal_bytes() == 0 && explanation.damage.is_none() && (args.from.or(args.to)).is_some() {
        eprintln!("warning: the range has no WAL: {}", extent());
    }
    let checkpoint_settings = names::complete(&mut names, &explanation);
    let top = args.top.or((args.format == Format::Table).then_some(10)).filter(|top| *top > 0);
    let context = Context {
        names: &names,
        checkpoint_settings,
        top,
        pattern: args.group.as_ref(),
        writers: writers.as_deref(),
    };
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let mut document = Document::new(&explanation, &context);
    let settings = (&names, checkpoint_settings);
    args.savings.write(&mut document, &explanation, &inventory.runs, settings, threads);
    if let Some(path) = &args.html {
        let top = Some(args.top.unwrap_or(explain_html::ROWS)).filter(|top| *top > 0);
        let mut page = Document::new(&explanation, &Context { top, ..context });
        page.findings.clone_from(&document.findings);
        output::write_page(path, &explain_html::page(&page), args.overwrite)?;
    }
    // The views added for the page and for causes by statement are the last ones.
    document.views.truncate(views(args).len());
    if !args.by.iter().any(|view| view.dimensions.contains(&Dimension::Checkpoint)) {
        document.cycles.clear();
    }
    match args.format {
        Format::Table if !args.full && args.by.is_empty() && document.views.is_empty() => {
            let lines = terminal::lines().unwrap_or(usize::MAX);
            terminal::print(&walden_report::explain::brief(&document, terminal::look(), lines))?;
        }
        format => print(&document, format)?,
    }
    Ok(sources::ended(&inventory, explanation.damage.as_deref()))
}

/// Returns the part of an archive to read. A checkpoint after the range shows where in the range a cycle
/// starts.
fn source_range(args: &ExplainArgs) -> SourceRange {
    let by_checkpoint = args.by.iter().any(|view| view.dimensions.contains(&Dimension::Checkpoint));
    match by_checkpoint || args.html.is_some() {
        true => SourceRange::all(args.timeline),
        false => SourceRange { timeline: args.timeline, from: args.from, to: args.to },
    }
}

/// Prints a document in a format.
pub fn print(document: &Document, format: Format) -> Result<()> {
    let text = match format {
        Format::Table => walden_report::explain::explain(document, terminal::look()),
        Format::Json => terminal::json(document)?,
        Format::Csv => walden_report::csv::explain(document)?,
    };
    terminal::print(&text)
}

/// Returns the requested views.
fn views(args: &ExplainArgs) -> Vec<ViewSpec> {
    let by_group = ViewSpec::by(Dimension::Pattern);
    let has = |wanted: fn(&ViewSpec) -> bool| args.by.iter().any(wanted);
    let group = (args.group.is_some() && !has(|view| view.has(Dimension::Pattern))).then_some(by_group);
    let user = (!args.log.is_empty() && !has(ViewSpec::is_by_writer)).then(|| ViewSpec::by(Dimension::User));
    args.by.iter().cloned().chain(group).chain(user).collect()
}

fn explain(args: &ExplainArgs, inventory: &Inventory, writers: Option<Arc<Writers>>) -> Result<Explanation> {
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let of_statements = (!args.log.is_empty()).then(ViewSpec::by_statement_and_cell);
    let own_views = args.html.iter().flat_map(|_| explain_html::views()).chain(of_statements);
    let top = match (args.top, args.format) {
        (Some(0), _) | (None, Format::Json | Format::Csv) => 1000,
        (Some(top), _) => top,
        (None, Format::Table) => 10,
    };
    let request = Request::new(threads)
        .views(views(args).into_iter().chain(own_views).collect())
        .top(if args.html.is_some() && args.top.is_none() { top.max(explain_html::ROWS) } else { top })
        .from(args.from)
        .to(args.to)
        .every(args.every)
        .writers(writers)
        .sample_images(args.savings.needs_sample());
    let total: u64 =
        inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
    let mut progress = Progress::bytes("reading", total);
    let explanation = walden_explain::explain(&inventory.runs, &request, |bytes| progress.advance(bytes))?;
    progress.finish();
    Ok(explanation)
}

/// Reads the server's log files, ordered by the time of their first entry because sessions continue from file
/// to file.
fn load_log(args: &ExplainArgs, names: &Names) -> Result<Option<Arc<Writers>>> {
    if args.log.is_empty() {
        return Ok(None);
    }
    let given = args.log_line_prefix.as_deref().or(names.settings.get("log_line_prefix").map(String::as_str));
    let prefix = given
        .map(Prefix::new)
        .transpose()
        .map_err(|error| anyhow::anyhow!("cannot use log_line_prefix: {error}"))?;
    let mut files: Vec<(Option<i64>, &PathBuf)> = args
        .log
        .iter()
        .map(|path| Ok((server_log::first_time(path, prefix.as_ref())?, path)))
        .collect::<Result<_>>()?;
    files.sort();
    let mut writers = Writers::default();
    for (_, path) in files {
        writers.begin_file();
        let fields = server_log::read(path, prefix.as_ref(), &mut |entry| writers.add(&entry))?;
        writers.end_file(fields);
    }
    Ok(Some(Arc::new(writers)))
}

fn load_names(args: &ExplainArgs, sources: &[String]) -> Result<Names> {
    let names = names::load(sources)?;
    if let Some(path) = &args.save_names {
        if names.relations().next().is_none() {
            let error = format!(
                "cannot save names to {}: no names of relations were read; the file is not changed",
                path.display()
            );
            return Err(output::with_hint(
                error,
                "see the warnings about the databases; the role may need CONNECT, or a longer statement_timeout",
            ));
        }
        let saved = output::write_names(path, &names, args.overwrite);
        saved.with_context(|| format!("cannot save names to {}", path.display()))?;
        if std::io::stderr().is_terminal() {
            eprintln!("saved the names to {}", path.display());
        }
    }
    Ok(names)
}

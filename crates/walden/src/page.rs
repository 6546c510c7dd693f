//! `walden page`: shows a block's history, and its page at an LSN.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;
use walden_explain::Bound;
use walden_format::lsn::Lsn;
use walden_format::record::Fork;
use walden_output::Inputs;
use walden_redo::Page;
use walden_redo::describe::follow::Snapshot;
use walden_report::table::Look;
use walden_source::block::{BlockError, BlockHistory, END, Reason, find_block, shown};
use walden_source::datadir::DataDir;

use crate::output::Overwrite;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::terminal::Format;
use crate::{DAMAGED, FOUND, USAGE, names, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden page /archive/wal --relation 1663/5/16384 --block 7
      every record that touched the block
  walden page /archive/wal --names 'host=/run/postgresql' --relation public.orders --block 7 --at 0/5E3A1F0
      the content of the page after the last record that ends at this LSN or before
  walden page /archive/wal --relation base/5/16384 --block 7 --diff 0/5E00000 end
      the changes of the page since then
  walden page /archive/wal --base /backups/monday --relation base/5/16384 --block 7 --at end --out page.bin
      the page as it has to be, to put in the place of a damaged one; see docs/recover-block.md

Exit status: 0 done, 1 the page is not known at that LSN, 2 wrong usage, 3 input unreadable or damaged.";

/// Show one block's history: every record that changed it, its page at any LSN, the differences between two
/// LSNs
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PageArgs {
    /// Segments, folders of segments (pg_wal, a data directory, an archive, compressed or not), or archives
    /// of `walden archive` (a folder, or s3://BUCKET/PREFIX)
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// Follow the WAL history that ends on this timeline, including its ancestors [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// The relation: TABLESPACE/DATABASE/FILE as numbers, a path such as base/5/16384 as in the server's
    /// messages, or with --names the name of a table or index
    #[arg(long, value_name = "SPC/DB/REL|PATH|NAME")]
    relation: String,

    /// The block's number, counted across all files of the fork
    #[arg(long, value_name = "N")]
    block: u32,

    /// The fork [default: the path's fork, otherwise main]
    #[arg(long, value_enum)]
    fork: Option<ForkName>,

    /// Where to read the names of tables and indexes: a connection string, or a file written by `walden
    /// explain --save-names`
    #[arg(long, value_name = "DSN|FILE")]
    names: Vec<String>,

    /// A base backup, or a copy of a stopped data directory, from which the WAL continues
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// Show the page as of the last record that ends at or before this LSN; `end` is the end of the WAL
    #[arg(long, value_name = "LSN", value_parser = parse_moment)]
    at: Option<Lsn>,

    /// Show what changed between the pages at two LSNs
    #[arg(long, num_args = 2, value_names = ["LSN1", "LSN2"], value_parser = parse_moment, conflicts_with_all = ["at", "out"])]
    diff: Vec<Lsn>,

    /// Write the page's 8192 bytes to a file instead of showing it
    #[arg(long, value_name = "FILE", requires = "at")]
    out: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Whether to set the page's checksum; auto sets the checksum unless the base backup shows that the
    /// cluster has no checksums (a cluster without checksums ignores it)
    #[arg(long, value_enum, default_value_t = ChecksumMode::Auto, requires = "out")]
    checksum: ChecksumMode,

    /// Output format; docs/json.md describes the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ForkName {
    Main,
    Fsm,
    Vm,
    Init,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ChecksumMode {
    On,
    Off,
    Auto,
}

/// Runs the command.
pub fn run(args: &PageArgs) -> Result<ExitCode> {
    let names = names::load(&args.names)?;
    let fork = args.fork.map(|fork| match fork {
        ForkName::Main => Fork::MAIN,
        ForkName::Fsm => Fork::FREE_SPACE_MAP,
        ForkName::Vm => Fork::VISIBILITY_MAP,
        ForkName::Init => Fork::INIT,
    });
    let key = match find_block(&args.relation, fork, args.block, &names, !args.names.is_empty()) {
        Ok(key) => key,
        Err(problem) => return Ok(fail(USAGE, &problem)),
    };
    let inputs = Inputs::new(args.sources.iter().chain(&args.base));
    output::can_write(&[("--out", args.out.as_deref())], args.overwrite, &inputs)?;
    let moments: Vec<Lsn> = args.at.iter().chain(&args.diff).copied().collect();
    let latest = moments.iter().max().filter(|&&latest| latest != END);
    let to = latest.map(|&latest| Bound::Lsn(latest));
    let inventory = sources::open(&args.sources, &SourceRange { timeline: args.timeline, from: None, to })?;
    sources::note_omitted_after_base(&inventory, args.base.as_deref());
    names::check_cluster(&names, &inventory)?;
    if let Err(error) = sources::expect_one_cluster(&inventory) {
        return Ok(fail(USAGE, &error.to_string()));
    }
    let has_unreadable = sources::report_unreadable(&inventory);
    let base = args.base.as_deref().map(DataDir::open_at_rest).transpose()?;
    let total = inventory.runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
    let mut progress = Progress::bytes("replaying", total);
    let history = BlockHistory::read(
        &inventory.runs,
        (key, &args.relation),
        &names,
        base,
        &moments,
        terminal::cores(),
        |bytes| progress.advance(bytes),
    );
    progress.finish();
    let history = match history {
        Ok(history) => history,
        Err(error @ BlockError::OtherCluster { .. }) => return Ok(fail(USAGE, &error.to_string())),
        Err(error) => return Err(error.into()),
    };
    for note in &history.notes {
        eprintln!("note: {note}");
    }
    let is_known = match moments.as_slice() {
        [] => print_history(args, &history)?,
        [_] => print_page(args, &history)?,
        _ => print_changes(args, &history)?,
    };
    if let Some(damage) = &history.damage {
        output::report_diagnostic(damage);
        return Ok(ExitCode::from(DAMAGED));
    }
    Ok(match (has_unreadable, is_known) {
        (true, _) => ExitCode::from(DAMAGED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(FOUND),
    })
}

fn fail(code: u8, problem: &str) -> ExitCode {
    eprintln!("error: {problem}");
    ExitCode::from(code)
}

/// Prints why a page is not known.
fn print_reason(reason: &Reason) {
    eprintln!("error: {}", reason.text);
    if let Some(hint) = reason.hint {
        eprintln!("hint: {hint}");
    }
}

/// Prints the records that touched the block. Returns false without such records.
fn print_history(args: &PageArgs, history: &BlockHistory) -> Result<bool> {
    if history.records().is_empty() {
        print_reason(&history.absent());
        return Ok(false);
    }
    match args.format {
        Format::Json => {
            let mut document = history.document();
            document["end_lsn"] = json!(history.end().to_string());
            document["records"] = history.entries();
            terminal::print(&terminal::json(&document)?)?;
        }
        Format::Table => {
            let title =
                format!("{}: {} records to {}", history.label(), history.records().len(), history.end());
            terminal::print(&walden_report::page::history(look(), &title, history.records()))?;
        }
    }
    Ok(true)
}

/// Prints the page at an LSN, or writes it to a file. Returns false if it is not known.
fn print_page(args: &PageArgs, history: &BlockHistory) -> Result<bool> {
    let Some(snapshot) = history.snapshots().first() else { return Ok(false) };
    let page = match history.page(snapshot) {
        Ok(page) => page,
        Err(reason) => {
            print_reason(&reason);
            if args.format == Format::Json {
                let mut document = history.document();
                document["moment"] = history.moment(snapshot);
                terminal::print(&terminal::json(&document)?)?;
            }
            return Ok(false);
        }
    };
    if let Some(path) = &args.out {
        write(args, history, path, page, snapshot)?;
        return Ok(true);
    }
    let described = history.describe(snapshot, page);
    match args.format {
        Format::Json => {
            let mut document = history.document();
            document["moment"] = history.moment(snapshot);
            document["page"] = serde_json::to_value(&described)?;
            terminal::print(&terminal::json(&document)?)?;
        }
        Format::Table => {
            let title = format!("{} at {}: {}", history.label(), shown(snapshot), described.kind);
            terminal::print(&walden_report::page::description(look(), &title, &described))?;
        }
    }
    Ok(true)
}

/// Prints what changed between two LSNs. Returns false if one of the pages is not known.
fn print_changes(args: &PageArgs, history: &BlockHistory) -> Result<bool> {
    let [first, second] = history.snapshots() else { return Ok(false) };
    let changes = match history.changes(first, second) {
        Ok(changes) => changes,
        Err(reason) => {
            print_reason(&reason);
            return Ok(false);
        }
    };
    match args.format {
        Format::Json => {
            let mut document = history.document();
            document["before"] = history.moment(first);
            document["after"] = history.moment(second);
            document["changes"] = serde_json::to_value(&changes)?;
            terminal::print(&terminal::json(&document)?)?;
        }
        Format::Table => {
            let title = format!("{} from {} to {}", history.label(), shown(first), shown(second));
            terminal::print(&walden_report::page::changes(look(), &title, &changes))?;
        }
    }
    Ok(true)
}

/// Writes a page to a file, and prints how it is put into the place of a damaged one.
fn write(
    args: &PageArgs,
    history: &BlockHistory,
    path: &Path,
    page: &Page,
    snapshot: &Snapshot,
) -> Result<()> {
    let checksum = match args.checksum {
        ChecksumMode::On => Some(true),
        ChecksumMode::Off => Some(false),
        ChecksumMode::Auto => None,
    };
    output::write(path, history.stored_page(page, checksum).0, args.overwrite)?;
    let (file, place, seek) = history.place();
    let (label, at, lsn, path) = (history.label(), shown(snapshot), page.lsn(), path.display());
    eprintln!(
        "wrote {label} as of {at}, with the page LSN {lsn}, to {path}\n\
         with the server stopped, it goes into {file} at offset {place}:\n  \
         dd if={path} of=\"$PGDATA\"/{file} bs=8192 seek={seek} count=1 conv=notrunc,fsync"
    );
    Ok(())
}

/// Returns the appearance of tables. Output to a file is not shortened to a terminal's width.
fn look() -> Look {
    let width = if std::io::stdout().is_terminal() { terminal::width() } else { 120 };
    Look { width, ..terminal::look() }
}

fn parse_moment(text: &str) -> Result<Lsn, String> {
    if text.eq_ignore_ascii_case("end") {
        return Ok(END);
    }
    text.parse().map_err(|error| format!("{error}, or `end`"))
}

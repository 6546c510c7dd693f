//! `walden page`: shows a block's history, and its page at an LSN.

mod json;
mod key;

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use walden_explain::Bound;
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, Record};
use walden_format::rmgr::Kind;
use walden_format::stream::Visitor;
use walden_redo::Page;
use walden_redo::describe::diff::diff;
use walden_redo::describe::follow::{Base, Follow, PageState, Snapshot};
use walden_redo::describe::{Description, describe};
use walden_redo::page::checksum;
use walden_redo::{BlockKey, Unknown};
use walden_report::table::Look;
use walden_source::datadir::DataDir;
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan_in_order};

pub(crate) use self::key::parse_file;
use self::key::{label, ranges, wanted};
use crate::base::{self, BasePage};
use crate::output::Overwrite;
use crate::progress::Progress;
use crate::protect::Inputs;
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

    /// Names of tables and indexes: a connection string, or a file written by `walden explain --save-names`
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

    /// Whether to set the page's checksum; auto sets it unless the base backup shows that the cluster has no
    /// checksums (such a cluster ignores it)
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

/// The end of the WAL.
const END: Lsn = Lsn(u64::MAX);

/// Runs the command.
pub fn run(args: &PageArgs) -> Result<ExitCode> {
    let names = names::load(&args.names)?;
    let key = match wanted(args, &names) {
        Ok(key) => key,
        Err(problem) => return Ok(fail(USAGE, &problem)),
    };
    let inputs = Inputs::new(args.sources.iter().chain(&args.base));
    output::can_write(&[("--out", args.out.as_deref())], args.overwrite, &inputs)?;
    let latest = args.at.iter().chain(&args.diff).max().filter(|&&latest| latest != END);
    let to = latest.map(|&latest| Bound::Lsn(latest));
    let inventory = sources::open(&args.sources, &SourceRange { timeline: args.timeline, from: None, to })?;
    sources::tell_about_with_base(&inventory, args.base.as_deref());
    names::check_cluster(&names, &inventory)?;
    if let Err(error) = sources::expect_one_cluster(&inventory) {
        return Ok(fail(USAGE, &error.to_string()));
    }
    let has_unreadable = sources::report_unreadable(&inventory);
    let base = args.base.as_deref().map(DataDir::open_at_rest).transpose()?;
    if let (Some(base), Some(run)) = (&base, inventory.runs.first())
        && base.control().system_identifier != run.system_id
    {
        let (backup, log) = (base.control().system_identifier, run.system_id);
        let problem = format!(
            "the base backup is of the cluster with the system identifier {backup}, the WAL is of {log}"
        );
        return Ok(fail(USAGE, &problem));
    }
    let mut view = View { args, key, label: label(key, &names), base, notes: Vec::new(), damage: None };
    let mut follow = match (args.at, args.diff.as_slice()) {
        (None, []) => Follow::history(key),
        (None, moments) => Follow::at(key, moments),
        (Some(at), _) => Follow::at(key, &[at]),
    };
    let from = view.take_base(&mut follow)?;
    let (start, end) = view.scan(&inventory.runs, from, &mut follow);
    view.check_base(start, end);
    for note in &view.notes {
        eprintln!("note: {note}");
    }
    let code = if args.at.is_some() {
        view.moment(&follow, (start, end))?
    } else if args.diff.is_empty() {
        view.history(&follow, end)?
    } else {
        view.difference(&follow, (start, end))?
    };
    if let Some(damage) = &view.damage {
        eprintln!("error: {damage}\nhint: {}", damage.hint());
        return Ok(ExitCode::from(DAMAGED));
    }
    if has_unreadable {
        return Ok(ExitCode::from(DAMAGED));
    }
    Ok(code)
}

fn fail(code: u8, problem: &str) -> ExitCode {
    eprintln!("error: {problem}");
    ExitCode::from(code)
}

/// The requested block, and errors found while following it.
struct View<'a> {
    args: &'a PageArgs,
    key: BlockKey,
    label: String,
    base: Option<DataDir>,
    notes: Vec<String>,
    damage: Option<Damage>,
}

impl View<'_> {
    /// Passes the backup's page to the follower. Returns the LSN from which the WAL is needed.
    fn take_base(&mut self, follow: &mut Follow) -> Result<Option<Lsn>> {
        let Some(base) = &mut self.base else { return Ok(None) };
        let redo = base.redo_from();
        follow.with_hint_settings(base.control().hint_settings());
        match base::read(base, self.key)? {
            BasePage::Page(page) => {
                follow.with_base(Base { redo, page });
                // A history covers all of the WAL, and an LSN before the backup needs earlier WAL.
                let moments = self.args.at.iter().chain(&self.args.diff);
                let earliest = moments.min().filter(|&&earliest| earliest >= redo);
                return Ok(earliest.map(|_| redo));
            }
            BasePage::Missing => {
                let file = base::file_path(self.key, base.control().blocks_per_segment);
                self.notes.push(format!("the base backup does not have this block (in {file})"));
            }
            BasePage::Damaged => {
                let file = base::file_path(self.key, base.control().blocks_per_segment);
                self.notes.push(format!(
                    "the block's checksum is wrong in the base backup (in {file}): it was half written then, or is damaged"
                ));
            }
        }
        Ok(None)
    }

    /// Replays the segments in order. Returns the start of the first run that was read, and the LSN up to
    /// which the WAL could be read. If nothing had to be read, returns the start and end of all runs.
    fn scan(&mut self, runs: &[Run], from: Option<Lsn>, follow: &mut Follow) -> (Lsn, Lsn) {
        let total = runs.iter().map(|run| run.segments.len() as u64 * run.segment_size.bytes()).sum();
        let mut progress = Progress::bytes("replaying", total);
        let latest = self.args.at.iter().chain(&self.args.diff).max().copied();
        let mut visitor = Following { follow };
        let (mut start, mut reached) = (None, None);
        for (index, run) in runs.iter().enumerate() {
            let run_start = run.segments[0].start;
            // The first segment of a new timeline repeats the old one's records up to the switch.
            let next = runs.get(index + 1).filter(|next| next.timeline > run.timeline);
            let to = next.map(|next| next.segments[0].start);
            if to.is_some_and(|to| to <= run_start) || latest.is_some_and(|latest| latest < run_start) {
                continue;
            }
            let segments_end = run_start.plus(run.segments.len() as u64 * run.segment_size.bytes());
            if from.is_some_and(|from| segments_end <= from) {
                continue;
            }
            if let Some(reached) = reached.filter(|&reached| reached < run_start) {
                visitor.follow.gap(reached, run_start);
            }
            let options = ScanOptions::new(crate::terminal::cores()).from(from).to(to);
            let (position, ended) =
                scan_in_order(run, options, &mut visitor, |bytes| progress.advance(bytes));
            start.get_or_insert(run_start);
            reached = Some(position);
            if let SegmentEnd::Damaged(damage) = ended {
                self.damage = Some(damage);
                break;
            }
            if visitor.follow.is_done() {
                break;
            }
        }
        progress.finish();
        follow.finish(reached.unwrap_or(Lsn::INVALID));
        let first = runs.first().map_or(Lsn::INVALID, |run| run.segments[0].start);
        // Nothing was read if the WAL starts after all requested LSNs, or ends before the base backup.
        let last = runs.iter().map(Run::end).max().unwrap_or(Lsn::INVALID);
        (start.unwrap_or(first), reached.unwrap_or(last))
    }

    /// Notes why a backup could not be used.
    fn check_base(&mut self, start: Lsn, end: Lsn) {
        let Some(base) = &self.base else { return };
        let redo = base.redo_from();
        if start > redo {
            self.notes.push(format!(
                "the base backup needs WAL from {redo} on, this WAL starts at {start}: the backup's page is not used"
            ));
        } else if end < redo {
            self.notes.push(format!(
                "the base backup starts at {redo}, after the end of this WAL at {end}: its page is not used"
            ));
        }
    }

    fn history(&self, follow: &Follow, end: Lsn) -> Result<ExitCode> {
        if follow.history.is_empty() {
            self.say_not_there(follow);
            return Ok(ExitCode::from(FOUND));
        }
        match self.args.format {
            Format::Json => {
                let mut document = self.document();
                document["end_lsn"] = json!(end.to_string());
                document["records"] = follow.history.iter().map(json::entry).collect();
                terminal::print(&terminal::json(&document)?)?;
            }
            Format::Table => {
                let title = format!("{}: {} records to {end}", self.label, follow.history.len());
                terminal::print(&walden_report::page::history(look(), &title, &follow.history))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn moment(&self, follow: &Follow, range: (Lsn, Lsn)) -> Result<ExitCode> {
        let Some(snapshot) = follow.snapshots.first() else { return Ok(ExitCode::from(FOUND)) };
        let version = follow.version();
        let Some(page) = self.known(snapshot, follow, range) else {
            if self.args.format == Format::Json {
                let mut document = self.document();
                document["moment"] = json::moment(snapshot, version);
                terminal::print(&terminal::json(&document)?)?;
            }
            return Ok(ExitCode::from(FOUND));
        };
        if let Some(path) = &self.args.out {
            self.write(path, page, snapshot)?;
            return Ok(ExitCode::SUCCESS);
        }
        let described = describe(page, self.key.fork, self.key.block, last_kind(snapshot));
        match self.args.format {
            Format::Json => {
                let mut document = self.document();
                document["moment"] = json::moment(snapshot, version);
                document["page"] = serde_json::to_value(&described)?;
                terminal::print(&terminal::json(&document)?)?;
            }
            Format::Table => {
                let title = format!("{} at {}: {}", self.label, shown(snapshot), described.kind);
                terminal::print(&walden_report::page::description(look(), &title, &described))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn difference(&self, follow: &Follow, range: (Lsn, Lsn)) -> Result<ExitCode> {
        let [first, second] = follow.snapshots.as_slice() else { return Ok(ExitCode::from(FOUND)) };
        let Some(before) = self.known(first, follow, range) else { return Ok(ExitCode::from(FOUND)) };
        let Some(after) = self.known(second, follow, range) else { return Ok(ExitCode::from(FOUND)) };
        let of = |page: &Page, snapshot| -> Description {
            describe(page, self.key.fork, self.key.block, last_kind(snapshot))
        };
        let changes = diff(&of(before, first), &of(after, second));
        match self.args.format {
            Format::Json => {
                let version = follow.version();
                let mut document = self.document();
                document["before"] = json::moment(first, version);
                document["after"] = json::moment(second, version);
                document["changes"] = serde_json::to_value(&changes)?;
                terminal::print(&terminal::json(&document)?)?;
            }
            Format::Table => {
                let title = format!("{} from {} to {}", self.label, shown(first), shown(second));
                terminal::print(&walden_report::page::changes(look(), &title, &changes))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the page of a snapshot. If the page is not known, prints the reason and a hint.
    fn known<'s>(
        &self,
        snapshot: &'s Snapshot,
        follow: &Follow,
        (start, end): (Lsn, Lsn),
    ) -> Option<&'s Page> {
        let at = snapshot.at;
        if at != END && (snapshot.is_beyond || at < start) {
            eprintln!("error: the WAL that was read is from {start} to {end}, and does not contain {at}");
            return None;
        }
        if at == END && self.damage.is_some() {
            eprintln!("error: cannot determine the end of the WAL: it cannot be read from {end} on");
            return None;
        }
        if let Some(page) = snapshot.page.as_deref() {
            return Some(page);
        }
        if snapshot.state == PageState::Untouched && !follow.blocks.contains(&self.key.block) {
            self.say_not_there(follow);
            return None;
        }
        let label = &self.label;
        let why = match snapshot.state {
            PageState::Untouched => "no record before touched it".into(),
            PageState::Gone => "its file was removed, truncated or created again".into(),
            state => state.to_string(),
        };
        eprintln!("error: {label} is not known at {}: {why}", shown(snapshot));
        let hint = match snapshot.state {
            PageState::Untouched | PageState::Unknown(Unknown::NotSeen) if self.base.is_none() => {
                "give earlier segments, back to an image of the page (the first change after a checkpoint has one), or \
                 a base backup with --base and all segments from its start on"
            }
            PageState::Untouched | PageState::Unknown(Unknown::NotSeen) => {
                "give earlier segments, back to an image of the page or to the base backup's start"
            }
            PageState::Gap { .. } => "give the missing segments, too",
            PageState::Unknown(Unknown::Misfit(_)) => {
                "the segments, or the base backup, may be of another time line or damaged; later pages are known again \
                 after the next image"
            }
            PageState::Unknown(Unknown::DatabaseCopied) => {
                "the page is that of the database that was copied, so far"
            }
            PageState::Unknown(Unknown::Lost) => "check the files of the base backup",
            PageState::Untracked => {
                "the page is known again after its next image: see the block's history without --at"
            }
            PageState::Ahead(_) => "ask for a later moment, or take an older base backup",
            PageState::Gone | PageState::Exact => return None,
        };
        eprintln!("hint: {hint}");
        None
    }

    /// Prints which blocks the WAL contains if the requested one is missing.
    fn say_not_there(&self, follow: &Follow) {
        let fork = match self.key.fork {
            Fork::MAIN => String::new(),
            fork => format!(" of fork {fork}"),
        };
        let file = self.key.relation;
        let wanted = &self.args.relation;
        let is_file = *wanted == file.to_string();
        let relation = if is_file { file.to_string() } else { format!("{wanted} ({file})") };
        let latest = self.args.at.iter().chain(&self.args.diff).max().filter(|&&latest| latest != END);
        let up_to = latest.map(|latest| format!(" up to {latest}")).unwrap_or_default();
        if !follow.blocks.is_empty() {
            let blocks = ranges(follow.blocks.iter().copied());
            eprintln!(
                "error: no record{up_to} touches block {} of {relation}; blocks{fork} that records touch: {blocks}",
                self.key.block
            );
        } else if follow.relation_seen {
            eprintln!("error: no record{up_to} touches {relation}{fork}, only other forks of it");
        } else if latest.is_some() {
            eprintln!(
                "error: no record{up_to} touches {relation}\nhint: ask for a later moment: the relation may be created, or get \
                 this file, later"
            );
        } else {
            eprintln!(
                "error: no record touches {relation}\nhint: `walden explain --by relation` lists the files that records \
                 touch; a relation gets a new file when it is rewritten (VACUUM FULL, CLUSTER, REINDEX, TRUNCATE)"
            );
        }
    }

    fn write(&self, path: &Path, page: &Page, snapshot: &Snapshot) -> Result<()> {
        let mut page = walden_redo::PageBox::from(page);
        let none = self.base.as_ref().is_some_and(|base| base.control().data_checksum_version == 0);
        let set = match self.args.checksum {
            ChecksumMode::On => true,
            ChecksumMode::Off => false,
            ChecksumMode::Auto => !none,
        };
        if set {
            checksum::set_checksum(&mut page, self.key.block);
        }
        output::write(path, page.0, self.args.overwrite)?;
        let file_blocks =
            self.base.as_ref().map_or(base::FILE_BLOCKS, |base| base.control().blocks_per_segment);
        let file = base::file_path(self.key, file_blocks);
        let seek = self.key.block % file_blocks;
        let (place, path) = (base::offset_in_file(self.key.block, file_blocks), path.display());
        let (label, at, lsn) = (&self.label, shown(snapshot), page.lsn());
        eprintln!(
            "wrote {label} as of {at}, with the page LSN {lsn}, to {path}\n\
             with the server stopped, it goes into {file} at offset {place}:\n  \
             dd if={path} of=\"$PGDATA\"/{file} bs=8192 seek={seek} count=1 conv=notrunc,fsync"
        );
        Ok(())
    }

    fn document(&self) -> Value {
        json!({
            "relation": self.label,
            "file": self.key.relation.to_string(),
            "fork": self.key.fork.to_string(),
            "block": self.key.block,
        })
    }
}

/// A visitor that stops when no more records are needed.
struct Following<'a> {
    follow: &'a mut Follow,
}

impl Visitor for Following<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.follow.record(record);
        if self.follow.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Returns the appearance of tables. Output to a file is not shortened to a terminal's width.
fn look() -> Look {
    let width = if std::io::stdout().is_terminal() { terminal::width() } else { 120 };
    Look { width, ..terminal::look() }
}

/// Returns the kind of the record that last changed the page.
fn last_kind(snapshot: &Snapshot) -> Option<Kind> {
    snapshot.last.map(|last| last.kind)
}

fn shown(snapshot: &Snapshot) -> String {
    if snapshot.at == END {
        format!("the end of the WAL, {}", snapshot.reached)
    } else {
        snapshot.at.to_string()
    }
}

fn parse_moment(text: &str) -> Result<Lsn, String> {
    if text.eq_ignore_ascii_case("end") {
        return Ok(END);
    }
    text.parse().map_err(|error| format!("{error}, or `end`"))
}

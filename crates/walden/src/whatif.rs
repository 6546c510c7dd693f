//! `walden whatif`: predicts the WAL under other settings.

mod price;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Result, bail};
use clap::Args;
use walden_archive::cost::{CLASSES, Class, OwnPrices};
use walden_explain::Bound;
use walden_explain::Timeline;
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_format::version::Major;
use walden_output::Inputs;
use walden_report::{svg, sweep, whatif_html};
use walden_source::base::{base_pages, open_base};
use walden_source::counted;
use walden_source::inventory::{Inventory, Run};
use walden_source::names::Names;
use walden_whatif::advise::{self, Aim};
use walden_whatif::document::{Document, Recovery};
use walden_whatif::measure::{compressors, sample_bytes};
use walden_whatif::objects::ObjectChange;
use walden_whatif::recovery_file;
use walden_whatif::relations::{self, NamedChanges, Relations};
use walden_whatif::settings::{Effect, Settings};
use walden_whatif::{Forecast, OpenBase, PredictError, Question, predict};

use self::price::Priced;
use crate::arguments::{parse_bound, parse_size};
use crate::output::Overwrite;
use crate::progress::Progress;
use crate::sources::{self, SourceRange};
use crate::terminal::Format;
use crate::{memory, names, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden whatif /archive/wal --set max_wal_size=8GB
      how much WAL the same work would write with checkpoints further apart, and how long recovery could take
  walden whatif /archive/wal --set wal_compression=zstd --set full_page_writes=on
      two settings changed together
  walden whatif /archive/wal --sweep max_wal_size=512MB,1GB,2GB,4GB,8GB,16GB
      a curve; several --sweep are crossed
  walden whatif /archive/wal --sweep max_wal_size=1GB,8GB --sweep wal_compression=off,lz4,zstd --html whatif.html
      the same as a page with charts
  walden whatif /archive/wal --traced max_wal_size=1GB --names 'host=/run/postgresql'
      give settings of the server that the WAL does not show
  walden whatif /archive/wal --advise 'halve the WAL with recovery under 2 minutes'
      settings that reach an aim, as ALTER SYSTEM lines

Sizes are distances of LSNs: WAL as written, before any compression by an archive.

Exit status: 0 done, 2 wrong usage, 3 input unreadable or damaged (the part before the damage is predicted).";

/// Predict how much WAL the same work would write under other settings, before trying them on a server
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WhatifArgs {
    /// Segments, folders of segments, or archives of `walden archive` (a folder, or s3://BUCKET/PREFIX): a
    /// trace of the work, best over several checkpoints. A trace without checkpoints does not show what
    /// triggers them, and each page counts as changed for the first time
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// Follow the WAL history that ends on this timeline, including its ancestors [default: of an archive the
    /// newest; otherwise each timeline separately]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<u32>,

    /// A setting to try, as in postgresql.conf; several are changed together
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,

    /// A setting to try with several values, in addition to --set; repeated options try all combinations
    #[arg(long, value_name = "NAME=A,B,C", value_parser = parse_sweep)]
    sweep: Vec<Sweep>,

    /// Predict without this index. A name requires --names; otherwise use TABLESPACE/DATABASE/FILE
    #[arg(long, value_name = "INDEX")]
    drop_index: Vec<String>,

    /// Predict with an additional B-tree index on a table, with keys of BYTES bytes. The result is a range
    /// from ascending to random keys
    #[arg(long, value_name = "TABLE:BYTES", value_parser = parse_index)]
    add_index: Vec<(String, u32)>,

    /// Predict with another fillfactor of a table, in per cent. The result is a range, depending on how many
    /// updates become HOT
    #[arg(long, value_name = "TABLE=PERCENT", value_parser = parse_fill)]
    fillfactor: Vec<(String, u8)>,

    /// A setting under which the trace was written, if the trace does not show it
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    traced: Vec<(String, String)>,

    /// The server's settings: a connection string, or a file written by explain's --save-names
    #[arg(long, value_name = "DSN|FILE")]
    names: Vec<String>,

    /// A base backup in plain format, or a stopped server's data directory, from before the trace, for pages
    /// that the WAL alone does not contain
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,

    /// Start with the first record at or after this LSN or time; earlier records are only replayed
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound)]
    from: Option<Bound>,

    /// End before the first record at or after this LSN or time
    #[arg(long, value_name = "LSN|TIME", value_parser = parse_bound)]
    to: Option<Bound>,

    /// Search for settings that reach a goal: 'halve the WAL', 'WAL under 200GB a day', 'with recovery under
    /// 2 minutes', 'disk under 20GB', 'processor time under 5%', 'without compression'
    #[arg(long, value_name = "AIM", conflicts_with_all = ["set", "sweep"], value_parser = Aim::parse)]
    advise: Option<Aim>,

    /// Predict the size of archives, compressed by `walden compress` and, if given, by --archiver
    #[arg(long)]
    archive: bool,

    /// The archive's command that compresses standard input to standard output, such as 'gzip' or 'zstd -3'
    #[arg(long, value_name = "COMMAND")]
    archiver: Option<String>,

    /// The store of `walden archive`, for the price of a month: s3/STANDARD, s3/GLACIER_IR, gs/NEARLINE,
    /// az/Cool, ...
    #[arg(long, value_name = "STORE/CLASS", value_parser = parse_class, requires = "archive")]
    storage_class: Option<&'static Class>,

    /// Prices instead of list prices: storage=0.02,put=0.005, per GB and month, and 1000 requests
    #[arg(long, value_name = "PRICES", value_parser = OwnPrices::parse, requires = "archive")]
    price: Option<OwnPrices>,

    /// Days for which the archive keeps WAL, for the price of a month
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    keep_days: u32,

    /// Recovery speed of this server in bytes per second, such as 80MB [default: by records, images and
    /// pages]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    redo_rate: Option<usize>,

    /// Recovery rates from `walden bench redo --calibrate` [default: those measured on this machine, if any]
    #[arg(long, value_name = "FILE", conflicts_with = "redo_rate")]
    recovery_rates: Option<PathBuf>,

    /// Compress every image, not just a sample of each table's: slower, but without sampling error
    #[arg(long)]
    all_images: bool,

    /// Memory for pages, such as 512MB or 4GB; more pages than fit go to a temporary file (TMPDIR) [default:
    /// a quarter of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Also write a page with charts: curves of the sweeps, bytes by cause, checkpoints, uncertainty
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Also write the curve of a swept setting as an SVG image; a second curve goes to FILE with -2 in its
    /// name
    #[arg(long, value_name = "FILE", requires = "sweep")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Output format; docs/json.md describes the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl WhatifArgs {
    /// Returns the changes of tables and indexes.
    fn named_changes(&self) -> NamedChanges {
        NamedChanges::default()
            .drop_index(self.drop_index.clone())
            .add_index(self.add_index.clone())
            .fillfactor(self.fillfactor.clone())
    }
}

/// A setting and its values.
#[derive(Clone, Debug)]
struct Sweep {
    name: String,
    values: Vec<String>,
}

impl Sweep {
    /// Returns whether several values are numbers, so that a curve can be drawn.
    fn has_numbers(&self) -> bool {
        self.values.iter().filter_map(|value| sweep::quantity(value)).count() > 1
    }
}

/// Runs the command.
pub fn run(args: &WhatifArgs) -> Result<ExitCode> {
    let aim = args.advise;
    if args.svg.is_some() && !args.sweep.iter().any(Sweep::has_numbers) {
        crate::wrong_usage(
            "--svg draws a curve: sweep a setting whose values are numbers, such as max_wal_size",
        );
    }
    can_write(args)?;
    let recovery = recovery(args)?;
    let inventory =
        sources::open(&args.sources, &SourceRange { timeline: args.timeline, from: None, to: args.to })?;
    sources::note_omitted_after_base(&inventory, args.base.as_deref());
    sources::expect_one_cluster(&inventory)?;
    let base = args.base.as_deref().map(|path| open_base(path, &inventory.runs)).transpose()?;
    let run = match &base {
        Some((at, _)) => &inventory.runs[*at],
        None => the_run(&inventory)?,
    };
    let mut named = names::load(&args.names)?;
    names::check_cluster(&named, &inventory)?;
    let changes = match &aim {
        Some(aim) => advise::candidates(aim, run.version, run.segment_size),
        None => changes(args),
    };
    let mut notes = check_names(&changes, run)?;
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let (from, to) = bounds(args, &inventory, threads)?;
    let mut files = Vec::new();
    if !args.named_changes().is_empty() {
        // Refuses a wrong name before reading the WAL.
        objects(args, &named, &files);
        let mut progress = Progress::bytes("reading", run.segments.len() as u64 * run.segment_size.bytes());
        files = relations::learn(&mut named, run, threads, |bytes| progress.advance(bytes))?;
        progress.finish();
    }
    let open = || base_pages(args.base.as_deref());
    let mut question = Question {
        base: base.as_ref().map(|(_, data)| (data.redo_from(), &open as OpenBase<'_>)),
        from,
        to,
        traced: args.traced.clone(),
        server: walden_whatif::learn::settings_from_server(&named.settings),
        changes,
        objects: objects(args, &named, &files),
        all_images: args.all_images,
        threads,
        memory_bytes: args.memory.unwrap_or_else(memory::quarter_of_machine),
    };
    let mut forecast = ask(run, &question)?;
    if let Some(finer) = aim.as_ref().and_then(|aim| finer_candidates(&forecast, aim, &recovery, run)) {
        question.changes = finer;
        forecast = ask(run, &question)?;
    }
    if !inventory.unreadable.is_empty() {
        notes.push("a segment could not be read: see the error".into());
    }
    let compressors = if args.archive || args.archiver.is_some() {
        let mut progress = Progress::bytes("compressing", sample_bytes(run, &forecast));
        let archiver = args.archiver.as_deref();
        let measured = compressors(run, &question, &forecast, archiver, |bytes| progress.advance(bytes))?;
        progress.finish();
        measured
    } else {
        Vec::new()
    };
    let mut document = Document::new(&forecast, &recovery, notes, aim.as_ref(), &compressors);
    if args.archive {
        let priced = Priced { class: args.storage_class, own: args.price, keep_days: args.keep_days };
        price::add_months(&mut document, &priced, run.segment_size.bytes());
    }
    if let Some(path) = &args.html {
        output::write_page(path, &whatif_html::page(&document), args.overwrite)?;
    }
    if let Some(path) = &args.svg {
        draw(&document, path, args.overwrite)?;
    }
    terminal::show(args.format, || &document, || walden_report::whatif::tables(&document, terminal::look()))?;
    Ok(sources::ended(&inventory, forecast.damage.as_ref()))
}

/// Returns sets of settings with smaller values than the advice, if the advice reaches the goal.
fn finer_candidates(
    forecast: &Forecast,
    aim: &Aim,
    recovery: &Recovery,
    run: &Run,
) -> Option<Vec<Vec<(String, String)>>> {
    let document = Document::new(forecast, recovery, Vec::new(), Some(aim), &[]);
    let is_reached = document.advice.is_some_and(|advice| advice.reached && !aim.is_minimum);
    let chosen = document.predictions.last().filter(|_| is_reached)?;
    advise::finer_candidates(&chosen.changed, run.segment_size)
}

/// Checks that pages and images can be written.
fn can_write(args: &WhatifArgs) -> Result<()> {
    // With several sweeps, there are two curves.
    let has_several_lines = args.sweep.len() > 1;
    let second = args.svg.as_deref().filter(|_| has_several_lines).map(|path| numbered(path, 1));
    let wanted = [
        ("--html", args.html.as_deref()),
        ("--svg", args.svg.as_deref()),
        ("the second curve of --svg", second.as_deref()),
    ];
    output::can_write(&wanted, args.overwrite, &Inputs::new(args.sources.iter().chain(&args.base)))
}

/// Writes curves as SVG images.
fn draw(document: &Document, path: &Path, overwrite: Overwrite) -> Result<()> {
    for (index, curve) in sweep::curves(document).iter().enumerate() {
        let svg =
            svg::curve(curve).map_err(|error| anyhow::anyhow!("cannot draw {}: {error}", path.display()))?;
        output::write(&numbered(path, index), &svg, overwrite)?;
    }
    Ok(())
}

/// Returns the file name of the image with this index: all but the first have a number.
fn numbered(path: &Path, index: usize) -> PathBuf {
    if index == 0 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map_or_else(String::new, |ending| format!(".{}", ending.to_string_lossy()));
    path.with_file_name(format!("{stem}-{}{ending}", index + 1))
}

/// Returns all requested sets of settings.
fn changes(args: &WhatifArgs) -> Vec<Vec<(String, String)>> {
    let mut all = vec![args.set.clone()];
    for sweep in &args.sweep {
        let with = |change: &Vec<(String, String)>, value: &String| {
            let mut change = change.clone();
            change.push((sweep.name.clone(), value.clone()));
            change
        };
        all =
            all.iter().flat_map(|change| sweep.values.iter().map(move |value| with(change, value))).collect();
    }
    all
}

/// Returns the changes of tables and indexes; `files` are the relation files in the trace.
fn objects(args: &WhatifArgs, names: &Names, files: &[RelFileLocator]) -> Vec<ObjectChange> {
    relations::changes(&args.named_changes(), &Relations::new(names, files)).unwrap_or_else(|error| {
        let hint = error.hint().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
        crate::wrong_usage(&format!("{error}{hint}"))
    })
}

/// Returns the longest run: a prediction follows one server on one timeline.
fn the_run(inventory: &Inventory) -> Result<&Run> {
    let longest = inventory.runs.iter().max_by_key(|run| run.segments.len());
    let Some(run) = longest else {
        bail!("cannot predict: expected WAL segments, as in pg_wal or an archive, found none")
    };
    if inventory.runs.len() > 1 {
        eprintln!(
            "note: the sources have {} runs of segments without gaps; the longest is predicted: {} from {} on \
             timeline {}",
            inventory.runs.len(),
            counted(run.segments.len() as u64, "segment"),
            run.start(),
            run.timeline
        );
    }
    Ok(run)
}

/// Checks the names of settings before anything is read. Returns a note for each setting without effect.
fn check_names(changes: &[Vec<(String, String)>], run: &Run) -> Result<Vec<String>> {
    let mut notes: Vec<String> = Vec::new();
    for (name, value) in changes.iter().flatten() {
        let mut settings = Settings::default_of(run.version);
        if let Effect::Nothing(why) = settings.set(name, value)? {
            let note = format!("{name} changes nothing: {why}");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    Ok(notes)
}

fn bounds(args: &WhatifArgs, inventory: &Inventory, threads: usize) -> Result<(Option<Lsn>, Option<Lsn>)> {
    let has_times = [args.from, args.to].iter().any(|bound| matches!(bound, Some(Bound::Time(_))));
    // Only times require an additional pass over the WAL.
    let timeline =
        if has_times { Timeline::read(&inventory.runs, threads, |_| ()) } else { Timeline::default() };
    sources::warn_of_step_back(timeline.ambiguous([args.from, args.to]));
    Ok(timeline.range(args.from, args.to)?)
}

fn ask(run: &Run, question: &Question<'_>) -> Result<Forecast> {
    let bytes = run.segments.len() as u64 * run.segment_size.bytes();
    let progress = Mutex::new(Progress::bytes("replaying", 2 * bytes));
    let forecast = predict(run, question, &|bytes| {
        if let Ok(mut progress) = progress.lock() {
            progress.advance(bytes);
        }
    });
    // The server would refuse to start with this setting.
    if let Err(PredictError::Setting(error)) = &forecast {
        crate::wrong_usage(&error.to_string());
    }
    let forecast = forecast?;
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    Ok(forecast)
}

fn recovery(args: &WhatifArgs) -> Result<Recovery> {
    if let Some(rate) = args.redo_rate {
        return Ok(Recovery::Rate(rate as u64));
    }
    let rates = match &args.recovery_rates {
        Some(path) => Some(recovery_file::read(path)?),
        None => recovery_file::read_default(output::print_line)?,
    };
    Ok(rates.map_or(Recovery::Default, |rates| Recovery::Measured(Box::new(rates))))
}

fn parse_class(text: &str) -> Result<&'static Class, String> {
    let is_named = |class: &&Class| {
        text.split_once('/')
            .is_some_and(|(scheme, name)| class.scheme == scheme && class.name.eq_ignore_ascii_case(name))
    };
    CLASSES.iter().find(is_named).ok_or_else(|| {
        let all: Vec<String> =
            CLASSES.iter().map(|class| format!("{}/{}", class.scheme, class.name)).collect();
        format!("expected one of {}, found \"{text}\"", all.join(", "))
    })
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = named(text)?;
    // Settings that the trace's version lacks are found when that version is known.
    Settings::default_of(Major::V19).set(&name, &value).map_err(|error| error.to_string())?;
    Ok((name, value))
}

fn parse_index(text: &str) -> Result<(String, u32), String> {
    let parsed = text.rsplit_once(':').and_then(|(table, bytes)| Some((table.into(), bytes.parse().ok()?)));
    parsed
        .filter(|(_, bytes)| (1..=2704).contains(bytes))
        .ok_or_else(|| format!("expected TABLE:BYTES with keys of 1 to 2704 bytes, found \"{text}\""))
}

fn parse_fill(text: &str) -> Result<(String, u8), String> {
    let parsed =
        text.rsplit_once('=').and_then(|(table, percent)| Some((table.into(), percent.parse().ok()?)));
    parsed
        .filter(|(_, percent)| (10..=100).contains(percent))
        .ok_or_else(|| format!("expected TABLE=PERCENT from 10 to 100, found \"{text}\""))
}

fn named(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found \"{text}\""))?;
    Ok((name.trim().into(), value.trim().into()))
}

fn parse_sweep(text: &str) -> Result<Sweep, String> {
    let (name, values) = named(text)?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) {
        return Err(format!("expected NAME=A,B,C, found \"{text}\""));
    }
    for value in &values {
        Settings::default_of(Major::V19).set(&name, value).map_err(|error| error.to_string())?;
    }
    Ok(Sweep { name, values })
}

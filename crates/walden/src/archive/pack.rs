//! `walden archive pack`: combines segments into packs.

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Result;
use clap::Args;
use jiff::Zoned;
use walden_archive::pack::{self, PackOptions};
use walden_archiving::text;

use crate::FOUND;
use crate::arguments::parse_size;
use crate::level::LevelFlags;
use crate::place::PlaceArgs;
use crate::progress::Progress;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive pack --repo /backup/main
      from cron, for example once a day
  walden archive pack --older-than 7d --level 9
      pack segments older than a week with the best, slowest compression
  walden archive pack --dry-run
      print what would be packed

A pack is decoded and compared with its segments, stored, read back and compared once more; then the segments' own objects are \
removed. It can be interrupted at any time: the next run removes duplicates. Servers may push and recover meanwhile.

Exit status: 0 done; 1 an object is damaged or could not be packed, and was left as it is; 3 the archive could not be listed.";

/// Combine consecutive segments into packs: fewer and smaller objects
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PackArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Maximum number of segments in a pack, at most 512 in an encrypted archive [default: 512 MB of WAL]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    segments: Option<u64>,

    /// Number of newest segments of each timeline to leave unpacked
    #[arg(long, value_name = "N", default_value_t = PackOptions::default().keep)]
    keep: u64,

    /// Pack only older segments, by the times of their commits and checkpoints: 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    older_than: Option<jiff::Span>,

    /// Compression level, 1 (fast) to 9 (small)
    #[arg(long, value_name = "N", default_value_t = PackOptions::default().level,
        value_parser = clap::value_parser!(u8).range(1..=9))]
    level: u8,

    #[command(flatten)]
    level_flags: LevelFlags,

    /// Memory for compression. A segment that needs more is compressed as bytes, and a pack larger than a
    /// quarter of it ends early [default: enough for the largest segment]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Number of packs to write in parallel
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,

    /// Change nothing; print the packs that would be written
    #[arg(long)]
    dry_run: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Parses an age such as `7d`.
pub(super) fn parse_age(text: &str) -> Result<jiff::Span, String> {
    let wrong = || format!("expected an age such as 12h or 7d, found \"{text}\"");
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    if span.is_negative() { Err(wrong()) } else { Ok(span) }
}

/// Runs `walden archive pack`.
pub fn run(args: &PackArgs) -> Result<ExitCode> {
    walden_archive::clean_up_on_signals();
    let (archive, _) = args.place.open()?;
    let before = match args.older_than {
        Some(age) => Some(Zoned::now().checked_sub(age)?.timestamp().as_microsecond()),
        None => None,
    };
    let memory = args.memory.map(|bytes| bytes as u64);
    let max_bytes = PackOptions::default().max_bytes;
    let options = PackOptions::default()
        .segments(args.segments)
        .keep(args.keep)
        .before(before)
        .level(args.level_flags.or(None).unwrap_or(args.level))
        .max_bytes(memory.map_or(max_bytes, |memory| max_bytes.min(memory / 4)))
        .memory(memory)
        .threads(args.threads)
        .dry_run(args.dry_run);
    let segment_bytes = archive.identity()?.segment_bytes;
    let progress: Mutex<Option<(Progress, u64)>> = Mutex::new(None);
    let packed = pack::pack(&archive, &options, &|done, all| {
        let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (bar, shown) = progress.get_or_insert_with(|| (Progress::bytes("pack", all * segment_bytes), 0));
        bar.advance(done.saturating_sub(*shown) * segment_bytes);
        *shown = done.max(*shown);
    })?;
    if let Some((bar, _)) = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        bar.finish();
    }
    terminal::show(args.format, || &packed, || text::packing::table(&packed))?;
    Ok(if packed.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

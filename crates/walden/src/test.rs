//! `walden test`: verifies that compressed files decode to their originals.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use walden_compress::breakdown::{self, Counted};
use walden_compress::check::{self, Found, Tester};
use walden_compress::gather_compressed;
use walden_source::workers::map_in_order;

use crate::decompress::{LimitArgs, report};
use crate::progress::Progress;
use crate::terminal::Format;
use crate::{DAMAGED, FOUND, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden test /backup/*.wpk
      decode everything and compare it with the checksums of the originals; nothing is written
  walden test --list march.wpk
      list the members of a pack, without decoding it
  walden test --stats march.wpk
      where its bytes are: by kind of data and by relation

Exit status: 0 everything is as it was, 1 something is damaged, 2 wrong usage, 3 a file could not be read.";

/// Decode compressed files and compare with the originals' checksums
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TestArgs {
    /// Compressed files, or folders (searched recursively for .wlz and .wpk files); - for standard input
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// Only list the members
    #[arg(short, long)]
    list: bool,

    /// Attribute the bytes: by column class and by relation, before and after entropy coding; and list why
    /// members are stored as bytes
    #[arg(long, conflicts_with = "list")]
    stats: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    limits: LimitArgs,

    /// Threads, one file each [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// Runs the command.
pub fn run(args: &TestArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let (inputs, errors) = gather_compressed(&args.files, &|line| output::print_line(line));
    let total = inputs.iter().filter_map(|input| input.path.metadata().ok()).map(|found| found.len()).sum();
    let progress = Mutex::new(Progress::bytes("testing", total));
    let advance = |bytes| {
        if let Ok(mut progress) = progress.lock() {
            progress.advance(bytes);
        }
    };
    let options = args.limits.options();
    let tester = Tester { options: &options, lists: args.list, counts: args.stats, advance: &advance };
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let results = map_in_order(&inputs, threads, |input| tester.file(&input.path));
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let mut code = if errors.is_empty() { 0 } else { DAMAGED };
    errors.into_iter().for_each(|error| output::report(&error.into()));
    let mut found: Vec<(&Path, Found)> = Vec::new();
    for (input, result) in inputs.iter().zip(results) {
        match result {
            Ok(of_file) => {
                let (lines, hint) = of_file.problems(&input.path);
                lines.iter().for_each(|line| output::print_line(line));
                if let Some(hint) = hint {
                    eprintln!("hint: {hint}");
                }
                if !of_file.is_good() {
                    code = code.max(FOUND);
                }
                found.push((&input.path, of_file));
            }
            Err(error) => {
                report(&input.path, error);
                code = DAMAGED;
            }
        }
    }
    if args.stats {
        let counted: Vec<Counted<'_>> = found.iter().map(|(path, found)| found.count(path)).collect();
        let table = || breakdown::tables(&counted, terminal::look());
        terminal::show(args.format, || breakdown::document(&counted), table)?;
        return Ok(ExitCode::from(code));
    }
    let found: Vec<(&Path, &Found)> = found.iter().map(|(path, found)| (*path, found)).collect();
    let seconds = started.elapsed().as_secs_f64();
    let table = || check::table(&found, args.list, seconds, terminal::look());
    terminal::show(args.format, || check::document(&found, args.list, seconds), table)?;
    Ok(ExitCode::from(code))
}

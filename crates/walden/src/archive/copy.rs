//! `walden archive copy`: brings repositories up to date from each other.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use clap::Args;
use walden_archive::base_backups;
use walden_archive::copy::{self, Copied, CopyOptions};
use walden_archiving::behind::Note;
use walden_archiving::place::expect_different;
use walden_archiving::text;
use walden_report::table::harmless;

use crate::FOUND;
use crate::place::PlaceArgs;
use crate::progress::{Progress, Waiting};
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive copy
      copy to each repository in walden.toml the files that it lacks and another one has
  walden archive copy --repo s3://backups/main --from /backup/main
      copy to a new archive, which walden archive init made, from an existing one

Each file is decoded and its hash is confirmed before it is stored. Objects are copied as they are; segments of a pack of which the \
repository has a part are compressed again. Each repository keeps its own keys: reading encrypted ones needs --identity. WAL that \
prune removed from a repository is not copied back to it without --all. After an interruption, run it again.

Exit status: 0 each repository has all files; 1 some files could not be copied; 3 a repository could not be used.";

/// Copy the files that a repository lacks from another repository
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CopyArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Archive to copy from (repeatable) [default: the other repositories in walden.toml]
    #[arg(long, value_name = "URL")]
    from: Vec<String>,

    /// Also copy WAL that prune removed from the repository
    #[arg(long)]
    all: bool,

    /// Compression level of files that are compressed again [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    level: Option<u8>,

    /// Number of objects to process in parallel [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Remove this file when nothing is missing, and do nothing without it
    #[arg(long, value_name = "FILE", hide = true)]
    note: Option<PathBuf>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive copy`.
pub fn run(args: &CopyArgs) -> Result<ExitCode> {
    walden_archive::clean_up_on_signals();
    let note = match &args.note {
        Some(path) => match Note::lock(path)? {
            Some(note) => Some(note),
            None => return Ok(ExitCode::SUCCESS),
        },
        None => None,
    };
    let mut all = Vec::new();
    let places = args.place.repositories()?;
    expect_different(&places)?;
    for target in places {
        let (archive, section) = target.open()?;
        let sources = args.place.open_sources(&args.from, &archive)?;
        let default = CopyOptions::default();
        let options = default
            .level(args.level.or(section.level).unwrap_or(default.level))
            .threads(args.threads.or(section.threads).unwrap_or_else(terminal::cores))
            .all(args.all);
        let progress = Mutex::new(None::<Progress>);
        let copied = copy::copy(&sources, &archive, &options, &|done, total| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            if done == 1 {
                *progress = Some(Progress::count("copy", total));
            }
            progress.iter_mut().for_each(|progress| progress.advance(1));
            ControlFlow::Continue(())
        });
        if let Some(progress) = progress.into_inner().unwrap_or_else(PoisonError::into_inner) {
            progress.finish();
        }
        let mut copied = copied?;
        // A copy that a push starts brings WAL up to date, as a base backup may take hours.
        if note.is_none() {
            let waiting = Waiting::new(format!("copying base backups to {}", harmless(&copied.location)));
            copied.base_backups = Some(base_backups::copy(&sources, &archive, options.threads, args.all)?);
            drop(waiting);
        }
        all.push(copied);
    }
    terminal::show(args.format, || &all, || all.iter().map(text::copying::text).collect())?;
    if !all.iter().all(Copied::is_complete) {
        return Ok(ExitCode::from(FOUND));
    }
    note.map_or(Ok(()), Note::remove)?;
    Ok(ExitCode::SUCCESS)
}

//! `walden archive copy`: brings repositories up to date from each other.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use clap::Args;
use walden_archive::Archive;
use walden_archive::copy::{self, Copied, CopyOptions};
use walden_archive::object::Finding;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

use super::catch_up::Note;
use crate::FOUND;
use crate::configuration::FILE;
use crate::place::{Place, expect_different};
use crate::progress::Progress;
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

/// Copy the files that a repository lacks from another one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CopyArgs {
    #[command(flatten)]
    place: Place,

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
        let sources = sources(&args.place, &args.from, &archive)?;
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
        all.push(copied?);
    }
    terminal::show(args.format, || &all, || all.iter().map(text).collect())?;
    if !all.iter().all(Copied::is_complete) {
        return Ok(ExitCode::from(FOUND));
    }
    note.map_or(Ok(()), Note::remove)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the archives to copy from: those that options name, or the other configured repositories.
pub fn sources(place: &Place, from: &[String], target: &Archive) -> Result<Vec<Archive>> {
    let configured = Place { repo: None, ..place.clone() };
    let places: Vec<Place> = match from {
        [] => configured.repositories()?,
        from => from.iter().map(|url| Place { repo: Some(url.clone()), ..place.clone() }).collect(),
    };
    let own = Place { repo: Some(target.store().location().to_owned()), ..place.clone() }.spelling()?;
    let mut sources = Vec::new();
    for place in places {
        if place.spelling()? != own
            && let Ok((archive, _)) = place.open()
        {
            sources.push(archive);
        }
    }
    if sources.is_empty() {
        bail!(
            "cannot choose an archive to copy from: expected --from URL, or several repositories in {FILE}"
        );
    }
    Ok(sources)
}

/// Describes the result for a repository.
pub fn text(copied: &Copied) -> String {
    let mut text = match copied.missing {
        0 if copied.failed.is_empty() => format!("{}: nothing is missing\n", copied.location),
        0 => format!("{}: not compared with each archive\n", copied.location),
        missing => format!(
            "{}: {} of {} copied ({})\n",
            copied.location,
            copied.copied,
            counted(missing, "missing file"),
            units::bytes(copied.stored_bytes)
        ),
    };
    text.push_str(&failures(copied));
    text
}

/// Lists the objects that could not be copied.
pub fn failures(copied: &Copied) -> String {
    let mut text = String::new();
    for Finding { object, problem } in &copied.failed {
        let _ = writeln!(text, "NOT COPIED: {}: {}", harmless(object), harmless(problem));
    }
    text
}

//! `walden archive push`: what `archive_command` calls.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use walden_archive::push::{self, PushError, PushOptions, Pushed};

use super::log::{Entry, Log, LogOptions};
use super::queue::waiting;
use crate::configuration::ArchiveSection;
use crate::level::LevelFlags;
use crate::output;
use crate::place::Place;

const EXAMPLES: &str = "\
Examples:
  archive_command = 'walden archive push %p'
      in postgresql.conf, with walden.toml in the data directory or in /etc/walden
  walden archive push --repo /backup/main pg_wal/000000010000000000000007

Each call also archives other segments that PostgreSQL has ready, so that the next calls find them done; none before all that \
PostgreSQL asks for earlier are archived. PostgreSQL's own marks in archive_status are read and never changed.

Exit status: 0 the file is archived, durable, and comes back byte for byte; 1 it is not, and PostgreSQL keeps it and tries again; \
2 wrong usage.";

/// Archive a file that PostgreSQL has ready, checked in full
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PushArgs {
    /// The file, as PostgreSQL names it: %p
    #[arg(value_name = "PATH")]
    path: PathBuf,

    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    effort: Effort,

    #[command(flatten)]
    ahead: Ahead,

    #[command(flatten)]
    log: LogOptions,
}

/// The cost of archiving, and exceptions to the checks.
#[derive(Args, Clone, Debug)]
pub struct Effort {
    /// Level of compression, 1 (fast) to 9 (small); 0 is zstd alone, in half of the time [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    level: Option<u8>,

    #[command(flatten)]
    level_flags: LevelFlags,

    /// While more files than this wait, compress them at level 0; 'walden archive pack' makes them small later [default: 64]
    #[arg(long, value_name = "N")]
    fast_queue: Option<usize>,

    /// Files that are worked on at the same time [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Archive segments of a PostgreSQL that this Walden does not know, such as a newer one, as bytes: verified by their hash alone
    #[arg(long)]
    accept_unknown_versions: bool,
}

impl Effort {
    /// Options of the program, else of the configuration, else the defaults.
    pub fn options(&self, section: &ArchiveSection) -> PushOptions {
        let defaults = PushOptions::default();
        PushOptions {
            level: self.level_flags.or(self.level).or(section.level).unwrap_or(defaults.level),
            fast_queue: self.fast_queue.or(section.fast_queue).unwrap_or(defaults.fast_queue),
            threads: self.threads.or(section.threads).unwrap_or_else(crate::terminal::cores).max(1),
            accept_unknown_versions: self.accept_unknown_versions || section.accept_unknown_versions,
            ..defaults
        }
    }
}

/// What is archived for a server that marks files as ready.
#[derive(Args, Clone, Debug)]
pub struct Ahead {
    /// Archive at most so many other files that are ready [default: 64]
    #[arg(long, value_name = "N")]
    look_ahead: Option<usize>,

    /// Archive segments although their records are damaged: the server itself wrote them so
    #[arg(long)]
    accept_damaged: bool,
}

impl Ahead {
    /// As [`Effort::options`].
    pub fn options(&self, effort: &Effort, section: &ArchiveSection) -> PushOptions {
        let others = effort.options(section);
        PushOptions {
            accept_damaged: self.accept_damaged,
            look_ahead: self.look_ahead.or(section.look_ahead).unwrap_or(others.look_ahead),
            ..others
        }
    }
}

/// How long the store may take to answer. PostgreSQL calls again by itself, and its archiver does nothing else meanwhile.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Runs `walden archive push`.
pub fn run(args: &PushArgs) -> Result<ExitCode> {
    let (archive, section) = args.place.open_to_answer_within(ANSWER_WITHIN)?;
    let options = args.ahead.options(&args.effort, &section);
    let log = Log::new(&args.log, &section);
    let batch = push::push(&archive, &args.path, &options);
    if log.is_text() {
        for other in &batch.others {
            match other {
                Ok(pushed) => warn(pushed),
                // It is the one that is asked for soon: until then it does not matter to PostgreSQL, but it does to people.
                Err(error) => complain("ahead of time: ", error, error.hint()),
            }
        }
    }
    let backlog = section.backlog();
    if batch.ready > backlog {
        log.warn(&format!(
            "{} to be archived (more than {backlog}): pg_wal grows until they are",
            waiting(batch.ready as u64)
        ));
    }
    if log.is_text() {
        match &batch.asked {
            Ok(pushed) => warn(pushed),
            Err(error) => complain("", error, error.hint()),
        }
    }
    let all = std::iter::once(&batch.asked).chain(&batch.others);
    let entry = |result: &Result<Pushed, PushError>| {
        let name = result.as_ref().err().map(PushError::name).unwrap_or_default();
        Entry::of_push(name, result.as_ref(), batch.ready)
    };
    log.write(&all.map(entry).collect::<Vec<_>>());
    Ok(if batch.asked.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

pub fn warn(pushed: &Pushed) {
    for warning in &pushed.warnings {
        output::tell(&format!("WARNING: {}: {warning}", pushed.file));
    }
}

/// In the form of PostgreSQL's own log, where it ends up.
pub fn complain(when: &str, error: &dyn std::error::Error, hint: Option<&str>) {
    output::tell(&format!("ERROR: {when}{}", walden_source::error_text(error)));
    if let Some(hint) = hint {
        output::tell(&format!("HINT: {hint}"));
    }
}

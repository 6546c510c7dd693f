//! `walden archive push`: the command for `archive_command`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use walden_archive::push::{self, PushError, PushOptions, Pushed};
use walden_archiving::behind;
use walden_archiving::configuration::ArchiveSection;
use walden_archiving::log::Entry;
use walden_archiving::queue::waiting;
use walden_format::diagnostic::Hint;

use super::log::LogOptions;
use crate::level::LevelFlags;
use crate::output;
use crate::place::PlaceArgs;

const EXAMPLES: &str = "\
Examples:
  archive_command = 'walden archive push %p'
      in postgresql.conf, with walden.toml in the data directory or in /etc/walden
  walden archive push --repo /backup/main pg_wal/000000010000000000000007

Each call also archives other segments that PostgreSQL has ready, in PostgreSQL's order, so that the next calls only confirm them. \
PostgreSQL's own marks in archive_status are read and never changed.

Exit status: 0 the file is archived, durable, and can be restored byte for byte; 1 it is not, and PostgreSQL keeps it and tries again; \
2 wrong usage.";

/// Verify and archive a file for PostgreSQL
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PushArgs {
    /// The file's path: %p
    #[arg(value_name = "PATH")]
    path: PathBuf,

    #[command(flatten)]
    place: PlaceArgs,

    #[command(flatten)]
    effort: Effort,

    #[command(flatten)]
    ahead: Ahead,

    #[command(flatten)]
    log: LogOptions,
}

/// Effort for archiving, and exceptions to its checks.
#[derive(Args, Clone, Debug)]
pub struct Effort {
    /// Compression level, 1 (fast) to 9 (small); 0 uses zstd only, in half the time [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    level: Option<u8>,

    #[command(flatten)]
    level_flags: LevelFlags,

    /// While more files than this wait, compress at level 0; 'walden archive pack' recompresses them later
    /// [default: 64]
    #[arg(long, value_name = "N")]
    fast_queue: Option<usize>,

    /// Number of files to process in parallel [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Archive segments of a PostgreSQL version that this Walden does not know, as bytes: verified by hash
    /// only
    #[arg(long)]
    accept_unknown_versions: bool,
}

impl Effort {
    /// Returns the compression level that an option names.
    pub fn level(&self) -> Option<u8> {
        self.level_flags.or(self.level)
    }

    /// Returns the options: from the arguments, else the configuration, else the defaults.
    pub fn options(&self, section: &ArchiveSection) -> PushOptions {
        let PushOptions { level, fast_queue, .. } = PushOptions::default();
        PushOptions::default()
            .level(self.level().or(section.level).unwrap_or(level))
            .fast_queue(self.fast_queue.or(section.fast_queue).unwrap_or(fast_queue))
            .threads(self.threads.or(section.threads).unwrap_or_else(crate::terminal::cores).max(1))
            .accept_unknown_versions(self.accept_unknown_versions || section.accept_unknown_versions)
    }
}

/// Options for a server that marks files as ready.
#[derive(Args, Clone, Debug)]
pub struct Ahead {
    /// Maximum number of other ready files to archive in one call [default: 64]
    #[arg(long, value_name = "N")]
    look_ahead: Option<usize>,

    /// Archive segments with damaged records, as the server wrote them
    #[arg(long)]
    accept_damaged: bool,
}

impl Ahead {
    /// As [`Effort::options`].
    pub fn options(&self, effort: &Effort, section: &ArchiveSection) -> PushOptions {
        let options = effort.options(section).accept_damaged(self.accept_damaged);
        match self.look_ahead.or(section.look_ahead) {
            Some(look_ahead) => options.look_ahead(look_ahead),
            None => options,
        }
    }
}

/// Time limit for the store's answer. PostgreSQL retries on its own; meanwhile its archiver is blocked.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Runs `walden archive push`.
pub fn run(args: &PushArgs) -> Result<ExitCode> {
    let (copies, section) = args.place.open_copies(ANSWER_WITHIN, args.effort.level())?;
    let options = args.ahead.options(&args.effort, &section);
    let log = args.log.open(&section);
    let count = copies.iter().count();
    let batch = push::push_copies(&copies, &args.path, &options);
    behind::after_push(&args.place, &args.path, &batch, count);
    for other in &batch.others {
        match other {
            Ok(pushed) => log.print_warnings(pushed),
            // PostgreSQL requests this file soon. Until then the failure does not matter to it, but the
            // administrator should know.
            Err(error) => log.print_error("ahead of time: ", error, error.hint()),
        }
    }
    let backlog = section.backlog();
    if batch.ready > backlog {
        log.warn(&format!(
            "{} to be archived (more than {backlog}): pg_wal grows until they are",
            waiting(batch.ready as u64)
        ));
    }
    match &batch.asked {
        Ok(pushed) => log.print_warnings(pushed),
        Err(error) => log.print_error("", error, error.hint()),
    }
    let all = std::iter::once(&batch.asked).chain(&batch.others);
    let entry = |result: &Result<Pushed, PushError>| {
        let name = result.as_ref().err().map(PushError::name).unwrap_or_default();
        Entry::for_push(name, result.as_ref(), batch.ready)
    };
    log.write(&all.map(entry).collect::<Vec<_>>());
    Ok(if batch.asked.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Prints an error in the form of PostgreSQL's messages, because it ends up in the server's log.
pub fn complain(when: &str, error: &dyn std::error::Error, hint: Option<Hint>) {
    output::print_line(&format!("ERROR: {when}{}", walden_source::error_text(error)));
    if let Some(hint) = hint {
        output::print_line(&format!("HINT: {hint}"));
    }
}

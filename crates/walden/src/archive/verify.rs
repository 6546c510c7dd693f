//! `walden archive verify`: whether everything is as it was archived.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Result;
use clap::Args;
use walden_archive::verified;
use walden_archive::verify::{self, Verified, VerifyOptions};
use walden_report::units;

use super::place::Place;
use crate::FOUND;
use crate::progress::Progress;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive verify --repo /backup/main
      read and decode every object, compare every record's checksum, and follow the log from segment to segment
  walden archive verify --fast --format json
      compare the checksums of what is stored, and decode nothing

Exit status: 0 everything is as it was archived and nothing is missing; 1 something is damaged or missing; 3 the archive could not be \
listed.";

/// Check that everything is as it was archived, and that nothing is missing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArgs {
    #[command(flatten)]
    place: Place,

    /// Compare stored checksums only
    #[arg(long)]
    fast: bool,

    /// Objects that are read at the same time [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive verify`.
pub fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let options = VerifyOptions { fast: args.fast, threads: args.threads.unwrap_or_else(terminal::cores) };
    let progress: Mutex<Option<(Progress, u64)>> = Mutex::new(None);
    let verified = verify::verify(&archive, options, &|done, all| {
        let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (bar, shown) = progress.get_or_insert_with(|| (Progress::bytes("verify", all), 0));
        bar.advance(done - *shown);
        *shown = done;
    })?;
    if let Some((bar, _)) = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        bar.finish();
    }
    // A user that may only read verifies as well.
    if let Err(error) = verified::record(&archive, &verified, args.fast) {
        crate::output::tell(&format!(
            "WARNING: cannot note in the archive that it was verified: {}",
            verify::chain(&error)
        ));
    }
    terminal::show(args.format, || &verified, || table(&verified))?;
    Ok(if verified.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn table(verified: &Verified) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} objects with {} segments and {} other files: {} of WAL in {}, {} records",
        verified.objects,
        verified.segments,
        verified.other_files,
        units::bytes(verified.raw_bytes),
        units::bytes(verified.stored_bytes),
        units::count(verified.records)
    );
    for finding in &verified.damaged {
        let _ = writeln!(text, "DAMAGED: {}: {}", finding.object, finding.problem);
    }
    for gap in &verified.gaps {
        let _ = writeln!(text, "{}", super::gaps::line(gap));
    }
    for finding in &verified.warnings {
        let _ = writeln!(text, "warning: {}: {}", finding.object, finding.problem);
    }
    if verified.is_good() {
        let but = if verified.gaps.is_empty() { "" } else { " but those whose absence was acknowledged" };
        let _ = writeln!(text, "Everything is as it was archived, and no segment is missing{but}.");
    }
    text
}

//! `walden archive repair`: rewrites a lost `archive.json`.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use walden_archive::object::Finding;
use walden_archive::repair::{self, RepairError, Rewritten};
use walden_report::table::harmless;
use walden_source::{counted, error_text};

use crate::output;
use crate::place::Place;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  walden archive repair --repo /backup/main
  walden archive repair --repo s3://backups/main --identity restore.key
      for an encrypted archive, whose segments are read with a private key

The cluster and segment size are read from the archived segments, which must agree. An existing archive.json is never \
replaced. Damaged objects are not repaired: walden archive verify prints a remedy for each.

Exit status: 0 archive.json was written; 3 it was not: it exists, or the segments do not agree or cannot be read.";

/// Rewrite a lost archive.json from the segments
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RepairArgs {
    #[command(flatten)]
    place: Place,
}

/// Runs `walden archive repair`.
pub fn run(args: &RepairArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let rewritten = repair::rewrite_identity(&archive).map_err(|error| match (error.hint(), error) {
        (_, RepairError::Archive(error)) => anyhow::Error::from(error),
        (Some(hint), error) => output::with_hint(error_text(&error), hint),
        (None, error) => anyhow::Error::from(error),
    })?;
    terminal::print(&text(archive.store().location(), &rewritten))?;
    Ok(ExitCode::SUCCESS)
}

fn text(location: &str, rewritten: &Rewritten) -> String {
    let Rewritten { identity, objects, asked, agreeing, unreadable } = rewritten;
    let (cluster, megabytes) = (&identity.system_identifier, identity.segment_bytes >> 20);
    let encrypted = identity.encryption.as_ref().map(|it| format!(", encrypted to {}", it.recipient));
    let mut text = format!(
        "{location}: archive.json was rewritten: cluster {cluster}, segments of {megabytes} MB{}\n{agreeing} of {} that were read agree, \
         and none contradicts it; the archive has {objects}.\n",
        encrypted.unwrap_or_default(),
        counted(*asked, "object")
    );
    for Finding { object, problem } in unreadable {
        let _ = writeln!(text, "DAMAGED: {}: {}", harmless(object), harmless(problem));
    }
    text.push_str("walden archive verify compares all segments with it, and reads everything.\n");
    text
}

//! `walden redo replay`: replays WAL, and prints the duration and the number of known pages.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use walden_format::record::Record;
use walden_redo::Touched;
use walden_redo::{Observer, State};
use walden_report::units;

use super::Inputs;
use crate::progress::Progress;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden redo replay --base /backup/base /archive/wal
      how long it takes, and how many pages are known at the end

Exit status: 0 done, 2 wrong usage, 3 input unreadable or damaged.";

/// Replay WAL, and print how many pages are known at its end and how long it took
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    #[command(flatten)]
    inputs: Inputs,

    /// Output format; docs/json.md describes the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// An observer that counts records.
#[derive(Default)]
struct Count(u64);

impl Observer for Count {
    fn before(&mut self, _: &Record<'_>, _: &[Touched]) {
        self.0 += 1;
    }
}

/// Runs the command.
pub fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let (inventory, material) = args.inputs.open()?;
    let mut progress = Progress::bytes("replaying", material.bytes());
    let mut seconds = 0.0;
    let mut count = Count::default();
    let (mut wal_bytes, mut damages, mut exact, mut unknown, mut untracked) =
        (0, Vec::new(), 0_u64, 0_u64, 0_u64);
    for index in 0..material.lineages() {
        let started = Instant::now();
        let run = material.replay(index, None, None, &mut count, |bytes| progress.advance(bytes))?;
        seconds += started.elapsed().as_secs_f64();
        wal_bytes += run.reached.bytes_since(run.from);
        damages.extend(run.damage);
        for (relation, fork) in run.store.forks() {
            for (_, slot) in run.store.blocks_of(relation, fork) {
                match run.store.state(slot) {
                    State::Exact => exact += 1,
                    State::Unknown(_) => unknown += 1,
                    State::Untracked => untracked += 1,
                }
            }
        }
    }
    progress.finish();
    let document = || {
        json!({
            "wal_bytes": wal_bytes,
            "records": count.0,
            "seconds": seconds,
            "pages_exact": exact,
            "pages_unknown": unknown,
            "pages_untracked": untracked,
        })
    };
    let table = || {
        format!(
            "{} in {} records replayed in {seconds:.2} s: {} a second\n{} pages known, {} not known, {} untracked\n",
            units::bytes(wal_bytes),
            units::count(count.0),
            units::bytes((wal_bytes as f64 / seconds) as u64),
            units::count(exact),
            units::count(unknown),
            units::count(untracked)
        )
    };
    terminal::show(args.format, document, table)?;
    Ok(super::report(&inventory, &damages).unwrap_or(ExitCode::SUCCESS))
}

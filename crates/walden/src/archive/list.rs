//! `walden archive list`: lists the archive's contents and the times to which recovery is possible.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use walden_archive::cost::{self, Cost, OwnPrices};
use walden_archive::gaps::Gap;
use walden_archive::list::{self, ListOptions, Listing};
use walden_archive::store::{Cause, StoreError};
use walden_archiving::report::KEYS_MISSING;
use walden_archiving::text;
use walden_report::table::harmless;

use crate::place::PlaceArgs;
use crate::progress::Waiting;
use crate::terminal::{self, Format};
use crate::{FOUND, output};

const EXAMPLES: &str = "\
Examples:
  walden archive list --repo /backup/main
  walden archive list --format json | jq '.timelines[].gaps'
  walden archive list --cost
      stored bytes, requests and prices

Exit status: 0 no segment is missing between the first and the last of each timeline, except in acknowledged gaps; 1 segments, the \
history of a timeline, or segments that a base backup needs are missing, an object that was read is damaged, or the keys of an \
encrypted archive are missing; 3 the archive could not be read.";

/// List timelines, gaps, sizes, base backups, and the times to which recovery is possible
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Read every segment's summary to find all restore points
    #[arg(long)]
    all: bool,

    /// Also print costs: storage, requests, early removals
    #[arg(long)]
    cost: bool,

    /// Prices instead of list prices: storage=0.02,put=0.005,get=0.0004,retrieval=0, per GB and month, 1000
    /// requests, and GB [default: price in walden.toml]
    #[arg(long, value_name = "PRICES", value_parser = OwnPrices::parse, requires = "cost")]
    price: Option<OwnPrices>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A listing and its cost.
#[derive(Serialize)]
struct WithCost<'a> {
    #[serde(flatten)]
    listing: &'a Listing,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
}

/// Runs `walden archive list`.
pub fn run(args: &ListArgs) -> Result<ExitCode> {
    let (archive, section) = args.place.open_for_user()?;
    let waiting = Waiting::new(format!("listing {}", harmless(archive.store().location())));
    let options = ListOptions::default().all_summaries(args.all).base_backups(true).time_samples(true);
    let listing = list::list(&archive, options)?;
    let price = args.price.or(section.price);
    let cost = args.cost.then(|| cost::cost(&archive, &listing, price)).transpose()?;
    drop(waiting);
    let has_gaps = listing.timelines.iter().flat_map(|timeline| &timeline.gaps).any(Gap::is_new);
    let shown = WithCost { listing: &listing, cost };
    let cost_text =
        || shown.cost.as_ref().map_or(String::new(), |cost| format!("\n{}", text::cost::text(cost)));
    terminal::show(args.format, || &shown, || text::listing::table(&listing) + &cost_text())?;
    if listing.are_keys_missing {
        output::print_line(&format!("PROBLEM: {KEYS_MISSING}"));
        if let Some(hint) = StoreError::new("read", "", "", Cause::KeysMissing).hint() {
            output::print_line(&format!("HINT: {hint}"));
        }
    }
    let is_whole = !has_gaps && listing.missing_histories.is_empty() && listing.unreadable.is_empty();
    let are_backups_whole = listing.backups_without_start.iter().all(|backup| backup.is_acknowledged);
    let are_backups_whole =
        are_backups_whole && listing.stored_backups.iter().all(|backup| backup.missing_segment.is_none());
    let is_good = is_whole && are_backups_whole && !listing.are_keys_missing;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

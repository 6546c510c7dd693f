//! `walden archive list`: what there is, and which moments can be restored to.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use walden_archive::gaps::Gap;
use walden_archive::list::{self, ListOptions, Listing, TimelineListing};
use walden_format::payload::Timestamp;
use walden_report::units;

use crate::FOUND;
use crate::place::Place;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive list --repo /backup/main
  walden archive list --format json | jq '.timelines[].gaps'

Exit status: 0 no segment is missing between the first and the last of each timeline but those of acknowledged gaps; 1 some are; \
3 the archive could not be read.";

/// List timelines, gaps, sizes, and the moments that can be restored to
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    #[command(flatten)]
    place: Place,

    /// Read every segment's summary, for all restore points
    #[arg(long)]
    all: bool,

    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden archive list`.
pub fn run(args: &ListArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let listing = list::list(&archive, ListOptions { all_summaries: args.all })?;
    let has_gaps = listing.timelines.iter().flat_map(|timeline| &timeline.gaps).any(Gap::is_new);
    terminal::show(args.format, || &listing, || table(&listing))?;
    Ok(if has_gaps { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

fn table(listing: &Listing) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: cluster {}, segments of {}\n",
        listing.location,
        listing.system_identifier,
        units::bytes(listing.segment_bytes)
    );
    for timeline in &listing.timelines {
        one(&mut text, timeline, listing.locked);
    }
    if !listing.backups.is_empty() {
        let _ = writeln!(text, "Base backups: {}", listing.backups.join(", "));
    }
    if listing.locked {
        let _ = writeln!(
            text,
            "The archive is encrypted: with a private key that may read it (--identity FILE), times, restore points and parents of timelines are shown too."
        );
    }
    for unknown in &listing.unknown {
        let _ = writeln!(text, "Not an object of an archive: {unknown}");
    }
    text
}

fn one(text: &mut String, timeline: &TimelineListing, is_locked: bool) {
    let TimelineListing { timeline: number, segments, .. } = timeline;
    let from = match (timeline.parent, &timeline.begins_at) {
        (Some(parent), Some(at)) => format!(", which left timeline {parent} at {at}"),
        _ => String::new(),
    };
    let _ = writeln!(text, "Timeline {number}{from}");
    if let (Some(first), Some(last)) = (&timeline.first_segment, &timeline.last_segment) {
        let _ = writeln!(text, "  {segments} segments in {} objects, {first} to {last}", timeline.objects);
        let ratio = timeline.raw_bytes as f64 / timeline.stored_bytes.max(1) as f64;
        let (raw, stored) = (units::bytes(timeline.raw_bytes), units::bytes(timeline.stored_bytes));
        let _ = writeln!(text, "  {raw} of WAL in {stored} ({ratio:.1} times smaller)");
    }
    if let Some(partial) = &timeline.partial_segment {
        let _ = writeln!(text, "  ends in {partial}");
    }
    if let Some(end) = &timeline.live_end {
        let _ = writeln!(text, "  goes on to {end}, in parts of the segment that is being written");
    }
    for gap in &timeline.gaps {
        let _ = writeln!(text, "  {}", super::gaps::line(gap));
    }
    let time = |micros: i64| Timestamp::from_unix_micros(micros).to_string();
    match (timeline.first_commit_time, timeline.last_commit_time) {
        (Some(first), Some(last)) => {
            let _ = writeln!(text, "  restorable to any moment from {} to {}", time(first), time(last));
            let _ = writeln!(
                text,
                "  (from the first base backup on; what came after the last commit or abort is reached by the end of WAL, not by a time)"
            );
        }
        _ if is_locked => {}
        _ => {
            let _ = writeln!(text, "  no transaction ended in it: no time can be restored to, only the end");
        }
    }
    for point in &timeline.restore_points {
        let _ = writeln!(
            text,
            "  restore point \"{}\" at {} ({})",
            walden_report::table::harmless(&point.name),
            point.lsn,
            time(point.time)
        );
    }
    text.push('\n');
}

//! `walden archive acknowledge-gap`: records that segments are lost.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use walden_archive::acknowledge::acknowledge;
use walden_format::lsn::SegmentName;
use walden_report::table::harmless;

use crate::place::PlaceArgs;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  walden archive acknowledge-gap 000000010000000000000007..000000010000000000000009 --reason 'disk of db1 lost on 2026-11-20'

The archive stores the acknowledgement, with its author and time. `list`, `verify` and `status` show it and no longer count it \
as a problem. Neighboring segments that go missing later are a new gap. If the segments reappear, they are archived like any \
others.";

/// Record in the archive that segments are permanently missing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AcknowledgeArgs {
    /// The segments: FIRST..LAST, or a single one
    #[arg(value_name = "FIRST..LAST", value_parser = parse_range)]
    range: (SegmentName, SegmentName),

    #[command(flatten)]
    place: PlaceArgs,

    /// Why they are missing
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Name of the person who acknowledges [default: this user and machine]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

fn parse_range(text: &str) -> Result<(SegmentName, SegmentName), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let parse = |name: &str| {
        SegmentName::parse(name).ok_or_else(|| {
            format!("expected a segment's name such as 000000010000000000000007, found {name}")
        })
    };
    Ok((parse(first)?, parse(last)?))
}

/// Runs `walden archive acknowledge-gap`.
pub fn run(args: &AcknowledgeArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let by = args.by.clone().unwrap_or_else(user_and_machine);
    let (first, last) = args.range;
    let one = acknowledge(&archive, first, last, &by, &args.reason)?;
    terminal::print(&format!(
        "{} to {} are acknowledged as missing by {}: {}\n",
        one.first,
        one.last,
        harmless(&one.by),
        harmless(&one.reason)
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn user_and_machine() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match machine.trim() {
        "" => user,
        machine => format!("{user}@{machine}"),
    }
}

//! `walden archive get --until`: all that recovery to a moment reads, as `walden archive export --until` writes it.

use std::path::Path;
use std::process::ExitCode;
use walden_explain::moment::Moment;

use super::{GetArgs, TROUBLE};
use crate::archive::export::{self, ExportArgs, START_NEEDED};

/// Runs `walden archive get --until`.
pub fn get_until(args: &GetArgs, moment: &Moment, output: &Path) -> ExitCode {
    if args.base.is_none() && args.from.is_none() {
        // Wrong usage as any other of get: of export, it would have another status.
        crate::output::tell(&format!("error: {START_NEEDED}"));
        return ExitCode::from(TROUBLE);
    }
    let request = ExportArgs {
        place: args.place.clone(),
        output: output.to_owned(),
        from: args.from,
        to: None,
        timeline: args.timeline,
        until: Some(moment.clone()),
        base: args.base.clone(),
        threads: None,
        format: args.format,
    };
    // With the statuses of get: 1 says that the archive does not have it, and trouble is above 125.
    export::run(&request).unwrap_or_else(|error| {
        crate::output::report(&error);
        ExitCode::from(TROUBLE)
    })
}

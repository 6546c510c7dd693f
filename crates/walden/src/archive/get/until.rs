//! `walden archive get --until`: writes all files that recovery to a time reads, as `walden archive export
//! --until` does.

use std::path::Path;
use std::process::ExitCode;
use walden_explain::moment::Moment;

use super::{GetArgs, TROUBLE};
use crate::archive::export::{self, ExportArgs, START_NEEDED};

/// Runs `walden archive get --until`.
pub fn get_until(args: &GetArgs, moment: &Moment, output: &Path) -> ExitCode {
    if args.base.is_none() && args.from.is_none() {
        // Wrong usage has the exit status of get, not that of export.
        crate::output::print_line(&format!("error: {START_NEEDED}"));
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
    // Exit statuses of get: 1 if the archive lacks a file, above 125 for other errors.
    export::run(&request).unwrap_or_else(|error| {
        crate::output::report(&error);
        ExitCode::from(TROUBLE)
    })
}

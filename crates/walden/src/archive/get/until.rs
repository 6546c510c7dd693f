//! `walden archive get --until`: all that recovery to a moment reads.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::{GetArgs, TROUBLE};
use crate::archive::export::{UntilRequest, export_until};
use crate::archive::moment::Moment;

/// Runs `walden archive get --until`.
pub fn get_until(args: &GetArgs, moment: &Moment, output: &Path) -> ExitCode {
    let export = || -> Result<ExitCode> {
        let (archive, section) = args.place.open()?;
        export_until(
            &archive,
            &UntilRequest {
                moment,
                from: args.from,
                base: args.base.as_deref(),
                timeline: args.timeline,
                output,
                threads: section.threads.unwrap_or_else(crate::terminal::cores),
                format: args.format,
            },
        )
    };
    export().unwrap_or_else(|error| {
        crate::output::report(&error);
        ExitCode::from(TROUBLE)
    })
}

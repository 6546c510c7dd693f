//! `walden man`: manual pages, made from the same definitions as `--help`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};

/// Write manual pages, one for each command, into a folder
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  walden man /usr/local/share/man/man1    # walden.1, walden-explain.1, walden-redo-check.1, ...")]
pub struct ManArgs {
    /// The folder, created if it does not exist; pages of the same names are overwritten
    folder: PathBuf,
}

/// Runs the command.
pub fn run(args: &ManArgs) -> Result<ExitCode> {
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    clap_mangen::generate_to(crate::Arguments::command(), folder)
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

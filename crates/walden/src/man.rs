//! `walden man`: a program's manual pages, generated from the same definitions as `--help`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};
use walden_output::Inputs;

use crate::output::{self, Overwrite};
use crate::programs;

/// Write manual pages, one for each command, into a folder
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  walden man /usr/local/share/man/man1    # walden.1, walden-explain.1, walden-redo-check.1, ...
  walden-sql man /usr/local/share/man/man1")]
pub struct ManArgs {
    /// The folder, created if it does not exist
    folder: PathBuf,

    #[command(flatten)]
    overwrite: Overwrite,
}

/// Runs the command.
pub fn run(args: &ManArgs, program: Command) -> Result<ExitCode> {
    let generated = tempfile::tempdir().context("cannot make a temporary folder")?;
    let own_page = format!("{}.1", program.get_name());
    clap_mangen::generate_to(program, &generated).context("cannot write manual pages")?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(&generated)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default();
        // The programs that `walden sql` and `walden lab` run write the manual pages of these names
        // themselves.
        if programs::is_program(name) && !path.ends_with(&own_page) {
            continue;
        }
        let target = args.folder.join(path.file_name().unwrap_or_default());
        pages.push((target, fs::read(path)?));
    }
    let inputs = Inputs::default();
    pages.retain(|(target, page)| fs::read(target).ok().as_ref() != Some(page));
    pages
        .iter()
        .try_for_each(|(target, _)| output::expect_writable(target, args.overwrite.force, &inputs))?;
    let folder = args.folder.display();
    fs::create_dir_all(&args.folder).with_context(|| format!("cannot create the folder {folder}"))?;
    pages.iter().try_for_each(|(target, page)| output::write(target, page, args.overwrite))?;
    Ok(ExitCode::SUCCESS)
}

//! `walden archive repair`: rewrites a lost `archive.json`, replaces damaged objects by copies, or restores
//! deleted and overwritten objects.

use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use walden_archive::copy::{self, CopyOptions};
use walden_archive::repair;
use walden_archive::undelete;
use walden_archive::verify::{self, VerifyOptions};
use walden_archive::{Archive, base_backups};
use walden_archiving::configuration::ArchiveSection;
use walden_archiving::text;
use walden_report::table::harmless;
use walden_source::{counted, error_text};

use crate::place::PlaceArgs;
use crate::progress::Waiting;
use crate::{FOUND, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden archive repair --repo /backup/main
  walden archive repair --repo s3://backups/main --identity restore.key
      for an encrypted archive, whose segments are read with a private key
  walden archive repair --repo /backup/main --from s3://backups/main
      replace damaged objects, among them archive.json, and add missing files from another archive of the cluster
  walden archive repair --repo s3://backups/main --undelete
      restore objects that another user deleted or overwrote, from the versions that the bucket keeps

Without --from, the cluster and segment size are read from the archived segments, which must agree. An existing archive.json is never \
replaced.

With --from, a lost or invalid archive.json is written again first, if the archived segments do not contradict that of the other archive. Then everything is verified first. A damaged object is removed only after all its files were read intact from another archive.

With --undelete, the oldest intact version of each deleted or overwritten object is restored: Walden never overwrites an object, so that \
version is the archived one. A delete marker is removed if the credentials may, otherwise the version is stored again on top. No version is \
removed. archive.json and keys are restored first.

Exit status: 0 archive.json was written, (--undelete) every altered object was restored, or (--from) nothing is damaged or missing any more; 1 no intact copy or \
version of some files was found; 3 archive.json exists, the segments do not agree, or an archive cannot be used.";

/// Rewrite a lost archive.json, replace damaged objects by copies, or restore deleted objects
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RepairArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// Archive with intact copies (repeatable)
    #[arg(long, value_name = "URL")]
    from: Vec<String>,

    /// Restore objects that were deleted or overwritten in a bucket that keeps versions
    #[arg(long, conflicts_with = "from")]
    undelete: bool,

    /// Number of objects to process in parallel [default: one per core]
    #[arg(long, value_name = "N", requires = "from")]
    threads: Option<usize>,
}

/// Runs `walden archive repair`.
pub fn run(args: &RepairArgs) -> Result<ExitCode> {
    let (archive, section) = args.place.open()?;
    if !args.from.is_empty() {
        return replace_damaged(args, &archive, &section);
    }
    if args.undelete {
        return restore_versions(&archive);
    }
    let rewritten = repair::rewrite_identity(&archive)?;
    terminal::print(&text::repair::rewritten(archive.store().location(), &rewritten))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a lost or invalid `archive.json` again from the first source that has an intact `archive.json`.
/// Returns the archive with the new `archive.json`.
fn copy_identity(archive: &Archive, sources: &[Archive]) -> Result<Archive> {
    if let Some(source) = sources.iter().find(|source| source.identity().is_ok())
        && let Some(rewritten) = repair::copy_identity(archive, source)?
    {
        terminal::print(&text::repair::rewritten(archive.store().location(), &rewritten))?;
    }
    Ok(archive.afresh())
}

fn restore_versions(archive: &Archive) -> Result<ExitCode> {
    let undeleted = undelete::undelete(archive)?;
    terminal::print(&text::repair::undeleted(&undeleted))?;
    Ok(if undeleted.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn replace_damaged(args: &RepairArgs, archive: &Archive, section: &ArchiveSection) -> Result<ExitCode> {
    walden_archive::clean_up_on_signals();
    let sources = args.place.open_sources(&args.from, archive)?;
    let archive = &copy_identity(archive, &sources)?;
    let threads = args.threads.or(section.threads).unwrap_or_else(terminal::cores);
    let waiting = Waiting::new(format!("verifying {}", harmless(archive.store().location())));
    let verified = verify::verify(archive, VerifyOptions::default().threads(threads), &|_, _| {});
    drop(waiting);
    let mut verified = verified?;
    let options = CopyOptions::default().threads(threads);
    let options = options.level(section.level.unwrap_or(options.level));
    let replaced = copy::replace_damaged(&sources, archive, &verified.damaged, &options)?;
    let backups = base_backups::replace_damaged(&sources, archive, &verified.damaged)?;
    // `status` and `check` report the damage until a run of `verify` has found none.
    verified.damaged.retain(|found| {
        replaced.failed.iter().chain(&backups.failed).any(|failed| failed.object == found.object)
    });
    if let Err(error) = verify::record(archive, &verified, false) {
        output::print_line(&format!(
            "WARNING: cannot note in the archive that it was repaired: {}",
            error_text(&error)
        ));
    }
    let mut copied = copy::copy(&sources, archive, &options, &|_, _| ControlFlow::Continue(()))?;
    copied.base_backups = Some(base_backups::copy(&sources, archive, threads, false)?);
    terminal::print(&format!(
        "{}: {} of {} in damaged objects replaced, and {} of base backups\n{}{}{}",
        replaced.location,
        replaced.copied,
        counted(replaced.missing, "file"),
        counted(backups.objects, "object"),
        text::copying::failures(&replaced.failed),
        text::copying::failures(&backups.failed),
        text::copying::text(&copied)
    ))?;
    let is_complete = replaced.is_complete() && backups.failed.is_empty() && copied.is_complete();
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

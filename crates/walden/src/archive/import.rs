//! `walden archive import`: imports WAL from another archiver, verifying it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use walden_archive::import::{self, ImportOptions, Layout};
use walden_archive::push::PushOptions;
use walden_archiving::text;

use crate::FOUND;
use crate::level::LevelFlags;
use crate::place::PlaceArgs;
use crate::progress::Progress;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive import --repo /backup/main /var/lib/pgbackrest
      the WAL of a pgBackRest repository; with several stanzas or clusters, name the folder of one: .../archive/main/15-1
  walden archive import --repo s3://backups/main /var/lib/barman/main
  walden archive import --repo /backup/main /mnt/wal --layout plain
      every segment, history and backup history file in a folder and those below it, also compressed

Each file passes the same checks as a pushed one. Files that fail are reported, and the others are imported. Run it again after an \
interruption: files that are already archived are compared and not stored again.

Exit status: 0 everything is in the archive; 1 some files were refused or do not follow each other; 3 the source or the archive could not be used.";

/// Import WAL from pgBackRest, WAL-G, Barman, or plain files
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// Repository of another archiver, a folder, or a file
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    #[command(flatten)]
    place: PlaceArgs,

    /// Layout of the source [default: detected]
    #[arg(long, value_enum, value_name = "LAYOUT")]
    layout: Option<LayoutName>,

    /// Compression level, 1 (fast) to 9 (small) [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    level: Option<u8>,

    #[command(flatten)]
    level_flags: LevelFlags,

    /// Number of files to process in parallel [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Import segments with damaged records
    #[arg(long)]
    accept_damaged: bool,

    /// Import segments of a PostgreSQL version that this Walden does not know, as bytes: verified by hash
    /// only
    #[arg(long)]
    accept_unknown_versions: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Layouts under the names that users type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum LayoutName {
    /// Files under their names, optionally compressed
    Plain,
    /// A pgBackRest repository
    Pgbackrest,
    /// A WAL-G storage in the file system
    WalG,
    /// A server's folder in Barman's home
    Barman,
}

impl From<LayoutName> for Layout {
    fn from(name: LayoutName) -> Layout {
        match name {
            LayoutName::Plain => Layout::Plain,
            LayoutName::Pgbackrest => Layout::Pgbackrest,
            LayoutName::WalG => Layout::WalG,
            LayoutName::Barman => Layout::Barman,
        }
    }
}

/// Runs `walden archive import`.
pub fn run(args: &ImportArgs) -> Result<ExitCode> {
    walden_archive::clean_up_on_signals();
    let (archive, section) = args.place.open()?;
    let identifier = archive.identity().ok().map(|identity| identity.system_identifier.clone());
    let source = import::find(&args.source, args.layout.map(Into::into), identifier.as_deref())?;
    import::expect_unencrypted(&source)?;
    if source.files.is_empty() {
        bail!(
            "cannot import {} ({}): expected files that PostgreSQL archives, found none",
            source.path.display(),
            source.layout
        );
    }
    let options = ImportOptions::new(
        args.level_flags.or(args.level).or(section.level).unwrap_or(PushOptions::default().level),
    )
    .accept_damaged(args.accept_damaged)
    .accept_unknown_versions(args.accept_unknown_versions || section.accept_unknown_versions)
    .threads(args.threads.or(section.threads).unwrap_or_else(terminal::cores));
    let count = source.files.len() as u64;
    let progress = Mutex::new(Progress::count("import", count));
    let imported = import::import(&archive, source, &options, &import::open_decompressed, &|_, _| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    let imported = imported?;
    terminal::show(args.format, || &imported, || text::importing::table(&imported))?;
    Ok(if imported.refused.is_empty() && imported.damaged.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    })
}

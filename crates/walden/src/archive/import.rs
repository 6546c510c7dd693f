//! `walden archive import`: imports WAL from another archiver, verifying it.

use std::fmt::Write;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use walden_archive::import::{
    self, Ignored, ImportOptions, Imported, Layout, LayoutError, Source, SourceFile,
};
use walden_archive::name::ArchivedFile;
use walden_archive::push::PushOptions;
use walden_format::stream::StreamInfo;
use walden_report::units;
use walden_source::inventory::FileKind;
use walden_source::open::{self, Compression, Foreign};
use walden_source::regular_file;

use crate::FOUND;
use crate::level::LevelFlags;
use crate::place::Place;
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
    place: Place,

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
    refuse_encrypted(&source)?;
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
    let imported = import::import(&archive, source, &options, &open_decompressed, &|_, _| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    let imported = imported?;
    terminal::show(args.format, || &imported, || table(&imported))?;
    Ok(if imported.refused.is_empty() && imported.damaged.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    })
}

/// Refuses an encrypted source, which would fail at every file. The first and the last file reveal it.
fn refuse_encrypted(source: &Source) -> Result<()> {
    let is_segment = |file: &&SourceFile| matches!(file.file, ArchivedFile::Segment(_));
    let segments = || source.files.iter().filter(is_segment);
    let ends = [segments().next(), segments().next_back()];
    let encryption = |file: &SourceFile| match open::identify(&file.path) {
        Ok(Err(Foreign::Encrypted(by))) => Some((file.path.clone(), by.to_owned())),
        // WAL-G's libsodium encryption has no signature, but files keep the compressor's extension.
        Ok(Err(Foreign::Unknown(_))) if source.layout == Layout::WalG => {
            Some((file.path.clone(), "or damaged: its content is no compressed segment".to_owned()))
        }
        _ => None,
    };
    let ends: Vec<_> = ends.into_iter().flatten().map(encryption).collect();
    if let Some(Some((file, by))) = ends.first().cloned().filter(|_| ends.iter().all(Option::is_some)) {
        return Err(LayoutError::Encrypted { path: source.path.clone(), file, by }.into());
    }
    Ok(())
}

/// Opens a file by its content. The extension only decides for formats without a signature.
fn open_decompressed(file: &SourceFile) -> io::Result<Box<dyn Read>> {
    if file.ending == Some("wlz") {
        return Ok(Box::new(open::open_path(&file.path, Compression::Walden)?));
    }
    let is_text = matches!(file.file, ArchivedFile::History(_) | ArchivedFile::Backup(..));
    let compression = match open::identify(&file.path)? {
        Ok(compression) => compression,
        Err(Foreign::Unknown(_)) if is_text => match file.ending {
            Some("lzma") => Compression::Lzma,
            Some("br" | "brotli") => Compression::Brotli,
            _ => return Ok(Box::new(regular_file::open(&file.path)?)),
        },
        // Uncompressed data that is not a segment fails the checks of segments, which report the problem.
        Err(Foreign::Unknown(_)) if file.ending.is_none() => Compression::None,
        Err(foreign) => return Err(io::Error::new(io::ErrorKind::InvalidData, refusal(foreign))),
    };
    let content = Box::new(open::open_path(&file.path, compression)?);
    Ok(match (file.file, compression) {
        (ArchivedFile::Partial(_), compression) if compression != Compression::None => {
            Box::new(PaddedSegment { content, first: Vec::new(), bytes: 0, is_at_end: false })
        }
        _ => content,
    })
}

/// A partial segment that pg_receivewal compressed. Unlike an uncompressed one, it has no zeros after the
/// WAL, and the end of the compressed data is missing if pg_receivewal was killed. Reads zeros up to the size
/// of a segment.
struct PaddedSegment {
    content: Box<dyn Read>,
    /// The header of the first page, which has the size of a segment.
    first: Vec<u8>,
    bytes: u64,
    is_at_end: bool,
}

/// Bytes of the longest header of a page.
const LONG_HEADER: usize = 40;

impl Read for PaddedSegment {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.is_at_end {
            match self.content.read(buffer) {
                Ok(0) if !buffer.is_empty() => self.is_at_end = true,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.is_at_end = true,
                Ok(read) => {
                    let missing = LONG_HEADER - self.first.len();
                    self.first.extend(buffer[..read].iter().take(missing));
                    self.bytes += read as u64;
                    return Ok(read);
                }
                Err(error) => return Err(error),
            }
        }
        let size = StreamInfo::from_first_page(&self.first).map_or(0, |info| info.segment_size.bytes());
        let missing = usize::try_from(size.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let zeros = missing.min(buffer.len());
        buffer[..zeros].fill(0);
        self.bytes += zeros as u64;
        Ok(zeros)
    }
}

fn refusal(foreign: Foreign) -> String {
    match foreign {
        Foreign::Encrypted(by) => {
            format!("encrypted {by}; let the program that stored it fetch it, and import that file")
        }
        Foreign::Format(format) => {
            format!("its format, {format}, is not one that Walden reads; unpack it, and import that file")
        }
        Foreign::Unknown(_) => {
            "neither WAL nor compressed in a known way: damaged, or encrypted by a program that leaves no mark".to_owned()
        }
    }
}

fn table(imported: &Imported) -> String {
    let Imported { files, present, refused, warnings, damaged, .. } = imported;
    let mut text = String::new();
    let _ = writeln!(text, "{} ({}): {files} files", imported.source, imported.layout);
    let (raw, stored) = (units::bytes(imported.raw_bytes), units::bytes(imported.stored_bytes));
    let _ = write!(text, "  imported  {}", imported.imported);
    let _ = writeln!(
        text,
        "{}",
        if imported.imported > 0 { format!(": {raw} in {stored}") } else { String::new() }
    );
    if *present > 0 {
        let _ = writeln!(text, "  present   {present}: archived before, with the same content");
    }
    if !refused.is_empty() {
        let _ = writeln!(text, "  refused   {}", refused.len());
    }
    for one in refused {
        let _ = writeln!(text, "REFUSED: {} ({}): {}", one.file, one.path.display(), one.problem);
        if let Some(hint) = &one.hint {
            let _ = writeln!(text, "  HINT: {hint}");
        }
    }
    for one in damaged {
        let _ = writeln!(text, "DAMAGED: {}: {}", one.file, one.warning);
    }
    for one in warnings {
        let _ = writeln!(text, "warning: {}: {}", one.file, one.warning);
    }
    write_ignored(&mut text, &imported.ignored);
    text
}

/// Lists unusable segments individually; files that PostgreSQL does not archive are only counted.
fn write_ignored(text: &mut String, ignored: &[Ignored]) {
    let is_of_interest = |one: &&Ignored| {
        let name = one.path.file_name().unwrap_or_default().to_string_lossy();
        matches!(FileKind::from_name(&name), FileKind::Segment { .. } | FileKind::Pack)
    };
    for one in ignored.iter().filter(is_of_interest) {
        let _ = writeln!(text, "left out: {}: {}", one.path.display(), one.reason);
    }
    let others = ignored.iter().filter(|one| !is_of_interest(one)).count();
    if others > 0 {
        let _ = writeln!(text, "left out: {others} files that PostgreSQL does not archive");
    }
}

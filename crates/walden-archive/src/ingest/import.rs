//! Imports the files of another archive: reads each file, compares it with the archived one, checks it as
//! strictly as a push, and stores it.
//!
//! An interrupted import is repeated from the start. Files that are already archived with the same content
//! are not compressed again.
//!
//! Segments come first because they identify the source's cluster, which timeline history and backup history
//! files do not.

mod content;
mod layout;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use walden_format::diagnostic::Hint;
use walden_format::lsn::SegmentName;
use walden_source::error_text;

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::ingest::intake::{self, Intake, IntakeError};
use crate::ingest::push::{PushOptions, Pushed};
use crate::objects::link::{self, SegmentEnd};
use crate::objects::name::{ArchivedFile, Object};
use crate::objects::object;

pub use content::{expect_unencrypted, open_decompressed};
pub use layout::{Ignored, Layout, LayoutError, Source, SourceFile, find};

/// Options for importing files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Compression level, 1 to 9.
    pub level: u8,
    /// Archive damaged records, with a warning.
    pub accept_damaged: bool,
    /// Archive segments of PostgreSQL versions that Walden cannot read as bytes, with a warning.
    pub accept_unknown_versions: bool,
    /// Number of files processed concurrently.
    pub threads: usize,
}

impl ImportOptions {
    /// Creates options with the defaults of the other fields.
    pub fn new(level: u8) -> ImportOptions {
        ImportOptions { level, accept_damaged: false, accept_unknown_versions: false, threads: 1 }
    }
}

walden_format::setters!(ImportOptions {
    accept_damaged: bool,
    accept_unknown_versions: bool,
    threads: usize,
});

/// Result of an import.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Imported {
    /// Location of the source.
    pub source: String,
    /// Layout of the source.
    pub layout: Layout,
    /// Number of files that PostgreSQL archived.
    pub files: u64,
    /// Number of newly archived files.
    pub imported: u64,
    /// Number of files that were already archived with the same content.
    pub present: u64,
    /// Files that were not archived.
    pub refused: Vec<Refused>,
    /// Files that PostgreSQL did not archive, or that are useless.
    pub ignored: Vec<Ignored>,
    /// Warnings about archived files.
    pub warnings: Vec<Warning>,
    /// Archived segments that do not continue the previous segment, or in which a damaged record continues.
    pub damaged: Vec<Warning>,
    /// Total size of the imported files in bytes.
    pub raw_bytes: u64,
    /// Total size in bytes of the objects of the imported files.
    pub stored_bytes: u64,
}

/// A file that was not archived.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Refused {
    /// File name from PostgreSQL.
    pub file: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Why it was not archived.
    pub problem: String,
    /// The stable code of the problem.
    pub code: Option<&'static str>,
    /// A remedy for the user.
    pub hint: Option<Hint>,
}

/// A warning about an archived file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Warning {
    /// The file's name.
    pub file: String,
    /// Text of the warning.
    pub warning: String,
}

/// Opens a file of another archive and decompresses it.
pub type Open<'a> = dyn Fn(&SourceFile) -> io::Result<Box<dyn Read>> + Sync + 'a;

/// Imports files. Calls `progress` with the number of finished files and the total. Creates the archive if it
/// does not exist.
///
/// The result reports each problem with a file, and the import continues with the other files.
///
/// # Errors
/// An error that prevents archiving any further file.
pub fn import(
    archive: &Archive,
    source: Source,
    options: &ImportOptions,
    open: &Open<'_>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Imported, ArchiveError> {
    let push_options = PushOptions {
        level: options.level,
        accept_damaged: options.accept_damaged,
        accept_unknown_versions: options.accept_unknown_versions,
        ..PushOptions::default()
    };
    archive.create()?;
    let histories = histories(archive, &source, open)?;
    let intake = Intake::new(archive, &push_options, histories, source.cluster.clone())?;
    let count = source.files.len() as u64;
    let is_text =
        |file: &&SourceFile| matches!(file.file, ArchivedFile::History(_) | ArchivedFile::Backup(..));
    let (texts, segments): (Vec<&SourceFile>, Vec<&SourceFile>) = source.files.iter().partition(is_text);
    let (done, is_lost) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    for files in [&segments, &texts] {
        let next = AtomicUsize::new(0);
        let take_next = || {
            while !is_lost.load(Ordering::Relaxed)
                && let Some(&file) = files.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let content = open(file).map_err(IntakeError::Read);
                let result = content
                    .and_then(|mut content| intake.ingest(file.file, &mut *content, file.sha1.as_ref()));
                is_lost.fetch_or(result.as_ref().is_err_and(IntakeError::is_final), Ordering::Relaxed);
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.push((file, result));
                progress(done.len() as u64, count);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..options.threads.clamp(1, files.len().max(1)) {
                scope.spawn(take_next);
            }
        });
    }
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut imported = Imported {
        source: source.path.display().to_string(),
        layout: source.layout,
        files: count,
        imported: 0,
        present: 0,
        refused: Vec::new(),
        ignored: source.ignored.clone(),
        warnings: Vec::new(),
        damaged: Vec::new(),
        raw_bytes: 0,
        stored_bytes: 0,
    };
    for (file, result) in done {
        imported.add(file, result)?;
    }
    if !options.accept_damaged {
        imported.damaged = find_broken_links(archive, &source)?;
    }
    imported.refused.sort();
    imported.warnings.sort();
    Ok(imported)
}

/// Checks that consecutive segments of the source follow each other in the archive, by their summaries. Skips
/// segments in packs, and encrypted segments without a private key.
fn find_broken_links(archive: &Archive, source: &Source) -> Result<Vec<Warning>, ArchiveError> {
    let segment = |file: &SourceFile| match file.file {
        ArchivedFile::Segment(name) => Some(name),
        _ => None,
    };
    let names: BTreeSet<SegmentName> = source.files.iter().filter_map(segment).collect();
    let size = match archive.segment_size() {
        Err(ArchiveError::Empty(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let (mut last, mut found) = (None::<(SegmentName, SegmentEnd)>, Vec::new());
    for name in names {
        let file = ArchivedFile::Segment(name);
        let before = last.take().filter(|(before, _)| link::segment_before(name, size) == Some(*before));
        let Some((Object::File(_), bytes)) = archive.find(file)? else { continue };
        let Ok(summary) = object::read_summary(archive.store(), &file.key(), bytes) else { continue };
        let Some(contents) = summary.contents.filter(|_| !summary.is_damage_accepted) else { continue };
        let end = before.as_ref().map_or_else(SegmentEnd::default, |(_, end)| end.clone());
        if let Some((before, end)) = &before
            && let Err(refusal) = link::expect_link(&contents, *before, end)
        {
            found.push(Warning { file: name.to_string(), warning: error_text(&refusal) });
        }
        last = Some((name, SegmentEnd::new(&contents, &end)));
    }
    Ok(found)
}

impl Imported {
    fn add(&mut self, file: &SourceFile, result: Result<Pushed, IntakeError>) -> Result<(), ArchiveError> {
        match intake::split_final(result)? {
            Ok(pushed) => {
                match pushed.stored {
                    None => self.present += 1,
                    Some(stored) => {
                        self.imported += 1;
                        self.raw_bytes += pushed.bytes;
                        self.stored_bytes += stored;
                    }
                }
                let warning = |warning| Warning { file: file.file.to_string(), warning };
                self.warnings.extend(pushed.warnings.into_iter().map(warning));
            }
            Err(refused) => self.refused.push(Refused {
                file: file.file.to_string(),
                path: file.path.clone(),
                problem: error_text(&refused),
                code: refused.code(),
                hint: refused.hint(),
            }),
        }
        Ok(())
    }
}

/// Returns the histories of the source and the archive, which state where timelines ended.
fn histories(archive: &Archive, source: &Source, open: &Open<'_>) -> Result<Vec<History>, ArchiveError> {
    let own = source.files.iter().filter_map(|file| match file.file {
        ArchivedFile::History(timeline) => {
            Some((timeline, open(file).and_then(|mut content| intake::read_text(&mut *content))))
        }
        _ => None,
    });
    intake::histories(archive, own)
}

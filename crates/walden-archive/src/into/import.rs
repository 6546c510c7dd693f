//! From other archives: each file is read, compared with what is archived, checked as strictly as a pushed one, and stored.
//!
//! An import that was interrupted is repeated as a whole: what is archived already, with the same content, is not compressed again.
//!
//! Segments come first: they show which cluster the source is of, which histories and backup history files do not say.

mod layout;

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use walden_source::error_text;

use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::into::intake::{self, Intake, IntakeError};
use crate::into::push::{PushOptions, Pushed};
use crate::stored::name::ArchivedFile;

pub use layout::{Ignored, Layout, LayoutError, Source, SourceFile, find};

/// How files are imported.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The level of compression, 1 to 9.
    pub level: u8,
    /// Archive damaged records, with a warning.
    pub accept_damaged: bool,
    /// Archive segments of a version of PostgreSQL that Walden does not read as bytes, with a warning.
    pub accept_unknown_versions: bool,
    /// Files that are worked on at the same time.
    pub threads: usize,
}

/// What became of the files of another archive.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Imported {
    /// Where they were.
    pub source: String,
    /// How they were kept.
    pub layout: Layout,
    /// Files that PostgreSQL archived.
    pub files: u64,
    /// Files that are archived now and were not before.
    pub imported: u64,
    /// Files that were archived before, with the same content.
    pub present: u64,
    /// Files that were not archived.
    pub refused: Vec<Refused>,
    /// What is none of PostgreSQL's files, or of no use.
    pub ignored: Vec<Ignored>,
    /// What the user should know of files that were archived.
    pub warnings: Vec<Warning>,
    /// Bytes of the imported files.
    pub raw_bytes: u64,
    /// Bytes of their objects.
    pub stored_bytes: u64,
}

/// A file that was not archived.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Refused {
    /// The file's name, as PostgreSQL gave it.
    pub file: String,
    /// Where it is.
    pub path: PathBuf,
    /// Why.
    pub problem: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

/// Something about a file that was archived.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Warning {
    /// The file's name.
    pub file: String,
    /// What it is.
    pub warning: String,
}

/// Opens a file of another archive, decompressed.
pub type Open<'a> = dyn Fn(&SourceFile) -> io::Result<Box<dyn Read>> + Sync + 'a;

/// Imports files; `progress` is called with the files done and their number. In a place that has no archive it makes one.
///
/// What is wrong with a file is said in the outcome, and the others are imported.
///
/// # Errors
/// An archive that can take no file.
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
    archive.found()?;
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
        raw_bytes: 0,
        stored_bytes: 0,
    };
    for (file, result) in done {
        imported.add(file, result)?;
    }
    imported.refused.sort();
    imported.warnings.sort();
    Ok(imported)
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
                hint: refused.hint(),
            }),
        }
        Ok(())
    }
}

/// The histories of the source and of the archive, which say where timelines ended.
fn histories(archive: &Archive, source: &Source, open: &Open<'_>) -> Result<Vec<History>, ArchiveError> {
    let own = source.files.iter().filter_map(|file| match file.file {
        ArchivedFile::History(timeline) => {
            Some((timeline, open(file).and_then(|mut content| intake::read_text(&mut *content))))
        }
        _ => None,
    });
    intake::histories(archive, own)
}

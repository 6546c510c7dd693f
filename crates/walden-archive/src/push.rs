//! Into the archive: what `archive_command` asks for, and what PostgreSQL is going to ask for next.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use walden_source::workers;

use crate::archive::{Archive, ArchiveError, LogListing};
use crate::check::{self, Checked, Refusal, Rules};
use crate::get;
use crate::history::History;
use crate::name::{ArchivedFile, Object, folder_of};
use crate::object::{self, ObjectError, hexadecimal};
use crate::store::{Created, FileHash};

/// How files are archived.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// The level of compression, 1 to 9.
    pub level: u8,
    /// Archive damaged records, with a warning.
    pub accept_damaged: bool,
    /// How many other files that are ready one call archives at most.
    pub look_ahead: usize,
    /// After so long a call begins no further file.
    pub time: Duration,
    /// How many files are worked on at the same time.
    pub threads: usize,
}

impl Default for PushOptions {
    fn default() -> PushOptions {
        PushOptions {
            level: 3,
            accept_damaged: false,
            look_ahead: 64,
            time: Duration::from_secs(10),
            threads: 2,
        }
    }
}

/// What became of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Pushed {
    /// The file.
    pub file: ArchivedFile,
    /// It was archived before, with the same content.
    pub was_there: bool,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of its object; nothing if it was there.
    pub stored: Option<u64>,
    /// What the user should know although it is archived.
    pub warnings: Vec<String>,
    /// How long it took to check, compress and store it.
    pub took: Duration,
}

/// Why a file was not archived.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// PostgreSQL archives no files of this name.
    #[error("cannot archive {0}: expected the name of a segment, a history or a backup history file")]
    Name(String),
    /// The file is refused.
    #[error("cannot archive {name}")]
    Refused {
        /// The file's name.
        name: String,
        /// Why.
        #[source]
        refusal: Refusal,
    },
    /// The archive cannot take it.
    #[error("cannot archive {name}")]
    Archive {
        /// The file's name.
        name: String,
        /// Why.
        #[source]
        source: ArchiveError,
    },
}

impl PushError {
    /// The cause in a word, for logs and metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            PushError::Name(_) => "name",
            PushError::Refused { refusal, .. } => match refusal {
                Refusal::Io(_) => "unreadable",
                Refusal::Mismatch { .. } => "mismatch",
                Refusal::Damaged { .. } => "damaged",
                Refusal::History(_) => "history",
            },
            PushError::Archive { source, .. } => source.cause(),
        }
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        match self {
            PushError::Name(name) | PushError::Refused { name, .. } | PushError::Archive { name, .. } => name,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            PushError::Name(_) => Some("archive_command hands over the path: 'walden archive push %p'"),
            PushError::Refused { refusal, .. } => Some(refusal.hint()),
            PushError::Archive { source, .. } => source.hint(),
        }
    }
}

/// What one call did.
#[derive(Debug)]
pub struct Batch {
    /// What became of the file that was asked for.
    pub asked: Result<Pushed, PushError>,
    /// What became of others that were ready.
    pub others: Vec<Result<Pushed, PushError>>,
    /// Files that are ready, with those that were archived now: PostgreSQL has not marked them as done yet.
    pub ready: usize,
}

/// Archives a file and others that PostgreSQL has ready, in parallel.
///
/// What becomes of the others is said, and has no influence on what is said of the first.
pub fn push(archive: &Archive, path: &Path, options: &PushOptions) -> Batch {
    let began = Instant::now();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(file) = ArchivedFile::parse(&name) else {
        return Batch { asked: Err(PushError::Name(name)), others: Vec::new(), ready: 0 };
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let ready = ready_files(folder).unwrap_or_default();
    let pusher = Pusher::new(archive, options, local_histories(folder));
    let asked = pusher.push(file, path);
    let others: Vec<ArchivedFile> = match &asked {
        // Whatever keeps this one from being archived may keep all of them, and PostgreSQL comes back with this one.
        Err(PushError::Archive { .. }) => Vec::new(),
        _ => ready.iter().copied().filter(|&other| other != file).take(options.look_ahead).collect(),
    };
    let mut results = Vec::new();
    workers::run_in_order(
        0..others.len(),
        options.threads,
        || (),
        |(), index| {
            let other = others[index];
            let is_in_time = began.elapsed() < options.time;
            is_in_time.then(|| pusher.push(other, &folder.join(other.to_string())))
        },
        |result| {
            let Some(result) = result else { return ControlFlow::Break(()) };
            let is_lost = matches!(&result, Err(PushError::Archive { .. }));
            results.push(result);
            if is_lost { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
    Batch { asked, others: results, ready: ready.len() }
}

/// Archives files that were checked.
pub(crate) struct Pusher<'a> {
    archive: &'a Archive,
    options: &'a PushOptions,
    histories: Vec<History>,
    /// Listings of this call.
    folders: Mutex<BTreeMap<String, LogListing>>,
}

impl<'a> Pusher<'a> {
    /// `histories` say where timelines ended.
    pub fn new(archive: &'a Archive, options: &'a PushOptions, histories: Vec<History>) -> Pusher<'a> {
        Pusher { archive, options, histories, folders: Mutex::new(BTreeMap::new()) }
    }

    /// How strictly files are checked.
    pub fn rules(&self) -> Rules<'_> {
        Rules { accept_damaged: self.options.accept_damaged, histories: &self.histories }
    }

    fn push(&self, file: ArchivedFile, path: &Path) -> Result<Pushed, PushError> {
        let name = || file.to_string();
        let refused = |refusal| PushError::Refused { name: name(), refusal };
        let began = Instant::now();
        let mut content = File::open(path).map_err(|error| refused(error.into()))?;
        if let Some(pushed) = self.find_same(file, &mut content)? {
            return Ok(pushed);
        }
        let checked = check::check(file, &mut content, self.rules()).map_err(refused)?;
        match self.store(file, checked, &mut content) {
            Ok(pushed) => Ok(Pushed { took: began.elapsed(), ..pushed }),
            Err(source) => Err(PushError::Archive { name: name(), source }),
        }
    }

    /// What is known of a segment if it is archived with the same content: it was checked then.
    fn find_same(&self, file: ArchivedFile, content: &mut File) -> Result<Option<Pushed>, PushError> {
        let failed = |source| PushError::Archive { name: file.to_string(), source };
        let Some(found) = self.find(file).map_err(failed)? else { return Ok(None) };
        let mut hasher = blake3::Hasher::new();
        let hashed = hasher.update_reader(&mut *content).and_then(|_| content.rewind());
        hashed.map_err(|error| PushError::Refused { name: file.to_string(), refusal: error.into() })?;
        let archived = self.archived(file, Some(found), hasher.finalize().as_bytes()).map_err(failed)?;
        Ok(archived.is_same.then_some(Pushed {
            file,
            was_there: true,
            bytes: hasher.count(),
            stored: None,
            warnings: archived.warnings,
            took: Duration::ZERO,
        }))
    }

    /// Whether a file is archived already, with the content that was checked, and durable.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] if it is archived with other content, and the store's.
    pub fn find_present(
        &self,
        file: ArchivedFile,
        checked: &Checked,
    ) -> Result<Option<Pushed>, ArchiveError> {
        let found = match file {
            ArchivedFile::Segment(_) => self.find(file)?,
            _ => get::find(self.archive, file)?,
        };
        let Some(found) = found else { return Ok(None) };
        self.compare(file, Some(found), &checked.hash)?;
        let warnings = checked.warnings.clone();
        let took = Duration::ZERO;
        Ok(Some(Pushed { file, was_there: true, bytes: checked.bytes, stored: None, warnings, took }))
    }

    /// Archives a file that was checked; `content` is read from its start.
    ///
    /// # Errors
    /// Why the archive does not have it.
    pub fn store(
        &self,
        file: ArchivedFile,
        checked: Checked,
        content: &mut (impl Read + Seek),
    ) -> Result<Pushed, ArchiveError> {
        if let Some(cluster) = &checked.cluster {
            self.archive.claim(cluster)?;
        }
        let Checked { bytes, hash, warnings, .. } = &checked;
        let pushed = |stored: Option<u64>| Pushed {
            file,
            was_there: stored.is_none(),
            bytes: *bytes,
            stored,
            warnings: warnings.clone(),
            took: Duration::ZERO,
        };
        if let Some(found) = self.find(file)? {
            return self.compare(file, Some(found), hash).map(|()| pushed(None));
        }
        let key = file.key();
        let failed = |error: io::Error| {
            ArchiveError::Object(ObjectError::Container {
                key: key.clone(),
                source: walden_codec::container::Error::Original(error),
            })
        };
        content.seek(SeekFrom::Start(0)).map_err(failed)?;
        let object = object::encode(file, &checked, content, self.options.level)?;
        let stored = object.len() as u64;
        let files = [FileHash { name: &file.to_string(), hash }];
        match self.archive.store().create_with(&key, &object, &files)? {
            Created::New => Ok(pushed(Some(stored))),
            Created::Exists => self.compare(file, None, hash).map(|()| pushed(None)),
        }
    }

    /// The object that has a segment of this name already. For other files, the attempt to create them shows it.
    fn find(&self, file: ArchivedFile) -> Result<Option<(Object, u64)>, ArchiveError> {
        let ArchivedFile::Segment(name) = file else { return Ok(None) };
        let key = folder_of(name);
        let mut folders = self.folders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let folder = match folders.get(&key) {
            Some(folder) => folder,
            None => folders.entry(key).or_insert(self.archive.segments_beside(name)?),
        };
        Ok(folder.find(file))
    }

    /// Compares what is archived with what is offered.
    fn compare(
        &self,
        file: ArchivedFile,
        found: Option<(Object, u64)>,
        hash: &[u8; 32],
    ) -> Result<(), ArchiveError> {
        let archived = self.archived(file, found, hash)?;
        if archived.is_same {
            return Ok(());
        }
        let (name, location) = (file.to_string(), self.archive.store().location().to_owned());
        Err(ArchiveError::Conflict { name, location, archived: archived.hash, offered: hexadecimal(hash) })
    }

    /// What is known of a file that is archived, `found` in an object or to be looked for, and durable from now on: whoever archived
    /// it may have been interrupted before it was. It is compared with the hash of what is offered.
    fn archived(
        &self,
        file: ArchivedFile,
        found: Option<(Object, u64)>,
        hash: &[u8; 32],
    ) -> Result<Archived, ArchiveError> {
        let store = self.archive.store();
        let name = file.to_string();
        let read = |object: Object, bytes| -> Result<Archived, ArchiveError> {
            let archived = match store.holds(&object.key(), FileHash { name: &name, hash })? {
                Some(is_same) => Archived {
                    is_same,
                    hash: "unknown without a private key".to_owned(),
                    warnings: Vec::new(),
                },
                None => {
                    let summary = object::read_summary_of(store, file, object, bytes)?;
                    let is_same = summary.blake3 == hexadecimal(hash);
                    Archived { is_same, hash: summary.blake3, warnings: summary.warnings }
                }
            };
            store.make_durable(&object.key())?;
            Ok(archived)
        };
        match found.map(|(object, bytes)| read(object, bytes)) {
            // Packed since it was listed.
            Some(Err(error)) if error.is_not_found() => {}
            Some(result) => return result,
            None => {}
        }
        let archived = get::with_object(self.archive, file, read)?;
        let (expected, found) = ("the object that was listed".to_owned(), "none".to_owned());
        archived.ok_or_else(|| ObjectError::Mismatch { key: file.key(), expected, found }.into())
    }
}

/// What is known of an archived file.
struct Archived {
    /// It has the content that is offered.
    is_same: bool,
    /// BLAKE3 of its content, for people.
    hash: String,
    warnings: Vec<String>,
}

/// The files that PostgreSQL has ready, in the order in which it asks for them: histories first, then by name.
///
/// `archive_status` is only read: it is PostgreSQL's.
///
/// # Errors
/// A folder that cannot be read.
pub fn ready_files(wal: &Path) -> io::Result<Vec<ArchivedFile>> {
    let mut ready = Vec::new();
    for entry in fs::read_dir(wal.join("archive_status"))? {
        let name = entry?.file_name();
        let file = name.to_str().and_then(|name| name.strip_suffix(".ready")).and_then(ArchivedFile::parse);
        ready.extend(file);
    }
    ready.sort_by_cached_key(|file| (!matches!(file, ArchivedFile::History(_)), file.to_string()));
    Ok(ready)
}

/// The timeline histories that lie beside the segments.
fn local_histories(wal: &Path) -> Vec<History> {
    let paths = fs::read_dir(wal).into_iter().flatten().flatten().map(|entry| entry.path());
    let history = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let Some(ArchivedFile::History(timeline)) = ArchivedFile::parse(name) else { return None };
        History::parse(timeline, &fs::read(&path).ok()?).ok()
    };
    paths.filter_map(history).collect()
}

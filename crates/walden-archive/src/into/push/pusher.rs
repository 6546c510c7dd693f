//! One file after the other: found in the archive with the same content, or checked, compressed and stored.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_source::regular_file;

use super::ahead::{Notes, Stamp};
use super::result::{FAST, PushError, PushOptions, Pushed};
use crate::archive::{Archive, ArchiveError, LogListings};
use crate::hash::hash_file;
use crate::history::History;
use crate::out::get;
use crate::out::server::system_id_beside;
use crate::store::{Cause, Created, FileHash};
use crate::stored::check::{self, Checked, Refusal, Rules};
use crate::stored::contents::Contents;
use crate::stored::link;
use crate::stored::name::{ArchivedFile, Object};
use crate::stored::object::{self, Content, ObjectError, Summary, to_hex};
use crate::stored::same_log::{self, Version};

/// A file that was complete for longer than this before it is archived shows that archiving is behind.
const BEHIND: Duration = Duration::from_secs(10);
/// What part of [`PushOptions::fast_queue`] still is a long queue then.
const BEHIND_PART: usize = 8;

/// Files of so many bytes are read once and held in memory while they are worked on; larger ones are read for each step.
const MAX_HELD: u64 = 64 << 20;

/// A file that was read to be archived.
pub(crate) struct FileRead {
    /// BLAKE3 of its content.
    pub hash: [u8; 32],
    /// Its stamp, if it has one, and did not change meanwhile.
    pub stamp: Option<Stamp>,
}

/// Archives files that were checked.
pub(crate) struct Pusher {
    archive: Archive,
    options: PushOptions,
    histories: Vec<History>,
    /// What another call has archived ahead.
    pub(super) ahead: Notes,
    /// What was listed, and what was archived since.
    listings: Mutex<LogListings>,
    /// Held while the archive becomes the cluster's.
    claiming: Mutex<()>,
    /// Of segments that are known to be archived, the records at which the next segment may point back.
    last_records: Mutex<BTreeMap<SegmentName, Vec<Lsn>>>,
}

/// Whether a file that is ready to be stored may be, by what became of those before it; called once, and may wait for them.
pub(crate) type MayStore<'m> = &'m dyn Fn() -> bool;

/// What becomes of a file that was checked.
enum Prepared {
    /// It was archived before, with the same content.
    Present(Pushed),
    /// This object is to be stored.
    New(Vec<u8>),
}

impl Pusher {
    /// `histories` say where timelines ended.
    pub fn new(archive: Archive, options: PushOptions, histories: Vec<History>) -> Pusher {
        let (listings, claiming, last_records) = (Mutex::default(), Mutex::default(), Mutex::default());
        Pusher { archive, options, histories, ahead: Notes::default(), listings, claiming, last_records }
    }

    /// How strictly files are checked.
    pub fn rules(&self) -> Rules<'_> {
        let PushOptions { accept_damaged, accept_unknown_versions, .. } = self.options;
        Rules { accept_damaged, accept_unknown_versions, histories: &self.histories }
    }

    /// The files that are archived beside the one that is asked for, in PostgreSQL's order; and how many wait to be archived, with the one
    /// that is asked for.
    ///
    /// They end before the first one that the archive lists: whether that has the same content, the call that asks for it finds out, and
    /// nothing behind it is archived before that.
    ///
    /// As long as the file that is asked for and the next one are both listed, there are none: to start with few files as soon as
    /// there is space for them would leave processors without work.
    ///
    /// # Errors
    /// The store's, when it lists what is beside the file that is asked for.
    pub(super) fn choose_others(
        &self,
        asked: ArchivedFile,
        ready: &[ArchivedFile],
    ) -> Result<(Vec<ArchivedFile>, usize), ArchiveError> {
        let is_asked_listed = self.find(asked)?.is_some();
        // A file whose folder cannot be listed is tried, and that gives the error.
        let is_listed = |file: &ArchivedFile| self.is_listed(*file);
        let others = || ready.iter().copied().filter(|&other| other != asked);
        if self.options.look_ahead == 0 {
            return Ok((Vec::new(), ready.len()));
        }
        if is_asked_listed && others().next().is_some_and(|next| is_listed(&next)) {
            return Ok((Vec::new(), 1));
        }
        let waiting = others().filter(|other| !is_listed(other)).count() + 1;
        let missing = others().take_while(|other| !is_listed(other)).take(self.options.look_ahead);
        Ok((missing.collect(), waiting))
    }

    /// Whether the archive lists a segment. A folder that cannot be listed has none.
    pub fn is_listed(&self, file: ArchivedFile) -> bool {
        matches!(self.find(file), Ok(Some(_)))
    }

    /// Archives a file, one of so many that wait; `buffer` is for its content, and can be used again. Also gives what was
    /// read, if it was; nothing at all if the file may not be stored.
    pub fn push(
        &self,
        file: ArchivedFile,
        path: &Path,
        waiting: usize,
        buffer: &mut Vec<u8>,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, Option<FileRead>)>, PushError> {
        let mut content =
            open_regular(path).map_err(|refusal| PushError::Refused { name: file.to_string(), refusal })?;
        if let Some(pushed) = self.find_noted(file, &content)? {
            return Ok(Some((pushed, None)));
        }
        let stamp = Stamp::of(&content);
        let pushed = match self.find_same(file, &content)? {
            None => self.push_new(file, path, &mut content, waiting, buffer, may_store)?,
            found => found,
        };
        let stamp = stamp.filter(|_| Stamp::of(&content) == stamp);
        Ok(pushed.map(|(pushed, hash)| (pushed, Some(FileRead { hash, stamp }))))
    }

    /// Checks a file and compares it with the archive as [`Pusher::push`] does, and stores nothing.
    pub fn find_refusal(&self, file: ArchivedFile, path: &Path) -> Result<(), PushError> {
        let refused = |refusal| PushError::Refused { name: file.to_string(), refusal };
        let failed = |source| PushError::Archive { name: file.to_string(), source };
        let mut input = open_regular(path).map_err(refused)?;
        if self.find_same(file, &input)?.is_some() {
            return Ok(());
        }
        if let ArchivedFile::History(_) | ArchivedFile::Backup(..) = file {
            self.expect_own_archive(path).map_err(failed)?;
        }
        let mut buffer = Vec::new();
        let is_held = read_whole(&mut input, &mut buffer).map_err(|error| refused(error.into()))?;
        let mut content = if is_held { Content::Held(&buffer) } else { Content::Read(&mut input) };
        let checked = self.check(file, &mut content).map_err(refused)?;
        if let Some(cluster) = &checked.cluster {
            self.archive.expect_segments_of(cluster.system_id, cluster.segment_size).map_err(failed)?;
        }
        self.expect_link(file, &checked).map_err(refused)?;
        match self.find_present(file, &checked) {
            Ok(_) => Ok(()),
            Err(_) if is_emptied_backup(file, &content) => Ok(()),
            Err(conflict) => match self.find_same_log(file, &checked, &mut content) {
                Ok(Some(_)) => Ok(()),
                _ => Err(failed(conflict)),
            },
        }
    }

    /// Makes sure that a file without a system identifier comes from a server of the archive's cluster.
    fn expect_own_archive(&self, path: &Path) -> Result<(), ArchiveError> {
        match system_id_beside(path) {
            Some(system_id) => self.archive.expect_cluster(system_id),
            None => self.archive.expect_archive(),
        }
    }

    /// Archives a file that the archive does not have.
    fn push_new(
        &self,
        file: ArchivedFile,
        path: &Path,
        content: &mut File,
        waiting: usize,
        buffer: &mut Vec<u8>,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, [u8; 32])>, PushError> {
        let began = Instant::now();
        if let ArchivedFile::History(_) | ArchivedFile::Backup(..) = file {
            let expected = self.expect_own_archive(path);
            expected.map_err(|source| PushError::Archive { name: file.to_string(), source })?;
        }
        let level = self.level_for(content, waiting);
        let is_held = read_whole(content, buffer)
            .map_err(|error| PushError::Refused { name: file.to_string(), refusal: error.into() })?;
        let mut content = match is_held {
            true => Content::Held(&buffer[..]),
            false => Content::Read(content),
        };
        let stored = self.check_and_store(file, &mut content, level, may_store)?;
        Ok(stored.map(|(pushed, hash)| (Pushed { took: began.elapsed(), ..pushed }, hash)))
    }

    /// The level for a file, one of so many that wait.
    fn level_for(&self, content: &File, waiting: usize) -> u8 {
        let PushOptions { level, fast_queue, .. } = self.options;
        // PostgreSQL writes a segment to its end before it is ready to be archived.
        let age = || content.metadata().and_then(|file| file.modified()).ok()?.elapsed().ok();
        let is_late = || age().is_some_and(|age| age > BEHIND);
        let is_behind = waiting > fast_queue || waiting > fast_queue / BEHIND_PART && is_late();
        if is_behind { FAST } else { level }
    }

    fn check_and_store(
        &self,
        file: ArchivedFile,
        content: &mut Content<'_>,
        level: u8,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, [u8; 32])>, PushError> {
        let name = || file.to_string();
        let refused = |refusal| PushError::Refused { name: name(), refusal };
        let mut checked = self.check(file, content).map_err(refused)?;
        let (hash, offered) = (checked.hash, checked.clone());
        let stored = match self.prepare(file, &mut checked, content, level) {
            Ok(Prepared::Present(pushed)) => Ok(pushed),
            Ok(Prepared::New(object)) => {
                if !may_store() {
                    return Ok(None);
                }
                self.expect_link(file, &offered).map_err(refused)?;
                self.create(file, &checked, &object)
            }
            Err(error) => Err(error),
        };
        if stored.is_ok() && offered.is_sound {
            self.note_last_records(file, offered.contents.as_ref());
        }
        let stored = match stored {
            Err(ArchiveError::Conflict { .. }) if is_emptied_backup(file, content) => {
                let warning =
                    "archived before, and empty now, as after a crash of the server: what is archived stays";
                Ok(Pushed {
                    file,
                    was_there: true,
                    bytes: offered.bytes,
                    stored: None,
                    warnings: vec![warning.to_owned()],
                    took: Duration::ZERO,
                })
            }
            Err(conflict @ (ArchiveError::Conflict { .. } | ArchiveError::DamageAccepted { .. })) => {
                let found = self.find_same_log(file, &offered, content);
                let found =
                    found.map_err(|error| PushError::Refused { name: name(), refusal: error.into() })?;
                found.ok_or(conflict)
            }
            other => other,
        };
        let stored = stored.map_err(|source| PushError::Archive { name: name(), source })?;
        Ok(Some((stored, hash)))
    }

    fn check(&self, file: ArchivedFile, content: &mut Content<'_>) -> Result<Checked, Refusal> {
        match check_by(file, content, self.rules()) {
            // The archive may have the timeline's history although pg_wal does not.
            Err(refusal @ Refusal::Timeline { .. }) => self.check_by_archived(file, content, refusal),
            other => other,
        }
    }

    /// Confirms that a segment follows the one before it, if that is known.
    fn expect_link(&self, file: ArchivedFile, checked: &Checked) -> Result<(), Refusal> {
        let (ArchivedFile::Segment(name), Some(contents)) = (file, &checked.contents) else { return Ok(()) };
        let Some(before) = segment_before(name, contents) else { return Ok(()) };
        let known = self.last_records.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&before).map_or(Ok(()), |records| link::expect_link(contents, before, records))
    }

    /// Keeps the last records of a segment that is archived with this content.
    fn note_last_records(&self, file: ArchivedFile, contents: Option<&Contents>) {
        let (ArchivedFile::Segment(name), Some(contents)) = (file, contents) else { return };
        let mut known = self.last_records.lock().unwrap_or_else(PoisonError::into_inner);
        let before = segment_before(name, contents).and_then(|before| known.get(&before));
        let records = link::last_records(contents, before.map_or(&[], Vec::as_slice));
        known.insert(name, records);
    }

    /// Learns the last records of the segment before one that is not archived, if the archive lists it in an object of its own: its summary
    /// has them, and nothing is decoded. What cannot be read, or needs a private key, is not compared.
    pub fn learn_link_before(&self, file: ArchivedFile) {
        let ArchivedFile::Segment(name) = file else { return };
        // Within one log, whatever the size of the segments.
        let Some(segment) = name.segment.checked_sub(1) else { return };
        let before = SegmentName { segment, ..name };
        let is_known = self.last_records.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&before);
        if is_known || self.is_listed(file) {
            return;
        }
        let before = ArchivedFile::Segment(before);
        let Ok(Some((Object::File(_), bytes))) = self.find(before) else { return };
        if let Ok(summary) = object::read_summary(self.archive.store(), &before.key(), bytes)
            && summary.warnings.is_empty()
        {
            self.note_last_records(before, summary.contents.as_ref());
        }
    }

    /// Checks a file once more, by what histories the archive has.
    fn check_by_archived(
        &self,
        file: ArchivedFile,
        content: &mut Content<'_>,
        refusal: Refusal,
    ) -> Result<Checked, Refusal> {
        let Ok((archived, _)) = self.archive.undamaged_histories() else { return Err(refusal) };
        let histories: Vec<History> = self.histories.iter().chain(archived.values()).cloned().collect();
        if let Content::Read(input) = content {
            input.rewind()?;
        }
        check_by(file, content, Rules { histories: &histories, ..self.rules() })
    }

    /// What is said of a segment that was checked and is archived with the same log, and other bytes where there is none: the archived
    /// ones stay.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn find_same_log(
        &self,
        file: ArchivedFile,
        checked: &Checked,
        content: &mut Content<'_>,
    ) -> io::Result<Option<Pushed>> {
        let mut archived = Vec::new();
        let found = get::with_object(&self.archive, file, |object, bytes| {
            archived.clear();
            get::decode(&self.archive, file, object, bytes, &mut archived)
        });
        let mut read = Vec::new();
        let offered: &[u8] = match content {
            Content::Held(bytes) => bytes,
            Content::Read(input) => {
                input.rewind()?;
                input.read_to_end(&mut read)?;
                &read[..]
            }
        };
        // Histories that cannot be read say nothing.
        let (histories, _) = self.archive.undamaged_histories().unwrap_or_default();
        let histories: Vec<History> = self.histories.iter().cloned().chain(histories.into_values()).collect();
        let version = Version { content: offered, checked };
        match found {
            Ok(Some(())) => {}
            // Without a private key, only a content that is known can be compared with.
            Err(error) if is_locked(&error) => {
                let zeroed = same_log::with_zeros_behind(file, version, &histories);
                match zeroed.filter(|zeroed| self.has_content(file, zeroed)) {
                    Some(zeroed) => archived = zeroed,
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        }
        let rules = Rules { histories: &histories, ..Rules::default() };
        let Ok(found) = check::check_held(file, &archived, rules) else { return Ok(None) };
        let end =
            same_log::same_until(file, Version { content: &archived, checked: &found }, version, &histories);
        let Some(end) = end else { return Ok(None) };
        let warning = format!(
            "archived before with the same WAL up to {end}; what is behind is not used, and differs: the archived bytes stay"
        );
        Ok(Some(Pushed {
            file,
            was_there: true,
            bytes: checked.bytes,
            stored: None,
            warnings: vec![warning],
            took: Duration::ZERO,
        }))
    }

    /// Whether a file is known to be archived with a content.
    fn has_content(&self, file: ArchivedFile, content: &[u8]) -> bool {
        let hash = *blake3::hash(content).as_bytes();
        self.archived(file, None, &hash).is_ok_and(|archived| archived.is_same)
    }

    /// What is known of a segment that another call archived ahead, and that has not changed since.
    fn find_noted(&self, file: ArchivedFile, content: &File) -> Result<Option<Pushed>, PushError> {
        let failed = |source| PushError::Archive { name: file.to_string(), source };
        let Some((bytes, stored)) = self.ahead.sizes(file, content) else { return Ok(None) };
        match self.find(file).map_err(failed)? {
            Some((Object::File(_), listed)) if listed == stored => {}
            _ => return Ok(None),
        }
        self.archive.expect_still_there().map_err(failed)?;
        let (was_there, took) = (true, Duration::ZERO);
        Ok(Some(Pushed { file, was_there, bytes, stored: None, warnings: Vec::new(), took }))
    }

    /// What is known of a segment if it is archived with the same content: it was checked then, and what is stored is read once more.
    fn find_same(&self, file: ArchivedFile, content: &File) -> Result<Option<(Pushed, [u8; 32])>, PushError> {
        let failed = |source| PushError::Archive { name: file.to_string(), source };
        let Some(found) = self.find(file).map_err(failed)? else { return Ok(None) };
        // Where archive.json is lost or damaged, nobody can read what is archived: nothing is acknowledged as if all were well.
        let size = match self.archive.segment_size() {
            // Set up, and no segment was pushed yet.
            Err(ArchiveError::Empty(_)) => None,
            other => Some(other.map_err(failed)?),
        };
        let hashed = hash_file(content, self.options.threads);
        let (bytes, hash) =
            hashed.map_err(|error| PushError::Refused { name: file.to_string(), refusal: error.into() })?;
        // The complete checks name what differs.
        if matches!(file, ArchivedFile::Segment(_)) && size.is_some_and(|size| size.bytes() != bytes) {
            return Ok(None);
        }
        let archived = self.archived(file, Some(found), &hash).map_err(failed)?;
        if archived.is_same && archived.warnings.is_empty() {
            self.note_last_records(file, archived.contents.as_ref());
        }
        let pushed = Pushed {
            file,
            was_there: true,
            bytes,
            stored: None,
            warnings: archived.warnings,
            took: Duration::ZERO,
        };
        Ok(archived.is_same.then_some((pushed, hash)))
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
            _ => self.archive.find(file)?,
        };
        let Some(found) = found else { return Ok(None) };
        self.compare(file, Some(found), &checked.hash)?;
        let warnings = checked.warnings.clone();
        let took = Duration::ZERO;
        Ok(Some(Pushed { file, was_there: true, bytes: checked.bytes, stored: None, warnings, took }))
    }

    /// Archives a file that was checked, compressed at a level.
    ///
    /// # Errors
    /// Why the archive does not have it.
    pub fn store(
        &self,
        file: ArchivedFile,
        mut checked: Checked,
        content: &mut Content<'_>,
        level: u8,
    ) -> Result<Pushed, ArchiveError> {
        match self.prepare(file, &mut checked, content, level)? {
            Prepared::Present(pushed) => Ok(pushed),
            Prepared::New(object) => self.create(file, &checked, &object),
        }
    }

    /// Compares a file that was checked with what is archived under its name, or compresses it.
    fn prepare(
        &self,
        file: ArchivedFile,
        checked: &mut Checked,
        content: &mut Content<'_>,
        level: u8,
    ) -> Result<Prepared, ArchiveError> {
        if let Some(cluster) = &checked.cluster {
            let _claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
            self.archive.claim(cluster.system_id, cluster.segment_size)?;
        }
        if let Some(found) = self.find(file)? {
            self.compare(file, Some(found), &checked.hash)?;
            return Ok(Prepared::Present(pushed(file, None, checked)));
        }
        Ok(Prepared::New(object::encode(file, checked, content, level)?))
    }

    /// Stores the object of a file that was checked.
    fn create(&self, file: ArchivedFile, checked: &Checked, object: &[u8]) -> Result<Pushed, ArchiveError> {
        let stored = object.len() as u64;
        let files = [FileHash { name: &file.to_string(), hash: &checked.hash }];
        // Before, so that nothing is stored under a mount point, and after, so that nothing that is stored there is acknowledged.
        self.archive.expect_still_there()?;
        match self.archive.store().create_with(&file.key(), object, &files)? {
            Created::New => {
                self.archive.expect_still_there()?;
                self.note(file, stored);
                Ok(pushed(file, Some(stored), checked))
            }
            Created::Exists => {
                self.compare(file, None, &checked.hash)?;
                Ok(pushed(file, None, checked))
            }
        }
    }

    /// The object that has a segment of this name already. For other files, the attempt to create them shows it.
    fn find(&self, file: ArchivedFile) -> Result<Option<(Object, u64)>, ArchiveError> {
        let ArchivedFile::Segment(name) = file else { return Ok(None) };
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        listings.find(&self.archive, name)
    }

    /// Adds what was archived to what was listed before.
    fn note(&self, file: ArchivedFile, bytes: u64) {
        let ArchivedFile::Segment(name) = file else { return };
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).add(name, bytes);
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
        let (archived, is_damage_accepted) = (archived.hash, archived.is_damage_accepted);
        let offered = to_hex(hash);
        let conflict = ArchiveError::Conflict { name: name.clone(), location, archived, offered };
        Err(match is_damage_accepted {
            true => ArchiveError::DamageAccepted { name, conflict: Box::new(conflict) },
            false => conflict,
        })
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
            let held = store.holds(&object.key(), FileHash { name: &name, hash })?;
            let archived = match self.sound_summary(file, object, bytes, held.is_some())? {
                Some(summary) => {
                    let is_same = summary.blake3 == to_hex(hash);
                    let is_damage_accepted = summary.has_accepted_damage();
                    let Summary { blake3, warnings, contents, .. } = summary;
                    Archived { is_same, hash: Some(blake3), warnings, contents, is_damage_accepted }
                }
                None => Archived {
                    is_same: held == Some(true),
                    hash: None,
                    warnings: Vec::new(),
                    contents: None,
                    is_damage_accepted: false,
                },
            };
            store.make_durable(&object.key())?;
            // Else it lies under the mount point of an archive that is not mounted, where it was stored while that was so.
            self.archive.expect_still_there()?;
            Ok(archived)
        };
        let damaged = |error: ArchiveError| match error.is_damage() {
            true => ArchiveError::DamagedBefore { name: name.clone(), source: Box::new(error) },
            false => error,
        };
        match found.map(|(object, bytes)| read(object, bytes)) {
            // Packed since it was listed.
            Some(Err(error)) if error.is_not_found() => {}
            Some(result) => return result.map_err(damaged),
            None => {}
        }
        let archived = get::with_object(&self.archive, file, read).map_err(damaged)?;
        let (expected, found) = ("the object that was listed".to_owned(), "none".to_owned());
        archived.ok_or_else(|| ObjectError::Mismatch { key: file.key(), expected, found }.into())
    }

    /// What an object says of a file in it, if what is stored of the file is as it was written: once a file that is archived already is
    /// acknowledged, its server removes what may be the last good copy. The summary alone says nothing of the rest of the object.
    ///
    /// Nothing if the object has a tag of the file (`has_tag`), so that it can be compared, and no private key opens it: then nobody
    /// can say more.
    fn sound_summary(
        &self,
        file: ArchivedFile,
        object: Object,
        bytes: u64,
        has_tag: bool,
    ) -> Result<Option<Summary>, ArchiveError> {
        if has_tag && self.archive.encrypted().options().identity.is_none() {
            return Ok(None);
        }
        match self.read_sound(file, object, bytes) {
            Err(error) if has_tag && is_locked(&error) => Ok(None),
            other => other.map(Some),
        }
    }

    fn read_sound(&self, file: ArchivedFile, object: Object, bytes: u64) -> Result<Summary, ArchiveError> {
        let store = self.archive.store();
        match object {
            // The usual case: a file that was archived ahead.
            Object::File(_) => Ok(object::check_one_file(file, &store.read(&object.key())?)?),
            // What a segment needs is a part of the pack, and which one is known to who decodes it.
            Object::Pack(_) => {
                get::decode(&self.archive, file, object, bytes, &mut io::sink())?;
                Ok(object::read_summary_of(store, file, object, bytes)?)
            }
        }
    }
}

/// What became of a file that was checked; `stored` are the bytes of its object, if it was not there.
fn pushed(file: ArchivedFile, stored: Option<u64>, checked: &Checked) -> Pushed {
    Pushed {
        file,
        was_there: stored.is_none(),
        bytes: checked.bytes,
        stored,
        warnings: checked.warnings.clone(),
        took: Duration::ZERO,
    }
}

/// The segment before one whose records say this.
fn segment_before(name: SegmentName, contents: &Contents) -> Option<SegmentName> {
    link::segment_before(name, SegmentSize::new(contents.segment_bytes)?)
}

/// Whether an object cannot be read for want of a private key that opens it.
pub(crate) fn is_locked(error: &ArchiveError) -> bool {
    let cause = error.store_error().map(|error| error.cause);
    cause.is_some_and(|cause| cause.is_of_identity() || cause == Cause::OtherRecipient)
}

/// Whether it is a backup history file that has lost its content. PostgreSQL does not synchronise these files: one that was archived
/// already can be empty after a crash, and be offered once more. It is never offered with its content again, and archiving must go on.
fn is_emptied_backup(file: ArchivedFile, content: &Content<'_>) -> bool {
    matches!(file, ArchivedFile::Backup(..))
        && matches!(content, Content::Held(bytes) if bytes.iter().all(|&byte| byte == 0))
}

/// Opens a file, and nothing that only looks like one: whoever opens a pipe waits for who writes to it, perhaps without end.
fn open_regular(path: &Path) -> Result<File, Refusal> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() { "a folder" } else { "a pipe, socket or device" };
        let (expected, found) = ("a regular file".to_owned(), found.to_owned());
        return Err(Refusal::Mismatch { what: "the file's type", expected, found });
    }
    Ok(regular_file::open(path)?)
}

fn check_by(file: ArchivedFile, content: &mut Content<'_>, rules: Rules<'_>) -> Result<Checked, Refusal> {
    match content {
        Content::Held(bytes) => check::check_held(file, bytes, rules),
        Content::Read(input) => check::check(file, &mut **input, rules),
    }
}

/// Reads a file from its start if it is not too large to be held; the others are left at their start.
fn read_whole(file: &mut File, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let bytes = file.metadata()?.len();
    if bytes > MAX_HELD {
        return Ok(false);
    }
    buffer.clear();
    buffer.reserve_exact(bytes as usize);
    // One byte more shows that it grows; its size is compared with what it must be.
    file.take(MAX_HELD + 1).read_to_end(buffer)?;
    Ok(true)
}

/// What is known of an archived file.
struct Archived {
    /// It has the content that is offered.
    is_same: bool,
    /// BLAKE3 of its content, in hexadecimal digits; nothing where only a private key would tell.
    hash: Option<String>,
    warnings: Vec<String>,
    /// Of a segment, what its records say, if that is known.
    contents: Option<Contents>,
    is_damage_accepted: bool,
}

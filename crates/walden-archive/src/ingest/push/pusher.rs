//! Archives single files: finds them in the archive with the same content, or checks, compresses and stores
//! them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use walden_format::lsn::{SegmentName, SegmentSize};
use walden_source::regular_file;

use super::ahead::{Notes, Stamp};
use super::result::{FAST, PushError, PushOptions, Pushed};
use crate::archive::{Archive, ArchiveError, LogListings};
use crate::hash::hash_file;
use crate::history::History;
use crate::objects::check::{self, Checked, Refusal, Rules};
use crate::objects::contents::Contents;
use crate::objects::link::{self, SegmentEnd};
use crate::objects::name::{ArchivedFile, Object};
use crate::objects::object::{self, Content, ObjectError, Summary, to_hex};
use crate::objects::same_log::{self, Version};
use crate::restore::get;
use crate::restore::server::system_id_beside;
use crate::store::{Cause, Created, FileHash};

/// Archiving lags if a file has been complete for longer than this.
const BEHIND: Duration = Duration::from_secs(10);
/// Divides [`PushOptions::fast_queue`] while archiving lags.
const BEHIND_PART: usize = 8;

/// Maximum size of a file that is read once and held in memory, in bytes. Larger files are read again for
/// each step.
const MAX_HELD: u64 = 64 << 20;

/// A file that was read for archiving.
pub(crate) struct FileRead {
    /// BLAKE3 of its content.
    pub hash: [u8; 32],
    /// Stamp of the file, if it has one and did not change while it was read.
    pub stamp: Option<Stamp>,
}

/// Memory that the files of one thread share.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Content of the current file.
    content: Vec<u8>,
    /// The encoded object, for further copies of the archive.
    encoded: Option<Encoded>,
}

/// A compressed file.
struct Encoded {
    file: ArchivedFile,
    level: u8,
    /// With the warnings of the compression.
    checked: Checked,
    object: Vec<u8>,
}

/// Archives files after checking them.
pub(crate) struct Pusher {
    archive: Archive,
    options: PushOptions,
    histories: Vec<History>,
    /// Files that an earlier call archived ahead.
    pub(super) ahead: Notes,
    /// Cached listings, updated with newly archived files.
    listings: Mutex<LogListings>,
    /// Held while the cluster claims the archive.
    claiming: Mutex<()>,
    /// The ends of archived segments.
    ends: Mutex<BTreeMap<SegmentName, SegmentEnd>>,
}

/// Returns whether a compressed file may be stored, depending on the previous files. Called once; may wait
/// for the previous files.
pub(crate) type MayStore<'m> = &'m dyn Fn() -> bool;

/// The next step for a checked file.
enum Prepared<'e> {
    /// The file is already archived with the same content.
    Present(Pushed),
    /// The object that must be stored.
    New(&'e [u8]),
}

impl Pusher {
    /// Creates a pusher. `histories` state where timelines ended.
    pub fn new(archive: Archive, options: PushOptions, histories: Vec<History>) -> Pusher {
        let (listings, claiming, ends) = (Mutex::default(), Mutex::default(), Mutex::default());
        Pusher { archive, options, histories, ahead: Notes::default(), listings, claiming, ends }
    }

    /// Returns the location of the archive.
    pub fn location(&self) -> &str {
        self.archive.store().location()
    }

    /// Returns the rules for checking files.
    pub fn rules(&self) -> Rules<'_> {
        let PushOptions { accept_damaged, accept_unknown_versions, .. } = self.options;
        Rules { accept_damaged, accept_unknown_versions, histories: &self.histories }
    }

    /// Returns the other files to archive, in PostgreSQL's order, and the number of waiting files including
    /// the requested one.
    ///
    /// The list ends before the first file that the archive already lists. Only the call that requests that
    /// file compares its content, and no later file may be archived before that.
    ///
    /// If the requested file and the next file are both listed, the list is empty: archiving a few files as
    /// soon as there is space for them would leave processors idle.
    ///
    /// # Errors
    /// The store cannot list the requested file's folder.
    pub(super) fn choose_others(
        &self,
        asked: ArchivedFile,
        ready: &[ArchivedFile],
    ) -> Result<(Vec<ArchivedFile>, usize), ArchiveError> {
        let is_asked_listed = self.find(asked)?.is_some();
        // A file whose folder cannot be listed is attempted, and that attempt reports the error.
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

    /// Returns whether the archive lists a segment. If listing fails, the segment counts as unlisted.
    pub fn is_listed(&self, file: ArchivedFile) -> bool {
        matches!(self.find(file), Ok(Some(_)))
    }

    /// Archives a file while `waiting` files wait. `scratch` is reusable memory. Also
    /// returns the file's hash and stamp if it was read. Returns `None` if the file must not be stored yet.
    pub fn push(
        &self,
        file: ArchivedFile,
        path: &Path,
        waiting: usize,
        scratch: &mut Scratch,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, Option<FileRead>)>, PushError> {
        let mut content =
            open_regular(path).map_err(|refusal| PushError::Refused { name: file.to_string(), refusal })?;
        if let Some(pushed) = self.find_noted(file, &content)? {
            return Ok(Some((pushed, None)));
        }
        let stamp = Stamp::read(&content);
        let pushed = match self.find_same(file, &content)? {
            None => self.push_new(file, path, &mut content, waiting, scratch, may_store)?,
            found => found,
        };
        let stamp = stamp.filter(|_| Stamp::read(&content) == stamp);
        Ok(pushed.map(|(pushed, hash)| (pushed, Some(FileRead { hash, stamp }))))
    }

    /// Checks a file and compares it with the archive as [`Pusher::push`] does, without storing it.
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
                _ => Err(failed(conflict.with_reset(file, &checked))),
            },
        }
    }

    /// Checks that a file without a system identifier comes from a server of the archive's cluster.
    fn expect_own_archive(&self, path: &Path) -> Result<(), ArchiveError> {
        match system_id_beside(path) {
            Some(system_id) => self.archive.expect_cluster(system_id),
            None => self.archive.expect_archive(),
        }
    }

    /// Archives a file that the archive does not contain.
    fn push_new(
        &self,
        file: ArchivedFile,
        path: &Path,
        content: &mut File,
        waiting: usize,
        scratch: &mut Scratch,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, [u8; 32])>, PushError> {
        let began = Instant::now();
        if let ArchivedFile::History(_) | ArchivedFile::Backup(..) = file {
            let expected = self.expect_own_archive(path);
            expected.map_err(|source| PushError::Archive { name: file.to_string(), source })?;
        }
        let level = self.level_for(content, waiting);
        let Scratch { content: buffer, encoded } = scratch;
        let is_held = read_whole(content, buffer)
            .map_err(|error| PushError::Refused { name: file.to_string(), refusal: error.into() })?;
        let mut content = match is_held {
            true => Content::Held(&buffer[..]),
            false => Content::Read(content),
        };
        let stored = self.check_and_store(file, &mut content, level, encoded, may_store)?;
        Ok(stored.map(|(pushed, hash)| (Pushed { took: began.elapsed(), ..pushed }, hash)))
    }

    /// Chooses the compression level for a file while `waiting` files wait.
    fn level_for(&self, content: &File, waiting: usize) -> u8 {
        let PushOptions { level, fast_queue, .. } = self.options;
        // PostgreSQL finishes writing a segment before marking it as ready, so the modification time shows
        // how long it has waited.
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
        encoded: &mut Option<Encoded>,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, [u8; 32])>, PushError> {
        let name = || file.to_string();
        let refused = |refusal| PushError::Refused { name: name(), refusal };
        let mut checked = self.check(file, content).map_err(refused)?;
        let (hash, offered) = (checked.hash, checked.clone());
        let stored = match self.prepare(file, &mut checked, content, level, encoded) {
            Ok(Prepared::Present(pushed)) => Ok(pushed),
            Ok(Prepared::New(object)) => {
                if !may_store() {
                    return Ok(None);
                }
                self.expect_link(file, &offered).map_err(refused)?;
                self.create(file, &checked, object)
            }
            Err(error) => Err(error),
        };
        if stored.is_ok() && offered.is_sound {
            self.note_end(file, offered.contents.as_ref());
        }
        let stored = match stored {
            Err(ArchiveError::Conflict { .. }) if is_emptied_backup(file, content) => {
                let warning =
                    "archived before, but empty now, as after a crash of the server: the archived file stays";
                Ok(Pushed {
                    file,
                    was_there: true,
                    bytes: offered.bytes,
                    stored: None,
                    warnings: vec![warning.to_owned()],
                    took: Duration::ZERO,
                    copies: 1,
                })
            }
            Err(conflict @ (ArchiveError::Conflict { .. } | ArchiveError::DamageAccepted { .. })) => {
                let found = self.find_same_log(file, &offered, content);
                let found =
                    found.map_err(|error| PushError::Refused { name: name(), refusal: error.into() })?;
                found.ok_or_else(|| conflict.with_reset(file, &offered))
            }
            other => other,
        };
        let stored = stored.map_err(|source| PushError::Archive { name: name(), source })?;
        Ok(Some((stored, hash)))
    }

    fn check(&self, file: ArchivedFile, content: &mut Content<'_>) -> Result<Checked, Refusal> {
        match check_by(file, content, self.rules()) {
            // The archive may have the timeline's history even if pg_wal does not.
            Err(refusal @ Refusal::Timeline { .. }) => self.check_by_archived(file, content, refusal),
            other => other,
        }
    }

    /// Checks that a segment follows its predecessor, if the predecessor's last records are known.
    fn expect_link(&self, file: ArchivedFile, checked: &Checked) -> Result<(), Refusal> {
        let (ArchivedFile::Segment(name), Some(contents)) = (file, &checked.contents) else { return Ok(()) };
        let Some(before) = segment_before(name, contents) else { return Ok(()) };
        let known = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&before).map_or(Ok(()), |end| link::expect_link(contents, before, end)) {
            Err(Refusal::Crossing { .. }) if self.options.accept_damaged => Ok(()),
            other => other,
        }
    }

    /// Remembers the end of a segment that is archived with this content.
    fn note_end(&self, file: ArchivedFile, contents: Option<&Contents>) {
        let (ArchivedFile::Segment(name), Some(contents)) = (file, contents) else { return };
        let mut known = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = SegmentEnd::default();
        let before = segment_before(name, contents).and_then(|before| known.get(&before));
        let end = SegmentEnd::new(contents, before.unwrap_or(&unknown));
        known.insert(name, end);
    }

    /// Reads how the predecessor of an unarchived segment ends, if the archive lists the predecessor as a
    /// separate object. The predecessor's summary states its end, so nothing is decoded. If the summary is
    /// unreadable or needs a private key, the link is not checked.
    ///
    /// If a record continues through whole segments, their summaries are read too, up to the one in which the
    /// record starts.
    pub fn learn_link_before(&self, file: ArchivedFile) {
        let ArchivedFile::Segment(name) = file else { return };
        // Only within the same 4 GB of WAL, where the predecessor's name does not depend on the segment size.
        let names = (0..name.segment).rev().map(|segment| SegmentName { segment, ..name });
        let mut learned = Vec::new();
        let is_known =
            |name: &SegmentName| self.ends.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name);
        for before in names.take_while(|name| !is_known(name)) {
            if learned.is_empty() && self.is_listed(file) {
                return;
            }
            let file = ArchivedFile::Segment(before);
            let Ok(Some((Object::File(_), bytes))) = self.find(file) else { break };
            let summary = object::read_summary(self.archive.store(), &file.key(), bytes);
            let Some(summary) = summary.ok().filter(|summary| summary.warnings.is_empty()) else { break };
            let is_within_record = summary.contents.as_ref().is_some_and(|contents| {
                let is_last = contents.continued_part.as_ref().is_none_or(|part| part.is_last);
                contents.unfinished_part.is_none() && !is_last
            });
            learned.push((file, summary));
            if !is_within_record {
                break;
            }
        }
        for (file, summary) in learned.into_iter().rev() {
            self.note_end(file, summary.contents.as_ref());
        }
    }

    /// Checks a file again, with the archive's histories.
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

    /// Returns the result for a checked segment if the archived one contains the same WAL and differs only in
    /// unused bytes. The archived bytes stay.
    ///
    /// # Errors
    /// The file cannot be read.
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
        // Unreadable histories are ignored.
        let (histories, _) = self.archive.undamaged_histories().unwrap_or_default();
        let histories: Vec<History> = self.histories.iter().cloned().chain(histories.into_values()).collect();
        let version = Version { content: offered, checked };
        match found {
            Ok(Some(())) => {}
            // Without a private key, only hashes can be compared, so this tries the most likely content.
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
            "archived before with the same WAL up to {end}; only the unused bytes after it differ: the archived bytes stay"
        );
        Ok(Some(Pushed {
            file,
            was_there: true,
            bytes: checked.bytes,
            stored: None,
            warnings: vec![warning],
            took: Duration::ZERO,
            copies: 1,
        }))
    }

    /// Returns whether the file is archived with this content.
    fn has_content(&self, file: ArchivedFile, content: &[u8]) -> bool {
        let hash = *blake3::hash(content).as_bytes();
        self.archived(file, None, &hash).is_ok_and(|archived| archived.is_same)
    }

    /// Returns the result for a segment that an earlier call archived ahead if the notes show that it is
    /// unchanged.
    fn find_noted(&self, file: ArchivedFile, content: &File) -> Result<Option<Pushed>, PushError> {
        let failed = |source| PushError::Archive { name: file.to_string(), source };
        let Some((bytes, stored)) = self.ahead.sizes(file, content) else { return Ok(None) };
        match self.find(file).map_err(failed)? {
            Some((Object::File(_), listed)) if listed == stored => {}
            _ => return Ok(None),
        }
        self.archive.expect_still_there().map_err(failed)?;
        let (was_there, took) = (true, Duration::ZERO);
        Ok(Some(Pushed { file, was_there, bytes, stored: None, warnings: Vec::new(), took, copies: 1 }))
    }

    /// Returns the result for a segment that is archived with the same content. The segment was checked when
    /// it was archived, and the stored object is read again.
    fn find_same(&self, file: ArchivedFile, content: &File) -> Result<Option<(Pushed, [u8; 32])>, PushError> {
        let failed = |source| PushError::Archive { name: file.to_string(), source };
        let Some(found) = self.find(file).map_err(failed)? else { return Ok(None) };
        // If archive.json is lost or damaged, no one can read the archive, so nothing is acknowledged.
        let size = match self.archive.segment_size() {
            // The archive was created, but no segment was pushed yet.
            Err(ArchiveError::Empty(_)) => None,
            other => Some(other.map_err(failed)?),
        };
        let hashed = hash_file(content, self.options.threads);
        let (bytes, hash) =
            hashed.map_err(|error| PushError::Refused { name: file.to_string(), refusal: error.into() })?;
        // The full check reports the difference.
        if matches!(file, ArchivedFile::Segment(_)) && size.is_some_and(|size| size.bytes() != bytes) {
            return Ok(None);
        }
        let archived = self.archived(file, Some(found), &hash).map_err(failed)?;
        if archived.is_same && archived.warnings.is_empty() {
            self.note_end(file, archived.contents.as_ref());
        }
        let pushed = Pushed {
            file,
            was_there: true,
            bytes,
            stored: None,
            warnings: archived.warnings,
            took: Duration::ZERO,
            copies: 1,
        };
        Ok(archived.is_same.then_some((pushed, hash)))
    }

    /// Returns the result for a checked file that is already archived with the same content, after making it
    /// durable.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] if different content is archived, and the store's errors.
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
        Ok(Some(Pushed {
            file,
            was_there: true,
            bytes: checked.bytes,
            stored: None,
            warnings,
            took,
            copies: 1,
        }))
    }

    /// Archives a checked file at a compression level.
    ///
    /// # Errors
    /// The reason for not archiving the file.
    pub fn store(
        &self,
        file: ArchivedFile,
        mut checked: Checked,
        content: &mut Content<'_>,
        level: u8,
    ) -> Result<Pushed, ArchiveError> {
        match self.prepare(file, &mut checked, content, level, &mut None)? {
            Prepared::Present(pushed) => Ok(pushed),
            Prepared::New(object) => self.create(file, &checked, object),
        }
    }

    /// Compares a checked file with the archived one, or compresses it if it is not archived.
    fn prepare<'e>(
        &self,
        file: ArchivedFile,
        checked: &mut Checked,
        content: &mut Content<'_>,
        level: u8,
        encoded: &'e mut Option<Encoded>,
    ) -> Result<Prepared<'e>, ArchiveError> {
        if let Some(cluster) = &checked.cluster {
            let _claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
            self.archive.claim(cluster.system_id, cluster.segment_size)?;
        }
        if let Some(found) = self.find(file)? {
            self.compare(file, Some(found), &checked.hash)?;
            return Ok(Prepared::Present(pushed(file, None, checked)));
        }
        let is_same = |encoded: &Encoded| {
            (encoded.file, encoded.level, encoded.checked.hash) == (file, level, checked.hash)
        };
        let known = encoded.take().filter(is_same);
        let encoded = encoded.insert(match known {
            Some(known) => known,
            None => {
                let object = object::encode(file, checked, content, level)?;
                Encoded { file, level, checked: checked.clone(), object }
            }
        });
        checked.clone_from(&encoded.checked);
        Ok(Prepared::New(&encoded.object))
    }

    /// Stores the object of a checked file.
    fn create(&self, file: ArchivedFile, checked: &Checked, object: &[u8]) -> Result<Pushed, ArchiveError> {
        let stored = object.len() as u64;
        let files = [FileHash { name: &file.to_string(), hash: &checked.hash }];
        match self.archive.store().create_with(&file.key(), object, &files)? {
            Created::New => {
                self.note(file, stored);
                Ok(pushed(file, Some(stored), checked))
            }
            Created::Exists => {
                self.compare(file, None, &checked.hash)?;
                Ok(pushed(file, None, checked))
            }
        }
    }

    /// Finds the object that contains a segment of this name. For other files, the attempt to create the
    /// object detects an existing one.
    fn find(&self, file: ArchivedFile) -> Result<Option<(Object, u64)>, ArchiveError> {
        let ArchivedFile::Segment(name) = file else { return Ok(None) };
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        listings.find(&self.archive, name)
    }

    /// Adds an archived segment to the cached listings.
    fn note(&self, file: ArchivedFile, bytes: u64) {
        let ArchivedFile::Segment(name) = file else { return };
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).add(name, bytes);
    }

    /// Compares the archived file with the offered one.
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

    /// Compares an archived file with the hash of the offered file. `found` is the object of the archived
    /// file, or `None` to search for it. Also makes the object durable, because its writer may have been
    /// interrupted before doing so.
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
            Ok(archived)
        };
        let damaged = |error: ArchiveError| match error.is_damage() {
            true => ArchiveError::DamagedBefore { name: name.clone(), source: Box::new(error) },
            false => error,
        };
        match found.map(|(object, bytes)| read(object, bytes)) {
            // Packed since the listing.
            Some(Err(error)) if error.is_not_found() => {}
            Some(result) => return result.map_err(damaged),
            None => {}
        }
        let archived = get::with_object(&self.archive, file, read).map_err(damaged)?;
        let (expected, found) = ("the object that was listed".to_owned(), "none".to_owned());
        archived.ok_or_else(|| ObjectError::Mismatch { key: file.key(), expected, found }.into())
    }

    /// Reads a file's summary after verifying the stored file: acknowledging an archived file lets the server
    /// remove possibly the last good copy. The summary on its own does not prove that the rest of the
    /// object is intact.
    ///
    /// Returns `None` if the object can be compared by a tag (`has_tag`) and no private key is available to
    /// verify more.
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
            // The segment's data are spread over parts of the pack, and only the decoder knows which.
            Object::Pack(_) => {
                get::decode(&self.archive, file, object, bytes, &mut io::sink())?;
                Ok(object::read_summary_of(store, file, object, bytes)?)
            }
        }
    }
}

/// Returns the result for a checked file. `stored` is the size of its object, or `None` if it already
/// existed.
fn pushed(file: ArchivedFile, stored: Option<u64>, checked: &Checked) -> Pushed {
    Pushed {
        file,
        was_there: stored.is_none(),
        bytes: checked.bytes,
        stored,
        warnings: checked.warnings.clone(),
        took: Duration::ZERO,
        copies: 1,
    }
}

/// Returns the predecessor of a segment with these contents.
fn segment_before(name: SegmentName, contents: &Contents) -> Option<SegmentName> {
    link::segment_before(name, SegmentSize::new(contents.segment_bytes)?)
}

/// Returns whether an object cannot be read because a suitable private key is missing.
pub(crate) fn is_locked(error: &ArchiveError) -> bool {
    let cause = error.store_error().map(|error| error.cause);
    cause.is_some_and(|cause| cause.is_of_identity() || cause == Cause::OtherRecipient)
}

/// Returns whether this is a backup history file that lost its content. PostgreSQL does not synchronize these
/// files, so an already archived one can be empty after a crash and be offered again. PostgreSQL never offers
/// its content again, and archiving must continue.
fn is_emptied_backup(file: ArchivedFile, content: &Content<'_>) -> bool {
    matches!(file, ArchivedFile::Backup(..))
        && matches!(content, Content::Held(bytes) if bytes.iter().all(|&byte| byte == 0))
}

/// Opens a regular file only: opening a pipe could block forever until a writer appears.
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

/// Reads a file from its start if it is small enough to hold in memory. Leaves other files at their start.
fn read_whole(file: &mut File, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let bytes = file.metadata()?.len();
    if bytes > MAX_HELD {
        return Ok(false);
    }
    buffer.clear();
    buffer.reserve_exact(bytes as usize);
    // Reading one byte past the limit detects a growing file, whose size is checked later.
    file.take(MAX_HELD + 1).read_to_end(buffer)?;
    Ok(true)
}

/// An archived file, as far as known.
struct Archived {
    /// Whether the archived file has the offered content.
    is_same: bool,
    /// BLAKE3 of its content, in hexadecimal digits, or `None` if reading it needs a private key.
    hash: Option<String>,
    warnings: Vec<String>,
    /// Contents of a segment, if known.
    contents: Option<Contents>,
    is_damage_accepted: bool,
}

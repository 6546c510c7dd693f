//! Decides whether a primary's WAL reaches an archive, for `status` and `check`.
//!
//! A server that archives nothing, or whose command names another archive, reports success and removes its
//! WAL. A standby archives nothing unless `archive_mode` is `always`, and is not judged.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::list;
use walden_archive::name::ArchivedFile;
use walden_archive::push::ready_files;
use walden_format::lsn::{SegmentName, SegmentSize, Timeline};
use walden_source::configuration::Configuration;
use walden_source::datadir::ControlFile;
use walden_watch::settings::Settings;

use crate::commands::archives_into;

/// Maximum lag of the archive, in segments, while the server's queue is empty: the segment being
/// written, and the one completed a moment ago.
const MAX_BEHIND: u64 = 2;

/// Whether a primary's WAL reaches an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrives {
    /// Nothing indicates otherwise.
    Yes,
    /// Unknown: the archive has no segment, and the server reports none as archived.
    NotYet,
    /// No, for this reason.
    No(String),
}

/// Note for a server without an archived segment so far.
pub const NOT_YET: &str = "no segment of the server was archived here yet";

/// A primary's report of its archiving.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Archiving {
    /// Whether `archive_mode` is off.
    pub is_off: bool,
    /// Whether neither `archive_command` nor `archive_library` is set.
    pub is_unset: bool,
    /// Timeline that the primary writes.
    pub timeline: Timeline,
    /// Last file that the primary reports as archived.
    pub last: Option<ArchivedFile>,
    /// `archive_command`, if the settings were changed or loaded after `last` was archived.
    pub newer_command: Option<String>,
    /// Data directory, if it is on this machine.
    pub data: Option<PathBuf>,
    /// A segment that WAL has reached or passed.
    pub reached: Option<SegmentName>,
    /// Whether files are marked as ready.
    pub has_ready_files: bool,
}

impl Archiving {
    /// Reads the files of a primary that writes `timeline`.
    pub fn read_data_directory(data: &Path, control: &ControlFile, timeline: Timeline) -> Archiving {
        let wal = data.join("pg_wal");
        // Read before the waiting files, so that segments completed in the meantime do not count as reached.
        let size = segment_size(&wal);
        let reached =
            size.map(|size| SegmentName::new(control.timeline, size.segment_of(control.checkpoint), size));
        let settings = has_settings(data).then(|| Settings::read_data_directory(data));
        let is_set_to = |name: &str, value: &str| {
            settings.as_ref().is_some_and(|settings| settings.get(name) == Some(value))
        };
        // Read before the ready files: a file archived in the meantime is no longer marked as ready.
        let last = last_done(&wal, timeline);
        let is_newer = last.is_none_or(|(_, marked)| {
            marked.is_some_and(|marked| settings_changed(data).is_some_and(|changed| marked < changed))
        });
        let command = settings.as_ref().filter(|_| is_newer && is_set_to("archive_library", ""));
        let newer_command = command.and_then(|settings| settings.get("archive_command")).map(str::to_owned);
        Archiving {
            is_off: is_set_to("archive_mode", "off"),
            is_unset: is_set_to("archive_command", "") && is_set_to("archive_library", ""),
            timeline,
            last: last.map(|(name, _)| ArchivedFile::Segment(name)),
            newer_command,
            data: Some(data.to_owned()),
            reached,
            has_ready_files: ready_files(&wal).map_or(true, |ready| !ready.is_empty()),
        }
    }

    /// Decides whether the archive receives the server's WAL. `listed` is the newest segment of a listing.
    pub fn arrives(&self, archive: &Archive, listed: Option<SegmentName>) -> Result<Arrives, ArchiveError> {
        Ok(match (self.problem(archive, listed)?, listed) {
            (Some(problem), _) => Arrives::No(problem),
            // Without a report from the server either, the answer is unknown.
            (None, None) => Arrives::NotYet,
            (None, Some(_)) => Arrives::Yes,
        })
    }

    /// Returns why the archive does not receive the server's WAL. A listing made before the server was
    /// queried may be outdated, so this lists the archive again before it reports a problem.
    fn problem(
        &self,
        archive: &Archive,
        listed: Option<SegmentName>,
    ) -> Result<Option<String>, ArchiveError> {
        let location = archive.store().location();
        if self.is_off {
            return Ok(Some(
                "archive_mode is off: the server archives nothing, and removes its WAL all the same (if walden receive archives it, \
                 --spool names its spool)"
                    .to_owned(),
            ));
        }
        if self.is_unset {
            return Ok(Some(
                "archive_command is not set: the server archives nothing, and keeps its WAL".to_owned(),
            ));
        }
        if let Some(last) = self.last
            && let Some(problem) = self.elsewhere(archive, last)?
        {
            return Ok(Some(format!(
                "{problem}: it archives elsewhere, see its archive_command or archive_library"
            )));
        }
        let reached = self.reached.filter(|_| !self.has_ready_files);
        let (Some(reached), Some(listed)) = (reached, listed) else { return Ok(None) };
        let size = archive.segment_size()?;
        let is_behind = |newest: SegmentName| {
            newest.timeline <= reached.timeline
                && reached.number(size).is_some_and(|reached| is_far_behind(newest, reached, size))
        };
        if !is_behind(listed) {
            return Ok(None);
        }
        let Some(newest) = list::newest_segment(archive)? else { return Ok(None) };
        Ok(is_behind(newest).then(|| {
            format!(
                "the server has written up to {reached}, nothing waits to be archived, and the last segment in {location} is {newest}: \
                 the segments between were not archived here, see its archive_mode and archive_command"
            )
        }))
    }
}

impl Archiving {
    /// Describes the last file that the server has archived, if it is not in this archive.
    pub fn elsewhere(&self, archive: &Archive, last: ArchivedFile) -> Result<Option<String>, ArchiveError> {
        let is_there = archive.find(last)?.is_some() || self.is_from_before(archive, last)?;
        let location = archive.store().location();
        let problem = || format!("the last file that the server archived, {last}, is not in {location}");
        Ok((!is_there).then(problem))
    }

    /// Returns whether a file predates the server's use of this archive.
    ///
    /// Recovery marks the files of `restore_command` as done (`XLogArchiveForceDone` in `xlogarchive.c`), and
    /// statistics may come with a copy of a data directory. These files have earlier timelines than the
    /// server's timeline, or precede the first segment of the archive.
    fn is_from_before(&self, archive: &Archive, file: ArchivedFile) -> Result<bool, ArchiveError> {
        if file.timeline() < self.timeline {
            return Ok(true);
        }
        let first = list::first_segments(archive)?.get(&file.timeline()).copied();
        Ok(match (first, file) {
            (Some(first), ArchivedFile::Segment(name)) => name < first,
            (Some(_), _) => false,
            (None, _) => self
                .newer_command
                .as_deref()
                .is_some_and(|command| archives_into(command, self.data.as_deref(), archive)),
        })
    }
}

/// Returns whether an archive with `newest` as its newest segment lacks segments before the one of number
/// `reached`.
pub fn is_far_behind(newest: SegmentName, reached: u64, size: SegmentSize) -> bool {
    newest.number(size).is_some_and(|newest| reached > newest + MAX_BEHIND)
}

/// Returns the last segment of a timeline that is marked as done, and when it was marked. Recovery marks
/// segments of earlier timelines.
fn last_done(wal: &Path, timeline: Timeline) -> Option<(SegmentName, Option<SystemTime>)> {
    let entries = fs::read_dir(wal.join("archive_status")).ok()?.flatten();
    let done = entries.filter_map(|entry| {
        let name = SegmentName::parse(entry.file_name().to_str()?.strip_suffix(".done")?)?;
        (name.timeline == timeline).then_some((name, entry))
    });
    let (name, mark) = done.max_by_key(|(name, _)| *name)?;
    Some((name, mark.metadata().ok().and_then(|mark| changed_at(&mark))))
}

/// Returns when a file was last changed or renamed. The server renames marks, which preserves the
/// modification time.
pub fn changed_at(file: &Metadata) -> Option<SystemTime> {
    let (seconds, nanoseconds) = (file.ctime().try_into().ok()?, file.ctime_nsec().try_into().ok()?);
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// Returns when the settings of a data directory were last changed.
fn settings_changed(data: &Path) -> Option<SystemTime> {
    let main = Configuration::read(data).main_file().to_owned();
    let files = [main, data.join(Configuration::AUTOMATIC)];
    files.iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max()
}

/// Returns the size in bytes of the segments in a `pg_wal`, where all have the same size.
pub fn segment_size(wal: &Path) -> Option<SegmentSize> {
    let entries = fs::read_dir(wal).ok()?.flatten();
    let mut segments =
        entries.filter(|entry| entry.file_name().to_str().and_then(SegmentName::parse).is_some());
    segments.find_map(|entry| SegmentSize::new(entry.metadata().ok()?.len()))
}

/// Returns whether the server's settings can be read; an absent setting has its default value.
pub fn has_settings(data: &Path) -> bool {
    Configuration::read(data).has_main_file()
}

#[cfg(test)]
mod tests {
    use walden_archive::store::Folder;
    use walden_source::datadir::DatabaseState;

    use super::*;
    use crate::testing::control_file;

    #[test]
    fn the_settings_of_a_data_directory_say_whether_anything_is_archived() {
        const OFF: Option<&str> = Some("archive_mode is off");
        const UNSET: Option<&str> = Some("archive_command is not set");
        let control = control_file(DatabaseState::ShutDown);
        let archive = Archive::new(Box::new(Folder::new("/nowhere")));
        let cases = [
            // Unreadable settings prove nothing.
            (None, "", None),
            (Some(""), "", OFF),
            (Some("archive_mode = off\n"), "archive_command = 'cp %p /b'\n", OFF),
            (Some("archive_mode = on\n"), "", UNSET),
            (Some("archive_mode = on\narchive_command = ''\n"), "archive_library = ''\n", UNSET),
            (Some("archive_mode = on\narchive_command = 'cp %p /b'\n"), "archive_command = ''\n", UNSET),
            (Some("archive_mode = on\narchive_command = ''\n"), "archive_command = 'cp %p /b'\n", None),
            (Some("archive_mode = on\n"), "archive_library = 'basic_archive'\n", None),
        ];
        for (main, automatic, expected) in cases {
            let data = tempfile::tempdir().unwrap();
            if let Some(main) = main {
                fs::write(data.path().join("postgresql.conf"), main).unwrap();
            }
            fs::write(data.path().join("postgresql.auto.conf"), automatic).unwrap();
            let archiving = Archiving::read_data_directory(data.path(), &control, control.timeline);
            let arrives = archiving.arrives(&archive, None).unwrap();
            let case = format!("{main:?}, {automatic:?}: {arrives:?}");
            match (expected, &arrives) {
                (Some(expected), Arrives::No(problem)) => assert!(problem.starts_with(expected), "{case}"),
                (None, Arrives::NotYet) => {}
                _ => panic!("{case}"),
            }
        }
    }
}

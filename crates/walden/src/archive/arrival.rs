//! Whether what a primary writes gets into an archive: the rule of `status` and of `check`.
//!
//! A server that archives nothing, or by a command that names another archive, says itself that all is well, and removes its WAL.
//! A standby archives nothing by design, as long as `archive_mode` is not `always`, and is not judged.

use std::fs;
use std::path::Path;

use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::list;
use walden_archive::name::ArchivedFile;
use walden_archive::push::ready_files;
use walden_format::lsn::{SegmentName, SegmentSize};
use walden_source::datadir::ControlFile;
use walden_watch::settings::Settings;

/// Segments by which the archive may be behind a server for which nothing waits: the one that is being written, and the one before,
/// which was completed a moment ago.
const MAX_BEHIND: u64 = 2;

/// Whether what a primary writes gets into an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrives {
    /// Nothing shows that it does not.
    Yes,
    /// Not known: no segment was archived here yet, and the server does not say that one was.
    NotYet,
    /// No, for this reason.
    No(String),
}

/// What is said of a server of which no segment was archived yet.
pub const NOT_YET: &str = "no segment of the server was archived here yet";

/// What a primary says of its archiving.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Archiving {
    /// `archive_mode` is off.
    pub is_off: bool,
    /// It has neither `archive_command` nor `archive_library`.
    pub is_unset: bool,
    /// The last file that it has archived, as it says.
    pub last: Option<ArchivedFile>,
    /// The segment that its log has reached at least.
    pub reached: Option<SegmentName>,
    /// Files are marked as ready.
    pub has_ready_files: bool,
}

impl Archiving {
    /// By a primary's files.
    pub fn of_data_directory(data: &Path, control: &ControlFile) -> Archiving {
        let wal = data.join("pg_wal");
        // Before the files that wait: what is completed later than them is none of what was reached.
        let size = segment_size(&wal);
        let reached =
            size.map(|size| SegmentName::new(control.timeline, size.segment_of(control.checkpoint), size));
        let settings = has_settings(data).then(|| Settings::of_data_directory(data));
        let is_set_to = |name: &str, value: &str| {
            settings.as_ref().is_some_and(|settings| settings.get(name) == Some(value))
        };
        Archiving {
            is_off: is_set_to("archive_mode", "off"),
            is_unset: is_set_to("archive_command", "") && is_set_to("archive_library", ""),
            // Read before what waits: a file that is archived meanwhile is no longer marked as ready.
            last: last_done(&wal),
            reached,
            has_ready_files: ready_files(&wal).map_or(true, |ready| !ready.is_empty()),
        }
    }

    /// Whether the archive gets what the server writes. `listed` is the newest segment by a listing.
    pub fn arrives(&self, archive: &Archive, listed: Option<SegmentName>) -> Result<Arrives, ArchiveError> {
        Ok(match (self.problem(archive, listed)?, listed) {
            (Some(problem), _) => Arrives::No(problem),
            // Of a server that says nothing either, nothing can be said.
            (None, None) => Arrives::NotYet,
            (None, Some(_)) => Arrives::Yes,
        })
    }

    /// Why the archive does not get what the server writes, if so. A listing from before the server was asked says nothing of a server
    /// that has gone on, so the archive is listed once more before it is said.
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
            && let Some(problem) = elsewhere(archive, last)?
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
                 what lies between was not archived here, see its archive_mode and archive_command"
            )
        }))
    }
}

/// Whether an archive whose newest segment is this one does not get what comes before the segment of number `reached`.
pub fn is_far_behind(newest: SegmentName, reached: u64, size: SegmentSize) -> bool {
    newest.number(size).is_some_and(|newest| reached > newest + MAX_BEHIND)
}

/// What is said of the last file that a server has archived, if the archive does not have it.
pub fn elsewhere(archive: &Archive, last: ArchivedFile) -> Result<Option<String>, ArchiveError> {
    let is_there = archive.find(last)?.is_some();
    let location = archive.store().location();
    Ok((!is_there).then(|| format!("the last file that the server archived, {last}, is not in {location}")))
}

/// The last segment that is marked as done.
fn last_done(wal: &Path) -> Option<ArchivedFile> {
    let entries = fs::read_dir(wal.join("archive_status")).ok()?.flatten();
    let names =
        entries.filter_map(|entry| SegmentName::parse(entry.file_name().to_str()?.strip_suffix(".done")?));
    names.max().map(ArchivedFile::Segment)
}

/// Bytes of the segments in a `pg_wal`: all that have a segment's name are of this size.
pub fn segment_size(wal: &Path) -> Option<SegmentSize> {
    let entries = fs::read_dir(wal).ok()?.flatten();
    let mut segments =
        entries.filter(|entry| entry.file_name().to_str().and_then(SegmentName::parse).is_some());
    segments.find_map(|entry| SegmentSize::new(entry.metadata().ok()?.len()))
}

/// Whether the server's settings can be read: what is not in them has its default.
pub fn has_settings(data: &Path) -> bool {
    let options = fs::read_to_string(data.join("postmaster.opts")).unwrap_or_default();
    let named = options
        .split_once("config_file=")
        .map(|(_, rest)| rest.split(['"', ' ', '\n']).next().unwrap_or(rest));
    let main = named.map_or_else(|| data.join("postgresql.conf"), |path| data.join(path));
    fs::File::open(main).is_ok()
}

#[cfg(test)]
mod tests {
    use walden_archive::store::Folder;
    use walden_source::datadir::DatabaseState;

    use super::*;
    use crate::archive::testing::control_file;

    #[test]
    fn the_settings_of_a_data_directory_say_whether_anything_is_archived() {
        const OFF: Option<&str> = Some("archive_mode is off");
        const UNSET: Option<&str> = Some("archive_command is not set");
        let control = control_file(DatabaseState::ShutDown);
        let archive = Archive::new(Box::new(Folder::new("/nowhere")));
        let cases = [
            // Settings that cannot be read say nothing.
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
            let archiving = Archiving::of_data_directory(data.path(), &control);
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

//! Records up to where `prune` removed WAL, so that copying from another archive does not bring it back.
//!
//! ```text
//! pruned/00000001/000000010000000000000007.json     the first segment that was kept on a timeline
//! ```
//!
//! The key of each object is the record; the content has no meaning. If a timeline has several records, the
//! record with the last segment counts. Records are plain even in an encrypted archive, because listings show
//! the same information.

use std::collections::BTreeMap;

use walden_format::lsn::{SegmentName, Timeline};

use crate::archive::{Archive, ArchiveError};
use crate::objects::name::{ArchivedFile, PRUNED};

/// The first segment that was kept, by timeline.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct FirstKept(BTreeMap<Timeline, SegmentName>);

impl FirstKept {
    /// Reads the records of an archive.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn read(archive: &Archive) -> Result<FirstKept, ArchiveError> {
        let mut first = FirstKept::default();
        for name in list(archive)? {
            let known = first.0.entry(name.timeline).or_insert(name);
            *known = name.max(*known);
        }
        Ok(first)
    }

    /// Returns whether a file was removed, or would have been if the archive had had it. Histories are never
    /// removed.
    pub fn is_before(&self, file: ArchivedFile) -> bool {
        let name = match file {
            ArchivedFile::Segment(name) | ArchivedFile::Partial(name) | ArchivedFile::Backup(name, _) => name,
            ArchivedFile::History(_) => return false,
        };
        self.first_after(name).is_some()
    }

    /// Returns the first segment that was kept on the timeline of segment `name`, if `name` precedes it.
    pub fn first_after(&self, name: SegmentName) -> Option<SegmentName> {
        self.0.get(&name.timeline).copied().filter(|first| name < *first)
    }
}

/// Records the first kept segment of each timeline, and removes earlier records.
///
/// # Errors
/// Errors of the store.
pub(crate) fn record(archive: &Archive, first: &[SegmentName]) -> Result<(), ArchiveError> {
    let known = FirstKept::read(archive)?;
    for name in first.iter().filter(|name| known.0.get(&name.timeline).is_none_or(|known| known < *name)) {
        archive.store().create(&key(*name), b"{}")?;
    }
    let known = FirstKept::read(archive)?;
    for name in list(archive)? {
        if known.0.get(&name.timeline).is_some_and(|last| name < *last) {
            archive.store().discard(&key(name))?;
        }
    }
    Ok(())
}

fn list(archive: &Archive) -> Result<Vec<SegmentName>, ArchiveError> {
    let mut names = Vec::new();
    archive.store().list(PRUNED, &mut |listed| names.extend(parse_key(&listed.key)))?;
    Ok(names)
}

fn key(first: SegmentName) -> String {
    format!("{PRUNED}{:08X}/{first}.json", first.timeline)
}

fn parse_key(found: &str) -> Option<SegmentName> {
    let name = SegmentName::parse(found.strip_suffix(".json")?.rsplit('/').next()?)?;
    (key(name) == found).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Folder;

    #[test]
    fn the_last_record_of_a_timeline_counts() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(Box::new(Folder::new(folder.path())));
        archive.create().unwrap();
        let name = |timeline, segment| SegmentName { timeline, log: 2, segment };
        let is_before = |timeline, segment| {
            let first = FirstKept::read(&archive).unwrap();
            first.is_before(ArchivedFile::Segment(name(timeline, segment)))
        };
        assert!(!is_before(1, 0));
        record(&archive, &[name(1, 7), name(2, 9)]).unwrap();
        // A rule that keeps more brings nothing back.
        record(&archive, &[name(1, 5), name(2, 11)]).unwrap();
        assert_eq!((is_before(1, 6), is_before(1, 7)), (true, false));
        assert_eq!((is_before(2, 10), is_before(2, 11), is_before(3, 0)), (true, false, false));
        assert_eq!(list(&archive).unwrap(), [name(1, 7), name(2, 11)]);
        let first = FirstKept::read(&archive).unwrap();
        assert!(first.is_before(ArchivedFile::Backup(name(1, 6), 40)));
        assert!(first.is_before(ArchivedFile::Partial(name(1, 6))));
        assert!(!first.is_before(ArchivedFile::History(1)));
    }
}

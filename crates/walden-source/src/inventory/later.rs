//! Finds files that have later segments in the same folder, and so are not kept for future segments.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use walden_format::lsn::{SegmentName, Timeline};

use super::Spare;
use crate::segment_file::SegmentFile;

/// The last segment of each timeline and cluster in each folder.
///
/// PostgreSQL recycles and preallocates files for segments after all WAL that it has written
/// (`InstallXLogFileSegment` and `PreallocXlogFiles` in `xlog.c`). So if a later segment in the same folder
/// has WAL, a file without WAL for its name is neither recycled nor preallocated, but has lost its WAL.
pub struct LastSegments<'a>(BTreeMap<(PathBuf, Timeline, u64), &'a SegmentFile>);

impl<'a> LastSegments<'a> {
    pub fn collect(segments: impl Iterator<Item = &'a SegmentFile>) -> LastSegments<'a> {
        let mut lasts = BTreeMap::new();
        for segment in segments {
            let key = (folder_of(&segment.path, segment.name), segment.name.timeline, segment.system_id);
            let last = lasts.entry(key).or_insert(segment);
            if last.name < segment.name {
                *last = segment;
            }
        }
        LastSegments(lasts)
    }

    /// Returns a segment with WAL after the one that a file is named after, in the same folder and of the
    /// same timeline and cluster.
    pub fn behind(&self, spare: &Spare) -> Option<&'a SegmentFile> {
        // `pg_receivewal` creates `.partial` files before it has received any WAL.
        if spare.partial {
            return None;
        }
        let folder = folder_of(&spare.path, spare.name);
        let key = |system_id| (folder.clone(), spare.name.timeline, system_id);
        let same = spare.system_id.and_then(|system_id| self.0.get(&key(system_id)).copied());
        // A file of zeros may belong to any cluster that has segments in the folder.
        let of_any = || {
            let lasts = self.0.range(key(u64::MIN)..=key(u64::MAX)).map(|(_, last)| *last);
            lasts.min_by_key(|last| last.name)
        };
        let last = same.or_else(of_any)?;
        (last.name > spare.name && spare.name.number(last.segment_size).is_some()).then_some(last)
    }
}

/// Returns the folder with a timeline's segments. pgBackRest and Barman have a subfolder for every 4 GB of
/// WAL, named by the digits that the segments' names have in common.
fn folder_of(path: &Path, name: SegmentName) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new(""));
    let common = &name.to_string()[..16];
    let is_part = folder.file_name().is_some_and(|last| last == common);
    let whole = if is_part { folder.parent() } else { None };
    whole.unwrap_or(folder).to_owned()
}

//! Holds segments open, so that a running server cannot remove them while they are read.
//!
//! At the end of each checkpoint, a server renames or removes the segments that it no longer needs. An open
//! file stays readable: a removed one until it is closed, a renamed one until the server writes the segment
//! of its new name, which comes after all other files that the server has prepared.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use crate::compression::Compression;
use crate::segment_file::SegmentFile;
use crate::store::{FileRange, SegmentContents, SegmentStore, SharedStore};

/// Number of files that a process may have open if the system does not report a limit.
const USUAL_LIMIT: u64 = 1024;
/// Divisor of this limit for segments. `OTHERS` is then subtracted, for temporary files, connections, and the
/// files that threads read.
const SHARE: u64 = 2;
const OTHERS: u64 = 64;

/// Opens the plain segments of runs in WAL order, because the server removes the oldest first; at most as
/// many as may be open.
///
/// The server processes its folder in any order. If a segment of a run is gone already, the earlier ones of
/// the run are left out too.
pub fn hold<'a>(runs: impl Iterator<Item = &'a mut Vec<SegmentFile>>) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = (limit.unwrap_or(USUAL_LIMIT) / SHARE).saturating_sub(OTHERS);
    hold_at_most(runs, usize::try_from(share).unwrap_or(usize::MAX));
}

fn hold_at_most<'a>(runs: impl Iterator<Item = &'a mut Vec<SegmentFile>>, mut left: usize) {
    for run in runs {
        let mut first = 0;
        for (index, segment) in run.iter_mut().enumerate().take(left) {
            match HeldFile::open(segment) {
                Ok(Some(held)) => {
                    (segment.member, segment.store) = (Some(0), Some(SharedStore::new(held)));
                    left -= 1;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => first = index + 1,
                Ok(None) | Err(_) => {}
            }
        }
        // One segment stays, so that a run is never empty. Reading it reports the error.
        run.drain(..first.min(run.len().saturating_sub(1)));
    }
}

/// A store with one plain segment.
#[derive(Clone, Debug)]
struct HeldFile {
    file: Arc<File>,
    bytes: u64,
}

impl HeldFile {
    /// Opens a segment. Returns `None` if it is compressed or already in a store.
    fn open(segment: &SegmentFile) -> io::Result<Option<HeldFile>> {
        if segment.member.is_some() || segment.store.is_some() || segment.compression != Compression::None {
            return Ok(None);
        }
        let file = File::open(&segment.path)?;
        #[cfg(target_os = "linux")]
        // Only advice: reading also works on a file system without it.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        Ok(Some(HeldFile { file: Arc::new(file), bytes: segment.segment_size.bytes() }))
    }
}

impl HeldFile {
    fn whole(&self) -> FileRange {
        FileRange::new(Arc::clone(&self.file), 0, self.bytes)
    }
}

impl SegmentStore for HeldFile {
    fn reader(&self) -> Box<dyn SegmentContents> {
        Box::new(self.clone())
    }

    fn range(&self, _number: u64) -> Option<FileRange> {
        Some(self.whole())
    }
}

impl SegmentContents for HeldFile {
    fn read(&mut self, _number: u64) -> io::Result<Arc<Vec<u8>>> {
        let mut content = Vec::new();
        self.whole().read_to_end(&mut content)?;
        Ok(Arc::new(content))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use walden_format::lsn::{SegmentName, SegmentSize};

    use super::*;
    use crate::open;

    /// Returns a run of 1 MB segments in a folder, each of which starts with its number.
    fn run(folder: &Path, numbers: std::ops::Range<u64>) -> Vec<SegmentFile> {
        let size = SegmentSize::new(1 << 20).unwrap();
        let segment = |number: u64| {
            let segment = SegmentFile::plain(folder, SegmentName::new(1, number, size), size);
            let mut content = vec![0; 1 << 20];
            content[..8].copy_from_slice(&number.to_le_bytes());
            fs::write(&segment.path, content).unwrap();
            segment
        };
        numbers.map(segment).collect()
    }

    fn number_in(segment: &SegmentFile) -> io::Result<u64> {
        let mut content = Vec::new();
        open::open(segment)?.read_to_end(&mut content)?;
        assert_eq!(content.len(), 1 << 20);
        Ok(u64::from_le_bytes(content[..8].try_into().unwrap()))
    }

    #[test]
    fn segments_that_a_server_takes_away_are_read_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = [run(folder.path(), 4..9)];
        // Removed since they were listed.
        fs::remove_file(&runs[0][1].path).unwrap();
        hold(runs.iter_mut());
        let segments = &runs[0];
        assert_eq!(segments.len(), 3);
        fs::remove_file(&segments[0].path).unwrap();
        fs::rename(&segments[1].path, folder.path().join("000000010000000000000063")).unwrap();
        let numbers: Vec<u64> = segments.iter().map(|segment| number_in(segment).unwrap()).collect();
        assert_eq!(numbers, [6, 7, 8]);
    }

    #[test]
    fn no_more_files_are_open_than_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = [run(folder.path(), 1..3), run(folder.path(), 7..9)];
        hold_at_most(runs.iter_mut(), 3);
        for segment in runs.iter().flatten() {
            fs::remove_file(&segment.path).unwrap();
        }
        let is_held = |segment: &SegmentFile| number_in(segment).is_ok();
        let held: Vec<bool> = runs.iter().flatten().map(is_held).collect();
        assert_eq!(held, [true, true, true, false]);
    }

    #[test]
    fn a_run_keeps_a_segment_if_all_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = [run(folder.path(), 1..4)];
        for segment in &runs[0] {
            fs::remove_file(&segment.path).unwrap();
        }
        hold(runs.iter_mut());
        let [left] = &runs[0][..] else { panic!("{:?}", runs[0]) };
        assert_eq!(number_in(left).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

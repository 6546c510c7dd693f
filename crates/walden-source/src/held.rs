//! Holds segments open, so that a running server cannot remove them while they are read.
//!
//! At the end of each checkpoint, a server renames or removes the segments that it no longer needs. An open
//! file stays readable: a removed file until this process closes it, a renamed file until the server writes
//! the segment of its new name, after all other files that the server has prepared. The server writes that
//! segment from its start, so the first page shows whether the server has overwritten a part of the old
//! segment. The rest of the old segment is then read from elsewhere: a server removes and renames only
//! segments that it has archived.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::stream::StreamInfo;

use crate::compression::Compression;
use crate::segment_file::SegmentFile;
use crate::store::{SegmentContents, SegmentStore, SharedStore};

/// Number of files that a process may have open if the system does not report a limit.
const USUAL_LIMIT: u64 = 1024;
/// Divisor of this limit for segments. `OTHERS` is then subtracted, for temporary files, connections, and the
/// files that threads read.
const SHARE: u64 = 2;
const OTHERS: u64 = 64;

/// A place that may have a segment whose file a running server recycles while it is read.
pub trait FindSegment: fmt::Debug + Send + Sync {
    /// Returns the decoded content of a complete segment of a cluster, or `None` if this place does not have
    /// the segment. Searches again in each call.
    ///
    /// # Errors
    /// This place cannot be read.
    fn find(&self, segment: &SegmentFile) -> io::Result<Option<Vec<u8>>>;
}

/// Returns whether `content` is the complete content of `segment`.
pub(crate) fn is_content_of(content: &[u8], segment: &SegmentFile) -> bool {
    let is_of_cluster =
        |info: StreamInfo| info.system_id == segment.system_id && info.segment_size == segment.segment_size;
    content.len() as u64 == segment.segment_size.bytes()
        && StreamInfo::from_first_page(content).is_ok_and(is_of_cluster)
        && PageHeader::parse(content).is_ok_and(|header| header.address == segment.start)
}

/// The places that may have a segment whose file a running server recycles.
#[derive(Clone, Debug)]
struct Elsewhere(Arc<[Arc<dyn FindSegment>]>);

impl Elsewhere {
    /// Returns the complete content of a segment. An error of a place matters only if no other place has the
    /// segment.
    fn find(&self, segment: &SegmentFile) -> io::Result<Option<Vec<u8>>> {
        let mut failed = None;
        for place in self.0.iter() {
            match place.find(segment) {
                Ok(Some(content)) if is_content_of(&content, segment) => return Ok(Some(content)),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

/// Opens the plain segments of runs in WAL order, because the server removes the oldest first; at most as
/// many as may be open. The others are opened when they are read.
///
/// The server processes its folder in any order. If a segment of a run is gone already, and no place of
/// `elsewhere` has it, the earlier segments of the run are left out too.
pub fn hold<'a>(runs: impl Iterator<Item = &'a mut Vec<SegmentFile>>, elsewhere: Vec<Arc<dyn FindSegment>>) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = (limit.unwrap_or(USUAL_LIMIT) / SHARE).saturating_sub(OTHERS);
    hold_at_most(runs, &Elsewhere(elsewhere.into()), usize::try_from(share).unwrap_or(usize::MAX));
}

fn hold_at_most<'a>(
    runs: impl Iterator<Item = &'a mut Vec<SegmentFile>>,
    elsewhere: &Elsewhere,
    mut left: usize,
) {
    for run in runs {
        // WAL of an archive before the files stays, and reading the first file that is gone reports it.
        let starts_with_file = run.first().is_some_and(|segment| segment.store.is_none());
        let mut first = 0;
        for (index, segment) in run.iter_mut().enumerate() {
            if segment.member.is_some() || segment.store.is_some() || segment.compression != Compression::None
            {
                continue;
            }
            let file = if left > 0 { File::open(&segment.path).map(Some) } else { Ok(None) };
            let file = match file {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let is_elsewhere = elsewhere.find(segment).is_ok_and(|content| content.is_some());
                    if !is_elsewhere && starts_with_file {
                        first = index + 1;
                        continue;
                    }
                    None
                }
                Err(_) => None,
            };
            left -= usize::from(file.is_some());
            let held = HeldFile::new(segment.clone(), file, elsewhere);
            (segment.member, segment.store) = (Some(0), Some(SharedStore::new(held)));
        }
        // One segment stays, so that a run is never empty. Reading it reports the error.
        run.drain(..first.min(run.len().saturating_sub(1)));
    }
}

/// A store with one plain segment.
#[derive(Clone, Debug)]
struct HeldFile(Arc<Held>);

#[derive(Debug)]
struct Held {
    segment: SegmentFile,
    /// The open file, unless too many are open.
    file: Option<Arc<File>>,
    elsewhere: Elsewhere,
    /// The content that was found elsewhere, while a reader needs it.
    copy: Mutex<Weak<Vec<u8>>>,
}

impl HeldFile {
    fn new(segment: SegmentFile, file: Option<File>, elsewhere: &Elsewhere) -> HeldFile {
        let (file, elsewhere) = (file.map(Arc::new), elsewhere.clone());
        HeldFile(Arc::new(Held { segment, file, elsewhere, copy: Mutex::default() }))
    }
}

impl Held {
    fn open(&self) -> io::Result<Arc<File>> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::new(File::open(&self.segment.path)?),
        };
        #[cfg(target_os = "linux")]
        // Only advice: reading also works on a file system without it.
        let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::Sequential);
        Ok(file)
    }

    /// Returns whether the server has begun to write a later segment into the file. If it has not, no earlier
    /// read of the file has returned anything but the segment.
    fn is_overwritten(&self, file: &File) -> bool {
        let mut start = [0; LONG_HEADER];
        file.read_exact_at(&mut start, 0).is_ok()
            && PageHeader::parse(&start).is_ok_and(|header| header.address > self.segment.start)
    }

    /// Returns the content that another place has.
    fn find(&self) -> io::Result<Option<Arc<Vec<u8>>>> {
        // The lock is held during the search, so that another thread that needs the same segment waits for
        // the result.
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(content) = copy.upgrade() {
            return Ok(Some(content));
        }
        let content = self.elsewhere.find(&self.segment)?.map(Arc::new);
        *copy = content.as_ref().map_or_else(Weak::new, Arc::downgrade);
        Ok(content)
    }
}

/// Reads a held segment from its start.
struct HeldReader {
    held: Arc<Held>,
    file: Option<Arc<File>>,
    at: u64,
    /// The content from elsewhere, which is read instead.
    copy: Option<Arc<Vec<u8>>>,
    has_searched: bool,
}

impl HeldReader {
    fn read_file(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.held.open()?),
        };
        file.read_at(buf, self.at)
    }

    fn is_lost(&self, read: &io::Result<usize>) -> bool {
        match (read, &self.file) {
            (Ok(_), Some(file)) => self.held.is_overwritten(file),
            (Err(error), _) => error.kind() == io::ErrorKind::NotFound,
            (Ok(_), None) => false,
        }
    }
}

impl Read for HeldReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.held.segment.segment_size.bytes().saturating_sub(self.at);
        let wanted = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let buf = &mut buf[..wanted];
        if self.copy.is_none() {
            let read = self.read_file(buf);
            if !self.has_searched && self.is_lost(&read) {
                self.has_searched = true;
                self.copy = self.held.find()?;
            }
            if self.copy.is_none() {
                self.at += *read.as_ref().unwrap_or(&0) as u64;
                return read;
            }
        }
        let content = self.copy.as_ref().map_or(&[][..], |content| content.as_slice());
        let rest = content.get(usize::try_from(self.at).unwrap_or(usize::MAX)..).unwrap_or_default();
        let got = rest.len().min(buf.len());
        buf[..got].copy_from_slice(&rest[..got]);
        self.at += got as u64;
        Ok(got)
    }
}

impl SegmentStore for HeldFile {
    fn reader(&self) -> Box<dyn SegmentContents> {
        Box::new(self.clone())
    }

    fn stream(&self, _number: u64) -> Option<Box<dyn Read + Send>> {
        let held = Arc::clone(&self.0);
        Some(Box::new(HeldReader { held, file: None, at: 0, copy: None, has_searched: false }))
    }

    fn is_recycled(&self, _number: u64) -> bool {
        match self.0.open() {
            Ok(file) => self.0.is_overwritten(&file),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl SegmentContents for HeldFile {
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let mut content = Vec::new();
        if let Some(mut stream) = self.stream(number) {
            stream.read_to_end(&mut content)?;
        }
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
        hold(runs.iter_mut(), Vec::new());
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
        hold_at_most(runs.iter_mut(), &Elsewhere(Arc::default()), 3);
        for segment in runs.iter().flatten() {
            fs::remove_file(&segment.path).unwrap();
        }
        let is_held = |segment: &SegmentFile| number_in(segment).is_ok();
        let held: Vec<bool> = runs.iter().flatten().map(is_held).collect();
        assert_eq!(held, [true, true, true, false]);
    }

    /// A place that has segments with other content than the files.
    #[derive(Debug)]
    struct Copies(Vec<(u64, u8)>);

    impl FindSegment for Copies {
        fn find(&self, segment: &SegmentFile) -> io::Result<Option<Vec<u8>>> {
            let number = segment.start.0 >> 20;
            let copy = self.0.iter().find(|(of, _)| *of == number);
            Ok(copy.map(|(_, fill)| content_of(segment, *fill)))
        }
    }

    /// Returns a content with a segment's first page header, and this byte in the rest.
    fn content_of(segment: &SegmentFile, fill: u8) -> Vec<u8> {
        let mut log = walden_testing::writer::LogWriter::new(segment.version);
        (log.start, log.info.system_id) = (segment.start, segment.system_id);
        log.info.timeline = segment.name.timeline;
        log.main_data(10, 0, &[1; 100]);
        let mut content = vec![fill; 1 << 20];
        content[..LONG_HEADER].copy_from_slice(&log.bytes[..LONG_HEADER]);
        content
    }

    fn read_to_end(segment: &SegmentFile) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        open::open(segment)?.read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn a_recycled_file_is_read_from_elsewhere_whether_it_is_open_or_not() {
        for open in [0, 1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let mut runs = [run(folder.path(), 4..7)];
            for segment in &runs[0] {
                fs::write(&segment.path, content_of(segment, 1)).unwrap();
            }
            let copies: Arc<dyn FindSegment> = Arc::new(Copies(vec![(4, 2), (6, 2)]));
            hold_at_most(runs.iter_mut(), &Elsewhere(Arc::new([copies])), open);
            let segments = &runs[0];
            let mut begun = open::open(&segments[0]).unwrap();
            let mut part = vec![0; 100_000];
            begun.read_exact(&mut part).unwrap();
            assert!(part[LONG_HEADER..].iter().all(|byte| *byte == 1));
            let later = run(folder.path(), 9..11);
            for (segment, later) in segments.iter().zip(&later) {
                fs::rename(&segment.path, &later.path).unwrap();
                let file = fs::OpenOptions::new().write(true).open(&later.path).unwrap();
                file.write_all_at(&content_of(later, 3)[..8192], 0).unwrap();
            }
            // The reader that has begun continues at the same place.
            let mut rest = Vec::new();
            begun.read_to_end(&mut rest).unwrap();
            assert_eq!((rest.len(), rest.iter().all(|byte| *byte == 2)), ((1 << 20) - 100_000, true));
            assert!(read_to_end(&segments[0]).unwrap() == content_of(&segments[0], 2));
            // No other place has the second one.
            match read_to_end(&segments[1]) {
                Ok(content) => assert!(open > 1 && content[LONG_HEADER + 8192..].iter().all(|it| *it == 1)),
                Err(error) => assert!(open < 2 && error.kind() == io::ErrorKind::NotFound, "{error}"),
            }
            assert!(segments[1].is_recycled() && !segments[2].is_recycled());
            // A file that is not recycled is read itself.
            assert!(read_to_end(&segments[2]).unwrap() == content_of(&segments[2], 1));
        }
    }

    #[test]
    fn no_place_gives_another_segment_or_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let segments = run(folder.path(), 4..6);
        let content = content_of(&segments[0], 1);
        assert!(is_content_of(&content, &segments[0]));
        assert!(!is_content_of(&content, &segments[1]) && !is_content_of(&content[..500_000], &segments[0]));
        assert!(!is_content_of(&content, &SegmentFile { system_id: 8, ..segments[0].clone() }));
    }

    #[test]
    fn a_run_keeps_a_segment_if_all_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = [run(folder.path(), 1..4)];
        for segment in &runs[0] {
            fs::remove_file(&segment.path).unwrap();
        }
        hold(runs.iter_mut(), Vec::new());
        let [left] = &runs[0][..] else { panic!("{:?}", runs[0]) };
        assert_eq!(number_in(left).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

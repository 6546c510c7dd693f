//! Files of simple LRU logs (`slru.c`): the commit log, commit timestamps, multixacts.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustc_hash::FxHashMap;
use walden_redo::PAGE_BYTES;

use crate::private;

/// `SLRU_PAGES_PER_SEGMENT`
const PAGES_PER_SEGMENT: u64 = 32;
/// Pages in memory at most.
const MAX_PAGES: usize = 128;

/// How segments are named (`SlruFileName`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentNames {
    /// At least 4 hexadecimal digits.
    Short,
    /// 15 hexadecimal digits; members of multixacts since 19.
    Long,
}

/// One log: a folder of segments, and the pages that were changed last.
#[derive(Debug)]
pub(crate) struct Slru {
    folder: PathBuf,
    names: SegmentNames,
    pages: FxHashMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl Slru {
    pub(crate) fn new(folder: PathBuf, names: SegmentNames) -> Slru {
        Slru { folder, names, pages: FxHashMap::default() }
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.folder.join(match self.names {
            SegmentNames::Short => format!("{segment:04X}"),
            SegmentNames::Long => format!("{segment:015X}"),
        })
    }

    /// A page to change. A page that does not exist counts as zeros, as in recovery (`SlruPhysicalReadPage`).
    pub(crate) fn page(&mut self, number: u64) -> io::Result<&mut [u8; PAGE_BYTES]> {
        if !self.pages.contains_key(&number) {
            let mut page = Box::new([0; PAGE_BYTES]);
            self.read(number, &mut page)?;
            self.make_room()?;
            self.pages.insert(number, page);
        }
        self.pages.get_mut(&number).map(|page| &mut **page).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Adds a page of zeros.
    pub(crate) fn zero_page(&mut self, number: u64) -> io::Result<()> {
        self.make_room()?;
        self.pages.insert(number, Box::new([0; PAGE_BYTES]));
        Ok(())
    }

    /// Whether a page is in memory or in its file.
    pub(crate) fn has_page(&self, number: u64) -> bool {
        let end = (number % PAGES_PER_SEGMENT + 1) * PAGE_BYTES as u64;
        self.pages.contains_key(&number)
            || fs::metadata(self.path(number / PAGES_PER_SEGMENT)).is_ok_and(|file| file.len() >= end)
    }

    fn read(&self, number: u64, page: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
        let path = self.path(number / PAGES_PER_SEGMENT);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        match file.read_exact_at(page, number % PAGES_PER_SEGMENT * PAGE_BYTES as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                page.fill(0);
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.pages.len() >= MAX_PAGES { self.flush() } else { Ok(()) }
    }

    /// Writes all changed pages, in the order of the files.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let mut pages: Vec<_> = self.pages.drain().collect();
        pages.sort_unstable_by_key(|(number, _)| *number);
        for (number, page) in pages {
            let path = self.path(number / PAGES_PER_SEGMENT);
            let file = private::open(&path, true)?;
            file.write_all_at(&page[..], number % PAGES_PER_SEGMENT * PAGE_BYTES as u64)?;
        }
        Ok(())
    }

    /// Removes the segments whose first and last page precede `cutoff` (`SimpleLruTruncate`).
    pub(crate) fn truncate(&mut self, cutoff: u64, precedes: impl Fn(u64, u64) -> bool) -> io::Result<()> {
        self.remove_segments(|segment| {
            let first = segment.saturating_mul(PAGES_PER_SEGMENT);
            precedes(first, cutoff) && precedes(first.saturating_add(PAGES_PER_SEGMENT - 1), cutoff)
        })
    }

    /// Removes segments by number.
    pub(crate) fn remove_segments(&mut self, is_removed: impl Fn(u64) -> bool) -> io::Result<()> {
        self.pages.retain(|page, _| !is_removed(page / PAGES_PER_SEGMENT));
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let is_segment = match self.names {
                SegmentNames::Short => (4..=6).contains(&name.len()),
                SegmentNames::Long => name.len() == 15,
            };
            let number = u64::from_str_radix(name, 16).ok().filter(|_| is_segment);
            if number.is_some_and(&is_removed) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_beyond_the_memory_limit_are_read_back_from_their_segments() {
        let folder = tempfile::tempdir().unwrap();
        let mut slru = Slru::new(folder.path().to_owned(), SegmentNames::Short);
        for number in 0..1000_u64 {
            slru.page(number).unwrap()[..8].copy_from_slice(&number.to_le_bytes());
        }
        assert!(slru.pages.len() <= MAX_PAGES);
        for number in 0..1000_u64 {
            assert_eq!(slru.page(number).unwrap()[..8], number.to_le_bytes());
        }
        slru.flush().unwrap();
        assert_eq!(fs::metadata(folder.path().join("001F")).unwrap().len(), 8 * PAGE_BYTES as u64);
        assert!(slru.has_page(999) && !slru.has_page(1000));
        // Page 70 is in the third segment, which stays.
        slru.truncate(70, |one, other| one < other).unwrap();
        assert!(!folder.path().join("0001").exists() && folder.path().join("0002").exists());
        assert_eq!(slru.page(3).unwrap()[..8], [0; 8]);
    }

    #[test]
    fn long_names_have_fifteen_digits() {
        let folder = tempfile::tempdir().unwrap();
        let mut slru = Slru::new(folder.path().to_owned(), SegmentNames::Long);
        slru.page(0x20).unwrap()[0] = 1;
        slru.flush().unwrap();
        assert!(folder.path().join("000000000000001").exists());
        slru.remove_segments(|segment| segment == 1).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

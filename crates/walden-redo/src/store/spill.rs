//! A temporary file for pages beyond the limit of memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::page::{PAGE_BYTES, Page};

/// A page's position in the file, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u32);

impl Place {
    /// Not in the file.
    pub(super) const NONE: Place = Place(u32::MAX);
}

/// The spill file, created when the first page is written. The file has no name, so the kernel removes it
/// when the process ends.
#[derive(Debug)]
pub(super) struct Spill {
    folder: PathBuf,
    file: Option<File>,
    used: u32,
    free: Vec<Place>,
}

impl Spill {
    pub(super) fn new(folder: PathBuf) -> Spill {
        Spill { folder, file: None, used: 0, free: Vec::new() }
    }

    pub(super) fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// Writes a page to its place in the file, or to a free place if `place` is none. Returns the place.
    pub(super) fn write(&mut self, place: Place, page: &Page) -> io::Result<Place> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?),
        };
        let place = match place {
            Place::NONE => self.free.pop().unwrap_or(Place(self.used)),
            place => place,
        };
        if place == Place::NONE {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "expected at most 32 TB in the temporary file",
            ));
        }
        match file.write_all_at(&page.0, offset(place)) {
            Ok(()) => {
                self.used = self.used.max(place.0 + 1);
                Ok(place)
            }
            Err(error) => {
                self.release(place);
                Err(error)
            }
        }
    }

    pub(super) fn read(&self, place: Place, page: &mut Page) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.read_exact_at(&mut page.0, offset(place))
    }

    /// Makes a place free for another page.
    pub(super) fn release(&mut self, place: Place) {
        if place.0 < self.used {
            self.free.push(place);
        }
    }

    /// Returns the number of pages in the file.
    pub(super) fn pages(&self) -> usize {
        self.used as usize - self.free.len()
    }
}

fn offset(place: Place) -> u64 {
    u64::from(place.0) * PAGE_BYTES as u64
}

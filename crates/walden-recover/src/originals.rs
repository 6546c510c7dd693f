//! Relation files of the base backup that are copied late.
//!
//! Replay changes most pages of a busy database. A page that is copied before it is replaced is written
//! twice. So replay reads relation files in the base backup itself. At the end, the pages that replay has not
//! changed are copied; before that only a file that a record truncates, or whose database is copied.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use walden_redo::PAGE_BYTES;

use crate::private::{self, named};

/// Pages that follow one another and are not copied, because replay has replaced them. Shorter sequences are
/// copied: a larger copy takes less time than several small ones.
const MIN_LEFT_OUT: u32 = 16;

/// The files that were not copied yet, by their paths in the new data directory.
#[derive(Debug, Default)]
pub(crate) struct Originals(RwLock<BTreeMap<PathBuf, PathBuf>>);

impl Originals {
    /// Adds a file of the base backup.
    pub(crate) fn add(&self, new: PathBuf, original: PathBuf) {
        self.write().insert(new, original);
    }

    /// Returns the original of a file that was not copied yet.
    pub(crate) fn find(&self, new: &Path) -> Option<PathBuf> {
        self.read().get(new).cloned()
    }

    /// Copies the first `bytes` of a file if it was not copied yet. Other threads wait meanwhile.
    pub(crate) fn copy_now(&self, new: &Path, bytes: u64) -> io::Result<()> {
        if !self.read().contains_key(new) {
            return Ok(());
        }
        let mut files = self.write();
        let Some(original) = files.get(new) else { return Ok(()) };
        let (original, copy) = create(original, new)?;
        io::copy(&mut io::Read::take(&original, bytes), &mut &copy).map_err(|error| named(new, error))?;
        files.remove(new);
        Ok(())
    }

    /// Removes a file. Returns whether there was one.
    pub(crate) fn remove(&self, new: &Path) -> bool {
        self.write().remove(new).is_some()
    }

    /// Removes all files below a folder.
    pub(crate) fn remove_folder(&self, folder: &Path) {
        self.write().retain(|new, _| !new.starts_with(folder));
    }

    /// Returns the files in a folder, with their originals.
    pub(crate) fn in_folder(&self, folder: &Path) -> Vec<(PathBuf, PathBuf)> {
        let files = self.read();
        let below = files.range(folder.to_owned()..).take_while(|(new, _)| new.starts_with(folder));
        below
            .filter(|(new, _)| new.parent() == Some(folder))
            .map(|(new, original)| (new.clone(), original.clone()))
            .collect()
    }

    /// Takes all files that are left, with their originals.
    pub(crate) fn take_all(&self) -> Vec<(PathBuf, PathBuf)> {
        std::mem::take(&mut *self.write()).into_iter().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<PathBuf, PathBuf>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<PathBuf, PathBuf>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies a file except for pages that are written later; `replaced` has their numbers in ascending order.
/// Returns the bytes copied.
pub(crate) fn copy_around(original: &Path, new: &Path, replaced: &[u32]) -> io::Result<u64> {
    let (original, copy) = create(original, new)?;
    let length = original.metadata()?.len();
    copy.set_len(length)?;
    // On file systems with reference links, the copy shares the blocks that are not replaced.
    if !replaced.is_empty() && rustix::fs::ioctl_ficlone(&copy, &original).is_ok() {
        return Ok(length);
    }
    let mut copied = 0;
    for (from, to) in ranges_around(replaced, length) {
        for mut file in [&original, &copy] {
            file.seek(SeekFrom::Start(from))?;
        }
        // Uses copy_file_range.
        copied += io::copy(&mut io::Read::take(&original, to - from), &mut &copy)
            .map_err(|error| named(new, error))?;
    }
    Ok(copied)
}

/// Returns the ranges of bytes of a file with `length` bytes around pages that are replaced.
fn ranges_around(replaced: &[u32], length: u64) -> Vec<(u64, u64)> {
    let offset = |page: u32| (u64::from(page) * PAGE_BYTES as u64).min(length);
    let (mut ranges, mut from) = (Vec::new(), 0);
    for run in replaced.chunk_by(|page, next| page + 1 == *next) {
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else { continue };
        if last - first + 1 >= MIN_LEFT_OUT {
            ranges.push((from, offset(first)));
            from = offset(last + 1);
        }
    }
    ranges.push((from, length));
    ranges.retain(|(from, to)| from < to);
    ranges
}

/// Opens a file of the base backup and creates its copy, with the same permissions.
fn create(original: &Path, new: &Path) -> io::Result<(File, File)> {
    let file = File::open(original).map_err(|error| named(original, error))?;
    let permissions = file.metadata()?.permissions();
    let copy = private::create(new).map_err(|error| named(new, error))?;
    copy.set_permissions(permissions)?;
    Ok((file, copy))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_is_copied_once_and_removed_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("original"), "content").unwrap();
        let originals = Originals::default();
        for name in ["new/5/1", "new/5/1.1", "new/5/deep/1", "new/50/1", "new/50/2"] {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            originals.add(path(name), path("original"));
        }
        let names: Vec<PathBuf> = originals.in_folder(&path("new/5")).into_iter().map(|it| it.0).collect();
        assert_eq!(names, [path("new/5/1"), path("new/5/1.1")]);
        originals.copy_now(&path("new/5/1"), 3).unwrap();
        assert_eq!(fs::read(path("new/5/1")).unwrap(), b"con");
        originals.copy_now(&path("new/5/1"), u64::MAX).unwrap();
        assert_eq!(fs::read(path("new/5/1")).unwrap(), b"con", "it may have been changed since");
        originals.remove_folder(&path("new/5"));
        assert!(originals.remove(&path("new/50/2")) && !originals.remove(&path("new/50/2")));
        let left: Vec<PathBuf> = originals.take_all().into_iter().map(|(new, _)| new).collect();
        assert_eq!(left, [path("new/50/1")]);
    }

    proptest! {
        /// All pages are those of the original, or replaced afterwards.
        #[test]
        fn pages_that_are_not_replaced_are_copied(
            pages in 0_u32..200, rest in 0_usize..100, runs in prop::collection::vec((0_u32..220, 1_u32..60), 0..6)
        ) {
            let folder = tempfile::tempdir().unwrap();
            let [original, new] = ["original", "new"].map(|name| folder.path().join(name));
            let bytes = pages as usize * PAGE_BYTES + rest;
            fs::write(&original, vec![7; bytes]).unwrap();
            let mut replaced: Vec<u32> = runs.iter().flat_map(|&(first, count)| first..first + count).collect();
            replaced.sort_unstable();
            replaced.dedup();
            let copied = copy_around(&original, &new, &replaced).unwrap();
            let found = fs::read(&new).unwrap();
            prop_assert_eq!(found.len(), bytes);
            prop_assert!(copied <= bytes as u64);
            for (number, page) in found.chunks(PAGE_BYTES).enumerate() {
                let is_replaced = replaced.contains(&(number as u32));
                prop_assert!(is_replaced || page.iter().all(|&byte| byte == 7), "page {}", number);
            }
            let left_out: usize = replaced
                .chunk_by(|page, next| page + 1 == *next)
                .filter(|run| run.len() >= MIN_LEFT_OUT as usize)
                .flatten()
                .map(|&page| bytes.saturating_sub(page as usize * PAGE_BYTES).min(PAGE_BYTES))
                .sum();
            prop_assert!(copied == bytes as u64 || copied == (bytes - left_out) as u64);
        }
    }
}

//! Relation files of the new data directory: read by the page store, and changed as PostgreSQL's redo changes
//! them (`md.c`, `storage.c`, `dbcommands.c`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::checksum;
use walden_redo::{BasePages, BlockKey, PAGE_BYTES, Page};
use walden_source::names::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE};
use zerocopy::IntoBytes as _;

use crate::base::BaseBackup;
use crate::originals::Originals;
use crate::private::{self, named, remove_folder};

/// Files that are held open at most.
const MAX_OPEN_FILES: usize = 64;
/// The forks of a relation.
const FORKS: [Fork; 4] = [Fork::MAIN, Fork::FREE_SPACE_MAP, Fork::VISIBILITY_MAP, Fork::INIT];

/// A segment of a fork: one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileKey {
    relation: RelFileLocator,
    fork: Fork,
    segment: u32,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    used: u64,
    /// Whether it is not a file of the base backup.
    is_own: bool,
}

/// How a file is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    /// In the base backup if it was not copied yet.
    Read,
    /// In the new data directory; it is created if it is missing.
    Write,
}

/// The relation files of a data directory that no server uses.
#[derive(Debug)]
pub(crate) struct RelationFiles {
    root: PathBuf,
    /// The major version, for `PG_VERSION` and the folders of tablespaces.
    version: String,
    catalog_version: u32,
    blocks_per_segment: u32,
    has_checksums: bool,
    open: FxHashMap<FileKey, OpenFile>,
    clock: u64,
    originals: Arc<Originals>,
}

impl RelationFiles {
    /// The files of the copy of `base` in `root`.
    pub(crate) fn new(base: &BaseBackup, root: &Path, originals: &Arc<Originals>) -> RelationFiles {
        RelationFiles {
            originals: Arc::clone(originals),
            root: root.to_owned(),
            version: base.version.clone(),
            catalog_version: base.control.catalog_version,
            blocks_per_segment: base.control.blocks_per_segment,
            has_checksums: base.control.data_checksum_version != 0,
            open: FxHashMap::default(),
            clock: 0,
        }
    }

    /// Closes all files, because another thread changes some of them.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
    }

    /// The folder of a database in a tablespace (`GetDatabasePath`).
    pub(crate) fn database_folder(&self, database: u32, tablespace: u32) -> PathBuf {
        match tablespace {
            GLOBAL_TABLESPACE => self.root.join("global"),
            DEFAULT_TABLESPACE => self.root.join(format!("base/{database}")),
            _ => self.tablespace_folder(tablespace).join(database.to_string()),
        }
    }

    /// The folder of this version in a tablespace.
    pub(crate) fn tablespace_folder(&self, tablespace: u32) -> PathBuf {
        let (version, catalog) = (&self.version, self.catalog_version);
        self.root.join(format!("pg_tblspc/{tablespace}/PG_{version}_{catalog}"))
    }

    fn path(&self, key: FileKey) -> PathBuf {
        let RelFileLocator { tablespace, database, relation } = key.relation;
        let fork = match key.fork {
            Fork::MAIN => "",
            Fork::FREE_SPACE_MAP => "_fsm",
            Fork::VISIBILITY_MAP => "_vm",
            _ => "_init",
        };
        let segment = match key.segment {
            0 => String::new(),
            segment => format!(".{segment}"),
        };
        self.database_folder(database, tablespace).join(format!("{relation}{fork}{segment}"))
    }

    /// Reads a page; false past the end of the file, and for a page whose checksum is wrong: a base backup
    /// may have caught it half written, and then WAL has an image of it.
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool> {
        let (file_key, offset) = self.place(key);
        let file = match self.file(file_key, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        match file.read_exact_at(&mut page.0, offset) {
            Ok(()) => Ok(!self.has_checksums || checksum::is_sound(page, key.block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes consecutive pages of a file from `first` on, with their checksums. Extends the fork by empty
    /// pages where it is shorter.
    pub(crate) fn write(&mut self, first: BlockKey, pages: &mut [Page]) -> io::Result<()> {
        if self.has_checksums {
            for (page, block) in pages.iter_mut().zip(first.block..) {
                checksum::set_checksum(page, block);
            }
        }
        let (file_key, offset) = self.place(first);
        if !self.open.contains_key(&file_key) {
            self.fill_before(file_key)?;
        }
        self.file(file_key, Access::Write)?.write_all_at(pages.as_bytes(), offset)
    }

    /// Returns the path of the file with a page.
    pub(crate) fn path_of(&self, key: BlockKey) -> PathBuf {
        self.path(self.place(key).0)
    }

    /// Returns the number of the file with a block of a fork.
    pub(crate) fn segment_of(&self, block: u32) -> u32 {
        block / self.blocks_per_segment
    }

    /// Returns the number of blocks of each file of a fork but the last one.
    pub(crate) fn blocks_per_segment(&self) -> u32 {
        self.blocks_per_segment
    }

    /// Extends the segments before this one to their full length: PostgreSQL takes a shorter one for the
    /// last.
    fn fill_before(&mut self, key: FileKey) -> io::Result<()> {
        let full = u64::from(self.blocks_per_segment) * PAGE_BYTES as u64;
        for segment in (0..key.segment).rev() {
            let key = FileKey { segment, ..key };
            if self.length(key)?.is_some_and(|length| length >= full) {
                break;
            }
            self.file(key, Access::Write)?.set_len(full)?;
        }
        Ok(())
    }

    fn place(&self, key: BlockKey) -> (FileKey, u64) {
        let segment = self.segment_of(key.block);
        let offset = u64::from(key.block % self.blocks_per_segment) * PAGE_BYTES as u64;
        (FileKey { relation: key.relation, fork: key.fork, segment }, offset)
    }

    /// Returns the length of a file in bytes; `None` if it does not exist.
    fn length(&self, key: FileKey) -> io::Result<Option<u64>> {
        let path = self.path(key);
        match fs::metadata(self.originals.find(&path).as_ref().unwrap_or(&path)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(&path, error)),
        }
    }

    /// An open file. To write it, creates it and its folder.
    fn file(&mut self, key: FileKey, access: Access) -> io::Result<&File> {
        self.clock += 1;
        let used = self.clock;
        let known = self.open.remove(&key).filter(|open| open.is_own || access == Access::Read);
        let open = match known {
            Some(open) => OpenFile { used, ..open },
            None => {
                if self.open.len() >= MAX_OPEN_FILES {
                    let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(key, _)| *key);
                    oldest.map(|oldest| self.open.remove(&oldest));
                }
                let path = self.path(key);
                let original = self.originals.find(&path).filter(|_| access == Access::Read);
                let is_own = original.is_none();
                let file = match original {
                    Some(original) => File::open(&original).map_err(|error| named(&original, error)),
                    None => self.open_own(&path, access),
                };
                OpenFile { file: file?, used, is_own }
            }
        };
        Ok(&self.open.entry(key).insert_entry(open).into_mut().file)
    }

    /// Opens a file of the new data directory.
    fn open_own(&self, path: &Path, access: Access) -> io::Result<File> {
        let create = access == Access::Write;
        if create {
            self.originals.copy_now(path, u64::MAX)?;
        }
        if create && let Some(folder) = path.parent() {
            private::create_folders(folder)?;
        }
        private::open(path, create).map_err(|error| named(path, error))
    }

    /// Creates the file of a fork unless it exists (`smgrcreate` in redo).
    pub(crate) fn create(&mut self, relation: RelFileLocator, fork: Fork) -> io::Result<()> {
        let key = FileKey { relation, fork, segment: 0 };
        match self.length(key)? {
            Some(_) => Ok(()),
            None => self.file(key, Access::Write).map(drop),
        }
    }

    /// Removes all files of a relation (`mdunlink` in redo).
    pub(crate) fn drop_relation(&mut self, relation: RelFileLocator) -> io::Result<()> {
        FORKS.into_iter().try_for_each(|fork| self.drop_fork(relation, fork))
    }

    /// Removes the files of a fork.
    pub(crate) fn drop_fork(&mut self, relation: RelFileLocator, fork: Fork) -> io::Result<()> {
        for segment in 0.. {
            let key = FileKey { relation, fork, segment };
            self.open.remove(&key);
            let path = self.path(key);
            match fs::remove_file(&path) {
                _ if self.originals.remove(&path) => {}
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(named(&path, error)),
            }
        }
        Ok(())
    }

    /// Cuts a fork to a number of blocks. Later segments stay as empty files (`mdtruncate`).
    pub(crate) fn truncate(&mut self, relation: RelFileLocator, fork: Fork, blocks: u32) -> io::Result<()> {
        for segment in 0.. {
            let key = FileKey { relation, fork, segment };
            let kept = blocks.saturating_sub(segment.saturating_mul(self.blocks_per_segment));
            let kept = u64::from(kept.min(self.blocks_per_segment)) * PAGE_BYTES as u64;
            let Some(length) = self.length(key)? else { break };
            if length > kept {
                // The rest is not even copied.
                self.originals.copy_now(&self.path(key), kept)?;
                self.file(key, Access::Write)?.set_len(kept)?;
            }
        }
        Ok(())
    }

    /// Creates a database's folder with its `PG_VERSION` (`CreateDirAndVersionFile`).
    pub(crate) fn create_database(&mut self, database: u32, tablespace: u32) -> io::Result<()> {
        let folder = self.database_folder(database, tablespace);
        private::create_folders(&folder)?;
        let path = folder.join("PG_VERSION");
        private::write(&path, format!("{}\n", self.version)).map_err(|error| named(&path, error))
    }

    /// Copies a database's files; both are `(database, tablespace)`.
    pub(crate) fn copy_database(&mut self, from: (u32, u32), to: (u32, u32)) -> io::Result<()> {
        let (source, target) = (self.database_folder(from.0, from.1), self.database_folder(to.0, to.1));
        self.drop_database(to.0, to.1)?;
        private::create_folders(&target).map_err(|error| named(&target, error))?;
        for entry in fs::read_dir(&source).map_err(|error| named(&source, error))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let path = entry.path();
                fs::copy(&path, target.join(entry.file_name())).map_err(|error| named(&path, error))?;
            }
        }
        for (path, original) in self.originals.in_folder(&source) {
            let Some(name) = path.file_name() else { continue };
            fs::copy(&original, target.join(name)).map_err(|error| named(&original, error))?;
        }
        Ok(())
    }

    /// Removes a database's folder in a tablespace.
    pub(crate) fn drop_database(&mut self, database: u32, tablespace: u32) -> io::Result<()> {
        if matches!(tablespace, GLOBAL_TABLESPACE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a database in the global tablespace"));
        }
        let is_in =
            |key: &FileKey| (key.relation.database, key.relation.tablespace) == (database, tablespace);
        self.open.retain(|key, _| !is_in(key));
        self.remove_folder(&self.database_folder(database, tablespace))
    }

    /// Removes a folder of relation files, if it exists.
    pub(crate) fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        self.originals.remove_folder(folder);
        remove_folder(folder)
    }
}

/// The files, shared by a page store, which reads them, and its engine, which writes them.
#[derive(Clone, Debug)]
pub(crate) struct SharedFiles(Arc<Mutex<RelationFiles>>);

impl SharedFiles {
    pub(crate) fn new(files: RelationFiles) -> SharedFiles {
        SharedFiles(Arc::new(Mutex::new(files)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RelationFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BasePages for SharedFiles {
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool> {
        self.lock().read(key, page)
    }

    fn may_be_torn(&self) -> bool {
        !self.lock().has_checksums
    }
}

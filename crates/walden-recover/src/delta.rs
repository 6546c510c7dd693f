//! A restore over a data directory of the same cluster, which writes only what differs from the base backup.
//!
//! `pg_control` is moved away first, so that PostgreSQL does not start on the folder until the restore is
//! complete. A killed restore leaves it under the other name, by which the next one recognizes the folder.
//!
//! Nothing outside of the data directory and the mapped tablespaces is changed: links are refused, and a
//! file with several names is replaced rather than written.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Serialize;
use walden_redo::PAGE_BYTES;
use walden_source::datadir::ControlFile;
use walden_source::tar_end::cut_off;
use walden_source::workers::run_in_order;

use crate::base::BaseBackup;
use crate::copy::{Entry, visit_backup, visit_tablespace};
use crate::destination::Destination;
use crate::error::RecoverError;
use crate::existing::{ExistingDirectory, MOVED_CONTROL};
use crate::private;
use crate::tablespaces::MappedTablespace;

/// Bytes that are compared at a time; a multiple of a page.
const CHUNK_BYTES: usize = 256 << 10;

/// Amounts of a restore over an existing data directory, in bytes of files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct DeltaAmounts {
    /// Content that the folder had already.
    pub kept_bytes: u64,
    /// Content of the base backup that was written.
    pub written_bytes: u64,
    /// Files, and ends of files, that the base backup does not have.
    pub removed_bytes: u64,
    /// Number of files that the base backup does not have.
    pub removed_files: u64,
}

impl DeltaAmounts {
    fn add(&mut self, other: DeltaAmounts) {
        self.kept_bytes += other.kept_bytes;
        self.written_bytes += other.written_bytes;
        self.removed_bytes += other.removed_bytes;
        self.removed_files += other.removed_files;
    }
}

/// Checks that the folder is of the base backup's cluster, and that nothing of it leads elsewhere. A
/// backup in a folder must be elsewhere.
pub(crate) fn expect_fit(
    existing: &ExistingDirectory,
    base: &BaseBackup,
    tablespaces: &[MappedTablespace],
) -> Result<(), RecoverError> {
    let refuse = |path: &Path, expected, found, hint| {
        Err(RecoverError::Existing { path: path.to_owned(), expected, found, hint })
    };
    existing.expect_replaceable(base.system_identifier())?;
    let written = || tablespaces.iter().map(MappedTablespace::new_folder).chain([existing.path()]);
    let overlaps = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
    for folder in base.folders() {
        let read = fs::canonicalize(&folder).map_err(RecoverError::io("read", &folder))?;
        if let Some(own) = written().find(|own| overlaps(&canonical(own), &read)) {
            let found = format!("it and {} in one folder", read.display());
            return refuse(own, "a folder apart from the base backup", found, "name another folder");
        }
    }
    for tablespace in tablespaces {
        if overlaps(&canonical(tablespace.new_folder()), existing.path()) {
            let found = "one in the data directory".to_owned();
            let hint = "name a folder outside of the data directory";
            return refuse(tablespace.new_folder(), "the folder of a tablespace", found, hint);
        }
    }
    expect_own_files(existing.path(), Path::new(""), tablespaces)?;
    for folder in tablespaces.iter().filter(|it| it.is_linked_from(existing.path())) {
        for path in read_folder(folder.new_folder())? {
            let name = Path::new(path.file_name().unwrap_or_default());
            if is_of_version(name, base.major()) && path.is_symlink() {
                let found = format!("the link {}", name.display());
                let hint = "replace the link by the folder that it leads to";
                return refuse(folder.new_folder(), "files and folders", found, hint);
            }
            if is_of_version(name, base.major()) && path.is_dir() {
                expect_own_files(folder.new_folder(), name, &[])?;
            }
        }
    }
    Ok(())
}

/// Brings the folder and its tablespaces to the content of a base backup, or only compares them. `done`
/// gets the bytes of each file of the backup.
pub(crate) fn apply(
    existing: &ExistingDirectory,
    base: &BaseBackup,
    tablespaces: &[MappedTablespace],
    way: Way,
    done: &mut dyn FnMut(u64),
) -> Result<DeltaAmounts, RecoverError> {
    let mut data = Delta::new(existing.path(), way, done);
    match &base.tar {
        None => data.apply_folder(|visit| visit_backup(&base.path, way.is_server, visit))?,
        Some(tar) => tar.unpack(&base.outside(), way.is_server, &mut data)?,
    }
    let mut linked = HashSet::new();
    for tablespace in tablespaces.iter().filter_map(MappedTablespace::oid) {
        linked.insert(Path::new("pg_tblspc").join(tablespace.to_string()));
    }
    let mut amounts = data.finish(&|name| {
        // The control file is moved, and written last.
        [MOVED_CONTROL, ControlFile::PATH].iter().any(|one| name == Path::new(one)) || linked.contains(name)
    })?;
    for mapped in tablespaces {
        if way.is_applied {
            mapped.create_over(existing.path())?;
        }
        let Some(tablespace) = mapped.of_base() else { continue };
        let mut delta = Delta::new(mapped.new_folder(), way, done);
        match &base.tar {
            None => delta.apply_folder(|visit| visit_tablespace(&tablespace.folder, visit))?,
            Some(tar) => tar.unpack_tablespace(tablespace.oid, &mut delta)?,
        }
        amounts.add(delta.finish(&|name| !is_of_version(name, base.major()))?);
    }
    Ok(amounts)
}

/// Whether a path in the folder of a tablespace is of a major version. During an upgrade, the folder has
/// files of two.
fn is_of_version(name: &Path, major: u32) -> bool {
    let first = name.components().next().map(|first| first.as_os_str().to_string_lossy());
    first.is_some_and(|first| first.starts_with(&format!("PG_{major}_")))
}

/// How a folder is brought to the content of a base backup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub is_server: bool,
    /// Otherwise it is only compared.
    pub is_applied: bool,
    pub threads: usize,
}

/// A folder that is brought to the content of a base backup.
struct Delta<'d> {
    root: &'d Path,
    way: Way,
    done: &'d mut dyn FnMut(u64),
    /// Files and folders (`true`) of the backup.
    names: HashMap<PathBuf, bool>,
    amounts: DeltaAmounts,
}

impl<'d> Delta<'d> {
    fn new(root: &'d Path, way: Way, done: &'d mut dyn FnMut(u64)) -> Delta<'d> {
        Delta { root, way, done, names: HashMap::new(), amounts: DeltaAmounts::default() }
    }

    /// Adds a name, and the folders above it.
    fn add(&mut self, name: &Path, is_folder: bool) {
        self.names.insert(name.to_owned(), is_folder);
        for above in name.ancestors().skip(1) {
            if self.names.insert(above.to_owned(), true).is_some() {
                break;
            }
        }
    }

    /// Applies a backup in plain format by several threads.
    fn apply_folder(
        &mut self,
        visit: impl FnOnce(&mut dyn FnMut(Entry<'_>) -> Result<(), RecoverError>) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        let mut files = Vec::new();
        visit(&mut |entry| match entry {
            Entry::Folder(name, permissions) => self.folder(name, Some(permissions)),
            Entry::File(name, path) => {
                let target = self.root.join(name);
                self.add(name, false);
                self.clear(&target, false)?;
                files.push((target, path));
                Ok(())
            }
        })?;
        let way = self.way;
        let apply = |(target, path): &(PathBuf, PathBuf)| {
            let mut file = File::open(path).map_err(RecoverError::io("read", path))?;
            let metadata = file.metadata().map_err(RecoverError::io("read", path))?;
            let permissions = Some(metadata.permissions());
            bring_file(target, metadata.len(), permissions, &mut file, way.is_applied)
                .map_err(RecoverError::io("copy", path))
        };
        let mut failure = None;
        run_in_order(
            0..files.len(),
            way.threads,
            || (),
            |(), index| apply(&files[index]),
            |applied: Result<DeltaAmounts, RecoverError>| match applied {
                Ok(amounts) => {
                    self.amounts.add(amounts);
                    (self.done)(amounts.kept_bytes + amounts.written_bytes);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            },
        );
        failure.map_or(Ok(()), Err)
    }

    /// Removes what the backup does not have, except for what `is_kept` names.
    fn finish(mut self, is_kept: &dyn Fn(&Path) -> bool) -> Result<DeltaAmounts, RecoverError> {
        // A new folder is not created to compare it.
        if self.root.exists() {
            self.remove_others(Path::new(""), is_kept)?;
        }
        Ok(self.amounts)
    }

    fn remove_others(&mut self, inside: &Path, is_kept: &dyn Fn(&Path) -> bool) -> Result<(), RecoverError> {
        let folder = self.root.join(inside);
        for entry in read_folder(&folder)? {
            let name = inside.join(entry.file_name().unwrap_or_default());
            let metadata = entry.symlink_metadata().map_err(RecoverError::io("read", &entry))?;
            match self.names.get(&name) {
                Some(true) if metadata.is_dir() => self.remove_others(&name, is_kept)?,
                None if !is_kept(&name) => self.remove(&entry, &metadata)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a file, or a folder with its content.
    fn remove(&mut self, path: &Path, metadata: &Metadata) -> Result<(), RecoverError> {
        if metadata.is_dir() {
            for entry in read_folder(path)? {
                let metadata = entry.symlink_metadata().map_err(RecoverError::io("read", &entry))?;
                self.remove(&entry, &metadata)?;
            }
        } else {
            self.amounts.removed_bytes += metadata.len();
            self.amounts.removed_files += 1;
        }
        if !self.way.is_applied {
            return Ok(());
        }
        let removed = if metadata.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        removed.map_err(RecoverError::io("remove", path))
    }

    /// Removes anything but a folder where the backup has a folder, and anything but a file where it has one.
    fn clear(&mut self, path: &Path, is_folder: bool) -> Result<(), RecoverError> {
        match path.symlink_metadata() {
            Ok(metadata) if (if is_folder { !metadata.is_dir() } else { !metadata.is_file() }) => {
                self.remove(path, &metadata)
            }
            Err(error) if !is_missing(&error) => Err(RecoverError::io("read", path)(error)),
            _ => Ok(()),
        }
    }
}

impl Destination for Delta<'_> {
    fn folder(&mut self, name: &Path, permissions: Option<Permissions>) -> Result<(), RecoverError> {
        self.add(name, true);
        let path = self.root.join(name);
        self.clear(&path, true)?;
        if !self.way.is_applied {
            return Ok(());
        }
        private::create_folders(&path).map_err(RecoverError::io("create", &path))?;
        let set = permissions.map_or(Ok(()), |permissions| fs::set_permissions(&path, permissions));
        set.map_err(RecoverError::io("write", &path))
    }

    fn file(&mut self, name: &Path, size: u64, content: &mut dyn Read) -> Result<(), RecoverError> {
        let path = self.root.join(name);
        if self.names.contains_key(name) {
            let problem = format!("expected each file once, found {} twice", name.display());
            return Err(RecoverError::io("write", &path)(crate::error::invalid(problem)));
        }
        if let Some(above) = name.parent().filter(|above| !self.names.contains_key(*above)) {
            self.folder(above, None)?;
        }
        self.add(name, false);
        self.clear(&path, false)?;
        let amounts = bring_file(&path, size, None, content, self.way.is_applied)
            .map_err(RecoverError::io("write", &path))?;
        self.amounts.add(amounts);
        (self.done)(size);
        Ok(())
    }

    fn existing(&self) -> Option<&Path> {
        Some(self.root)
    }
}

/// Brings a file to a content of `size` bytes, and writes only pages that differ.
fn bring_file(
    path: &Path,
    size: u64,
    permissions: Option<Permissions>,
    content: &mut dyn Read,
    is_applied: bool,
) -> io::Result<DeltaAmounts> {
    let (mut amounts, mut offset) = (DeltaAmounts::default(), 0_u64);
    let target = open_existing(path, is_applied)?;
    let length = target.as_ref().map_or(Ok(0), |file| file.metadata().map(|metadata| metadata.len()))?;
    let target = match (target, is_applied) {
        (None, true) => Some(OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?),
        (target, _) => target,
    };
    let (mut new, mut old) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    while offset < size {
        let wanted = usize::try_from(size - offset).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let new = &mut new[..wanted];
        content.read_exact(new).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => cut_off(),
            _ => error,
        })?;
        let found = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(wanted);
        let old = &mut old[..found];
        if let Some(file) = target.as_ref().filter(|_| found > 0) {
            file.read_exact_at(old, offset)?;
        }
        let mut at = 0;
        while at < wanted {
            let is_same = |from: usize| {
                let to = (from + PAGE_BYTES).min(wanted);
                old.get(from..to).is_some_and(|old| old == &new[from..to])
            };
            let (from, same) = (at, is_same(at));
            while at < wanted && is_same(at) == same {
                at = (at + PAGE_BYTES).min(wanted);
            }
            match same {
                true => amounts.kept_bytes += (at - from) as u64,
                false => {
                    amounts.written_bytes += (at - from) as u64;
                    if let Some(file) = target.as_ref().filter(|_| is_applied) {
                        file.write_all_at(&new[from..at], offset + from as u64)?;
                    }
                }
            }
        }
        offset += wanted as u64;
    }
    if content.read(&mut [0])? != 0 {
        return Err(crate::error::invalid(format!("expected {size} bytes, found more")));
    }
    amounts.removed_bytes = length.saturating_sub(size);
    if let Some(file) = target.filter(|_| is_applied) {
        if length > size {
            file.set_len(size)?;
        }
        let differs = |wanted: &Permissions| {
            file.metadata().is_ok_and(|found| found.permissions().mode() != wanted.mode())
        };
        if let Some(permissions) = permissions.filter(differs) {
            file.set_permissions(permissions)?;
        }
    }
    Ok(amounts)
}

/// Opens a file to compare it. One with other names is removed if it is to be written.
fn open_existing(path: &Path, is_applied: bool) -> io::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    match OpenOptions::new().read(true).write(is_applied).custom_flags(flags).open(path) {
        // Without writing, other objects than files were not removed.
        Ok(file) if !file.metadata()?.is_file() => Ok(None),
        Ok(file) if file.metadata()?.nlink() > 1 => {
            if is_applied {
                fs::remove_file(path)?;
            }
            Ok(None)
        }
        Ok(file) => Ok(Some(file)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks that a folder has no links except those to the tablespaces, and no archive.
fn expect_own_files(
    root: &Path,
    inside: &Path,
    tablespaces: &[MappedTablespace],
) -> Result<(), RecoverError> {
    let refuse =
        |expected, found, hint| Err(RecoverError::Existing { path: root.to_owned(), expected, found, hint });
    for path in read_folder(&root.join(inside))? {
        let kind = path.symlink_metadata().map_err(RecoverError::io("read", &path))?;
        let name = inside.join(path.file_name().unwrap_or_default());
        if kind.is_dir() {
            expect_own_files(root, &name, tablespaces)?;
        } else if kind.is_symlink() {
            let found = || format!("the link {}", name.display());
            if inside != Path::new("pg_tblspc") {
                let hint = "replace the link by an empty folder or remove it: the restore does not write where it leads to";
                return refuse("files and folders", found(), hint);
            }
            let is_mapped = |it: &MappedTablespace| {
                it.oid().is_some_and(|oid| name.ends_with(oid.to_string())) && it.is_linked_from(root)
            };
            if !tablespaces.iter().any(is_mapped) {
                let hint = "name the folder that it leads to with --tablespace-mapping OLD=NEW, or remove the link if the backup does not have the tablespace";
                return refuse("links to the folders of --tablespace-mapping", found(), hint);
            }
        } else if path.file_name() == Some(OsStr::new("archive.json")) {
            let hint =
                "move the archive elsewhere: the restore removes files that the base backup does not have";
            return refuse("the files of a server", format!("an archive: {}", name.display()), hint);
        }
    }
    Ok(())
}

fn read_folder(folder: &Path) -> Result<Vec<PathBuf>, RecoverError> {
    let entries = fs::read_dir(folder).map_err(RecoverError::io("read", folder))?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(RecoverError::io("read", folder))).collect()
}

/// Whether a file is missing, or the folder above it.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Resolves the links of a path whose last parts may be missing.
fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

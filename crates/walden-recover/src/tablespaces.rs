//! Tablespaces in folders outside of the data directory: those of a base backup, and those that WAL creates.
//!
//! `pg_tblspc` has a link to each of them. A restore never writes into the folders of the backup or those
//! that WAL names, which may be those of the original server: each tablespace needs a new folder.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use crate::base::{BaseBackup, Tablespace};
use crate::copy::{give_to, synchronize};
use crate::error::RecoverError;
use crate::existing::ExistingDirectory;
use crate::private;
use crate::work_folder::{MARK, WorkFolder, expect_free_folder, remove_partial};

/// A folder of tablespaces and its new folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedTablespace {
    /// Tablespace of the base backup; `None` for tablespaces that WAL creates in the old folder.
    tablespace: Option<Tablespace>,
    old: PathBuf,
    new: PathBuf,
    /// The text of the link, if it is not the new folder.
    link: Option<PathBuf>,
}

/// Finds the new folder of each tablespace of a base backup, and adds the other new folders, for tablespaces
/// that WAL creates. `mapping` has old and new folders, as `pg_basebackup --tablespace-mapping` has.
///
/// # Errors
/// A tablespace of the base backup is not mapped, or a new folder is in use. The folder to which the data
/// directory `over` links for the same tablespace may have files; that directory is not of the backup's
/// cluster, or has WAL that waits for the archiver.
pub fn map_tablespaces(
    base: &BaseBackup,
    mapping: &[(PathBuf, PathBuf)],
    over: Option<&ExistingDirectory>,
) -> Result<Vec<MappedTablespace>, RecoverError> {
    if let Some(over) = over {
        over.expect_replaceable(base.system_identifier())?;
    }
    let is_of = |tablespace: &Tablespace, old: &Path| {
        tablespace.folder == old || fs::canonicalize(old).is_ok_and(|old| old == tablespace.folder)
    };
    let of_base = base.tablespaces.iter().map(|tablespace| {
        let found = mapping.iter().find(|(old, _)| is_of(tablespace, old));
        let Tablespace { oid, folder } = tablespace;
        found
            .map(|folders| (Some(tablespace), folders))
            .ok_or_else(|| RecoverError::Unmapped { oid: *oid, folder: folder.clone() })
    });
    let others = mapping.iter().filter(|(old, _)| !base.tablespaces.iter().any(|it| is_of(it, old)));
    let mut mapped: Vec<MappedTablespace> = Vec::new();
    for wanted in of_base.chain(others.map(|folders| Ok((None, folders)))) {
        let (tablespace, (old, new)) = wanted?;
        let new = std::path::absolute(new).map_err(RecoverError::io("use", new))?;
        if let Some(other) = mapped.iter().find(|it| it.new.starts_with(&new) || new.starts_with(&it.new)) {
            let found = format!("the new folder of {}", other.old.display());
            return Err(RecoverError::Target { path: new, found, hint: "name a folder for each tablespace" });
        }
        let one = MappedTablespace { tablespace: tablespace.cloned(), old: old.clone(), new, link: None };
        if !over.is_some_and(|over| one.is_linked_from(over.path())) {
            expect_free_folder(&one.new)?;
        }
        if !one.new.parent().is_some_and(Path::is_dir) {
            let found = "no directory above it".to_owned();
            return Err(RecoverError::Target { path: one.new, found, hint: "create the directory above it" });
        }
        mapped.push(one);
    }
    Ok(mapped)
}

/// Maps the tablespaces of a base backup to folders in a work folder.
pub fn tablespaces_in(base: &BaseBackup, work: &WorkFolder) -> Vec<MappedTablespace> {
    let map = |tablespace: &Tablespace| MappedTablespace {
        tablespace: Some(tablespace.clone()),
        old: tablespace.folder.clone(),
        new: work.path().join(tablespace.oid.to_string()),
        link: None,
    };
    base.tablespaces.iter().map(map).collect()
}

/// Returns the new folder for a tablespace that WAL creates in a folder outside of the data directory.
pub(crate) fn new_folder_of<'m>(mapped: &'m [MappedTablespace], old: &[u8]) -> Option<&'m Path> {
    let old = std::str::from_utf8(old).ok().filter(|old| !old.is_empty())?;
    mapped.iter().find(|it| it.old == Path::new(old)).map(MappedTablespace::new_folder)
}

impl MappedTablespace {
    /// Maps a tablespace of a backup to a folder in `above`, which has the name `name` and is next to the new
    /// data directory.
    pub(crate) fn beside(tablespace: &Tablespace, above: &Path, name: &Path) -> MappedTablespace {
        let oid = tablespace.oid.to_string();
        MappedTablespace {
            old: tablespace.folder.clone(),
            new: above.join(&oid),
            link: Some(Path::new("../..").join(name).join(oid)),
            tablespace: Some(tablespace.clone()),
        }
    }

    /// Whether these include all tablespaces of a backup.
    pub(crate) fn are_all(mapped: &[MappedTablespace], base: &BaseBackup) -> bool {
        mapped.iter().filter_map(|it| it.tablespace.as_ref()).eq(&base.tablespaces)
    }

    /// The folder that only WAL may name.
    pub(crate) fn old_if_created(&self) -> Option<&Path> {
        self.tablespace.is_none().then_some(&self.old)
    }

    /// The tablespace of the base backup.
    pub(crate) fn of_base(&self) -> Option<&Tablespace> {
        self.tablespace.as_ref()
    }

    /// The OID of a tablespace of the base backup.
    pub fn oid(&self) -> Option<u32> {
        self.tablespace.as_ref().map(|tablespace| tablespace.oid)
    }

    /// Whether a data directory has this tablespace in the new folder.
    pub(crate) fn is_linked_from(&self, data: &Path) -> bool {
        let Some(oid) = self.oid() else { return false };
        let link = data.join("pg_tblspc").join(oid.to_string());
        let resolved = |path: &Path| fs::canonicalize(path).ok();
        link.is_symlink() && resolved(&link).is_some_and(|found| resolved(&self.new) == Some(found))
    }

    /// Creates the new folder in a data directory that may have the tablespace already. The link shows the
    /// next restore that the folder's files are those of the tablespace.
    pub(crate) fn create_over(&self, data: &Path) -> Result<(), RecoverError> {
        let Some(tablespace) = &self.tablespace else { return self.create(data, |_, _| Ok(())) };
        if self.is_linked_from(data) {
            return Ok(());
        }
        expect_free_folder(&self.new)?;
        remove_partial(&self.new).map_err(RecoverError::io("remove", &self.new))?;
        DirBuilder::new().mode(0o700).create(&self.new).map_err(RecoverError::io("create", &self.new))?;
        let link = data.join("pg_tblspc").join(tablespace.oid.to_string());
        symlink(&self.new, &link).map_err(RecoverError::io("create", &link))
    }

    /// The new folder.
    pub fn new_folder(&self) -> &Path {
        &self.new
    }

    /// Creates the new folder. Fills that of a tablespace of the backup by `copy`, and links to it from the
    /// new data directory.
    pub(crate) fn create(
        &self,
        data: &Path,
        copy: impl FnOnce(&Tablespace, &Path) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        // The plan takes long: files may have come into the folder since it was checked.
        expect_free_folder(&self.new)?;
        remove_partial(&self.new).map_err(RecoverError::io("remove", &self.new))?;
        DirBuilder::new().mode(0o700).create(&self.new).map_err(RecoverError::io("create", &self.new))?;
        let mark = self.mark();
        private::write(&mark, "").map_err(RecoverError::io("create", &mark))?;
        let Some(tablespace) = &self.tablespace else { return Ok(()) };
        copy(tablespace, &self.new)?;
        let link = data.join("pg_tblspc").join(tablespace.oid.to_string());
        symlink(self.link.as_ref().unwrap_or(&self.new), &link).map_err(RecoverError::io("create", &link))
    }

    /// Completes the copy after replay.
    pub(crate) fn finish(&self, owner: Option<(u32, u32)>) -> Result<(), RecoverError> {
        if let Some(owner) = owner {
            give_to(&self.new, owner)?;
        }
        synchronize(&self.new)
    }

    /// Removes the mark of an incomplete copy.
    pub(crate) fn unmark(&self) -> Result<(), RecoverError> {
        let mark = self.mark();
        match fs::remove_file(&mark) {
            // The tablespace was restored over an existing one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(RecoverError::io("remove", &mark)),
        }
    }

    /// Removes an incomplete copy.
    pub(crate) fn discard(&self) -> io::Result<()> {
        match self.mark().exists() {
            true => remove_partial(&self.new),
            false => Ok(()),
        }
    }

    fn mark(&self) -> PathBuf {
        self.new.join(MARK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_come_into_a_new_folder_before_the_copy_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new, data] = ["old", "new", "data/pg_tblspc"].map(|name| folder.path().join(name));
        [&old, &new, &data].into_iter().for_each(|path| fs::create_dir_all(path).unwrap());
        let data = folder.path().join("data");
        let tablespace = Some(Tablespace { oid: 16384, folder: old.clone() });
        let mapped = MappedTablespace { tablespace, old, new: new.clone(), link: None };
        fs::write(new.join("own"), "x").unwrap();
        let error = mapped.create(&data, |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("found one with files"), "{error}");
        mapped.discard().unwrap();
        assert_eq!(fs::read(new.join("own")).unwrap(), b"x");
        fs::remove_file(new.join("own")).unwrap();
        mapped.create(&data, |_, _| Ok(())).unwrap();
        assert_eq!(fs::read_link(data.join("pg_tblspc/16384")).unwrap(), new);
    }
}

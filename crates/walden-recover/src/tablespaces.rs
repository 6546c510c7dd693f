//! Tablespaces of a base backup in folders outside of it.
//!
//! `pg_tblspc` has a link to each of them. A restore never writes into the folders of the backup, which may
//! be those of the original server: each tablespace needs a new folder.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use crate::base::{BaseBackup, Tablespace};
use crate::copy::{give_to, synchronize};
use crate::error::RecoverError;
use crate::private;
use crate::work_folder::{MARK, expect_free_folder, remove_partial};

/// A tablespace and its new folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedTablespace {
    tablespace: Tablespace,
    new: PathBuf,
}

/// Finds the new folder of each tablespace of a base backup. `mapping` has old and new folders, as
/// `pg_basebackup --tablespace-mapping` has.
///
/// # Errors
/// A tablespace is not mapped, a mapping has no tablespace, or a new folder is in use.
pub fn map_tablespaces(
    base: &BaseBackup,
    mapping: &[(PathBuf, PathBuf)],
) -> Result<Vec<MappedTablespace>, RecoverError> {
    let is_of = |tablespace: &Tablespace, old: &Path| {
        tablespace.folder == old || fs::canonicalize(old).is_ok_and(|old| old == tablespace.folder)
    };
    let known =
        || base.tablespaces.iter().map(|it| it.folder.display().to_string()).collect::<Vec<_>>().join(", ");
    if let Some((old, _)) = mapping.iter().find(|(old, _)| !base.tablespaces.iter().any(|it| is_of(it, old)))
    {
        return Err(RecoverError::Mapping { old: old.clone(), found: known() });
    }
    let mut mapped: Vec<MappedTablespace> = Vec::new();
    for tablespace in &base.tablespaces {
        let Some((_, new)) = mapping.iter().find(|(old, _)| is_of(tablespace, old)) else {
            return Err(RecoverError::Unmapped { oid: tablespace.oid, folder: tablespace.folder.clone() });
        };
        let new = std::path::absolute(new).map_err(RecoverError::io("use", new))?;
        if let Some(other) = mapped.iter().find(|it| it.new.starts_with(&new) || new.starts_with(&it.new)) {
            let found = format!("the folder of the tablespace {}", other.tablespace.oid);
            return Err(RecoverError::Target { path: new, found, hint: "name a folder for each tablespace" });
        }
        expect_free_folder(&new)?;
        if !new.parent().is_some_and(Path::is_dir) {
            let found = "no directory above it".to_owned();
            return Err(RecoverError::Target { path: new, found, hint: "create the directory above it" });
        }
        mapped.push(MappedTablespace { tablespace: tablespace.clone(), new });
    }
    Ok(mapped)
}

impl MappedTablespace {
    /// Whether these are the tablespaces of a backup.
    pub(crate) fn are_all(mapped: &[MappedTablespace], base: &BaseBackup) -> bool {
        mapped.iter().map(|it| &it.tablespace).eq(&base.tablespaces)
    }

    /// The new folder.
    pub fn new_folder(&self) -> &Path {
        &self.new
    }

    /// Creates the new folder, fills it by `copy`, and links to it from the new data directory.
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
        copy(&self.tablespace, &self.new)?;
        let link = data.join("pg_tblspc").join(self.tablespace.oid.to_string());
        symlink(&self.new, &link).map_err(RecoverError::io("create", &link))
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
        fs::remove_file(&mark).map_err(RecoverError::io("remove", &mark))
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
        let mapped =
            MappedTablespace { tablespace: Tablespace { oid: 16384, folder: old }, new: new.clone() };
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

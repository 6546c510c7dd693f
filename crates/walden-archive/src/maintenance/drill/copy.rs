//! Copies a base backup so that a server running on the copy cannot affect the original.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;

use walden_recover::{BaseBackup, EMPTIED, LOGS, StreamedBackup};

use super::DrillError;
use super::error::{Context as _, Result};
use crate::restore::base::{is_tar, unpack};

/// Files that are left out because they would configure the copy, which gets its own configuration, or
/// describe the original.
const LEFT_OUT: &[&str] = &[
    "backup_manifest",
    "postmaster.pid",
    "postmaster.opts",
    "standby.signal",
    "recovery.signal",
    "tablespace_map",
    "postgresql.conf",
    "postgresql.auto.conf",
    "pg_hba.conf",
    "pg_ident.conf",
    "walden.toml",
];

/// Confirms that the links to tablespaces in a backup lead to folders.
pub fn expect_tablespaces(base: &Path) -> Result<()> {
    let folder = base.join("pg_tblspc");
    if is_tar(base) || !folder.is_dir() {
        return Ok(());
    }
    let reading = || format!("cannot read tablespaces in {}", folder.display());
    for entry in fs::read_dir(&folder).with_context(reading)? {
        let link = entry.with_context(reading)?.path();
        let Ok(target) = fs::read_link(&link) else { continue };
        let found = match fs::metadata(&link) {
            Ok(found) if found.is_dir() => continue,
            Ok(_) => "no folder there".to_owned(),
            Err(error) => error.to_string(),
        };
        return Err(DrillError::refused(format!(
            "cannot restore {}: expected the link {} to lead to the tablespace's folder {}, found: {found}",
            base.display(),
            link.display(),
            target.display()
        ))
        .with_hint(
            "put the backup of the tablespace there, or let the link lead to where it is (ln -sfn FOLDER LINK); pg_basebackup \
             --tablespace-mapping and --format=tar keep tablespaces with the backup",
        ));
    }
    Ok(())
}

/// A backup that is copied.
#[derive(Clone, Copy)]
pub enum Source<'s> {
    /// A folder or tar file.
    Path(&'s Path),
    /// One of an archive.
    Stored(&'s StreamedBackup),
}

/// Copies a backup to `data`, and its tablespaces into folders in `tablespaces`. `copied` gets the bytes
/// copied so far.
pub fn copy_backup(
    source: Source<'_>,
    data: &Path,
    tablespaces: &Path,
    copied: &mut dyn FnMut(u64),
) -> Result<()> {
    make_folder(data)?;
    make_folder(tablespaces)?;
    let mut copying = Copying { bytes: 0, copied };
    let is_unpacked = match source {
        Source::Path(base) if !is_tar(base) => {
            copying.folder(base, data, true)?;
            false
        }
        Source::Path(base) => {
            unpack(base, data)?;
            true
        }
        Source::Stored(backup) => {
            BaseBackup::unpack_streamed(backup, data, |bytes| {
                copying.bytes += bytes;
                (copying.copied)(copying.bytes);
            })?;
            true
        }
    };
    for name in LEFT_OUT.iter().filter(|_| is_unpacked) {
        // Most backups contain only some of these files.
        let _ = fs::remove_file(data.join(name));
    }
    EMPTIED.iter().chain(&LOGS).try_for_each(|name| make_empty(&data.join(name)))?;
    let own = match source {
        Source::Path(base) => Some(base.join("pg_tblspc")),
        Source::Stored(_) => None,
    };
    copying.tablespaces(own.as_deref(), &data.join("pg_tblspc"), tablespaces)?;
    // A server refuses a data directory that other users can access.
    fs::set_permissions(data, fs::Permissions::from_mode(0o700)).context("cannot restrict the copy")
}

fn make_folder(folder: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot make {}", folder.display()))
}

fn make_empty(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    make_folder(folder)
}

struct Copying<'c> {
    bytes: u64,
    copied: &'c mut dyn FnMut(u64),
}

impl Copying<'_> {
    /// Copies the content of a folder. Refuses symbolic links, which would lead to files of the original.
    fn folder(&mut self, from: &Path, to: &Path, is_data_directory: bool) -> Result<()> {
        let copying = || format!("cannot copy {} to {}", from.display(), to.display());
        make_folder(to)?;
        for entry in fs::read_dir(from).with_context(copying)? {
            let name = entry.with_context(copying)?.file_name();
            let (source, target) = (from.join(&name), to.join(&name));
            let text = name.to_str().unwrap_or_default();
            if is_data_directory && LEFT_OUT.contains(&text) {
                continue;
            }
            // If pg_wal of the server is a link, the link in the backup may lead nowhere.
            if is_data_directory && EMPTIED.iter().chain(&LOGS).any(|emptied| *emptied == text) {
                continue;
            }
            let found = fs::symlink_metadata(&source);
            let found = found.with_context(|| format!("cannot copy {}", source.display()))?;
            if found.is_symlink() {
                return Err(DrillError::refused(format!(
                    "cannot restore {}: expected files and folders, found the link {}",
                    from.display(),
                    source.display()
                ))
                .with_hint("replace the link by its destination"));
            }
            if !found.is_dir() {
                if found.is_file() {
                    fs::copy(&source, &target).with_context(copying)?;
                    self.bytes += found.len();
                    (self.copied)(self.bytes);
                }
            } else if is_data_directory && text == "pg_tblspc" {
                make_folder(&target)?;
            } else {
                self.folder(&source, &target, false)?;
            }
        }
        Ok(())
    }

    /// Gives each tablespace a separate folder in the copy. A backup contains links to the tablespaces, or,
    /// if unpacked from tar, the folders themselves.
    fn tablespaces(&mut self, from: Option<&Path>, to: &Path, own: &Path) -> Result<()> {
        let reading = || format!("cannot read tablespaces in {}", from.unwrap_or(to).display());
        make_folder(to)?;
        for entry in fs::read_dir(to).with_context(reading)? {
            let unpacked = entry.with_context(reading)?;
            let folder = own.join(unpacked.file_name());
            fs::rename(unpacked.path(), &folder).with_context(reading)?;
            symlink(&folder, unpacked.path()).with_context(reading)?;
        }
        let Some(from) = from.filter(|from| from.is_dir()) else { return Ok(()) };
        for entry in fs::read_dir(from).with_context(reading)? {
            let name = entry.with_context(reading)?.file_name();
            let (location, folder) = (from.join(&name), own.join(&name));
            make_folder(&folder)?;
            // A server uses only its version's subfolder. Other entries, including other tablespaces, do not
            // belong to this one.
            for inside in fs::read_dir(&location).with_context(reading)? {
                let inside = inside.with_context(reading)?.file_name();
                if inside.to_string_lossy().starts_with("PG_") {
                    self.folder(&location.join(&inside), &folder.join(&inside), false)?;
                }
            }
            symlink(&folder, to.join(&name)).with_context(reading)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (base, tablespace) = (root.path().join("base"), root.path().join("tablespace"));
        fs::create_dir_all(base.join("pg_tblspc")).unwrap();
        expect_tablespaces(&base).unwrap();
        let link = base.join("pg_tblspc/16400");
        symlink(&tablespace, &link).unwrap();
        let expect_refused = |found: &str| {
            let error = expect_tablespaces(&base).unwrap_err().to_string();
            for part in [link.to_str().unwrap(), tablespace.to_str().unwrap(), found] {
                assert!(error.contains(part), "{error}");
            }
        };
        expect_refused("No such file");
        fs::write(&tablespace, "").unwrap();
        expect_refused("no folder there");
        fs::remove_file(&tablespace).unwrap();
        fs::create_dir(&tablespace).unwrap();
        expect_tablespaces(&base).unwrap();
        // A link would lead to the running server's files.
        fs::create_dir(base.join("base")).unwrap();
        symlink(&tablespace, base.join("base/16392")).unwrap();
        let linked = copy_backup(
            Source::Path(&base),
            &root.path().join("linked"),
            &root.path().join("own1"),
            &mut |_| {},
        );
        assert!(linked.unwrap_err().to_string().contains("found the link"));
        fs::remove_file(base.join("base/16392")).unwrap();
        // The copy has an empty pg_wal, wherever that of the original was.
        symlink(root.path().join("lost"), base.join("pg_wal")).unwrap();
        let data = root.path().join("copy");
        copy_backup(Source::Path(&base), &data, &root.path().join("own"), &mut |_| {}).unwrap();
        assert_eq!(fs::read_dir(data.join("pg_wal")).unwrap().count(), 0);
    }

    #[test]
    fn a_copy_has_its_own_tablespaces_and_nothing_that_configures_it() {
        let root = tempfile::tempdir().unwrap();
        let (base, elsewhere) = (root.path().join("base"), root.path().join("elsewhere"));
        for folder in
            ["global", "base/5", "pg_tblspc", "pg_wal/archive_status", "pg_replslot/slot", "pg_notify"]
        {
            fs::create_dir_all(base.join(folder)).unwrap();
        }
        fs::create_dir_all(elsewhere.join("PG_18_1/5")).unwrap();
        fs::write(elsewhere.join("PG_18_1/5/7"), "page").unwrap();
        fs::create_dir_all(elsewhere.join("nested/PG_18_1/5")).unwrap();
        symlink(&elsewhere, base.join("pg_tblspc/16400")).unwrap();
        for file in ["PG_VERSION", "base/5/1259", "pg_wal/000000010000000000000001", "pg_replslot/slot/state"]
        {
            fs::write(base.join(file), "content").unwrap();
        }
        for file in LEFT_OUT {
            fs::write(base.join(file), "archive_cleanup_command = 'rm'").unwrap();
        }
        let (data, tablespaces) = (root.path().join("copy/data"), root.path().join("copy/tablespaces"));
        let mut bytes = 0;
        copy_backup(Source::Path(&base), &data, &tablespaces, &mut |copied| bytes = copied).unwrap();
        assert_eq!(fs::read_to_string(data.join("base/5/1259")).unwrap(), "content");
        assert_eq!(bytes, 7 + 7 + 4);
        assert!(LEFT_OUT.iter().all(|file| !data.join(file).exists()));
        assert_eq!(fs::read_dir(data.join("pg_wal")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(data.join("pg_replslot")).unwrap().count(), 0);
        assert_eq!(fs::read_link(data.join("pg_tblspc/16400")).unwrap(), tablespaces.join("16400"));
        assert!(!data.join("pg_tblspc/16400/nested").exists());
        fs::write(data.join("pg_tblspc/16400/PG_18_1/5/7"), "changed").unwrap();
        assert_eq!(fs::read_to_string(elsewhere.join("PG_18_1/5/7")).unwrap(), "page");
    }
}

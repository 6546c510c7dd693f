//! The base backup copied into the new data directory.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use walden_source::datadir::ControlFile;

use crate::destination::{Destination, NewFolder};
use crate::error::RecoverError;
use crate::originals::Originals;
use crate::work_folder::RENAME_MARK;

/// Folders whose content recovery does not need. `pg_basebackup` leaves most of them empty. `pg_wal` is
/// filled by `restore_command`; a restart point removes all files in `pg_logical` of a server without
/// replication slots (`CheckPointSnapBuild`, `CheckPointLogicalRewriteHeap`).
pub const EMPTIED: [&str; 10] = [
    "pg_wal",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
    "pg_logical/mappings",
    "pg_logical/snapshots",
];
/// Folders of the server's log. A backup need not have them, and pg_basebackup leaves out links to them.
pub const LOGS: [&str; 2] = ["log", "pg_log"];
/// The label of a base backup.
pub(crate) const LABEL: &str = "backup_label";
/// Files of the backup or of its server that a copy does not have. The manifest describes the old backup.
/// The copy has links to tablespaces instead of the map of a backup in tar format.
const LEFT_OUT: [&str; 6] = [
    "backup_manifest",
    "postmaster.pid",
    "postmaster.opts",
    "backup_label.old",
    "tablespace_map",
    RENAME_MARK,
];
/// Files that a new server does not have, in addition. Recovery makes the statistics of a stopped server
/// wrong; PostgreSQL removes them itself only if the server was not shut down (`pgstat_discard_stats`).
const LEFT_OUT_OF_SERVERS: [&str; 3] = ["standby.signal", "recovery.signal", "pg_stat/pgstat.stat"];

/// Whether a copy has only the folder and not its content.
pub(crate) fn is_emptied(folder: &Path) -> bool {
    EMPTIED.iter().any(|emptied| Path::new(emptied) == folder)
}

/// Whether a link is not copied, because it leads to the server's log.
pub(crate) fn is_left_out_link(name: &Path) -> bool {
    LOGS.iter().any(|log| Path::new(log) == name)
}

/// The error for a link that a copy cannot have: it would lead to the original's files.
pub(crate) fn refuse_link(base: &Path, name: &Path) -> RecoverError {
    RecoverError::Base {
        base: base.to_owned(),
        expected: "files and folders",
        found: format!("the link {}", name.display()),
        hint: "replace the link by its destination, or recover with PostgreSQL alone",
    }
}

/// Whether a file is not copied. `pg_control` is written last: PostgreSQL does not start without it.
pub(crate) fn is_left_out(name: &Path, is_server: bool) -> bool {
    let is_one = |left_out: &str| name == Path::new(left_out);
    is_one(ControlFile::PATH)
        || LEFT_OUT.into_iter().any(is_one)
        || is_server && LEFT_OUT_OF_SERVERS.into_iter().any(is_one)
}

/// A folder or file of a base backup that a copy has, by its path in the backup.
pub(crate) enum Entry<'e> {
    /// A folder, before its content.
    Folder(&'e Path, Permissions),
    /// A file, and where it is.
    File(&'e Path, PathBuf),
}

/// Calls `visit` for everything that a copy of a base backup in plain format has.
pub(crate) fn visit_backup(
    base: &Path,
    is_server: bool,
    visit: &mut dyn FnMut(Entry<'_>) -> Result<(), RecoverError>,
) -> Result<(), RecoverError> {
    visit_folder(base, Path::new(""), &|name| is_left_out(name, is_server), visit)
}

/// Calls `visit` for the folders and files of a tablespace.
pub(crate) fn visit_tablespace(
    folder: &Path,
    visit: &mut dyn FnMut(Entry<'_>) -> Result<(), RecoverError>,
) -> Result<(), RecoverError> {
    visit_folder(folder, Path::new(""), &|_| false, visit)
}

/// Copies a base backup. `done` gets the bytes of each file. On file systems with reference links, the copy
/// shares the blocks of the backup until they are changed ([`fs::copy`] calls `copy_file_range`). With
/// `later`, adds relation files to it instead.
pub(crate) fn copy_backup(
    base: &Path,
    data: &Path,
    is_server: bool,
    later: Option<&Originals>,
    done: &mut dyn FnMut(u64),
) -> Result<(), RecoverError> {
    let later = later.map(|originals| (originals, data));
    visit_backup(base, is_server, &mut |entry| copy_entry(data, entry, later, done))
}

/// Copies the files and folders of a tablespace. With `later`, adds relation files to it instead, in a folder
/// of the new data directory.
pub(crate) fn copy_tree(
    from: &Path,
    to: &Path,
    later: Option<(&Originals, &Path)>,
    done: &mut dyn FnMut(u64),
) -> Result<(), RecoverError> {
    visit_tablespace(from, &mut |entry| copy_entry(to, entry, later, done))
}

fn copy_entry(
    data: &Path,
    entry: Entry<'_>,
    later: Option<(&Originals, &Path)>,
    done: &mut dyn FnMut(u64),
) -> Result<(), RecoverError> {
    match entry {
        Entry::Folder(name, permissions) => NewFolder { root: data, done }.folder(name, Some(permissions)),
        Entry::File(name, path) => {
            if let Some((originals, root)) = later.filter(|_| is_relation_file(name)) {
                originals.add(root.join(name), path);
                return Ok(());
            }
            let bytes = fs::copy(&path, data.join(name)).map_err(RecoverError::io("copy", &path))?;
            done(bytes);
            Ok(())
        }
    }
}

/// Returns whether a file of a data directory or a tablespace is one of a relation, by its path in it: replay
/// reads and writes it as `RelationFiles` does.
fn is_relation_file(name: &Path) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_in_database = || {
        let mut folders = name.parent().into_iter().flat_map(Path::components);
        let first = folders.next().and_then(|first| first.as_os_str().to_str());
        first
            .is_some_and(|first| ["base", "global", "pg_tblspc"].contains(&first) || first.starts_with("PG_"))
    };
    let Some(file) = name.file_name().and_then(|file| file.to_str()) else { return false };
    let (file, segment) = file.split_once('.').unwrap_or((file, "0"));
    let (relation, fork) = file.split_once('_').unwrap_or((file, "fsm"));
    is_number(relation) && is_number(segment) && ["fsm", "vm", "init"].contains(&fork) && is_in_database()
}

fn visit_folder(
    base: &Path,
    inside: &Path,
    is_left_out: &dyn Fn(&Path) -> bool,
    visit: &mut dyn FnMut(Entry<'_>) -> Result<(), RecoverError>,
) -> Result<(), RecoverError> {
    let from = base.join(inside);
    let metadata = fs::metadata(&from).map_err(RecoverError::io("read", &from))?;
    visit(Entry::Folder(inside, metadata.permissions()))?;
    if is_emptied(inside) {
        return Ok(());
    }
    for entry in fs::read_dir(&from).map_err(RecoverError::io("read", &from))? {
        let entry = entry.map_err(RecoverError::io("read", &from))?;
        let (name, path) = (inside.join(entry.file_name()), entry.path());
        let kind = entry.file_type().map_err(RecoverError::io("read", &path))?;
        if kind.is_symlink() && is_emptied(&name) {
            // A link to pg_wal becomes a folder.
            visit(Entry::Folder(&name, Permissions::from_mode(0o700)))?;
        } else if kind.is_dir() {
            visit_folder(base, &name, is_left_out, visit)?;
        } else if kind.is_file() {
            if !is_left_out(&name) {
                visit(Entry::File(&name, path))?;
            }
        } else if kind.is_symlink() && inside != Path::new("pg_tblspc") && !is_left_out_link(&name) {
            return Err(refuse_link(base, &name));
        }
    }
    Ok(())
}

/// Gives a folder and everything in it to another account.
pub(crate) fn give_to(folder: &Path, (user, group): (u32, u32)) -> Result<(), RecoverError> {
    let give = |path: &Path| {
        lchown(path, Some(user), Some(group)).map_err(RecoverError::io("change the owner of", path))
    };
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        give(&folder)?;
        for entry in fs::read_dir(&folder).map_err(RecoverError::io("read", &folder))? {
            let path = entry.map_err(RecoverError::io("read", &folder))?.path();
            match path.symlink_metadata().map_err(RecoverError::io("read", &path))?.is_dir() {
                true => folders.push(path),
                false => give(&path)?,
            }
        }
    }
    Ok(())
}

/// Synchronizes the file system that a folder is on. A data directory has thousands of files, and waiting for
/// each one takes much longer (`recovery_init_sync_method = syncfs`).
pub(crate) fn synchronize(folder: &Path) -> Result<(), RecoverError> {
    let file = File::open(folder).map_err(RecoverError::io("read", folder))?;
    let outcome = rustix::fs::syncfs(&file).map_err(std::io::Error::from);
    outcome.map_err(RecoverError::io("synchronize", folder))
}

/// Synchronizes a file or the entries of a folder.
pub(crate) fn synchronize_one(path: &Path) -> Result<(), RecoverError> {
    walden_source::sync(path).map_err(RecoverError::io("synchronize", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relation_files_are_those_of_databases() {
        for name in
            ["base/5/16384", "base/5/16384.12", "base/5/16384_vm.1", "global/1260_init", "PG_18_1/5/1_fsm"]
        {
            assert!(is_relation_file(Path::new(name)), "{name}");
        }
        for name in [
            "pg_xact/0000",
            "base/5/PG_VERSION",
            "base/5/pg_filenode.map",
            "base/5/t3_16384",
            "base/5/16384_vm_1",
            "base/5/16384.",
            "base/5/16384.x",
            "base/5/_vm",
            "16384",
            "pg_multixact/members/0000",
        ] {
            assert!(!is_relation_file(Path::new(name)), "{name}");
        }
    }
}

//! Checks whether a server's user may write into an archive's folders, as far as owners and modes show it.
//!
//! If a push fails for lack of permission, only the server's log has the cause. `status` and `check` run as
//! other users, whose own attempts prove nothing.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_archive::Archive;
use walden_archive::list;
use walden_archive::name::{ArchivedFile, BACKUP, HISTORY, WAL};
use walden_archive::status::QueuedFile;
use walden_format::lsn::SegmentName;
use walden_source::datadir::ControlFile;
use walden_watch::process::PostmasterFile;
use walden_watch::running::name_of;

/// A user and its groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    uid: u32,
    /// All of its groups; `None` if only `gid` is known.
    groups: Option<Vec<u32>>,
    gid: u32,
}

impl User {
    /// Returns the user of the server of a data directory: the user of its postmaster, else the owner of its
    /// files.
    pub fn for_data_directory(data: &Path) -> Option<User> {
        User::from_postmaster(data).or_else(|| {
            let found = fs::metadata(data.join(ControlFile::PATH)).ok()?;
            Some(User { uid: found.uid(), groups: None, gid: found.gid() })
        })
    }

    /// Returns the user of this process.
    pub fn own() -> User {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let groups = rustix::process::getgroups().ok();
        let groups = groups.map(|groups| groups.into_iter().map(rustix::process::Gid::as_raw).collect());
        User { uid, groups, gid }
    }

    fn from_postmaster(data: &Path) -> Option<User> {
        let pid = PostmasterFile::read(data).ok()?.pid?;
        // The process ID may be valid only inside a container, and denote another process here.
        let folder = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        if folder != fs::canonicalize(data).ok()? {
            return None;
        }
        User::parse_status(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    /// Parses `/proc/PID/status`, where the second number of a line is the effective ID.
    fn parse_status(status: &str) -> Option<User> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().map(|number| number.parse().ok()).collect()
        };
        let (uid, gid) = (*numbers("Uid:")?.get(1)?, *numbers("Gid:")?.get(1)?);
        Some(User { uid, groups: Some(numbers("Groups:")?), gid })
    }

    /// Returns whether the user has all of these permissions, as bits of one class. `None` if owner and mode
    /// do not decide it.
    fn may(&self, bits: u32, folder: &Path, found: &Metadata) -> Option<bool> {
        if self.uid == 0 {
            return Some(true);
        }
        let has = |shift: u32| found.mode() >> shift & bits == bits;
        if self.uid == found.uid() {
            return Some(has(6));
        }
        if has_access_list(folder) {
            return None;
        }
        match &self.groups {
            _ if self.gid == found.gid() => Some(has(3)),
            Some(groups) if groups.contains(&found.gid()) => Some(has(3)),
            None if has(3) != has(0) => None,
            _ => Some(has(0)),
        }
    }
}

/// Returns whether the folder has an access control list that the mode does not show.
fn has_access_list(folder: &Path) -> bool {
    let mut none: [u8; 0] = [];
    rustix::fs::getxattr(folder, "system.posix_acl_access", &mut none).is_ok_and(|bytes| bytes > 0)
}

/// A folder into which a server may not write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unwritable {
    /// The folder, its owner and mode, and the user.
    pub problem: String,
    /// The remedy.
    pub hint: String,
}

const WRITE_AND_SEARCH: u32 = 0o3;
const SEARCH: u32 = 0o1;

/// Finds a folder of the archive that prevents a server's user from archiving: the folder of the next
/// segment, of histories, or of backup history files. `queue` has the ready files. `None` if the archive is
/// not in a folder.
pub fn find_unwritable(archive: &Archive, queue: &[QueuedFile], user: &User) -> Option<Unwritable> {
    let root = archive.encrypted().inner().folder()?;
    let root = fs::canonicalize(root).ok()?;
    let next = next_folder(archive, queue);
    for key in [next.as_str(), HISTORY, BACKUP] {
        let folder = deepest(&root, Path::new(key));
        for above in folder.ancestors().skip(1) {
            let found = fs::metadata(above).ok()?;
            if user.may(SEARCH, above, &found) == Some(false) {
                return Some(describe(above, &found, user, "cannot enter"));
            }
        }
        let found = fs::metadata(&folder).ok()?;
        if user.may(WRITE_AND_SEARCH, &folder, &found) == Some(false) {
            return Some(describe(&folder, &found, user, "cannot write into"));
        }
    }
    None
}

/// Returns the folder, as a key, of the segment that the server archives next.
fn next_folder(archive: &Archive, queue: &[QueuedFile]) -> String {
    let ready =
        queue.iter().map(|queued| queued.file).filter(|file| matches!(file, ArchivedFile::Segment(_)));
    let after_newest = || {
        let size = archive.segment_size().ok()?;
        let newest = list::newest_segment(archive).ok()??;
        Some(ArchivedFile::Segment(SegmentName::new(newest.timeline, newest.number(size)? + 1, size)))
    };
    let next = ready.min_by_key(|file| file.archiving_order()).or_else(after_newest);
    next.and_then(|file| Some(file.key().rsplit_once('/')?.0.to_owned())).unwrap_or_else(|| WAL.to_owned())
}

/// Returns the deepest existing folder on the way to a key; the first object creates those below it.
fn deepest(root: &Path, key: &Path) -> PathBuf {
    // Prefixes end with a slash.
    let mut ways = key.ancestors().map(|way| root.join(way.components().as_path()));
    ways.find(|folder| folder.is_dir()).unwrap_or_else(|| root.to_owned())
}

fn describe(folder: &Path, found: &Metadata, user: &User, what: &str) -> Unwritable {
    let (name, owner) = (name_of(user.uid), name_of(found.uid()));
    let (path, uid) = (folder.display(), user.uid);
    let problem = format!(
        "the user {name} (uid {uid}) {what} the archive's folder {path}: owner {owner} (uid {}), group {}, mode {:04o}",
        found.uid(),
        found.gid(),
        found.mode() & 0o7777
    );
    let hint = "the user that PostgreSQL runs as writes into the archive: give it the archive's folder (chown -R), with write permission there (chmod \
         u+wx) and access to all folders above";
    Unwritable { problem, hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use walden_archive::store::Folder;

    use super::*;

    /// A user that is neither root nor the owner of the folders of tests.
    const OTHER: u32 = 65_000;

    #[test]
    fn modes_and_groups_decide() {
        let folder = tempfile::tempdir().unwrap();
        let own = fs::metadata(folder.path()).unwrap();
        let may = |mode: u32, uid: u32, gid: u32, groups: Option<Vec<u32>>| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let found = fs::metadata(folder.path()).unwrap();
            User { uid, groups, gid }.may(WRITE_AND_SEARCH, folder.path(), &found)
        };
        let group = own.gid();
        assert_eq!(may(0o755, OTHER, OTHER, Some(vec![OTHER])), Some(false));
        assert_eq!(may(0o777, OTHER, OTHER, Some(vec![])), Some(true));
        assert_eq!(may(0o775, OTHER, OTHER, Some(vec![group])), Some(true));
        assert_eq!(may(0o775, OTHER, group, None), Some(true));
        // A member of unknown groups.
        assert_eq!(may(0o775, OTHER, OTHER, None), None);
        assert_eq!(may(0o755, OTHER, OTHER, None), Some(false));
        assert_eq!(may(0o000, 0, 0, None), Some(true));
    }

    #[test]
    fn the_folder_of_the_next_segment_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let wal = root.join("wal/00000001");
        fs::create_dir_all(&wal).unwrap();
        for path in [&root, &root.join("wal"), &wal] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let archive = Archive::new(Box::new(Folder::new(&root)));
        let file = ArchivedFile::parse("000000010000000200000007").unwrap();
        let queue = [QueuedFile { file, bytes: 16 << 20, since: std::time::SystemTime::now() }];
        let user = User { uid: OTHER, groups: Some(Vec::new()), gid: OTHER };
        assert_eq!(find_unwritable(&archive, &queue, &user), None);
        fs::set_permissions(&wal, fs::Permissions::from_mode(0o755)).unwrap();
        let found = find_unwritable(&archive, &queue, &user).unwrap().problem;
        let expected =
            format!("(uid {OTHER}) cannot write into the archive's folder {}: owner ", wal.display());
        assert!(found.contains(&expected) && found.ends_with("mode 0755"), "{found}");
        fs::set_permissions(root.join("wal"), fs::Permissions::from_mode(0o700)).unwrap();
        let found = find_unwritable(&archive, &queue, &user).unwrap().problem;
        assert!(found.contains("cannot enter") && found.ends_with("mode 0700"), "{found}");
    }

    #[test]
    fn the_user_of_a_process_is_read() {
        let status = "Name:\tpostgres\nUid:\t1\t101\t101\t101\nGid:\t1\t104\t104\t104\nGroups:\t103 104 \n";
        let user = User { uid: 101, groups: Some(vec![103, 104]), gid: 104 };
        assert_eq!(User::parse_status(status), Some(user));
        assert_eq!(User::parse_status(""), None);
    }
}

//! Errors of a missing permission, with the user that lacks it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Adds to an error of a missing permission the user of this process, and the owner and the mode of the file
/// or folder. Other errors stay as they are.
pub fn with_user(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let user = user_name(rustix::process::geteuid().as_raw());
    // Without permission to search its folder, the owner is unknown.
    let owner = fs::metadata(path).map_or_else(
        |_| String::new(),
        |found| format!("; the owner is {}, the mode {:04o}", user_name(found.uid()), found.mode() & 0o7777),
    );
    io::Error::new(error.kind(), format!("{error}: walden runs as user {user}{owner}"))
}

/// The name of a user, or the number of one that `/etc/passwd` does not have.
fn user_name(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_wanted = |line: &&str| line.split(':').nth(2).is_some_and(|field| field.parse() == Ok(uid));
    let name = users.lines().find(is_wanted).and_then(|line| line.split(':').next());
    name.map_or_else(|| uid.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_permission_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let text = |path: &Path, kind: io::ErrorKind| with_user(path, kind.into()).to_string();
        let user = user_name(rustix::process::geteuid().as_raw());
        let denied = text(&file, io::ErrorKind::PermissionDenied);
        assert!(
            denied.contains(&format!("walden runs as user {user}; the owner is {user}, the mode 06")),
            "{denied}"
        );
        let unknown = text(&folder.path().join("none"), io::ErrorKind::PermissionDenied);
        assert!(unknown.ends_with(&format!("walden runs as user {user}")), "{unknown}");
        assert!(!text(&file, io::ErrorKind::NotFound).contains("user"));
        assert_eq!((user_name(0), user_name(4_294_967_294)), ("root".into(), "4294967294".into()));
    }
}

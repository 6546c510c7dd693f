//! Detects archives inside a server's data directory, where every backup copies them and its loss destroys
//! them.

use std::iter;
use std::path::{Path, PathBuf};

use walden_archive::Archive;
use walden_output::{is_data_directory, resolve};
use walden_postgres::connection::Client;

/// Remedy.
pub const HINT: &str = "keep the archive in a folder outside of every data directory, on another disk or, better, another machine";

/// Describes the problem of an archive inside a data directory, which may be among `known`. `is_configured`
/// is set if the server's commands read the same place from `walden.toml`: to them, a relative path is
/// relative to the data directory, their working directory.
pub fn problem_of(archive: &Archive, known: &[PathBuf], is_configured: bool) -> Option<String> {
    let folder = archive.encrypted().inner().folder()?;
    let known: Vec<PathBuf> = known.iter().map(|data| resolve(data)).collect();
    let of_servers = known.iter().filter(|_| is_configured && folder.is_relative());
    let of_servers = of_servers.map(|data| ("for the server's commands, ", resolve(&data.join(folder))));
    iter::once(("", resolve(folder))).chain(of_servers).find_map(|(reader, place)| {
        let is_known = |above: &Path| known.iter().any(|data| data == above);
        let data = place.ancestors().find(|above| is_known(above) || is_data_directory(above))?;
        Some(format!(
            "{reader}{} is inside the data directory {}: every base backup would copy the archive too, and a loss of the data directory would destroy the archive with it",
            place.display(),
            data.display()
        ))
    })
}

/// Returns the data directory of a server on this machine, if the server reveals it to this user.
pub fn query(dsn: &str) -> Option<PathBuf> {
    let mut client = walden_postgres::connection::connect(dsn).ok()?;
    let row = client.query_one(DATA_DIRECTORY, &[]).ok()?;
    let is_here: bool = row.try_get(1).ok()?;
    let path: String = row.try_get(0).ok()?;
    is_here.then(|| path.into())
}

/// Returns whether a server runs on this machine.
pub fn is_here(client: &mut Client) -> bool {
    // Both addresses are null over a Unix socket.
    let row = client.query_one("SELECT inet_server_addr() IS NOT DISTINCT FROM inet_client_addr()", &[]);
    row.is_ok_and(|row| row.try_get(0).unwrap_or(false))
}

/// Needs `pg_read_all_settings`. Both addresses are null over a Unix socket.
const DATA_DIRECTORY: &str =
    "SELECT current_setting('data_directory'), inet_server_addr() IS NOT DISTINCT FROM inet_client_addr()";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use walden_archive::store::Folder;

    use super::*;

    #[test]
    fn an_archive_within_a_data_directory_is_known_by_whatever_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["main/global", "main/archive", "other", "backup"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        for name in ["main/PG_VERSION", "main/global/pg_control"] {
            fs::write(path(name), "").unwrap();
        }
        symlink(path("main"), path("link")).unwrap();
        symlink(path("backup"), path("main/elsewhere")).unwrap();
        let is_within = |place: &Path, known: &[PathBuf]| {
            let archive = Archive::new(Box::new(Folder::new(place)));
            problem_of(&archive, known, true).is_some()
        };
        // Recognized by its contents.
        for name in ["main", "main/archive", "main/not/there", "link/archive", "link/not/there"] {
            assert!(is_within(&path(name), &[]), "{name}");
        }
        // Outside, although a link inside a data directory may lead there.
        for name in ["backup", "backup/not/there", "main/elsewhere/archive", "main/../backup", "mainly"] {
            assert!(!is_within(&path(name), &[path("main")]), "{name}");
        }
        // Named explicitly, perhaps unreadable.
        assert!(!is_within(&path("other/archive"), &[]));
        assert!(is_within(&path("other/archive"), &[path("other")]));
        // Relative, as in the server's own commands.
        let relative = Path::new("walden-archive-of-a-test");
        assert!(!is_within(relative, &[]));
        assert!(is_within(relative, &[path("other")]));
        assert!(!is_within(&Path::new("..").join(relative), &[path("other")]));
        // Named by the user of this process.
        let archive = Archive::new(Box::new(Folder::new(relative)));
        assert_eq!(problem_of(&archive, &[path("other")], false), None);
    }
}

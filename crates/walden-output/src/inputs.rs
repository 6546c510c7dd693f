//! Files and folders that no command changes, with or without `--force`: the files and data directories that
//! it reads, and archives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_source::inventory::FileKind;
use walden_source::regular_file;

/// Device and inode of a file, which all its hard links share.
type FileId = (u64, u64);

/// Size limit in bytes: a longer file is not an archive's README or identity.
const MAX_DOCUMENT_BYTES: u64 = 1 << 20;

/// The files by which an archive in a folder is recognized, each with a text that it contains.
const MARKS: [(&str, &str); 2] = [
    ("archive.json", "walden_archive"),
    ("README.txt", "An archive of PostgreSQL's write-ahead log, written by Walden"),
];

/// Files and folders that a command reads.
#[derive(Default, Debug)]
pub struct Inputs {
    /// Files that were named individually.
    files: BTreeMap<FileId, PathBuf>,
    /// Folders of segments. New files may be written into them.
    folders: Vec<PathBuf>,
    /// Folders of individually named files: their other segments belong to the same WAL.
    beside: BTreeSet<PathBuf>,
    /// Folders into which nothing may be written; all links are resolved.
    closed: BTreeSet<PathBuf>,
}

impl Inputs {
    /// Collects the sources of WAL that paths name. Ignores URLs and connection strings.
    pub fn new<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Inputs {
        let mut inputs = Inputs::from_files(paths);
        let named = inputs.files.values().filter_map(|file| resolve(file).parent().map(Path::to_owned));
        inputs.beside = named.collect();
        inputs
    }

    /// Collects the inputs of a command that reads each file independently.
    pub fn from_files<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Inputs {
        let mut inputs = Inputs::default();
        let mut seen_folders = BTreeSet::new();
        for path in paths {
            let path = path.as_ref();
            let Ok(found) = fs::metadata(path) else { continue };
            let Ok(place) = fs::canonicalize(path) else { continue };
            let folder = if found.is_dir() {
                inputs.folders.push(place.clone());
                place
            } else {
                inputs.files.insert((found.dev(), found.ino()), path.to_owned());
                place.parent().map(Path::to_owned).unwrap_or_default()
            };
            if seen_folders.insert(folder.clone()) {
                inputs.close_server_folders(&folder);
            }
        }
        inputs
    }

    /// Closes the data directory that contains a folder, and the folders that its links lead to.
    fn close_server_folders(&mut self, folder: &Path) {
        let Some(data) = folder.ancestors().find(|above| is_data_directory(above)) else {
            // The target of the pg_wal link of a data directory.
            if is_pg_wal(folder) {
                self.closed.insert(folder.to_owned());
            }
            return;
        };
        self.closed.insert(data.to_owned());
        let tablespaces = fs::read_dir(data.join("pg_tblspc")).into_iter().flatten().flatten();
        let links = [data.join("pg_wal"), data.join("pg_xlog")];
        let links = links.into_iter().chain(tablespaces.map(|entry| entry.path()));
        self.closed.extend(links.filter_map(|link| fs::canonicalize(link).ok()));
    }

    /// Returns why a file must not be written: it is an input, or in a protected folder.
    pub fn find_conflict(&self, target: &Path) -> Option<String> {
        if let Some(closed) = self.find_closed_folder(target) {
            return Some(closed);
        }
        let place = resolve(target);
        let found = fs::metadata(target).ok().filter(fs::Metadata::is_file)?;
        match self.find_input((found.dev(), found.ino())) {
            Some(input) if resolve(&input) != place => {
                Some(format!("it is the same file as {}, a file of the source", input.display()))
            }
            Some(_) => Some("it is a file of the source".to_owned()),
            None => {
                let is_beside = place.parent().is_some_and(|folder| self.beside.contains(folder));
                (is_beside && is_source_name(&place)).then(|| "it is next to a file of the source".to_owned())
            }
        }
    }

    /// Describes the protected folder that contains a file, if there is one, with the reason.
    pub fn find_closed_folder(&self, file: &Path) -> Option<String> {
        let place = resolve(file);
        let folders = || place.ancestors().skip(1);
        if let Some(archive) = folders().find(|above| is_archive(above)) {
            return Some(format!("{} is an archive, which only walden archive changes", archive.display()));
        }
        let closed = folders().find(|above| self.closed.contains(*above))?;
        Some(format!("{} belongs to a server whose WAL is read", closed.display()))
    }

    /// Returns the input with this device and inode.
    fn find_input(&self, id: FileId) -> Option<PathBuf> {
        if let Some(path) = self.files.get(&id) {
            return Some(path.clone());
        }
        let mut seen = BTreeSet::new();
        let mut waiting = self.folders.clone();
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let Ok(found) = fs::metadata(&path) else { continue };
                let own = (found.dev(), found.ino());
                if found.is_dir() {
                    if seen.insert(own) {
                        waiting.push(path);
                    }
                } else if own == id && is_source_name(&path) {
                    return Some(path);
                }
            }
        }
        None
    }
}

/// Returns whether a file in a folder of segments is read as part of the source.
fn is_source_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    FileKind::from_name(&name) != FileKind::Other || path.extension().is_some_and(|ending| ending == "wlz")
}

/// Returns why no command may replace an existing file: it belongs to a server, or has the name of a WAL
/// segment.
pub fn find_protected(file: &Path) -> Option<String> {
    let place = resolve(file);
    let is_of_server = |above: &&Path| is_data_directory(above) || is_pg_wal(above);
    if let Some(folder) = place.ancestors().skip(1).find(is_of_server) {
        return Some(format!("it belongs to the server in {}", folder.display()));
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    matches!(FileKind::from_name(&name), FileKind::Segment { .. })
        .then(|| "its name is that of a WAL segment".to_owned())
}

/// Returns whether a folder is a data directory.
pub fn is_data_directory(folder: &Path) -> bool {
    ["PG_VERSION", "global/pg_control"].iter().all(|name| folder.join(name).is_file())
}

/// Returns whether a folder is the `pg_wal` of a data directory, possibly reached by a link.
fn is_pg_wal(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name == "pg_wal" || name == "pg_xlog")
        && folder.join("archive_status").is_dir()
}

/// Returns whether a folder is an archive. An archive has its documents before its identity. Other programs
/// may use the same file names, so this checks the content.
fn is_archive(folder: &Path) -> bool {
    MARKS.into_iter().any(|(name, part)| {
        let text = regular_file::read(&folder.join(name), MAX_DOCUMENT_BYTES).unwrap_or_default();
        text.windows(part.len()).any(|window| window == part.as_bytes())
    })
}

/// Resolves all links of a path. Its last components may not exist yet.
pub fn resolve(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let resolve = |above: &Path| {
        let resolved = fs::canonicalize(above).ok()?;
        // Collecting components removes a trailing separator.
        Some(resolved.join(path.strip_prefix(above).ok()?).components().collect())
    };
    path.ancestors().find_map(resolve).unwrap_or_else(|| path.clone())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const SEGMENT: &str = "000000010000000000000001";

    fn conflict_of(inputs: &[PathBuf], target: PathBuf) -> Option<String> {
        Inputs::new(inputs).find_conflict(&target)
    }

    #[test]
    fn a_segment_of_the_source_is_found_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("wal/older")).unwrap();
        for name in [&format!("wal/{SEGMENT}"), &format!("wal/older/{SEGMENT}.gz"), "wal/report.html"] {
            fs::write(path(name), name).unwrap();
        }
        let segment = path(&format!("wal/{SEGMENT}"));
        symlink(&segment, path("link")).unwrap();
        fs::hard_link(path(&format!("wal/older/{SEGMENT}.gz")), path("copy")).unwrap();
        let of_folder = |target| conflict_of(&[path("wal")], target);
        let of_file = |target| conflict_of(std::slice::from_ref(&segment), target);
        for target in [segment.clone(), path("wal/../link")] {
            assert!(of_folder(target.clone()).unwrap().contains("a file of the source"));
            assert!(of_file(target).unwrap().contains("a file of the source"));
        }
        assert!(of_folder(path("copy")).unwrap().contains("the same file as"));
        assert_eq!(of_file(path("copy")), None);
        // The arguments after a shell expands `-o wal/*`.
        let next = path("wal/000000010000000000000002");
        fs::write(&next, "next").unwrap();
        assert!(of_file(next.clone()).unwrap().contains("next to a file of the source"));
        assert_eq!(Inputs::from_files([&segment]).find_conflict(&next), None);
        for target in ["wal/report.html", "wal/new", "new", "not/there/new"] {
            assert_eq!(of_folder(path(target)), None, "{target}");
        }
    }

    #[test]
    fn a_data_directory_that_is_read_is_closed_with_what_it_links_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["data/global", "data/base/5", "data/pg_tblspc", "wal/archive_status", "space", "other"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        for name in ["data/PG_VERSION", "data/global/pg_control"] {
            fs::write(path(name), "").unwrap();
        }
        symlink(path("wal"), path("data/pg_wal")).unwrap();
        symlink(path("space"), path("data/pg_tblspc/16384")).unwrap();
        fs::write(path(&format!("wal/{SEGMENT}")), "").unwrap();
        symlink(path("data/base"), path("link")).unwrap();
        let within = ["data/new", "data/base/5/1259", "data/not/there", "wal/new", "space/new", "link/new"];
        for target in within {
            assert!(conflict_of(&[path("data")], path(target)).is_some(), "{target}");
        }
        assert_eq!(conflict_of(&[path("data")], path("other/new")), None);
        assert_eq!(conflict_of(&[path("other")], path("data/new")), None, "it is not read");
    }

    #[test]
    fn the_pg_wal_that_a_data_directory_links_to_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("disk/pg_wal/archive_status")).unwrap();
        fs::write(path(&format!("disk/pg_wal/{SEGMENT}")), "").unwrap();
        for input in [path("disk/pg_wal"), path(&format!("disk/pg_wal/{SEGMENT}"))] {
            assert!(
                conflict_of(std::slice::from_ref(&input), path("disk/pg_wal/new")).is_some(),
                "{input:?}"
            );
            assert_eq!(conflict_of(&[input], path("disk/new")), None);
        }
    }
}

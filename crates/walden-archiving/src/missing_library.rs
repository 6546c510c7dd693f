//! Finds that a server's `archive_library` is not installed. The server then ends its archiver, and reports
//! this in its log alone.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use walden_postgres::connection::Client;
use walden_source::configuration::Configuration;

use crate::data_directory;

/// Remedy.
pub const HINT: &str = "install the library there, or set archive_library = '' and an archive_command; the server starts its archiver again \
                        within a minute";
/// The file name extension of libraries, which settings may leave out.
const ENDING: &str = ".so";

/// Searches the folders of a server on this machine. Returns `None` if the library is there, or if this user
/// may not know: `pg_config` needs a superuser.
pub fn find(client: &mut Client, library: &str) -> Option<String> {
    const FOLDERS: &str = "SELECT current_setting('dynamic_library_path'), (SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR')";
    if library.is_empty() || !data_directory::is_here(client) {
        return None;
    }
    let row = client.query_one(FOLDERS, &[]).ok()?;
    let (path, own): (String, String) = (row.try_get(0).ok()?, row.try_get(1).ok()?);
    find_in(library, &path, Path::new(&own))
}

/// Finds the same by the settings in files, which do not have the server's own folder.
pub fn find_from_data(configuration: &Configuration) -> Option<String> {
    let library = configuration.get("archive_library").filter(|library| library.starts_with('/'))?;
    find_in(library, "", Path::new(""))
}

/// Searches as the server does (`expand_dynamic_library_name` in `dfmgr.c`).
fn find_in(library: &str, path: &str, own: &Path) -> Option<String> {
    let within = |text: &str| match text.strip_prefix("$libdir") {
        Some(rest) => PathBuf::from(format!("{}{rest}", own.display())),
        None => PathBuf::from(text),
    };
    let candidates: Vec<PathBuf> = match library.contains('/') {
        true => vec![within(library)],
        false => path.split(':').map(|folder| within(folder).join(library)).collect(),
    };
    let is_missing = |file: &Path| {
        let is_absent = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
        fs::metadata(file).is_err_and(|error| is_absent(error.kind()))
    };
    let with_ending = |file: &Path| PathBuf::from(format!("{}{ENDING}", file.display()));
    if !candidates.iter().all(|file| is_missing(file) && is_missing(&with_ending(file))) {
        return None;
    }
    let folders = candidates.iter().filter_map(|file| Some(file.parent()?.display().to_string()));
    let folders: Vec<String> = folders.collect();
    let name = Path::new(library).file_name()?.display().to_string();
    let name = name.strip_suffix(ENDING).unwrap_or(&name);
    Some(format!("archive_library is '{library}', and {} has no {name}{ENDING}", folders.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_searched_as_by_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&other).unwrap();
        let path = format!("{}:$libdir", other.display());
        let find = |library: &str| find_in(library, &path, &own);
        let folders = format!("{} or {}", other.display(), own.display());
        let expected = format!("archive_library is 'walden_archive', and {folders} has no walden_archive.so");
        assert_eq!(find("walden_archive"), Some(expected));
        assert!(find("$libdir/walden_archive").is_some() && find("/nowhere/walden_archive.so").is_some());
        fs::write(own.join("walden_archive.so"), "").unwrap();
        for library in ["walden_archive", "walden_archive.so", "$libdir/walden_archive"] {
            assert_eq!(find(library), None, "{library}");
        }
        assert_eq!(find(&own.join("walden_archive").display().to_string()), None);
        assert!(find("basic_archive").is_some());
    }
}

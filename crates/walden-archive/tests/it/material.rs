//! Real segments of PostgreSQL 14 to 18, and stores that fail.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use walden_archive::archive::Archive;
use walden_archive::store::Folder;

/// The segments of a version: names and bytes, consecutive.
pub fn segments(version: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .expect("golden segments")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "xz"))
        .map(|path| {
            let mut bytes = Vec::new();
            let file = fs::File::open(&path).expect("a segment");
            liblzma::read::XzDecoder::new(file).read_to_end(&mut bytes).expect("xz");
            (path.file_stem().expect("a name").to_string_lossy().into_owned(), bytes)
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no segments in {}", folder.display());
    found
}

/// Consecutive segments that a server would archive: complete ones.
pub fn complete() -> Vec<(String, Vec<u8>)> {
    let mut found = segments("18.6");
    found.truncate(2);
    found
}

/// A server's pg_wal with these segments, all ready to be archived.
pub fn pg_wal(root: &Path, segments: &[(String, Vec<u8>)]) -> PathBuf {
    let wal = root.join("pg_wal");
    fs::create_dir_all(wal.join("archive_status")).expect("a folder");
    for (name, bytes) in segments {
        fs::write(wal.join(name), bytes).expect("a segment");
        fs::write(wal.join("archive_status").join(format!("{name}.ready")), b"").expect("a mark");
    }
    wal
}

/// An archive in a folder.
pub fn archive(root: &Path) -> Archive {
    Archive::new(Box::new(Folder::new(root.join("archive"))))
}

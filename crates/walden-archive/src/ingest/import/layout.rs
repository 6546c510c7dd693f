//! Recognizes how other archivers store the files that PostgreSQL archived.
//!
//! ```text
//! plain       any folder with segments, possibly compressed; a server's pg_wal
//! pgbackrest  archive/STANZA/archive.info, archive/STANZA/15-1/0000000100000000/SEGMENT-SHA1.zst
//! wal-g       wal_005/SEGMENT.lz4
//! barman      SERVER/identity.json, SERVER/wals/xlog.db,
//!             SERVER/wals/0000000100000000/SEGMENT (possibly compressed, without a suffix)
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use walden_format::lsn::SegmentName;
use walden_format::page::{PageHeader, UnreadPageHeader};
use walden_format::stream::StreamInfo;
use walden_source::datadir::ControlFile;
use walden_source::regular_file;

use crate::objects::name::ArchivedFile;
use crate::restore::server::{system_id_beside, system_id_of_server};

/// A layout of archived files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Files under their own names, possibly with a compressor's suffix.
    Plain,
    /// A pgBackRest repository.
    Pgbackrest,
    /// A WAL-G storage.
    WalG,
    /// A server in a Barman home directory.
    Barman,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Plain => "plain files",
            Layout::Pgbackrest => "pgBackRest",
            Layout::WalG => "WAL-G",
            Layout::Barman => "Barman",
        })
    }
}

/// The contents of another archive.
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// Path of the archive.
    pub path: PathBuf,
    /// Layout of the archive.
    pub layout: Layout,
    /// System identifier of the cluster and the file that states it, if any.
    pub cluster: Option<(u64, String)>,
    /// Files that PostgreSQL archived: history files first, then by name.
    pub files: Vec<SourceFile>,
    /// Other files.
    pub ignored: Vec<Ignored>,
}

/// A file that PostgreSQL archived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// Kind and name of the file.
    pub file: ArchivedFile,
    /// Path of the file.
    pub path: PathBuf,
    /// Suffix of the compressor, without its dot.
    pub ending: Option<&'static str>,
    /// SHA-1 of the content, if the name contains it.
    pub sha1: Option<[u8; 20]>,
}

/// A file that is not imported.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Ignored {
    /// Path of the file.
    pub path: PathBuf,
    /// Why it is not imported.
    pub reason: &'static str,
}

/// Reasons for failing to find another archive's files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The file system failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path that could not be read.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// The path does not have the requested layout.
    #[error("cannot import {}: expected {expected}, found none", path.display())]
    Missing {
        /// Path of the import.
        path: PathBuf,
        /// Marker of the layout.
        expected: &'static str,
    },
    /// The source contains several clusters, and an archive stores the WAL of only one.
    #[error(
        "cannot choose what to import from {}: expected one cluster, found {}; name one of them",
        path.display(),
        found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Several {
        /// Path of the import.
        path: PathBuf,
        /// Paths that can be imported separately.
        found: Vec<PathBuf>,
    },
    /// No files belong to the archive's cluster.
    #[error("cannot import {}: expected system identifier {expected} in archive.info, found {}", path.display(), found.join(", "))]
    OtherCluster {
        /// Path of the import.
        path: PathBuf,
        /// System identifier of the archive.
        expected: String,
        /// System identifiers in the source.
        found: Vec<String>,
    },
    /// The source is encrypted.
    #[error(
        "cannot import {}: {} is encrypted {by}; let the program that stored it fetch the files into a folder, and import that",
        path.display(), file.display()
    )]
    Encrypted {
        /// Path of the import.
        path: PathBuf,
        /// File that shows the encryption.
        file: PathBuf,
        /// Method of encryption.
        by: String,
    },
}

/// Finds the files of another archive. `system_identifier` selects the cluster if it is known.
///
/// # Errors
/// The path cannot be read, contains several clusters, or does not have the requested layout.
pub fn find(
    path: &Path,
    layout: Option<Layout>,
    system_identifier: Option<&str>,
) -> Result<Source, LayoutError> {
    fs::metadata(path).map_err(|source| LayoutError::Read { path: path.to_owned(), source })?;
    let detected = || {
        let layouts = [Layout::Pgbackrest, Layout::WalG, Layout::Barman];
        layouts.into_iter().find(|layout| !roots(path, *layout).is_empty()).unwrap_or(Layout::Plain)
    };
    let layout = layout.unwrap_or_else(detected);
    let mut found = roots(path, layout);
    if layout == Layout::Pgbackrest && !found.is_empty() {
        found = clusters(path, found, system_identifier)?;
    }
    let root = match found.as_slice() {
        [root] => root.clone(),
        [] => return Err(LayoutError::Missing { path: path.to_owned(), expected: mark(layout) }),
        _ => return Err(LayoutError::Several { path: path.to_owned(), found }),
    };
    let cluster = stated_cluster(path, &root, layout)?;
    let mut search = Search { files: Vec::new(), ignored: Vec::new() };
    match layout {
        Layout::Barman => {
            // Files in `incoming` and `streaming` were acknowledged to PostgreSQL and wait for Barman's next
            // run.
            let server = root.parent().unwrap_or(&root).to_owned();
            search.walk(&root, DEPTH)?;
            for folder in ["incoming", "streaming"].map(|name| server.join(name)) {
                if folder.is_dir() {
                    search.walk(&folder, 0)?;
                }
            }
        }
        _ if root.is_file() => search.file(root.clone()),
        _ => search.walk(&root, DEPTH)?,
    }
    let Search { mut files, mut ignored } = search;
    files.sort_by_cached_key(|file| (file.file.archiving_order(), file.path.clone()));
    ignored.sort();
    Ok(Source { path: root, layout, cluster, files, ignored })
}

/// Returns the system identifier that the archiver, or the server that owns this `pg_wal`, recorded for a
/// root, and where it is recorded.
fn stated_cluster(path: &Path, root: &Path, layout: Layout) -> Result<Option<(u64, String)>, LayoutError> {
    let above = root.parent().unwrap_or(Path::new(""));
    Ok(match layout {
        Layout::Pgbackrest => {
            let number =
                root.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
            let identifiers = system_identifiers(path, &above.join(ARCHIVE_INFO))?;
            let identifier = number.and_then(|(_, number)| identifiers.get(number)?.parse().ok());
            identifier.map(|identifier| (identifier, ARCHIVE_INFO.to_owned()))
        }
        Layout::Barman => {
            let text = regular_file::read(&above.join(IDENTITY), MAX_IDENTITY_BYTES).unwrap_or_default();
            let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let identifier = json.get("systemid").and_then(|identifier| identifier.as_str()?.parse().ok());
            identifier.map(|identifier| (identifier, IDENTITY.to_owned()))
        }
        // A single file is treated like a pushed one.
        Layout::Plain if root.is_file() => {
            system_id_beside(root).map(|identifier| (identifier, "the files next to it".to_owned()))
        }
        Layout::Plain => {
            let system_id = if root.ends_with("pg_wal") { system_id_of_server(above) } else { None };
            system_id.map(|system_id| (system_id, ControlFile::PATH.to_owned()))
        }
        // Only base backups state the cluster, and one storage may contain base backups of several clusters.
        Layout::WalG => None,
    })
}

/// Barman's facts about a server (`write_identity_file` in `server.py`): `{"systemid": "7...", "version":
/// "15"}`.
const IDENTITY: &str = "identity.json";
const MAX_IDENTITY_BYTES: u64 = 1 << 20;

/// Maximum depth of folders below a root.
const DEPTH: u32 = 8;

/// Describes the marker of a layout.
fn mark(layout: Layout) -> &'static str {
    match layout {
        Layout::Plain => "a file or folder",
        Layout::Pgbackrest => "archive/STANZA/archive.info",
        Layout::WalG => "a folder wal_005",
        Layout::Barman => "SERVER/wals/xlog.db",
    }
}

/// Returns the folders that contain files of a layout, one for each cluster.
fn roots(path: &Path, layout: Layout) -> Vec<PathBuf> {
    match layout {
        Layout::Plain => {
            let wal = path.join("pg_wal");
            let is_data_directory = path.join("PG_VERSION").is_file() && wal.is_dir();
            vec![if is_data_directory { wal } else { path.to_owned() }]
        }
        Layout::WalG if path.file_name().is_some_and(|name| name == "wal_005") => vec![path.to_owned()],
        Layout::WalG => Some(path.join("wal_005")).filter(|wal| wal.is_dir()).into_iter().collect(),
        Layout::Barman => {
            let is_wals = |folder: &PathBuf| folder.join("xlog.db").is_file();
            let own = [path.to_owned(), path.join("wals")].into_iter().find(is_wals);
            let below = || subfolders(path).into_iter().map(|server| server.join("wals")).filter(is_wals);
            own.map_or_else(|| below().collect(), |own| vec![own])
        }
        Layout::Pgbackrest => {
            let is_stanza = |folder: &PathBuf| folder.join(ARCHIVE_INFO).is_file();
            let is_cluster = path.file_name().and_then(|name| name.to_str()).is_some_and(is_archive_id);
            let above = path.parent().map(Path::to_owned).filter(|_| is_cluster).filter(is_stanza);
            if above.is_some() || is_stanza(&path.to_owned()) {
                return vec![path.to_owned()];
            }
            let below = |folder: &Path| subfolders(folder).into_iter().filter(is_stanza).collect::<Vec<_>>();
            let found = below(path);
            if found.is_empty() { below(&path.join("archive")) } else { found }
        }
    }
}

const ARCHIVE_INFO: &str = "archive.info";

/// Matches the folder names of pgBackRest's clusters: `15-1`, `9.6-1`.
fn is_archive_id(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-')
        .is_some_and(|(version, number)| version.split('.').all(is_number) && is_number(number))
}

/// Returns the folders of the clusters in pgBackRest's stanzas, restricted to `system_identifier` if it is
/// known.
fn clusters(
    path: &Path,
    stanzas: Vec<PathBuf>,
    system_identifier: Option<&str>,
) -> Result<Vec<PathBuf>, LayoutError> {
    let (mut folders, mut found) = (Vec::new(), Vec::new());
    for stanza in stanzas {
        let own = stanza.file_name().and_then(|name| name.to_str()).is_some_and(is_archive_id);
        let info = match stanza.parent().filter(|_| own) {
            Some(above) => above.join(ARCHIVE_INFO),
            None => stanza.join(ARCHIVE_INFO),
        };
        let identifiers = system_identifiers(path, &info)?;
        let all = if own { vec![stanza] } else { subfolders(&stanza) };
        for folder in all {
            let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { continue };
            let Some((_, number)) = name.split_once('-').filter(|_| is_archive_id(name)) else { continue };
            let identifier = identifiers.get(number).cloned();
            if system_identifier.is_none()
                || identifier.is_none()
                || identifier.as_deref() == system_identifier
            {
                folders.push(folder);
            } else {
                found.extend(identifier);
            }
        }
    }
    match system_identifier {
        Some(expected) if folders.is_empty() && !found.is_empty() => {
            Err(LayoutError::OtherCluster { path: path.to_owned(), expected: expected.to_owned(), found })
        }
        _ => Ok(folders),
    }
}

/// Parses the system identifiers in an `archive.info`, keyed by the number at the end of the folder names.
fn system_identifiers(path: &Path, info: &Path) -> Result<BTreeMap<String, String>, LayoutError> {
    let text = read_start(info, 1 << 20)?;
    if text.starts_with(b"Salted__") {
        let by = "by pgBackRest (repo-cipher-type)".to_owned();
        return Err(LayoutError::Encrypted { path: path.to_owned(), file: info.to_owned(), by });
    }
    let text = String::from_utf8_lossy(&text);
    let history = text.lines().skip_while(|line| *line != "[db:history]").skip(1);
    let cluster = |line: &str| {
        let (number, json) = line.split_once('=')?;
        let json: serde_json::Value = serde_json::from_str(json).ok()?;
        Some((number.to_owned(), json.get("db-id")?.to_string()))
    };
    Ok(history.take_while(|line| !line.starts_with('[')).filter_map(cluster).collect())
}

fn read_start(path: &Path, bytes: u64) -> Result<Vec<u8>, LayoutError> {
    let mut start = Vec::new();
    let read = regular_file::open(path).and_then(|file| file.take(bytes).read_to_end(&mut start));
    read.map_err(|source| LayoutError::Read { path: path.to_owned(), source })?;
    Ok(start)
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

struct Search {
    files: Vec<SourceFile>,
    ignored: Vec<Ignored>,
}

impl Search {
    /// Walks a folder and its subfolders up to a depth.
    fn walk(&mut self, folder: &Path, depth: u32) -> Result<(), LayoutError> {
        let failed = |source| LayoutError::Read { path: folder.to_owned(), source };
        let is_pg_wal = folder.join("archive_status").is_dir();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Skips PostgreSQL's own folders and temporary files of Walden and others.
            let is_other = ["archive_status", "summaries"].contains(&&*name) || name.starts_with("walden-");
            if name.starts_with('.') || (kind.is_dir() && is_other) {
                continue;
            }
            if kind.is_dir() && depth > 0 {
                self.walk(&path, depth - 1)?;
            } else if path.is_file() {
                match is_pg_wal.then(|| unused(&path, &name)).flatten() {
                    Some(reason) => self.ignored.push(Ignored { path, reason }),
                    None => self.file(path),
                }
            } else {
                let reason = "neither a file nor a folder that import searches; name it directly";
                self.ignored.push(Ignored { path, reason });
            }
        }
        Ok(())
    }

    fn file(&mut self, path: PathBuf) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_received = path.parent().and_then(Path::file_name).is_some_and(|name| name == "streaming");
        match parse_name(&name) {
            Some((ArchivedFile::Partial(_), ..)) if is_received => {
                self.ignored.push(Ignored { path, reason: "not complete: pg_receivewal is writing it" });
            }
            Some((file, ending, sha1)) => self.files.push(SourceFile { file, path, ending, sha1 }),
            None => {
                let reason = match name.as_str() {
                    "xlog.db" => "Barman's list of segments",
                    _ if name.ends_with(".wpk") => "a pack; unpack it with walden decompress",
                    _ => "not a name of a file that PostgreSQL archives",
                };
                self.ignored.push(Ignored { path, reason });
            }
        }
    }
}

/// Suffixes of the known compressors.
const ENDINGS: [&str; 12] =
    ["gz", "gzip", "lz4", "zst", "zstd", "xz", "lzma", "bz2", "bzip2", "br", "brotli", "wlz"];

/// Parses a file name, a compressor's suffix, and the SHA-1 that pgBackRest adds to names.
#[expect(clippy::type_complexity, reason = "taken apart where it is called")]
fn parse_name(name: &str) -> Option<(ArchivedFile, Option<&'static str>, Option<[u8; 20]>)> {
    // pg_receivewal adds the compressor's suffix before `.partial`.
    if let Some((name, ending)) = name.strip_suffix(".partial").and_then(|name| name.rsplit_once('.')) {
        let ending = ENDINGS.into_iter().find(|one| *one == ending)?;
        return Some((ArchivedFile::Partial(SegmentName::parse(name)?), Some(ending), None));
    }
    let ending = |(_, after): &(&str, &str)| ENDINGS.into_iter().find(|ending| ending == after);
    let (name, ending) = match name.rsplit_once('.') {
        Some(parts) if ending(&parts).is_some() => (parts.0, ending(&parts)),
        _ => (name, None),
    };
    let (name, sha1) = match name.rsplit_once('-') {
        Some((name, digits)) => (name, Some(digest(digits)?)),
        None => (name, None),
    };
    Some((ArchivedFile::parse(name)?, ending, sha1))
}

fn digest(digits: &str) -> Option<[u8; 20]> {
    let mut digest = [0; 20];
    if digits.len() != 40 || !digits.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..40).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(digest)
}

/// Returns why a file in a server's `pg_wal` does not contain the WAL of its name: PostgreSQL creates and
/// renames segments in advance (`InstallXLogFileSegment` in `xlog.c`).
fn unused(path: &Path, name: &str) -> Option<&'static str> {
    let segment = SegmentName::parse(name)?;
    let start = read_start(path, 8 << 10).ok()?;
    if start.iter().all(|&byte| byte == 0) {
        return Some("preallocated, without WAL");
    }
    let (size, address) = match (StreamInfo::from_first_page(&start), PageHeader::parse(&start)) {
        (Ok(info), Ok(header)) => (info.segment_size, header.address),
        _ => {
            let header = UnreadPageHeader::parse(&start)?;
            (header.long?.segment_size()?, header.address)
        }
    };
    (address < segment.start(size)?).then_some("an earlier segment, recycled for later use")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_archiver_are_read() {
        let sha1 = "acbf05791c809507898b12cc897c17e10abe57f3";
        for (name, file, ending, has_sha1) in [
            ("000000010000000000000006", "000000010000000000000006", None, false),
            ("000000010000000000000006.lz4", "000000010000000000000006", Some("lz4"), false),
            (&format!("000000010000000000000006-{sha1}.zst"), "000000010000000000000006", Some("zst"), true),
            (
                &format!("00000001000000000000000A.partial-{sha1}"),
                "00000001000000000000000A.partial",
                None,
                true,
            ),
            ("000000010000000000000007.gz.partial", "000000010000000000000007.partial", Some("gz"), false),
            ("000000010000000000000007.lz4.partial", "000000010000000000000007.partial", Some("lz4"), false),
            ("00000002.history.br", "00000002.history", Some("br"), false),
            (
                "000000010000000000000009.00000028.backup.gz",
                "000000010000000000000009.00000028.backup",
                Some("gz"),
                false,
            ),
        ] {
            let (parsed, found, sha1) = parse_name(name).unwrap();
            assert_eq!(
                (parsed.to_string().as_str(), found, sha1.is_some()),
                (file, ending, has_sha1),
                "{name}"
            );
        }
        for name in [
            "xlog.db",
            "000000010000000000000000_delta.lz4",
            "000000010000000000000006-12.zst",
            "000000010000000000000007.old.partial",
            "archive.info",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn folders_of_clusters_are_recognised() {
        assert!(is_archive_id("15-1") && is_archive_id("9.6-12"));
        assert!(!is_archive_id("15") && !is_archive_id("15-") && !is_archive_id("main-1"));
    }
}

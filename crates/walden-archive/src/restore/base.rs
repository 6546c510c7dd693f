//! Reads where recovery from a base backup starts, and unpacks base backups.
//!
//! A base backup is a folder in plain format, a folder or file in the tar format of `pg_basebackup`, or the
//! data directory of a stopped server. The `backup_label` states the LSN at which the backup starts
//! (`build_backup_content` in `xlogbackup.c`), and the manifest states the LSN at which the backup becomes
//! consistent.

use std::fs;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use walden_format::lsn::{Lsn, Timeline};
use walden_recover::tar_backup::TAR_ENDINGS;
use walden_recover::{FolderLock, RecoverError};
use walden_source::datadir::{DataDir, DataDirError};
use walden_source::open::{Compression, SegmentReader, open_path};
use walden_source::tar_end::{CountedReader, end_of_entry, expect_end_block};
use walden_source::{regular_file, with_offsets};

use crate::objects::backup_files::{LABEL, Label, MANIFEST, Manifest, read_bounded};

/// Largest accepted label, in bytes.
const MAX_LABEL_BYTES: u64 = 1 << 20;
/// Reasons for rejecting a base backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseError {
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// The path is not a base backup.
    #[error("cannot use {} as a base backup: expected {expected}, found {found}", path.display())]
    NotOne {
        /// The path.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
        /// The actual content.
        found: String,
    },
    /// The data directory is unusable.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Another run replaces the backup, or it cannot be opened.
    #[error(transparent)]
    Locked(RecoverError),
}

walden_format::diagnostics! { BaseError {
    Self::Io { .. } => none,
    Self::NotOne { .. } => "backup-unusable",
    Self::DataDir(error) => of(error),
    Self::Locked(error) => of(error),
} }

impl BaseError {
    /// Replaces the path in the error by the name that the user knows, for example if an archived file was
    /// fetched to a temporary one.
    #[must_use]
    pub fn with_path(self, name: &Path) -> BaseError {
        let path = name.to_owned();
        match self {
            BaseError::Io { source, .. } => BaseError::Io { path, source },
            BaseError::NotOne { expected, found, .. } => BaseError::NotOne { path, expected, found },
            error @ (BaseError::DataDir(_) | BaseError::Locked(_)) => error,
        }
    }
}

/// The start of recovery from a base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupStart {
    /// LSN at which replay starts.
    pub start: Lsn,
    /// Timeline of the start.
    pub timeline: Option<Timeline>,
    /// LSN that replay must reach to make the files consistent, if known.
    pub end: Option<Lsn>,
    /// Timeline of this LSN, if known. A standby may follow its primary to another timeline during a backup.
    pub end_timeline: Option<Timeline>,
    /// System identifier of the cluster, if known.
    pub system_identifier: Option<u64>,
    /// Bytes of its segments, if they are known.
    pub segment_bytes: Option<u64>,
}

impl BackupStart {
    /// Reads the start from a folder, a tar file, a `backup_label`, a manifest, or a backup history file.
    ///
    /// # Errors
    /// The path is not one of these.
    pub fn read(path: &Path) -> Result<BackupStart, BaseError> {
        let found = fs::metadata(path).map_err(|source| BaseError::Io { path: path.to_owned(), source })?;
        if !found.is_dir() {
            return match compression_of(path) {
                Some(compression) => read_tar(path, compression),
                None => read_file(path),
            };
        }
        let mut start = match base_tar(path) {
            Some((tar, compression)) => read_tar(&tar, compression)?,
            None if path.join(LABEL).is_file() => read_file(&path.join(LABEL))?,
            None => read_data_directory(path)?,
        };
        if path.join(MANIFEST).is_file() {
            let manifest = read_file(&path.join(MANIFEST))?;
            if start.end.is_none() {
                (start.end, start.end_timeline) = (manifest.end, manifest.end_timeline);
            }
            start.system_identifier = start.system_identifier.or(manifest.system_identifier);
        }
        if let Ok(data) = DataDir::open(path) {
            start.system_identifier = Some(data.control().system_identifier);
            start.segment_bytes = Some(data.control().wal_segment_bytes.into());
        }
        Ok(start)
    }

    /// Parses a `backup_label` or a backup history file.
    ///
    /// # Errors
    /// The expected content that is missing.
    pub fn parse_label(text: &str) -> Result<BackupStart, &'static str> {
        let label = Label::parse(text.as_bytes());
        if label.is_incremental {
            return Err("a full backup (pg_combinebackup makes one of an incremental one)");
        }
        let expected = "a line \"START WAL LOCATION: LSN (file SEGMENT)\"";
        Ok(BackupStart {
            start: label.start.ok_or(expected)?,
            timeline: Some(label.timeline.ok_or(expected)?),
            end: label.stop,
            // PostgreSQL archives the end of a backup only for primaries, which stay on their timeline.
            end_timeline: label.stop.and(label.timeline),
            system_identifier: None,
            segment_bytes: None,
        })
    }

    fn from_manifest(manifest: &Manifest) -> Option<BackupStart> {
        let first = manifest.ranges.iter().min_by_key(|range| range.start)?;
        let last = manifest.ranges.iter().max_by_key(|range| (range.end, range.timeline))?;
        Some(BackupStart {
            start: first.start,
            timeline: Some(first.timeline),
            end: last.end,
            end_timeline: Some(last.timeline),
            system_identifier: manifest.system_identifier,
            segment_bytes: None,
        })
    }
}

fn read_file(path: &Path) -> Result<BackupStart, BaseError> {
    let io = |source| BaseError::Io { path: path.to_owned(), source };
    let mut file = BufReader::new(regular_file::open(path).map_err(io)?);
    let mut first = [0];
    let is_json = file.read(&mut first).map_err(io)? == 1 && first == *b"{";
    let mut content = first.chain(file);
    let not_one = |expected, found| BaseError::NotOne { path: path.to_owned(), expected, found };
    if is_json {
        let manifest =
            Manifest::read(content).map_err(|problem| not_one("an undamaged backup manifest", problem))?;
        return BackupStart::from_manifest(&manifest)
            .ok_or_else(|| not_one("a range of WAL in the manifest", "none".to_owned()));
    }
    let text = read_bounded(&mut content, MAX_LABEL_BYTES).map_err(io)?;
    let text = String::from_utf8_lossy(&text);
    let found = || text.lines().next().unwrap_or_default().chars().take(60).flat_map(char::escape_default);
    BackupStart::parse_label(&text).map_err(|expected| not_one(expected, found().collect()))
}

/// Reads a data directory. The files of a cleanly stopped server are consistent.
fn read_data_directory(path: &Path) -> Result<BackupStart, BaseError> {
    let data = DataDir::open(path)?;
    let control = data.control();
    if !control.state.is_shut_down() {
        return Err(BaseError::NotOne {
            path: path.to_owned(),
            expected: "a backup_label, or the data directory of a server that was stopped",
            found: format!("neither: its server was {}", control.state),
        });
    }
    Ok(BackupStart {
        start: control.redo,
        timeline: Some(control.timeline),
        end: None,
        end_timeline: None,
        system_identifier: Some(control.system_identifier),
        segment_bytes: Some(control.wal_segment_bytes.into()),
    })
}

fn compression_of(path: &Path) -> Option<Compression> {
    let name = path.file_name()?.to_str()?;
    TAR_ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, compression)| *compression)
}

/// Finds the tar file of the data directory itself in a backup in tar format.
fn base_tar(folder: &Path) -> Option<(PathBuf, Compression)> {
    let at = |(ending, compression): &(&str, Compression)| {
        let path = folder.join(format!("base{ending}"));
        path.is_file().then_some((path, *compression))
    };
    TAR_ENDINGS.iter().find_map(at)
}

fn open_tar(path: &Path, compression: Compression) -> Result<tar::Archive<SegmentReader>, BaseError> {
    let io = |source| BaseError::Io { path: path.to_owned(), source };
    Ok(tar::Archive::new(open_path(path, compression).map_err(io)?))
}

/// Reads the label from a tar file. `pg_basebackup` writes the label first.
fn read_tar(path: &Path, compression: Compression) -> Result<BackupStart, BaseError> {
    let io = |source| BaseError::Io { path: path.to_owned(), source };
    let not_one = |expected, found| BaseError::NotOne { path: path.to_owned(), expected, found };
    let mut archive = open_tar(path, compression)?;
    for entry in with_offsets(archive.entries().map_err(io)?) {
        let mut entry = entry.map_err(io)?;
        let name = entry.path().map_err(io)?.into_owned();
        if name.strip_prefix(".").unwrap_or(&name) != Path::new(LABEL) {
            continue;
        }
        let text = read_bounded(&mut entry, MAX_LABEL_BYTES).map_err(io)?;
        let text = String::from_utf8_lossy(&text);
        return BackupStart::parse_label(&text)
            .map_err(|expected| not_one(expected, "another backup_label".to_owned()));
    }
    Err(not_one("backup_label in the archive", "none".to_owned()))
}

/// Locks a backup that is read, so that `walden backup advance` does not replace or remove it meanwhile.
///
/// # Errors
/// Another run replaces it, or it cannot be opened.
pub fn lock(path: &Path) -> Result<FolderLock, BaseError> {
    FolderLock::shared(path).map_err(BaseError::Locked)
}

/// Returns whether a backup is in tar format and must be unpacked before its files can be read.
pub fn is_tar(path: &Path) -> bool {
    path.is_file() || base_tar(path).is_some()
}

/// Unpacks a backup in tar format: the data directory to `folder`, and tablespaces to folders in its
/// `pg_tblspc`. The backup's own WAL is omitted.
///
/// # Errors
/// The backup is damaged or not in tar format, or the file system failed.
pub fn unpack(path: &Path, folder: &Path) -> Result<(), BaseError> {
    let base = if path.is_file() {
        compression_of(path).map(|compression| (path.to_owned(), compression))
    } else {
        base_tar(path)
    };
    let (base, compression) = base.ok_or_else(|| BaseError::NotOne {
        path: path.to_owned(),
        expected: "base.tar, perhaps compressed by gzip, lz4 or zstd",
        found: "none".to_owned(),
    })?;
    unpack_one(&base, compression, folder)?;
    let beside = base.parent().unwrap_or(Path::new("."));
    let io = |source| BaseError::Io { path: beside.to_owned(), source };
    for entry in fs::read_dir(beside).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let Some(compression) = compression_of(&path) else { continue };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let tablespace: Option<u32> = name.split('.').next().and_then(|oid| oid.parse().ok());
        if let Some(oid) = tablespace {
            unpack_one(&path, compression, &folder.join("pg_tblspc").join(oid.to_string()))?;
        }
    }
    Ok(())
}

/// Unpacks a tar file. Omits links to tablespaces, because they point to the original's.
fn unpack_one(path: &Path, compression: Compression, folder: &Path) -> Result<(), BaseError> {
    let io = |source| BaseError::Io { path: path.to_owned(), source };
    fs::create_dir_all(folder).map_err(io)?;
    let content = open_path(path, compression).map_err(io)?;
    let (content, read) = CountedReader::new(content);
    let (mut archive, mut end) = (tar::Archive::new(content), 0);
    for entry in with_offsets(archive.entries().map_err(io)?) {
        let mut entry = entry.map_err(io)?;
        end = end_of_entry(&entry).map_err(io)?;
        if entry.header().entry_type().is_file() || entry.header().entry_type().is_dir() {
            // `unpack_in` writes nothing outside the folder, whatever the paths in the tar file.
            entry.unpack_in(folder).map_err(io)?;
        }
    }
    expect_end_block(read.get(), end).map_err(io)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use sha2::{Digest, Sha256};
    use walden_source::inventory::FileKind;

    use std::fs::File;

    use super::*;

    const TEXT: &str =
        "START WAL LOCATION: 0/2000028 (file 000000030000000000000002)\nCHECKPOINT LOCATION: 0/2000060\n";

    #[test]
    fn a_label_says_where_a_backup_starts() {
        let start = BackupStart::parse_label(TEXT).unwrap();
        assert_eq!((start.start, start.timeline, start.end), (Lsn(0x200_0028), Some(3), None));
        let history = "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nSTOP WAL LOCATION: 0/2000100 (file 000000010000000000000002)\n";
        assert_eq!(BackupStart::parse_label(history).unwrap().end, Some(Lsn(0x200_0100)));
        for bad in ["", "START WAL LOCATION: 0/2", "START WAL LOCATION: x (file y)"] {
            assert!(BackupStart::parse_label(bad).is_err(), "{bad}");
        }
        let incremental = format!("{TEXT}INCREMENTAL FROM LSN: 0/1000028\n");
        assert!(BackupStart::parse_label(&incremental).unwrap_err().contains("pg_combinebackup"));
    }

    #[test]
    fn a_file_that_is_too_large_is_not_called_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LABEL);
        fs::write(&path, vec![b'x'; MAX_LABEL_BYTES as usize + 1]).unwrap();
        let error = BackupStart::read(&path).unwrap_err();
        let text = walden_source::error_text(&error);
        assert!(text.contains("expected at most 1048576 bytes, found more"), "{text}");
    }

    #[test]
    fn files_tell_themselves_apart() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("any_name");
        let text = r#"{"PostgreSQL-Backup-Manifest-Version": 2, "System-Identifier": 7, "Files": [{"Path": "x"}],
"WAL-Ranges": [{"Timeline": 1, "Start-LSN": "0/2000028", "End-LSN": "0/3000000"},
{"Timeline": 2, "Start-LSN": "0/3000000", "End-LSN": "0/3000100"}],
"#;
        let checksum = crate::objects::object::to_hex(&Sha256::digest(text));
        fs::write(&manifest, format!("{text}\"Manifest-Checksum\": \"{checksum}\"}}\n")).unwrap();
        let start = BackupStart::read(&manifest).unwrap();
        assert_eq!(
            (start.start, start.timeline, start.end, start.end_timeline),
            (Lsn(0x200_0028), Some(1), Some(Lsn(0x300_0100)), Some(2))
        );
        assert_eq!(start.system_identifier, Some(7));
        // A manifest contains its own checksum.
        let changed = fs::read_to_string(&manifest).unwrap().replace("0/3000100", "0/3000200");
        fs::write(&manifest, changed).unwrap();
        assert!(BackupStart::read(&manifest).unwrap_err().to_string().contains("SHA-256"));
        fs::write(&manifest, TEXT).unwrap();
        assert_eq!(BackupStart::read(&manifest).unwrap().timeline, Some(3));
        fs::write(&manifest, "something else").unwrap();
        assert!(BackupStart::read(&manifest).unwrap_err().to_string().contains("something else"));
        fs::write(&manifest, "{}").unwrap();
        assert!(BackupStart::read(&manifest).is_err());
    }

    #[test]
    fn compressed_tars_are_known_by_their_endings() {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(TEXT.len() as u64);
        header.set_mode(0o600);
        builder.append_data(&mut header, LABEL, TEXT.as_bytes()).unwrap();
        let content = builder.into_inner().unwrap();
        let path = folder.path().join("base.txz");
        let mut packed = liblzma::write::XzEncoder::new(File::create(&path).unwrap(), 0);
        packed.write_all(&content).unwrap();
        packed.finish().unwrap();
        assert!(is_tar(folder.path()));
        for path in [folder.path(), path.as_path()] {
            assert_eq!(BackupStart::read(path).unwrap().timeline, Some(3));
        }
        let target = folder.path().join("target");
        unpack(folder.path(), &target).unwrap();
        assert_eq!(fs::read_to_string(target.join(LABEL)).unwrap(), TEXT);
        // The same suffixes identify tar files as sources of WAL.
        for (ending, _) in TAR_ENDINGS {
            assert_eq!(FileKind::from_name(&format!("base{ending}")), FileKind::BaseTar, "{ending}");
        }
    }

    /// A file that was cut off at the end of an entry has no empty block after this entry.
    #[test]
    fn a_tar_that_was_cut_off_is_not_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.tar");
        let mut builder = tar::Builder::new(Vec::new());
        for name in [LABEL, "PG_VERSION", "base/1/1259"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(600);
            header.set_mode(0o600);
            builder.append_data(&mut header, name, &[b'7'; 600][..]).unwrap();
        }
        let whole = builder.into_inner().unwrap();
        assert_eq!(whole.len(), 3 * 1536 + 1024);
        let is_unpacked = |bytes: usize| {
            fs::write(&path, &whole[..bytes]).unwrap();
            let target = tempfile::tempdir().unwrap();
            unpack(&path, target.path()).map_err(|error| walden_source::error_text(&error))
        };
        is_unpacked(whole.len()).unwrap();
        is_unpacked(3 * 1536 + 512).unwrap();
        for cut in [0, 1536, 2 * 1536, 3 * 1536, 3 * 1536 - 200, 2 * 1536 + 512] {
            let text = is_unpacked(cut).unwrap_err();
            assert!(text.contains("base.tar"), "{cut}: {text}");
        }
        assert!(is_unpacked(2 * 1536).unwrap_err().contains("get a complete copy of it"));
    }

    #[test]
    fn a_tar_is_unpacked_without_links_and_without_leaving_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let tar = |name: &str, files: &[(&str, &str)]| {
            let mut builder = tar::Builder::new(File::create(folder.path().join(name)).unwrap());
            for (path, content) in files {
                let mut header = tar::Header::new_gnu();
                header.set_size(content.len() as u64);
                header.set_mode(0o600);
                builder.append_data(&mut header, path, content.as_bytes()).unwrap();
            }
            let mut link = tar::Header::new_gnu();
            link.set_entry_type(tar::EntryType::Symlink);
            link.set_size(0);
            builder.append_link(&mut link, "pg_tblspc/16400", "/elsewhere").unwrap();
            builder.finish().unwrap();
        };
        tar("base.tar", &[("backup_label", TEXT), ("PG_VERSION", "18\n")]);
        tar("16400.tar", &[("PG_18_202506291/5/7", "page")]);
        tar("pg_wal.tar", &[("000000030000000000000002", "wal")]);
        assert!(is_tar(folder.path()) && is_tar(&folder.path().join("base.tar")));
        assert_eq!(BackupStart::read(folder.path()).unwrap().timeline, Some(3));
        let target = folder.path().join("target");
        unpack(folder.path(), &target).unwrap();
        assert_eq!(fs::read_to_string(target.join("PG_VERSION")).unwrap(), "18\n");
        let page = target.join("pg_tblspc/16400/PG_18_202506291/5/7");
        assert_eq!(fs::read_to_string(page).unwrap(), "page");
        assert!(!target.join("000000030000000000000002").exists());
        assert!(!fs::symlink_metadata(target.join("pg_tblspc/16400")).unwrap().is_symlink());
    }
}

//! Searches for files that may be segments.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_format::lsn::SegmentName;

use super::{Ignored, IgnoredReason, Inventory, InventoryError, Unreadable, UnreadableReason};
use crate::denied::with_user;
use crate::file_kind::FileKind;

/// A file that may be a segment.
pub struct Candidate {
    pub path: PathBuf,
    /// Device and inode, because a file may be found under several paths.
    pub file: (u64, u64),
    pub name: Option<(SegmentName, bool)>,
    /// Whether the caller named this file.
    pub explicit: bool,
}

/// The files found in a set of paths.
pub struct Candidates {
    /// Files that may be segments, each once.
    pub files: Vec<Candidate>,
    /// Segments that were removed or renamed after their folder was read.
    pub gone: Vec<PathBuf>,
}

/// Returns the files in paths that may be segments, and adds other files to the inventory.
///
/// # Errors
/// A path that cannot be read.
pub fn candidates_in<P: AsRef<Path>>(
    paths: &[P],
    inventory: &mut Inventory,
) -> Result<Candidates, InventoryError> {
    let mut search = Search { inventory, candidates: Vec::new(), gone: Vec::new(), folders: HashSet::new() };
    for path in paths {
        search.path(path.as_ref())?;
    }
    let (mut candidates, gone) = (search.candidates, search.gone);
    // A file may be named and also be in a named folder.
    let mut seen = HashSet::new();
    candidates.sort_by_key(|candidate| !candidate.explicit);
    candidates.retain(|candidate| seen.insert(candidate.file));
    candidates.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Candidates { files: candidates, gone })
}

struct Search<'a> {
    inventory: &'a mut Inventory,
    candidates: Vec<Candidate>,
    gone: Vec<PathBuf>,
    folders: HashSet<(u64, u64)>,
}

/// Folders that PostgreSQL keeps in a folder of segments.
const BESIDE_SEGMENTS: &[&str] = &["archive_status", "summaries"];
/// Folders that contain all segments of their parent folder; rows of alternatives.
#[rustfmt::skip]
const ONLY: &[(&[&str], &[&str])] = &[
    // A data directory, also before version 10.
    (&["PG_VERSION", "pg_wal"],  &["pg_wal"]),
    (&["PG_VERSION", "pg_xlog"], &["pg_xlog"]),
    // WAL-G, Barman.
    (&["wal_005"],               &["wal_005"]),
    (&["wals", "base"],          &["wals", "streaming", "incoming"]),
];

impl Search<'_> {
    fn path(&mut self, path: &Path) -> Result<(), InventoryError> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => InventoryError::NotFound(path.to_owned()),
            _ => InventoryError::Io { path: path.to_owned(), error: with_user(path, error) },
        };
        let metadata = fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return self.folder(path, &metadata, true).map_err(io);
        }
        if !metadata.is_file() {
            let (path, reason) = (path.to_owned(), UnreadableReason::NoFile);
            return Err(InventoryError::Unreadable(Unreadable { path, reason }));
        }
        let kind =
            path.file_name().and_then(|name| name.to_str()).map_or(FileKind::Other, FileKind::from_name);
        let name = match kind {
            FileKind::Segment { name, partial } => Some((name, partial)),
            FileKind::History | FileKind::BackupLabel => {
                self.ignore_kind(path, kind);
                return Ok(());
            }
            FileKind::Pack | FileKind::WalTar | FileKind::BaseTar | FileKind::Other => None,
        };
        let file = (metadata.dev(), metadata.ino());
        self.candidates.push(Candidate { path: path.to_owned(), file, name, explicit: true });
        Ok(())
    }

    fn folder(&mut self, path: &Path, metadata: &fs::Metadata, asked_for: bool) -> io::Result<()> {
        if !self.folders.insert((metadata.dev(), metadata.ino())) {
            self.ignore(path, IgnoredReason::Loop);
            return Ok(());
        }
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                names.insert(name, entry.file_type()?);
            }
        }
        // Files of PostgreSQL, pgBackRest and Barman.
        let marks = ["backup_label", "backup_manifest", "backup.manifest", "backup.info"];
        if !asked_for && marks.iter().any(|mark| names.contains_key(*mark)) {
            self.ignore(path, IgnoredReason::BaseBackup);
            return Ok(());
        }
        let only = ONLY.iter().find(|(marks, _)| marks.iter().all(|mark| names.contains_key(*mark)));
        // A base backup in tar format has its WAL in one of the two.
        let has_wal_tar = names.keys().any(|name| FileKind::from_name(name) == FileKind::WalTar);
        for (name, file_type) in &names {
            let is_wanted = only.is_none_or(|(_, wanted)| wanted.contains(&name.as_str()))
                && !(has_wal_tar && FileKind::from_name(name) == FileKind::BaseTar);
            if is_wanted && !BESIDE_SEGMENTS.contains(&name.as_str()) {
                self.entry(&path.join(name), name, *file_type)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, file_name: &str, file_type: fs::FileType) -> io::Result<()> {
        let kind = FileKind::from_name(file_name);
        let may_be_folder = file_type.is_dir() || file_type.is_symlink();
        let is_container = matches!(kind, FileKind::Pack | FileKind::WalTar | FileKind::BaseTar);
        if !may_be_folder && !is_container && !matches!(kind, FileKind::Segment { .. }) {
            self.ignore_kind(path, kind);
            return Ok(());
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            // A running server removes and renames files at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if matches!(kind, FileKind::Segment { .. }) {
                    self.gone.push(path.to_owned());
                }
                return Ok(());
            }
            Err(error) => {
                let error =
                    io::Error::new(error.kind(), format!("{}: {}", path.display(), with_user(path, error)));
                let reason = UnreadableReason::Io(error);
                self.inventory.unreadable.push(Unreadable { path: path.to_owned(), reason });
                return Ok(());
            }
        };
        if metadata.is_dir() {
            if let Err(error) = self.folder(path, &metadata, false) {
                let error =
                    io::Error::new(error.kind(), format!("{}: {}", path.display(), with_user(path, error)));
                let reason = UnreadableReason::Io(error);
                self.inventory.unreadable.push(Unreadable { path: path.to_owned(), reason });
            }
            return Ok(());
        }
        match kind {
            FileKind::Segment { name, partial } if metadata.is_file() => {
                let file = (metadata.dev(), metadata.ino());
                let name = Some((name, partial));
                self.candidates.push(Candidate { path: path.to_owned(), file, name, explicit: false });
            }
            _ if is_container && metadata.is_file() => {
                let file = (metadata.dev(), metadata.ino());
                self.candidates.push(Candidate { path: path.to_owned(), file, name: None, explicit: false });
            }
            _ => self.ignore_kind(path, kind),
        }
        Ok(())
    }

    fn ignore_kind(&mut self, path: &Path, kind: FileKind) {
        let reason = match kind {
            FileKind::History => IgnoredReason::History,
            FileKind::BackupLabel => IgnoredReason::BackupLabel,
            FileKind::Segment { .. }
            | FileKind::Pack
            | FileKind::WalTar
            | FileKind::BaseTar
            | FileKind::Other => IgnoredReason::OtherName,
        };
        self.ignore(path, reason);
    }

    fn ignore(&mut self, path: &Path, reason: IgnoredReason) {
        self.inventory.ignored.push(Ignored { path: path.to_owned(), reason });
    }
}

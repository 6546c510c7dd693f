//! Files that are not segments or cannot be read as segments, and errors.

use std::fmt;
use std::io;
use std::path::PathBuf;

use walden_format::fault::{Fault, FaultKind};
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::version::UnreadableMagic;

use super::{Inventory, Spare, SpareKind};

/// A file that was skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ignored {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Why it was skipped.
    pub reason: IgnoredReason,
}

/// Why a file was skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IgnoredReason {
    /// A timeline history.
    History,
    /// A backup label (`.backup`).
    BackupLabel,
    /// A file that is not named like a segment.
    OtherName,
    /// A folder of a base backup, which contains copies of some segments.
    BaseBackup,
    /// A folder that was already searched.
    Loop,
    /// A segment of a timeline, or of a part of a timeline, that does not belong to the followed WAL.
    OtherTimeline,
}

/// A file that cannot be read as a segment.
#[derive(Debug)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// Why it cannot be read.
    pub reason: UnreadableReason,
}

/// Why a file cannot be read as a segment.
#[derive(Debug)]
#[non_exhaustive]
pub enum UnreadableReason {
    /// Reading or decompressing failed; the text names the file.
    Io(io::Error),
    /// A pipe or a device: segments are read more than once.
    NoFile,
    /// The file is empty.
    Empty,
    /// Encrypted; the text describes how.
    Encrypted(&'static str),
    /// In an unsupported format.
    Format(&'static str),
    /// The first page has the magic of no readable version; the magic and its meaning.
    Magic(u16, UnreadableMagic),
    /// The first page's header is invalid for another reason than its magic.
    Header(FaultKind),
    /// The file's content starts within a segment, at this LSN.
    MidSegment(Lsn),
    /// The file has the name of one segment, but contains another segment, whose name is given.
    Misnamed(SegmentName),
    /// The file has no WAL for its name, although a later segment in the same folder has WAL. PostgreSQL
    /// keeps files without WAL only for future segments.
    Lost {
        /// The expected segment.
        name: SegmentName,
        /// LSN of its start.
        start: Lsn,
        /// The content that was found.
        found: SpareKind,
        /// The last segment in the folder.
        later: SegmentName,
    },
    /// Neither a segment nor compressed in a known format.
    NotWal,
}

/// Why taking the inventory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// A path that does not exist.
    #[error("{}: no such file or folder", .0.display())]
    NotFound(PathBuf),
    /// A folder or file that cannot be read.
    #[error("cannot read {}", .path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A file named by the caller is not a readable segment.
    #[error(transparent)]
    Unreadable(Unreadable),
    /// There is no segment.
    #[error("{}", no_segments(.paths, .inventory, .first_unreadable.as_ref()))]
    NoSegments {
        /// The paths given.
        paths: Vec<PathBuf>,
        /// The other files that were found.
        inventory: Box<Inventory>,
        /// The first of the files that are named like segments but cannot be read; the others are in
        /// `inventory`.
        #[source]
        first_unreadable: Option<Unreadable>,
    },
}

walden_format::diagnostics! { InventoryError {
    Self::NotFound(_) => "source-missing": "check the path; walden explain without a source lists the data directories of the servers on this machine",
    Self::Io { .. } | Self::Unreadable(Unreadable { reason: UnreadableReason::Io(_), .. }) => none,
    Self::NoSegments { first_unreadable: Some(Unreadable { reason: UnreadableReason::Io(_), .. }), .. } => none,
    Self::Unreadable(_) | Self::NoSegments { first_unreadable: Some(_), .. } => "source-unreadable": "name files of pg_wal or of an archive of WAL; decrypt encrypted ones first, and get another copy of a damaged one",
    Self::NoSegments { .. } => "source-without-wal": "name a data directory, its pg_wal, or an archive of WAL (a dump or a base backup without WAL contains none); walden explain \
         without a source lists the servers of this machine",
} }

impl std::error::Error for Unreadable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            UnreadableReason::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.reason {
            UnreadableReason::Io(error) => write!(f, "{error}"),
            UnreadableReason::NoFile => {
                write!(
                    f,
                    "{path}: a pipe or device, and segments are read more than once; write it to a file first"
                )
            }
            UnreadableReason::Empty => write!(f, "{path}: the file is empty"),
            UnreadableReason::Encrypted(by) => {
                write!(
                    f,
                    "{path}: encrypted {by}; let the program that stored it fetch it, then read that file"
                )
            }
            UnreadableReason::Format(format) => {
                write!(f, "{path}: its format, {format}, is not one that Walden reads; unpack it first")
            }
            UnreadableReason::Magic(magic, what) => write!(f, "{path}: {what} (page magic {magic:04X})"),
            UnreadableReason::Header(fault) => {
                let fault = Fault { lsn: Lsn::INVALID, at: Lsn::INVALID, kind: *fault };
                let (expected, found) = (fault.expected(), fault.found());
                write!(f, "{path}: damaged at its first page: expected {expected}, found {found}")
            }
            UnreadableReason::MidSegment(lsn) => {
                write!(
                    f,
                    "{path}: starts at {lsn}, in the middle of a segment; Walden reads segments from their start"
                )
            }
            UnreadableReason::Misnamed(holds) => {
                write!(
                    f,
                    "{path}: holds another segment than its name says: {holds}; give it that name to read it"
                )
            }
            UnreadableReason::Lost { name, start, found, later } => {
                let found = match found {
                    SpareKind::Preallocated => "zeros".to_owned(),
                    SpareKind::Recycled(holds) => format!("the first page of segment {holds}"),
                };
                write!(
                    f,
                    "{path}: segment {name}, offset 0 (LSN {start}): expected the first page of this segment, as segment {later} \
                     is beside it, found {found}; take another copy of this segment (archive, standby, backup)"
                )
            }
            UnreadableReason::NotWal => write!(
                f,
                "{path}: not a WAL segment, plain or compressed by gzip, lz4, zstd, xz, lzma, bzip2 or brotli; \
                 it may be encrypted or damaged"
            ),
        }
    }
}

impl fmt::Display for IgnoredReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IgnoredReason::History => "a timeline's history",
            IgnoredReason::BackupLabel => "a backup's label",
            IgnoredReason::OtherName => "not named like a segment",
            IgnoredReason::BaseBackup => "a base backup",
            IgnoredReason::Loop => "already searched",
            IgnoredReason::OtherTimeline => "of another timeline",
        })
    }
}

fn no_segments(paths: &[PathBuf], inventory: &Inventory, unreadable: Option<&Unreadable>) -> String {
    let places: Vec<_> = paths.iter().take(3).map(|path| path.display().to_string()).collect();
    let places = places.join(", ") + if paths.len() > 3 { ", ..." } else { "" };
    let mut text = format!("no WAL segments in {places}");
    let files = match inventory.spares.len() {
        1 => "1 file".to_owned(),
        many => format!("{many} files"),
    };
    if let Some(first) = unreadable {
        text += &format!(" that can be read: {first}");
        match inventory.unreadable.len() {
            0 => {}
            1 => text += " (and 1 more file)",
            more => text += &format!(" (and {more} more files)"),
        }
    } else if let [Spare { name, kind: SpareKind::Recycled(holds), .. }, ..] = inventory.spares.as_slice() {
        text += &format!(
            ": {files} that the server keeps for later use; {name} still holds {holds}, which this file is no \
             longer: give it that name to read it"
        );
    } else if !inventory.spares.is_empty() {
        text += &format!(": {files} of zeros alone that the server keeps for later use");
    } else {
        text += ", expected files named like 000000010000000000000001";
    }
    text
}

//! The kind of a file, by its name.

use walden_format::lsn::SegmentName;

/// The kind of a file, by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileKind {
    /// A segment, complete or `.partial`.
    Segment {
        /// The segment.
        name: SegmentName,
        /// Whether the file's name contains `.partial`.
        partial: bool,
    },
    /// A timeline history, `00000002.history`.
    History,
    /// A backup label, `000000010000000000000002.00000028.backup`.
    BackupLabel,
    /// A pack of `walden compress --pack`, `*.wpk`.
    Pack,
    /// The WAL of a base backup in tar format, `pg_wal.tar` or compressed, also as `pg_wal.tgz`.
    WalTar,
    /// The data directory of a base backup in tar format, `base.tar` or compressed; contains the WAL if that
    /// was fetched.
    BaseTar,
    /// Any other file.
    Other,
}

impl FileKind {
    /// Determines the kind of a file by its name without folder.
    ///
    /// A segment's name may be followed by `.partial`, by pgBackRest's `-` and SHA-1, and by the endings of
    /// compression and encryption programs. The ending does not determine how the file is compressed.
    pub fn from_name(file_name: &str) -> FileKind {
        if let Some(name) = file_name.get(..24).and_then(SegmentName::parse) {
            let rest = &file_name[24..];
            return match segment_suffix(rest) {
                Some(partial) => FileKind::Segment { name, partial },
                None if is_backup_label(rest) => FileKind::BackupLabel,
                // Packs are named after their first and last segment.
                None if rest.ends_with(".wpk") => FileKind::Pack,
                None => FileKind::Other,
            };
        }
        for (start, kind) in [("pg_wal.", FileKind::WalTar), ("base.", FileKind::BaseTar)] {
            if file_name.strip_prefix(start).and_then(tar_suffix) == Some(false) {
                return kind;
            }
        }
        let is_timeline =
            file_name.get(..8).is_some_and(|timeline| timeline.bytes().all(|b| b.is_ascii_hexdigit()));
        match file_name.get(8..).and_then(|rest| rest.strip_prefix(".history")) {
            Some(rest) if is_timeline && segment_suffix(rest) == Some(false) => FileKind::History,
            _ if file_name.ends_with(".wpk") => FileKind::Pack,
            _ => FileKind::Other,
        }
    }
}

/// Endings that archivers and compression programs add.
const ENDINGS: &[&str] = &[
    "gz", "gzip", "lz4", "zst", "zstd", "xz", "lzma", "bz2", "bzip2", "br", "brotli", "sz", "snappy", "lzo",
    "z", "gpg", "pgp", "age", "aes", "enc", "wlz",
];

/// Returns whether the suffix of a segment's name contains `.partial`, or `None` if it is the suffix of
/// another kind of file.
fn segment_suffix(mut rest: &str) -> Option<bool> {
    let mut partial = false;
    while !rest.is_empty() {
        let (mark, tail) = (rest.get(..1)?, rest.get(1..)?);
        let part = &tail[..tail.find(['.', '-']).unwrap_or(tail.len())];
        match mark {
            "-" if part.len() == 40 && part.bytes().all(|b| b.is_ascii_hexdigit()) => {}
            "." if part == "partial" && !partial => partial = true,
            "." if ENDINGS.contains(&part) => {}
            _ => return None,
        }
        rest = &tail[part.len()..];
    }
    Some(partial)
}

/// As [`segment_suffix`], for the part of a tar file's name that starts with `tar`, or with an ending for tar
/// and a compression.
fn tar_suffix(rest: &str) -> Option<bool> {
    const ENDINGS: &[&str] = &["tar", "tgz", "tbz2", "tbz", "txz", "tlz4", "tzst"];
    let (ending, behind) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    ENDINGS.contains(&ending).then(|| segment_suffix(behind))?
}

fn is_backup_label(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix('.') else { return false };
    let offset = rest.get(..8).is_some_and(|offset| offset.bytes().all(|b| b.is_ascii_hexdigit()));
    let ending = rest.get(8..).and_then(|rest| rest.strip_prefix(".backup"));
    offset && ending.and_then(segment_suffix) == Some(false)
}

//! Keys of the objects of base backups.

use std::fmt;

use serde::{Deserialize, Serialize};
use walden_recover::parse_backup_name;

/// Key prefix of base backups.
pub const BASE: &str = "base/";
/// Names of objects in a backup's folder.
pub(super) const STARTED: &str = "started.json";
pub(super) const BACKUP: &str = "backup.json";
pub(super) const PIECES: &str = "pieces.json.zst";
pub(super) const MANIFEST: &str = "manifest.zst";
/// Names of notes of stored pieces: `progress-000001.json.zst`.
pub(super) const PROGRESS: &str = "progress-";
pub(super) const PROGRESS_ENDING: &str = ".json.zst";
const PIECE_ENDING: &str = ".zst";

/// The BLAKE3 hash of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PieceHash(blake3::Hash);

impl PieceHash {
    /// Returns the hash of a content.
    pub fn of(content: &[u8]) -> PieceHash {
        PieceHash(blake3::hash(content))
    }

    /// Reads 64 hexadecimal digits in lower case.
    pub fn parse(digits: &str) -> Option<PieceHash> {
        let hash = PieceHash(blake3::Hash::from_hex(digits).ok()?);
        (hash.to_string() == digits).then_some(hash)
    }
}

impl fmt::Display for PieceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for PieceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PieceHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PieceHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<PieceHash, D::Error> {
        let text = String::deserialize(deserializer)?;
        let problem = || serde::de::Error::custom("expected a hash of 64 hexadecimal digits");
        PieceHash::parse(&text).ok_or_else(problem)
    }
}

/// An object in a backup's folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Started,
    Piece(PieceHash),
    Pieces,
    Manifest,
    Backup,
    /// The number of a note of stored pieces.
    Progress(u32),
}

/// Returns the prefix of all objects of a backup.
pub(super) fn folder(backup: &str) -> String {
    format!("{BASE}{backup}/")
}

/// Returns the key of an object of a backup.
pub(super) fn key(backup: &str, name: &str) -> String {
    format!("{BASE}{backup}/{name}")
}

/// Returns the key of a piece in a backup's folder.
pub(super) fn piece_key(backup: &str, hash: PieceHash) -> String {
    format!("{BASE}{backup}/{hash}{PIECE_ENDING}")
}

/// Reads a key: the name of the backup, and which of its objects it is.
pub(super) fn parse(key: &str) -> Option<(&str, Part)> {
    let (backup, name) = key.strip_prefix(BASE)?.split_once('/')?;
    parse_backup_name(backup)?;
    let part = match name {
        STARTED => Part::Started,
        PIECES => Part::Pieces,
        MANIFEST => Part::Manifest,
        BACKUP => Part::Backup,
        _ if name.starts_with(PROGRESS) => {
            let digits = name.strip_prefix(PROGRESS)?.strip_suffix(PROGRESS_ENDING)?;
            let is_exact = digits.len() >= 6 && digits.bytes().all(|digit| digit.is_ascii_digit());
            let number = digits.parse().ok().filter(|number| is_exact && format!("{number:06}") == digits)?;
            Part::Progress(number)
        }
        _ => Part::Piece(PieceHash::parse(name.strip_suffix(PIECE_ENDING)?)?),
    };
    Some((backup, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_exact() {
        let (backup, hash) = ("20261124T030000Z_2-3A000028", PieceHash::of(b"x"));
        assert_eq!(parse(&piece_key(backup, hash)), Some((backup, Part::Piece(hash))));
        for (name, part) in [(STARTED, Part::Started), (BACKUP, Part::Backup), (PIECES, Part::Pieces)] {
            assert_eq!(parse(&key(backup, name)), Some((backup, part)));
        }
        let progress = super::super::progress::key(backup, 12);
        assert_eq!(parse(&progress), Some((backup, Part::Progress(12))));
        let upper = hash.to_string().to_uppercase();
        for wrong in [
            format!("base/{backup}/{upper}.zst"),
            format!("base/{backup}/x.zst"),
            format!("base/{backup}/progress-12.json.zst"),
            format!("base/{backup}/progress-+00012.json.zst"),
            format!("base/{backup}/a/{STARTED}"),
            format!("base/../{STARTED}"),
            format!("base/20261124T030000Z_2-3a000028/{STARTED}"),
            format!("wal/{backup}/{STARTED}"),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
    }
}

//! The documents that describe a stored base backup.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;

use serde::{Deserialize, Serialize};
use walden_format::lsn::{Lsn, Timeline};
use walden_recover::parse_backup_name;

use super::name::PieceHash;
use crate::objects::backup_files::WalRange;

/// Version of the form of stored backups.
pub(super) const VERSION: u32 = 1;
/// Longest list of pieces and longest manifest, in bytes before compression.
pub(super) const MAX_LIST_BYTES: u64 = 1 << 30;
/// Longest `backup.json`, in bytes.
const MAX_BACKUP_BYTES: usize = 16 << 20;
/// Longest piece in bytes.
pub(super) const MAX_PIECE_BYTES: usize = 16 << 20;
/// Longest content in the list of pieces itself, in bytes.
pub(super) const MAX_INLINE_BYTES: usize = 4096;

/// A base backup in the archive: the content of its `backup.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredBackup {
    /// Version of the form.
    pub walden_backup: u32,
    /// The name: its start in UTC, and the redo pointer of its checkpoint.
    pub name: String,
    /// The user's label.
    pub label: String,
    /// The server's version, such as `18.1 (Debian 18.1-1)`.
    pub server_version: String,
    /// System identifier of the cluster, as text: JSON numbers are not exact at this size.
    pub system_identifier: String,
    /// When it was started and completed, in microseconds since 1970-01-01 00:00:00 UTC, by the clock of the
    /// machine that stored it.
    pub started: i64,
    /// See `started`.
    pub completed: i64,
    /// The WAL that it needs.
    pub wal: Vec<StoredRange>,
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Number of pieces.
    pub pieces: u64,
    /// Stored bytes of all pieces, without encryption.
    pub stored_bytes: u64,
    /// Stored bytes of the pieces that no earlier backup had.
    pub new_bytes: u64,
    /// The list of pieces.
    pub piece_list: StoredObject,
    /// `backup_manifest`.
    pub manifest: StoredObject,
    /// Small files of the backup by name, in hexadecimal digits, from which recovery starts.
    pub small_files: BTreeMap<String, String>,
}

/// A range of WAL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredRange {
    /// The timeline.
    pub timeline: Timeline,
    /// Its start.
    pub start_lsn: String,
    /// Its end.
    pub end_lsn: String,
}

/// The size and hash of a compressed object before its compression.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredObject {
    /// Bytes.
    pub bytes: u64,
    /// BLAKE3 in hexadecimal digits.
    pub blake3: String,
}

impl StoredObject {
    pub(super) fn of(content: &[u8]) -> StoredObject {
        StoredObject { bytes: content.len() as u64, blake3: blake3::hash(content).to_hex().to_string() }
    }

    /// Decompresses an object, and compares it with this description.
    pub(super) fn decode(&self, object: &[u8]) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        let decoder = zstd::stream::read::Decoder::new(object).map_err(|error| error.to_string())?;
        let limit = self.bytes.min(MAX_LIST_BYTES) + 1;
        decoder.take(limit).read_to_end(&mut content).map_err(|error| error.to_string())?;
        let found = StoredObject::of(&content);
        match found == *self {
            true => Ok(content),
            false => Err(format!(
                "expected {} bytes with BLAKE3 {}, found {} with {}",
                self.bytes, self.blake3, found.bytes, found.blake3
            )),
        }
    }
}

impl StoredBackup {
    /// Reads `backup.json` of the backup of this name.
    ///
    /// # Errors
    /// The expected and the found value.
    pub(super) fn parse(name: &str, json: &[u8]) -> Result<StoredBackup, String> {
        if json.len() > MAX_BACKUP_BYTES {
            return Err(format!("expected at most {MAX_BACKUP_BYTES} bytes, found {}", json.len()));
        }
        let backup: StoredBackup = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if backup.walden_backup > VERSION {
            let found = backup.walden_backup;
            return Err(format!(
                "expected a backup of form {VERSION} or older, found {found}: use a later version of walden"
            ));
        }
        if backup.name != name {
            return Err(format!("expected the backup {name}, found {:?}", backup.name));
        }
        if backup.ranges().is_none() {
            return Err("expected the range of WAL that the backup needs, found none".to_owned());
        }
        Ok(backup)
    }

    /// Returns the WAL that makes the backup consistent: at least one range, with its end.
    fn ranges(&self) -> Option<Vec<WalRange>> {
        let range = |range: &StoredRange| {
            let (start, end) = (range.start_lsn.parse().ok()?, range.end_lsn.parse().ok()?);
            Some(WalRange { timeline: range.timeline, start, end: Some(end) })
        };
        let ranges: Option<Vec<WalRange>> = self.wal.iter().map(range).collect();
        ranges.filter(|ranges| !ranges.is_empty())
    }

    /// Returns the WAL that makes the backup consistent, in order.
    pub fn wal_ranges(&self) -> Vec<WalRange> {
        // Both ways to create this value have checked it.
        self.ranges().unwrap_or_default()
    }

    /// Returns where recovery from the backup starts, and the timeline there.
    pub fn start(&self) -> (Timeline, Lsn) {
        self.wal_ranges().first().map_or((0, Lsn::INVALID), |range| (range.timeline, range.start))
    }

    /// Returns the end of the WAL that makes the backup consistent.
    pub fn end(&self) -> Lsn {
        self.wal_ranges().last().and_then(|range| range.end).unwrap_or(Lsn::INVALID)
    }

    /// Returns the content of a small file, such as `global/pg_control`; empty if the backup lacks it.
    ///
    /// # Errors
    /// The expected and the found content of `backup.json`.
    pub fn small_file(&self, name: &str) -> Result<Vec<u8>, String> {
        let digits = self.small_files.get(name).map_or("", String::as_str);
        from_hex(digits).ok_or_else(|| format!("expected {name} in hexadecimal digits, found others"))
    }
}

/// The pieces of a backup: the content of `pieces.json.zst`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceList {
    walden_pieces: u32,
    /// The backups in whose folders pieces are; the first one is the backup itself.
    pub(super) folders: Vec<String>,
    /// The tar archives.
    pub(super) archives: Vec<StoredArchive>,
    /// How pieces are recognized without their content, if their files were read one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) digests: Vec<PieceDigest>,
}

/// How a piece is recognized without its content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceDigest {
    /// The hash of the piece.
    pub(super) piece: PieceHash,
    /// Hash of its files' paths, positions, sizes and tar headers.
    pub(super) frame: PieceHash,
    /// SHA-256 of the SHA-256 of each file's content, in hexadecimal digits.
    pub(super) sha256: String,
    /// CRC-32C of each file's content.
    pub(super) crcs: Vec<u32>,
    /// Whether all checksums of its pages were verified, or the cluster has none.
    pub(super) is_verified: bool,
}

/// A tar archive of a stored backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoredArchive {
    /// The tablespace; `None` for the data directory.
    pub tablespace: Option<u32>,
    /// The contents in order.
    pub pieces: Vec<Piece>,
}

/// A part of a tar archive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Piece {
    /// Hash, bytes, stored bytes, and the number of the folder.
    Stored(PieceHash, u64, u64, u32),
    /// A few bytes, such as the header of a large file, in hexadecimal digits.
    Inline(String),
}

impl PieceList {
    pub(super) fn new(folders: Vec<String>, archives: Vec<StoredArchive>) -> PieceList {
        PieceList { walden_pieces: VERSION, folders, archives, digests: Vec::new() }
    }

    /// Reads the list of a backup.
    ///
    /// # Errors
    /// The expected and the found value.
    pub fn parse(name: &str, json: &[u8]) -> Result<PieceList, String> {
        let list: PieceList = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if list.walden_pieces > VERSION {
            return Err(format!("expected pieces of form {VERSION} or older, found {}", list.walden_pieces));
        }
        if list.folders.first().is_none_or(|first| first != name) {
            return Err(format!("expected {name} as the first folder, found {:?}", list.folders.first()));
        }
        if let Some(folder) = list.folders.iter().find(|folder| parse_backup_name(folder).is_none()) {
            return Err(format!("expected names of backups, found {folder:?}"));
        }
        let mut tablespaces = HashSet::new();
        for archive in &list.archives {
            if !tablespaces.insert(archive.tablespace) {
                return Err(format!(
                    "expected one tar archive of each tablespace, found two of {:?}",
                    archive.tablespace
                ));
            }
            archive.pieces.iter().try_for_each(|piece| list.check(piece))?;
        }
        match tablespaces.contains(&None) {
            true => Ok(list),
            false => Err("expected the tar archive of the data directory, found none".to_owned()),
        }
    }

    fn check(&self, piece: &Piece) -> Result<(), String> {
        match piece {
            Piece::Stored(hash, bytes, _, folder) => {
                if !(1..=MAX_PIECE_BYTES as u64).contains(bytes) {
                    return Err(format!("expected pieces of 1 to {MAX_PIECE_BYTES} bytes, found {bytes}"));
                }
                match self.folders.get(*folder as usize) {
                    Some(_) => Ok(()),
                    None => Err(format!("expected the folder of {hash}, found the number {folder}")),
                }
            }
            Piece::Inline(digits) => {
                let is_good = digits.len() <= 2 * MAX_INLINE_BYTES && from_hex(digits).is_some();
                let problem = || {
                    format!("expected at most {MAX_INLINE_BYTES} bytes in hexadecimal digits, found others")
                };
                is_good.then_some(()).ok_or_else(problem)
            }
        }
    }

    /// Returns each stored piece with its folder, bytes and stored bytes.
    pub(super) fn stored(&self) -> impl Iterator<Item = (&str, PieceHash, u64, u64)> {
        let pieces = self.archives.iter().flat_map(|archive| &archive.pieces);
        pieces.filter_map(|piece| match piece {
            Piece::Stored(hash, bytes, stored, folder) => {
                Some((self.folders.get(*folder as usize)?.as_str(), *hash, *bytes, *stored))
            }
            Piece::Inline(_) => None,
        })
    }
}

/// Reads hexadecimal digits.
pub(super) fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "20261124T030000Z_2-3A000028";

    fn list(folders: &str, pieces: &str) -> Result<PieceList, String> {
        let text = format!(
            "{{\"walden_pieces\": 1, \"folders\": {folders}, \"archives\": [{{\"tablespace\": null, \"pieces\": {pieces}}}]}}"
        );
        PieceList::parse(NAME, text.as_bytes())
    }

    #[test]
    fn lists_are_checked() {
        let (own, hash) = (format!("[\"{NAME}\"]"), PieceHash::of(b"x"));
        let good = list(&own, &format!("[[\"{hash}\", 1, 10, 0], \"00ff\"]")).unwrap();
        assert_eq!(good.stored().collect::<Vec<_>>(), [(NAME, hash, 1, 10)]);
        let text = serde_json::to_vec(&good).unwrap();
        assert_eq!(PieceList::parse(NAME, &text), Ok(good));
        for (folders, pieces) in [
            (own.as_str(), format!("[[\"{hash}\", 1, 10, 1]]")),
            (&own, format!("[[\"{hash}\", 0, 10, 0]]")),
            (&own, format!("[[\"{hash}\", 16777217, 10, 0]]")),
            (&own, format!("[[\"{hash}\", -1, 10, 0]]")),
            (&own, "[[\"../x\", 1, 10, 0]]".to_owned()),
            (&own, "[\"0\"]".to_owned()),
            (&own, "[\"0g\"]".to_owned()),
            (&own, format!("[\"{}\"]", "00".repeat(4097))),
            ("[]", "[]".to_owned()),
            ("[\"../../etc\"]", "[]".to_owned()),
            (&format!("[\"{NAME}\", \"../x\"]"), "[]".to_owned()),
        ] {
            assert!(list(folders, &pieces).is_err(), "{folders} {pieces}");
        }
        let twice = "{\"walden_pieces\": 1, \"folders\": [\"NAME\"], \"archives\": [{\"tablespace\": 7, \"pieces\": []}, {\"tablespace\": 7, \"pieces\": []}]}";
        assert!(
            PieceList::parse(NAME, twice.replace("NAME", NAME).as_bytes()).unwrap_err().contains("two of")
        );
    }

    #[test]
    fn an_object_that_grows_when_it_is_decompressed_is_refused() {
        let content = vec![0; 1 << 20];
        let object = zstd::bulk::compress(&content, 3).unwrap();
        assert_eq!(StoredObject::of(&content).decode(&object).unwrap(), content);
        let stated = StoredObject::of(&content[..100]);
        assert!(stated.decode(&object).unwrap_err().starts_with("expected 100 bytes"));
        assert!(stated.decode(b"no frame").is_err());
    }
}

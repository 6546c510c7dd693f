//! Maps the files that PostgreSQL archives to the keys of their objects.
//!
//! ```text
//! archive.json                                          system identifier and segment size of the cluster
//! wal/00000001/00000000/000000010000000000000007.wlz    a segment: timeline, upper 32 bits of its LSN, name
//! wal/00000001/00000000/000000010000000000000007.partial.wlz
//! wal/00000001/00000000/000000010000000000000008-00000001000000000000001F.wpk
//! history/00000002.history.wlz
//! backup/00000001/000000010000000000000007.00000028.backup.wlz
//! ```
//!
//! Keys sort by timeline and position. A listing is the only index.

use std::cmp::Ordering;
use std::fmt;

use walden_format::lsn::{SegmentName, Timeline};

/// Key of the object that identifies the archive's cluster.
pub const IDENTITY: &str = "archive.json";
/// Key prefix of the results of `verify`.
pub const VERIFIED: &str = "verified/";
/// Key prefix of the records of `prune`.
pub const PRUNED: &str = "pruned/";
/// Key prefix of segments and packs.
pub const WAL: &str = "wal/";
/// Key prefix of timeline history files.
pub const HISTORY: &str = "history/";
/// Key prefix of backup history files.
pub const BACKUP: &str = "backup/";

/// A file that PostgreSQL passes to `archive_command`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ArchivedFile {
    /// `00000002.history`: the ancestors of a timeline.
    History(Timeline),
    /// A complete segment.
    Segment(SegmentName),
    /// `....partial`: the last segment of a timeline that another timeline continues.
    Partial(SegmentName),
    /// `....00000028.backup`: the label of a base backup, and where its WAL ends.
    Backup(SegmentName, u32),
}

impl ArchivedFile {
    /// Parses a file name. Returns `None` unless PostgreSQL uses exactly this name, including upper-case
    /// digits.
    pub fn parse(name: &str) -> Option<ArchivedFile> {
        let file = match name.split_once('.') {
            None => ArchivedFile::Segment(SegmentName::parse(name)?),
            Some((digits, "history")) => ArchivedFile::History(parse_hex(digits)?),
            Some((segment, "partial")) => ArchivedFile::Partial(SegmentName::parse(segment)?),
            Some((segment, more)) => {
                let offset = parse_hex(more.strip_suffix(".backup")?)?;
                ArchivedFile::Backup(SegmentName::parse(segment)?, offset)
            }
        };
        (file.to_string() == name).then_some(file)
    }

    /// Returns a sort key for PostgreSQL's archiving order: history files first, then by name
    /// (`ready_file_comparator` in `pgarch.c`).
    pub fn archiving_order(self) -> (bool, String) {
        ArchivedFile::archiving_order_of(&self.to_string())
    }

    /// Returns the same sort key for a file name.
    pub fn archiving_order_of(name: &str) -> (bool, String) {
        (!name.ends_with(".history"), name.to_owned())
    }

    /// Returns the timeline in the name.
    pub fn timeline(self) -> Timeline {
        match self {
            ArchivedFile::History(timeline) => timeline,
            ArchivedFile::Segment(name) | ArchivedFile::Partial(name) | ArchivedFile::Backup(name, _) => {
                name.timeline
            }
        }
    }

    /// Returns the key of the file's object.
    pub fn key(self) -> String {
        let timeline = self.timeline();
        match self {
            ArchivedFile::History(_) => format!("{HISTORY}{self}{ENDING}"),
            ArchivedFile::Backup(..) => format!("{BACKUP}{timeline:08X}/{self}{ENDING}"),
            ArchivedFile::Segment(name) | ArchivedFile::Partial(name) => {
                format!("{}{self}{ENDING}", log_prefix(name))
            }
        }
    }
}

impl fmt::Display for ArchivedFile {
    /// Writes PostgreSQL's name of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArchivedFile::History(timeline) => write!(f, "{timeline:08X}.history"),
            ArchivedFile::Segment(name) => write!(f, "{name}"),
            ArchivedFile::Partial(name) => write!(f, "{name}.partial"),
            ArchivedFile::Backup(name, offset) => write!(f, "{name}.{offset:08X}.backup"),
        }
    }
}

/// Number of 1 MB segments, the smallest size, in the 4 GB of WAL that share the middle eight digits of the
/// name.
const MAX_SEGMENTS_OF_LOG: u32 = 4096;

/// The name of a pack: consecutive segments in one object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PackName {
    /// The first segment.
    pub first: SegmentName,
    /// The last segment, whose name has the same first 16 digits as the first segment.
    pub last: SegmentName,
}

impl PackName {
    /// Returns the key of the pack's object.
    pub fn key(self) -> String {
        format!("{}{}-{}{PACK_ENDING}", log_prefix(self.first), self.first, self.last)
    }

    /// Returns whether the pack contains a segment.
    pub fn contains(self, name: SegmentName) -> bool {
        (self.first..=self.last).contains(&name)
    }

    /// Returns whether this pack contains every segment of a different pack.
    pub(crate) fn replaces(self, other: PackName) -> bool {
        self != other && self.contains(other.first) && self.contains(other.last)
    }

    /// Returns the number of segments.
    pub fn segments(self) -> u64 {
        u64::from(self.last.segment - self.first.segment) + 1
    }

    /// Returns the segment names in order.
    pub fn names(self) -> impl Iterator<Item = SegmentName> {
        (self.first.segment..=self.last.segment).map(move |segment| SegmentName { segment, ..self.first })
    }
}

/// An object that contains archived files.
///
/// Objects sort by kind, timeline and position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// An object with one file.
    File(ArchivedFile),
    /// A pack of segments.
    Pack(PackName),
}

impl Object {
    /// Parses a key. Returns `None` if the object does not contain archived files.
    pub fn parse_key(key: &str) -> Option<Object> {
        let name = key.rsplit('/').next()?;
        let object = if let Some(name) = name.strip_suffix(ENDING) {
            Object::File(ArchivedFile::parse(name)?)
        } else {
            let (first, last) = name.strip_suffix(PACK_ENDING)?.split_once('-')?;
            let pack = PackName { first: SegmentName::parse(first)?, last: SegmentName::parse(last)? };
            let in_one_log = (pack.first.timeline, pack.first.log) == (pack.last.timeline, pack.last.log);
            let is_range = pack.first <= pack.last && pack.last.segment < MAX_SEGMENTS_OF_LOG;
            Object::Pack(Some(pack).filter(|_| in_one_log && is_range)?)
        };
        (object.key() == key).then_some(object)
    }

    /// Returns the timeline in the object's name.
    pub fn timeline(self) -> Timeline {
        match self {
            Object::File(file) => file.timeline(),
            Object::Pack(pack) => pack.first.timeline,
        }
    }

    /// Returns the object's key.
    pub fn key(self) -> String {
        match self {
            Object::File(file) => file.key(),
            Object::Pack(pack) => pack.key(),
        }
    }

    /// Returns the first and last segment in the object, if it contains complete segments.
    pub fn segments(self) -> Option<(SegmentName, SegmentName)> {
        match self {
            Object::File(ArchivedFile::Segment(name)) => Some((name, name)),
            Object::Pack(pack) => Some((pack.first, pack.last)),
            Object::File(_) => None,
        }
    }

    fn order(self) -> impl Ord {
        let of_timeline = |timeline| SegmentName { timeline, log: 0, segment: 0 };
        match self {
            Object::File(ArchivedFile::History(timeline)) => (0, of_timeline(timeline), 0, 0),
            Object::File(ArchivedFile::Backup(name, offset)) => (1, name, 0, offset),
            Object::File(ArchivedFile::Segment(name)) => (2, name, 0, 0),
            Object::Pack(pack) => (2, pack.first, 1, pack.last.segment),
            Object::File(ArchivedFile::Partial(name)) => (2, name, 2, 0),
        }
    }
}

impl Ord for Object {
    fn cmp(&self, other: &Object) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Object {
    fn partial_cmp(&self, other: &Object) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Suffix after an archived file's name in its key.
const ENDING: &str = ".wlz";
const PACK_ENDING: &str = ".wpk";

/// Returns the key prefix of a timeline's segments.
pub fn timeline_prefix(timeline: Timeline) -> String {
    format!("{WAL}{timeline:08X}/")
}

/// Returns the key prefix of the segments in the same 4 GB of WAL on the same timeline.
pub fn log_prefix(name: SegmentName) -> String {
    format!("{WAL}{:08X}/{:08X}/", name.timeline, name.log)
}

fn parse_hex(digits: &str) -> Option<u32> {
    let plain = digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_say_the_same() {
        for name in [
            "000000010000000000000007",
            "000000010000000A000000FF.partial",
            "0000000B.history",
            "000000010000000000000007.00000028.backup",
        ] {
            let file = ArchivedFile::parse(name).unwrap();
            assert_eq!(file.to_string(), name);
            assert_eq!(Object::parse_key(&file.key()), Some(Object::File(file)));
        }
        let segment = |segment| SegmentName { timeline: 1, log: 2, segment };
        let pack = PackName { first: segment(8), last: segment(0x1F) };
        assert_eq!(pack.key(), "wal/00000001/00000002/000000010000000200000008-00000001000000020000001F.wpk");
        assert_eq!(Object::parse_key(&pack.key()), Some(Object::Pack(pack)));
        assert_eq!(pack.segments(), 24);
        assert!(pack.contains(segment(0x1F)) && !pack.contains(segment(0x20)));
    }

    #[test]
    fn histories_are_archived_before_all_else() {
        let names =
            ["0000000B.history", "000000010000000000000007", "000000010000000000000007.00000028.backup"];
        let mut files: Vec<ArchivedFile> =
            names.iter().rev().filter_map(|name| ArchivedFile::parse(name)).collect();
        files.sort_by_cached_key(|file| file.archiving_order());
        assert_eq!(files.iter().map(ArchivedFile::to_string).collect::<Vec<_>>(), names);
    }

    #[test]
    fn objects_are_in_the_order_of_the_log() {
        let segment = |segment| SegmentName { timeline: 1, log: 2, segment };
        let single = |number| Object::File(ArchivedFile::Segment(segment(number)));
        let pack = |first, last| Object::Pack(PackName { first: segment(first), last: segment(last) });
        let partial = Object::File(ArchivedFile::Partial(segment(9)));
        let sorted = [single(0), pack(0, 3), pack(0, 7), single(5), pack(8, 9), partial, single(10)];
        assert!(sorted.is_sorted());
        assert!(Object::File(ArchivedFile::History(7)) < single(0));
    }

    #[test]
    fn other_names_are_no_files_of_postgresql() {
        for name in [
            "",
            "00000001000000000000000a",
            "000000010000000000000007.gz",
            "000000010000000000000007.backup",
            "000000010000000000000007.28.backup",
            "000000010000000000000007.partial.partial",
            "1.history",
            "postgresql.conf",
            "../000000010000000000000007",
        ] {
            assert_eq!(ArchivedFile::parse(name), None, "{name}");
        }
        for key in [
            "wal/00000002/00000000/000000010000000000000007.wlz",
            "000000010000000000000007.wlz",
            "wal/00000001/00000000/000000010000000000000007-000000010000000000000006.wpk",
            "wal/00000001/00000000/000000010000000000000007-000000010000000100000008.wpk",
        ] {
            assert_eq!(Object::parse_key(key), None, "{key}");
        }
    }
}

//! Page magics of the segments that are coded as records, as `docs/format.md` lists them.

use walden_format::version::Major;

/// Latest version of the format.
pub const FORMAT_VERSION: u16 = 2;
/// Oldest reader version for files without features of later versions. Such files state this version.
pub const MIN_READER: u16 = 1;
/// Oldest reader version for files that have [copies](crate::predict::copies).
pub const COPIES_READER: u16 = 2;

/// Page magics, each with the oldest reader version that decodes its records.
///
/// A new magic requires a new format version: readers of an older version would report the file as damaged.
#[rustfmt::skip]
const MAGICS: &[(u16, u16)] = &[
    (0xD087, 1),
    (0xD093, 1),
    (0xD097, 1),
    (0xD098, 1),
    (0xD101, 1),
    (0xD106, 1),
    (0xD10D, 1),
    (0xD110, 1),
    (0xD113, 1),
    (0xD116, 1),
    (0xD118, 1),
    (0xD122, 1),
];

/// Returns the oldest reader version that decodes records of this PostgreSQL version; `None` if the format
/// does not code them.
pub fn least_reader(version: Major) -> Option<u16> {
    MAGICS.iter().find(|(magic, _)| *magic == version.magic()).map(|(_, reader)| *reader)
}

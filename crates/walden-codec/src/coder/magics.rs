//! Page magics of the segments that are coded as records, as `docs/format.md` lists them.

use walden_format::version::Major;

/// The latest version of the format.
pub const FORMAT_VERSION: u16 = 2;
/// The oldest reader of files that use nothing that a later version added. They are of this version.
pub const MIN_READER: u16 = 1;
/// The oldest reader of files that have [copies](crate::predict::copies).
pub const COPIES_READER: u16 = 2;

/// Page magics, each with the oldest reader of the format that decodes its records.
///
/// A new magic has a new format version here, never an old one: readers of that version would call the file damaged.
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

/// The oldest reader that decodes records of this version of PostgreSQL; `None` if the format does not code them.
pub fn least_reader(version: Major) -> Option<u16> {
    MAGICS.iter().find(|(magic, _)| *magic == version.magic()).map(|(_, reader)| *reader)
}

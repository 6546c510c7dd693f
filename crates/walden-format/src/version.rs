//! Major versions of PostgreSQL and the page magics that identify them.
//!
//! The first two bytes of every page (`XLOG_PAGE_MAGIC` in `xlog_internal.h`) identify the major version.
//! Where a minor release changed a record without a new magic, decoding depends on block ids and forks, never
//! on the version.

use std::fmt;

/// A major version of PostgreSQL whose WAL Walden reads.
///
/// Later releases of this crate add versions, so a `match` needs a wildcard arm:
///
/// ```compile_fail,E0004
/// use walden_format::version::Major::{self, *};
///
/// fn is_known(version: Major) -> bool {
///     match version {
///         V9_5 | V9_6 | V10 | V11 | V12 | V13 | V14 | V15 | V16 | V17 | V18 | V19 => true,
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Major {
    V9_5,
    V9_6,
    V10,
    V11,
    V12,
    V13,
    V14,
    V15,
    V16,
    V17,
    V18,
    V19,
}

/// One row per page magic that a release of PostgreSQL has used.
struct MagicRow {
    magic: u16,
    name: &'static str,
    /// `None`: too old; its records have a different layout.
    major: Option<Major>,
}

const fn row(magic: u16, name: &'static str, major: Option<Major>) -> MagicRow {
    MagicRow { magic, name, major }
}

#[rustfmt::skip]
const MAGICS: &[MagicRow] = &[
    row(0xD063, "8.4", None),
    row(0xD064, "9.0", None),
    row(0xD066, "9.1", None),
    row(0xD071, "9.2", None),
    row(0xD075, "9.3", None),
    row(0xD07E, "9.4", None),
    row(0xD087, "9.5", Some(Major::V9_5)),
    row(0xD093, "9.6", Some(Major::V9_6)),
    row(0xD097, "10",  Some(Major::V10)),
    row(0xD098, "11",  Some(Major::V11)),
    row(0xD101, "12",  Some(Major::V12)),
    row(0xD106, "13",  Some(Major::V13)),
    row(0xD10D, "14",  Some(Major::V14)),
    row(0xD110, "15",  Some(Major::V15)),
    row(0xD113, "16",  Some(Major::V16)),
    row(0xD116, "17",  Some(Major::V17)),
    row(0xD118, "18",  Some(Major::V18)),
    row(0xD122, "19",  Some(Major::V19)),
];

/// The server that wrote a page that Walden does not read, according to the page header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnreadableMagic {
    /// A release whose records have a different layout; its name.
    TooOld(&'static str),
    /// The magic of a readable version with its bytes swapped: a big-endian server.
    BigEndian(Major),
    /// The magic of a readable version, in a header whose 8-byte numbers are aligned to 4 bytes: a 32-bit x86
    /// server.
    FourByteAlignment(Major),
    /// Between two known values: a development snapshot, beta or fork of about this version.
    Development(&'static str),
    /// Above all known values: a version newer than this program.
    Newer,
    /// A value that PostgreSQL never used: not a WAL page.
    NotWal,
}

impl Major {
    /// Returns the version that writes pages with this magic.
    pub fn from_magic(magic: u16) -> Result<Major, UnreadableMagic> {
        if let Some(row) = MAGICS.iter().find(|row| row.magic == magic) {
            return row.major.ok_or(UnreadableMagic::TooOld(row.name));
        }
        let swapped = MAGICS.iter().find(|row| row.magic == magic.swap_bytes());
        if let Some(major) = swapped.and_then(|row| row.major) {
            return Err(UnreadableMagic::BigEndian(major));
        }
        let next = MAGICS.iter().find(|row| row.magic > magic);
        Err(match next {
            Some(row) if magic > MAGICS[0].magic && row.major.is_some() => {
                UnreadableMagic::Development(row.name)
            }
            Some(row) if magic > MAGICS[0].magic => UnreadableMagic::TooOld(row.name),
            None if magic < 0xD200 => UnreadableMagic::Newer,
            _ => UnreadableMagic::NotWal,
        })
    }

    /// The magic of this version's pages.
    pub fn magic(self) -> u16 {
        MAGICS.iter().find(|row| row.major == Some(self)).map_or(0, |row| row.magic)
    }

    /// Every version, oldest first.
    pub fn all() -> impl Iterator<Item = Major> {
        MAGICS.iter().filter_map(|row| row.major)
    }

    /// PostgreSQL's numeric version: 9.5 is 90500, 18 is 180000.
    pub fn number(self) -> u32 {
        match self {
            Major::V9_5 => 90_500,
            Major::V9_6 => 90_600,
            later => 100_000 + 10_000 * (later as u32 - Major::V10 as u32),
        }
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MAGICS.iter().find(|row| row.major == Some(*self)).map_or("?", |row| row.name))
    }
}

impl fmt::Display for UnreadableMagic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnreadableMagic::TooOld(name) => {
                write!(f, "written by PostgreSQL {name}, which is too old: Walden reads 9.5 and later")
            }
            UnreadableMagic::BigEndian(major) => {
                write!(f, "written by PostgreSQL {major} on a big-endian machine, which Walden does not read")
            }
            UnreadableMagic::FourByteAlignment(major) => write!(
                f,
                "written by PostgreSQL {major} on a 32-bit machine that aligns to 4 bytes, which Walden does not read"
            ),
            UnreadableMagic::Development(name) => write!(
                f,
                "written by a development snapshot, a beta or a fork of PostgreSQL {name}: Walden reads released versions"
            ),
            UnreadableMagic::Newer => write!(
                f,
                "written by a PostgreSQL newer than {}, the newest that this Walden knows: install a newer Walden",
                Major::V19
            ),
            UnreadableMagic::NotWal => write!(f, "not a page of PostgreSQL's write-ahead log"),
        }
    }
}

impl std::error::Error for UnreadableMagic {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_readable_magic_round_trips() {
        assert_eq!(Major::all().count(), 12);
        for major in Major::all() {
            assert_eq!(Major::from_magic(major.magic()), Ok(major));
            assert_eq!(Major::from_magic(major.magic().swap_bytes()), Err(UnreadableMagic::BigEndian(major)));
        }
        assert_eq!(Major::V18.number(), 180_000);
        assert_eq!(Major::V18.to_string(), "18");
    }

    #[test]
    fn unreadable_magics_are_named() {
        assert_eq!(Major::from_magic(0xD075), Err(UnreadableMagic::TooOld("9.3")));
        assert_eq!(Major::from_magic(0xD070), Err(UnreadableMagic::TooOld("9.2")));
        assert_eq!(Major::from_magic(0xD115), Err(UnreadableMagic::Development("17")));
        for snapshot in 0xD11F..=0xD121 {
            assert_eq!(Major::from_magic(snapshot), Err(UnreadableMagic::Development("19")));
        }
        assert_eq!(Major::from_magic(0xD123), Err(UnreadableMagic::Newer));
        assert_eq!(Major::from_magic(0), Err(UnreadableMagic::NotWal));
        assert_eq!(Major::from_magic(0x457F), Err(UnreadableMagic::NotWal));
        assert_eq!(Major::from_magic(0xFFFF), Err(UnreadableMagic::NotWal));
    }
}

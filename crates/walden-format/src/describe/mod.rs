//! Descriptions of records as `pg_waldump` of the same version prints them, and the function
//! `pg_get_wal_records_info` of `pg_walinspect`.
//!
//! The texts are the same as from `src/backend/access/rmgrdesc`, versions 14 to 19. Times are in UTC, and
//! bytes of names that are not UTF-8 become replacement characters.

mod indexes;
mod system;
mod tables;

use std::fmt::{self, Display};

use crate::lsn::Lsn;
use crate::payload::{self, Item, Items};
use crate::record::{Fork, Record, RelFileLocator};
use crate::rmgr::rmid;
use crate::version::Major;

/// Tablespaces whose paths have no version (`GLOBALTABLESPACE_OID`, `DEFAULTTABLESPACE_OID`).
const GLOBAL_TABLESPACE: u32 = 1664;
const DEFAULT_TABLESPACE: u32 = 1663;
/// `CATALOG_VERSION_NO` of each version, which paths of other tablespaces contain.
const CATALOG_VERSIONS: [(Major, u32); 6] = [
    (Major::V14, 202_107_181),
    (Major::V15, 202_209_061),
    (Major::V16, 202_307_071),
    (Major::V17, 202_406_281),
    (Major::V18, 202_506_291),
    (Major::V19, 202_610_061),
];

/// Returns the description of a record, which may be empty.
///
/// `None` for versions before 14, for resource managers and kinds that this crate does not know, and for
/// records whose fields are damaged or too long to be held.
pub fn describe(record: &Record<'_>) -> Option<String> {
    if record.version < Major::V14 {
        return None;
    }
    record.kind().row(record.version)?;
    let mut text = String::new();
    match record.header.rmid {
        rmid::GIN | rmid::GIST | rmid::SPGIST | rmid::HASH | rmid::BRIN | rmid::GENERIC => {
            indexes::describe(record, &mut text)?;
        }
        rmid::HEAP | rmid::HEAP2 | rmid::BTREE => {
            tables::describe(record, &payload::parse(record).ok()?, &mut text)?;
        }
        _ => system::describe(record, &payload::parse(record).ok()?, &mut text)?,
    }
    Some(text)
}

/// Appends formatted text to a `String`, which never fails.
macro_rules! put {
    ($text:expr, $($arguments:tt)*) => {{
        let _ = std::fmt::Write::write_fmt($text, format_args!($($arguments)*));
    }};
}
use put;

/// `T` or `F`.
fn t_or_f(is_true: bool) -> char {
    if is_true { 'T' } else { 'F' }
}

/// A list in brackets (`array_desc`).
fn list<T: Item + Display>(out: &mut String, items: Items<'_, T>) {
    elements(out, items, |out, item| put!(out, "{item}"));
}

fn elements<T>(out: &mut String, items: impl Iterator<Item = T>, mut element: impl FnMut(&mut String, T)) {
    out.push_str(" [");
    for (at, item) in items.enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        element(out, item);
    }
    out.push(']');
}

/// An LSN; since 19, its lower half has eight digits.
struct Position(Major, Lsn);

impl Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position(version, Lsn(lsn)) = *self;
        let (high, low) = (lsn >> 32, lsn as u32);
        if version >= Major::V19 { write!(f, "{high:X}/{low:08X}") } else { write!(f, "{high:X}/{low:X}") }
    }
}

/// A transaction ID with its epoch (`FullTransactionId`).
struct FullXid(u64);

impl Display for FullXid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0 >> 32, self.0 as u32)
    }
}

/// The path of a relation's fork (`relpathperm`).
struct Path(Major, RelFileLocator, Fork);

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Path(version, RelFileLocator { tablespace, database, relation }, fork) = *self;
        match tablespace {
            GLOBAL_TABLESPACE => write!(f, "global/{relation}")?,
            DEFAULT_TABLESPACE => write!(f, "base/{database}/{relation}")?,
            _ => {
                let catalog = CATALOG_VERSIONS.iter().find(|(of, _)| *of == version);
                let catalog = catalog.map_or(0, |(_, catalog)| *catalog);
                write!(f, "pg_tblspc/{tablespace}/PG_{version}_{catalog}/{database}/{relation}")?;
            }
        }
        f.write_str(match fork {
            Fork::FREE_SPACE_MAP => "_fsm",
            Fork::VISIBILITY_MAP => "_vm",
            Fork::INIT => "_init",
            _ => "",
        })
    }
}

/// A number as C's `%g` prints it.
struct General(f64);

impl Display for General {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: i32 = 6;
        if !self.0.is_finite() || self.0 == 0.0 {
            let text = self.0.to_string().to_lowercase();
            return f.write_str(&text);
        }
        let scientific = format!("{:.*e}", DIGITS as usize - 1, self.0);
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let trimmed = |text: &str| match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.to_owned(),
        };
        if (-4..DIGITS).contains(&exponent) {
            let decimals = (DIGITS - 1 - exponent) as usize;
            return f.write_str(&trimmed(&format!("{:.decimals$}", self.0)));
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(f, "{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_by_c() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.23457e+06"),
            (1e100, "1e+100"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (999_999.5, "1e+06"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(General(number).to_string(), text);
        }
    }
}

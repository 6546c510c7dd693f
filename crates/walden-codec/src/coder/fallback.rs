//! Reasons for coding a file as bytes.

use std::fmt;

use walden_format::fault::FaultKind;
use walden_format::lsn::Lsn;
use walden_format::page::PageHeaderError;
use walden_format::version::{Major, UnreadableMagic};

/// Reason why a file is coded as bytes rather than as records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The file does not start with a segment's first page.
    FirstPage(FaultKind),
    /// The format does not code records of this version.
    Version(Major),
    /// The first page states a segment size other than the file's size.
    Size {
        /// Segment size in bytes, according to the first page.
        stated: u64,
        /// Size of the file in bytes.
        found: u64,
    },
    /// The segment's address is not a multiple of its size.
    Address(Lsn),
    /// The file cannot be read, or it changed while it was read.
    Input,
    /// The pages that continue the first record are not as PostgreSQL writes them.
    Head,
    /// Decoding this record would not yield the same bytes.
    Record(Lsn),
    /// Decoding needs more memory or more blocks than [`super::Limits`] allow.
    Limits,
    /// The columns exceed the limit that the format sets for a segment of this size.
    Columns,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::FirstPage(FaultKind::PageHeader(PageHeaderError::Magic(
                _,
                UnreadableMagic::NotWal,
            )))
            | Fallback::FirstPage(FaultKind::PageHeader(PageHeaderError::Short)) => {
                write!(f, "no segment: it does not start with a page header")
            }
            Fallback::FirstPage(FaultKind::PageHeader(PageHeaderError::Magic(magic, meaning))) => {
                write!(f, "no segment of a known version: page magic {magic:04X}, {meaning}")
            }
            Fallback::FirstPage(_) => {
                write!(f, "no segment: its first page has other fields than PostgreSQL writes")
            }
            Fallback::Version(version) => {
                write!(f, "this version of the format does not code records of PostgreSQL {version}")
            }
            Fallback::Size { stated, found } => {
                write!(f, "no whole segment: its first page states {stated} bytes, the file has {found}")
            }
            Fallback::Address(lsn) => {
                write!(f, "no segment: its address {lsn} is not a multiple of its size")
            }
            Fallback::Input => write!(f, "the file cannot be read twice, or it changed in between"),
            Fallback::Head => {
                write!(f, "the pages that continue its first record are not as PostgreSQL writes them")
            }
            Fallback::Record(lsn) => write!(f, "the record at {lsn} cannot be reconstructed from columns"),
            Fallback::Limits => {
                write!(f, "decoding its records needs more memory or blocks than the file allows")
            }
            Fallback::Columns => write!(f, "its columns exceed the limit of the format"),
        }
    }
}

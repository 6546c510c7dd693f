//! Errors of decoding a stream of pages: the kind of error and its LSN.

use std::fmt;

use crate::lsn::{Lsn, Timeline};
use crate::page::PageHeaderError;
use crate::record::{MAX_RECORD_BYTES, RECORD_HEADER, RecordError};
use crate::version::{Major, UnreadableMagic};

/// The first invalid position in WAL: its LSN, the expected value and the value found.
///
/// Not every fault is damage. The WAL of a running or crashed server ends in one, because the bytes after the
/// last record were never written or are from an earlier use of the file. Only the bytes after the fault can
/// distinguish the two cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The LSN of the page or record at fault.
    pub lsn: Lsn,
    /// The LSN of the first byte that is wrong.
    pub at: Lsn,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// The kind of a [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum FaultKind {
    /// The bytes at a page's start are not a page header.
    PageHeader(PageHeaderError),
    /// A page of another version than the stream's.
    PageVersion { expected: Major, found: Major },
    /// A page with another address, such as an old page of a recycled segment.
    PageAddress { expected: Lsn, found: Lsn },
    /// A page whose timeline is later than its segment's timeline, or earlier than the previous page's
    /// timeline.
    PageTimeline { expected: Timeline, found: Timeline },
    /// A segment's first page without a long header, or another page with one.
    PageHeaderWidth { long_expected: bool },
    /// The system identifier belongs to another cluster.
    SystemId { expected: u64, found: u64 },
    /// The segment size or page size differs from the stream's.
    Geometry { segment_bytes: u32, page_bytes: u32 },
    /// A record is not complete, but the page does not continue one.
    ContinuationExpected { remaining: u32 },
    /// The page continues a record, but the preceding record is complete.
    ContinuationUnexpected,
    /// The page continues a record of another length.
    ContinuationLength { expected: u32, found: u32 },
    /// Padding that is not zero: see [`crate::stream::Decoder::with_checked_padding`].
    Padding { found: u8 },
    /// Zeros where a record should start: nothing has been written there yet.
    NoRecord,
    /// A record's length is out of range.
    RecordLength(u32),
    /// The record's `xl_prev` does not point to the preceding record.
    PreviousLink { expected: Option<Lsn>, found: Lsn },
    /// The record's bytes do not match its checksum.
    Checksum { expected: u32, found: u32 },
    /// The headers within a record contradict each other although its checksum is right.
    Record(RecordError),
}

impl Fault {
    /// Whether nothing was ever written at this position: the usual end of WAL.
    pub fn is_unwritten(&self) -> bool {
        match self.kind {
            FaultKind::NoRecord => true,
            FaultKind::PageHeader(PageHeaderError::Magic(magic, _)) => magic == 0,
            _ => false,
        }
    }

    /// Describes the expected value.
    pub fn expected(&self) -> String {
        match self.kind {
            FaultKind::PageHeader(PageHeaderError::Short) => "a whole page header".into(),
            FaultKind::PageHeader(PageHeaderError::Magic(..)) => "the magic of a page of the log".into(),
            FaultKind::PageHeader(PageHeaderError::Flags(_)) => "page flags that this version has".into(),
            FaultKind::PageVersion { expected, .. } => format!("a page of PostgreSQL {expected}"),
            FaultKind::PageAddress { expected, .. } => format!("page address {expected}"),
            FaultKind::PageTimeline { expected, .. } => format!("a page of timeline {expected}"),
            FaultKind::PageHeaderWidth { long_expected: true } => {
                "a long page header (start of a segment)".into()
            }
            FaultKind::PageHeaderWidth { long_expected: false } => "a short page header".into(),
            FaultKind::SystemId { expected, .. } => format!("system identifier {expected}"),
            FaultKind::Geometry { .. } => "the stream's segment size and page size".into(),
            FaultKind::ContinuationExpected { remaining } => {
                format!("a page that continues the record ({remaining} bytes left)")
            }
            FaultKind::ContinuationUnexpected => "a page that starts with a new record".into(),
            FaultKind::ContinuationLength { expected, .. } => format!("{expected} bytes left of the record"),
            FaultKind::Padding { .. } => "zeros as padding".into(),
            FaultKind::NoRecord => "a record".into(),
            FaultKind::RecordLength(_) => {
                format!("a record length from {RECORD_HEADER} to {MAX_RECORD_BYTES}")
            }
            FaultKind::PreviousLink { expected: Some(lsn), .. } => format!("previous record at {lsn}"),
            FaultKind::PreviousLink { expected: None, .. } => "a previous record before this one".into(),
            FaultKind::Checksum { expected, .. } => format!("CRC {expected:08X} (stored)"),
            FaultKind::Record(_) => "consistent headers within the record".into(),
        }
    }

    /// Describes the value found.
    pub fn found(&self) -> String {
        match self.kind {
            FaultKind::PageHeader(PageHeaderError::Short) => "the end of the data".into(),
            FaultKind::PageHeader(PageHeaderError::Magic(magic, reason)) => format!("{magic:04X}: {reason}"),
            FaultKind::PageHeader(PageHeaderError::Flags(flags)) => format!("{flags:04X}"),
            FaultKind::PageVersion { found, .. } => format!("a page of PostgreSQL {found}"),
            FaultKind::PageAddress { found, .. } => found.to_string(),
            FaultKind::PageTimeline { found, .. } => found.to_string(),
            FaultKind::PageHeaderWidth { long_expected: true } => "a short one".into(),
            FaultKind::PageHeaderWidth { long_expected: false } => "a long one".into(),
            FaultKind::SystemId { found, .. } => found.to_string(),
            FaultKind::Geometry { segment_bytes, page_bytes } => {
                format!("segments of {segment_bytes} bytes, pages of {page_bytes} bytes")
            }
            FaultKind::ContinuationExpected { .. } => "a page that starts with a new record".into(),
            FaultKind::ContinuationUnexpected => "a page that continues an earlier one".into(),
            FaultKind::ContinuationLength { found, .. } => format!("{found}"),
            FaultKind::Padding { found } => format!("{found:02X}"),
            FaultKind::NoRecord => "zeros".into(),
            FaultKind::RecordLength(found) => found.to_string(),
            FaultKind::PreviousLink { found, .. } => found.to_string(),
            FaultKind::Checksum { found, .. } => format!("CRC {found:08X} (computed)"),
            FaultKind::Record(error) => error.to_string(),
        }
    }
}

impl FaultKind {
    /// Returns the page magic and its version if the fault is a page of a PostgreSQL version that Walden does
    /// not read. `None` for other faults.
    pub fn unknown_version(&self) -> Option<(u16, UnreadableMagic)> {
        match *self {
            FaultKind::PageHeader(PageHeaderError::Magic(magic, reason))
                if reason != UnreadableMagic::NotWal =>
            {
                Some((magic, reason))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::PageHeader(_)
            | FaultKind::PageVersion { .. }
            | FaultKind::PageAddress { .. }
            | FaultKind::PageTimeline { .. }
            | FaultKind::PageHeaderWidth { .. }
            | FaultKind::SystemId { .. }
            | FaultKind::Geometry { .. } => "page",
            _ => "record",
        };
        write!(f, "{what} at {}: expected {}, found {}", self.lsn, self.expected(), self.found())
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            FaultKind::PageHeader(error) => Some(error),
            FaultKind::Record(error) => Some(error),
            _ => None,
        }
    }
}

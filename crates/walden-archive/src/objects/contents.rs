//! Summarizes a segment's records, so that lists and searches by time need not decode it again.

use std::fmt;

use serde::{Deserialize, Serialize};
use walden_format::crossing::{Beginning, Continuation};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::payload::{self, Payload, Timestamp, xact, xlog};
use walden_format::record::Record;
use walden_format::rmgr;
use walden_format::stream::{Decoder, StreamInfo};
use walden_format::version::Major;
use walden_source::clock::{Clock, goes_back};

use crate::hash::{from_hex, to_hex};

/// Summary of a segment's records. LSNs are in PostgreSQL's text form, times in microseconds since 1970-01-01
/// 00:00:00 UTC.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Contents {
    /// System identifier of the cluster, as text because JSON numbers are inexact at this size.
    pub system_identifier: String,
    /// PostgreSQL's major version.
    pub version: String,
    /// Magic number of the pages (four hexadecimal digits) if Walden could not read their version. Then the
    /// other fields describe no records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_magic: Option<String>,
    /// The timeline in the segment's name.
    pub timeline: u32,
    /// Size of the segment in bytes.
    pub segment_bytes: u64,
    /// Start LSN of the first record, or `None` if no record starts in the segment.
    pub first_record: Option<String>,
    /// Start LSN of the record before the first record, according to the first record (`xl_prev`).
    pub first_record_previous: Option<String>,
    /// Start LSN of the last complete record.
    pub last_record: Option<String>,
    /// Start LSN of a record that continues in the next segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_record: Option<String>,
    /// The part of that record in this segment. Older summaries lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_part: Option<RecordPart>,
    /// The part of a record that the segment starts with. Older summaries lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_part: Option<RecordPart>,
    /// End of the complete records.
    pub end: String,
    /// Number of records that start and end in the segment.
    pub records: u64,
    /// Time of the first commit or abort, at which recovery to a time can stop, in microseconds since
    /// 1970-01-01 00:00:00 UTC.
    pub first_end_of_transaction: Option<i64>,
    /// Time of the last commit or abort, in microseconds since 1970-01-01 00:00:00 UTC.
    pub last_end_of_transaction: Option<i64>,
    /// Whether the times of commits and aborts go back within the segment, because the server's clock was set
    /// back. Older summaries lack it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub times_go_back: bool,
    /// Named restore points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restore_points: Vec<RestorePoint>,
    /// Checkpoints that completed in the segment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// LSN of the first record which states that the server runs with `wal_level = minimal`. Older
    /// summaries lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimal_wal: Option<String>,
    /// Bytes of records by resource manager, excluding full-page images.
    pub bytes_by_resource_manager: Vec<(String, u64)>,
    /// Bytes of full-page images.
    pub full_page_image_bytes: u64,
}

/// A segment's part of a record that crosses segments: see [`walden_format::crossing`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecordPart {
    /// Bytes in the segment.
    pub bytes: u32,
    /// Length of the record (`xl_tot_len`), if it starts in the segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u32>,
    /// The first bytes, at most 24, in hexadecimal digits.
    pub first_bytes: String,
    /// CRC-32C of the bytes; of a record that starts in the segment, without its header.
    pub crc: u32,
    /// Whether the record ends in the segment.
    #[serde(default, rename = "last", skip_serializing_if = "std::ops::Not::not")]
    pub is_last: bool,
}

impl From<&Beginning> for RecordPart {
    fn from(part: &Beginning) -> RecordPart {
        let Beginning { lsn: _, total_len, bytes, header, crc } = part;
        let (bytes, total_bytes, first_bytes) = (*bytes, Some(*total_len), to_hex(header));
        RecordPart { bytes, total_bytes, first_bytes, crc: *crc, is_last: false }
    }
}

impl From<&Continuation> for RecordPart {
    fn from(part: &Continuation) -> RecordPart {
        let Continuation { bytes, first, crc, is_last } = part;
        let first_bytes = to_hex(first);
        RecordPart { bytes: *bytes, total_bytes: None, first_bytes, crc: *crc, is_last: *is_last }
    }
}

/// A named restore point, which recovery can target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RestorePoint {
    /// Name of the restore point.
    pub name: String,
    /// LSN of its record.
    pub lsn: String,
    /// Creation time, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
}

/// A completed checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    /// LSN of the checkpoint record.
    pub lsn: String,
    /// Redo pointer: the LSN at which recovery from the checkpoint starts.
    pub redo: String,
    /// Time in the record: when the checkpoint started, in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
    /// The checkpoint was written at server shutdown.
    #[serde(rename = "shutdown")]
    pub is_shutdown: bool,
}

/// WAL that was written with `wal_level = minimal`. PostgreSQL refuses to recover past this WAL, because it
/// lacks changes of the data (`CheckRequiredParameterValues` in `xlogrecovery.c`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MinimalWal {
    /// The segment in which it starts.
    pub segment: String,
    /// LSN of the record that states the setting.
    pub lsn: String,
}

impl fmt::Display for MinimalWal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MinimalWal { segment, lsn } = self;
        write!(
            f,
            "the server ran with wal_level = minimal from {lsn} ({segment}) on: earlier base backups cannot be recovered past it"
        )
    }
}

/// Maximum number of restore points and of checkpoints kept per segment, which could contain hundreds of
/// thousands.
const MAX_EVENTS: usize = 256;

/// Collects a segment's contents from its records.
pub(crate) struct Survey {
    contents: Contents,
    version: Major,
    last: Option<Lsn>,
    clock: Clock,
    bytes: Vec<u64>,
    /// A record states that the server writes the timeline of the segment's name.
    pub states_timeline: bool,
}

impl Contents {
    /// Where `pg_resetwal` started the WAL again, if the segment starts there.
    ///
    /// `pg_resetwal` writes a shutdown checkpoint without a previous record at the start of a new segment
    /// (`WriteEmptyXLOG` in `pg_resetwal.c`). In a cluster's first segment, `initdb` does the same
    /// (`BootStrapXLOG` in `xlog.c`).
    pub fn reset_at(&self) -> Option<Lsn> {
        let parse = |text: &Option<String>| text.as_ref()?.parse::<Lsn>().ok();
        let (at, previous) = (parse(&self.first_record)?, parse(&self.first_record_previous)?);
        let is_first_segment = at.0.checked_div(self.segment_bytes)? <= 1;
        let is_checkpoint = self
            .checkpoints
            .first()
            .is_some_and(|checkpoint| checkpoint.is_shutdown && checkpoint.lsn.parse() == Ok(at));
        (previous == Lsn::INVALID && is_checkpoint && !is_first_segment).then_some(at)
    }

    /// Returns the times of the first and the last commit or abort.
    pub(crate) fn ends_of_transactions(&self) -> Option<(i64, i64)> {
        self.first_end_of_transaction.zip(self.last_end_of_transaction)
    }

    /// Returns whether the times of commits and aborts go back within the segment, as far as the summary
    /// shows it.
    pub(crate) fn goes_back(&self) -> bool {
        self.times_go_back || self.ends_of_transactions().is_some_and(|(first, last)| goes_back(first, last))
    }

    /// Returns the first part of the record that continues in the next segment.
    pub(crate) fn beginning(&self) -> Option<Beginning> {
        let RecordPart { bytes, total_bytes, first_bytes, crc, .. } = self.unfinished_part.as_ref()?;
        Some(Beginning {
            lsn: self.unfinished_record.as_ref()?.parse().ok()?,
            total_len: (*total_bytes)?,
            bytes: *bytes,
            header: from_hex(first_bytes)?,
            crc: *crc,
        })
    }

    /// Returns the part of a record that the segment starts with.
    pub(crate) fn continuation(&self) -> Option<Continuation> {
        let RecordPart { bytes, first_bytes, crc, is_last, .. } = self.continued_part.as_ref()?;
        Some(Continuation { bytes: *bytes, first: from_hex(first_bytes)?, crc: *crc, is_last: *is_last })
    }

    /// Returns the segment and LSN where WAL of `wal_level = minimal` starts, if it does in this segment.
    pub fn minimal_wal(&self) -> Option<MinimalWal> {
        let (lsn, size) = (self.minimal_wal.clone()?, SegmentSize::new(self.segment_bytes)?);
        let number = size.segment_of(lsn.parse().ok()?);
        Some(MinimalWal { segment: SegmentName::new(self.timeline, number, size).to_string(), lsn })
    }

    /// Creates contents without records.
    fn new(name: SegmentName, system_id: u64, version: String, segment_size: SegmentSize) -> Contents {
        Contents {
            system_identifier: system_id.to_string(),
            version,
            unknown_magic: None,
            timeline: name.timeline,
            segment_bytes: segment_size.bytes(),
            first_record: None,
            first_record_previous: None,
            last_record: None,
            unfinished_record: None,
            unfinished_part: None,
            continued_part: None,
            end: String::new(),
            records: 0,
            first_end_of_transaction: None,
            last_end_of_transaction: None,
            times_go_back: false,
            restore_points: Vec::new(),
            checkpoints: Vec::new(),
            minimal_wal: None,
            bytes_by_resource_manager: Vec::new(),
            full_page_image_bytes: 0,
        }
    }

    /// Creates the contents of a segment whose version Walden does not read.
    pub(crate) fn for_unknown_version(
        name: SegmentName,
        system_id: u64,
        size: SegmentSize,
        magic: u16,
    ) -> Contents {
        let start = name.start(size).unwrap_or_default();
        Contents {
            unknown_magic: Some(format!("{magic:04X}")),
            end: start.to_string(),
            ..Contents::new(name, system_id, "unknown".to_owned(), size)
        }
    }
}

impl Survey {
    pub fn new(name: SegmentName, info: &StreamInfo) -> Survey {
        let contents = Contents::new(name, info.system_id, info.version.to_string(), info.segment_size);
        let bytes = vec![0; 256];
        Survey {
            contents,
            version: info.version,
            last: None,
            clock: Clock::default(),
            bytes,
            states_timeline: false,
        }
    }

    pub fn observe(&mut self, record: &Record<'_>) {
        let contents = &mut self.contents;
        if self.last.is_none() {
            contents.first_record = Some(record.lsn.to_string());
            contents.first_record_previous = Some(record.header.prev.to_string());
        }
        self.last = Some(record.lsn);
        contents.records += 1;
        let images: u64 =
            record.blocks.iter().filter_map(|block| block.image).map(|image| u64::from(image.len)).sum();
        contents.full_page_image_bytes += images;
        let bytes = &mut self.bytes[usize::from(record.header.rmid)];
        *bytes += u64::from(record.header.total_len).saturating_sub(images);
        match record.header.rmid {
            rmgr::rmid::XACT => {
                if let Some((_, time)) = xact::plain_end(record) {
                    self.observe_end(record.lsn, time);
                } else if let Ok(Payload::Commit(end) | Payload::Abort(end)) = payload::parse(record) {
                    self.observe_end(record.lsn, end.time);
                }
            }
            rmgr::rmid::XLOG => self.observe_system(record),
            _ => {}
        }
    }

    fn observe_end(&mut self, lsn: Lsn, time: Timestamp) {
        let contents = &mut self.contents;
        let time = time.unix_micros();
        contents.first_end_of_transaction.get_or_insert(time);
        contents.last_end_of_transaction = Some(time);
        contents.times_go_back |= self.clock.would_go_back(time);
        self.clock.add(lsn, time);
    }

    fn observe_system(&mut self, record: &Record<'_>) {
        let contents = &mut self.contents;
        let payload = payload::parse(record);
        if let Ok(
            Payload::Checkpoint(xlog::Checkpoint { timeline, .. })
            | Payload::EndOfRecovery(xlog::EndOfRecovery { timeline, .. }),
        ) = payload
        {
            self.states_timeline |= timeline == contents.timeline;
        }
        match payload {
            Ok(Payload::RestorePoint(point)) if contents.restore_points.len() < MAX_EVENTS => {
                contents.restore_points.push(RestorePoint {
                    name: String::from_utf8_lossy(point.name.0).into_owned(),
                    lsn: record.lsn.to_string(),
                    time: point.time.unix_micros(),
                });
            }
            Ok(Payload::Checkpoint(checkpoint)) if contents.checkpoints.len() < MAX_EVENTS => {
                contents.checkpoints.push(Checkpoint {
                    lsn: record.lsn.to_string(),
                    redo: checkpoint.redo.to_string(),
                    time: checkpoint.time.saturating_mul(1_000_000),
                    is_shutdown: checkpoint.shutdown,
                });
            }
            Ok(Payload::ParameterChange(change)) if change.wal_level == xlog::WalLevel::Minimal => {
                contents.minimal_wal.get_or_insert_with(|| record.lsn.to_string());
            }
            _ => {}
        }
    }

    /// Returns the contents of a segment that the decoder has decoded.
    pub fn finish(self, decoder: &Decoder) -> Contents {
        let version = self.version;
        let named = |(number, &bytes): (usize, &u64)| {
            let manager = u8::try_from(number).ok().filter(|_| bytes > 0)?;
            Some((rmgr::resource_manager(version, manager).into_owned(), bytes))
        };
        let bytes_by_resource_manager = self.bytes.iter().enumerate().filter_map(named).collect();
        Contents {
            last_record: self.last.map(|lsn| lsn.to_string()),
            unfinished_record: decoder.unfinished().map(|unfinished| unfinished.lsn.to_string()),
            unfinished_part: decoder.beginning().as_ref().map(RecordPart::from),
            continued_part: decoder.continued().map(RecordPart::from),
            end: decoder.position().to_string(),
            bytes_by_resource_manager,
            ..self.contents
        }
    }
}

//! Determines whether two different contents of a segment are the same WAL.
//!
//! A segment contains no WAL after the record of a segment switch, or after the point where a later timeline
//! left its timeline. The bytes there are never read and vary: zeros, older data of a recycled file, or
//! records that crash recovery added before `pg_rewind` rewound the server. So the copies from a primary, its
//! standbys and `walden receive` may differ there, and each copy is correct.

use std::ops::ControlFlow;

use walden_format::lsn::{Lsn, SegmentName};
use walden_format::record::Record;
use walden_format::rmgr::{info, rmid};
use walden_format::stream::{Decoder, StreamInfo, Visitor};

use crate::history::History;
use crate::objects::check::Checked;
use crate::objects::name::ArchivedFile;

/// One content of a segment and the result of its check.
#[derive(Clone, Copy)]
pub(crate) struct Version<'a> {
    pub content: &'a [u8],
    pub checked: &'a Checked,
}

/// Returns where the WAL of the offered segment ends if the archived segment contains the same WAL up to
/// there. The archived one may contain more records, for example from a server that continued on an abandoned
/// timeline. The offered bytes after this point are not needed: they follow a segment switch or the end of
/// the timeline.
///
/// Returns `None` if the WAL differs or if either segment was accepted with damage.
pub(crate) fn same_until(
    file: ArchivedFile,
    archived: Version<'_>,
    offered: Version<'_>,
    histories: &[History],
) -> Option<Lsn> {
    let (name, is_partial) = segment_of(file)?;
    if archived.checked.is_damage_accepted {
        return None;
    }
    // The archived segment ends earlier and lacks some of the WAL.
    if !is_partial && offered.checked.is_sound && !archived.checked.is_sound {
        return None;
    }
    let end = used_end(file, offered, histories)?;
    if end > archived.end(name)? {
        return None;
    }
    let used = end.bytes_since(name.start(offered.checked.cluster?.segment_size)?) as usize;
    match (archived.content.get(..used), offered.content.get(..used)) {
        (Some(archived), Some(offered)) if archived == offered => Some(end),
        _ => None,
    }
}

/// Returns the offered content with zeros after its WAL, as PostgreSQL writes after a segment switch
/// (`CopyXLogRecordToWAL` in `xlog.c`). The archived segment often has exactly these bytes, which its hash
/// proves if its content cannot be read.
pub(crate) fn with_zeros_behind(
    file: ArchivedFile,
    offered: Version<'_>,
    histories: &[History],
) -> Option<Vec<u8>> {
    let (name, _) = segment_of(file)?;
    let end = used_end(file, offered, histories)?;
    let used = end.bytes_since(name.start(offered.checked.cluster?.segment_size)?) as usize;
    let mut content = offered.content.get(..used)?.to_vec();
    content.resize(offered.content.len(), 0);
    Some(content)
}

/// Returns the LSN at which the needed WAL of an offered segment ends, or `None` if the whole segment counts
/// or its damage was accepted.
fn used_end(file: ArchivedFile, offered: Version<'_>, histories: &[History]) -> Option<Lsn> {
    let (name, is_partial) = segment_of(file)?;
    if offered.checked.is_damage_accepted {
        return None;
    }
    let size = offered.checked.cluster?.segment_size;
    let start = name.start(size)?;
    let left = left_within(histories, name, start, start.plus(size.bytes()));
    let offered_end = offered.end(name)?;
    let end = match (is_partial, offered.checked.is_sound) {
        (true, _) => left.map_or(offered_end, |left| left.min(offered_end)),
        (false, true) => switch_end(name, offered.content)?,
        (false, false) => left?,
    };
    (end <= offered_end).then_some(end)
}

/// Returns the segment's name and whether it is partial.
fn segment_of(file: ArchivedFile) -> Option<(SegmentName, bool)> {
    match file {
        ArchivedFile::Segment(name) => Some((name, false)),
        ArchivedFile::Partial(name) => Some((name, true)),
        ArchivedFile::History(_) | ArchivedFile::Backup(..) => None,
    }
}

/// Returns the last point in a segment where a later timeline left its timeline. Returns `None` if one left
/// it after the segment, because then the entire segment is WAL.
fn left_within(histories: &[History], name: SegmentName, start: Lsn, segment_end: Lsn) -> Option<Lsn> {
    let last = histories.iter().filter_map(|history| history.end_of(name.timeline)).max()?;
    (start <= last && last < segment_end).then_some(last)
}

impl Version<'_> {
    /// Returns the end of the segment's records.
    fn end(self, name: SegmentName) -> Option<Lsn> {
        let end = self.checked.contents.as_ref()?.end.parse::<Lsn>().ok()?;
        Some(switch_end(name, self.content).unwrap_or(end))
    }
}

/// Returns the end LSN of the segment switch record in a segment or its first part, if any. The bytes after
/// this record are not WAL.
pub fn switch_end(name: SegmentName, content: &[u8]) -> Option<Lsn> {
    struct Switch(Option<Lsn>);
    impl Visitor for Switch {
        fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
            if record.header.rmid == rmid::XLOG && record.rmgr_info() == info::xlog::SWITCH {
                self.0 = Some(record.end);
            }
            ControlFlow::Continue(())
        }
    }
    let info = StreamInfo::from_first_page(content).ok()?;
    let start = name.start(info.segment_size)?;
    let info = StreamInfo { timeline: name.timeline, ..info };
    let mut decoder = Decoder::new(info, start, start.plus(info.segment_size.bytes()));
    let mut switch = Switch(None);
    // If the records end without a switch, the check already reported the reason.
    let _ = decoder.push(content, &mut switch);
    switch.0
}

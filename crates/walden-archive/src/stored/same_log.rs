//! Whether two contents of a segment are the same log, although they are not the same bytes.
//!
//! Behind the record of a switch to the end of the segment, and behind the place where a timeline was left for a later one, there is no
//! WAL. Nobody reads what is there, and PostgreSQL writes nothing certain: zeros, what a recycled file had before, or what crash
//! recovery added before `pg_rewind` took the server back. So the copies that a primary, its standbys and `walden receive` have of a
//! segment may differ there, and each of them is right.

use std::ops::ControlFlow;

use walden_format::lsn::{Lsn, SegmentName};
use walden_format::record::Record;
use walden_format::rmgr::{info, rmid};
use walden_format::stream::{Decoder, StreamInfo, Visitor};

use crate::history::History;
use crate::stored::check::Checked;
use crate::stored::name::ArchivedFile;

/// A content of a segment, and what its check found.
#[derive(Clone, Copy)]
pub(crate) struct Version<'a> {
    pub content: &'a [u8],
    pub checked: &'a Checked,
}

/// Where the WAL of the offered content of a segment ends, if the archived content has the same WAL up to there. Behind that, the archived
/// one may have more records, as of a server that went on with a timeline that others had left. What the offered one has there is not
/// needed: it lies behind a switch, or behind where its timeline was left.
///
/// Nothing if the WAL differs, or if one of them was accepted although it is damaged.
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
    // Else the archived one ends earlier, and has less of the log.
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

/// The offered content with zeros where it has no WAL, as PostgreSQL writes them behind a switch (`CopyXLogRecordToWAL` in `xlog.c`):
/// what is archived is often just that, which its hash shows where its content cannot be read.
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

/// Where an offered content has no WAL any more that anybody needs; nothing if all of it counts, or if its damage was accepted.
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

/// The segment, and whether it is a partial one.
fn segment_of(file: ArchivedFile) -> Option<(SegmentName, bool)> {
    match file {
        ArchivedFile::Segment(name) => Some((name, false)),
        ArchivedFile::Partial(name) => Some((name, true)),
        ArchivedFile::History(_) | ArchivedFile::Backup(..) => None,
    }
}

/// The last place within a segment where its timeline was left for a later one. If one left it behind the segment, all of that is its log.
fn left_within(histories: &[History], name: SegmentName, start: Lsn, segment_end: Lsn) -> Option<Lsn> {
    let last = histories.iter().filter_map(|history| history.end_of(name.timeline)).max()?;
    (start <= last && last < segment_end).then_some(last)
}

impl Version<'_> {
    /// Where its records end.
    fn end(self, name: SegmentName) -> Option<Lsn> {
        let end = self.checked.contents.as_ref()?.end.parse::<Lsn>().ok()?;
        Some(switch_end(name, self.content).unwrap_or(end))
    }
}

/// Where the record of a switch ends, if a segment's content or its beginning has one. What is behind that is no WAL.
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
    let info = StreamInfo::of_segment(content).ok()?;
    let start = name.start(info.segment_size)?;
    let info = StreamInfo { timeline: name.timeline, ..info };
    let mut decoder = Decoder::new(info, start, start.plus(info.segment_size.bytes()));
    let mut switch = Switch(None);
    // Where the records end without a switch, the check has said why.
    let _ = decoder.push(content, &mut switch);
    switch.0
}

//! Checks that segments follow each other: each record states where the previous one starts (`xl_prev`).
//!
//! A clone of a server, or a second standby promoted to the same timeline, writes segments with the same
//! names and system identifier as the original. Only the links between records distinguish them.
//!
//! A record that continues in the next segment has its checksum confirmed here, too: the check of a single
//! segment cannot do so.

use walden_format::crossing::{Beginning, Continuation, CrossingFault};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};

use crate::objects::check::Refusal;
use crate::objects::contents::Contents;

/// Returns the previous segment on the same timeline.
pub(crate) fn segment_before(name: SegmentName, size: SegmentSize) -> Option<SegmentName> {
    Some(SegmentName::new(name.timeline, name.number(size)?.checked_sub(1)?, size))
}

/// How a segment ends, for the check of the next segment.
#[derive(Clone, Default, Debug)]
pub(crate) struct SegmentEnd {
    /// The records to which the next segment's first record may point back; empty if they are unknown.
    pub last_records: Vec<Lsn>,
    /// The parts so far of a record that continues in the next segment, if they are known.
    pub unfinished: Option<Beginning>,
}

impl SegmentEnd {
    /// Returns the end of a segment with these contents. `before` is the end of the previous segment.
    pub fn new(contents: &Contents, before: &SegmentEnd) -> SegmentEnd {
        let own = [lsn(&contents.last_record), lsn(&contents.unfinished_record)];
        let last_records = last_of(own, &before.last_records);
        let unfinished = contents.beginning().or_else(|| {
            // The record neither starts nor ends in the segment.
            join(before, contents.continuation().as_ref()).ok().flatten().flatten()
        });
        SegmentEnd { last_records, unfinished }
    }
}

/// Joins the record that continues after a segment with its part in the next segment. Returns `None` if one
/// of the parts is unknown, and the joined part unless the record ends.
pub(crate) fn join(
    before: &SegmentEnd,
    continued: Option<&Continuation>,
) -> Result<Option<Option<Beginning>>, (Lsn, CrossingFault)> {
    let (Some(unfinished), Some(continued)) = (&before.unfinished, continued) else { return Ok(None) };
    unfinished.join(continued).map(Some).map_err(|fault| (unfinished.lsn, fault))
}

/// Returns the possible last records of a segment, from `own`: the last record that ends in the segment, and
/// the record that continues after it.
///
/// After a crash, recovery replaces an incomplete record by a record that points back at the last complete
/// record. If no record starts and ends in the segment, the last complete record is in an earlier segment,
/// among `before`.
pub(crate) fn last_of(own: [Option<Lsn>; 2], before: &[Lsn]) -> Vec<Lsn> {
    let mut records: Vec<Lsn> = own.into_iter().flatten().collect();
    if own[0].is_none() {
        if before.is_empty() {
            return Vec::new();
        }
        records.extend(before);
    }
    records
}

/// Checks that a segment's first record points back at one of the last records of the previous segment, and
/// the checksum of a record that ends in the segment and started before it.
///
/// # Errors
/// [`Refusal::Link`], [`Refusal::Reset`] and [`Refusal::Crossing`].
pub(crate) fn expect_link(contents: &Contents, before: SegmentName, end: &SegmentEnd) -> Result<(), Refusal> {
    expect_last_record(contents, before, &end.last_records)?;
    join(end, contents.continuation().as_ref()).map(drop).map_err(|(at, fault)| Refusal::Crossing {
        before: before.to_string(),
        at,
        fault,
    })
}

fn expect_last_record(contents: &Contents, before: SegmentName, last_records: &[Lsn]) -> Result<(), Refusal> {
    let (Some(at), Some(found)) = (lsn(&contents.first_record), lsn(&contents.first_record_previous)) else {
        return Ok(());
    };
    if last_records.is_empty() || last_records.contains(&found) {
        return Ok(());
    }
    let expected = last_records.iter().map(Lsn::to_string).collect::<Vec<_>>().join(" or ");
    let offset = at.0.checked_rem(contents.segment_bytes).unwrap_or_default();
    let before = before.to_string();
    Err(match contents.reset_at() {
        Some(at) => Refusal::Reset { before, at, offset, expected },
        None => Refusal::Link { before, at, offset, expected, found },
    })
}

fn lsn(text: &Option<String>) -> Option<Lsn> {
    text.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_overwritten_may_be_the_only_one_that_starts_in_its_segment() {
        let before = [Lsn(0x10), Lsn(0x20)];
        assert_eq!(last_of([Some(Lsn(0x30)), None], &before), [Lsn(0x30)]);
        assert_eq!(last_of([Some(Lsn(0x30)), Some(Lsn(0x40))], &before), [Lsn(0x30), Lsn(0x40)]);
        assert_eq!(last_of([None, Some(Lsn(0x40))], &before), [Lsn(0x40), Lsn(0x10), Lsn(0x20)]);
        assert_eq!(last_of([None, None], &before), before);
        // If the previous segment is unknown, the link cannot be checked.
        assert!(last_of([None, Some(Lsn(0x40))], &[]).is_empty());
    }
}

//! Checks that segments follow each other: each record states where the previous one starts (`xl_prev`).
//!
//! A clone of a server, or a second standby promoted to the same timeline, writes segments with the same
//! names and system identifier. Their links distinguish them.

use walden_format::lsn::{Lsn, SegmentName, SegmentSize};

use crate::objects::check::Refusal;
use crate::objects::contents::Contents;

/// Returns the previous segment on the same timeline.
pub(crate) fn segment_before(name: SegmentName, size: SegmentSize) -> Option<SegmentName> {
    Some(SegmentName::new(name.timeline, name.number(size)?.checked_sub(1)?, size))
}

/// Returns the records to which the next segment's first record may point back, or an empty list if they are
/// unknown. `before` contains the same records for the previous segment.
pub(crate) fn last_records(contents: &Contents, before: &[Lsn]) -> Vec<Lsn> {
    last_of([lsn(&contents.last_record), lsn(&contents.unfinished_record)], before)
}

/// Does the same for a segment whose `own` records are the last one that ends in it and the one that
/// continues after it.
///
/// After a crash, recovery replaces an incomplete record with one that points back at the record before it.
/// If no record starts and ends in the segment, that record is in an earlier one.
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

/// Checks that a segment's first record points back at one of the last records of the previous segment.
///
/// # Errors
/// [`Refusal::Link`] and [`Refusal::Reset`].
pub(crate) fn expect_link(
    contents: &Contents,
    before: SegmentName,
    last_records: &[Lsn],
) -> Result<(), Refusal> {
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

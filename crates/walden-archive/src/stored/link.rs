//! Whether segments follow each other: each record says where the one before it starts (`xl_prev`).
//!
//! A clone of a server, or a second standby that is promoted to the same timeline, writes segments of the same names and of the same
//! system identifier. By their links they are told apart.

use walden_format::lsn::{Lsn, SegmentName, SegmentSize};

use crate::stored::check::Refusal;
use crate::stored::contents::Contents;

/// The segment before one, on its timeline.
pub(crate) fn segment_before(name: SegmentName, size: SegmentSize) -> Option<SegmentName> {
    Some(SegmentName::new(name.timeline, name.number(size)?.checked_sub(1)?, size))
}

/// The records of a segment at which the first one of the next segment may point back; none if that is not known. `before` are the same
/// of the segment before.
pub(crate) fn last_records(contents: &Contents, before: &[Lsn]) -> Vec<Lsn> {
    last_of([lsn(&contents.last_record), lsn(&contents.unfinished_record)], before)
}

/// The same of the last record that ends in a segment, and of the one that goes on behind it.
///
/// After a crash, a record that was cut off is overwritten by one that points back at the one before it. If no record starts and ends in
/// the segment, that one lies before it.
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

/// Confirms that a segment's first record points back at one of the last records of the segment before.
///
/// # Errors
/// [`Refusal::Link`].
pub(crate) fn expect_link(
    contents: &Contents,
    before: SegmentName,
    last_records: &[Lsn],
) -> Result<(), Refusal> {
    let (Some(at), Some(found)) = (lsn(&contents.first_record), lsn(&contents.first_record_previous)) else {
        return Ok(());
    };
    // What pg_resetwal begins has no record before it.
    if found == Lsn::INVALID || last_records.is_empty() || last_records.contains(&found) {
        return Ok(());
    }
    let expected = last_records.iter().map(Lsn::to_string).collect::<Vec<_>>().join(" or ");
    let offset = at.0.checked_rem(contents.segment_bytes).unwrap_or_default();
    Err(Refusal::Link { before: before.to_string(), at, offset, expected, found })
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
        // Where the segment before is not known, nothing is compared.
        assert!(last_of([None, Some(Lsn(0x40))], &[]).is_empty());
    }
}

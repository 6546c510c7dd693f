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

/// The records of a segment at which the first one of the next segment may point back; none if no record starts in it.
///
/// That is the last one. After a crash, one that was cut off is overwritten by a record that points back at the one before it.
pub(crate) fn last_records(contents: &Contents) -> Vec<Lsn> {
    [&contents.last_record, &contents.unfinished_record].into_iter().filter_map(lsn).collect()
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

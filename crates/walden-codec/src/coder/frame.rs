//! Framing of a segment: all bytes of the segment except its records, in the columns `numbers` and `bytes`,
//! which are created before all other columns.

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::framing::{HeaderChange, HeaderFields};
use crate::leb128::narrow;
use crate::{Corrupt, corrupt};

/// Columns of framing.
pub struct FrameColumns {
    /// Fields of a [`SegmentFrame`].
    pub numbers: Column,
    /// Header of the first page, and bytes that are not part of a complete record.
    pub bytes: Column,
}

impl FrameColumns {
    /// Creates the columns.
    pub fn new<C: Coder>(coder: &mut C) -> Result<FrameColumns, Corrupt> {
        Ok(FrameColumns {
            numbers: coder.column(Kind::Symbols(Class::Framing))?,
            bytes: coder.column(Kind::Bytes(Class::Raw))?,
        })
    }
}

/// How a segment ends after its last complete record.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum End {
    /// The last record ends at the end of the segment.
    #[default]
    Full,
    /// The last record continues in the next segment.
    Cut,
    /// Literal bytes, then zeros. After a segment switch and at the end of the WAL there are only zeros.
    Bytes,
}

impl End {
    fn from_code(code: u64) -> Result<End, Corrupt> {
        Ok(match code {
            0 => End::Full,
            1 => End::Cut,
            2 => End::Bytes,
            _ => return Err(corrupt("cannot decode the segment's end: expected 0 to 2, found another kind")),
        })
    }
}

/// A record that a crash cut off. The next page starts with `XLOG_OVERWRITE_CONTRECORD`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Abandoned {
    /// Number of complete records in the segment before the record that was cut off.
    pub records_before: u64,
    /// Number of bytes of the record that were written.
    pub bytes: usize,
}

/// Numbers that describe a segment apart from its records.
#[derive(Clone, Default, Debug)]
pub struct SegmentFrame {
    /// Number of records that start and end in the segment.
    pub records: u64,
    /// `xl_prev` of the first record.
    pub first_prev: u64,
    /// The kind of bytes between the last record and the segment's end.
    pub end: End,
    /// Number of coded bytes of the end.
    pub tail_bytes: usize,
    /// Number of missing bytes of the record that started in an earlier segment, if a crash cut off this
    /// record in this segment.
    pub head_missing: usize,
    /// Pages at which header fields change.
    pub changes: Vec<HeaderChange>,
    /// Records that a crash cut off, in WAL order.
    pub abandoned: Vec<Abandoned>,
}

impl SegmentFrame {
    /// Codes the numbers of a segment of `pages` pages. Encoding writes `self`, decoding ignores it.
    pub fn code<C: Coder>(self, coder: &mut C, numbers: Column, pages: u32) -> Result<SegmentFrame, Corrupt> {
        let mut number = |value: u64| coder.symbol(numbers, value);
        let records = number(self.records)?;
        let first_prev = number(self.first_prev)?;
        let end = End::from_code(number(self.end as u64)?)?;
        let tail_bytes = narrow(number(self.tail_bytes as u64)?)?;
        let head_missing = narrow(number(self.head_missing as u64)?)?;
        // Both kinds of change occur at page starts, at most one per page.
        let mut count = |len: usize| match number(len as u64)? {
            count if count <= u64::from(pages) => Ok(count as usize),
            _ => Err(corrupt("cannot decode framing: expected at most one change per page, found more")),
        };
        let (change_count, abandoned_count) = (count(self.changes.len())?, count(self.abandoned.len())?);
        let mut changes = Vec::with_capacity(change_count);
        let mut page = 0_u32;
        for at in 0..change_count {
            let given =
                self.changes.get(at).copied().unwrap_or(HeaderChange { page, ..HeaderChange::default() });
            let step = narrow(number((given.page - page).into())?)?;
            page = page.checked_add(step).filter(|page| step > 0 && *page < pages).ok_or_else(|| {
                corrupt("cannot decode framing: expected a page of the segment, found one after it")
            })?;
            let flags = narrow(number(given.fields.flags.into())?)?;
            let timeline = narrow(number(given.fields.timeline.into())?)?;
            let fields = HeaderFields::new(flags, timeline).ok_or_else(|| {
                corrupt("cannot decode framing: expected other page flags, found derived ones")
            })?;
            changes.push(HeaderChange { page, fields });
        }
        let mut abandoned = Vec::with_capacity(abandoned_count);
        let mut before = 0_u64;
        for at in 0..abandoned_count {
            let given =
                self.abandoned.get(at).copied().unwrap_or(Abandoned { records_before: before, bytes: 0 });
            before = before.saturating_add(number(given.records_before - before)?);
            let bytes = narrow(number(given.bytes as u64)?)?;
            abandoned.push(Abandoned { records_before: before, bytes });
        }
        Ok(SegmentFrame { records, first_prev, end, tail_bytes, head_missing, changes, abandoned })
    }
}

/// Returns `xl_tot_len` of a record that may be cut off, or 0 if even that field is incomplete.
pub fn total_len_of(start: &[u8]) -> u32 {
    start.first_chunk().map_or(0, |total| u32::from_le_bytes(*total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};

    fn fields(flags: u16, timeline: u32) -> HeaderFields {
        HeaderFields::new(flags, timeline).expect("no derived flag")
    }

    /// Codes numbers as symbols and decodes them as the frame of a segment of `pages` pages.
    fn decode(values: &[u64], pages: u32) -> Result<SegmentFrame, Corrupt> {
        let (mut coder, mut packer) = (Encoder::default(), Packer::new(1, false));
        let columns = FrameColumns::new(&mut coder).expect("encoding");
        for &value in values {
            coder.symbol(columns.numbers, value)?;
        }
        let chunk = coder.chunk(&mut packer);
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(false), &chunk, 1000)?;
        let columns = FrameColumns::new(&mut coder)?;
        let frame = SegmentFrame::default().code(&mut coder, columns.numbers, pages)?;
        coder.finish()?;
        Ok(frame)
    }

    #[test]
    fn a_frame_is_decoded_as_it_was_encoded() {
        let frame = || SegmentFrame {
            records: 1000,
            first_prev: 77,
            end: End::Bytes,
            tail_bytes: 9,
            head_missing: 5,
            changes: vec![
                HeaderChange { page: 1, fields: fields(4, 1) },
                HeaderChange { page: 7, fields: fields(12, 2) },
            ],
            abandoned: vec![
                Abandoned { records_before: 0, bytes: 16 },
                Abandoned { records_before: 900, bytes: 8 },
            ],
        };
        let (mut coder, mut packer) = (Encoder::default(), Packer::new(1, false));
        let columns = FrameColumns::new(&mut coder).expect("encoding");
        frame().code(&mut coder, columns.numbers, 8).expect("encoding");
        let chunk = coder.chunk(&mut packer);
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(false), &chunk, 1000).expect("a chunk");
        let columns = FrameColumns::new(&mut coder).expect("the same columns");
        let decoded = SegmentFrame::default().code(&mut coder, columns.numbers, 8).expect("a frame");
        assert_eq!(format!("{decoded:?}"), format!("{:?}", frame()));
    }

    #[test]
    fn numbers_outside_of_the_segment_are_refused() {
        assert!(decode(&[0, 0, 0, 0, 0, 1, 0, 1, 4, 1], 2).is_ok());
        assert!(decode(&[0, 0, 3, 0, 0, 0, 0], 2).is_err(), "an unknown end");
        assert!(
            decode(&[0, 0, 0, 0, 0, 3, 0, 1, 4, 1, 1, 4, 1, 1, 4, 1], 2).is_err(),
            "more changes than pages"
        );
        assert!(decode(&[0, 0, 0, 0, 0, 0, 1 << 40], 2).is_err(), "more abandoned records than pages");
        assert!(decode(&[0, 0, 0, 0, 0, 1, 0, 2, 4, 1], 2).is_err(), "a page behind the segment");
        assert!(decode(&[0, 0, 0, 0, 0, 1, 0, 0, 4, 1], 2).is_err(), "the first page");
        assert!(decode(&[0, 0, 0, 0, 0, 1, 0, 1, 5, 1], 2).is_err(), "a flag that follows from records");
        assert!(decode(&[0, 0, 0, 0, 0, 1, 0, 1, 4, 1 << 32], 2).is_err(), "a timeline of 33 bits");
    }
}

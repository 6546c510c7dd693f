//! Heap tuples: on pages (`HeapTupleHeaderData`), and in records (`xl_heap_header`).

use walden_format::payload::heap::{SharedLengths, UpdateFlags, XlHeapHeader, XlMultiInsertTuple};
use walden_recompress::pglz::same_start;
use walden_redo::page::heap_tuple::{
    HEAP_TUPLE_HEADER_BYTES, HOFF, LOGGED_FIELDS, LOGGED_FIELDS_BYTES, infomask, infomask2,
};

/// Part of a tuple header that records have as well: `t_infomask2`, `t_infomask`, `t_hoff`
/// (`xl_heap_header`). Kept as bytes for comparison; [`fields`] decodes them.
pub type HeapHeader = [u8; LOGGED_FIELDS_BYTES];

/// Decodes the fields of a header.
pub fn fields(header: &HeapHeader) -> XlHeapHeader {
    XlHeapHeader::from_bytes(header)
}

/// Returns whether a tuple with this header has a null bitmap.
pub fn has_nulls(header: &HeapHeader) -> bool {
    fields(header).infomask & infomask::HEAP_HASNULL != 0
}

/// Returns whether an item can be a heap tuple: its attributes start within it.
pub fn is_heap_tuple(item: &[u8]) -> bool {
    item.get(HOFF).is_some_and(|&hoff| (HEAP_TUPLE_HEADER_BYTES..=item.len()).contains(&hoff.into()))
}

/// The parts of a heap tuple on its page.
#[derive(Clone, Copy, Debug)]
pub struct HeapTuple<'a> {
    /// Part of the header that records have as well.
    pub header: &'a HeapHeader,
    /// Null bitmap with the padding after it.
    pub bitmap: &'a [u8],
    pub attributes: &'a [u8],
}

impl HeapTuple<'_> {
    /// Splits an item.
    pub fn parse(item: &[u8]) -> Option<HeapTuple<'_>> {
        let (header, body) = item.get(LOGGED_FIELDS.start..)?.split_first_chunk()?;
        let (bitmap, attributes) = body.split_at_checked(fields(header).null_bitmap_len()?)?;
        Some(HeapTuple { header, bitmap, attributes })
    }
}

/// Returns the lengths of the prefix and suffix that the attributes of two tuples share, as `log_heap_update`
/// counts them: a length below [`SharedLengths::MIN_BYTES`] counts as 0. Returns `None` if a record cannot
/// store a length.
pub fn shared_lengths(old: &[u8], new: &[u8]) -> Option<SharedLengths> {
    let worth = |len: usize| if len < SharedLengths::MIN_BYTES { 0 } else { len };
    let prefix = worth(same_start(old, new));
    let most = old.len().min(new.len()) - prefix;
    let suffix = worth(same_end(&old[old.len() - most..], &new[new.len() - most..]));
    Some(SharedLengths { prefix: u16::try_from(prefix).ok()?, suffix: u16::try_from(suffix).ok()? })
}

/// Returns the length of the common suffix.
fn same_end(one: &[u8], other: &[u8]) -> usize {
    let (mut one, mut other, mut same) = (one, other, 0);
    while let (Some((before, a)), Some((other_before, b))) =
        (one.split_last_chunk(), other.split_last_chunk())
    {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return same + (differing.leading_zeros() / 8) as usize;
        }
        same += 8;
        (one, other) = (before, other_before);
    }
    same + one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// Restores the parts that an update omits. Returns the tuple's header, and sets `body` to its null bitmap
/// and attributes.
pub fn completed_update(
    data: &[u8],
    old: HeapTuple<'_>,
    flags: UpdateFlags,
    body: &mut Vec<u8>,
) -> Option<HeapHeader> {
    let (shared, rest) = SharedLengths::split(flags, data)?;
    let (header, rest) = rest.split_first_chunk()?;
    let (bitmap, middle) = rest.split_at_checked(fields(header).null_bitmap_len()?)?;
    let suffix = old.attributes.len().checked_sub(shared.suffix.into())?;
    body.clear();
    body.extend_from_slice(bitmap);
    body.extend_from_slice(old.attributes.get(..shared.prefix.into())?);
    body.extend_from_slice(middle);
    body.extend_from_slice(&old.attributes[suffix..]);
    (shared_lengths(old.attributes, &body[bitmap.len()..]) == Some(shared)).then_some(*header)
}

/// Returns a value that identifies the layout of a tuple, apart from its null bitmap: the number of
/// attributes and their offset. The number is lower than the table's if columns were added later.
pub fn layout(header: &HeapHeader) -> u64 {
    let fields = fields(header);
    u64::from(fields.infomask2 & infomask2::HEAP_NATTS_MASK) << 8 | u64::from(fields.header_len)
}

/// A tuple of a MULTI_INSERT (`xl_multi_insert_tuple`).
pub struct MultiInsertTuple<'a> {
    /// Padding byte before this tuple.
    pub gap: u8,
    pub header: &'a HeapHeader,
    /// Bitmap and attributes.
    pub body: &'a [u8],
}

/// Iterator over the tuples of a MULTI_INSERT's data.
pub struct MultiInsert<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> MultiInsert<'a> {
    /// Creates an iterator over the tuples of block data. It stops at a tuple that exceeds the data.
    pub fn new(data: &'a [u8]) -> MultiInsert<'a> {
        MultiInsert { data, at: 0 }
    }

    /// Returns whether the data consists of exactly `count` tuples.
    pub fn is_exactly(data: &[u8], count: usize) -> bool {
        let mut iter = MultiInsert::new(data);
        iter.by_ref().take(count).count() == count && iter.at == data.len()
    }
}

impl<'a> Iterator for MultiInsert<'a> {
    type Item = MultiInsertTuple<'a>;

    fn next(&mut self) -> Option<MultiInsertTuple<'a>> {
        let gap = match self.at % 2 {
            0 => 0,
            _ => *self.data.get(self.at)?,
        };
        let mut at = self.at.next_multiple_of(2);
        let (header, body) = XlMultiInsertTuple::take(self.data, &mut at)?;
        self.at = at;
        Some(MultiInsertTuple { gap, header, body })
    }
}

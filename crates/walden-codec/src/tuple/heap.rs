//! Heap tuples: on pages (`HeapTupleHeaderData`), and in records (`xl_heap_header`).

use walden_redo::compress::pglz::same_start;

/// What records have of a tuple's header: `t_infomask2`, `t_infomask`, `t_hoff` (`xl_heap_header`); as on a page.
pub type HeapHeader = [u8; HEAD_BYTES];

/// Bytes of it.
pub const HEAD_BYTES: usize = 5;

/// Bytes of a tuple's header on its page, without the null bitmap (`SizeofHeapTupleHeader`).
pub const HEADER_BYTES: usize = 23;

/// In `t_infomask2`: the number of attributes (`HEAP_NATTS_MASK`).
const ATTRIBUTES: u16 = 0x07FF;

/// In `t_infomask`: there is a null bitmap (`HEAP_HASNULL`).
pub const HAS_NULLS: u8 = 0x01;

/// Whether an item can be a heap tuple: its attributes begin within it.
pub fn is_heap_tuple(item: &[u8]) -> bool {
    item.len() >= HEADER_BYTES && (HEADER_BYTES..=item.len()).contains(&item[22].into())
}

/// A heap tuple on its page, in its parts.
#[derive(Clone, Copy, Debug)]
pub struct HeapTuple<'a> {
    /// What records have of its header, too.
    pub header: &'a HeapHeader,
    /// The null bitmap, with the gap after it.
    pub bitmap: &'a [u8],
    /// Its attributes.
    pub attributes: &'a [u8],
}

impl HeapTuple<'_> {
    /// The parts of an item.
    pub fn of(item: &[u8]) -> Option<HeapTuple<'_>> {
        let (header, body) = item.get(HEADER_BYTES - HEAD_BYTES..)?.split_first_chunk::<HEAD_BYTES>()?;
        let bitmap = usize::from(header[4]).checked_sub(HEADER_BYTES)?;
        let (bitmap, attributes) = body.split_at_checked(bitmap)?;
        Some(HeapTuple { header, bitmap, attributes })
    }
}

/// Bytes that the attributes of two tuples have in common at their beginning and at their end, as `log_heap_update` counts them: fewer than
/// three are not worth it.
pub fn bytes_in_common(old: &[u8], new: &[u8]) -> (usize, usize) {
    let worth = |len: usize| if len < 3 { 0 } else { len };
    let prefix = worth(same_start(old, new));
    let most = old.len().min(new.len()) - prefix;
    (prefix, worth(same_end(&old[old.len() - most..], &new[new.len() - most..])))
}

/// How many bytes are the same from the end on.
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

/// Completes the data of an update by what it leaves out: gives the tuple's header, and in `body` null bitmap and attributes.
pub fn completed_update(
    data: &[u8],
    old: HeapTuple<'_>,
    (prefix, suffix): (bool, bool),
    body: &mut Vec<u8>,
) -> Option<HeapHeader> {
    let mut rest = data;
    let mut length = |said: bool| -> Option<usize> {
        if !said {
            return Some(0);
        }
        let (two, after) = rest.split_first_chunk::<2>()?;
        rest = after;
        Some(u16::from_le_bytes(*two).into())
    };
    let (prefix, suffix) = (length(prefix)?, length(suffix)?);
    let (header, rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
    let (bitmap, middle) = rest.split_at_checked(usize::from(header[4]).checked_sub(HEADER_BYTES)?)?;
    body.clear();
    body.extend_from_slice(bitmap);
    body.extend_from_slice(old.attributes.get(..prefix)?);
    body.extend_from_slice(middle);
    body.extend_from_slice(&old.attributes[old.attributes.len().checked_sub(suffix)?..]);
    let attributes = &body[bitmap.len()..];
    (bytes_in_common(old.attributes, attributes) == (prefix, suffix)).then_some(*header)
}

/// What tells apart how tuples of a relation are laid out, but for their nulls: the number of attributes, and where they begin.
pub fn layout(header: &HeapHeader) -> u64 {
    let attributes = u16::from_le_bytes([header[0], header[1]]) & ATTRIBUTES;
    u64::from(attributes) << 8 | u64::from(header[4])
}

/// A tuple of MULTI_INSERT (`xl_multi_insert_tuple`).
pub struct MultiInsertTuple<'a> {
    /// What is between the tuple before and this one.
    pub gap: u8,
    /// Its header.
    pub header: &'a HeapHeader,
    /// What follows: bitmap and attributes.
    pub body: &'a [u8],
}

/// The tuples of MULTI_INSERT's data.
pub struct MultiInsert<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> MultiInsert<'a> {
    /// Reads them.
    pub fn new(data: &'a [u8]) -> MultiInsert<'a> {
        MultiInsert { data, at: 0 }
    }

    /// Whether the data is so many tuples and nothing else.
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
        let at = self.at.next_multiple_of(2);
        let (len, rest) = self.data.get(at..)?.split_first_chunk::<2>()?;
        let (header, rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
        let body = rest.get(..u16::from_le_bytes(*len).into())?;
        self.at = at + 2 + HEAD_BYTES + body.len();
        Some(MultiInsertTuple { gap, header, body })
    }
}

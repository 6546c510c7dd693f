//! Heap tuples: on pages (`HeapTupleHeaderData`), and in records (`xl_heap_header`).

use walden_redo::pglz::same_start;

/// What a record says of a row's header: `t_infomask2`, `t_infomask`, `t_hoff` (`xl_heap_header`); as on a page.
pub type Head = [u8; HEAD_BYTES];

/// Bytes of it.
pub const HEAD_BYTES: usize = 5;

/// Bytes of a row's header on its page, without the null bitmap.
pub const HEADER_BYTES: usize = 23;

const ATTRIBUTES: u16 = 0x07FF;

/// In `t_infomask`.
pub const HAS_NULLS: u8 = 0x01;

pub fn is_row(item: &[u8]) -> bool {
    item.len() >= HEADER_BYTES && (HEADER_BYTES..=item.len()).contains(&item[22].into())
}

/// A row on its page, to which another is compared.
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    pub head: &'a Head,
    pub bitmap: &'a [u8],
    pub row: &'a [u8],
}

impl Old<'_> {
    /// Its parts, from the item.
    pub fn of(item: &[u8]) -> Option<Old<'_>> {
        let (head, body) = item.get(HEADER_BYTES - HEAD_BYTES..)?.split_first_chunk::<HEAD_BYTES>()?;
        let bitmap = usize::from(head[4]).checked_sub(HEADER_BYTES)?;
        let (bitmap, row) = body.split_at_checked(bitmap)?;
        Some(Old { head, bitmap, row })
    }
}

/// Bytes that two rows have in common at their beginning and at their end, as `log_heap_update` counts them: fewer than
/// three are not worth it.
pub fn in_common(old: &[u8], new: &[u8]) -> (usize, usize) {
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

/// The whole row of an update's data: its head, and in `body` bitmap and row.
pub fn whole(data: &[u8], old: Old<'_>, (prefix, suffix): (bool, bool), body: &mut Vec<u8>) -> Option<Head> {
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
    let (head, rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
    let (bitmap, middle) = rest.split_at_checked(usize::from(head[4]).checked_sub(HEADER_BYTES)?)?;
    body.clear();
    body.extend_from_slice(bitmap);
    body.extend_from_slice(old.row.get(..prefix)?);
    body.extend_from_slice(middle);
    body.extend_from_slice(&old.row[old.row.len().checked_sub(suffix)?..]);
    let row = &body[bitmap.len()..];
    (in_common(old.row, row) == (prefix, suffix)).then_some(*head)
}

pub fn layout(head: &Head) -> u64 {
    let attributes = u16::from_le_bytes([head[0], head[1]]) & ATTRIBUTES;
    u64::from(attributes) << 8 | u64::from(head[4])
}

/// A row of MULTI_INSERT.
pub struct MultiInsertRow<'a> {
    pub gap: u8,
    pub head: &'a Head,
    pub body: &'a [u8],
}

/// The rows of MULTI_INSERT's data.
pub struct MultiInsert<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> MultiInsert<'a> {
    /// Reads them.
    pub fn new(data: &'a [u8]) -> MultiInsert<'a> {
        MultiInsert { data, at: 0 }
    }

    /// Whether the data is so many rows and nothing else.
    pub fn is_exactly(data: &[u8], rows: usize) -> bool {
        let mut iter = MultiInsert::new(data);
        iter.by_ref().take(rows).count() == rows && iter.at == data.len()
    }
}

impl<'a> Iterator for MultiInsert<'a> {
    type Item = MultiInsertRow<'a>;

    fn next(&mut self) -> Option<MultiInsertRow<'a>> {
        let gap = match self.at % 2 {
            0 => 0,
            _ => *self.data.get(self.at)?,
        };
        let at = self.at.next_multiple_of(2);
        let (len, rest) = self.data.get(at..)?.split_first_chunk::<2>()?;
        let (head, rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
        let body = rest.get(..u16::from_le_bytes(*len).into())?;
        self.at = at + 2 + HEAD_BYTES + body.len();
        Some(MultiInsertRow { gap, head, body })
    }
}

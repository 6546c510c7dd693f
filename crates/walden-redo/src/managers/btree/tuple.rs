//! Changes B-tree tuples and their posting lists, whose layout is in [`crate::page::btree`]. Mirrors
//! `nbtdedup.c`.

use crate::page::btree::{BT_IS_POSTING, BT_OFFSET_MASK, INDEX_ALT_TID_MASK, heap_tids, posting_list};
use crate::page::index_tuple::{INDEX_SIZE_MASK, INDEX_TUPLE_HEADER_BYTES, header, set_t_info, size, t_info};
use crate::page::tid::{INVALID_OFFSET_NUMBER, TID_BYTES, Tid};
use crate::page::{Misfit, PAGE_BYTES, max_align};

/// Returns a tuple's size according to its header, if the tuple has at least that many bytes.
pub(super) fn checked_size(tuple: &[u8]) -> Option<usize> {
    size(tuple).filter(|&size| size <= tuple.len())
}

/// Splits off the first of several tuples, with its padding.
pub(super) fn split_first(tuples: &[u8]) -> Result<(&[u8], &[u8]), Misfit> {
    checked_size(tuples)
        .and_then(|size| tuples.split_at_checked(max_align(size)))
        .ok_or(Misfit("an index tuple has no sound size"))
}

/// Inserts a TID into a posting list as the TID with index `at`, and removes and returns the last TID
/// (`_bt_swap_posting`).
pub(super) fn swap_posting(tuple: &mut [u8], tid: Tid, at: u16) -> Result<Tid, Misfit> {
    let misfit = Misfit("the posting list cannot be split there");
    let list = posting_list(tuple).and_then(|range| tuple.get_mut(range)).ok_or(misfit)?;
    let start = usize::from(at) * TID_BYTES;
    let keep = list.len().checked_sub(TID_BYTES).filter(|&keep| start > 0 && start <= keep).ok_or(misfit)?;
    let last = Tid::read(&list[keep..]).ok_or(misfit)?;
    list.copy_within(start..keep, start + TID_BYTES);
    list[start..start + TID_BYTES].copy_from_slice(&tid.to_bytes());
    Ok(last)
}

/// Undoes [`swap_posting`]: returns the position and the TID that was inserted there.
pub(super) fn unswap_posting(before: &[u8], after: &[u8]) -> Option<(u16, Tid)> {
    let (before, after) = (heap_tids(before)?, heap_tids(after)?);
    let at = tids(before).zip(tids(after)).position(|(old, new)| old != new)?;
    let tid = tids(after).nth(at).and_then(Tid::read)?;
    Some((u16::try_from(at).ok()?, tid))
}

/// Iterates over the TIDs, as bytes.
pub(super) fn tids(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.chunks_exact(TID_BYTES)
}

/// Sets a tuple's `t_tid`.
pub(super) fn set_tid(tuple: &mut [u8], tid: Tid) {
    if let Some(bytes) = tuple.first_chunk_mut() {
        *bytes = tid.to_bytes();
    }
}

/// Returns the high key of a half-dead leaf, which contains the topmost page to be deleted together with the
/// leaf (`BTreeTupleSetTopParent`).
pub(super) fn top_parent(block: u32) -> [u8; INDEX_TUPLE_HEADER_BYTES] {
    let tid = Tid { block, offset_number: INVALID_OFFSET_NUMBER };
    header(tid, INDEX_TUPLE_HEADER_BYTES as u16 | INDEX_ALT_TID_MASK)
}

/// Builds a tuple from the key of an existing tuple and a list of TIDs (`_bt_form_posting`,
/// `_bt_update_posting`).
pub(super) struct PostingBuilder {
    bytes: [u8; PAGE_BYTES],
    /// Bytes of header and key.
    key: usize,
    end: usize,
}

impl PostingBuilder {
    pub fn new() -> PostingBuilder {
        PostingBuilder { bytes: [0; PAGE_BYTES], key: 0, end: 0 }
    }

    /// Starts with the key of a leaf tuple, without its TIDs.
    pub fn start(&mut self, base: &[u8]) -> Result<(), Misfit> {
        let key = match posting_list(base) {
            Some(list) => Some(list.start),
            None => checked_size(base),
        };
        let key = key.and_then(|key| base.get(..key)).filter(|key| key.len() <= PAGE_BYTES);
        let key = key.ok_or(Misfit("an index tuple has no sound size"))?;
        self.bytes[..key.len()].copy_from_slice(key);
        (self.key, self.end) = (key.len(), key.len());
        Ok(())
    }

    /// Appends TIDs.
    pub fn push(&mut self, tids: &[u8]) -> Result<(), Misfit> {
        let end = self.end + tids.len();
        let place = self.bytes.get_mut(self.end..end).ok_or(Misfit("the posting list is too long"))?;
        place.copy_from_slice(tids);
        self.end = end;
        Ok(())
    }

    /// Returns the tuple. A tuple with a single TID has no posting list.
    pub fn finish(&mut self) -> Result<&[u8], Misfit> {
        let count = (self.end - self.key) / TID_BYTES;
        let info = t_info(&self.bytes).unwrap_or(0) & !INDEX_SIZE_MASK;
        let (size, info) = match count {
            0 => return Err(Misfit("the tuple keeps no TID")),
            1 => {
                self.bytes.copy_within(self.key..self.end, 0);
                (self.key, info & !INDEX_ALT_TID_MASK)
            }
            _ => {
                let list = Tid { block: self.key as u32, offset_number: count as u16 | BT_IS_POSTING };
                self.bytes[..TID_BYTES].copy_from_slice(&list.to_bytes());
                (max_align(self.end), info | INDEX_ALT_TID_MASK)
            }
        };
        if size > INDEX_SIZE_MASK.into() || count > BT_OFFSET_MASK.into() {
            return Err(Misfit("the posting list is too long"));
        }
        if count > 1 {
            self.bytes[self.end..size].fill(0);
        }
        set_t_info(&mut self.bytes, info | size as u16);
        Ok(&self.bytes[..size])
    }
}

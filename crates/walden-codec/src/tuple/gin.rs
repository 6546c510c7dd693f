//! GIN: entries and their posting lists, tuples of pending lists, leaves of posting trees.
//!
//! Entries in records (`ginxlogInsertEntry`):
//!
//! ```text
//! offset  width
//!      0      2  offset number
//!      2      1  whether the entry there is replaced
//!      3      1
//!      4      8  header of the entry
//!     12         key, posting list
//! ```
//!
//! Leaves of posting trees:
//!
//! ```text
//! offset  width
//!     24      6  right bound: upper limit of the TIDs
//!     32         segments of a compressed list, up to `pd_lower`
//!   8184      8  right sibling 4 bytes, number of items 2 bytes, flags 2 bytes (`GinPageOpaqueData`)
//! ```

use walden_format::payload::gin::GinInsertEntry;
use walden_redo::page::gin::{
    GIN_DATA, GIN_ITUP_COMPRESSED, GIN_TREE_POSTING, GinPageOpaqueData, MAX_PACKED_OFFSET_NUMBER,
    PostingSegment, distance_bytes, flags, number_to_tid, put_segment, tid_to_number,
};
use walden_redo::page::index_tuple::{
    self, INDEX_SIZE_MASK, INDEX_TUPLE_HEADER_BYTES, INDEX_VAR_MASK, header, t_info,
};
use walden_redo::page::varlena::{MAX_SHORT_CONTENT, ShortHeader};
use walden_redo::page::{Page, SpecialArea, Tid, max_align};

/// Length of the header before an entry's key, in bytes.
pub const HEADER: usize = INDEX_TUPLE_HEADER_BYTES;

/// Header before an entry in a record (`ginxlogInsertEntry`). Kept as bytes, because it contains padding.
pub type EntryHead = [u8; GinInsertEntry::WIDTH];

/// Returns whether data is long enough to be an entry.
pub fn is_entry(data: &[u8]) -> bool {
    data.len() >= GinInsertEntry::WIDTH + HEADER
}

/// Returns the offset number of the replaced entry.
pub fn replaced(head: &EntryHead) -> Option<u16> {
    GinInsertEntry::read(head).filter(|head| head.is_delete).map(|head| head.offset)
}

/// Iterator over consecutive tuples.
pub struct Tuples<'a> {
    /// Remaining bytes.
    pub data: &'a [u8],
}

impl<'a> Iterator for Tuples<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (tuple, rest) = self.data.split_at_checked(index_tuple::size(self.data)?)?;
        self.data = rest;
        Some(tuple)
    }
}

/// Returns whether data consists of at least one tuple and nothing else.
pub fn is_pending(data: &[u8]) -> bool {
    let mut tuples = Tuples { data };
    tuples.by_ref().count() > 0 && tuples.data.is_empty()
}

/// Returns the key of a tuple as a word, if it has that form.
pub fn word_of(tuple: &[u8]) -> Option<&[u8]> {
    text(tuple.get(HEADER..)?)
}

/// Returns the text in a key, if it is a short varlena padded with zeros.
pub fn text(key: &[u8]) -> Option<&[u8]> {
    let ShortHeader::Value { size } = ShortHeader::decode(*key.first()?)? else { return None };
    let (text, rest) = key.split_at_checked(size).filter(|_| max_align(size) == key.len() && size > 1)?;
    rest.iter().all(|&byte| byte == 0).then(|| &text[1..])
}

/// Appends a text as a key: a short varlena padded with zeros. Returns false if the text is too long.
pub fn put_text(text: &[u8], out: &mut Vec<u8>) -> bool {
    if text.len() > MAX_SHORT_CONTENT {
        return false;
    }
    let end = out.len() + max_align(1 + text.len());
    out.push(ShortHeader::byte(text.len()));
    out.extend_from_slice(text);
    out.resize(end, 0);
    true
}

/// Appends the pending tuple of a word. Returns false if the word is too long.
pub fn put_word(tid: Tid, word: &[u8], out: &mut Vec<u8>) -> bool {
    let size = HEADER + max_align(1 + word.len());
    let start = out.len();
    out.extend_from_slice(&header(tid, size as u16 | INDEX_VAR_MASK));
    let is_short = put_text(word, out);
    if !is_short {
        out.truncate(start);
    }
    is_short
}

/// A key with the flags of its tuple.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Flags of the tuple's `t_info`.
    pub flags: u16,
    /// The key, with the padding after it.
    pub bytes: Vec<u8>,
}

/// A GIN entry: a key and its TIDs.
pub struct Entry<'a> {
    pub key: Key,
    /// TIDs; `None` if they are in a posting tree.
    pub tids: Option<Vec<Tid>>,
    /// Header and key, up to the TIDs.
    pub start: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Splits an entry's index tuple; `None` if its lengths are inconsistent or its TIDs cannot be decoded.
    pub fn parse(tuple: &'a [u8]) -> Option<Entry<'a>> {
        let (Tid { block, offset_number: count }, info) = (Tid::read(tuple)?, t_info(tuple)?);
        if count == GIN_TREE_POSTING {
            let key = Key { flags: info & !INDEX_SIZE_MASK, bytes: tuple[HEADER..].to_vec() };
            return Some(Entry { key, tids: None, start: tuple });
        }
        let at = (block & !GIN_ITUP_COMPRESSED) as usize;
        if block & GIN_ITUP_COMPRESSED == 0 || at < HEADER {
            return None;
        }
        let start = tuple.get(..at)?;
        let key = Key { flags: info & !INDEX_SIZE_MASK, bytes: start[HEADER..].to_vec() };
        let tids = tids_of(&tuple[at..], count.into())?;
        Some(Entry { key, tids: Some(tids), start })
    }
}

/// Returns the entry of a key with the TIDs of `before` and the TIDs `more`, and all TIDs of this entry.
pub fn entry_with(before: Option<&Entry<'_>>, key: &Key, more: &[Tid]) -> Option<(Vec<u8>, Vec<Tid>)> {
    let known = match before {
        Some(entry) => entry.tids.as_deref()?,
        None => &[],
    };
    let mut tids = Vec::with_capacity(known.len() + more.len());
    tids.extend_from_slice(known);
    tids.extend_from_slice(more);
    // TIDs mostly arrive in order.
    if !tids.is_sorted_by(|a, b| a < b) {
        tids.sort_unstable();
        tids.dedup();
    }
    let bytes = before.map_or(&key.bytes[..], |entry| &entry.key.bytes);
    let at = before.map_or(HEADER + bytes.len(), |entry| entry.start.len());
    Some((list_entry((key.flags, bytes), at, &tids)?, tids))
}

/// Returns the entry of a key with sorted TIDs.
pub fn new_entry(key: &Key, tids: &[Tid]) -> Option<Vec<u8>> {
    list_entry((key.flags, &key.bytes), HEADER + key.bytes.len(), tids)
}

/// Returns the entry of a key, given as flags and bytes, with sorted TIDs from offset `at` on.
fn list_entry((flags, bytes): (u16, &[u8]), at: usize, tids: &[Tid]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(HEADER + bytes.len() + 16 + 2 * tids.len());
    out.extend_from_slice(&[0; HEADER]);
    out.extend_from_slice(bytes);
    if !put_tids(tids, &mut out) {
        return None;
    }
    out.resize(max_align(out.len()), 0);
    let size = u16::try_from(out.len()).ok().filter(|&size| size <= INDEX_SIZE_MASK)?;
    let tid = Tid { block: GIN_ITUP_COMPRESSED | at as u32, offset_number: u16::try_from(tids.len()).ok()? };
    out[..HEADER].copy_from_slice(&header(tid, size | flags));
    Some(out)
}

/// Returns the entry of a key whose TIDs are in a posting tree with a root block.
pub fn tree_entry(key: &Key, block: u32) -> Option<Vec<u8>> {
    let size = u16::try_from(HEADER + key.bytes.len()).ok().filter(|&size| size <= INDEX_SIZE_MASK)?;
    let mut out = Vec::with_capacity(size.into());
    out.extend_from_slice(&header(Tid { block, offset_number: GIN_TREE_POSTING }, size | key.flags));
    out.extend_from_slice(&key.bytes);
    Some(out)
}

/// Splits an item into the parts of an entry, if these parts reconstruct it. Also returns the root block of
/// its posting tree. Entries with uncompressed lists (before 9.4) or several segments are not supported.
pub fn as_entry(item: &[u8]) -> Option<(Entry<'_>, u32)> {
    let entry_of = Entry::parse(item)?;
    let block = Tid::read(item)?.block;
    let made = match &entry_of.tids {
        Some(tids) if is_list(tids) => new_entry(&entry_of.key, tids)?,
        Some(_) => return None,
        None => tree_entry(&entry_of.key, block)?,
    };
    (made == item).then_some((entry_of, block))
}

/// Returns the sorted TIDs of a compressed list (`ginpostinglist.c`); `None` if it is invalid or not sorted.
fn tids_of(mut list: &[u8], count: usize) -> Option<Vec<Tid>> {
    let mut tids = Vec::with_capacity(count.min(list.len()));
    while tids.len() < count {
        let len = segment(list, &mut tids)?;
        list = &list[len.min(list.len())..];
    }
    (tids.len() == count && tids.is_sorted_by(|a, b| a < b)).then_some(tids)
}

/// Adds the TIDs of a list's first segment. Returns its length with the padding after it.
fn segment(list: &[u8], tids: &mut Vec<Tid>) -> Option<usize> {
    let segment = PostingSegment::read(list)?;
    tids.push(segment.first);
    segment.others(|number| tids.extend(number_to_tid(number)))?;
    Some(segment.size())
}

/// Appends TIDs as a compressed list of one segment. Returns false if the list is empty or not sorted.
fn put_tids(tids: &[Tid], out: &mut Vec<u8>) -> bool {
    let Some((&first, others)) = tids.split_first() else { return false };
    let is_packable = |tid: &&Tid| tid.offset_number <= MAX_PACKED_OFFSET_NUMBER;
    let others = others.iter().take_while(is_packable).map(|tid| tid_to_number(*tid));
    put_segment(first, others, usize::MAX, out) == Some(tids.len())
}

/// Returns whether all TIDs are distinct, within `more` and between `known` and `more`.
pub fn are_apart(known: &[Tid], more: &[Tid]) -> bool {
    let mut more = more.to_vec();
    more.sort_unstable();
    more.is_sorted_by(|a, b| a < b)
        && match (known.last(), more.first()) {
            (Some(last), Some(first)) if last < first => true,
            _ => !more.iter().any(|tid| known.binary_search(tid).is_ok()),
        }
}

/// Flags of an entry leaf.
const ENTRY_LEAF: u16 = flags::GIN_LEAF;
/// Flags of a posting tree leaf.
const POSTING_LEAF: u16 = flags::GIN_DATA | flags::GIN_LEAF | flags::GIN_COMPRESSED;

/// Maximum bytes of a segment without its header: `GinPostingListSegmentMaxSize` when a tree is built
/// (`createPostingTree` in `gindatapage.c`), and `GinPostingListSegmentTargetSize` when a leaf is repacked
/// (`leafRepackItems`).
pub const FILLS: [usize; 2] = [376, 248];

/// Returns whether a page is a posting tree leaf that can be reconstructed from its TIDs.
pub fn is_posting_leaf(page: &Page) -> bool {
    has_flags(page, POSTING_LEAF) && segments(page).is_some()
}

/// Returns whether a page is an entry leaf, judging by its first entry.
pub fn is_entry_leaf(page: &Page) -> bool {
    has_flags(page, ENTRY_LEAF) && page.item(1).is_some_and(|item| as_entry(item).is_some())
}

fn has_flags(page: &Page, flags: u16) -> bool {
    page.special() == GinPageOpaqueData::AT && GinPageOpaqueData::read(page).flags == flags
}

/// Returns the TIDs of a posting tree leaf, and the number in each segment; `None` if it cannot be
/// reconstructed from them.
pub fn segments(page: &Page) -> Option<(Vec<Tid>, Vec<usize>)> {
    let list = page.0.get(GIN_DATA..page.lower())?;
    let (mut tids, mut counts, mut at) = (Vec::new(), Vec::new(), 0);
    while at < list.len() {
        let before = tids.len();
        at += segment(&list[at..], &mut tids)?;
        counts.push(tids.len() - before);
    }
    let mut made = Vec::with_capacity(list.len());
    let same = is_list(&tids) && put_segments(&tids, &counts, &mut made) && made == list;
    (same && !tids.is_empty()).then_some((tids, counts))
}

/// Returns whether TIDs are sorted and all have a valid offset number.
fn is_list(tids: &[Tid]) -> bool {
    tids.is_sorted_by(|a, b| a < b) && tids.iter().all(|tid| tid.offset_number > 0)
}

/// Appends TIDs as segments with the given counts. Returns false if a segment cannot be written.
pub fn put_segments(tids: &[Tid], counts: &[usize], out: &mut Vec<u8>) -> bool {
    let mut rest = tids;
    let put = |&count: &usize| {
        let Some((tids, after)) = rest.split_at_checked(count) else { return false };
        rest = after;
        put_tids(tids, out)
    };
    counts.iter().all(put)
}

/// Returns the number of TIDs in each segment if segments are filled with up to `most` bytes.
pub fn filled(tids: &[Tid], most: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    let (mut bytes, mut count) = (0, 0);
    for (at, &tid) in tids.iter().enumerate() {
        let last = if at == 0 { tid } else { tids[at - 1] };
        let len = distance_bytes(tid_to_number(tid).saturating_sub(tid_to_number(last)));
        if count > 0 && bytes + len > most {
            counts.push(count);
            count = 0;
        }
        // The first TID of a segment does not count towards these bytes.
        bytes = if count == 0 { 0 } else { bytes + len };
        count += 1;
    }
    counts.push(count);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tid(number: u32) -> Tid {
        Tid { block: number * number / 7, offset_number: (number % 200 + 1) as u16 }
    }

    #[test]
    fn tids_come_back_from_their_list() {
        let tids: Vec<Tid> = (0..150).map(tid).collect();
        let mut list = Vec::new();
        let mut sorted = tids.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(put_tids(&sorted, &mut list));
        assert_eq!(tids_of(&list, sorted.len()), Some(sorted.clone()));
        for len in 0..list.len() - 1 {
            assert_eq!(tids_of(&list[..len], sorted.len()), None);
        }
    }

    #[test]
    fn segments_are_filled_as_postgresql_does() {
        // One byte for each TID after the first.
        let tids: Vec<Tid> = (0..1000).map(|at| Tid { block: 9, offset_number: at + 1 }).collect();
        assert_eq!(filled(&tids, 376), [377, 377, 246]);
        assert_eq!(filled(&tids[..377], 376), [377]);
    }
}
